"""The table of events while a recording is assembled.

The profile provides timed rows, counters add columns to the dispatches, sampling and simulation add `step` rows. The
column `row` has the order of the rows until the run is written; the run has no such column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracemap.runs.columns import LAUNCH, LAUNCH_NAME
from tracemap.runs.sql import first_integer, quoted

if TYPE_CHECKING:
    import duckdb


# The union of a submission's dispatches, clipped to the submission: on several workers they overlap. Events without
# times are excluded, because `greatest` and `least` ignore a NULL and would cover everything.
_COVERED_SQL = """
WITH event AS (SELECT {columns}, kind, start_ns, start_ns + duration_ns AS end_ns FROM {events}
               WHERE kind IN ('dispatch', 'execute') AND start_ns IS NOT NULL AND duration_ns IS NOT NULL
               AND submission_id IS NOT NULL),
     span AS (SELECT {columns}, start_ns AS span_start, end_ns AS span_end FROM event WHERE kind = 'execute'),
     part AS (SELECT span.{key}, greatest(start_ns, span_start) AS s, least(end_ns, span_end) AS e
              FROM event JOIN span USING (submission_id) WHERE kind = 'dispatch'),
     ordered AS (SELECT {key}, s, e, max(e) OVER (PARTITION BY {key} ORDER BY s, e
                                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
                 FROM part)
SELECT {key}, greatest(0, e - greatest(s, coalesce(reached, s))) AS covered_ns FROM ordered
"""


def covered_sql(events: str, key: str) -> str:
    """A SELECT of (key, covered_ns): the time of an execute in which dispatches of its submission ran.

    An execute has one row per dispatch, with the time that no earlier dispatch covers. Their sum is the time in which
    any of them ran.

    Args:
        events: a table or subquery with columns kind, submission_id, start_ns and duration_ns.
        key: the column that identifies executes.
    """
    columns = ", ".join(dict.fromkeys((key, "submission_id")))
    return _COVERED_SQL.format(events=events, columns=columns, key=key)


# A join, because an UPDATE would keep the old rows in memory.
_WITH_COVERED = """
(SELECT event.* REPLACE (CASE WHEN kind = 'execute' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL
                         THEN coalesce(covered.ns, 0) ELSE covered_ns END AS covered_ns)
 FROM {events} AS event LEFT JOIN (SELECT row, CAST(sum(covered_ns) AS BIGINT) AS ns FROM ({parts}) GROUP BY row)
 AS covered USING (row))
"""


class EventTable:
    """The events of one execution, or of several launches of one program, in a DuckDB table.

    Attributes:
        connection: the connection with the table; other SQL may join it.
        name: the name of the table. Its columns are those of `model.COLUMNS`, metrics, and `row`, the position in which
            the row will be written, from 1.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
        """Create the table from a SELECT, whose column `row` is the event's position in its source file."""
        self.connection = connection
        self.name = name
        connection.execute(f"CREATE OR REPLACE TABLE {name} AS {query}")
        # The order in which workers report need not be the order of the work.
        self.sort("start_ns", _WITH_COVERED.format(events=name, parts=covered_sql(name, "row")))

    @property
    def dispatches(self) -> str:
        """A subquery of the dispatches; column `submitted` numbers the dispatches of a kernel in order of submission.

        The program decides that order, so equal numbers are the same work in every execution.
        """
        number = "row_number() OVER (PARTITION BY kernel ORDER BY submission_id, command_index, row)"
        return f"(SELECT *, {number} AS submitted FROM {self.name} WHERE kind = 'dispatch')"

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._rows("true")

    @property
    def measured(self) -> int:
        """Number of rows of measured invocations, without `step` rows."""
        return self._rows("NOT warmup AND kind <> 'step'")

    def _rows(self, which: str) -> int:
        return first_integer(self.connection, f"SELECT count(*) FROM {self.name} WHERE {which}")

    def add_counts(self, query: str, names: Sequence[str]) -> int:
        """Add columns of counts to the dispatches; they are NULL in other rows.

        Args:
            query: a SELECT of kernel, submitted, and the counts in the order of `names`.
            names: the columns to add.

        Returns:
            The number of dispatches without counts.
        """
        cells = ", ".join(map(quoted, names))
        columns = ", ".join(("kernel", "submitted", *map(quoted, names)))
        self.connection.execute(f"""
            CREATE OR REPLACE TABLE {self.name} AS
            WITH counts({columns}) AS ({query}),
                 counted AS (SELECT row, true AS is_counted, {cells} FROM {self.dispatches} AS dispatch
                             JOIN counts USING (kernel, submitted))
            SELECT event.*, is_counted, {cells} FROM {self.name} AS event LEFT JOIN counted USING (row)
            ORDER BY row
        """)
        without = self._rows("kind = 'dispatch' AND is_counted IS NULL")
        self.connection.execute(f"ALTER TABLE {self.name} DROP COLUMN is_counted")
        return without

    def add_rows(self, query: str) -> None:
        """Append the rows of a SELECT in its order, and add its new columns."""
        rows, known = self.connection.sql(query), self.connection.table(self.name).columns
        for name, kind in zip(rows.columns, rows.types, strict=True):
            if name not in known:
                self.connection.execute(f"ALTER TABLE {self.name} ADD COLUMN {quoted(name)} {kind}")
        # A window without an order keeps the order of the query.
        self.connection.execute(
            f"INSERT INTO {self.name} BY NAME "
            f"SELECT (SELECT coalesce(max(row), 0) FROM {self.name}) + row_number() OVER () AS row, * FROM ({query})"
        )

    def sort(self, keys: str, rows: str = "") -> None:
        """Sort the rows by keys, NULL last; rows with equal keys keep their order.

        Args:
            keys: columns of the table; `row` keeps the order.
            rows: a subquery that changes cells of the rows; empty: the rows stay as they are.
        """
        # A row_number without its own order streams instead of materializing.
        self.connection.execute(
            f"CREATE OR REPLACE TABLE {self.name} AS SELECT row_number() OVER () AS row, * "
            f"FROM (SELECT * EXCLUDE row FROM {rows or self.name} ORDER BY {keys}, row)"
        )

    def launched_work(self) -> list[str]:
        """The names of launches, copies and fills in the program's order, for tables with `columns.LAUNCH`."""
        query = f"SELECT {LAUNCH_NAME} FROM {self.name} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
        return [str(kernel) for (kernel,) in self.connection.execute(query).fetchall()]

    def set_sites(self, sites: Sequence[str]) -> None:
        """Set the site of each launch and the transfer of each copy and fill, in the program's order ("": unknown).

        Drops the column of the order.
        """
        import numpy as np

        located = {"launch": np.arange(len(sites), dtype=np.int64), "site": np.array([*sites], dtype=object)}
        self.connection.register("located_launches", located)
        number = f"(SELECT *, CASE WHEN {LAUNCH} IS NOT NULL THEN row_number() OVER (PARTITION BY {LAUNCH} IS NULL "
        number += f"ORDER BY {LAUNCH}) - 1 END AS launch FROM {self.name})"
        rows = f"""(SELECT event.* EXCLUDE ({LAUNCH}, launch) REPLACE (nullif(located.site, '') AS site)
            FROM {number} AS event LEFT JOIN located_launches AS located USING (launch))"""
        self.sort("row", rows)
        self.connection.unregister("located_launches")

    def in_order(self) -> duckdb.DuckDBPyRelation:
        """The rows in the order in which they are written, which is that of the table."""
        return self.connection.sql(f"SELECT * EXCLUDE row FROM {self.name}")
