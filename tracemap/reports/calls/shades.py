"""Probabilities as shades, which text and page have alike."""

from __future__ import annotations

import math
from typing import Final

SHADES: Final = (
    *("  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃"),
    *("▄▃", "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"),
)
"""From probability 0 to 1."""


def shade_level(probability: float, gamma: float) -> int:
    """Which of `SHADES` a probability has."""
    return min(len(SHADES) - 1, math.floor(math.pow(probability, gamma) * len(SHADES)))
