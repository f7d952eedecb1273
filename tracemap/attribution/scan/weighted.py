"""Distributions of weighted sums of events over invocations: the share of an op at several sites.

Most ops need no such sum: the distribution of a single target that runs once per invocation is known already. For the
others, the rows of their targets are read again in blocks, and added up for a bounded number of sums at a time. Time
grows with rows times sums per row; memory does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.connection import Tables, value_column
from tracemap.attribution.scan.invocations import PlaceOf, place_of, spread
from tracemap.attribution.scan.scan import Scan
from tracemap.core.units import MAX_INTEGER, UNKNOWN

if TYPE_CHECKING:
    import numpy.typing as npt

Weighted = tuple[tuple[int, int], ...]
"""Pairs of a target number and the weight of its events, in units of 1 / `UNIT`."""

_BITS = 30
UNIT = 1 << _BITS
"""The weight 1. Sums are of whole numbers, so that they do not depend on the order of addition."""

_BYTES_OF_SUM = 32
"""Memory of a sum, per invocation and metric."""
_MEMORY_DIVISOR = 4
"""Sums may take the memory limit divided by this, in addition to the database's own memory."""
_ROWS_AT_A_TIME = 1 << 21

# Columns are as narrow as those of `resolved`, because transferring them takes longer than finding the rows. Outlier
# time is cut off after the transfer.
_ROWS = """
SELECT groups.code, event.invocation{columns}
FROM resolved AS event JOIN coded AS groups ON {same_group}
WHERE event.rowid >= {first} AND event.rowid < {first} + {count}
"""
# An upper bound of every sum of values.
_BOUND = """
CASE WHEN min(least_{number}) >= 0 THEN sum(total_{number}) ELSE
sum(events * greatest(abs(CAST(least_{number} AS HUGEINT)), largest_{number}[1])) END
"""


def per_invocation(tables: Tables, scan: Scan, sums: Sequence[Weighted]) -> dict[Weighted, Mapping[str, PerInvocation]]:
    """The distributions of sums over all invocations, by sum and metric name.

    Args:
        tables: the connection, with the tables of the scan.
        scan: the scan; its number of invocations must be known.
        sums: distinct sums; empty ones get no distributions.
    """
    count = scan.invocations.count
    assert count is not UNKNOWN
    # The distributions of a single target with weight 1 are known already.
    distributions: dict[Weighted, Mapping[str, PerInvocation]] = {
        weighted: scan.by_target[weighted[0][0]].per_invocation if [weight for _, weight in weighted] == [UNIT] else {}
        for weighted in sums
    }
    remaining = [weighted for weighted, known in distributions.items() if weighted and len(known) < len(scan.metrics)]
    if not remaining:
        return distributions
    columns = ", ".join(_BOUND.format(number=number) for number in range(len(scan.metrics)))
    (bounds,) = tables.query(f"SELECT {columns} FROM groups WHERE target >= 0")
    parts = [_parts_within(int(bound or 0)) for bound in bounds]
    rows = _Rows(tables, scan, place_of(tables, scan.invocations), parts)
    rest = iter(remaining)
    at_a_time = max(1, tables.memory_bytes // _MEMORY_DIVISOR // (_BYTES_OF_SUM * count * len(scan.metrics)))
    while batch := list(islice(rest, at_a_time)):
        distributions.update(zip(batch, rows.distributions(batch), strict=True))
    return distributions


def zero_distribution(scan: Scan) -> PerInvocation:
    """The distribution of a sum without events."""
    low, high = (0, 0) if scan.invocations.interval else (UNKNOWN, UNKNOWN)
    return PerInvocation(median=0, median_low=low, median_high=high, p10=0, p90=0, max=0)


class _Parts(msgspec.Struct, frozen=True):
    """The split of weights into `count` parts of `bits` bits, for exact sums of products with a metric's values.

    Sums over one part fit into 64 bits. If values are too large for that, `fit` is false and Python integers are used.
    """

    bits: int
    count: int
    fit: bool

    @property
    def dtype(self) -> type:
        """Type of the arrays of sums and of parts of weights."""
        import numpy as np

        return np.int64 if self.fit else object

    def nonzero_parts(self, weight: int) -> Iterator[tuple[int, int]]:
        """The nonzero parts of a weight as (index, part), the lowest first."""
        for number in range(self.count):
            rest = weight >> self.bits * number
            is_last = number == self.count - 1  # the weight 1 has one bit more
            if part := rest if is_last else rest & ((1 << self.bits) - 1):
                yield number, part

    def rounded(self, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sums in whole units, from the arrays of the parts; a half is rounded up."""
        total: npt.NDArray[Any] = sums[0] + UNIT // 2
        for part in sums[1:]:
            total = part + (total >> self.bits)
        return total >> _BITS - self.bits * (self.count - 1)


def _parts_within(bound: int) -> _Parts:
    bits = 61 - bound.bit_length()
    if bits < 1:
        return _Parts(_BITS, 1, fit=False)
    return _Parts(min(bits, _BITS), max(1, -(-_BITS // bits)), fit=True)


class _Round(msgspec.Struct, frozen=True):
    """The n-th sum of every group that is part of at least n sums: its number, and the parts of the group's weight.

    Groups have codes in descending order of their number of sums, so a round covers all codes below some limit.
    """

    numbers: npt.NDArray[Any]
    factors: Sequence[npt.NDArray[Any]]
    """For each metric, an array indexed by part and code."""


def _rounds(pairs: Sequence[Sequence[tuple[int, int]]], parts: Sequence[_Parts]) -> list[_Round]:
    """The rounds of additions; `pairs`: (sum number, weight) of the sums that a group is part of, by its code."""
    import numpy as np

    rounds = []
    for turn in range(max(map(len, pairs), default=0)):
        additions = [own[turn] for own in pairs if len(own) > turn]
        factors: list[npt.NDArray[Any]] = [
            np.zeros((of_metric.count, len(additions)), dtype=of_metric.dtype) for of_metric in parts
        ]
        for of_metric, table in zip(parts, factors, strict=True):
            for code, (_, weight) in enumerate(additions):
                for part, factor in of_metric.nonzero_parts(weight):
                    table[part, code] = factor
        rounds.append(_Round(np.array([number for number, _ in additions]), factors))
    return rounds


class _Rows(msgspec.Struct, frozen=True):
    """The events of a scan, with the positions of invocations and the split of weights for each metric."""

    tables: Tables
    scan: Scan
    place_of: PlaceOf
    parts: Sequence[_Parts]

    def distributions(self, sums: Sequence[Weighted]) -> Iterator[Mapping[str, PerInvocation]]:
        """The distributions of a batch of sums, by metric name."""
        import numpy as np

        count = self.scan.invocations.count
        assert count is not UNKNOWN
        accumulators: list[npt.NDArray[Any]] = [
            np.zeros((parts.count, len(sums), count), dtype=parts.dtype) for parts in self.parts
        ]
        sums_of_target: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, weighted in enumerate(sums):
            for target, weight in weighted:
                sums_of_target[target].append((number, weight))
        self.tables.fill("summed", "target INTEGER", [(target,) for target in sums_of_target])
        # Target, shape, and a threshold for each metric.
        columns = "".join(f", coalesce(threshold_{number}, {MAX_INTEGER})" for number in range(len(self.parts)))
        groups = self.tables.query(
            f"SELECT target, shape{columns} FROM groups SEMI JOIN summed USING (target) ORDER BY target, shape"
        )
        groups.sort(key=lambda group: -len(sums_of_target[group[0]]))
        coded = [(target, shape, code) for code, (target, shape, *_) in enumerate(groups)]
        self.tables.fill("coded", "target INTEGER, shape BIGINT, code INTEGER", coded)
        rounds = _rounds([sums_of_target[target] for target, *_ in groups], self.parts)
        thresholds = np.array([thresholds for _, _, *thresholds in groups], np.int64).T
        for block in self._blocks() if rounds else ():
            self._add(block, rounds, thresholds, accumulators)
        places = [rank - 1 for rank in self.scan.invocations.ranks]
        for number in range(len(sums)):
            distributions = {}
            for metric, parts, values in zip(self.scan.metrics, self.parts, accumulators, strict=True):
                ordered = np.partition(parts.rounded(values[:, number]), places)
                distributions[metric.name] = spread(int(ordered[place]) for place in places)
            yield distributions

    def _blocks(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """The rows of the groups in the table `coded`, in blocks; a thread reads the next block ahead."""
        from concurrent.futures import ThreadPoolExecutor

        names = map(value_column, range(len(self.parts)))
        columns = "".join(f", coalesce(event.{name}, 0) AS {name}" for name in names)
        ((rows,),) = self.tables.query("SELECT count(*) FROM resolved")
        query = partial(_ROWS.format, columns=columns, same_group=self.scan.same_group, count=_ROWS_AT_A_TIME)
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
        thresholds: npt.NDArray[Any],
        accumulators: Sequence[npt.NDArray[Any]],
    ) -> None:
        """Add the values of rows, cut off at the thresholds of their groups, to the sums that they are part of."""
        import numpy as np

        codes = block["code"].astype(np.intp)  # numpy would convert other types at each lookup
        places = self.place_of(block["invocation"])
        values = []
        for metric, of_groups in enumerate(thresholds):
            column = block[value_column(metric)]
            narrow = np.minimum(of_groups, np.iinfo(column.dtype).max).astype(column.dtype)
            values.append(np.minimum(column, narrow[codes]))
        limit = len(rounds[0].numbers)
        for addition in rounds:
            if len(addition.numbers) < limit:
                limit = len(addition.numbers)
                remaining = np.flatnonzero(codes < limit)
                codes, places = codes[remaining], places[remaining]
                values = [of_metric[remaining] for of_metric in values]
            cells = addition.numbers[codes] * self.scan.invocations.count + places
            for sums, of_metric, factors in zip(accumulators, values, addition.factors, strict=True):
                for part in np.flatnonzero(factors.any(axis=1)):
                    np.add.at(sums[part].reshape(-1), cells, of_metric * factors[part][codes])
