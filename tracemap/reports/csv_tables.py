"""Results as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from tracemap.attribution.model import Attribution
from tracemap.comparison.model import Amount, Comparison, OpDifference
from tracemap.experiments.model import Bench, KernelBench, Spread, Status
from tracemap.graph.model import TraceGraph
from tracemap.graph.query import python_frame, scope_text
from tracemap.reports.escaping import for_hook_text
from tracemap.sanitize import csv_line, inert_cell, without_controls
from tracemap.store.model import (
    FleetCalls,
    FleetComparison,
    FleetCosts,
    FleetGroup,
    FleetName,
    FleetRun,
    FleetRuns,
    FleetTrends,
    SiteCalls,
)
from tracemap.units import UNKNOWN, Integer, Text, Unknown

if TYPE_CHECKING:
    from tracemap.measurements.hook.stats import ThreadCalls


# ---- bench
#
# The kernels of a bench as CSV: first the columns that the dispatch profiler of IREE had, then ours.
#
# Its users have scripts for those columns (IREE, experimental/dispatch_profiler, until 2024).


BENCH_COLUMNS = (
    *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments", "Verification", "Runtime(ms)"),
    *("GFLOPs", "sites", "time_ns", "time_q1_ns", "time_q3_ns", "cold_ns", "bytes_per_s", "attainable_share"),
    *("in_application_ns", "ratio", "points_to"),
)
_PROVIDER = "IREE Codegen"


def bench_csv(made: Bench) -> str:
    """A row per kernel and kind of work, with a header line; what is not known is an empty cell."""
    rows = (csv_line([without_controls(cell) for cell in _cells(kernel)]) for kernel in made.kernels)
    return "".join([csv_line(BENCH_COLUMNS), *rows])


def _cells(kernel: KernelBench) -> list[str]:
    time, first = kernel.time_ns, kernel.in_application[0] if kernel.in_application else None
    words = {Status.NOT_VERIFIED: "Not verified"}
    return [
        *(kernel.kernel, _PROVIDER, kernel.operation_kind, kernel.operation),
        *(kernel.configuration, kernel.arguments),
        words.get(kernel.verification.status, kernel.verification.status.value),
        _number(None if time is None else time.median / 1e6),
        _number(None if kernel.operations_per_s is None else kernel.operations_per_s / 1e9),
        " ".join(kernel.sites),
        *(("", "", "") if time is None else map(_number, (time.median, time.q1, time.q3))),
        _median(kernel.cold_ns),
        _number(kernel.bytes_per_s),
        _number(kernel.attainable_share),
        *(("", "", "") if first is None else (_number(first.median_ns), _number(first.ratio), first.points_to)),
    ]


def _median(spread: Spread | None) -> str:
    return "" if spread is None else _number(spread.median)


def _number(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- diff
#
# A comparison as CSV: a row per op and metric, then one per residual and metric.


DIFF_COLUMNS: Final = (
    *("before", "after", "how", "edited", "name_before", "name", "line_before", "line_after", "scope"),
    *("fate_before", "fate_after", "code", "metric", "unit", "cost_before", "cost_after", "change"),
)


def diff_csv(made: Comparison) -> str:
    """The table, with a header line; what is not known is an empty cell.

    Ops without a cost have one row, without a metric. Rows of residuals have the reason in the column `name` and no op,
    so that the column `change` adds up to the change of the whole, for each metric.
    """
    return "".join([csv_line(DIFF_COLUMNS), *map(csv_line, _rows(made))])


def _rows(made: Comparison) -> Iterator[list[int | str]]:
    units = {metric.name: metric.unit for metric in made.metrics}
    for op in made.ops:
        about = _about(op)
        if not op.amounts:
            yield [*about, *[""] * 5]
        for name, amount in op.amounts.items():
            yield [*about, *_figures(name, units[name], amount)]
    for row in made.residual:
        for name, amount in row.amounts.items():
            yield [*[""] * 5, row.reason, *[""] * 6, *_figures(name, units[name], amount)]


def _about(op: OpDifference) -> list[int | str]:
    places = (_cell(op.line_before), _cell(op.line_after), without_controls("/".join(op.scope)))
    names = (_cell(op.name_before), without_controls(op.name))
    about = (_cell(op.before), _cell(op.after), _cell(op.how), int(op.edited))
    return [*about, *names, *places, _cell(op.fate_before), _cell(op.fate_after), _cell(op.code)]


def _figures(name: str, unit: str, amount: Amount) -> list[int | str]:
    return [without_controls(name), unit, amount.before, amount.after, amount.change]


def _cell(value: Integer | Text) -> int | str:
    if isinstance(value, Unknown):
        return ""
    return without_controls(value) if isinstance(value, str) else value


# ---- fleet
#
# Many runs as CSV: one row a run; one row for each op, group and metric.


_OF_COSTS: Final = ("op", "name", "file", "line", "scope", "runs", "metric", "amount", "invocations")


def runs_csv(found: FleetRuns) -> str:
    """The runs, with a header line; unknown values are empty cells, tags are `K=V` with blanks between them."""
    names = FleetRun.__struct_fields__
    lines = [csv_line(names)]
    for run in found.runs:
        tags = " ".join(f"{name}={value}" for name, value in sorted(run.tags.items()))
        lines.append(csv_line([_cell(tags if name == "tags" else getattr(run, name)) for name in names]))
    return "".join(lines)


def costs_csv(found: FleetCosts) -> str:
    """The costs, with a header line: rows without an op have the reason in the column `name`, as `attribute` has it."""
    columns = ("model", *found.group_by, *_OF_COSTS)
    rows = (csv_line([_cell(cell) for cell in row]) for group in found.groups for row in _cost_rows(group))
    return "".join([csv_line(columns), *rows])


def _cost_rows(group: FleetGroup) -> Iterator[list[Integer | Text]]:
    about: list[Integer | Text] = [group.model, *group.group.values()]
    for metric in group.metrics:
        figures: list[Integer | Text] = [metric.invocations]
        for op in group.ops:
            told: list[Integer | Text] = [op.op, op.name, op.file, op.line, op.scope, op.runs]
            yield [*about, *told, metric.name, op.amounts[metric.name], *figures]
        for row in group.residual:
            nothing: list[Integer | Text] = [UNKNOWN] * 3
            yield [*about, "", row.reason, *nothing, group.runs, metric.name, row.amounts[metric.name], *figures]


def sites_csv(found: FleetCalls) -> str:
    """Percentiles of the calls of sites, with a header line; an empty site stands for several of its kernel."""
    names = SiteCalls.__struct_fields__
    lines = [csv_line(("model", *found.group_by, "map", "runs", "metric", *names))]
    for group in found.groups:
        about = [_cell(each) for each in (group.model, *group.group.values(), group.map, group.runs, found.metric)]
        lines += [csv_line([*about, *(_cell(getattr(site, name)) for name in names)]) for site in group.sites]
    return "".join(lines)


_OF_OP: Final = ("op", "name", "file", "line", "scope")
_FIGURES: Final = ("ratio", "ratio_low", "ratio_high", "before", "after", "hosts", "chance")


def trends_csv(found: FleetTrends) -> str:
    """The changes, with a header line; an empty processor or host is all of them."""
    names = ("kind", "night", "night_low", "night_high", "cpu_model", "host", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OF_OP))]
    for model in found.models:
        for each in model.changes:
            figures = (_figure(getattr(each, name)) for name in names)
            lines.append(csv_line([model.model, _cell(model.function), _cell(model.inputs), *figures, *_op(each.op)]))
    return "".join(lines)


def comparison_csv(found: FleetComparison) -> str:
    """The differences, with a header line; an empty processor is all of them."""
    names = ("kind", "cpu_model", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OF_OP))]
    for model in found.models:
        for each in model.differences:
            figures = (_figure(getattr(each, name)) for name in names)
            lines.append(csv_line([model.model, _cell(model.function), _cell(model.inputs), *figures, *_op(each.op)]))
    return "".join(lines)


def _op(op: FleetName) -> list[int | str]:
    return [_cell(getattr(op, name)) for name in _OF_OP]


def _figure(value: Integer | Text | float) -> int | str:
    return f"{value:.6g}" if isinstance(value, float) else _cell(value)


# ---- tables
#
# Tables as CSV: attribution with a row per op and metric, and the calls of a thread.


TABLE_COLUMNS: Final = {
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
    return "".join([csv_line(tuple(TABLE_COLUMNS)), *(csv_line(_known(row)) for row in rows)])


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
