"""In which night a step was, and between which nights it surely was: by the likelihood of every single cell.

Outliers count as those of Student's distribution with few degrees of freedom do (Lange, Little and Taylor, "Robust
statistical modeling using the t distribution", JASA 84, 1989), so that costs are taken as they were measured. The
nights are those that hold 95 % of the likelihood, when each is as likely beforehand (Smith, Biometrika 62, 1975, p.
407).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracemap.store.series import Floats, Integers, median_of

_REACH: Final = 12
"""Nights on either side of the first guess among which the step is looked for."""
_DEGREES: Final = 4.0
_COVERED: Final = 0.95


@dataclass(frozen=True, slots=True)
class Window:
    """Nights around a step: from `low` up to `guess` at the level before, from there up to `high` at the one after."""

    low: int
    guess: int
    high: int

    def levels(self, rests: Floats) -> tuple[Floats, Floats]:
        """The medians before and after, of each row."""
        return median_of(rests[..., self.low : self.guess]), median_of(rests[..., self.guess : self.high])


@dataclass(frozen=True, slots=True)
class Located:
    """The place of a step among the nights of a series, and the first and the last one where it may be."""

    place: int
    first: int
    last: int


def located(rests: Floats, scales: Floats, window: Window, shock: float, allowed: Integers) -> Located:
    """Where the step of one series is.

    Args:
        rests: cells (host, night) without the levels of hosts, as measured.
        scales: the noise of a cell, by host.
        window: about where it is, and which nights' levels are compared.
        shock: noise that hosts share in a night, as a variance in terms of a cell's: they tell less together.
        allowed: nights in which there may be one.
    """
    before = float(median_of(rests[:, window.low : window.guess].ravel()))
    after = float(median_of(rests[:, window.guess : window.high].ravel()))
    first, last = max(window.low + 1, window.guess - _REACH), min(window.high, window.guess + _REACH + 1)
    cells = rests[:, first:last]
    gains = _loss(cells, before, scales) - _loss(cells, after, scales)
    hosts = np.sum(~np.isnan(cells), axis=0)
    by_night = np.nansum(gains, axis=0) / (1 + shock * hosts)
    # A step at a night has all nights from it on at the new level.
    told = np.where(np.isin(np.arange(first, last), allowed), np.cumsum(by_night[::-1])[::-1], -np.inf)
    place = int(np.argmax(told))
    likely = np.exp(told - told[place])
    ordered = np.sort(likely)[::-1]
    covered = np.cumsum(ordered)
    least = ordered[int(np.searchsorted(covered, _COVERED * covered[-1]))]
    inside = np.flatnonzero(likely >= least)
    return Located(first + place, first + int(inside[0]), first + int(inside[-1]))


def _loss(cells: Floats, level: float, scales: Floats) -> Floats:
    squares = ((cells - level) / scales[:, None]) ** 2
    return np.asarray((_DEGREES + 1) / 2 * np.log1p(squares / _DEGREES))
