"""What `show` prints of the inside of a kernel: its final IR, its loops, its instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from tracemap.graph.model import TraceGraph
from tracemap.reports.escaping import for_terminal
from tracemap.reports.kernels import KernelView, loop_tree, ops_at_site, ops_text
from tracemap.reports.labels import or_dash
from tracemap.reports.terminal.tables import Number, console, table

_LINES = (Number("line"), Number("instructions"), "ops", "text")
_LOOPS = ("address", Number("instructions"), "ops")
_INSTRUCTIONS = ("address", Number("line"), "instruction")


def print_kernel(view: KernelView, graph: TraceGraph, out: TextIO, *, assembly: bool = False) -> None:
    """Print the inside of a kernel: its final IR, its loops, and its instructions where they are asked for."""
    to = console(out)
    if view.lines:
        to.print(table(_title(view), _LINES, _line_rows(view, graph)))
    if view.loops:
        to.print(table("Loops of its machine code", _LOOPS, _loop_rows(view, graph)))
    if assembly and view.instructions:
        to.print(table("Instructions", _INSTRUCTIONS, _instruction_rows(view)))
    if view.no_code:
        to.print(for_terminal(f"no loops and no instructions: {view.no_code}"))


def _title(view: KernelView) -> str:
    first, *others = view.kernel.sites or ("",)
    of_sites = f", ops of {first}; its other sites have the same steps" if others else ""
    return f"Final IR of {view.kernel.name} (kernels/{or_dash(view.kernel.text)}){of_sites}"


def _line_rows(view: KernelView, graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    for line in view.lines:
        ops = ops_text(graph, ops_at_site(graph, view.kernel, line.ops))
        yield line.line, line.instructions or "", ops, line.text


def _loop_rows(view: KernelView, graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    for depth, loop in loop_tree(view.loops):
        ops = ops_text(graph, ops_at_site(graph, view.kernel, loop.ops), most=12)
        yield "  " * depth + hex(loop.address), loop.instructions, ops or "–"


def _instruction_rows(view: KernelView) -> Iterator[tuple[object, ...]]:
    for each in view.instructions:
        yield hex(each.address), each.line or "–", f"{each.mnemonic} {each.operands}"
