"""Runs that tell the order in which kernels were launched, and not from where: their rows get their sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.columns import LAUNCH
from tracemap.measurements.runfile import read_run, write_run
from tracemap.measurements.sql import fill, open_database, table_of
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    from tracemap.attribution.join.launches import Order
    from tracemap.graph.model import TraceGraph
    from tracemap.measurements.model import Run, RunHeader

_KERNELS: Final = f"SELECT kernel FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_SITED: Final = f"""
SELECT event.* EXCLUDE ({LAUNCH}), launch.site, launch.invocation, coalesce(launch.loading, {{before}}) AS warmup
FROM {{rows}} AS event LEFT JOIN launches AS launch ON launch.number = event.{LAUNCH} ORDER BY {{order}}
"""
# What ran before the first launch of a call, as copies of its inputs do, belongs to the program's loading.
_BEFORE: Final = """coalesce(event.start_ns < (
    SELECT min(start_ns) FROM {rows} AS first JOIN launches ON launches.number = first.{launch} WHERE NOT loading
), false)"""


def with_sites(run: Run, graph: TraceGraph, folder: Path) -> Run:
    """A run whose dispatches have the sites that their order leaves for them; itself, if it tells no order.

    Args:
        run: the run.
        graph: the map of the program that ran.
        folder: where the table is put; it is made, and must stay as long as the run.
    """
    from tracemap.attribution.join.launches import ordered

    if LAUNCH not in run.columns or run.format != "parquet":
        return run
    folder.mkdir()
    table = folder / run.table.name
    rows = table_of("read_parquet", run.table)
    timed = "start_ns" in run.columns
    with open_database() as connection:
        kernels = connection.execute(_KERNELS.format(rows=rows)).fetchnumpy()["kernel"].tolist()
        order = ordered(graph, kernels)
        fill(connection, "launches", _COLUMNS, [] if order is None else _rows(order))
        query = _SITED.format(
            rows=rows,
            before=_BEFORE.format(rows=rows, launch=LAUNCH) if timed else "false",
            order="event.start_ns" if timed else f"event.{LAUNCH}",
        )
        write_run(_header(run.header, order), connection.sql(query), table, force=True)
    return replace(read_run(table), has_header=run.has_header, given=run.file)


_COLUMNS: Final = {"number": "BIGINT", "site": "VARCHAR", "invocation": "BIGINT", "loading": "BOOLEAN"}
_Row = tuple[int, str | None, int | None, bool]


def _rows(order: Order) -> list[_Row]:
    sites = [None if kind.site is UNKNOWN else str(kind.site) for kind in order.kinds]
    loading = [kind.loading for kind in order.kinds]
    numbered = enumerate(zip(order.numbers, order.invocations, strict=True))
    return [(launch, sites[kind], invocation, loading[kind]) for launch, (kind, invocation) in numbered]


def _header(header: RunHeader, order: Order | None) -> RunHeader:
    """The header, with what was found."""
    if order is None:
        text = (
            "the kernels were not launched in an order that the program has: which site of a shared kernel a launch "
            "was of is not known"
        )
        return structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic("launches-astray", text)))
    text = "which site a kernel was launched from is inferred from the order of the launches"
    calls = 1 + max((number for number in order.invocations if number is not None), default=-1)
    if not order.whole:
        text += "; they do not begin with a call or do not end with one, so they are taken for a part of the run's"
    if order.filtered:
        text += "; kernels of which there is no launch at all are taken for left out"
    told = Diagnostic("sites-by-order", text)
    return structs.replace(
        header, iterations=calls if calls and order.whole else UNKNOWN, diagnostics=(*header.diagnostics, told)
    )
