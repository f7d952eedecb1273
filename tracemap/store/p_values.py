"""P-values, with Holm's correction for multiple tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

MAD_TO_SIGMA: Final = 1.4826
"""Factor from median absolute deviation to standard deviation, for a normal distribution."""
_MOST: Final = 1e300


def tail(z: float) -> float:
    """Two-sided tail probability of a normal deviate."""
    return math.erfc(abs(z) / math.sqrt(2))


def normal_of_student(t: float, degrees: float) -> float:
    """The normal deviate with the same tail probability as a Student deviate."""
    if math.isinf(degrees):
        return t
    size = math.sqrt(degrees * math.log1p(t * t / degrees))
    return math.copysign((8 * degrees + 1) / (8 * degrees + 3) * size, t)


def student_of_normal(z: float, degrees: float) -> float:
    """Inverse of `normal_of_student`."""
    if math.isinf(degrees):
        return z
    size = z * (8 * degrees + 3) / (8 * degrees + 1)
    exponent = size * size / degrees
    return math.copysign(math.sqrt(degrees * math.expm1(exponent)) if exponent < 600 else _MOST, z)


def student_quantile(coverage: float, degrees: float) -> float:
    """Half width, in standard errors, of an interval with this coverage."""
    return student_of_normal(NormalDist().inv_cdf((1 + coverage) / 2), degrees)


def holm(chances: Sequence[float]) -> list[float]:
    """Correct p-values by Holm's method (Scandinavian Journal of Statistics 6, 1979, p. 65).

    The method assumes nothing about dependence. If nothing changed, the probability of any finding is at most the
    significance level.

    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(chances) - rank) * chances[index]))
        corrected[index] = least
    return corrected


def digamma(x: float) -> float:
    """Derivative of log gamma: recurrence, then asymptotic series (DLMF 5.5.2, 5.11.2)."""
    below = 0.0
    while x < 8:
        below -= 1 / x
        x += 1
    square = 1 / (x * x)
    return below + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252))


def trigamma(x: float) -> float:
    """Second derivative of log gamma: recurrence, then asymptotic series (DLMF 5.15.5, 5.15.8)."""
    below = 0.0
    while x < 8:
        below += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    return below + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def inverse_trigamma(value: float) -> float:
    """Inverse of trigamma: Newton's method on its reciprocal, which is nearly linear (Smyth 2004)."""
    x = 0.5 + 1 / value
    for _ in range(60):
        current = trigamma(x)
        step = 1e-5 * x
        slope = (trigamma(x + step) - trigamma(x - step)) / (2 * step)
        change = current * (1 - current / value) / slope
        x += change
        if abs(change) < 1e-9 * x:
            break
    return x
