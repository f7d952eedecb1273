"""What disturbed calls: the time that they take beyond an upper fence of calls that do the same work.

A *group* is the calls of one target with the same counts of workgroups. Its fence is the upper quartile and one and a
half interquartile ranges (Tukey, Exploratory Data Analysis, 1977, section 2D). A call that was preempted lies beyond
it, by as long as it waited; that is no work of any op.

In a run whose threads waited for processors that other programs held, more than a quarter of a long kernel's calls may
have waited, so that the upper quartile is one of these. What disturbs makes calls longer, never shorter: the lower half
still tells how far calls lie apart. The fence is then the median and four times its distance from the lower quartile,
which is the same where calls lie evenly about their median (semi-interquartile ranges by halves: Kimber, Exploratory
data analysis for possibly censored data from skewed distributions, Applied Statistics 39, 1990). It holds as long as
fewer than half of the calls waited. But the calls that waited, all at the upper end, move the median and the lower
quartile of the others, too: with a third of them the fence lies at the double distance. So where more than a tenth of a
group's calls lie beyond its fence, it is made anew of those that do not, up to four times (iterated outlier rejection).
Where more than half waited, `waited` looks for the others.

Not all that lies beyond is disturbance: one trip of a loop in twenty may have more to do. Times alone cannot tell, as
calls that waited for a scheduler's time slice are as alike as those of a kernel. But what has more to do has it in each
invocation, as all have the same inputs, and what disturbs strikes now and then. So calls beyond the fence that *recur*,
in nine of ten of the invocations that have calls of the group, are a group of their own, with a fence of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.scan.invocations import Invocations
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.outliers import fence_column, words_of
from tracemap.attribution.scan.rows import Resolved
from tracemap.attribution.scan.tables import Tables
from tracemap.units import INTEGER_LIMIT, UNKNOWN

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
