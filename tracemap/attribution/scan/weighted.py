"""What weighted sums of events are like from invocation to invocation: the share of an op of several sites.

Most ops need no such sum: what a sole target has once in each invocation is known already. For the others the rows of
their targets are read again, some at a time, and added up for a bounded number of sums at once: time grows with these
rows times the sums that each is part of, memory does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.invocations import PlaceOf, place_of, spread
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.outliers import largest_column, worked
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.scan.tables import Tables
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import numpy.typing as npt

Weighted = tuple[tuple[int, int], ...]
"""Numbers of targets, each with the weight of its events in `UNIT`."""

_BITS = 30
UNIT = 1 << _BITS
"""A weight of one. Sums are of whole numbers: these come out the same in whatever order they are added up."""

_BYTES_OF_SUM = 32
"""What each sum takes of the memory, by invocation and metric."""
_OF_MEMORY = 4
"""The part of the memory that sums may take, beside what the database holds."""
_ROWS_AT_A_TIME = 1 << 20

_ROWS = """
SELECT event.target, event.invocation{columns}
FROM resolved AS event JOIN (SELECT * FROM groups SEMI JOIN summed USING (target)) AS groups ON {same_group}
WHERE event.rowid >= {first} AND event.rowid < {first} + {count}
"""
# No sum of any of the values is larger than this.
_BOUND = """
CASE WHEN min(least_{number}) >= 0 THEN sum(total_{number}) ELSE
sum(events * greatest(abs(CAST(least_{number} AS HUGEINT)), {largest}[1])) END
"""


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
    rows = _Rows(tables, seen, place_of(tables, seen.invocations), _parts(tables, len(seen.metrics)))
    rest = iter(untold)
    at_a_time = max(1, tables.memory_bytes // _OF_MEMORY // (_BYTES_OF_SUM * count * len(seen.metrics)))
    while some := list(islice(rest, at_a_time)):
        found.update(zip(some, rows.summed(some), strict=True))
    return found


def nothing(seen: Scan) -> PerInvocation:
    """What a sum without any events is like."""
    low, high = (0, 0) if seen.invocations.interval else (UNKNOWN, UNKNOWN)
    return PerInvocation(median=0, median_low=low, median_high=high, p10=0, p90=0, max=0)


def _told(seen: Scan, each: Weighted) -> Mapping[str, PerInvocation]:
    """What the scan tells of a sum: that of a target of its own."""
    return seen.by_target[each[0][0]].per_invocation if [weight for _, weight in each] == [UNIT] else {}


@dataclass(frozen=True, slots=True)
class _Parts:
    """How products of a metric's values and weights are added up: by `count` parts of the weights, of `bits` each.

    Sums of each part then fit into 64 bits. Where values are so large that none would, Python's numbers are taken.
    """

    bits: int
    count: int
    fit: bool

    def of(self, weight: int) -> Iterator[tuple[int, int]]:
        """The parts of a weight that are not 0, each with its number; the lowest is number 0."""
        for number in range(self.count):
            rest = weight >> self.bits * number
            is_last = number == self.count - 1  # the whole weight of one has a bit more
            if part := rest if is_last else rest & ((1 << self.bits) - 1):
                yield number, part

    def rounded(self, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sums, of which there is an array for each part, in whole units: a half is rounded up."""
        total: npt.NDArray[Any] = sums[0] + UNIT // 2
        for part in sums[1:]:
            total = part + (total >> self.bits)
        return total >> _BITS - self.bits * (self.count - 1)


def _parts(tables: Tables, metrics: int) -> list[_Parts]:
    """By metric how its sums are added up."""
    bounds = (_BOUND.format(number=number, largest=largest_column(number)) for number in range(metrics))
    (found,) = tables.query(f"SELECT {', '.join(bounds)} FROM groups WHERE target >= 0")
    return [_parts_within(int(bound or 0)) for bound in found]


def _parts_within(bound: int) -> _Parts:
    bits = 61 - bound.bit_length()
    if bits < 1:
        return _Parts(_BITS, 1, fit=False)
    return _Parts(min(bits, _BITS), max(1, -(-_BITS // bits)), fit=True)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The events of a scan, for weighted sums of them: with the places of invocations, and by metric its parts."""

    tables: Tables
    seen: Scan
    place_of: PlaceOf
    parts: Sequence[_Parts]

    def summed(self, sums: Sequence[Weighted]) -> Iterator[Mapping[str, PerInvocation]]:
        """What each of some sums is like, by metric name."""
        import numpy as np

        count = self.seen.invocations.count
        assert count is not UNKNOWN
        added = [
            np.zeros((parts.count, len(sums), count), dtype=np.int64 if parts.fit else object) for parts in self.parts
        ]
        of_target: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, each in enumerate(sums):
            for target, weight in each:
                of_target[target].append((number, weight))
        self.tables.fill("summed", "target INTEGER", [(target,) for target in of_target])
        for block in self._blocks():
            self._add(block, of_target, added)
        for number in range(len(sums)):
            yield {
                metric.name: self._distribution(parts.rounded(values[:, number]))
                for metric, parts, values in zip(self.seen.metrics, self.parts, added, strict=True)
            }

    def _blocks(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """The rows of the targets that are summed up, some at a time: the next ones are read meanwhile."""
        from concurrent.futures import ThreadPoolExecutor

        columns = "".join(f", {worked(number)} AS {value_column(number)}" for number in range(len(self.parts)))
        ((rows,),) = self.tables.query("SELECT count(*) FROM resolved")
        query = partial(_ROWS.format, columns=columns, same_group=self.seen.same_group, count=_ROWS_AT_A_TIME)
        with ThreadPoolExecutor(1) as reader:
            block = reader.submit(self.tables.columns, query(first=0))
            for first in range(_ROWS_AT_A_TIME, rows, _ROWS_AT_A_TIME):
                following = reader.submit(self.tables.columns, query(first=first))
                yield block.result()
                block = following
            yield block.result()

    def _add(
        self,
        block: Mapping[str, npt.NDArray[Any]],
        of_target: Mapping[int, Sequence[tuple[int, int]]],
        added: Sequence[npt.NDArray[Any]],
    ) -> None:
        """Add what rows have to the sums that they are part of."""
        import numpy as np

        wanted = np.array(list(of_target))
        # Numbers of two bytes are put in order by radix, several times faster than wider ones.
        targets = block["target"].astype(np.min_scalar_type(wanted.max()))
        order = np.argsort(targets, kind="stable")
        targets, places = targets[order], self.place_of(block["invocation"][order])
        # All at once, and as numbers of the same width: else all targets are made wider for each.
        wanted = wanted.astype(targets.dtype)
        begins, ends = (np.searchsorted(targets, wanted, side=side) for side in ("left", "right"))
        for weights, begin, end in zip(of_target.values(), begins, ends, strict=True):
            own = places[begin:end]
            for metric, (parts, sums) in enumerate(zip(self.parts, added, strict=True)):
                values = block[value_column(metric)][order[begin:end]].astype(sums.dtype, copy=False)
                for number, weight in weights:
                    for part, factor in parts.of(weight):
                        np.add.at(sums[part, number], own, values * factor)

    def _distribution(self, values: npt.NDArray[Any]) -> PerInvocation:
        """Of sums, one for each invocation."""
        import numpy as np

        places = [rank - 1 for rank in self.seen.invocations.ranks]
        ordered = np.partition(values, places)
        return spread(int(ordered[place]) for place in places)
