"""Empirical-Bayes shrinkage of variances (Smyth 2004)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracemap.store.p_values import digamma, inverse_trigamma, trigamma
from tracemap.store.series import LEAST_SCALE, Floats

_LEAST: Final = LEAST_SCALE**2
_ENOUGH: Final = 3


@dataclass(frozen=True, slots=True)
class Moderated:
    """Variances, and how many degrees of freedom each has now."""

    variances: Floats
    degrees: Floats


def moderated(variances: Floats, degrees: Floats) -> Moderated:
    """Variances with their degrees of freedom (0: nothing is known), each moved as far as the others tell.

    Fewer than three of them tell nothing of one another: they stay as they are.
    """
    known = degrees > 0
    if np.sum(known) < _ENOUGH:
        return Moderated(np.maximum(variances, _LEAST), degrees)
    usual, strength = _prior(np.maximum(variances[known], _LEAST), degrees[known])
    if math.isinf(strength):
        return Moderated(np.full(len(variances), usual), np.full(len(variances), math.inf))
    own = np.where(known, np.maximum(variances, _LEAST) * degrees, 0.0)
    return Moderated((strength * usual + own) / (strength + degrees), strength + degrees)


def _prior(variances: Floats, degrees: Floats) -> tuple[float, float]:
    """The usual variance, and how many degrees of freedom it counts as."""
    half = [float(each) / 2 for each in degrees]
    logs = np.log(variances) - np.array([digamma(each) - math.log(each) for each in half])
    excess = float(np.var(logs, ddof=1)) - float(np.mean([trigamma(each) for each in half]))
    mean = float(np.mean(logs))
    if excess <= 0:
        return math.exp(mean), math.inf
    strength = 2 * inverse_trigamma(excess)
    return math.exp(mean + digamma(strength / 2) - math.log(strength / 2)), strength
