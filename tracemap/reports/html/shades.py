"""Probabilities as shades and correlations as tints, which text and pages have alike."""

from __future__ import annotations

import math
from typing import Final

SHADES: Final = (
    *("  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃"),
    *("▄▃", "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"),
)
"""From probability 0 to 1."""
TINTS: Final = 10
"""From correlation 0 to 1, or to -1."""


def shade_level(probability: float, gamma: float) -> int:
    """Which of `SHADES` a probability has."""
    return min(len(SHADES) - 1, math.floor(math.pow(probability, gamma) * len(SHADES)))


def tints() -> str:
    """The strength of each shade and tint, in percent, as rules: style attributes are against the pages' policy."""
    shades = [f".q{level} {{ --p: {round(100 * level / (len(SHADES) - 1))}% }}\n" for level in range(len(SHADES))]
    return "".join(shades + [f".r{level} {{ --p: {6 * level}% }}\n" for level in range(TINTS + 1)])
