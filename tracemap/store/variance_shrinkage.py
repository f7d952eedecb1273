"""Empirical-Bayes shrinkage of variances (Smyth 2004)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tracemap.store.p_values import digamma, inverse_trigamma, trigamma
from tracemap.store.series import LEAST_SCALE, Floats

_ENOUGH: Final = 3


def shrink_variances(variances: Floats, degrees: Floats) -> tuple[Floats, Floats]:
    """Shrink variances towards their common prior; returns them with their new degrees of freedom.

    0 degrees of freedom: no own estimate. With fewer than three estimates there is no prior, and variances stay as they
    are.
    """
    variances, known = np.maximum(variances, LEAST_SCALE**2), degrees > 0
    if np.sum(known) < _ENOUGH:
        return variances, degrees
    prior, strength = _prior(variances[known], degrees[known])
    if math.isinf(strength):
        return np.full(len(variances), prior), np.full(len(variances), math.inf)
    return (strength * prior + np.where(known, variances * degrees, 0.0)) / (strength + degrees), strength + degrees


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
