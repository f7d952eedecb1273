"""Level shifts in the costs of an op on a CPU model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.changepoints import Design, Fit, Located, Window, best_steps, fit, located, losses, usual
from tracemap.store.series import EVERY, Floats, Integers, Panel, median_of, scale_of

# ---- cleaning
#
# Series without their outliers: what lies far from its neighbours in time is brought near, before anything is fitted.
#
# What is near is told by the level of the op on the host and a running median over nights, which keeps steps as they
# are. Clipped costs, in place of left out ones, make estimates those of Huber (Annals of Mathematical Statistics 35,
# 1964, p. 73), while each series of a CPU model keeps the same weights.


_WIDTH: Final = 7
"""Nights of the running median: a night, and three on either side."""
_CLIP: Final = 2.0
"""In standard deviations."""
_MANY_HOSTS: Final = 12
"""Of more hosts the median of each night is taken first: it is no longer moved by a few outliers."""
_ROUNDS: Final = 3
_LEAST_WEIGHT, _MOST_WEIGHT = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Cells without outliers; `levels` of ops on hosts, `scales` of ops, and how much each host's cells weigh.

    `expected`: what cells are without noise, those that were not measured, too.
    """

    cells: Floats
    expected: Floats
    levels: Floats
    scales: Floats
    weights: Floats


def cleaned(cells: Floats) -> Cleaned:
    """Cells (op, host, night) brought near to their neighbours.

    A host that is noisier than others of its CPU model weighs less, for all ops alike.
    """
    smooth = np.zeros((cells.shape[0], cells.shape[2]))
    for _ in range(_ROUNDS):
        levels = median_of(cells - smooth[:, None, :])
        smooth = _running_median(cells - levels[:, :, None])
    rests = cells - levels[:, :, None] - smooth[:, None, :]
    scales = scale_of(rests.reshape(len(cells), -1))
    noise = median_of(scale_of(rests) / scales[:, None], 0)
    weights = np.clip(np.nan_to_num(noise, nan=1.0) ** -2, _LEAST_WEIGHT, _MOST_WEIGHT)
    widths = _CLIP * scales[:, None] / np.sqrt(weights)
    clipped = np.clip(rests, -widths[:, :, None], widths[:, :, None])
    expected = levels[:, :, None] + smooth[:, None, :]
    return Cleaned(expected + clipped, expected, levels, scales, weights)


def _running_median(rests: Floats) -> Floats:
    """Of each night and its neighbours, over all hosts; at the ends of as many nights. Where nothing is, of all."""
    if rests.shape[1] > _MANY_HOSTS:
        rests = median_of(rests, 1)[:, None]
    width = min(_WIDTH, rests.shape[2])
    windows = np.lib.stride_tricks.sliding_window_view(rests, width, axis=2)
    middles = median_of(np.moveaxis(windows, 1, 2).reshape(len(rests), windows.shape[2], -1))
    starts = np.clip(np.arange(rests.shape[2]) - width // 2, 0, middles.shape[1] - 1)
    smooth = middles[:, starts]
    whole = median_of(rests.reshape(len(rests), -1))[:, None]
    return np.nan_to_num(np.where(np.isnan(smooth), whole, smooth))


# ---- stretches
#
# A series of one op on one CPU model, with what a close look at it needs; and the steps that are found in it.


MOST_STEPS: Final = 8
"""In one series."""
_WINDOW, _LEAST_WINDOW = 25, 5
"""Nights on either side of a step whose levels are compared: a path that wanders was elsewhere before."""
_MOST_LACKING: Final = 0.05
"""Of the runs of a CPU model a series may lack so many, and be looked at as if it had them."""
_AGREES: Final = 0.4
"""Of a step a host shows so much by itself, or it does not share it."""
_NIGHTS_OF_HOST: Final = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Series of a CPU model that were measured on the same hosts in the same nights: rows of a panel.

    `mask` (host, night): where. Of a few cells that a series lacks, it has what is expected.
    """

    panel: Panel
    clean: Cleaned
    rows: Integers
    mask: npt.NDArray[np.bool_]

    @property
    def hosts(self) -> Integers:
        """The places of its hosts in the panel."""
        return np.flatnonzero(self.mask.any(axis=1))

    @property
    def nights(self) -> Integers:
        """The places of its nights in the panel."""
        return np.flatnonzero(self.mask.any(axis=0))

    def weights(self) -> Floats:
        """Of cells (host, night); 0: not measured."""
        there = self.mask[np.ix_(self.hosts, self.nights)]
        return np.where(there, self.clean.weights[self.hosts][:, None], 0.0)

    def design(self) -> Design:
        """What follows of the nights in which hosts were measured."""
        return Design(self.weights(), self.panel.nights[self.nights])

    def series(self) -> Floats:
        """Without outliers."""
        cells = self._cut(self.clean.cells, self.rows)
        return np.where(np.isnan(cells), self._cut(self.clean.expected, self.rows), cells)

    def _cut(self, cells: Floats, rows: Integers) -> Floats:
        return cells[np.ix_(rows, self.hosts, self.nights)]

    def stretch(self, row: int, rarities: Floats) -> Stretch:
        """One of its series."""
        one = np.array([row])
        return Stretch(
            op=int(self.panel.ops[row]),
            cpu_model=self.panel.cpu_model,
            hosts=self.panel.hosts[self.hosts],
            nights=self.panel.nights[self.nights],
            cells=self._cut(self.panel.cells, one)[0],
            series=replace(self, rows=one).series()[0],
            levels=self.clean.levels[row][self.hosts],
            scales=self.clean.scales[row] / np.sqrt(self.clean.weights[self.hosts]),
            weights=self.weights(),
            rarities=rarities,
        )


@dataclass(frozen=True)
class Stretch:
    """A series: `cells` (host, night) as measured, `series` without outliers; `rarities`: see `changepoints.usual`."""

    op: int
    cpu_model: int
    hosts: Integers
    nights: Integers
    cells: Floats
    series: Floats
    levels: Floats
    scales: Floats
    weights: Floats
    rarities: Floats

    @cached_property
    def design(self) -> Design:
        """What follows of the nights in which hosts were measured."""
        return Design(self.weights, self.nights)

    @property
    def rests(self) -> Floats:
        """The cells without the levels of hosts."""
        return self.cells - self.levels[:, None]

    def alone(self, row: int) -> Stretch:
        """The same of one host."""
        clean = cleaned(self.cells[None, row : row + 1])
        return replace(
            self,
            hosts=self.hosts[row : row + 1],
            cells=self.cells[row : row + 1],
            series=clean.cells[0],
            levels=clean.levels[0],
            scales=clean.scales[:1],
            weights=self.weights[row : row + 1],
        )

    def place_of(self, night: int) -> int:
        """The place of the first of its nights that is not before this one."""
        return int(np.searchsorted(self.nights, night))

    def window(self, place: int, places: Sequence[int], walk: float) -> Window:
        """The nights around a step up to the next ones; fewer of a path that walks far."""
        cell = float(np.median(np.sum(self.weights, axis=0)))
        reach = _WINDOW if walk == 0 else int(np.clip(1 / math.sqrt(walk * cell), _LEAST_WINDOW, _WINDOW))
        low = max((other for other in places if other < place), default=0)
        high = min((other for other in places if other > place), default=len(self.nights))
        return Window(max(low, place - reach), place, min(high, place + reach))

    def agreeing(self, window: Window, size: float) -> tuple[Integers, npt.NDArray[np.bool_], Floats]:
        """The hosts that were there before and after, whether each shows a step of this size, and its own size."""
        before = self.rests[:, window.low : window.guess]
        after = self.rests[:, window.guess : window.high]
        counts = [np.sum(~np.isnan(part), axis=1) for part in (before, after)]
        there = np.flatnonzero(np.minimum(*counts) >= _NIGHTS_OF_HOST)
        own = median_of(after[there]) - median_of(before[there])
        return there, own * np.sign(size) >= _AGREES * abs(size), own


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a series, and where each is."""

    stretch: Stretch
    fit: Fit
    located: tuple[Located, ...]
    chances: tuple[float, ...]


def groups(panel: Panel) -> Iterator[Group]:
    """The series of a panel by where they were measured, without those that were not in enough nights.

    Each kind of where needs a decomposition of its own: series that lack but a few of all runs are taken together.
    """
    clean = cleaned(panel.cells)
    there = ~np.isnan(panel.cells)
    runs = np.asarray(there.any(axis=0))
    kinds: dict[bytes, list[int]] = {}
    masks: dict[bytes, npt.NDArray[np.bool_]] = {}
    for row in range(len(panel.ops)):
        on_all = not np.any(np.isnan(clean.levels[row]))
        few = on_all and np.sum(there[row]) >= (1 - _MOST_LACKING) * np.sum(runs)
        mask = runs if few else there[row]
        key = np.packbits(mask).tobytes()
        masks[key] = mask
        kinds.setdefault(key, []).append(row)
    for key, rows in kinds.items():
        group = Group(panel, clean, np.array(rows), masks[key])
        if len(group.nights) > 1:
            yield group


@dataclass(frozen=True, slots=True)
class First:
    """A series, the place of its best step, and its chance, corrected for the nights that were tried."""

    stretch: Stretch
    place: int
    chance: float


def first_steps(panel: Panel) -> Iterator[First]:
    """The best step of each series of a CPU model. How much ops wander is learned from all of them."""
    designed = [(group, group.design()) for group in groups(panel)]
    lost = {id(group): losses(design, group.series()) for group, design in designed}
    of_ops = [lost[id(group)][panel.ops[group.rows] != EVERY] for group, _ in designed]
    learned = usual(np.concatenate(of_ops)) if sum(map(len, of_ops)) else 0.0
    for group, design in designed:
        # What all ops have in common wanders by itself: how ops do tells nothing of it.
        own = (panel.ops[group.rows] != EVERY)[:, None]
        rarities = np.where(own, learned, np.zeros_like(lost[id(group)]))
        best = best_steps(design, group.series(), rarities)
        for number, row in enumerate(group.rows):
            stretch = group.stretch(int(row), rarities[number])
            yield First(stretch, int(best.places[number]), float(best.chances[number]))


def steps_of(stretch: Stretch, first: int, chance: float, count: int, level: float) -> Steps:
    """All steps of a series, of which the first is known; others as long as chance does not explain them.

    Args:
        stretch: the series.
        first: the place of the best step.
        chance: of the best step, corrected.
        count: of series, for which the chance of further steps is corrected.
        level: chance is not to make a further step more often.
    """
    places, chances = [first], [chance]
    while len(places) < MOST_STEPS:
        best = best_steps(stretch.design, stretch.series[None], stretch.rarities[None], places)
        if (corrected := float(best.chances[0]) * count) >= level:
            break
        places.append(int(best.places[0]))
        chances.append(corrected)
        places, chances = map(list, zip(*sorted(zip(places, chances, strict=True)), strict=True))
    fitted = fit(stretch.design, stretch.series, stretch.rarities, places)
    spots = []
    for number, place in enumerate(places):
        window = stretch.window(place, places, fitted.walk)
        allowed = stretch.design.allowed([*places[:number], *places[number + 1 :]])
        spots.append(located(stretch.rests, stretch.scales, window, fitted.shock, allowed))
    fitted = fit(stretch.design, stretch.series, stretch.rarities, [spot.place for spot in spots])
    return Steps(stretch, fitted, tuple(spots), tuple(chances))
