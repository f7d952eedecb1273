"""Distributions of weighted sums of events over invocations: the share of an op at several sites.

Most ops need no such sum: the distribution of a single target that runs once per invocation is known already. For the
others, the rows of their targets are read again in blocks, and added up for a bounded number of sums at a time. Time
grows with rows times sums per row; memory does not.
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
from tracemap.attribution.scan.outliers import largest_column, threshold_column
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
sum(events * greatest(abs(CAST(least_{number} AS HUGEINT)), {largest}[1])) END
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
    distributions = {weighted: _known_distributions(scan, weighted) for weighted in sums}
    remaining = [weighted for weighted, known in distributions.items() if weighted and len(known) < len(scan.metrics)]
    if not remaining:
        return distributions
    rows = _Rows(tables, scan, place_of(tables, scan.invocations), _parts(tables, len(scan.metrics)))
    rest = iter(remaining)
    at_a_time = max(1, tables.memory_bytes // _MEMORY_DIVISOR // (_BYTES_OF_SUM * count * len(scan.metrics)))
    while batch := list(islice(rest, at_a_time)):
        distributions.update(zip(batch, rows.distributions(batch), strict=True))
    return distributions


def zero_distribution(scan: Scan) -> PerInvocation:
    """The distribution of a sum without events."""
    low, high = (0, 0) if scan.invocations.interval else (UNKNOWN, UNKNOWN)
    return PerInvocation(median=0, median_low=low, median_high=high, p10=0, p90=0, max=0)


def _known_distributions(scan: Scan, weighted: Weighted) -> Mapping[str, PerInvocation]:
    """The distributions that the scan has already: those of a single target with weight 1."""
    if [weight for _, weight in weighted] != [UNIT]:
        return {}
    ((target, _),) = weighted
    return scan.by_target[target].per_invocation


@dataclass(frozen=True, slots=True)
class _Parts:
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


def _parts(tables: Tables, metrics: int) -> list[_Parts]:
    """The split of weights for each metric."""
    columns = (_BOUND.format(number=number, largest=largest_column(number)) for number in range(metrics))
    (bounds,) = tables.query(f"SELECT {', '.join(columns)} FROM groups WHERE target >= 0")
    return [_parts_within(int(bound or 0)) for bound in bounds]


def _parts_within(bound: int) -> _Parts:
    bits = 61 - bound.bit_length()
    if bits < 1:
        return _Parts(_BITS, 1, fit=False)
    return _Parts(min(bits, _BITS), max(1, -(-_BITS // bits)), fit=True)


@dataclass(frozen=True, slots=True)
class _Round:
    """The n-th sum of every group that is part of at least n sums: its number, and the parts of the group's weight.

    Groups have codes in descending order of their number of sums, so a round covers all codes below some limit.
    """

    numbers: npt.NDArray[Any]
    factors: Sequence[npt.NDArray[Any]]
    """For each metric, an array indexed by part and code."""


def _rounds(pairs: Sequence[Sequence[tuple[int, int]]], parts: Sequence[_Parts]) -> list[_Round]:
    """The rounds of additions for each row.

    Args:
        pairs: (sum number, weight) of the sums that a group is part of, by the group's code.
        parts: the split of weights for each metric.
    """
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


def _clipped(values: npt.NDArray[Any], thresholds: npt.NDArray[Any], codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values, cut off at the outlier thresholds of their groups, in the same integer type."""
    import numpy as np

    narrow: npt.NDArray[Any] = np.minimum(thresholds, np.iinfo(values.dtype).max).astype(values.dtype)
    clipped: npt.NDArray[Any] = np.minimum(values, narrow[codes])
    return clipped


@dataclass(frozen=True, slots=True)
class _Rows:
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
        groups = sorted(self._groups(sums_of_target), key=lambda group: -len(sums_of_target[group[0]]))
        coded = [(target, shape, code) for code, (target, shape, *_) in enumerate(groups)]
        self.tables.fill("coded", "target INTEGER, shape BIGINT, code INTEGER", coded)
        rounds = _rounds([sums_of_target[target] for target, *_ in groups], self.parts)
        thresholds = np.array([thresholds for _, _, *thresholds in groups], np.int64).T
        for block in self._blocks() if rounds else ():
            self._add(block, rounds, thresholds, accumulators)
        for number in range(len(sums)):
            yield {
                metric.name: self._distribution(parts.rounded(values[:, number]))
                for metric, parts, values in zip(self.scan.metrics, self.parts, accumulators, strict=True)
            }

    def _groups(self, targets: Iterable[int]) -> list[Row]:
        """The groups of some targets: target, shape, and a threshold for each metric (the largest integer if none)."""
        self.tables.fill("summed", "target INTEGER", [(target,) for target in targets])
        thresholds = (f"coalesce({threshold_column(number)}, {MAX_INTEGER})" for number in range(len(self.parts)))
        columns = ", ".join(("target", "shape", *thresholds))
        return self.tables.query(f"SELECT {columns} FROM groups SEMI JOIN summed USING (target) ORDER BY target, shape")

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
        values = [
            _clipped(block[value_column(metric)], of_groups, codes) for metric, of_groups in enumerate(thresholds)
        ]
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

    def _distribution(self, values: npt.NDArray[Any]) -> PerInvocation:
        """The distribution of sums, one per invocation."""
        import numpy as np

        places = [rank - 1 for rank in self.scan.invocations.ranks]
        ordered = np.partition(values, places)
        return spread(int(ordered[place]) for place in places)
