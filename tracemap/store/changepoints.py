"""Change points in series of costs, and level shifts of a store's runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracemap.store.p_values import normal_of_student, student_quantile, tail
from tracemap.store.series import EVERY, LEAST_SCALE, Floats, Integers, Panel, median_of, scale_of

# ---- changepoints
#
# Find level shifts (steps) in a series that also drifts on its own.
#
# Model: a cell is its host's level, plus a path common to all hosts, plus noise. The path is a random walk with steps
# and with extra noise per night (shocks). The strength of walk and shocks is unknown and is estimated by likelihood for
# each query. So drift is not mistaken for a step, as it is by tests that assume independent nights. The model is from
# Romano, Rigaill, Runge and Fearnhead, "Detecting abrupt changes in the presence of local fluctuations and
# autocorrelated noise", JASA 117, 2022. Steps are tested as by de Jong and Penzer, "Diagnosing shocks in time series",
# JASA 93, 1998. The p-value of the best step is that of Student's distribution times the number of candidate nights
# (Worsley, Biometrika 73, 1986, p. 91: Bonferroni is nearly exact for steps).
#
# In terms of the walk's increments the model is diagonal. Series that were measured on the same hosts and nights share
# one eigendecomposition; then each step at each strength of the walk costs a few products.


WALKS: Final = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""Variances of the walk from one night to the next, relative to the variance of a cell."""
SHOCKS: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Variances of the noise that all hosts share in a night, relative to the variance of a cell.

`tests.oracle.nights` finds as much without shocks. But where all ops differ by 1 to 2 % from build to build, four of
six changes of 8 % are then missed, and none with them.
"""
LEAST_NIGHTS: Final = 5
"""Fewest nights on either side of a step: a shorter excursion is not a new level."""
FEWEST_NIGHTS: Final = 2 * LEAST_NIGHTS
"""With fewer nights no step can be found."""
COVERAGE: Final = 0.95
_TURNS: Final = 50
_UNLIKE: Final = 0.2
"""Weight of the uniform part of the prior: series that drift unlike the others."""
_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Basis:
    """Part of a design for one shock strength: `vectors` and `values` diagonalize the walk."""

    shock: float
    shrunk: Floats
    log_determinant: float
    vectors: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class _Setting:
    """Statistics of steps for some series at one strength of walk and shocks, by night from the second."""

    walk: float
    basis: _Basis
    log_determinant: float
    squares: Floats
    gains: Floats
    information: Floats
    spread: Floats


@dataclass(frozen=True, slots=True)
class Step:
    """A step: `index` is that of the first night at the new level, `size` the log ratio, with its interval."""

    index: int
    size: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Steps of a series, and the most likely strengths of walk and shocks."""

    steps: tuple[Step, ...]
    walk: float
    shock: float


class Design:
    """Hosts and nights of measurement, with weights (host, night; 0: not measured), and their decompositions."""

    def __init__(self, weights: Floats, nights: Integers) -> None:
        self.weights = weights
        self.observed = np.sum(weights > 0, axis=0)
        self.cells = int(np.sum(self.observed))
        self._hosts = np.sum(weights, axis=1)
        self.degrees = max(self.cells - int(np.sum(self._hosts > 0)), 1)
        # Use the nights as degrees of freedom, so that tails are as heavy as those of a path that only walks.
        self.nights = int(np.sum(self.observed > 0))
        self._gaps = np.sqrt(np.diff(nights).astype(np.float64))
        # Information matrix of the path by night, with host levels as nuisance parameters.
        shares = weights / np.sqrt(np.maximum(self._hosts, _TINY))[:, None]
        values, self._vectors = np.linalg.eigh(np.diag(np.sum(weights, axis=0)) - shares.T @ shares)
        self._values = np.maximum(values, 0.0)
        self._bases = [self._basis(shock) for shock in SHOCKS]

    def _basis(self, shock: float) -> _Basis:
        shrunk = 1 / (1 + shock * self._values)
        information = (self._vectors * (self._values * shrunk)) @ self._vectors.T
        # A walk's increment shifts the path in all later nights, scaled by the square root of the gap in nights.
        later = np.cumsum(np.cumsum(information[::-1, ::-1], axis=0), axis=1)[::-1, ::-1][1:, 1:]
        values, vectors = np.linalg.eigh(later * np.outer(self._gaps, self._gaps))
        determinant = float(np.sum(np.log1p(shock * self._values)))
        return _Basis(shock, shrunk, determinant, vectors, np.maximum(values, 0.0))

    def settings(self, series: Floats) -> Iterator[_Setting]:
        """Statistics of steps for some series (series, host, night), at each strength of walk and shocks."""
        filled = np.where(self.weights > 0, np.nan_to_num(series), 0.0)
        means = np.sum(self.weights * filled, axis=2) / np.maximum(self._hosts, _TINY)
        residuals = self.weights * (filled - means[:, :, None])
        squares = np.sum(residuals * (filled - means[:, :, None]), axis=(1, 2)) + self.cells * LEAST_SCALE**2
        by_night = np.sum(residuals, axis=1) @ self._vectors
        for basis in self._bases:
            left = squares - np.sum(by_night**2 * basis.shock * basis.shrunk, axis=1)
            path = (by_night * basis.shrunk) @ self._vectors.T
            rotated = (np.cumsum(path[:, ::-1], axis=1)[:, ::-1][:, 1:] * self._gaps) @ basis.vectors
            for walk in WALKS:
                shrunk = 1 / (1 + walk * basis.values)
                spread = basis.values * shrunk
                yield _Setting(
                    walk,
                    basis,
                    basis.log_determinant + float(np.sum(np.log1p(walk * basis.values))),
                    left - np.sum(rotated**2 * walk * shrunk, axis=1),
                    (rotated * shrunk) @ basis.vectors.T / self._gaps,
                    (basis.vectors**2) @ spread / self._gaps**2,
                    spread,
                )

    def columns(self, setting: _Setting, indexes: Sequence[int]) -> Floats:
        """Covariance between steps at all nights from the second and steps at some nights."""
        vectors, chosen = setting.basis.vectors, np.asarray(indexes) - 1
        products = (vectors * setting.spread) @ vectors[chosen].T
        return np.asarray(products / np.outer(self._gaps, self._gaps[chosen]))

    def allowed(self, indexes: Sequence[int] = ()) -> Integers:
        """Allowed indexes of a step, with enough nights to both ends and to known steps."""
        nights = np.cumsum(self.observed > 0)
        total, before = nights[-1], np.concatenate([[0], nights[:-1]])
        fits = (before >= LEAST_NIGHTS) & (total - before >= LEAST_NIGHTS) & (self.observed > 0)
        for index in indexes:
            fits &= np.abs(before - before[index]) >= LEAST_NIGHTS
        return np.flatnonzero(fits)


def losses(design: Design, series: Floats) -> Floats:
    """-2 log likelihood of each series, at each strength of walk and shocks."""
    return np.stack(
        [design.degrees * np.log(setting.squares) + setting.log_determinant for setting in design.settings(series)],
        axis=1,
    )


def learn_rarities(losses: Floats) -> Floats:
    """Prior of the strengths of walk and shocks, as penalties on the losses: -2 log of their frequency in some series.

    Expectation maximization fits a mixture over the strengths (Laird, JASA 73, 1978, p. 805). Part of the weight stays
    uniform, for series unlike any other.
    """
    uniform = 1 / losses.shape[1]
    likely = np.exp(-(losses - np.min(losses, axis=1, keepdims=True)) / 2)
    weights = np.full(losses.shape[1], uniform)
    for _ in range(_TURNS):
        posterior = likely * weights
        weights = np.mean(posterior / np.sum(posterior, axis=1, keepdims=True), axis=0)
        weights = (1 - _UNLIKE) * weights + _UNLIKE * uniform
    return np.asarray(-2 * np.log(weights))


def best_steps(design: Design, series: Floats, rarities: Floats, known: Sequence[int] = ()) -> tuple[Integers, Floats]:
    """The most likely step of each series (series, host, night), in addition to known steps.

    Returns the indexes of the steps (0: none), and their p-values, corrected for the candidate nights. With known
    steps, pass a single series. `rarities`: penalty of each strength for each series, from `learn_rarities`.
    """
    allowed = design.allowed(known)
    count = len(series)
    if not len(allowed):
        return np.zeros(count, dtype=np.int64), np.ones(count)
    loss_without = np.full(count, np.inf)
    loss_with = np.full((count, len(allowed)), np.inf)
    for index, setting in enumerate(design.settings(series)):
        rarity = setting.log_determinant + rarities[:, index]
        squares, gains, information = _given_known(design, setting, known)
        safe_information = np.where(information[allowed - 1] > _TINY, information[allowed - 1], np.inf)
        residual_squares = np.maximum(
            squares[:, None] - gains[:, allowed - 1] ** 2 / safe_information, design.cells * LEAST_SCALE**2
        )
        loss_without = _mixture_loss(loss_without, design.degrees * np.log(squares) + rarity)
        loss_with = _mixture_loss(loss_with, design.degrees * np.log(residual_squares) + rarity[:, None])
    best = np.argmin(loss_with, axis=1)
    ratios = np.maximum(loss_without - loss_with[np.arange(count), best], 0.0)
    chances = [min(1.0, len(allowed) * _chance(ratio, design, len(known))) for ratio in ratios]
    return allowed[best], np.array(chances)


def _mixture_loss(first: Floats, second: Floats) -> Floats:
    return np.asarray(-2 * np.logaddexp(-first / 2, -second / 2))


def _chance(ratio: float, design: Design, known: int) -> float:
    """P-value of a likelihood ratio, given as 2 log ratio. Nights count as the independent observations."""
    degrees = max(design.nights - 2 - known, 1)
    exponent = min(ratio / (degrees + 1), 300.0)
    return tail(normal_of_student(float(np.sqrt(degrees * np.expm1(exponent))), degrees))


def _given_known(design: Design, setting: _Setting, known: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Sums of squares and statistics of further steps, given known steps."""
    if not known:
        return setting.squares, setting.gains, setting.information
    chosen = np.asarray(known) - 1
    columns = design.columns(setting, known)
    inverse = np.linalg.pinv(columns[chosen], hermitian=True)
    sizes = setting.gains[:, chosen] @ inverse
    squares = setting.squares - np.sum(sizes * setting.gains[:, chosen], axis=1)
    gains = setting.gains - sizes @ columns.T
    information = setting.information - np.sum((columns @ inverse) * columns, axis=1)
    return np.maximum(squares, design.cells * LEAST_SCALE**2), gains, information


def fit(design: Design, series: Floats, rarities: Floats, indexes: Sequence[int]) -> Fit:
    """Estimate the sizes of steps at these nights in a series (host, night).

    Average over all strengths of walk and shocks by likelihood. So intervals include their uncertainty (Hoeting,
    Madigan, Raftery and Volinsky, "Bayesian model averaging", Statistical Science 14, 1999).
    """
    chosen = np.asarray(indexes) - 1
    settings = [*design.settings(series[None])]
    losses, sizes, variances = [], [], []
    for rarity, setting in zip(rarities, settings, strict=True):
        inverse = np.linalg.pinv(design.columns(setting, indexes)[chosen], hermitian=True)
        squares = float(_given_known(design, setting, indexes)[0][0])
        losses.append(design.degrees * math.log(squares) + setting.log_determinant + float(rarity))
        sizes.append(inverse @ setting.gains[0, chosen])
        variances.append(np.maximum(np.diag(inverse), 0.0) * squares / max(design.degrees - len(indexes), 1))
    weights = np.exp((min(losses) - np.array(losses)) / 2)
    weights /= np.sum(weights)
    means = weights @ np.array(sizes)
    variance = weights @ (np.array(variances) + (np.array(sizes) - means) ** 2)
    widths = student_quantile(COVERAGE, max(design.nights - 1 - len(indexes), 1)) * np.sqrt(variance)
    steps = [
        Step(int(index), float(size), float(size - width), float(size + width))
        for index, size, width in zip(indexes, means, widths, strict=True)
    ]
    likeliest = settings[int(np.argmin(losses))]
    return Fit(tuple(steps), likeliest.walk, likeliest.basis.shock)


# ---- step location
#
# Find the night of a step and its 95 % interval, by the likelihood of all single cells.
#
# Cells are unclipped costs, with Student's distribution of few degrees of freedom for outliers (Lange, Little and
# Taylor, "Robust statistical modeling using the t distribution", JASA 84, 1989). The interval holds 95 % of the
# likelihood, with a uniform prior over nights (Smith, Biometrika 62, 1975, p. 407).


_REACH: Final = 12
"""Nights on either side of the first guess to search for the step."""
_DEGREES: Final = 4.0


@dataclass(frozen=True, slots=True)
class Window:
    """Nights around a step: `low` to `guess` at the old level, `guess` to `high` at the new level."""

    low: int
    guess: int
    high: int


@dataclass(frozen=True, slots=True)
class StepLocation:
    """Index of a step's first night in a series, with the first and last index of its interval."""

    index: int
    first: int
    last: int


def locate_step(rests: Floats, scales: Floats, window: Window, shock: float, allowed: Integers) -> StepLocation:
    """Locate the step of a series.

    Args:
        rests: cells (host, night) without host levels, unclipped.
        scales: noise of a cell, by host.
        window: nights around the step, whose levels are compared.
        shock: variance of the noise that hosts share in a night, relative to a cell's. It weakens their evidence.
        allowed: candidate nights.
    """
    before = float(median_of(rests[:, window.low : window.guess].ravel()))
    after = float(median_of(rests[:, window.guess : window.high].ravel()))
    first, last = max(window.low + 1, window.guess - _REACH), min(window.high, window.guess + _REACH + 1)
    cells = rests[:, first:last]
    gains = _loss(cells, before, scales) - _loss(cells, after, scales)
    hosts = np.sum(~np.isnan(cells), axis=0)
    gain_by_night = np.nansum(gains, axis=0) / (1 + shock * hosts)
    # A step at a night puts all later nights at the new level, so sum from the end.
    log_likelihood = np.where(np.isin(np.arange(first, last), allowed), np.cumsum(gain_by_night[::-1])[::-1], -np.inf)
    index = int(np.argmax(log_likelihood))
    likely = np.exp(log_likelihood - log_likelihood[index])
    ordered = np.sort(likely)[::-1]
    covered = np.cumsum(ordered)
    least = ordered[int(np.searchsorted(covered, COVERAGE * covered[-1]))]
    inside = np.flatnonzero(likely >= least)
    return StepLocation(first + index, first + int(inside[0]), first + int(inside[-1]))


def _loss(cells: Floats, level: float, scales: Floats) -> Floats:
    squares = ((cells - level) / scales[:, None]) ** 2
    return np.asarray((_DEGREES + 1) / 2 * np.log1p(squares / _DEGREES))


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
    """Group the series of a panel by measured hosts and nights. Series with a single night are left out.

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
        indexes, chances = best_steps(design, group.series(), rarities)
        for number, row in enumerate(group.rows):
            yield FirstStep(group.op_series(int(row), rarities[number]), int(indexes[number]), float(chances[number]))


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
        (index,), (chance,) = best_steps(series.design, series.clipped[None], series.rarities[None], indexes)
        if (corrected := float(chance) * count) >= level:
            break
        indexes.append(int(index))
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
