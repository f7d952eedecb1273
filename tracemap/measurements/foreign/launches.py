"""Launches of kernels on a GPU, as tools of its maker list them: a table of events, and the order where it tells sites.

On one queue (a stream of CUDA's) kernels run in the order in which they were launched, which the program has: then
each row has its place in it, and attribution finds the site (`attribution.join.launches`). Of several queues no order
is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.columns import LAUNCH
from tracemap.measurements.sql import fill, quoted

if TYPE_CHECKING:
    import duckdb

TABLE: Final = "gpu_launches"
QUEUE: Final = "thread"
"""The column of the queue that a row ran on, of which all of one process, device and stream have the same."""
EVENT_COLUMNS: Final = {
    "kind": "VARCHAR",
    "kernel": "VARCHAR",
    QUEUE: "VARCHAR",
    "start_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "workgroups_x": "BIGINT",
    "workgroups_y": "BIGINT",
    "workgroups_z": "BIGINT",
}
_PART: Final = 1_000_000
"""Cells that are handed over at once."""
_QUEUES: Final = f"SELECT count(DISTINCT {QUEUE}) FROM {TABLE} WHERE kind = 'dispatch'"
_NUMBERED: Final = f"""
SELECT * EXCLUDE number, CASE WHEN kind = 'dispatch' THEN
    row_number() OVER (PARTITION BY kind = 'dispatch' ORDER BY start_ns, number) - 1 END AS {LAUNCH}
FROM {TABLE} ORDER BY start_ns, number
"""
_PLAIN: Final = f"SELECT * EXCLUDE number FROM {TABLE} ORDER BY start_ns, number"


def fill_launches(
    connection: duckdb.DuckDBPyConnection, metrics: Mapping[str, str], rows: Iterable[tuple[Any, ...]]
) -> int:
    """Make the table of rows with `EVENT_COLUMNS` and metrics (names and SQL types); how many there are."""
    columns = {"number": "BIGINT", **EVENT_COLUMNS, **{quoted(name): kind for name, kind in metrics.items()}}
    fill(connection, TABLE, columns, ())
    count = 0
    iterator = iter(rows)
    while part := [
        (number, *row) for number, row in enumerate(itertools.islice(iterator, 1 + _PART // len(columns)), count)
    ]:
        fill(connection, f"{TABLE}_part", columns, part)
        connection.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE}_part")
        count += len(part)
    return count


def select_launches(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[duckdb.DuckDBPyRelation, tuple[Diagnostic, ...]]:
    """The events of the table, in order, and what is to be said of them."""
    ((queues,),) = connection.execute(_QUEUES).fetchall()
    if queues <= 1:
        return connection.sql(_NUMBERED), ()
    text = (
        f"kernels ran on {queues} queues (processes, devices or streams), which tell no order: which site of a shared "
        "kernel a launch was of is not known"
    )
    return connection.sql(_PLAIN), (Diagnostic("several-queues", text),)
