"""The tables that `Attribution.sql` queries: map, costs and events under documented, stable names.

`docs/sql.md` describes them for users. If a query has names of tables, only these are built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.attribution.model import Attribution
from tracemap.core.errors import QueryInvalid
from tracemap.core.sanitize import without_controls
from tracemap.core.units import MAX_INTEGER
from tracemap.map.model import Membership, Op, TraceGraph
from tracemap.map.query import python_frame, scope_of, scopes_of
from tracemap.results.display import AsTable, Columns, Value, cell_of, heading, table
from tracemap.runs.columns import events_sql
from tracemap.runs.runfile import read_run
from tracemap.runs.sql import fill_table, open_database, quoted

if TYPE_CHECKING:
    import duckdb

Rows = Iterator[tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: SQL types by column, and its rows. Columns of unknown values are nullable; integers are 64 bits wide."""

    columns: Mapping[str, str]
    rows: Callable[[TraceGraph, Attribution], Rows]


_MOST_SHOWN: Final = 50
"""Rows in a notebook."""


@dataclass(frozen=True, repr=False, eq=False)
class QueryResult(AsTable):
    """Rows of a query, in order. Iterate over them, or convert them to Arrow or pandas.

    `columns`: names; `rows`: tuples of Python values, None for NULL.

    Example:
        >>> result = tracemap.attribute("run.parquet", "model.tracemap")
        >>> result.sql("SELECT op, line FROM ops WHERE outcome = 'dispatched' ORDER BY line LIMIT 1").rows
        [('op2', 15)]
    """

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]

    def __iter__(self) -> Iterator[tuple[Value, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _columns(self) -> Columns:
        return {name: [row[index] for row in self.rows] for index, name in enumerate(self.columns)}

    def __repr__(self) -> str:
        return f"QueryResult({len(self.rows)} rows: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        shown = [["" if cell is None else str(cell) for cell in row] for row in self.rows[:_MOST_SHOWN]]
        more = len(self.rows) - len(shown)
        return table(self.columns, shown, len(self.columns)) + (heading(f"… {more} more") if more > 0 else "")


def query(graph: TraceGraph, attribution: Attribution, runs: Sequence[Path], text: str) -> QueryResult:
    """Execute a query in DuckDB's SQL.

    Args:
        graph: the map.
        attribution: the costs.
        runs: files of the table `events`.
        text: one statement that reads.

    Raises:
        QueryInvalid: the text is not one statement that reads, the database refuses it, or a number in a table has more
            than 64 bits.
        RunInvalid: a run is damaged.
    """
    import duckdb

    words = {word.lower() for word in re.findall(r"\w+", text)}
    named = words & {*TABLES, EVENTS}
    with open_database() as connection:
        # A query that reads an address would download and load software.
        connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        statement = _only_statement(connection, text)
        for name, each in TABLES.items():
            if name in named or not named:
                _fill(connection, name, each, list(each.rows(graph, attribution)))
        if EVENTS in named or (runs and not named):
            connection.execute(f"CREATE TEMP VIEW {EVENTS} AS {_events(runs)}")
        try:
            done = connection.execute(statement)
            names = [column[0] for column in done.description or ()]
            rows = done.fetchall()
        except duckdb.Error as error:
            raise _refusal(error) from error
    return QueryResult(_distinct(names), rows)


def _only_statement(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    """The statement of a query, which only reads.

    Others would write files (COPY), install software (INSTALL), or change tables that the next query builds anew.

    Raises:
        QueryInvalid: there is none, or another one, or it is not SQL.
    """
    import duckdb

    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryInvalid(f"the query fails: character {error.start + 1} is half of a UTF-16 pair") from error
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise _refusal(error) from error
    if not statements:
        raise QueryInvalid("the query has no statement; write SELECT … FROM ops")
    if len(statements) > 1:
        raise QueryInvalid(f"the query has {len(statements)} statements; pass one statement to each call of sql")
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI):  # PIVOT is MULTI
        kind = statements[0].type.name
        raise QueryInvalid(f"the query is the statement {kind}; only queries that read are executed: SELECT … FROM ops")
    return statements[0]


def _refusal(error: duckdb.Error) -> QueryInvalid:
    """The database's sentence, with its suggestions of similar names, but without the excerpt of the query."""
    reason, _, more = str(error).partition("\n")
    suggestions = [line for line in more.splitlines() if line.startswith(("Did you mean", "Candidate "))]
    return QueryInvalid(
        without_controls("; ".join([f"the query fails: {reason}", *suggestions]))
        + f"; the tables are {', '.join([*TABLES, EVENTS])} (docs/sql.md)"
    )


def _fill(connection: duckdb.DuckDBPyConnection, name: str, each: Table, rows: list[tuple[Value, ...]]) -> None:
    for row in rows:
        for cell in row:
            if isinstance(cell, int) and abs(cell) > MAX_INTEGER:
                raise QueryInvalid(f"{cell} in the table {name} has more than 64 bits, which SQL cannot hold")
    fill_table(connection, name, {quoted(column): kind for column, kind in each.columns.items()}, rows)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names of columns, with a number after those that occur again."""
    found: dict[str, None] = {}
    for name in names:
        number, candidate = 1, name
        while candidate in found:
            number += 1
            candidate = f"{name}_{number}"
        found[candidate] = None
    return tuple(found)


# ---- tables


def _ops(graph: TraceGraph, attribution: Attribution) -> Rows:
    by_id = {result.op: result for result in attribution.ops}
    for op in graph.ops:
        frame, result = python_frame(graph, op), by_id.get(op.id)
        yield (
            *(str(op.id), op.name, cell_of(op.function), cell_of(op.file), cell_of(op.line), _first_scope(graph, op)),
            *(frame.file if frame else None, frame.line if frame else None, op.outcome.value, op.reason.text),
            cell_of(result.calls) if result else None,
        )


def _first_scope(graph: TraceGraph, op: Op) -> str:
    return "/".join(next(iter(scopes_of(graph, op)), ()))


def _scope(graph: TraceGraph, member: Membership) -> str:
    """The scope of an op by the calls that lead to it in this dispatch."""
    return "/".join(scope_of(graph, graph.op_by_id[member.op], member.path))


def _dispatches(graph: TraceGraph, attribution: Attribution) -> Rows:
    by_id = {result.site: result for result in attribution.sites}
    for site in graph.sites:
        result = by_id.get(site.id)
        yield (
            *(site.id, site.ordinal, cell_of(site.function), site.kernel, site.initializer),
            cell_of(result.calls) if result else None,
            cell_of(result.tiles) if result else None,
            cell_of(result.imbalance_percent) if result else None,
        )


def _members(graph: TraceGraph, _attribution: Attribution) -> Rows:
    for site in graph.sites:
        for member in site.members:
            scope, evidence = _scope(graph, member), member.evidence.value
            yield (
                *(site.id, str(member.op), scope, evidence, member.root, cell_of(member.operations)),
                *(cell_of(member.bytes_read), cell_of(member.bytes_written)),
            )


def _kernel_lines(graph: TraceGraph, _attribution: Attribution) -> Rows:
    for kernel in graph.kernels:
        for step in kernel.steps:
            for op in step.ops or (None,):
                yield kernel.name, step.line, step.op_name, op if op is None else str(op)


def _op_costs(_graph: TraceGraph, attribution: Attribution) -> Rows:
    for result in attribution.ops:
        for metric, cost in result.metrics.items():
            yield (
                *(str(result.op), metric, cost.attributed, cost.inclusive, cost.low, cost.high),
                *(cell_of(cost.likely_low), cell_of(cost.likely_high), cost.uncertain),
                cell_of(cost.per_invocation.median),
            )


def _dispatch_costs(_graph: TraceGraph, attribution: Attribution) -> Rows:
    for result in attribution.sites:
        for metric, cost in result.metrics.items():
            per_call = cost.per_call
            spread = (per_call.median, per_call.p10, per_call.p90) if per_call else (None, None, None)
            yield result.site, metric, cost.total, cost.outliers, result.nobody.get(metric, 0), *spread


def _shares(graph: TraceGraph, attribution: Attribution) -> Rows:
    for result in attribution.sites:
        for share, member in zip(result.shares, graph.site_by_id[result.site].members, strict=True):
            for metric, attributed in share.attributed.items():
                yield result.site, str(share.op), _scope(graph, member), metric, attributed, share.estimated
    for transfer in attribution.transfers:
        for share in transfer.shares:
            scope = _first_scope(graph, graph.op_by_id[share.op])
            for metric, attributed in share.attributed.items():
                yield transfer.transfer, str(share.op), scope, metric, attributed, share.estimated


def _transfers(graph: TraceGraph, attribution: Attribution) -> Rows:
    calls = {result.transfer: result.calls for result in attribution.transfers}
    for each in graph.transfers:
        yield each.id, each.kind, cell_of(each.function), cell_of(each.bytes), cell_of(calls.get(each.id))


def _unattributed(_graph: TraceGraph, attribution: Attribution) -> Rows:
    for row in attribution.unattributed:
        for metric, value in row.metrics.items():
            yield row.reason.value, metric, value, cell_of(row.events)


def _metrics(_graph: TraceGraph, attribution: Attribution) -> Rows:
    for each in attribution.metrics:
        yield (
            *(each.name, each.unit, each.measured, each.attributed, each.unattributed, each.work),
            cell_of(each.invocations),
        )


def _typed(texts: str) -> Mapping[str, str]:
    """Columns from `name name:TYPE …`; a text has no type."""
    pairs = (word.partition(":") for word in texts.split())
    return {name: kind or "VARCHAR" for name, _, kind in pairs}


TABLES: Final[Mapping[str, Table]] = {
    "ops": Table(
        _typed("op name function file line:BIGINT scope python_file python_line:BIGINT outcome reason calls:BIGINT"),
        _ops,
    ),
    "dispatches": Table(
        _typed(
            "dispatch ordinal:BIGINT function kernel initializer:BOOLEAN calls:BIGINT tiles:BIGINT "
            "imbalance_percent:BIGINT"
        ),
        _dispatches,
    ),
    "members": Table(
        _typed("dispatch op scope evidence root:BOOLEAN operations:BIGINT bytes_read:BIGINT bytes_written:BIGINT"),
        _members,
    ),
    "kernel_lines": Table(_typed("kernel line:BIGINT operation op"), _kernel_lines),
    "transfers": Table(_typed("transfer kind function bytes:BIGINT calls:BIGINT"), _transfers),
    "metrics": Table(
        _typed(
            "metric unit measured:BIGINT attributed:BIGINT unattributed:BIGINT work:BIGINT invocations:BIGINT",
        ),
        _metrics,
    ),
    "op_costs": Table(
        _typed(
            "op metric attributed:BIGINT inclusive:BIGINT low:BIGINT high:BIGINT likely_low:BIGINT likely_high:BIGINT "
            "uncertain:BOOLEAN median_per_invocation:BIGINT"
        ),
        _op_costs,
    ),
    "dispatch_costs": Table(
        _typed(
            "dispatch metric total:BIGINT outliers:BIGINT without_op:BIGINT call_median:BIGINT call_p10:BIGINT "
            "call_p90:BIGINT"
        ),
        _dispatch_costs,
    ),
    "shares": Table(_typed("place op scope metric attributed:BIGINT estimated:BOOLEAN"), _shares),
    "unattributed": Table(_typed("reason metric value:BIGINT events:BIGINT"), _unattributed),
}
"""All tables but `events`, by name."""

EVENTS: Final = "events"
"""The table of the runs' rows: `run` (from 1), then the columns of their files under canonical names."""


def _events(files: Sequence[Path]) -> str:
    """A SELECT of the events of all runs; a column that a run lacks is NULL."""
    runs = [read_run(file) for file in files]
    if not runs:
        raise QueryInvalid("this attribution has no runs, so there is no table events")
    return " UNION ALL BY NAME ".join(
        f"SELECT CAST({number} AS BIGINT) AS run, * FROM ({events_sql(run)})" for number, run in enumerate(runs, 1)
    )
