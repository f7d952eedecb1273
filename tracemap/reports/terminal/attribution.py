"""What `attribute` prints: the run, ops and sites by cost, the balance of each metric, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution, MetricTotal, OpCost, OpResult, SiteResult
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Op
from tracemap.reports.costed import (
    AT_LOAD,
    EQUAL_MEMBERS,
    SPLIT_EVENLY,
    CostedMap,
    default_metric,
    explained_of_elapsed,
)
from tracemap.reports.escaping import for_terminal
from tracemap.reports.labels import file_line, op_line, or_dash, root_and_line
from tracemap.reports.terminal.tables import Number, console, print_diagnostics, table
from tracemap.units import Integer, Unknown, format_count, format_ns, format_quantity, format_share, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 25
"""Rows of the tables of ops and of sites; of ops all can be asked for."""

_OPS = (
    "op",
    "line",
    "name",
    "scope",
    *map(Number, "calls attributed share inclusive low high median/invocation".split()),
)
_INTERVAL = Number("95 % interval")
_SITES = ("site", "kernel", "root", "line", *map(Number, "calls total share median/call p10 p90".split()))


def print_attribution(graph: TraceGraph, attribution: Attribution, out: TextIO, *, all_ops: bool = False) -> None:
    """Print what the ops cost: the run, the balance, the costliest ops and sites, what has no op, and diagnostics.

    Args:
        graph: the map.
        attribution: the costs.
        out: where to; colours and the width of the terminal are used where it is one.
        all_ops: print every op instead of the first `MOST_ROWS`.
    """
    to = console(out)
    costed = CostedMap(graph, attribution)
    _print_run(to, costed, attribution)
    # A run without a metric is refused when it is opened.
    metric = attribution.metrics[default_metric(attribution.metrics)]
    _print_ops(to, costed, metric, all_ops=all_ops)
    _print_sites(to, costed, metric)
    _print_remarks(to, costed)
    headings = ("", *(Number(total.name) for total in attribution.metrics), "")
    to.print(table("Balance", headings, _balance_rows(attribution)))
    for total in attribution.metrics:
        parts = f"measured {total.measured} = attributed {total.attributed} + residual {total.residual}"
        to.print(for_terminal(f"{total.name}: {parts} {total.unit}"))
    print_diagnostics(to, graph.diagnostics + attribution.diagnostics)


def _print_run(to: Console, costed: CostedMap, attribution: Attribution) -> None:
    run, graph = attribution.run, costed.graph
    to.print(
        for_terminal(
            f"{graph.module.name}: function {or_dash(run.function)}, device {or_dash(run.device)}, "
            f"workers {or_dash(run.workers)}, iterations {format_count(run.iterations)}, "
            f"elapsed {format_ns(run.elapsed_ns)} (rows explain {explained_of_elapsed(attribution)}), "
            f"rule {attribution.rule.value}"
        )
    )
    at_load = sum(site.initializer for site in graph.sites)
    with_members = sum(bool(site.members) for site in graph.sites)
    called = sum(result.calls > 0 for result in costed.site_results.values())
    loaded = f", {at_load} run at load: not measured" if at_load else ""
    to.print(f"{plural(len(graph.sites), 'site')}: {with_members} with members, {called} called{loaded}\n")


def _print_ops(to: Console, costed: CostedMap, metric: MetricTotal, *, all_ops: bool) -> None:
    # Sorting is stable: ops of the same cost stay in the order of the model.
    results = sorted(costed.op_results.values(), key=lambda result: -result.metrics[metric.name].attributed)
    shown = results if all_ops else results[:MOST_ROWS]
    to.print(_op_table(costed, shown, metric))
    hidden = results[len(shown) :]
    if hidden:
        rest = sum(result.metrics[metric.name].attributed for result in hidden)
        amount = f"{format_quantity(rest, metric.unit)}, {format_share(rest, metric.measured)}"
        to.print(f"… and {plural(len(hidden), 'more op')}: {amount}")


def _op_table(costed: CostedMap, results: Sequence[OpResult], metric: MetricTotal) -> Table:
    """The interval of the samples has a column where samples decided anything."""
    costs = [result.metrics[metric.name] for result in results]
    intervals = [_interval(cost, metric) for cost in costs]
    sampled = any(intervals)
    rows = (
        (*_op_cells(costed, result, metric), *([interval or "–"] if sampled else []))
        for result, interval in zip(results, intervals, strict=True)
    )
    return table(f"Ops by {metric.name}", (*_OPS, _INTERVAL) if sampled else _OPS, rows, gap=False)


def _op_cells(costed: CostedMap, result: OpResult, metric: MetricTotal) -> tuple[str, ...]:
    op, cost = costed.graph.op_by_id[result.op], result.metrics[metric.name]
    share = format_share(cost.attributed, metric.measured)
    each = cost.per_invocation.median
    median = "–" if isinstance(each, Unknown) else format_quantity(each, metric.unit)
    bounds = [format_quantity(value, metric.unit) for value in (cost.inclusive, cost.low, cost.high)]
    numbers = (format_quantity(cost.attributed, metric.unit), share, *bounds, median)
    return op.id, _lines(costed, op), op.name, costed.scope_of(op), format_count(result.calls), *numbers


def _interval(cost: OpCost, metric: MetricTotal) -> str:
    """What the samples leave open, empty where they decided nothing."""
    bounds: list[Integer] = [cost.sampled_low, cost.sampled_high]
    if any(isinstance(bound, Unknown) for bound in bounds):
        return ""
    return " – ".join(format_quantity(bound, metric.unit) for bound in bounds)


def _lines(costed: CostedMap, op: Op) -> str:
    """The line in the model, and that of the innermost Python frame where its file is kept."""
    kept = next((frame for frame in costed.frames_of(op) if frame.file in costed.source_index), None)
    return f"{op_line(op)} {file_line(kept.file, kept.line)}" if kept else op_line(op)


def _print_sites(to: Console, costed: CostedMap, metric: MetricTotal) -> None:
    results = sorted(costed.site_results.values(), key=lambda result: -result.metrics[metric.name].total)
    rows = (_site_cells(costed, result, metric) for result in results[:MOST_ROWS])
    to.print(table(f"Sites by {metric.name}", _SITES, rows))
    hidden = len(results) - MOST_ROWS
    if hidden > 0:
        to.print(f"… and {plural(hidden, 'more site')}")


def _site_cells(costed: CostedMap, result: SiteResult, metric: MetricTotal) -> tuple[str, ...]:
    site, cost = costed.graph.site_by_id[result.site], result.metrics[metric.name]
    spread = (cost.per_call.median, cost.per_call.p10, cost.per_call.p90) if cost.per_call else ()
    numbers = [format_quantity(value, metric.unit) for value in spread] or ["–"] * 3
    total, share = format_quantity(cost.total, metric.unit), format_share(cost.total, metric.measured)
    root = root_and_line(costed.graph, site)
    return site.id, site.kernel, *root, format_count(result.calls), total, share, *numbers


def _print_remarks(to: Console, costed: CostedMap) -> None:
    results = costed.site_results.values()
    of_sites = (
        (AT_LOAD, [site.id for site in costed.graph.sites if site.initializer]),
        (SPLIT_EVENLY, [result.site for result in results if result.split_evenly]),
        (EQUAL_MEMBERS, [result.site for result in results if result.equal_members]),
    )
    for remark, sites in of_sites:
        if sites:
            to.print(for_terminal(f"{', '.join(sites)}: {remark}"))


def _balance_rows(attribution: Attribution) -> Iterator[tuple[str, ...]]:
    metrics = attribution.metrics
    yield "attributed", *(format_quantity(metric.attributed, metric.unit) for metric in metrics), "to ops"
    for row in attribution.residual:
        cells = [format_quantity(row.metrics[metric.name], metric.unit) for metric in metrics]
        yield f"residual {row.reason.value}", *cells, RESIDUAL_TEXTS[row.reason]
    yield "measured", *(format_quantity(metric.measured, metric.unit) for metric in metrics), ""
