"""Results as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from tracemap.attribution.model import Attribution
from tracemap.compare.model import Amount, Comparison, OpDifference
from tracemap.core.sanitize import csv_line, escape_formula, without_controls
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.kernels.model import Bench, KernelBench, Spread, Status
from tracemap.map.model import TraceGraph
from tracemap.map.query import python_frame, scope_text
from tracemap.reports.escaping import for_hook_text
from tracemap.store.model import (
    SiteCalls,
    StoreCalls,
    StoreComparison,
    StoreCosts,
    StoreGroup,
    StoreOpName,
    StoreRun,
    StoreRuns,
    StoreTrends,
)

if TYPE_CHECKING:
    from tracemap.runs.hook.stats import ThreadCalls


# ---- bench
#
# The first columns are those of IREE's dispatch profiler (experimental/dispatch_profiler, until 2024), since its users
# have scripts for them.


BENCH_COLUMNS = (
    *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments", "Verification", "Runtime(ms)"),
    *("GFLOPs", "sites", "time_ns", "time_q1_ns", "time_q3_ns", "cold_ns", "bytes_per_s", "roofline_share"),
    *("in_application_ns", "ratio", "points_to"),
)
_PROVIDER = "IREE Codegen"


def bench_csv(bench: Bench) -> str:
    """A row per kernel, with a header line; unknown values are empty cells."""
    rows = (csv_line([without_controls(cell) for cell in _cells(kernel)]) for kernel in bench.kernels)
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
        _number(kernel.roofline_share),
        *(("", "", "") if first is None else (_number(first.median_ns), _number(first.ratio), first.points_to)),
    ]


def _median(spread: Spread | None) -> str:
    return "" if spread is None else _number(spread.median)


def _number(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- diff


DIFF_COLUMNS: Final = (
    *("before", "after", "how", "edited", "name_before", "name", "line_before", "line_after", "scope"),
    *("outcome_before", "outcome_after", "code", "metric", "unit", "cost_before", "cost_after", "change"),
)


def diff_csv(comparison: Comparison) -> str:
    """A row per op and metric, then per unattributed cost and metric, with a header line.

    Unknown values are empty cells. Ops without a cost have one row without a metric. Rows of unattributed costs have
    the reason in the column `name` and no op, so the column `change` adds up to the total change of every metric.
    """
    return "".join([csv_line(DIFF_COLUMNS), *map(csv_line, _rows(comparison))])


def _rows(comparison: Comparison) -> Iterator[list[int | str]]:
    units = {metric.name: metric.unit for metric in comparison.metrics}
    for op in comparison.ops:
        op_cells = _op_cells(op)
        if not op.amounts:
            yield [*op_cells, *[""] * 5]
        for name, amount in op.amounts.items():
            yield [*op_cells, *_figures(name, units[name], amount)]
    for row in comparison.unattributed:
        for name, amount in row.amounts.items():
            yield [*[""] * 5, row.reason, *[""] * 6, *_figures(name, units[name], amount)]


def _op_cells(op: OpDifference) -> list[int | str]:
    locations = (_cell(op.line_before), _cell(op.line_after), without_controls("/".join(op.scope)))
    names = (_cell(op.name_before), without_controls(op.name))
    match = (_cell(op.before), _cell(op.after), _cell(op.how), int(op.edited))
    return [*match, *names, *locations, _cell(op.outcome_before), _cell(op.outcome_after), _cell(op.code)]


def _figures(name: str, unit: str, amount: Amount) -> list[int | str]:
    return [without_controls(name), unit, amount.before, amount.after, amount.change]


def _cell(value: Integer | Text) -> int | str:
    if isinstance(value, Unknown):
        return ""
    return without_controls(value) if isinstance(value, str) else value


# ---- store


_COST_COLUMNS: Final = ("op", "name", "file", "line", "scope", "runs", "metric", "amount", "invocations")


def runs_csv(runs: StoreRuns) -> str:
    """A row per run, with a header line; unknown values are empty cells, tags are `K=V`, separated by blanks."""
    names = StoreRun.__struct_fields__
    lines = [csv_line(names)]
    for run in runs.runs:
        tags = " ".join(f"{name}={value}" for name, value in sorted(run.tags.items()))
        lines.append(csv_line([_cell(tags if name == "tags" else getattr(run, name)) for name in names]))
    return "".join(lines)


def costs_csv(costs: StoreCosts) -> str:
    """A row per op, group and metric, with a header line.

    Unattributed costs have the reason in the column `name` and no op, as in `attribute`.
    """
    columns = ("model", *costs.group_by, *_COST_COLUMNS)
    rows = (csv_line([_cell(cell) for cell in row]) for group in costs.groups for row in _cost_rows(group))
    return "".join([csv_line(columns), *rows])


def _cost_rows(group: StoreGroup) -> Iterator[list[Integer | Text]]:
    group_cells: list[Integer | Text] = [group.model, *group.group.values()]
    for metric in group.metrics:
        for op in group.ops:
            op_cells: list[Integer | Text] = [op.op, op.name, op.file, op.line, op.scope, op.runs]
            yield [*group_cells, *op_cells, metric.name, op.amounts[metric.name], metric.invocations]
        for row in group.unattributed:
            reason_cells: list[Integer | Text] = ["", row.reason, *[UNKNOWN] * 3, group.runs]
            yield [*group_cells, *reason_cells, metric.name, row.amounts[metric.name], metric.invocations]


def sites_csv(calls: StoreCalls) -> str:
    """Percentiles of the calls of dispatch sites, with a header line; an empty site: several sites of the kernel."""
    names = SiteCalls.__struct_fields__
    lines = [csv_line(("model", *calls.group_by, "map", "runs", "metric", *names))]
    for group in calls.groups:
        values = (group.model, *group.group.values(), group.map, group.runs, calls.metric)
        group_cells = [_cell(value) for value in values]
        lines += [csv_line([*group_cells, *(_cell(getattr(site, name)) for name in names)]) for site in group.sites]
    return "".join(lines)


_OP_COLUMNS: Final = ("op", "name", "file", "line", "scope")
_FIGURES: Final = ("ratio", "ratio_low", "ratio_high", "before", "after", "hosts", "chance")


def trends_csv(trends: StoreTrends) -> str:
    """A row per level shift, with a header line; an empty processor or host means all of them."""
    names = ("kind", "night", "night_low", "night_high", "cpu_model", "host", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OP_COLUMNS))]
    for model in trends.models:
        for change in model.changes:
            figures = (_figure(getattr(change, name)) for name in names)
            lines.append(csv_line([model.model, _cell(model.function), _cell(model.inputs), *figures, *_op(change.op)]))
    return "".join(lines)


def comparison_csv(comparison: StoreComparison) -> str:
    """A row per difference, with a header line; an empty processor means all of them."""
    names = ("kind", "cpu_model", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OP_COLUMNS))]
    for model in comparison.models:
        model_cells = [model.model, _cell(model.function), _cell(model.inputs)]
        for difference in model.differences:
            figures = (_figure(getattr(difference, name)) for name in names)
            lines.append(csv_line([*model_cells, *figures, *_op(difference.op)]))
    return "".join(lines)


def _op(op: StoreOpName) -> list[int | str]:
    return [_cell(getattr(op, name)) for name in _OP_COLUMNS]


def _figure(value: Integer | Text | float) -> int | str:
    return f"{value:.6g}" if isinstance(value, float) else _cell(value)


# ---- attribution and calls


TABLE_COLUMNS: Final = {
    **dict.fromkeys(("op", "name", "file"), str),
    **dict.fromkeys(("line", "column"), int),
    **dict.fromkeys(("function", "scope", "python", "outcome"), str),
    "calls": int,
    **dict.fromkeys(("metric", "unit"), str),
    "invocations": int,
    **dict.fromkeys(("attributed", "inclusive", "low", "high"), int),
    **dict.fromkeys(("per_invocation_median", "per_invocation_median_low", "per_invocation_median_high"), int),
    **dict.fromkeys(("per_invocation_p10", "per_invocation_p90", "per_invocation_max"), int),
    **dict.fromkeys(("likely_low", "likely_high", "uncertain"), int),
    **dict.fromkeys(("error_ulps", "accumulated_ulps"), int),
}
"""Columns of the table of ops, and the types of their cells."""

Cells = Sequence[Integer | Text]
"""A row of the table of ops; texts have no control characters."""


def attribution_csv(graph: TraceGraph, attribution: Attribution) -> str:
    """The table of ops, with a header line; unknown values are empty cells."""
    rows = attribution_rows(graph, attribution)
    return "".join([csv_line(tuple(TABLE_COLUMNS)), *(csv_line(_known(row)) for row in rows)])


def attribution_rows(graph: TraceGraph, attribution: Attribution) -> Iterator[Cells]:
    """A row per op and metric, then per unattributed cost and metric.

    Rows of unattributed costs have the reason in the column `name` and no op, so the column `attributed` adds up to the
    measured cost of every metric.
    """
    metric_cells = {metric.name: (metric.unit, metric.invocations) for metric in attribution.metrics}
    for result in attribution.ops:
        op = graph.op_by_id[result.op]
        frame = python_frame(graph, op)
        python = f"{frame.file}:{frame.line}" if frame else ""
        location = (op.file, op.line, op.column, op.function, scope_text(graph, op), python)
        values = (op.id, op.name, *location, op.outcome.value)
        cells = [without_controls(value) if isinstance(value, str) else value for value in values]
        for name, cost in result.metrics.items():
            spread, likely = astuple(cost.per_invocation), (cost.likely_low, cost.likely_high, int(cost.uncertain))
            figures = (cost.attributed, cost.inclusive, cost.low, cost.high, *spread, *likely, *astuple(result.errors))
            yield [*cells, result.calls, without_controls(name), *metric_cells[name], *figures]
    # The reason is in the column of names and events are in that of calls, so that columns add up to the whole run.
    for row in attribution.unattributed:
        for name, value in row.metrics.items():
            reason_cells = [row.reason.value, *[UNKNOWN] * 7, row.events]
            yield [UNKNOWN, *reason_cells, without_controls(name), *metric_cells[name], value, *[UNKNOWN] * 14]


def _known(cells: Cells) -> list[int | str]:
    return ["" if isinstance(cell, Unknown) else cell for cell in cells]


def calls_csv(calls: ThreadCalls) -> str:
    """The calls of a thread in the format of IREE's hook."""
    lines = [",".join(("thread", "cpu", "node", *calls.names))]
    thread = escape_formula(for_hook_text(calls.thread).replace(",", "?").replace('"', "?"))
    durations, *events = (values.tolist() for values in calls.series)
    for index, duration in enumerate(durations):
        counts = "".join(f",{int(series[index])}" for series in events)
        lines.append(f"{thread},{calls.cpus[index]},{calls.nodes[index]},{duration:g}{counts}")
    return "\n".join(lines) + "\n"
