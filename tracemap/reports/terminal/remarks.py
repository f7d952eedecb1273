"""Text of `remarks`: a table of compiler remarks with their ops and lines of kernel IR, and how many more there are."""

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
"""In place of an op: the remark is on the kernel as a whole."""


def print_remarks(remarks: Remarks, graph: TraceGraph, out: TextIO, options: RemarksOptions) -> None:
    """Print the first remarks, and the number of others."""
    terminal = console(out)
    kernels = len({remark.kernel for remark in remarks.remarks})
    by = "" if isinstance(remarks.run, Unknown) else f", by {or_dash(remarks.metric)} of {remarks.run}"
    count = sum(remark.count for remark in remarks.remarks)
    say(
        terminal,
        f"{plural(count, 'remark')} on lines of {plural(kernels, 'kernel')}, {remarks.elsewhere} elsewhere{by}",
    )
    listed = remarks.remarks if options.figures else _without_figures(remarks.remarks)
    shown = listed[: options.top or None]
    _print_table(terminal, shown, graph, with_costs=not isinstance(remarks.run, Unknown))
    if len(shown) < len(listed):
        say(terminal, f"… {plural(len(listed) - len(shown), 'more row')}; --top 0 shows all")
    _print_hidden_figures(terminal, len(remarks.remarks) - len(listed), "--figures")
    print_diagnostics(terminal, remarks.diagnostics)


def print_some_remarks(remarks: Sequence[Remark], graph: TraceGraph, out: TextIO) -> None:
    """Print remarks on a part of the map."""
    terminal = console(out)
    listed = _without_figures(remarks)
    _print_table(terminal, listed, graph, with_costs=False)
    if not listed:
        say(terminal, "no compiler remarks")
    _print_hidden_figures(terminal, len(remarks) - len(listed), "tracemap remarks --figures")


def _without_figures(remarks: Sequence[Remark]) -> Sequence[Remark]:
    return [remark for remark in remarks if remark.pass_name not in FIGURES]


def _print_hidden_figures(terminal: Console, count: int, command: str) -> None:
    if count:
        say(
            terminal,
            f"{plural(count, 'row')} with counts of instructions, blocks and stack hidden; {command} shows them",
        )


def _print_table(terminal: Console, shown: Sequence[Remark], graph: TraceGraph, *, with_costs: bool) -> None:
    """Print a table of remarks, optionally with the costs of their ops."""
    headings = (_SHARE, *_REMARKS) if with_costs else _REMARKS
    pairs = zip(shown, _rows(shown, graph), strict=True)
    rows = ((_share(remark), *row) if with_costs else row for remark, row in pairs)
    if shown:
        print_table(terminal, "Compiler remarks", headings, rows)


def _share(remark: Remark) -> str:
    return "–" if remark.cost_share is None else f"{100 * remark.cost_share:.1f} %"


def _rows(shown: Sequence[Remark], graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    kernels = dict.fromkeys(remark.kernel for remark in shown if isinstance(remark.kernel, str))
    steps = {(name, step.line) for name in kernels for step in graph.kernel_by_name[name].steps if step.ops}
    for remark in shown:
        position = f"{or_dash(remark.kernel)}:{or_dash(remark.line)}"
        op, line, name = KERNEL, "", ""
        if remark.ops and ((remark.kernel, remark.line) in steps or isinstance(remark.line, Unknown)):
            first = graph.op_by_id[remark.ops[0]]
            more = f" +{len(remark.ops) - 1}" if len(remark.ops) > 1 else ""
            op, line, name = f"{first.id}{more}", op_line(first), first.name
        text = remark.text.replace("\n", "; ")
        yield op, line, name, position, or_dash(remark.pass_name), remark.count, text
