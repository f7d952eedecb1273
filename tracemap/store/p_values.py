"""P-values, corrected for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

MAD_TO_SIGMA: Final = 1.4826
"""What a median absolute deviation is multiplied by to be the standard deviation of a normal distribution."""
_MOST: Final = 1e300


def tail(z: float) -> float:
    """The probability that a normal variable is as far from 0, on either side."""
    return math.erfc(abs(z) / math.sqrt(2))


def normal_of_student(t: float, degrees: float) -> float:
    """The normal deviate whose tail is as likely as this one of Student's distribution."""
    if math.isinf(degrees):
        return t
    size = math.sqrt(degrees * math.log1p(t * t / degrees))
    return math.copysign((8 * degrees + 1) / (8 * degrees + 3) * size, t)


def student_of_normal(z: float, degrees: float) -> float:
    """The inverse: what of Student's distribution is as likely as this deviate."""
    if math.isinf(degrees):
        return z
    size = z * (8 * degrees + 3) / (8 * degrees + 1)
    exponent = size * size / degrees
    return math.copysign(math.sqrt(degrees * math.expm1(exponent)) if exponent < 600 else _MOST, z)


def student_quantile(covered: float, degrees: float) -> float:
    """How many standard errors either way an interval has that covers so much."""
    return student_of_normal(NormalDist().inv_cdf((1 + covered) / 2), degrees)


def holm(chances: Sequence[float]) -> list[float]:
    """The chances corrected for their number, by Holm's method (Scandinavian Journal of Statistics 6, 1979, p. 65).

    It assumes nothing of how they depend on one another: where nothing changed, anything at all is named as seldom as
    the limit says that they are held against.

    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for place, number in enumerate(order):
        least = max(least, min(1.0, (len(chances) - place) * chances[number]))
        corrected[number] = least
    return corrected


def digamma(x: float) -> float:
    """The derivative of log gamma: by recurrence, then its asymptotic series (DLMF 5.5.2, 5.11.2)."""
    below = 0.0
    while x < 8:
        below -= 1 / x
        x += 1
    square = 1 / (x * x)
    return below + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252))


def trigamma(x: float) -> float:
    """The second derivative of log gamma, likewise (DLMF 5.15.5, 5.15.8)."""
    below = 0.0
    while x < 8:
        below += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    return below + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def inverse_trigamma(value: float) -> float:
    """Where trigamma has a value: Newton's method on its reciprocal, which is nearly straight (Smyth 2004)."""
    x = 0.5 + 1 / value
    for _ in range(60):
        at = trigamma(x)
        step = 1e-5 * x
        slope = (trigamma(x + step) - trigamma(x - step)) / (2 * step)
        change = at * (1 - at / value) / slope
        x += change
        if abs(change) < 1e-9 * x:
            break
    return x
