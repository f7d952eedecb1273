"""Tables for terminals, with rich; plain text of the same layout where the output is piped.

Ids and names are never cut: a table wider than the terminal folds its long columns, a piped one is as wide as it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution, MetricTotal, OpCost, OpResult
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import Fate, Kernel, Membership, Op, Site, TraceGraph
from tracemap.reports.kernels import KernelView, loop_tree, ops_at_site, ops_text
from tracemap.reports.page.build import default_metric, explained_of_elapsed
from tracemap.reports.page.join import Joined, place_text, text_or_dash
from tracemap.reports.page.tables import AT_LOAD, EQUAL_MEMBERS, SPLIT_EVENLY
from tracemap.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_ns,
    format_quantity,
    format_share,
    plural,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 10_000
"""Columns where the output is no terminal: enough for one line per row, which other programs can read."""

TOP_OPS = 25
"""Rows of the table of ops, unless all are asked for."""


class Selection(Protocol):
    """What a query found: parts of a graph, in the graph's order (`tracemap.graph.query.Selection`)."""

    @property
    def ops(self) -> tuple[Op, ...]:
        """Ops found."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Sites found."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels found."""


def show(selection: Selection, graph: TraceGraph, out: TextIO, *, whole: bool = False) -> None:
    """Print ops, sites and kernels of a map.

    Args:
        selection: what to print; a `TraceGraph` is the selection of everything.
        graph: the map that the selection is part of.
        out: where to; colours and the width of the terminal are used where it is one.
        whole: print the coverage of the whole map first.
    """
    console = _console(out)
    if whole:
        _print_module(console, graph)
    if selection.ops:
        console.print(_op_table(selection.ops, graph))
    if selection.sites:
        console.print(_site_table(selection.sites, graph))
        _print_members(console, selection.sites, graph)
    if selection.kernels:
        console.print(_kernel_table(selection.kernels))
    _print_diagnostics(console, graph.diagnostics if whole else ())


def show_kernel(view: KernelView, graph: TraceGraph, out: TextIO, *, assembly: bool = False) -> None:
    """Print the inside of a kernel: its final IR, its loops, and its instructions where they are asked for."""
    console = _console(out)
    of_sites = (
        f", ops of {view.kernel.sites[0]}; its other sites have the same steps" if len(view.kernel.sites) > 1 else ""
    )
    table = _table(
        f"\nFinal IR of {view.kernel.name} (kernels/{text_or_dash(view.kernel.text)}){of_sites}",
        ("line", "number"),
        ("instructions", "number"),
        ("ops", "text"),
        ("text", "text"),
    )
    for line in view.lines:
        ops = ops_text(graph, ops_at_site(graph, view.kernel, line.ops))
        _row(table, str(line.line), str(line.instructions or ""), ops, line.text)
    if view.lines:
        console.print(table)
    if view.loops:
        console.print(_loop_table(view, graph))
    if assembly and view.instructions:
        console.print(_assembly_table(view))
    if view.no_code:
        console.print(printable(f"no loops and no instructions: {view.no_code}"))


def _loop_table(view: KernelView, graph: TraceGraph) -> Table:
    table = _table("\nLoops of its machine code", ("address", "text"), ("instructions", "number"), ("ops", "text"))
    for depth, loop in loop_tree(view.loops):
        ops = ops_text(graph, ops_at_site(graph, view.kernel, loop.ops), most=12)
        _row(table, "  " * depth + hex(loop.address), str(loop.instructions), ops or "–")
    return table


def _assembly_table(view: KernelView) -> Table:
    table = _table("\nInstructions", ("address", "text"), ("line", "number"), ("instruction", "text"))
    for each in view.instructions:
        _row(table, hex(each.address), str(each.line or "–"), f"{each.mnemonic} {each.operands}")
    return table


def attribute(graph: TraceGraph, attribution: Attribution, out: TextIO, *, all_ops: bool = False) -> None:
    """Print what the ops cost: the run, the balance, the costliest ops and sites, what has no op, and diagnostics.

    Args:
        graph: the map.
        attribution: the costs.
        out: where to; colours and the width of the terminal are used where it is one.
        all_ops: print every op instead of the first `TOP_OPS`.
    """
    console = _console(out)
    joined = Joined(graph, attribution)
    _print_run(console, joined, attribution)
    name = default_metric(attribution)
    metric = next((total for total in attribution.metrics if total.name == name), None)
    if metric is None:
        console.print("The run has no metric: nothing to attribute.")
    else:
        _print_costs(console, joined, metric, all_ops=all_ops)
        _print_balance(console, attribution)
    _print_diagnostics(console, graph.diagnostics + attribution.diagnostics)


def _console(out: TextIO) -> Console:
    from rich.console import Console

    width = None if out.isatty() else PIPED_WIDTH
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def _table(title: str, *columns: tuple[str, str]) -> Table:
    """A table without box; columns are pairs of heading and kind, `text` or `number`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, header_style="dim")
    for heading, kind in columns:
        number = kind == "number"
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    """Cells as `Text`: brackets in names of a model are no markup, control characters do not reach the terminal."""
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))


def printable(text: str) -> str:
    """The text with control characters, which could steer a terminal, written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# Map


def _print_module(console: Console, graph: TraceGraph) -> None:
    fates = {fate: sum(op.fate is fate for op in graph.ops) for fate in Fate}
    counts = ", ".join(f"{count} {fate.value}" for fate, count in fates.items() if count)
    with_members = sum(bool(site.members) for site in graph.sites)
    console.print(printable(f"{graph.module.name}, compiled by {graph.module.iree_compiler}"))
    inferred = sum(op.reason.inferred for op in graph.ops)
    console.print(f"{plural(len(graph.ops), 'op')}: {counts or 'none'}; {plural(inferred, 'fate')} inferred")
    console.print(
        f"{plural(len(graph.sites), 'site')} on {plural(len(graph.kernels), 'kernel')}, {with_members} with members\n"
    )


def _op_table(ops: Sequence[Op], graph: TraceGraph) -> Table:
    table = _table(
        "Ops",
        ("op", "text"),
        ("line", "text"),
        ("name", "text"),
        ("scope", "text"),
        ("python", "text"),
        ("fate", "text"),
        ("sites", "text"),
        ("reason", "text"),
    )
    for op in ops:
        python = place_text(op.frames[0].file, op.frames[0].line) if op.frames else ""
        sites = ", ".join(graph.sites_of_op.get(op.id, ()))
        place = place_text(op.file, op.line)
        _row(table, op.id, place, op.name, "/".join(op.scope), python, op.fate.value, sites, op.reason.text)
    return table


def _site_table(sites: Sequence[Site], graph: TraceGraph) -> Table:
    table = _table(
        "\nSites",
        ("site", "text"),
        ("kernel", "text"),
        ("function", "text"),
        ("path", "text"),
        ("command", "text"),
        ("root", "text"),
        ("line", "text"),
        ("members", "number"),
    )
    for site in sites:
        root = graph.op_by_id.get(site.root.op) if site.root else None
        function = "(at load)" if site.initializer else text_or_dash(site.function)
        command = f"{text_or_dash(site.command_buffer)}:{text_or_dash(site.command_index)}"
        name, place = (f"{root.id} {root.name}", place_text(root.file, root.line)) if root else ("–", "–")
        path = " › ".join(site.path)
        _row(table, site.id, site.kernel, function, path, command, name, place, str(len(site.members)))
    return table


def _print_members(console: Console, sites: Sequence[Site], graph: TraceGraph) -> None:
    table = _table(
        "\nMembers",
        ("site", "text"),
        ("op", "text"),
        ("line", "text"),
        ("name", "text"),
        ("evidence", "text"),
        ("operations", "number"),
        ("bytes", "number"),
    )
    for site in sites:
        for member in site.members:
            _member_row(table, site, member, graph.op_by_id.get(member.op))
    if table.row_count:
        console.print(table)


def _member_row(table: Table, site: Site, member: Membership, op: Op | None) -> None:
    place, name = (place_text(op.file, op.line), op.name) if op else ("–", "–")
    evidence = member.evidence.value + (", root" if member.root else "")
    operations, size = format_count(member.operations), format_bytes(member.bytes)
    _row(table, site.id, member.op, place, name, evidence, operations, size)


def _kernel_table(kernels: Sequence[Kernel]) -> Table:
    table = _table("\nKernels", ("kernel", "text"), ("steps", "number"), ("sites", "text"))
    for kernel in kernels:
        _row(table, kernel.name, str(len(kernel.steps)), ", ".join(kernel.sites))
    return table


# Attribution


def _print_run(console: Console, joined: Joined, attribution: Attribution) -> None:
    run, graph = attribution.run, joined.graph
    console.print(
        printable(
            f"{graph.module.name}: function {text_or_dash(run.function)}, device {text_or_dash(run.device)}, "
            f"workers {text_or_dash(run.workers)}, iterations {format_count(run.iterations)}, "
            f"elapsed {format_ns(run.elapsed_ns)} (rows explain {explained_of_elapsed(attribution)}), "
            f"rule {attribution.rule.value}"
        )
    )
    at_load = sum(site.initializer for site in graph.sites)
    with_members = sum(bool(site.members) for site in graph.sites)
    called = sum(result.calls > 0 for result in joined.site_results.values())
    loaded = f", {at_load} run at load: not measured" if at_load else ""
    console.print(f"{plural(len(graph.sites), 'site')}: {with_members} with members, {called} called{loaded}\n")


def _print_costs(console: Console, joined: Joined, metric: MetricTotal, *, all_ops: bool) -> None:
    results = sorted(joined.op_results.values(), key=lambda result: -result.metrics[metric.name].attributed)
    shown = results if all_ops else results[:TOP_OPS]
    console.print(_cost_table(joined, shown, metric))
    hidden = results[len(shown) :]
    if hidden:
        rest = sum(result.metrics[metric.name].attributed for result in hidden)
        amount = f"{format_quantity(rest, metric.unit)}, {format_share(rest, metric.measured)}"
        console.print(f"… and {plural(len(hidden), 'more op')}: {amount}")
    console.print(_site_cost_table(joined, metric))
    _print_notes(console, joined)


def _cost_table(joined: Joined, results: Iterable[OpResult], metric: MetricTotal) -> Table:
    results = list(results)
    sampled = any(result.metrics[metric.name].sampled_low is not UNKNOWN for result in results)
    table = _table(
        f"Ops by {metric.name}",
        ("op", "text"),
        ("line", "text"),
        ("name", "text"),
        ("scope", "text"),
        ("calls", "number"),
        ("attributed", "number"),
        ("share", "number"),
        ("inclusive", "number"),
        ("low", "number"),
        ("high", "number"),
        ("median/call", "number"),
        *([("95 % interval", "number")] if sampled else []),
    )
    for result in results:
        op = joined.graph.op_by_id[result.op]
        numbers = _cost_cells(result.metrics[metric.name], metric)
        numbers += [_interval(result.metrics[metric.name], metric)] if sampled else []
        _row(table, op.id, _place(joined, op), op.name, joined.scope_of(op), format_count(result.calls), *numbers)
    return table


def _interval(cost: OpCost, metric: MetricTotal) -> str:
    """What the samples leave open, "–" where they decided nothing."""
    if cost.sampled_low is UNKNOWN or cost.sampled_high is UNKNOWN:
        return "–"
    return f"{format_quantity(cost.sampled_low, metric.unit)} – {format_quantity(cost.sampled_high, metric.unit)}"


def _place(joined: Joined, op: Op) -> str:
    """The line in the model, and that of the innermost Python frame where its file is kept."""
    kept = next((frame for frame in joined.frames_of(op) if frame.file in joined.source_index), None)
    model = place_text(op.file, op.line)
    return f"{model} {place_text(kept.file, kept.line)}" if kept else model


def _cost_cells(cost: OpCost, metric: MetricTotal) -> list[str]:
    values = [cost.inclusive, cost.low, cost.high]
    share = format_share(cost.attributed, metric.measured)
    median = format_quantity(cost.per_call.median, metric.unit) if cost.per_call else "–"
    attributed = format_quantity(cost.attributed, metric.unit)
    return [attributed, share, *(format_quantity(value, metric.unit) for value in values), median]


def _site_cost_table(joined: Joined, metric: MetricTotal) -> Table:
    table = _table(
        f"\nSites by {metric.name}",
        ("site", "text"),
        ("kernel", "text"),
        ("root", "text"),
        ("line", "text"),
        ("calls", "number"),
        ("total", "number"),
        ("share", "number"),
        ("median/call", "number"),
        ("p10", "number"),
        ("p90", "number"),
    )
    results = sorted(joined.site_results.values(), key=lambda result: -result.metrics[metric.name].total)
    for result in results[:TOP_OPS]:
        site = joined.graph.site_by_id[result.site]
        root = joined.graph.op_by_id.get(site.root.op) if site.root else None
        cost = result.metrics[metric.name]
        spread = [cost.per_call.median, cost.per_call.p10, cost.per_call.p90] if cost.per_call else []
        name, place = (f"{root.id} {root.name}", place_text(root.file, root.line)) if root else ("–", "–")
        numbers = [format_quantity(value, metric.unit) for value in spread] or ["–"] * 3
        total = format_quantity(cost.total, metric.unit)
        share = format_share(cost.total, metric.measured)
        _row(table, site.id, site.kernel, name, place, format_count(result.calls), total, share, *numbers)
    return table


def _print_notes(console: Console, joined: Joined) -> None:
    results = joined.site_results.values()
    at_load = [site.id for site in joined.graph.sites if site.initializer]
    hidden = len(results) - TOP_OPS
    if hidden > 0:
        console.print(f"… and {plural(hidden, 'more site')}")
    notes = (
        (AT_LOAD, at_load),
        (SPLIT_EVENLY, [result.site for result in results if result.split_evenly]),
        (EQUAL_MEMBERS, [result.site for result in results if result.equal_members]),
    )
    for text, sites in notes:
        if sites:
            console.print(printable(f"{', '.join(sites)}: {text}"))


def _print_balance(console: Console, attribution: Attribution) -> None:
    names = [metric.name for metric in attribution.metrics]
    table = _table("\nBalance", ("", "text"), *((name, "number") for name in names), ("", "text"))
    totals = attribution.metrics
    _row(table, "attributed", *(format_quantity(metric.attributed, metric.unit) for metric in totals), "to ops")
    for row in attribution.residual:
        cells = [format_quantity(row.metrics[metric.name], metric.unit) for metric in totals]
        _row(table, f"residual {row.reason.value}", *cells, RESIDUAL_TEXTS[row.reason])
    _row(table, "measured", *(format_quantity(metric.measured, metric.unit) for metric in totals), "")
    console.print(table)
    for metric in totals:
        console.print(
            f"{printable(metric.name)}: measured {metric.measured} = "
            f"attributed {metric.attributed} + residual {metric.residual} {printable(metric.unit)}"
        )


def _print_diagnostics(console: Console, diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        console.print(printable(f"note [{diagnostic.slug}]: {diagnostic.message}"))
