"""Runs that tell the order in which kernels were launched, and not from where: their rows get their sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from tracemap.diagnostics import Diagnostic
from tracemap.measurements.columns import LAUNCH
from tracemap.measurements.runfile import with_events
from tracemap.measurements.sql import fill, open_database, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    import numpy.typing as npt

    from tracemap.attribution.join.launches import Order
    from tracemap.graph.model import TraceGraph
    from tracemap.measurements.model import Run, RunHeader

_UNTOLD: Final = -1
"""Stands in a table for a number of a call that is not known."""
_KERNELS: Final = f"SELECT kernel FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_SITED: Final = f"""
SELECT event.* EXCLUDE ({LAUNCH}), kind_of.site, nullif(launch.invocation, {_UNTOLD}) AS invocation,
    coalesce(kind_of.loading, event.start_ns < {{loaded_ns}}, false) AS warmup
FROM {{rows}} AS event LEFT JOIN launches AS launch ON launch.number = event.{LAUNCH}
    LEFT JOIN launch_kinds AS kind_of ON kind_of.number = launch.kind
ORDER BY event.start_ns, event.{LAUNCH}
"""
_UNSITED: Final = f"SELECT * EXCLUDE ({LAUNCH}) FROM {{rows}} ORDER BY start_ns, {LAUNCH}"


def with_sites(run: Run, graph: TraceGraph, folder: Path) -> Run:
    """A run whose dispatches have the sites that their order leaves for them; itself, if it tells no order.

    Args:
        run: the run.
        graph: the map of the program that ran.
        folder: where the table is put; it is made, and must stay as long as the run.
    """
    if not run.tells_order:
        return run
    from tracemap.attribution.join.entries import OrderUntold
    from tracemap.attribution.join.launches import ordered

    rows = table_of("read_parquet", run.table)
    with open_database() as connection:
        kernels = connection.execute(_KERNELS.format(rows=rows)).fetchnumpy()["kernel"].tolist()
        try:
            order = ordered(graph, kernels)
        except OrderUntold as why:
            text = f"{why}: which site of a shared kernel a launch was of is not known"
            return with_events(
                run, _saying(run.header, "launches-astray", text), connection.sql(_UNSITED.format(rows=rows)), folder
            )
        names = ["|".join(kind.sites) for kind in order.kinds]  # what the column of sites has for each
        _fill(connection, order, names)
        sited = connection.sql(_SITED.format(rows=rows, loaded_ns=_loaded_ns(connection, rows, order)))
        found = with_events(run, _header(run.header, order), sited, folder)
    choices = {name: kind.sites for name, kind in zip(names, order.kinds, strict=True) if len(kind.sites) > 1}
    return replace(found, site_choices=tuple(choices.items()))


def _fill(connection: duckdb.DuckDBPyConnection, order: Order, names: Sequence[str]) -> None:
    """Make the tables of what launches were."""
    import numpy as np

    kinds = [(number, name or None, order.kinds[number].loading) for number, name in enumerate(names)]
    fill(connection, "launch_kinds", {"number": "BIGINT", "site": "VARCHAR", "loading": "BOOLEAN"}, kinds)
    invocations = [_UNTOLD if each is None else each for each in order.invocations()]
    numbers = np.arange(len(invocations))
    columns = {"number": numbers, "kind": np.array(order.numbers), "invocation": np.array(invocations)}
    connection.register("launches", columns)


_STARTS: Final = f"SELECT start_ns FROM {{rows}} WHERE {LAUNCH} IS NOT NULL ORDER BY {LAUNCH}"
_TRANSFERS: Final = f"SELECT start_ns FROM {{rows}} WHERE {LAUNCH} IS NULL AND start_ns IS NOT NULL ORDER BY start_ns"


def _loaded_ns(connection: duckdb.DuckDBPyConnection, rows: str, order: Order) -> int:
    """When the first call began: copies and fills before, as of parameters, are of the program's loading.

    A call may begin with some of its own: no more than any other call has between the last launch before it and its
    first. Of one call alone nothing tells, and none is taken for its own but those behind what runs at load.
    """
    import numpy as np

    starts = connection.execute(_STARTS.format(rows=rows)).fetchnumpy()["start_ns"]
    transfers = connection.execute(_TRANSFERS.format(rows=rows)).fetchnumpy()["start_ns"]
    if not len(transfers):
        return 0
    begins = [] if order.begun is None else np.flatnonzero(np.diff(order.begun, prepend=0)).tolist()
    if not order.whole or not begins:
        return _since_loading(order, starts)
    before = np.searchsorted(transfers, starts)
    own = min((int(before[begin] - before[begin - 1]) for begin in begins[1:]), default=0)
    first = int(before[begins[0]])
    return int(transfers[first - own]) if 0 < own <= first else int(starts[begins[0]])


def _since_loading(order: Order, starts: npt.NDArray[Any]) -> int:
    """When the last launch before all calls began; before everything where there is none."""
    loading = [kind.loading for kind in order.kinds]
    loaded = [place for place, number in enumerate(order.numbers) if loading[number]]
    return int(starts[loaded[-1]]) if loaded else -(2**62)


def _saying(header: RunHeader, slug: str, text: str) -> RunHeader:
    return structs.replace(header, diagnostics=(*header.diagnostics, Diagnostic(slug, text)))


def _header(header: RunHeader, order: Order) -> RunHeader:
    """The header, with what was found."""
    text = "which site a kernel was launched from is inferred from the order of the launches"
    if not order.whole:
        text += "; they do not begin with a call or do not end with one, so they are taken for a part of the run's"
    if order.filtered:
        text += "; kernels of which there is no launch at all are taken for left out"
    return structs.replace(_saying(header, "sites-by-order", text), iterations=order.calls)
