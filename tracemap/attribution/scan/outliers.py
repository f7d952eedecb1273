"""Outlier thresholds per target and call shape, the time above them, and the slowest calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracemap.attribution.model import MOST_SLOWEST, SlowCall
from tracemap.attribution.scan.connection import RANKED_BY, Tables, ranked_by
from tracemap.attribution.scan.invocations import Invocations
from tracemap.attribution.scan.rows import START, Resolved
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt

# ---- outliers
#
# The calls above the outlier threshold of their group. They are few, so one scan of all events finds them for all
# metrics.


# Compares all events with one threshold per metric.
_OUTLIERS = """
SELECT event.*, groups.shape AS group_shape FROM resolved AS event JOIN groups ON {same_group}
WHERE groups.target >= 0 AND ({conditions})
"""


def find_outliers(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Make the table `outliers`: events of `resolved` above a threshold, with the shape of their group.

    Args:
        resolved: all events; the table `groups` must exist.
        metrics: the numbers of the metrics that have thresholds.
    """
    above = (f"event.value_{number} > groups.threshold_{number}" for number in metrics)
    query = _OUTLIERS.format(same_group=resolved.same_group, conditions=" OR ".join(above) or "false")
    resolved.tables.make("outliers", query)


# ---- thresholds
#
# Outlier time of calls: the time above an upper threshold of calls that do the same work.
#
# A *group* is the calls of one target with the same workgroup counts. Its threshold is the upper quartile plus one and
# a half interquartile ranges (Tukey, Exploratory Data Analysis, 1977, section 2D). A preempted call is above it by the
# time that it waited, and that time is no work of any op.
#
# In a noisy run, more than a quarter of a long kernel's calls may have waited, so that the upper quartile is one of
# them. Noise makes calls longer, never shorter, so the lower half still shows how far calls spread. The threshold is
# then the median plus four times its distance from the lower quartile. For calls spread evenly about their median this
# is the same (semi-interquartile ranges by halves: Kimber, Exploratory data analysis for possibly censored data from
# skewed distributions, Applied Statistics 39, 1990). It holds while fewer than half of the calls waited. But the calls
# that waited, all at the upper end, also raise the median and the lower quartile: if a third waited, the threshold is
# twice as far away. So a threshold with more than a tenth of its group's calls above it is computed again from the
# others, up to four times (iterated outlier rejection). If more than half waited, see "majority waited" below.
#
# Not all calls above a threshold are noise: one trip of a loop in twenty may have more to do. Times alone cannot
# distinguish them, because waits for a scheduler's time slice are as similar as calls of a kernel. But a call with more
# work has it in every invocation, because all have the same inputs, and noise occurs now and then. So calls above the
# threshold that *recur*, in nine of ten invocations with calls of the group, form a group of their own, with its own
# threshold.


FEWEST = 8
"""Fewest calls of a group with a threshold: with fewer, a quarter has less than two calls."""

THRESHOLD_FRACTIONS = (0.25, 0.5, 0.75)
"""Fractions of the order statistics that a threshold is computed from."""
_FRACTIONS = ", ".join(map(str, THRESHOLD_FRACTIONS))
_ORDERED = [f"ordered[{place}]" for place in (1, 2, 3)]

_THRESHOLD = f"CAST(least({{threshold}}, {MAX_INTEGER}) AS BIGINT)"
_OF_QUARTILES = "CAST({q3} AS HUGEINT) + (CAST({q3} AS HUGEINT) - {q1}) * 3 // 2"
DISTANCES = 4
"""Distance from the median to the threshold of a noisy group, in distances from the lower quartile to the median."""
_OF_LOWER_HALF = f"CAST({{median}} AS HUGEINT) + (CAST({{median}} AS HUGEINT) - {{q1}}) * {DISTANCES}"

# At most half of a group's calls are above its threshold, so they cannot recur if an invocation has a single call.
_RAISE = """
UPDATE groups SET threshold_{number} = {raised} FROM (
    SELECT groups.target, groups.shape, {distinct} AS invocations,
           quantile_disc(value_{number}, [{fractions}]) AS ordered
    FROM outliers JOIN groups ON groups.target = outliers.target AND groups.shape = outliers.group_shape
    WHERE outliers.value_{number} > groups.threshold_{number} AND groups.events > groups.invocations
    GROUP BY ALL HAVING count(*) >= {fewest}) AS recurring
WHERE groups.target = recurring.target AND groups.shape = recurring.shape
    AND recurring.invocations * 10 >= groups.invocations * 9
"""

# Groups with more than a tenth of their calls above the threshold.
_CROWDED = """
SELECT groups.target, groups.shape FROM resolved AS event JOIN groups ON {same_group}
WHERE event.value_{number} > groups.threshold_{number} GROUP BY ALL
HAVING count(*) * 10 > any_value(groups.events - groups.absent_{number})
"""
_LOWER = """
UPDATE groups SET threshold_{number} = lower.threshold FROM (
    SELECT target, shape, {lowered} AS threshold FROM (
        SELECT groups.target, groups.shape, quantile_disc(event.value_{number}, [{fractions}]) AS ordered
        FROM resolved AS event JOIN (
            SELECT groups.* FROM groups SEMI JOIN crowded
            ON groups.target = crowded.target AND groups.shape IS NOT DISTINCT FROM crowded.shape
        ) AS groups ON {same_group} WHERE event.value_{number} <= groups.threshold_{number} GROUP BY ALL)) AS lower
WHERE groups.target = lower.target AND groups.shape IS NOT DISTINCT FROM lower.shape
    AND lower.threshold < groups.threshold_{number}
"""
_MOST_TIMES = 4
"""Most times that a threshold is lowered; it hardly changes after the third time."""

_OUTLIER_TIME = """
SELECT groups.target, count(*), {sums}
FROM outliers JOIN groups ON groups.target = outliers.target AND groups.shape = outliers.group_shape
WHERE {any_above} GROUP BY groups.target ORDER BY groups.target
"""


def threshold_of_values(values: npt.NDArray[Any], *, noisy: bool) -> int:
    """The outlier threshold of values, at least one; `noisy`: more than a quarter of them may be outliers."""
    threshold = _of_ordered(values, noisy=noisy)
    for _ in range(_MOST_TIMES if noisy else 0):
        below = values[values <= threshold]
        if 10 * (len(values) - len(below)) <= len(values):
            break
        threshold = min(threshold, _of_ordered(below, noisy=noisy))
    return threshold


def _of_ordered(values: npt.NDArray[Any], *, noisy: bool) -> int:
    import numpy as np

    q1, median, q3 = (int(value) for value in np.quantile(values, THRESHOLD_FRACTIONS, method="inverted_cdf"))
    return median + DISTANCES * (median - q1) if noisy else q3 + (q3 - q1) * 3 // 2


def threshold_of(ordered: Sequence[str], *, noisy: bool) -> str:
    """The outlier threshold from the values at `THRESHOLD_FRACTIONS`, in SQL, at most the largest integer.

    `noisy`: more than a quarter of the calls may be outliers.
    """
    q1, median, q3 = ordered
    threshold = _OF_LOWER_HALF.format(q1=q1, median=median) if noisy else _OF_QUARTILES.format(q1=q1, q3=q3)
    return _THRESHOLD.format(threshold=threshold)


def lower_thresholds(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Compute thresholds of the table `groups` again if more than a tenth of the group's calls are above them.

    Args:
        resolved: all events of noisy runs.
        metrics: the numbers of the metrics that have thresholds.
    """
    for number in metrics:
        resolved.tables.make("crowded", _CROWDED.format(number=number, same_group=resolved.same_group))
        lowered = threshold_of(_ORDERED, noisy=True)
        query = _LOWER.format(number=number, same_group=resolved.same_group, lowered=lowered, fractions=_FRACTIONS)
        for _ in range(_MOST_TIMES):
            if not resolved.tables.query(query)[0][0]:
                break


def outlier_time(
    tables: Tables, metrics: Sequence[int], invocations: Invocations, *, noisy: bool
) -> Mapping[int, tuple[int, Mapping[int, int]]]:
    """Time of calls above the thresholds of their groups, after recurring calls raised those in the table `groups`.

    Args:
        tables: the connection, with the table `outliers`.
        metrics: the numbers of the metrics that have thresholds.
        invocations: the invocations.
        noisy: as in `threshold_of`.

    Returns:
        By target: the number of calls above a threshold, and their time above it by metric.
    """
    if not metrics:
        return {}
    raised = threshold_of(_ORDERED, noisy=noisy)
    for number in metrics if invocations.count is not UNKNOWN else ():
        query = _RAISE.format(
            number=number, raised=raised, distinct=invocations.distinct, fewest=FEWEST, fractions=_FRACTIONS
        )
        # Until no calls recur. Terminates: each pass leaves at most half of the calls above the threshold.
        while tables.query(query)[0][0]:
            pass
    above = [f"outliers.value_{number} > groups.threshold_{number}" for number in metrics]
    sums = (
        f"sum(outliers.value_{number} - groups.threshold_{number}) FILTER ({condition})"
        for number, condition in zip(metrics, above, strict=True)
    )
    rows = tables.query(_OUTLIER_TIME.format(any_above=" OR ".join(above), sums=", ".join(sums)))
    return {
        target: (calls, {number: int(total or 0) for number, total in zip(metrics, totals, strict=True)})
        for target, calls, *totals in rows
    }


# ---- majority waited
#
# Thresholds for kernels most of whose calls waited, from the calls that did not.
#
# On a very noisy machine, most calls of a kernel may have been preempted. The median call, and every statistic from
# there on, is then of a call that waited. Calls that waited are longer than calls that did not. So the search starts
# with the fastest quarter of the calls. Their threshold (the median plus four times its distance from the lower
# quartile, as for all calls) admits further calls; those have a threshold of their own, and so on, until no more calls
# join (forward search: Atkinson and Riani, Robust Diagnostic Regression Analysis, 2000). If the calls have no gap, the
# search ends at the threshold of all calls.
#
# If it stops earlier, there is a gap. A kernel's own modes may cause one as well: a core shared with another thread,
# data in another cache. The length identifies a wait: Linux lets a thread run for at least its base slice before the
# next one (`base_slice_ns`, kernel/sched/fair.c: 0.7 ms for one processor, more for several). So the threshold of the
# fastest calls applies only if calls above it take longer by a slice and by half. Calls that recur in every invocation
# still count as work.


_LEAST_WAIT_NS = 700_000
_FEWEST = 4 * FEWEST
"""Fewest calls whose quarter is enough for a threshold."""
_PARTS = 128
"""Number of equal parts that the calls of a group are divided into, by time."""

# Groups in which calls below the threshold differ by at least a wait.
_ORDERED_WAITS = """
SELECT groups.target, groups.shape, any_value(threshold_{number}), quantile_disc(event.value_{number}, {fractions})
FROM resolved AS event JOIN (
    SELECT * FROM groups
    WHERE threshold_{number} - least_{number} >= {least_wait} AND events - absent_{number} >= {fewest}
) AS groups ON {same_group} GROUP BY ALL
"""
_UPDATE = """
UPDATE groups SET threshold_{number} = waited.threshold FROM waited
WHERE groups.target = waited.target AND groups.shape IS NOT DISTINCT FROM waited.shape
"""


def lower_to_fastest(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Lower thresholds of the table `groups` to those of the fastest calls, for groups most of whose calls waited.

    Args:
        resolved: all events of noisy runs.
        metrics: the numbers of the metrics that have thresholds.
    """
    for number in metrics:
        query = _ORDERED_WAITS.format(
            number=number,
            same_group=resolved.same_group,
            fractions=[part / _PARTS for part in range(1, _PARTS + 1)],
            least_wait=_LEAST_WAIT_NS,
            fewest=_FEWEST,
        )
        rows = [
            (target, shape, lowered)
            for target, shape, threshold, ordered in resolved.tables.query(query)
            if (lowered := threshold_of_fastest(ordered, threshold)) < threshold
        ]
        if rows:
            resolved.tables.fill("waited", "target INTEGER, shape BIGINT, threshold BIGINT", rows)
            resolved.tables.query(_UPDATE.format(number=number))


def threshold_of_fastest(ordered: Sequence[int], threshold: int) -> int:
    """The threshold of the fastest calls if the others below the threshold of all calls waited, else that of all calls.

    Args:
        ordered: the longest time of each of `_PARTS` parts of the calls, in nanoseconds, the fastest part first.
        threshold: the threshold of all calls, in nanoseconds.
    """
    parts = _PARTS // 4
    while True:
        median, quartile = ordered[parts // 2 - 1], ordered[parts // 4 - 1]
        lowered = max(ordered[parts - 1], median + DISTANCES * (median - quartile))
        if (admitted := bisect_right(ordered, lowered)) == parts:
            break
        parts = admitted
    above = ordered[parts : bisect_right(ordered, threshold)]
    if not above:
        return threshold
    excess = above[len(above) // 2] - median
    return lowered if excess >= max(_LEAST_WAIT_NS, median // 2) else threshold


# ---- slowest


# `least`: the time of the fastest of a target's slowest calls, over all its shapes. Ties are in the order of runs and
# invocations; the order of fully equal rows does not matter. The aggregate keeps only as many calls as needed: in a run
# of equal calls, all are the slowest.
_SLOWEST = """
SELECT event.target, min([{keys}], {most}) FROM (
    SELECT event.*, {run} AS run FROM resolved AS event JOIN (
        SELECT target, shape, {least} FROM groups WHERE target >= 0) AS groups ON {same_group}
    WHERE event.value_{number} >= groups.least) AS event
GROUP BY event.target ORDER BY event.target
"""
_NOTHING = -1
"""Stands for an unknown value, and sorts first."""
_LEAST = "list_sort(flatten(list(largest_{number}) OVER (PARTITION BY target)), 'DESC')[:{most}][-1] AS least"


def slowest_calls(resolved: Resolved) -> Mapping[int, tuple[SlowCall, ...]]:
    """The slowest calls by target, the slowest first; empty if the runs have no times."""
    metrics = resolved.metrics
    ranked = ranked_by(metrics)
    if ranked is None:
        return {}
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    start = f"event.{START}" if resolved.has_starts else "NULL"
    values = [f"event.value_{numbers[name]}" if name in numbers else "NULL" for name in RANKED_BY]
    keys = (f"-event.value_{ranked}", "event.run", "event.invocation", start, *values)
    query = _SLOWEST.format(
        keys=", ".join(f"CAST(coalesce({key}, {_NOTHING}) AS BIGINT)" for key in keys),
        most=MOST_SLOWEST,
        # The index of a row's run: the rows of a run follow those of earlier runs.
        run=" + ".join(f"CAST(event.rowid >= {first} AS INTEGER)" for first in resolved.first_rows[1:]) or "0",
        least=_LEAST.format(number=ranked, most=MOST_SLOWEST),
        same_group=resolved.same_group,
        number=ranked,
    )
    calls_of_target = defaultdict(list)
    wall, cpu = RANKED_BY.index("duration_ns"), RANKED_BY.index("cpu_ns")
    for target, calls in resolved.tables.query(query):
        for _, run, invocation, start_ns, *times in calls:
            index = _known(invocation, resolved.first_invocations[run])
            call = SlowCall(run + 1, index, _known(start_ns), _known(times[wall]), _known(times[cpu]))
            calls_of_target[target].append(call)
    return {target: tuple(calls) for target, calls in calls_of_target.items()}


def _known(value: int, first: int = 0) -> Integer:
    """The value counted from `first`; unknown if it is less, which no clock and no counter gives."""
    return UNKNOWN if value < first else int(value) - first
