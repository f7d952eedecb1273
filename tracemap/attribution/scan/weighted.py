"""What weighted sums of events are like from invocation to invocation: the share of an op of several sites.

Most ops need no such sum: what a sole target has once in each invocation is known already. For the others the rows of
their targets are read again, some at a time, and added up for a bounded number of sums at once: time grows with these
rows times the sums that each is part of, memory does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.connection import Row, Tables, value_column
from tracemap.attribution.scan.invocations import PlaceOf, place_of, spread
from tracemap.attribution.scan.outliers import fence_column, largest_column
from tracemap.attribution.scan.scan import Scan
from tracemap.units import INTEGER_LIMIT, UNKNOWN

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
_ROWS_AT_A_TIME = 1 << 21

# Columns are as narrow as those of `resolved`: to hand them over takes longer than to find the rows. What disturbed is
# taken off behind that.
_ROWS = """
SELECT groups.code, event.invocation{columns}
FROM resolved AS event JOIN coded AS groups ON {same_group}
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

    @property
    def dtype(self) -> type:
        """Of arrays of sums and of parts of weights."""
        import numpy as np

        return np.int64 if self.fit else object

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
class _Round:
    """Of each group whose target is part of so many sums one: its number, and by metric the parts of its weight.

    Groups have codes, those that are part of the most sums the lowest: a round is of all codes below some one.
    """

    numbers: npt.NDArray[Any]
    factors: Sequence[npt.NDArray[Any]]
    """By metric an array of parts and codes."""


def _rounds(pairs: Sequence[Sequence[tuple[int, int]]], parts: Sequence[_Parts]) -> list[_Round]:
    """What is to be added for each row, in turn.

    Args:
        pairs: by the code of a group the numbers of the sums that it is part of, with its weights.
        parts: by metric.
    """
    import numpy as np

    made = []
    for turn in range(max(map(len, pairs), default=0)):
        some = [own[turn] for own in pairs if len(own) > turn]
        factors: list[npt.NDArray[Any]] = [np.zeros((each.count, len(some)), dtype=each.dtype) for each in parts]
        for each, table in zip(parts, factors, strict=True):
            for code, (_, weight) in enumerate(some):
                for part, factor in each.of(weight):
                    table[part, code] = factor
        made.append(_Round(np.array([number for number, _ in some]), factors))
    return made


def _within(values: npt.NDArray[Any], fences: npt.NDArray[Any], codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values without what lies beyond the fences of their groups, as numbers of the same width."""
    import numpy as np

    narrow: npt.NDArray[Any] = np.minimum(fences, np.iinfo(values.dtype).max).astype(values.dtype)
    within: npt.NDArray[Any] = np.minimum(values, narrow[codes])
    return within


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
        added: list[npt.NDArray[Any]] = [
            np.zeros((parts.count, len(sums), count), dtype=parts.dtype) for parts in self.parts
        ]
        of_target: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, each in enumerate(sums):
            for target, weight in each:
                of_target[target].append((number, weight))
        groups = sorted(self._groups(of_target), key=lambda group: -len(of_target[group[0]]))
        coded = [(target, shape, code) for code, (target, shape, *_) in enumerate(groups)]
        self.tables.fill("coded", "target INTEGER, shape BIGINT, code INTEGER", coded)
        rounds = _rounds([of_target[target] for target, *_ in groups], self.parts)
        fences = np.array([fences for _, _, *fences in groups], np.int64).T
        for block in self._blocks() if rounds else ():
            self._add(block, rounds, fences, added)
        for number in range(len(sums)):
            yield {
                metric.name: self._distribution(parts.rounded(values[:, number]))
                for metric, parts, values in zip(self.seen.metrics, self.parts, added, strict=True)
            }

    def _groups(self, targets: Iterable[int]) -> list[Row]:
        """The groups of some targets: target and shape, and by metric the fence; where it has none, one beyond all."""
        self.tables.fill("summed", "target INTEGER", [(target,) for target in targets])
        fences = (f"coalesce({fence_column(number)}, {INTEGER_LIMIT})" for number in range(len(self.parts)))
        columns = ", ".join(("target", "shape", *fences))
        return self.tables.query(f"SELECT {columns} FROM groups SEMI JOIN summed USING (target) ORDER BY target, shape")

    def _blocks(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """The rows of the targets that are summed up, some at a time: the next ones are read meanwhile."""
        from concurrent.futures import ThreadPoolExecutor

        names = map(value_column, range(len(self.parts)))
        columns = "".join(f", coalesce(event.{name}, 0) AS {name}" for name in names)
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
        rounds: Sequence[_Round],
        fences: npt.NDArray[Any],
        added: Sequence[npt.NDArray[Any]],
    ) -> None:
        """Add what rows have, up to the fences of their groups, to the sums that they are part of."""
        import numpy as np

        codes = block["code"].astype(np.intp)  # other numbers are made such each time that they are looked up
        places = self.place_of(block["invocation"])
        values = [_within(block[value_column(metric)], each, codes) for metric, each in enumerate(fences)]
        below = len(rounds[0].numbers)
        for each in rounds:
            if len(each.numbers) < below:
                below = len(each.numbers)
                kept = np.flatnonzero(codes < below)
                codes, places, values = codes[kept], places[kept], [of_metric[kept] for of_metric in values]
            cells = each.numbers[codes] * self.seen.invocations.count + places
            for sums, of_metric, factors in zip(added, values, each.factors, strict=True):
                for part in np.flatnonzero(factors.any(axis=1)):
                    np.add.at(sums[part].reshape(-1), cells, of_metric * factors[part][codes])

    def _distribution(self, values: npt.NDArray[Any]) -> PerInvocation:
        """Of sums, one for each invocation."""
        import numpy as np

        places = [rank - 1 for rank in self.seen.invocations.ranks]
        ordered = np.partition(values, places)
        return spread(int(ordered[place]) for place in places)
