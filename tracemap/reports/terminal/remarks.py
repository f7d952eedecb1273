"""What `remarks` prints: a table of remarks with their ops and steps, and what is not in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.graph.documents import FIGURES, Remark, Remarks
from tracemap.graph.model import TraceGraph
from tracemap.options.compile import RemarksOptions
from tracemap.reports.escaping import op_line, or_dash
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say
from tracemap.units import Unknown, plural

if TYPE_CHECKING:
    from rich.console import Console

_SHARE = number("of cost")
_REMARKS = (
    Heading("op", least=5),
    Heading("line", leave=30, least=12),
    Heading("name", leave=20, least=12),
    Heading("kernel", leave=35, least=16),
    Heading("pass", leave=25),
    number("times", leave=40),
    Heading("remark", least=30, words=True),
)
KERNEL = "(kernel)"
"""In place of an op: what is said of a kernel as a whole."""


def print_remarks(found: Remarks, graph: TraceGraph, out: TextIO, options: RemarksOptions) -> None:
    """Print the first remarks, and say how many there are besides."""
    to = console(out)
    kernels = len({remark.kernel for remark in found.remarks})
    by = "" if isinstance(found.run, Unknown) else f", by {or_dash(found.metric)} of {found.run}"
    at = sum(remark.count for remark in found.remarks)
    say(to, f"{plural(at, 'remark')} at lines of {plural(kernels, 'kernel')}, {found.elsewhere} elsewhere{by}")
    listed = found.remarks if options.figures else _without_figures(found.remarks)
    shown = listed[: options.top or None]
    _print_table(to, shown, graph, with_costs=not isinstance(found.run, Unknown))
    if len(shown) < len(listed):
        say(to, f"… and {plural(len(listed) - len(shown), 'row')} more: --top 0 shows all")
    _say_figures(to, len(found.remarks) - len(listed), "--figures")
    print_diagnostics(to, found.diagnostics)


def print_some_remarks(found: Sequence[Remark], graph: TraceGraph, out: TextIO) -> None:
    """Print remarks of a part of the map."""
    to = console(out)
    listed = _without_figures(found)
    _print_table(to, listed, graph, with_costs=False)
    if not listed:
        say(to, "no remarks of the compiler")
    _say_figures(to, len(found) - len(listed), "tracemap remarks --figures")


def _without_figures(found: Sequence[Remark]) -> Sequence[Remark]:
    return [remark for remark in found if remark.pass_name not in FIGURES]


def _say_figures(to: Console, count: int, how: str) -> None:
    if count:
        say(to, f"and {plural(count, 'row')} of counts of instructions, blocks and stack: {how} shows them")


def _print_table(to: Console, shown: Sequence[Remark], graph: TraceGraph, *, with_costs: bool) -> None:
    """Print remarks, with the cost of their ops where they have one."""
    headings = (_SHARE, *_REMARKS) if with_costs else _REMARKS
    rows = ((_share(each), *row) if with_costs else row for each, row in zip(shown, _rows(shown, graph), strict=True))
    if shown:
        print_table(to, "Remarks of the compiler", headings, rows)


def _share(remark: Remark) -> str:
    return "–" if remark.cost_share is None else f"{100 * remark.cost_share:.1f} %"


def _rows(shown: Sequence[Remark], graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    kernels = dict.fromkeys(remark.kernel for remark in shown if isinstance(remark.kernel, str))
    steps = {(name, step.line) for name in kernels for step in graph.kernel_by_name[name].steps if step.ops}
    for remark in shown:
        place = f"{or_dash(remark.kernel)}:{or_dash(remark.line)}"
        op, line, name = KERNEL, "", ""
        if remark.ops and ((remark.kernel, remark.line) in steps or isinstance(remark.line, Unknown)):
            first = graph.op_by_id[remark.ops[0]]
            more = f" +{len(remark.ops) - 1}" if len(remark.ops) > 1 else ""
            op, line, name = f"{first.id}{more}", op_line(first), first.name
        text = remark.text.replace("\n", "; ")
        yield op, line, name, place, or_dash(remark.pass_name), remark.count, text
