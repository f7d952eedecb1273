"""The events of a recording while it is put together: one table, which everything that saw something adds to.

The profile gives rows of what was timed, counting adds columns to the dispatches, sampling and simulating add rows of
steps. The order of the rows is the column `row` until the run is written, which has no such column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracemap.measurements.sql import quoted

if TYPE_CHECKING:
    import duckdb

# The union of a submission's dispatches, clipped to it: on several workers they overlap. Events without times cover
# nothing; `greatest` and `least` would pass over a NULL and take it for all that is left.
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
    """A SELECT of (key, covered_ns): in which parts of an execute's duration its submission's dispatches ran.

    An execute has as many rows as dispatches; what one covers that an earlier one does not is in its row, so sums are
    the part in which any of them ran.

    Args:
        events: a table or subquery with columns kind, submission_id, start_ns and duration_ns.
        key: its column that tells executes apart.
    """
    columns = ", ".join(dict.fromkeys((key, "submission_id")))
    return _COVERED_SQL.format(events=events, columns=columns, key=key)


# Joined, as what an UPDATE changes is kept in memory as it was.
_WITH_COVERED = """
(SELECT event.* REPLACE (CASE WHEN kind = 'execute' AND start_ns IS NOT NULL AND duration_ns IS NOT NULL
                         THEN coalesce(covered.ns, 0) ELSE covered_ns END AS covered_ns)
 FROM {events} AS event LEFT JOIN (SELECT row, CAST(sum(covered_ns) AS BIGINT) AS ns FROM ({parts}) GROUP BY row)
 AS covered USING (row))
"""


class EventTable:
    """The events of one execution, or of several launches of one program, in a table of DuckDB.

    Attributes:
        connection: holds the table; SQL of others may join it.
        name: of the table: columns as in `model.COLUMNS`, metrics, and `row`, which counts from 1 in the order in which
            rows will be written.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
        """Make the table of a SELECT, whose column `row` is an event's place in the file that it comes from."""
        self.connection = connection
        self.name = name
        connection.execute(f"CREATE OR REPLACE TABLE {name} AS {query}")
        # Workers report in the order in which they get to it, which need not be that of the work.
        self._sort(_WITH_COVERED.format(events=name, parts=covered_sql(name, "row")), "start_ns")

    @property
    def dispatches(self) -> str:
        """A subquery of the dispatches; column `submitted` numbers those of a kernel in the order of submission.

        The program itself decides that order, so equal numbers are equal work, whichever execution it was.
        """
        number = "row_number() OVER (PARTITION BY kernel ORDER BY submission_id, command_index, row)"
        return f"(SELECT *, {number} AS submitted FROM {self.name} WHERE kind = 'dispatch')"

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._rows("true")

    @property
    def measured(self) -> int:
        """How many rows are of measured calls, and of events, not of steps inside of them."""
        return self._rows("NOT warmup AND kind <> 'step'")

    def _rows(self, which: str) -> int:
        ((count,),) = self.connection.execute(f"SELECT count(*) FROM {self.name} WHERE {which}").fetchall()
        return int(count)

    def add_counts(self, query: str, names: Sequence[str]) -> int:
        """Add columns of counts to the dispatches; other rows have none.

        Args:
            query: a SELECT of kernel, submitted, and the counts in the order of `names`.
            names: the columns to add.

        Returns:
            How many dispatches have no counts.
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
        missing = f"SELECT count(*) FROM {self.name} WHERE kind = 'dispatch' AND is_counted IS NULL"
        ((without,),) = self.connection.execute(missing).fetchall()
        self.connection.execute(f"ALTER TABLE {self.name} DROP COLUMN is_counted")
        return int(without)

    def add_rows(self, query: str) -> None:
        """Add the rows of a SELECT behind those that are there, in its order; columns that are new are added too."""
        known = {name for name, *_ in self._described(self.name)}
        for name, kind, *_ in self._described(f"({query})"):
            if name not in known:
                self.connection.execute(f"ALTER TABLE {self.name} ADD COLUMN {quoted(name)} {kind}")
        # A window without an order goes by the rows as they come, which is the query's own order.
        self.connection.execute(
            f"INSERT INTO {self.name} BY NAME "
            f"SELECT (SELECT coalesce(max(row), 0) FROM {self.name}) + row_number() OVER () AS row, * FROM ({query})"
        )

    def _described(self, source: str) -> list[tuple[str, ...]]:
        return self.connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()

    def rewrite(self, rows: str) -> None:
        """Make the table anew of a subquery that changes cells of its rows; their order stays."""
        self._sort(rows, "row")

    def sort(self, keys: str) -> None:
        """Order the rows anew, with NULL behind; what the keys do not tell apart stays as it is."""
        self._sort(self.name, keys)

    def _sort(self, rows: str, keys: str) -> None:
        """Make the table of rows in an order. What is numbered without a window's own order need not be kept whole."""
        self.connection.execute(
            f"CREATE OR REPLACE TABLE {self.name} AS SELECT row_number() OVER () AS row, * "
            f"FROM (SELECT * EXCLUDE row FROM {rows} ORDER BY {keys}, row)"
        )

    def in_order(self) -> duckdb.DuckDBPyRelation:
        """The rows as they are written: the table holds them in their order, and a scan keeps it."""
        return self.connection.sql(f"SELECT * EXCLUDE row FROM {self.name}")
