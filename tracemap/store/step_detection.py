"""Level shifts in the costs of an op on a CPU model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.changepoints import (
    Design,
    Fit,
    StepLocation,
    Window,
    best_steps,
    fit,
    learn_rarities,
    locate_step,
    losses,
)
from tracemap.store.series import EVERY, Floats, Integers, Panel, median_of, scale_of

# ---- outlier clipping
#
# Clip costs that lie far from their neighbours in time, before anything is fitted.
#
# The expected cost is the op's level on the host plus a running median over nights, which preserves steps. With clipped
# instead of dropped costs, estimates are those of Huber (Annals of Mathematical Statistics 35, 1964, p. 73), and all
# series of a CPU model keep the same weights.


_WIDTH: Final = 7
"""Nights in the running median: the night and three on either side."""
_CLIP: Final = 2.0
"""Clipping limit in standard deviations."""
_MANY_HOSTS: Final = 12
"""With more hosts, take the median over hosts per night first: a few outliers hardly move it."""
_ROUNDS: Final = 3
_LEAST_WEIGHT, _MOST_WEIGHT = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class ClippedCells:
    """Cells without outliers, with `levels` of ops on hosts, `scales` of ops, and `weights` of hosts.

    `expected`: cells without noise, also where nothing was measured.
    """

    cells: Floats
    expected: Floats
    levels: Floats
    scales: Floats
    weights: Floats


def clip_outliers(cells: Floats) -> ClippedCells:
    """Clip cells (op, host, night) to a range around the expected cost.

    Hosts that are noisier than others of their CPU model weigh less, for all ops.
    """
    smooth = np.zeros((cells.shape[0], cells.shape[2]))
    for _ in range(_ROUNDS):
        levels = median_of(cells - smooth[:, None, :])
        smooth = _running_median(cells - levels[:, :, None])
    residuals = cells - levels[:, :, None] - smooth[:, None, :]
    scales = scale_of(residuals.reshape(len(cells), -1))
    relative_noise = median_of(scale_of(residuals) / scales[:, None], 0)
    weights = np.clip(np.nan_to_num(relative_noise, nan=1.0) ** -2, _LEAST_WEIGHT, _MOST_WEIGHT)
    limits = _CLIP * scales[:, None] / np.sqrt(weights)
    clipped = np.clip(residuals, -limits[:, :, None], limits[:, :, None])
    expected = levels[:, :, None] + smooth[:, None, :]
    return ClippedCells(expected + clipped, expected, levels, scales, weights)


def _running_median(residuals: Floats) -> Floats:
    """Median over a window of nights and all hosts. Windows at the ends are as long; empty ones use all nights."""
    if residuals.shape[1] > _MANY_HOSTS:
        residuals = median_of(residuals, 1)[:, None]
    width = min(_WIDTH, residuals.shape[2])
    windows = np.lib.stride_tricks.sliding_window_view(residuals, width, axis=2)
    medians = median_of(np.moveaxis(windows, 1, 2).reshape(len(residuals), windows.shape[2], -1))
    starts = np.clip(np.arange(residuals.shape[2]) - width // 2, 0, medians.shape[1] - 1)
    smooth = medians[:, starts]
    overall = median_of(residuals.reshape(len(residuals), -1))[:, None]
    return np.nan_to_num(np.where(np.isnan(smooth), overall, smooth))


# ---- series of an op
#
# The series of one op on one CPU model, and the level shifts in it.


MOST_STEPS: Final = 8
"""Limit per series."""
_WINDOW, _LEAST_WINDOW = 25, 5
"""Nights on either side of a step whose levels are compared. A drifting path was elsewhere before that."""
_MOST_LACKING: Final = 0.05
"""A series may lack this share of a CPU model's runs and still be treated as complete."""
_AGREES: Final = 0.4
"""Share of a step that a host must show on its own to agree with it."""
_NIGHTS_OF_HOST: Final = 3


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """Series of a CPU model with the same hosts and nights: rows of a panel.

    `mask` (host, night): measured cells. The few cells that a series lacks are filled with the expected cost.
    """

    panel: Panel
    clean: ClippedCells
    rows: Integers
    mask: npt.NDArray[np.bool_]

    @property
    def hosts(self) -> Integers:
        """Indexes of the hosts in the panel."""
        return np.flatnonzero(self.mask.any(axis=1))

    @property
    def nights(self) -> Integers:
        """Indexes of the nights in the panel."""
        return np.flatnonzero(self.mask.any(axis=0))

    def weights(self) -> Floats:
        """Weights of cells (host, night); 0: not measured."""
        measured = self.mask[np.ix_(self.hosts, self.nights)]
        return np.where(measured, self.clean.weights[self.hosts][:, None], 0.0)

    def design(self) -> Design:
        """The design of the measured hosts and nights."""
        return Design(self.weights(), self.panel.nights[self.nights])

    def series(self) -> Floats:
        """Cells without outliers (series, host, night)."""
        cells = self._select(self.clean.cells, self.rows)
        return np.where(np.isnan(cells), self._select(self.clean.expected, self.rows), cells)

    def _select(self, cells: Floats, rows: Integers) -> Floats:
        return cells[np.ix_(rows, self.hosts, self.nights)]

    def op_series(self, row: int, rarities: Floats) -> OpSeries:
        """The series of one row of the panel."""
        row_array = np.array([row])
        return OpSeries(
            op=int(self.panel.ops[row]),
            cpu_model=self.panel.cpu_model,
            hosts=self.panel.hosts[self.hosts],
            nights=self.panel.nights[self.nights],
            cells=self._select(self.panel.cells, row_array)[0],
            clipped=replace(self, rows=row_array).series()[0],
            levels=self.clean.levels[row][self.hosts],
            scales=self.clean.scales[row] / np.sqrt(self.clean.weights[self.hosts]),
            weights=self.weights(),
            rarities=rarities,
        )


@dataclass(frozen=True)
class OpSeries:
    """Series of an op: measured `cells` (host, night), and `clipped` ones without outliers.

    `rarities`: see `learn_rarities`.
    """

    op: int
    cpu_model: int
    hosts: Integers
    nights: Integers
    cells: Floats
    clipped: Floats
    levels: Floats
    scales: Floats
    weights: Floats
    rarities: Floats

    @cached_property
    def design(self) -> Design:
        """The design of the measured hosts and nights."""
        return Design(self.weights, self.nights)

    @property
    def residuals(self) -> Floats:
        """The cells without host levels."""
        return self.cells - self.levels[:, None]

    def of_host(self, row: int) -> OpSeries:
        """The series of one host."""
        clean = clip_outliers(self.cells[None, row : row + 1])
        return replace(
            self,
            hosts=self.hosts[row : row + 1],
            cells=self.cells[row : row + 1],
            clipped=clean.cells[0],
            levels=clean.levels[0],
            scales=clean.scales[:1],
            weights=self.weights[row : row + 1],
        )

    def index_of(self, night: int) -> int:
        """Index of the first night of the series that is not before this night."""
        return int(np.searchsorted(self.nights, night))

    def window(self, index: int, indexes: Sequence[int], walk: float) -> Window:
        """Nights around a step, up to the next steps; fewer if the path drifts fast."""
        cell = float(np.median(np.sum(self.weights, axis=0)))
        reach = _WINDOW if walk == 0 else int(np.clip(1 / math.sqrt(walk * cell), _LEAST_WINDOW, _WINDOW))
        low = max((other for other in indexes if other < index), default=0)
        high = min((other for other in indexes if other > index), default=len(self.nights))
        return Window(max(low, index - reach), index, min(high, index + reach))

    def agreeing(self, window: Window, size: float) -> tuple[Integers, npt.NDArray[np.bool_], Floats]:
        """Hosts with data on both sides, whether each shows a step of this size, and its own size."""
        before = self.residuals[:, window.low : window.guess]
        after = self.residuals[:, window.guess : window.high]
        counts = [np.sum(~np.isnan(part), axis=1) for part in (before, after)]
        present = np.flatnonzero(np.minimum(*counts) >= _NIGHTS_OF_HOST)
        own_sizes = median_of(after[present]) - median_of(before[present])
        return present, own_sizes * np.sign(size) >= _AGREES * abs(size), own_sizes


@dataclass(frozen=True, slots=True)
class Steps:
    """The level shifts of a series, with their locations and p-values."""

    series: OpSeries
    fit: Fit
    locations: tuple[StepLocation, ...]
    chances: tuple[float, ...]


def series_groups(panel: Panel) -> Iterator[SeriesGroup]:
    """SeriesGroup the series of a panel by measured hosts and nights. Series with a single night are left out.

    Each group needs its own decomposition, so series that lack only a few runs count as complete.
    """
    clean = clip_outliers(panel.cells)
    measured = ~np.isnan(panel.cells)
    all_runs = np.asarray(measured.any(axis=0))
    rows_by_mask: dict[bytes, list[int]] = {}
    masks: dict[bytes, npt.NDArray[np.bool_]] = {}
    for row in range(len(panel.ops)):
        on_all_hosts = not np.any(np.isnan(clean.levels[row]))
        nearly_complete = on_all_hosts and np.sum(measured[row]) >= (1 - _MOST_LACKING) * np.sum(all_runs)
        mask = all_runs if nearly_complete else measured[row]
        key = np.packbits(mask).tobytes()
        masks[key] = mask
        rows_by_mask.setdefault(key, []).append(row)
    for key, rows in rows_by_mask.items():
        group = SeriesGroup(panel, clean, np.array(rows), masks[key])
        if len(group.nights) > 1:
            yield group


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A series, the index of its best step, and its p-value, corrected for the candidate nights."""

    series: OpSeries
    index: int
    chance: float


def first_steps(panel: Panel) -> Iterator[FirstStep]:
    """The best step of each series of a CPU model. The prior for drift is learned from all ops."""
    designs = [(group, group.design()) for group in series_groups(panel)]
    losses_by_group = {id(group): losses(design, group.series()) for group, design in designs}
    of_ops = [losses_by_group[id(group)][panel.ops[group.rows] != EVERY] for group, _ in designs]
    rarity = learn_rarities(np.concatenate(of_ops)) if sum(map(len, of_ops)) else 0.0
    for group, design in designs:
        # The common effect drifts in its own way, so the ops' prior does not apply.
        is_op = (panel.ops[group.rows] != EVERY)[:, None]
        rarities = np.where(is_op, rarity, np.zeros_like(losses_by_group[id(group)]))
        best = best_steps(design, group.series(), rarities)
        for number, row in enumerate(group.rows):
            series = group.op_series(int(row), rarities[number])
            yield FirstStep(series, int(best.indexes[number]), float(best.chances[number]))


def find_steps(series: OpSeries, first: int, chance: float, count: int, level: float) -> Steps:
    """Find further level shifts of a series after the first, until none is significant.

    Args:
        series: the series.
        first: index of the best step.
        chance: corrected p-value of the best step.
        count: number of series, for the correction of further p-values.
        level: significance level of further steps.
    """
    indexes, chances = [first], [chance]
    while len(indexes) < MOST_STEPS:
        best = best_steps(series.design, series.clipped[None], series.rarities[None], indexes)
        if (corrected := float(best.chances[0]) * count) >= level:
            break
        indexes.append(int(best.indexes[0]))
        chances.append(corrected)
        indexes, chances = map(list, zip(*sorted(zip(indexes, chances, strict=True)), strict=True))
    best_fit = fit(series.design, series.clipped, series.rarities, indexes)
    locations = []
    for number, index in enumerate(indexes):
        window = series.window(index, indexes, best_fit.walk)
        allowed = series.design.allowed([*indexes[:number], *indexes[number + 1 :]])
        locations.append(locate_step(series.residuals, series.scales, window, best_fit.shock, allowed))
    best_fit = fit(series.design, series.clipped, series.rarities, [location.index for location in locations])
    return Steps(series, best_fit, tuple(locations), tuple(chances))
