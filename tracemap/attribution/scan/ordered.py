"""The values of each group in order, at given fractions of its calls: the aggregate for them, or tables to be joined.

The aggregate keeps all values in memory. Of so many events that it could not, values are counted first: DuckDB spills
groups to disk, but no lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.rows import BYTES_OF_VALUE, Resolved

_KEPT = 0.15
"""The part of the memory that values may take while they are kept to be put in order."""

_AT_ONCE = ", quantile_disc({value}, [{fractions}]) AS ordered_{number}"
# Rank k of n is the least k with k/n >= p, as the aggregate has it; products of decimals are exact.
_COUNTED = """
WITH counted AS (SELECT target{shape}, {value} AS value, count(*) AS n FROM resolved
                 WHERE target >= 0 AND {value} IS NOT NULL GROUP BY ALL),
     ranked AS (SELECT *, sum(n) OVER (PARTITION BY target{shape} ORDER BY value) AS upto,
                       CAST(sum(n) OVER (PARTITION BY target{shape}) AS DECIMAL(20, 0)) AS total FROM counted)
SELECT target{shape}, [{ordered}] AS ordered_{number} FROM ranked GROUP BY ALL
"""
_FIRST_FROM = "min(value) FILTER (upto >= greatest(ceil(total * {fraction}), 1))"


@dataclass(frozen=True, slots=True)
class Ordered:
    """What gives the columns `ordered_0`, `ordered_1` … of the metrics: `columns` of a group-by, or `joins` with it."""

    columns: str
    joins: str


def ordered_values(resolved: Resolved, fractions: Sequence[float]) -> Ordered:
    """The values of each target and shape at these fractions, which lie between 0 and 1."""
    numbers = range(len(resolved.metrics))
    listed = list(map(str, fractions))
    if resolved.rows * len(numbers) * BYTES_OF_VALUE <= _KEPT * resolved.tables.memory_bytes:
        column = (
            _AT_ONCE.format(value=value_column(number), fractions=", ".join(listed), number=number)
            for number in numbers
        )
        return Ordered("".join(column), "")
    shape = ", shape" if resolved.has_shapes else ""
    ordered = ", ".join(_FIRST_FROM.format(fraction=fraction) for fraction in listed)
    for number in numbers:
        query = _COUNTED.format(shape=shape, value=value_column(number), ordered=ordered, number=number)
        resolved.tables.make(f"ordered_{number}", query)
    return Ordered("", "".join(f" LEFT JOIN ordered_{number} USING (target{shape})" for number in numbers))
