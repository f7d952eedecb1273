"""Percentiles of the single values of events.

They are of one target or of several together (a *pool*). Those of a pool are found in two steps, so that only the
values near a percentile are ever sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import PerCall
from tracemap.attribution.scan.metrics import value_column
from tracemap.attribution.scan.tables import Tables

# Roots are rounded correctly, so that larger values never have smaller buckets; one is about a hundredth wide.
_BUCKET = "CAST(sign({0}) * floor(sqrt(sqrt(abs(CAST({0} AS DOUBLE)))) * 16) AS BIGINT)"

# First counts by bucket, which tell the bucket of each percentile and its rank there; then only values of these buckets
# are looked at one by one. Rank k of n is the least k with k/n >= p.
_POOLED = """
WITH member AS (SELECT DISTINCT target FROM pools),
     counted AS MATERIALIZED (SELECT target, {bucket} AS bucket, count(*) AS n FROM resolved SEMI JOIN member
                              USING (target) WHERE {value} IS NOT NULL GROUP BY ALL),
     pooled AS (SELECT pool, bucket, sum(n) AS n FROM counted JOIN pools USING (target) GROUP BY ALL),
     ranked AS (SELECT pool, bucket, n, sum(n) OVER (PARTITION BY pool ORDER BY bucket) AS upto,
                       sum(n) OVER (PARTITION BY pool) AS total FROM pooled),
     wanted AS MATERIALIZED (
        SELECT pool, tenths, bucket, (total * tenths + 9) // 10 - (upto - n) AS place
        FROM ranked, (VALUES (1), (5), (9)) AS percentile(tenths)
        WHERE (total * tenths + 9) // 10 > upto - n AND (total * tenths + 9) // 10 <= upto),
     needed AS (SELECT DISTINCT target, bucket FROM wanted JOIN pools USING (pool)),
     value AS (SELECT target, {bucket} AS bucket, {value} AS value, count(*) AS n
               FROM resolved SEMI JOIN needed ON resolved.target = needed.target AND {bucket} = needed.bucket
               GROUP BY ALL),
     placed AS (SELECT pool, tenths, value, place, sum(sum(n)) OVER (PARTITION BY pool, tenths ORDER BY value) AS upto
                FROM value JOIN pools USING (target) JOIN wanted USING (pool, bucket)
                GROUP BY pool, tenths, value, place)
SELECT pool, [min(value) FILTER (tenths = 1), min(value) FILTER (tenths = 5), min(value) FILTER (tenths = 9)]
FROM placed WHERE upto >= place GROUP BY pool ORDER BY pool
"""

Spread = Mapping[str, PerCall]
"""Percentiles by metric name; no entry where no event has a value."""


def quantiles(value: str) -> str:
    """The aggregate of a column that `per_call` takes."""
    return f"quantile_disc({value}, [0.1, 0.5, 0.9])"


def per_call(names: Sequence[str], lists: Sequence[Sequence[int] | None]) -> Spread:
    """The percentiles of each metric from its list in SQL."""
    return {
        name: PerCall(median=values[1], p10=values[0], p90=values[2])
        for name, values in zip(names, lists, strict=True)
        if values is not None and values[0] is not None
    }


def pooled(
    tables: Tables, names: Sequence[str], pools: Sequence[frozenset[int]], events_of: Mapping[int, int]
) -> dict[frozenset[int], Spread]:
    """The percentiles of the events in `resolved` of several targets together.

    Args:
        tables: the connection.
        names: the metrics, in the order of their columns.
        pools: sets of numbers of targets.
        events_of: how many events each target has.
    """
    if not pools:
        return {}
    rows = [(pool, target) for pool, targets in enumerate(pools) for target in sorted(targets)]
    tables.fill("pools", "pool INTEGER, target INTEGER", rows)
    values = sum(events_of.get(target, 0) for _, target in rows)
    # All values of each pool at once are as good as long as that is not more than there are altogether.
    find = pooled_at_once if values <= sum(events_of.values()) else pooled_in_steps
    found = dict(find(tables, names))
    return {targets: found.get(pool, {}) for pool, targets in enumerate(pools)}


def pooled_at_once(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """For few pools: all values of each. By the number of the pool in the table `pools`."""
    columns = ", ".join(("pool", *(quantiles(value_column(number)) for number in range(len(names)))))
    rows = tables.query(f"SELECT {columns} FROM resolved JOIN pools USING (target) GROUP BY pool")
    return {pool: per_call(names, lists) for pool, *lists in rows}


def pooled_in_steps(tables: Tables, names: Sequence[str]) -> dict[int, Spread]:
    """For pools that share many targets: only the values that lie near a percentile."""
    found: dict[int, dict[str, PerCall]] = {}
    for number, name in enumerate(names):
        value = value_column(number)
        for pool, values in tables.query(_POOLED.format(value=value, bucket=_BUCKET.format(value))):
            found.setdefault(pool, {}).update(per_call([name], [values]))
    return dict(found)
