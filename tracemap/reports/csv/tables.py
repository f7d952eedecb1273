"""Tables as CSV: attribution with a row per op and metric, and the calls of a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from tracemap.attribution.model import Attribution
from tracemap.graph.model import TraceGraph
from tracemap.graph.query import python_frame, scope_text
from tracemap.inert import csv_line, inert_cell, without_controls
from tracemap.reports.escaping import for_hook_text
from tracemap.units import UNKNOWN, Integer, Text, Unknown

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import ThreadCalls

COLUMNS: Final = {
    **dict.fromkeys(("op", "name", "file"), str),
    **dict.fromkeys(("line", "column"), int),
    **dict.fromkeys(("function", "scope", "python", "fate"), str),
    "calls": int,
    **dict.fromkeys(("metric", "unit"), str),
    "invocations": int,
    **dict.fromkeys(("attributed", "inclusive", "low", "high"), int),
    **dict.fromkeys(("per_invocation_median", "per_invocation_median_low", "per_invocation_median_high"), int),
    **dict.fromkeys(("per_invocation_p10", "per_invocation_p90", "per_invocation_max"), int),
    **dict.fromkeys(("likely_low", "likely_high", "uncertain"), int),
}
"""The columns of the table of ops, and what is in them."""

Cells = Sequence[Integer | Text]
"""A row of the table of ops; texts have no control characters."""


def attribution_csv(graph: TraceGraph, attribution: Attribution) -> str:
    """The table of ops, with a header line; unknown values are empty cells."""
    rows = attribution_rows(graph, attribution)
    return "".join([csv_line(tuple(COLUMNS)), *(csv_line(_known(row)) for row in rows)])


def attribution_rows(graph: TraceGraph, attribution: Attribution) -> Iterator[Cells]:
    """A row for each op and metric, then one for each residual and metric.

    Residual rows have the reason in the column `name` and no op, so that the column `attributed` adds up to what was
    measured, for each metric.
    """
    about_metric = {metric.name: (metric.unit, metric.invocations) for metric in attribution.metrics}
    for result in attribution.ops:
        op = graph.op_by_id[result.op]
        frame = python_frame(graph, op)
        python = f"{frame.file}:{frame.line}" if frame else ""
        place = (op.file, op.line, op.column, op.function, scope_text(graph, op), python)
        about = (op.id, op.name, *place, op.fate.value)
        cells = [without_controls(cell) if isinstance(cell, str) else cell for cell in about]
        for name, cost in result.metrics.items():
            spread, likely = astuple(cost.per_invocation), (cost.likely_low, cost.likely_high, int(cost.uncertain))
            figures = (cost.attributed, cost.inclusive, cost.low, cost.high, *spread, *likely)
            yield [*cells, result.calls, without_controls(name), *about_metric[name], *figures]
    # The reason stands for the name and events for calls, so that sums over a column are those of the whole run.
    for row in attribution.residual:
        for name, value in row.metrics.items():
            of_run = [row.reason.value, *[UNKNOWN] * 7, row.events, without_controls(name), *about_metric[name], value]
            yield [UNKNOWN, *of_run, *[UNKNOWN] * 12]


def _known(cells: Cells) -> list[int | str]:
    return ["" if isinstance(cell, Unknown) else cell for cell in cells]


def calls_csv(calls: ThreadCalls) -> str:
    """The calls of a thread as IREE's hook writes them."""
    lines = [",".join(("thread", "cpu", "node", *calls.names))]
    thread = inert_cell(for_hook_text(calls.thread).replace(",", "?").replace('"', "?"))
    durations, *events = (values.tolist() for values in calls.series)
    for number, duration in enumerate(durations):
        counts = "".join(f",{int(series[number])}" for series in events)
        lines.append(f"{thread},{calls.cpus[number]},{calls.nodes[number]},{duration:g}{counts}")
    return "\n".join(lines) + "\n"
