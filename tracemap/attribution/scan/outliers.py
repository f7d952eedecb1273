"""Outlier thresholds per target and call shape, time above them, and the slowest calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracemap.attribution.model import MOST_SLOWEST, SlowCall
from tracemap.attribution.scan.connection import RANKED_BY, Tables, ranked_by, value_column
from tracemap.attribution.scan.invocations import Invocations
from tracemap.attribution.scan.rows import START, Resolved
from tracemap.units import INTEGER_LIMIT, UNKNOWN, Integer

# ---- outliers
#
# The calls that take longer than the fence of their group.
#
# These are few, so all events are looked at only once for all metrics.


# All events are compared with a fence for each metric.
_OUTLIERS = """
SELECT event.*, groups.shape AS group_shape FROM resolved AS event JOIN groups ON {same_group}
WHERE groups.target >= 0 AND ({conditions})
"""


def fence_column(number: int) -> str:
    """The column of the table `groups` that has the fence of the n-th metric; NULL: there is none."""
    return f"fence_{number}"


def largest_column(number: int) -> str:
    """The column of the table `groups` that has the largest value of the n-th metric, or the few largest in order."""
    return f"largest_{number}"


def words_of(resolved: Resolved, number: int) -> dict[str, object]:
    """What stands for the n-th metric in queries of events and the fences of their groups."""
    return {
        "number": number,
        "value": value_column(number),
        "fence": fence_column(number),
        "same_group": resolved.same_group,
    }


def worked(number: int) -> str:
    """What an `event` has of the n-th metric without what lies beyond the fence of its row of `groups`, in SQL."""
    value, fence = f"event.{value_column(number)}", f"groups.{fence_column(number)}"
    return f"CASE WHEN {value} > {fence} THEN {fence} ELSE coalesce({value}, 0) END"


def find_outliers(resolved: Resolved, fenced: Sequence[int]) -> None:
    """Make the table `outliers`: events of `resolved` beyond a fence, with the shape of their group.

    Args:
        resolved: all events; the table `groups` has been made of them.
        fenced: the numbers of the metrics that have fences.
    """
    beyond = (f"event.{value_column(number)} > groups.{fence_column(number)}" for number in fenced)
    query = _OUTLIERS.format(same_group=resolved.same_group, conditions=" OR ".join(beyond) or "false")
    resolved.tables.make("outliers", query)


# ---- fences
#
# What disturbed calls: the time that they take beyond an upper fence of calls that do the same work.
#
# A *group* is the calls of one target with the same counts of workgroups. Its fence is the upper quartile and one and
# a half interquartile ranges (Tukey, Exploratory Data Analysis, 1977, section 2D). A call that was preempted lies
# beyond it, by as long as it waited; that is no work of any op.
#
# In a run whose threads waited for processors that other programs held, more than a quarter of a long kernel's calls
# may have waited, so that the upper quartile is one of these. What disturbs makes calls longer, never shorter: the
# lower half still tells how far calls lie apart. The fence is then the median and four times its distance from the
# lower quartile, which is the same where calls lie evenly about their median (semi-interquartile ranges by halves:
# Kimber, Exploratory data analysis for possibly censored data from skewed distributions, Applied Statistics 39, 1990).
# It holds as long as fewer than half of the calls waited. But the calls that waited, all at the upper end, move the
# median and the lower quartile of the others, too: with a third of them the fence lies at the double distance. So
# where more than a tenth of a group's calls lie beyond its fence, it is made anew of those that do not, up to four
# times (iterated outlier rejection). Where more than half waited, `waited` looks for the others.
#
# Not all that lies beyond is disturbance: one trip of a loop in twenty may have more to do. Times alone cannot tell,
# as calls that waited for a scheduler's time slice are as alike as those of a kernel. But what has more to do has it
# in each invocation, as all have the same inputs, and what disturbs strikes now and then. So calls beyond the fence
# that *recur*, in nine of ten of the invocations that have calls of the group, are a group of their own, with a fence
# of its own.


FEWEST = 8
"""Calls from which a group has a fence: with fewer, less than two lie in each quarter."""

FENCE_FRACTIONS = (0.25, 0.5, 0.75)
"""Those of the values that a fence is made of."""
_FRACTIONS = ", ".join(map(str, FENCE_FRACTIONS))
_ORDERED = [f"ordered[{place}]" for place in (1, 2, 3)]

_FENCE = f"CAST(least({{fence}}, {INTEGER_LIMIT}) AS BIGINT)"
_OF_QUARTILES = "CAST({q3} AS HUGEINT) + (CAST({q3} AS HUGEINT) - {q1}) * 3 // 2"
DISTANCES = 4
"""From the lower quartile to the median, of which so many lie between the median and the fence of a lower half."""
_OF_LOWER_HALF = f"CAST({{median}} AS HUGEINT) + (CAST({{median}} AS HUGEINT) - {{q1}}) * {DISTANCES}"

# At most half of a group's calls lies beyond its fence: they cannot recur where an invocation has a single one.
_RAISE = """
UPDATE groups SET {fence} = {raised} FROM (
    SELECT groups.target, groups.shape, {distinct} AS invocations, quantile_disc({value}, [{fractions}]) AS ordered
    FROM outliers JOIN groups ON groups.target = outliers.target AND groups.shape = outliers.group_shape
    WHERE outliers.{value} > groups.{fence} AND groups.events > groups.invocations
    GROUP BY ALL HAVING count(*) >= {fewest}) AS recurring
WHERE groups.target = recurring.target AND groups.shape = recurring.shape
    AND recurring.invocations * 10 >= groups.invocations * 9
"""

# Groups of which more than a tenth lies beyond the fence.
_CROWDED = """
SELECT groups.target, groups.shape FROM resolved AS event JOIN groups ON {same_group}
WHERE event.{value} > groups.{fence} GROUP BY ALL
HAVING count(*) * 10 > any_value(groups.events - groups.absent_{number})
"""
_LOWER = """
UPDATE groups SET {fence} = lower.fence FROM (
    SELECT target, shape, {lowered} AS fence FROM (
        SELECT groups.target, groups.shape, quantile_disc(event.{value}, [{fractions}]) AS ordered
        FROM resolved AS event JOIN (
            SELECT groups.* FROM groups SEMI JOIN crowded
            ON groups.target = crowded.target AND groups.shape IS NOT DISTINCT FROM crowded.shape
        ) AS groups ON {same_group} WHERE event.{value} <= groups.{fence} GROUP BY ALL)) AS lower
WHERE groups.target = lower.target AND groups.shape IS NOT DISTINCT FROM lower.shape AND lower.fence < groups.{fence}
"""
_MOST_TIMES = 4
"""How often fences are lowered; they hardly change after the third time."""

_DISTURBED = """
SELECT groups.target, count(*), {sums}
FROM outliers JOIN groups ON groups.target = outliers.target AND groups.shape = outliers.group_shape
WHERE {any_beyond} GROUP BY groups.target ORDER BY groups.target
"""


def fence_of(ordered: Sequence[str], *, much: bool) -> str:
    """The upper fence of the values at `FENCE_FRACTIONS`, in SQL; no fence lies beyond the largest number.

    `much`: more than a quarter of the calls may have been disturbed.
    """
    q1, median, q3 = ordered
    fence = _OF_LOWER_HALF.format(q1=q1, median=median) if much else _OF_QUARTILES.format(q1=q1, q3=q3)
    return _FENCE.format(fence=fence)


def lower_fences(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Make fences anew, in the table `groups`, that were made of calls many of which lie beyond them.

    Args:
        resolved: all events of runs of which more than a quarter of the calls may have been disturbed.
        metrics: the numbers of those that have fences.
    """
    for number in metrics:
        words = words_of(resolved, number) | {"lowered": fence_of(_ORDERED, much=True), "fractions": _FRACTIONS}
        resolved.tables.make("crowded", _CROWDED.format(**words))
        for _ in range(_MOST_TIMES):
            if not resolved.tables.query(_LOWER.format(**words))[0][0]:
                break


def disturbed(
    tables: Tables, metrics: Sequence[int], of_all: Invocations, *, much: bool
) -> Mapping[int, tuple[int, Mapping[int, int]]]:
    """What calls take beyond the fences of their groups, in the table `groups`, which recurring calls raise.

    Args:
        tables: the connection, with the table `outliers`.
        metrics: the numbers of those that have fences.
        of_all: the invocations.
        much: as in `fence_of`.

    Returns:
        By target how many calls lie beyond a fence, and by metric how much they take beyond it.
    """
    if not metrics:
        return {}
    names = [(value_column(number), fence_column(number)) for number in metrics]
    if of_all.count is not UNKNOWN:
        for value, fence in names:
            _raise(tables, value, fence, of_all, much=much)
    beyond = [f"outliers.{value} > groups.{fence}" for value, fence in names]
    sums = (
        f"sum(outliers.{value} - groups.{fence}) FILTER ({condition})"
        for (value, fence), condition in zip(names, beyond, strict=True)
    )
    rows = tables.query(_DISTURBED.format(any_beyond=" OR ".join(beyond), sums=", ".join(sums)))
    return {
        target: (calls, {number: int(total or 0) for number, total in zip(metrics, totals, strict=True)})
        for target, calls, *totals in rows
    }


def _raise(tables: Tables, value: str, fence: str, of_all: Invocations, *, much: bool) -> None:
    """Give groups whose calls beyond the fence recur the fence of these, as often as any do."""
    raised = fence_of(_ORDERED, much=much)
    query = _RAISE.format(
        fence=fence, value=value, raised=raised, distinct=of_all.distinct, fewest=FEWEST, fractions=_FRACTIONS
    )
    # Each time at least half of what lay beyond does no longer: it ends.
    while tables.query(query)[0][0]:
        pass


# ---- waited
#
# Kernels of which most calls waited: the fence of those that did not.
#
# In a run whose threads share processors with other programs, most calls of a kernel may have been preempted for as
# long as the others took turns with it; the middle of its calls is then one that waited, and so is all that a fence is
# made of from there. What waited is longer than what did not. So the search goes from the fastest quarter of the calls
# outwards: their fence, as that of all calls is made (the median and four times its distance from the lower quartile),
# holds further calls, these have a fence of their own, and so on, until it holds no more (forward search: Atkinson and
# Riani, Robust Diagnostic Regression Analysis, 2000). Where calls lie without a gap, it comes to the fence of all.
#
# Where it stops short of that, there is a gap, which a kernel's own modes may have as well: a core that another thread
# uses, data in another cache. A wait is known by its length. Linux gives who runs at least its base slice before
# another one has its turn (`base_slice_ns`, kernel/sched/fair.c: 0.7 ms for one processor, more for several). So the
# fence of the fastest is taken only where those beyond it take longer by a slice, and by half; what recurs in each
# invocation is work all the same.


_LEAST_WAIT_NS = 700_000
_FEWEST = 4 * FEWEST
"""Calls of which a quarter are as many as a fence takes."""
_PARTS = 128
"""Into how many parts the calls of a group are divided, in order of what they took."""

# Of groups in which calls within the fence lie a wait apart.
_ORDERED_WAITS = """
SELECT groups.target, groups.shape, any_value(groups.{fence}), quantile_disc(event.{value}, {fractions})
FROM resolved AS event JOIN (
    SELECT * FROM groups WHERE {fence} - least_{number} >= {least_wait} AND events - absent_{number} >= {fewest}
) AS groups ON {same_group} GROUP BY ALL
"""
_UPDATE = """
UPDATE groups SET {fence} = waited.fence FROM waited
WHERE groups.target = waited.target AND groups.shape IS NOT DISTINCT FROM waited.shape
"""


def lower_to_fastest(resolved: Resolved, metrics: Sequence[int]) -> None:
    """Give groups of which most calls waited the fence of those that did not, in the table `groups`.

    Args:
        resolved: all events of runs of which more than a quarter of the calls may have been disturbed.
        metrics: the numbers of those that have fences.
    """
    for number in metrics:
        words = words_of(resolved, number) | {
            "fractions": [part / _PARTS for part in range(1, _PARTS + 1)],
            "least_wait": _LEAST_WAIT_NS,
            "fewest": _FEWEST,
        }
        rows = [
            (target, shape, lowered)
            for target, shape, fence, ordered in resolved.tables.query(_ORDERED_WAITS.format(**words))
            if (lowered := fence_of_fastest(ordered, fence)) < fence
        ]
        if rows:
            resolved.tables.fill("waited", "target INTEGER, shape BIGINT, fence BIGINT", rows)
            resolved.tables.query(_UPDATE.format(**words))


def fence_of_fastest(ordered: Sequence[int], fence: int) -> int:
    """The fence of the fastest calls where the others within the fence of all waited, else that of all.

    Args:
        ordered: what calls took, in nanoseconds: the greatest of each of `_PARTS` parts of them, the fastest first.
        fence: that of all calls, in nanoseconds.
    """
    held = _PARTS // 4
    while True:
        median, quartile = ordered[held // 2 - 1], ordered[held // 4 - 1]
        lowered = max(ordered[held - 1], median + DISTANCES * (median - quartile))
        if (holds := bisect_right(ordered, lowered)) == held:
            break
        held = holds
    beyond = ordered[held : bisect_right(ordered, fence)]
    if not beyond:
        return fence
    longer = beyond[len(beyond) // 2] - median
    return lowered if longer >= max(_LEAST_WAIT_NS, median // 2) else fence


# ---- slowest
#
# The slowest single calls of each target, as they were measured: what disturbed one is looked for here.


# `least`: what the slowest calls of a target take at least, whatever their shapes. Calls that are as slow stand in the
# order of runs and invocations; which of those that are alike in all is no matter. The aggregate keeps as many calls as
# are wanted: a run of equal calls has nothing but slow ones.
_SLOWEST = """
SELECT event.target, min([{keys}], {most}) FROM (
    SELECT event.*, {run} AS run FROM resolved AS event JOIN (
        SELECT target, shape, {least} FROM groups WHERE target >= 0) AS groups ON {same_group}
    WHERE event.{value} >= groups.least) AS event
GROUP BY event.target ORDER BY event.target
"""
_NOTHING = -1
"""Stands for what is unknown, and before all that is known."""
_LEAST = "list_sort(flatten(list({largest}) OVER (PARTITION BY target)), 'DESC')[:{most}][-1] AS least"


def slowest_calls(resolved: Resolved) -> Mapping[int, tuple[SlowCall, ...]]:
    """By target its slowest calls, the slowest first; nothing where no run has times."""
    metrics = resolved.metrics
    ranked = ranked_by(metrics)
    if ranked is None:
        return {}
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    start = f"event.{START}" if resolved.has_starts else "NULL"
    values = [f"event.{value_column(numbers[name])}" if name in numbers else "NULL" for name in RANKED_BY]
    keys = (f"-event.{value_column(ranked)}", "event.run", "event.invocation", start, *values)
    query = _SLOWEST.format(
        keys=", ".join(f"CAST(coalesce({key}, {_NOTHING}) AS BIGINT)" for key in keys),
        most=MOST_SLOWEST,
        run=_run_of(resolved),
        least=_LEAST.format(largest=largest_column(ranked), most=MOST_SLOWEST),
        same_group=resolved.same_group,
        value=value_column(ranked),
    )
    found = defaultdict(list)
    wall, cpu = RANKED_BY.index("duration_ns"), RANKED_BY.index("cpu_ns")
    for target, calls in resolved.tables.query(query):
        for _, run, invocation, start_ns, *times in calls:
            which = _known(invocation, resolved.first_invocations[run])
            found[target].append(SlowCall(run + 1, which, _known(start_ns), _known(times[wall]), _known(times[cpu])))
    return {target: tuple(calls) for target, calls in found.items()}


def _run_of(resolved: Resolved) -> str:
    """The number of a row's run, from 0, in SQL: the rows of a run follow those of the runs before it."""
    return " + ".join(f"CAST(event.rowid >= {first} AS INTEGER)" for first in resolved.first_rows[1:]) or "0"


def _known(value: int, before: int = 0) -> Integer:
    """A number that is not less than nothing, as no clock and no counter gives such."""
    return UNKNOWN if value < before else int(value) - before
