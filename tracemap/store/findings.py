"""Findings of a store: what changed, on which hosts, and comparison of sets of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.store.changepoints import COVERAGE, LEAST_NIGHTS, OpSeries, Step, fit, locate_step
from tracemap.store.p_values import (
    digamma,
    holm,
    inverse_trigamma,
    normal_of_student,
    student_quantile,
    tail,
    trigamma,
)
from tracemap.store.series import EVERY, LEAST_SCALE, Floats, Integers, Observations, Table, cost_table, median_of

# ---- findings
#
# Frozen records of numbers. Keys are those of the observations; `EVERY` stands for all.


Kind = Literal["slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A level shift: an op became slower or faster on a CPU model.

    `op` is `EVERY` if all ops of the runs shifted together, so the machines changed, not the program. `cpu_model` is
    `EVERY` if all CPU models shifted by the same ratio. `host` is `EVERY`, or the only host of its CPU model that
    shifted.

    `night` is the first measured night at the new level; `night_low` and `night_high` are its 95 % interval.
    `ratio` is new over old cost. Its interval is a nominal 95 % one, which covers about 85 % (docs/accuracy.md).
    `before_ns` and `after_ns` are costs on an ordinary host, unknown if `op` is `EVERY`. `hosts` have data around the
    shift; `hosts_agree` of them show it on their own. `nights_before` and `nights_after` count nights up to the next
    shifts. `chance` is the p-value, corrected for the number of series.
    """

    kind: Kind
    op: int
    cpu_model: int
    host: int
    night: int
    night_low: int
    night_high: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    hosts_agree: int
    nights_before: int
    nights_after: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Level shifts, the most significant first, and the size of the search."""

    changes: tuple[Change, ...]
    series: int
    ops: int
    cpu_models: int
    hosts: int
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierHost:
    """A host that differs from others of its CPU model: in all ops (`op` is `EVERY`), or in one op beyond that.

    `ratio`: its cost over the median of the others. `z`: the difference in robust standard deviations. `chance`:
    p-value, corrected for the number of hosts and ops. `hosts`: number of hosts with the CPU model.
    """

    host: int
    cpu_model: int
    op: int
    ratio: float
    z: float
    chance: float
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDifference:
    """An op costs more or less in one set of runs than in another, on a CPU model; `op` is `EVERY` for all together.

    `ratio` has a 95 % interval. `hosts`: hosts in both sets; `runs`: their runs. `chance`: p-value, corrected for the
    number of ops and CPU models.
    """

    kind: Kind
    op: int
    cpu_model: int
    ratio: float
    ratio_low: float
    ratio_high: float
    before_ns: float | Unknown
    after_ns: float | Unknown
    hosts: int
    runs: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDifferences:
    """Differences between two sets of runs, the most significant first.

    `compared`: pairs of op and CPU model with hosts in both sets; `unpaired`: pairs without.
    """

    changes: tuple[SetDifference, ...]
    compared: int
    unpaired: int


# ---- merging
#
# Merge level shifts of the same size and night on all CPU models into one finding.
#
# Sizes are the same if Cochran's Q says so (Biometrics 10, 1954, p. 101: squared differences in units of their errors).
# A CPU model without a significant shift counts, too, if its interval for a step at this night excludes 0 with the same
# sign.


_MAX_HETEROGENEITY: Final = 3.1
"""Limit of Q as a normal deviate: chance exceeds it in one of a thousand cases."""


def merge_cpu_models(shifts: Sequence[Change], all_series: Sequence[OpSeries]) -> list[Change]:
    """Merge findings that affect all CPU models."""
    result: list[Change] = []
    for group in _overlapping_groups(shifts):
        merged_shift = _merge_group(group, [series for series in all_series if series.op == group[0].op])
        result += group if merged_shift is None else [merged_shift]
    return result


def _overlapping_groups(shifts: Sequence[Change]) -> list[list[Change]]:
    """Groups of findings of an op whose nights overlap, in the same direction, on different CPU models."""
    groups: list[list[Change]] = []
    for shift in sorted(shifts, key=lambda each: (each.op, each.kind, each.host != EVERY, each.night_low, each.night)):
        group = groups[-1] if groups else []
        if (
            group
            and (group[0].op, group[0].kind, group[0].host) == (shift.op, shift.kind, EVERY)
            and shift.host == EVERY
            and shift.cpu_model not in {other.cpu_model for other in group}
            and shift.night_low <= max(other.night_high for other in group)
        ):
            group.append(shift)
        else:
            groups.append([shift])
    return groups


def _merge_group(group: Sequence[Change], all_series: Sequence[OpSeries]) -> Change | None:
    """Merge findings if they affect all CPU models with data before and after; None: some CPU models differ."""
    if len(group) < 2:
        return None
    night = max(group, key=lambda shift: shift.hosts).night
    active = [series for series in all_series if series.index_of(night) in series.design.allowed()]
    models = {shift.cpu_model for shift in group}
    if not models <= {series.cpu_model for series in active}:
        return None
    steps = [
        fit(series.design, series.clipped, series.rarities, [series.index_of(night)]).steps[0] for series in active
    ]
    sign = 1 if group[0].kind == "slower" else -1
    if any(min(sign * step.low, sign * step.high) <= 0 for step in steps) or not _have_same_size(steps):
        return None
    return _merged_change(group, active, steps, night)


def _weighted_mean(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Mean of step sizes, weighted by precision, its standard error, and Cochran's Q."""
    sizes = np.array([step.size for step in steps])
    errors = np.array([step.high - step.low for step in steps]) / (2 * student_quantile(COVERAGE, math.inf))
    weights = errors**-2
    mean = float(np.sum(weights * sizes) / np.sum(weights))
    return mean, float(np.sum(weights) ** -0.5), float(np.sum(((sizes - mean) / errors) ** 2))


def _have_same_size(steps: Sequence[Step]) -> bool:
    *_, q = _weighted_mean(steps)
    degrees = max(len(steps) - 1, 1)
    # Wilson and Hilferty's normal approximation of chi squared.
    return (math.cbrt(q / degrees) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees)) < _MAX_HETEROGENEITY


def _merged_change(
    group: Sequence[Change], all_series: Sequence[OpSeries], steps: Sequence[Step], night: int
) -> Change:
    size, error, _ = _weighted_mean(steps)
    width = error * student_quantile(COVERAGE, math.inf)
    nights = np.unique(np.concatenate([series.nights for series in all_series]))
    residuals = np.full((sum(len(series.hosts) for series in all_series), len(nights)), np.nan)
    row = 0
    for series in all_series:
        residuals[row : row + len(series.hosts), np.searchsorted(nights, series.nights)] = series.residuals
        row += len(series.hosts)
    index = int(np.searchsorted(nights, night))
    reach = max(LEAST_NIGHTS, min(max(shift.nights_before, shift.nights_after) for shift in group))
    window = replace(all_series[0].window(0, [], 0.0), low=max(0, index - reach), guess=index, high=index + reach)
    location = locate_step(
        residuals, np.concatenate([series.scales for series in all_series]), window, 0.0, np.arange(len(nights))
    )
    before = [shift.before_ns for shift in group]
    known = [value for value in before if value is not UNKNOWN]
    return replace(
        max(group, key=lambda shift: shift.hosts),
        cpu_model=EVERY,
        night=int(nights[location.index]),
        night_low=int(nights[location.first]),
        night_high=int(nights[location.last]),
        ratio=math.exp(size),
        ratio_low=math.exp(size - width),
        ratio_high=math.exp(size + width),
        hosts=sum(shift.hosts for shift in group),
        hosts_agree=sum(shift.hosts_agree for shift in group),
        chance=min(shift.chance for shift in group),
        before_ns=float(np.median(known)) if known else UNKNOWN,
        after_ns=float(np.median(known)) * math.exp(size) if known else UNKNOWN,
    )


# ---- set comparison
#
# Compare two sets of runs: ops that cost more or less in one of them.


LEAST_RATIO: Final = 1.02
LEVEL: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Pair:
    """An op on a CPU model: log ratio of costs, and the parts of its error. `row` is the table's row, or `EVERY`."""

    row: int
    cpu_model: int
    size: float
    information: float
    variance: float
    degrees: int
    before: float
    hosts: int
    runs: int


def compare_sets(
    before: Observations, after: Observations, least_ratio: float = LEAST_RATIO, level: float = LEVEL
) -> SetDifferences:
    """Ops that cost more or less in `after` than in `before`.

    Args:
        before: runs of one set.
        after: runs of the other set; the sets are disjoint.
        least_ratio: smaller changes, in either direction, are not reported.
        level: significance level: probability of any finding if nothing changed.
    """
    table = cost_table(before.concat(after))
    runs_before = np.unique(before.run[(before.cost_ns > 0) & np.isfinite(before.cost_ns)])
    later = ~np.isin(table.run, runs_before)
    pairs = [*_pairs(table, later)]
    tests = [(pair, *moments) for pair, moments in zip(pairs, _shrunk(pairs), strict=True) if moments[1] > 0]
    chances = holm(
        [
            tail(normal_of_student(pair.size * math.sqrt(pair.information / variance), degrees))
            for pair, variance, degrees in tests
        ]
    )
    findings = [
        _difference(table, pair, math.sqrt(variance / pair.information) * student_quantile(COVERAGE, degrees), chance)
        for (pair, variance, degrees), chance in zip(tests, chances, strict=True)
        if chance < level and abs(pair.size) >= math.log(least_ratio)
    ]
    findings.sort(key=lambda finding: (finding.chance, finding.op, finding.cpu_model))
    pairs_total = (len(table.ops) + 1) * len(np.unique(table.models))
    return SetDifferences(changes=tuple(findings), compared=len(tests), unpaired=pairs_total - len(tests))


def _pairs(table: Table, later: npt.NDArray[np.bool_]) -> Iterator[_Pair]:
    own, models = table.own, table.models[table.host]
    for row in range(-1, len(table.ops)):
        values = table.common if row == EVERY else own[row]
        for model in np.unique(table.models):
            of_model = (models == model) & ~np.isnan(values)
            in_both = np.intersect1d(table.host[of_model & later], table.host[of_model & ~later])
            used = of_model & np.isin(table.host, in_both)
            if np.any(used):
                yield _pair(row, int(model), values[used], table.host[used], later[used])


def _pair(row: int, model: int, values: Floats, host: npt.NDArray[np.int64], later: npt.NDArray[np.bool_]) -> _Pair:
    """Fit a step per host, of the same size for all hosts: least squares on the set of each run."""
    _, index = np.unique(host, return_inverse=True)
    counts = np.bincount(index)
    residuals = values - (np.bincount(index, values) / counts)[index]
    sides = later - (np.bincount(index, later) / counts)[index]
    information = float(np.sum(sides**2))
    size = float(np.sum(sides * residuals) / information)
    degrees = len(values) - len(counts) - 1
    variance = float(np.sum((residuals - size * sides) ** 2)) / max(degrees, 1)
    level = float(np.median([np.median(values[(index == i) & ~later]) for i in range(len(counts))]))
    return _Pair(row, model, size, information, variance, degrees, level, len(counts), len(values))


def _shrunk(pairs: Sequence[_Pair]) -> Iterator[tuple[float, float]]:
    """Variance and degrees of freedom of each pair. The part common to all ops is not shrunk with the ops'."""
    variances = np.array([pair.variance for pair in pairs])
    degrees = np.array([float(pair.degrees) for pair in pairs])
    of_op = np.array([pair.row != EVERY for pair in pairs], dtype=bool)
    variances[of_op], degrees[of_op] = shrink_variances(variances[of_op], degrees[of_op])
    variances[~of_op] = np.maximum(variances[~of_op], 1e-12)
    return zip(variances.tolist(), degrees.tolist(), strict=True)


def _difference(table: Table, pair: _Pair, width: float, chance: float) -> SetDifference:
    is_common = pair.row == EVERY
    return SetDifference(
        kind="slower" if pair.size > 0 else "faster",
        op=EVERY if is_common else int(table.ops[pair.row]),
        cpu_model=pair.cpu_model,
        ratio=math.exp(pair.size),
        ratio_low=math.exp(pair.size - width),
        ratio_high=math.exp(pair.size + width),
        before_ns=UNKNOWN if is_common else math.exp(pair.before),
        after_ns=UNKNOWN if is_common else math.exp(pair.before + pair.size),
        hosts=pair.hosts,
        runs=pair.runs,
        chance=chance,
    )


# ---- hosts
#
# Outlier hosts: hosts that differ from others of their CPU model, in all ops or in a single op.
#
# A host's level in an op is the median over its runs. The usual level is the median over the hosts of the CPU model.
# The scale is the median distance between two hosts of the same CPU model (Shamos, "Geometry and statistics", 1976;
# Bickel and Lehmann, "Descriptive statistics for nonparametric models IV", 1979), which a few outlier hosts hardly
# move. It is pooled over CPU models, since few of them have enough hosts. The z-score limit is that of Iglewicz and
# Hoaglin ("How to detect and handle outliers", 1993).
#
# The scale is itself estimated from few hosts. It has 60 % of their degrees of freedom: the lowest efficiency in
# simulations of three to ten normal hosts per CPU model. P-values are those of Student's distribution, with Holm's
# correction: one family for hosts in all ops and one for single ops, with half of the level each.


LEAST_Z: Final = 3.5
HOST_LEAST_RATIO: Final = 1.05
"""Smaller differences are not reported."""
HOST_LEVEL: Final = 0.01
"""Significance level for corrected p-values."""
LEAST_HOSTS: Final = 3
"""Minimum number of hosts to call one an outlier; with two, either could be it."""
_EFFICIENCY: Final = 0.6
_DISTANCE_TO_SIGMA: Final = 1.0483
"""Standard deviation over median distance of two normal values: 1 / (normal third quartile * sqrt(2))."""
_MOST_NEIGHBOURS: Final = 32
"""Each host is compared with this many others at most: more add little precision, and take long for many hosts."""


def outliers(
    observations: Observations, least_ratio: float = HOST_LEAST_RATIO, level: float = HOST_LEVEL
) -> list[OutlierHost]:
    """The outlier hosts, the most significant first. Empty if too few hosts share a CPU model."""
    table = cost_table(observations)
    of_model = {int(model): np.flatnonzero(table.models == model) for model in np.unique(table.models)}
    units = {model: hosts for model, hosts in of_model.items() if len(hosts) >= LEAST_HOSTS}
    degrees = _EFFICIENCY * sum(len(hosts) - 1 for hosts in units.values())
    if degrees < 1:
        return []
    own = table.own
    levels = np.stack([median_of(own[:, table.host == unit]) for unit in range(len(table.hosts))], axis=1)
    deviations = np.full_like(levels, np.nan)
    for hosts in units.values():
        deviations[:, hosts] = levels[:, hosts] - median_of(levels[:, hosts])[:, None]
    overall = median_of(deviations, 0)
    rows = np.concatenate([overall[None], deviations - overall])
    scales, row_degrees = _scales(rows, units)
    tests = []
    for row, unit in np.argwhere(~np.isnan(rows)):
        z = float(rows[row, unit] / scales[row])
        tests.append((int(row), int(unit), z, tail(normal_of_student(z, float(row_degrees[row])))))
    significant = [
        OutlierHost(
            host=int(table.hosts[unit]),
            cpu_model=int(table.models[unit]),
            op=EVERY if row == 0 else int(table.ops[row - 1]),
            ratio=math.exp(rows[row, unit]),
            z=z,
            chance=chance,
            hosts=len(units[int(table.models[unit])]),
        )
        for (row, unit, z, _), chance in zip(tests, _corrected(tests), strict=True)
        if chance < level and abs(z) >= LEAST_Z and abs(rows[row, unit]) >= math.log(least_ratio)
    ]
    return sorted(significant, key=lambda outlier: (outlier.chance, -abs(outlier.z), outlier.host, outlier.op))


def _corrected(tests: Sequence[tuple[int, int, float, float]]) -> list[float]:
    """P-values corrected in two families: hosts in all ops, and single ops.

    In one family, a host's difference in all ops would have to be significant among thousands of single ops.
    """
    corrected = np.ones(len(tests))
    for family in (True, False):
        members = [index for index, (row, *_) in enumerate(tests) if (row == 0) == family]
        corrected[members] = 2 * np.array(holm([tests[index][3] for index in members]))
    return [min(1.0, chance) for chance in corrected.tolist()]


def _scales(rows: Floats, units: dict[int, Integers]) -> tuple[Floats, Floats]:
    """Standard deviation between hosts, by row, and its degrees of freedom."""
    first, second = np.concatenate([_host_pairs(hosts) for hosts in units.values()], axis=1)
    distances = np.array([median_of(np.abs(row[first] - row[second])) for row in rows])
    counts = np.sum(~np.isnan(rows[:, np.concatenate([*units.values()])]), axis=1)
    remaining = np.where(np.isnan(distances), 0, np.maximum(counts - len(units), 0))
    variances = np.nan_to_num(_DISTANCE_TO_SIGMA * distances) ** 2
    degrees = _EFFICIENCY * remaining
    variances[1:], degrees[1:] = shrink_variances(variances[1:], degrees[1:])
    return np.sqrt(np.maximum(variances, LEAST_SCALE**2)), np.maximum(degrees, 1.0)


def _host_pairs(hosts: Integers) -> Integers:
    """Two rows: hosts, and the hosts to compare them with. Few hosts are compared all with all."""
    steps = range(1, min(len(hosts) // 2, _MOST_NEIGHBOURS) + 1)
    return np.concatenate([np.stack([hosts, np.roll(hosts, -step)]) for step in steps], axis=1)


# ---- variances
#
# Empirical-Bayes shrinkage of variances (Smyth 2004).


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
