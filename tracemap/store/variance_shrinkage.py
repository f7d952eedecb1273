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
class ShrunkVariances:
    """Variances after shrinkage, with their degrees of freedom."""

    variances: Floats
    degrees: Floats


def shrink_variances(variances: Floats, degrees: Floats) -> ShrunkVariances:
    """Shrink variances towards their common prior. 0 degrees of freedom: no own estimate.

    With fewer than three estimates there is no prior, and variances stay as they are.
    """
    known = degrees > 0
    if np.sum(known) < _ENOUGH:
        return ShrunkVariances(np.maximum(variances, _LEAST), degrees)
    prior, strength = _prior(np.maximum(variances[known], _LEAST), degrees[known])
    if math.isinf(strength):
        return ShrunkVariances(np.full(len(variances), prior), np.full(len(variances), math.inf))
    own = np.where(known, np.maximum(variances, _LEAST) * degrees, 0.0)
    return ShrunkVariances((strength * prior + own) / (strength + degrees), strength + degrees)


def _prior(variances: Floats, degrees: Floats) -> tuple[float, float]:
    """The prior variance, and its degrees of freedom."""
    half = [float(x) / 2 for x in degrees]
    logs = np.log(variances) - np.array([digamma(x) - math.log(x) for x in half])
    excess = float(np.var(logs, ddof=1)) - float(np.mean([trigamma(x) for x in half]))
    mean = float(np.mean(logs))
    if excess <= 0:
        return math.exp(mean), math.inf
    strength = 2 * inverse_trigamma(excess)
    return math.exp(mean + digamma(strength / 2) - math.log(strength / 2)), strength
