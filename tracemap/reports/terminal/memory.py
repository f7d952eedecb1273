"""Terminal output of `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.core.diagnostics import RELEASES_MISSING, Diagnostic, has_slug
from tracemap.core.units import format_bytes, join_names, plural
from tracemap.map.memory_use import HeldValue, MemoryUse
from tracemap.map.model import TraceGraph
from tracemap.options.compile import MemoryOptions
from tracemap.reports.escaping import op_line
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say
from tracemap.runs.allocations import AllocatedMemory

if TYPE_CHECKING:
    from rich.console import Console

_RESOURCES: Final = {"external": "results"}
"""Words for resources where IREE's own would not be understood."""
_MOST_SITES: Final = 3


def print_memory(
    graph: TraceGraph,
    found: Sequence[tuple[MemoryUse, MemoryUse]],
    kept: Sequence[HeldValue],
    allocated: AllocatedMemory | None,
    diagnostics: Sequence[Diagnostic],
    options: MemoryOptions,
    out: TextIO,
) -> None:
    """Print a table of the values at the peak of each function, and one of the module's constants and variables.

    Args:
        graph: the map.
        found: the memory of each function, as it is and without some ops.
        kept: the constants and variables of the module.
        allocated: the memory of a run; None: there is none.
        diagnostics: notes on the run.
        options: the options of `tracemap memory`.
        out: the stream.
    """
    terminal = console(out)
    for whole, use in found:
        if not use.peak_bytes:
            say(terminal, f"{use.function}: allocates nothing")
            continue
        for line in _summary(whole, use, options):
            say(terminal, line)
        if allocated is not None and isinstance(allocated.peak_bytes, int):
            say(terminal, _allocated(whole, allocated, is_limit=has_slug(diagnostics, RELEASES_MISSING)))
        headings = [
            *(Heading("op"), Heading("line", least=8), Heading("name", least=8)),
            *(number("bytes"), number("of peak %", leave=20), Heading("written by", leave=10)),
            *(Heading("read by", leave=30), number("peak without", leave=5)),
        ]
        rows = [_row(graph, use, value) for value in use.held[: options.top or None]]
        print_table(terminal, "", headings, rows, gap=False)
        _say_more(terminal, len(use.held) - len(rows))
    if kept:
        headings = [
            *(Heading("op"), Heading("line", least=8), Heading("name", least=8), number("bytes")),
            *(Heading("read by", leave=10), Heading("reading ops", leave=20)),
        ]
        rows = [_kept_row(graph, value) for value in kept[: options.top or None]]
        print_table(terminal, "Constants and variables of the module, not in the peak", headings, rows)
        _say_more(terminal, len(kept) - len(rows))
    print_diagnostics(terminal, diagnostics)


def _say_more(terminal: Console, hidden: int) -> None:
    if hidden:
        say(terminal, f"… {plural(hidden, 'more value')}")


def _allocated(plan: MemoryUse, allocated: AllocatedMemory, *, is_limit: bool) -> str:
    same = ", as planned" if allocated.peak_bytes == plan.peak_bytes else ""
    most = "at most " if is_limit else ""
    each = f"{plural(allocated.allocations, 'allocation')} in {plural(allocated.invocations, 'invocation')}"
    return f"{allocated.run}: {most}{format_bytes(allocated.peak_bytes)} allocated at the peak{same}, {each}"


def _summary(whole: MemoryUse, use: MemoryUse, options: MemoryOptions) -> list[str]:
    steps = f"step {use.step + 1} of {len(use.curve)}"
    name = whole.function
    if use is not whole:
        saved = whole.peak_bytes - use.peak_bytes
        change = "the same" if not saved else f"{'−' if saved > 0 else '+'}{format_bytes(abs(saved))}"
        name += f" without {join_names(options.without)} ({change})"
    parts = [f"{_RESOURCES.get(resource, resource)} {format_bytes(size)}" for resource, size in use.by_resource.items()]
    about = "about " if use.is_estimate else ""
    lines = [f"{name}: {about}{format_bytes(use.peak_bytes)} at the peak, {steps}: {', '.join(parts)}"]
    if use.is_estimate:
        lines.append("an estimate: the compiler may fuse other ops then; compile the edited model to know the peak")
    if use.unused_bytes:
        lines.append(f"{format_bytes(use.unused_bytes)} of it hold no value at that step (layout)")
    if use.load_peak_bytes:
        loading = (
            f" ({format_bytes(use.load_peak_bytes)} while it is loaded)" if use.load_peak_bytes > use.kept_bytes else ""
        )
        lines.append(f"constants and variables of the module: {format_bytes(use.kept_bytes)} more{loading}")
    return lines


def _row(graph: TraceGraph, use: MemoryUse, value: HeldValue) -> tuple[str, ...]:
    return (
        *_op_cells(graph, value),
        format_bytes(value.bytes),
        f"{100 * value.bytes / use.peak_bytes:.1f}",
        _first_of(value.written_by),
        _first_of(value.read_by),
        _peak_without(value),
    )


def _peak_without(value: HeldValue) -> str:
    if not isinstance(value.peak_without, int):
        return ""
    return f"{'about ' if value.is_estimate else ''}{format_bytes(value.peak_without)}"


def _kept_row(graph: TraceGraph, value: HeldValue) -> tuple[str, ...]:
    return (*_op_cells(graph, value), format_bytes(value.bytes), _first_of(value.read_by), _first_of(value.reading_ops))


def _op_cells(graph: TraceGraph, value: HeldValue) -> tuple[str, str, str]:
    """The first op of a value, its line, and its name; without an op, the resource."""
    ops = [graph.op_by_id[op] for op in value.ops]
    first = ops[0] if ops else None
    name = (first.node or first.name) if first else f"({_RESOURCES.get(value.resource, value.resource)})"
    more = f" +{len(ops) - 1}" if len(ops) > 1 else ""
    return (
        f"{first.id}{more}" if first else "",
        op_line(first) if first else "",
        f"{name}, previous trip" if value.is_carried else name,
    )


def _first_of(ids: Sequence[str]) -> str:
    more = f" +{len(ids) - _MOST_SITES}" if len(ids) > _MOST_SITES else ""
    return " ".join(ids[:_MOST_SITES]) + more
