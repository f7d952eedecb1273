"""What weighted sums of events are like from invocation to invocation: the share of an op of several sites.

Most ops need no such sum: what a sole target has once in each invocation is known already. For the others the rows of
their targets are read again, for a bounded number of sums at a time, and of these for a bounded number of invocations:
time grows with these rows times the sums that each is part of, memory does not. Recordings have their invocations one
behind the other, so that rows of other invocations are hardly looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.outliers import fence_column, largest_column
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.scan.tables import Tables
from tracemap.units import INTEGER_LIMIT, UNKNOWN

Weighted = tuple[tuple[int, int], ...]
"""Numbers of targets, each with the weight of its events in `UNIT`."""

UNIT = 1 << 30
"""A weight of one. Sums are of whole numbers: these come out the same in whatever order they are added up."""

_BYTES_OF_SUM = 200
"""What a sum of an invocation takes of the memory while it is added up, by metric."""
_BYTES_OF_VALUE = 32
"""What it takes while sums of all invocations are put in order."""

_SUMS = """
INSERT INTO weighted SELECT groups.number{columns}
FROM resolved AS event JOIN (SELECT * FROM weights JOIN groups USING (target)) AS groups ON {same_group}
WHERE event.invocation BETWEEN {first} AND {last} GROUP BY groups.number, event.invocation
"""
# In parts of a `UNIT`: the few sums that are told are rounded, as division of 128 bits is slow.
_SUM = ", coalesce(sum({worked} * groups.weight), 0) AS {value}"
# A product that fits is several times faster than one of 128 bits; the sum of such products is one of these anyway.
_WORKED = "CAST(least(event.{value}, groups.{fence}) AS {kind})"
_FITTING = INTEGER_LIMIT // UNIT
_RANGE = "min(least_{number}), max({largest}[1])"

# In an invocation without any of its events, a sum is nothing.
_NOTHING = """
INSERT INTO weighted SELECT number, {zeros}
FROM (SELECT number, unnest(range({count} - n)) FROM (SELECT number, count(*) AS n FROM weighted GROUP BY number))
"""
_ORDERED = "SELECT number{columns} FROM weighted GROUP BY number ORDER BY number"
_IN_ORDER = ", quantile_disc({value}, [{fractions}]), max({value})"


def per_invocation(tables: Tables, seen: Scan, sums: Sequence[Weighted]) -> dict[Weighted, Mapping[str, PerInvocation]]:
    """What sums are like over all invocations, whose number is known; by metric name.

    Args:
        tables: the connection, with the tables of the scan.
        seen: the scan.
        sums: different ones; those of nothing are left out.
    """
    count = seen.invocations.count
    assert count is not UNKNOWN
    found = {each: _told(seen, each) for each in sums}
    untold = [each for each, told in found.items() if each and len(told) < len(seen.metrics)]
    if not untold:
        return found
    rest, kinds = iter(untold), _kinds(tables, len(seen.metrics))
    at_a_time = max(1, tables.memory_bytes // (_BYTES_OF_VALUE * count * len(seen.metrics)))
    while some := list(islice(rest, at_a_time)):
        found.update(zip(some, _summed(tables, seen, some, kinds), strict=True))
    return found


def nothing(seen: Scan) -> PerInvocation:
    """What a sum without any events is like."""
    low, high = (0, 0) if seen.invocations.interval else (UNKNOWN, UNKNOWN)
    return PerInvocation(median=0, median_low=low, median_high=high, p10=0, p90=0, max=0)


def _told(seen: Scan, each: Weighted) -> Mapping[str, PerInvocation]:
    """What the scan tells of a sum: that of a target of its own."""
    return seen.by_target[each[0][0]].per_invocation if [weight for _, weight in each] == [UNIT] else {}


def _kinds(tables: Tables, count: int) -> list[str]:
    """The type for weighted values of each metric: the smallest that holds all of them, and then a weight of one."""
    ranges = ", ".join(_RANGE.format(number=number, largest=largest_column(number)) for number in range(count))
    (found,) = tables.query(f"SELECT {ranges} FROM groups")
    pairs = zip(found[::2], found[1::2], strict=True)
    return ["BIGINT" if max(-(least or 0), most or 0) <= _FITTING else "HUGEINT" for least, most in pairs]


def _summed(
    tables: Tables, seen: Scan, sums: Sequence[Weighted], kinds: Sequence[str]
) -> Iterator[Mapping[str, PerInvocation]]:
    rows = [(number, target, weight) for number, each in enumerate(sums) for target, weight in each]
    tables.fill("weights", "number INTEGER, target INTEGER, weight BIGINT", rows)
    names = [metric.name for metric in seen.metrics]
    values = [value_column(number) for number in range(len(names))]
    added = []
    for number, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        worked = _WORKED.format(value=value, fence=fence_column(number), kind=kind)
        added.append(_SUM.format(worked=worked, value=value))
    tables.fill("weighted", ", ".join(("number INTEGER", *(f"{value} HUGEINT" for value in values))), ())
    for some in _parts(tables, seen, len(sums)):
        limits = {"first": some.start, "last": some.stop - 1}
        tables.query(_SUMS.format(columns="".join(added), same_group=seen.same_group, **limits))
    tables.query(_NOTHING.format(zeros=", ".join("0" for _ in values), count=seen.invocations.count))
    fractions = ", ".join(map(str, (0.1, 0.5, 0.9, *seen.invocations.interval)))
    in_order = (_IN_ORDER.format(value=value, fractions=fractions) for value in values)
    for _, *cells in tables.query(_ORDERED.format(columns="".join(in_order))):
        pairs = zip(names, cells[::2], cells[1::2], strict=True)
        yield {name: _distribution([*ordered, largest]) for name, ordered, largest in pairs}


def _parts(tables: Tables, seen: Scan, sums: int) -> Iterator[range]:
    """The numbers of invocations, so many at a time that so many sums of each can be added up in the memory."""
    count, numbers = seen.invocations.count, seen.invocations.numbers
    assert count is not UNKNOWN
    parts = -(-count * sums * len(seen.metrics) * _BYTES_OF_SUM // tables.memory_bytes)
    width = -(-len(numbers) // parts)
    return (numbers[first : first + width] for first in range(0, len(numbers), width))


def _distribution(ordered: Sequence[int]) -> PerInvocation:
    p10, median, p90, *bounds, largest = ((int(value) + UNIT // 2) // UNIT for value in ordered)
    low, high = bounds or (UNKNOWN, UNKNOWN)
    return PerInvocation(median=median, median_low=low, median_high=high, p10=p10, p90=p90, max=largest)
