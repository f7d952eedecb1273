"""Level shifts in a series, and the night in which each was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracemap.store.p_values import normal_of_student, student_quantile, tail
from tracemap.store.series import LEAST_SCALE, Floats, Integers, median_of

# ---- changepoints
#
# Where the level of a series changes at once, told from what only wanders: steps in a series that drifts by itself.
#
# A cell is the level of its host, plus a path that all hosts share, plus noise of its own. The path is a random walk,
# with noise of each night besides, and with steps; how much it walks is not known, and is chosen anew for each
# question by likelihood. So a series that wanders is not taken for one that was changed, which tests that assume
# independent nights do (Romano, Rigaill, Runge and Fearnhead, "Detecting abrupt changes in the presence of local
# fluctuations and autocorrelated noise", JASA 117, 2022, where the model is from; steps in such models are tested as
# by de Jong and Penzer, "Diagnosing shocks in time series", JASA 93, 1998). The chance of the best step is that of
# Student's distribution times the nights that were tried (Worsley, Biometrika 73, 1986, p. 91: Bonferroni is nearly
# right for steps).
#
# In the numbers of the walk's steps all this is diagonal: with one decomposition for all series that were measured on
# the same hosts in the same nights, every step at every strength of the walk costs a few products.


WALKS: Final = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
"""How much a path walks from a night to the next, as variances in terms of a cell's."""
SHOCKS: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Noise that all hosts share in a night, likewise."""
LEAST_NIGHTS: Final = 5
"""On either side of a step: what is gone sooner is no new level."""
FEWEST_NIGHTS: Final = 2 * LEAST_NIGHTS
"""With fewer no step can be told."""
COVERED: Final = 0.95
_TURNS: Final = 50
_UNLIKE: Final = 0.2
"""Of series are taken to wander unlike others."""
_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Basis:
    """A shock's part of a design: `turned` brings sums by night to where the walk is diagonal."""

    shock: float
    shrunk: Floats
    log_determinant: float
    vectors: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class _Setting:
    """A strength of walk and shocks, for some series: what steps come to; the last axis are nights but the first."""

    log_determinant: float
    squares: Floats
    gains: Floats
    information: Floats
    spread: Floats
    basis: _Basis


@dataclass(frozen=True, slots=True)
class Step:
    """A step at a place of a series' nights, the first with the new level: the log of the ratio, and its interval."""

    place: int
    size: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Steps of a series, and the strengths of walk and shocks that fit it best."""

    steps: tuple[Step, ...]
    walk: float
    shock: float


class Design:
    """Which hosts were measured in which nights, with which weights (host, night; 0: not), and what follows of it."""

    def __init__(self, weights: Floats, nights: Integers) -> None:
        self.weights = weights
        self.observed = np.sum(weights > 0, axis=0)
        self.cells = int(np.sum(self.observed))
        self._hosts = np.sum(weights, axis=1)
        self.degrees = max(self.cells - int(np.sum(self._hosts > 0)), 1)
        # With as many degrees of freedom as nights, tails are as heavy as those of a path that only walks.
        self.nights = int(np.sum(self.observed > 0))
        self._gaps = np.sqrt(np.diff(nights).astype(np.float64))
        self._values, self._vectors = np.linalg.eigh(self._information())
        self._values = np.maximum(self._values, 0.0)
        self._bases = [self._basis(shock) for shock in SHOCKS]

    def _information(self) -> Floats:
        """Of the path, by night, when the levels of hosts are not known."""
        shares = self.weights / np.sqrt(np.maximum(self._hosts, _TINY))[:, None]
        return np.asarray(np.diag(np.sum(self.weights, axis=0)) - shares.T @ shares)

    def _basis(self, shock: float) -> _Basis:
        shrunk = 1 / (1 + shock * self._values)
        information = (self._vectors * (self._values * shrunk)) @ self._vectors.T
        # Steps of the walk are those of the path at each night but the first, by the square root of the nights between.
        later = np.cumsum(np.cumsum(information[::-1, ::-1], axis=0), axis=1)[::-1, ::-1][1:, 1:]
        values, vectors = np.linalg.eigh(later * np.outer(self._gaps, self._gaps))
        determinant = float(np.sum(np.log1p(shock * self._values)))
        return _Basis(shock, shrunk, determinant, vectors, np.maximum(values, 0.0))

    def settings(self, series: Floats) -> Iterator[tuple[float, _Setting]]:
        """For each strength of walk and shocks what steps of some series (series, host, night) come to."""
        filled = np.where(self.weights > 0, np.nan_to_num(series), 0.0)
        means = np.sum(self.weights * filled, axis=2) / np.maximum(self._hosts, _TINY)
        rests = self.weights * (filled - means[:, :, None])
        squares = np.sum(rests * (filled - means[:, :, None]), axis=(1, 2))
        turned = np.sum(rests, axis=1) @ self._vectors
        for basis in self._bases:
            left = squares - np.sum(turned**2 * basis.shock * basis.shrunk, axis=1)
            by_night = (turned * basis.shrunk) @ self._vectors.T
            sums = np.cumsum(by_night[:, ::-1], axis=1)[:, ::-1][:, 1:] * self._gaps
            yield from self._of_basis(basis, left, sums @ basis.vectors)

    def _of_basis(self, basis: _Basis, squares: Floats, turned: Floats) -> Iterator[tuple[float, _Setting]]:
        for walk in WALKS:
            shrunk = 1 / (1 + walk * basis.values)
            spread = basis.values * shrunk
            yield (
                walk,
                _Setting(
                    basis.log_determinant + float(np.sum(np.log1p(walk * basis.values))),
                    squares - np.sum(turned**2 * walk * shrunk, axis=1) + self.cells * LEAST_SCALE**2,
                    (turned * shrunk) @ basis.vectors.T / self._gaps,
                    (basis.vectors**2) @ spread / self._gaps**2,
                    spread,
                    basis,
                ),
            )

    def columns(self, setting: _Setting, places: Sequence[int]) -> Floats:
        """What steps at all nights but the first have to do with those at some."""
        vectors, chosen = setting.basis.vectors, np.asarray(places) - 1
        products = (vectors * setting.spread) @ vectors[chosen].T
        return np.asarray(products / np.outer(self._gaps, self._gaps[chosen]))

    def allowed(self, places: Sequence[int] = ()) -> Integers:
        """Places where a step may be, with enough nights up to both ends and to steps that are known."""
        nights = np.cumsum(self.observed > 0)
        total, before = nights[-1], np.concatenate([[0], nights[:-1]])
        fits = (before >= LEAST_NIGHTS) & (total - before >= LEAST_NIGHTS) & (self.observed > 0)
        for place in places:
            fits &= np.abs(before - before[place]) >= LEAST_NIGHTS
        return np.flatnonzero(fits)


@dataclass(frozen=True, slots=True)
class Best:
    """The best further step of each of some series: its place (0: none), and its chance, corrected for the nights."""

    places: Integers
    chances: Floats


def losses(design: Design, series: Floats) -> Floats:
    """Of each series, at each strength of walk and shocks: minus twice the logarithm of its likelihood."""
    each = [
        design.degrees * np.log(setting.squares) + setting.log_determinant for _, setting in design.settings(series)
    ]
    return np.stack(each, axis=1)


def usual(lost: Floats) -> Floats:
    """How rare strengths of walk and shocks are among some series, by their losses: what is to be added to these.

    A mixture over the strengths is fitted to all of them by expectation and maximization (Laird, JASA 73, 1978, p.
    805), in which some of the weight stays spread evenly, for series unlike any other.
    """
    flat = 1 / lost.shape[1]
    likely = np.exp(-(lost - np.min(lost, axis=1, keepdims=True)) / 2)
    weights = np.full(lost.shape[1], flat)
    for _ in range(_TURNS):
        shares = likely * weights
        weights = np.mean(shares / np.sum(shares, axis=1, keepdims=True), axis=0)
        weights = (1 - _UNLIKE) * weights + _UNLIKE * flat
    return np.asarray(-2 * np.log(weights))


def best_steps(design: Design, series: Floats, rarities: Floats, known: Sequence[int] = ()) -> Best:
    """The most likely step of each series (series, host, night), beside those that are known of all of them.

    With known steps there is to be one series alone. `rarities`: how rare each strength of walk and shocks is, for each
    series, as `usual` has it.
    """
    allowed = design.allowed(known)
    count = len(series)
    if not len(allowed):
        return Best(np.zeros(count, dtype=np.int64), np.ones(count))
    without = np.full(count, np.inf)
    with_step = np.full((count, len(allowed)), np.inf)
    for number, (_, setting) in enumerate(design.settings(series)):
        rarity = setting.log_determinant + rarities[:, number]
        squares, gains, information = _beside(design, setting, known)
        told = np.where(information[allowed - 1] > _TINY, information[allowed - 1], np.inf)
        left = np.maximum(squares[:, None] - gains[:, allowed - 1] ** 2 / told, design.cells * LEAST_SCALE**2)
        without = _together(without, design.degrees * np.log(squares) + rarity)
        with_step = _together(with_step, design.degrees * np.log(left) + rarity[:, None])
    best = np.argmin(with_step, axis=1)
    ratios = np.maximum(without - with_step[np.arange(count), best], 0.0)
    chances = [min(1.0, len(allowed) * _chance(ratio, design, len(known))) for ratio in ratios]
    return Best(allowed[best], np.array(chances))


def _together(one: Floats, other: Floats) -> Floats:
    """The loss of what is as likely as both."""
    return np.asarray(-2 * np.logaddexp(-one / 2, -other / 2))


def _chance(ratio: float, design: Design, known: int) -> float:
    """Of twice the logarithm of a ratio of likelihoods: as if each night had told once."""
    degrees = max(design.nights - 2 - known, 1)
    exponent = min(ratio / (degrees + 1), 300.0)
    return tail(normal_of_student(float(np.sqrt(degrees * np.expm1(exponent))), degrees))


def _beside(design: Design, setting: _Setting, known: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Sums of squares, and what further steps come to, when there are these."""
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


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Steps at one strength of walk and shocks, which is so likely: minus twice the logarithm."""

    loss: float
    sizes: Floats
    variances: Floats
    walk: float
    shock: float


def fit(design: Design, series: Floats, rarities: Floats, places: Sequence[int]) -> Fit:
    """One series (host, night) with steps at these places: how large they are.

    All strengths of walk and shocks have their say, each as far as it is likely: that these are not known makes
    intervals wider (Hoeting, Madigan, Raftery and Volinsky, "Bayesian model averaging", Statistical Science 14,
    1999).
    """
    each = [
        _sizes(design, setting, walk, places, float(rarity))
        for rarity, (walk, setting) in zip(rarities, design.settings(series[None]), strict=True)
    ]
    best = min(each, key=lambda one: one.loss)
    weights = np.exp([(best.loss - one.loss) / 2 for one in each])
    weights /= np.sum(weights)
    means = weights @ np.array([one.sizes for one in each])
    variances = weights @ np.array([one.variances + (one.sizes - means) ** 2 for one in each])
    widths = student_quantile(COVERED, max(design.nights - 1 - len(places), 1)) * np.sqrt(variances)
    steps = [
        Step(int(place), float(size), float(size - width), float(size + width))
        for place, size, width in zip(places, means, widths, strict=True)
    ]
    return Fit(tuple(steps), best.walk, best.shock)


def _sizes(design: Design, setting: _Setting, walk: float, places: Sequence[int], rarity: float) -> _Sizes:
    chosen = np.asarray(places) - 1
    inverse = np.linalg.pinv(design.columns(setting, places)[chosen], hermitian=True)
    squares = float(_beside(design, setting, places)[0][0])
    loss = design.degrees * float(np.log(squares)) + setting.log_determinant + rarity
    variance = squares / max(design.degrees - len(places), 1)
    variances = np.maximum(np.diag(inverse), 0.0) * variance
    return _Sizes(loss, inverse @ setting.gains[0, chosen], variances, walk, setting.basis.shock)


# ---- locating
#
# In which night a step was, and between which nights it surely was: by the likelihood of every single cell.
#
# Outliers count as those of Student's distribution with few degrees of freedom do (Lange, Little and Taylor, "Robust
# statistical modeling using the t distribution", JASA 84, 1989), so that costs are taken as they were measured. The
# nights are those that hold 95 % of the likelihood, when each is as likely beforehand (Smith, Biometrika 62, 1975, p.
# 407).


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
