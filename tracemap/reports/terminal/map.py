"""Terminal output of `show` and `audit`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.core.units import format_bytes, format_count, format_share, plural
from tracemap.map.model import SOURCE, Op, Outcome, Site, TraceGraph
from tracemap.map.query import Audit, LosingPass, Loss, Selection, python_frame, scope_text
from tracemap.reports.escaping import file_line, line_and_column, op_line, or_dash, or_question_mark, root_and_line
from tracemap.reports.kernels import KernelView, loop_tree, ops_at_site, ops_text
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say

if TYPE_CHECKING:
    from rich.console import Console


# ---- audit
#
# Text of `audit`: located ops per compiler phase, lost locations with the ops' outcomes, and the passes at fault.


_WHY_LATE = (
    "flow merges equal kernels, and hal replaces their bodies with machine code: "
    "dispatched ops still run in their dispatches"
)

_NAMED = 6
"""Most ops named in a row of the table; the JSON names all."""

_PHASES = (Heading("phase"), number("located"), number("lost"))
_LOSSES = (
    Heading("phase"),
    Heading("kind", least=12),
    number("ops"),
    Heading("outcome"),
    Heading("reason", leave=20, least=24, words=True),
    Heading("op ids", leave=60, least=24, words=True),
)


def print_audit(graph: TraceGraph, audit: Audit, out: TextIO, *, list_all: bool) -> None:
    """Print ops per phase, lost locations per phase and kind of op, and the passes that lost them.

    Args:
        graph: the map.
        audit: the audit of the map.
        out: the output; lines fit the width of a terminal.
        list_all: name every op without a location of its own.
    """
    terminal = console(out)
    own = audit.ops - len(audit.without_location)
    located = f"{plural(audit.ops, 'op')}, {own} with a location of their own"
    say(terminal, f"{graph.module.name}: {located} ({format_share(own, audit.ops)})")
    say(terminal, "")
    print_table(terminal, "", _PHASES, _phase_rows(audit))
    if audit.unknown:
        say(terminal, f"{plural(audit.unknown, 'op')} not tracked: the bundle does not record their last phase")
    if audit.losses:
        print_table(terminal, "Lost locations, by the first phase without them", _LOSSES, _loss_rows(audit.losses))
        say(terminal, _WHY_LATE)
    if audit.without_location:
        _print_unlocated(terminal, audit.without_location, list_all=list_all)
    for spot in audit.spots:
        _print_spot(terminal, graph.op_by_id[spot.op], spot)


def _phase_rows(audit: Audit) -> Iterator[tuple[object, ...]]:
    yield SOURCE, audit.ops - audit.unknown, ""
    for count in audit.phases:
        yield count.phase, count.located, count.lost or ""


def _loss_rows(losses: Sequence[Loss]) -> Iterator[tuple[object, ...]]:
    """One row per phase, kind of op, outcome and reason, in the order of phases, then by size."""
    groups: dict[tuple[str, str, str, str], list[Op]] = defaultdict(list)
    for loss in losses:
        groups[loss.phase, loss.op.name, loss.op.outcome.value, loss.op.reason.slug].append(loss.op)
    # Losses are in the order of compilation, so their phases are, too.
    phases = list(dict.fromkeys(loss.phase for loss in losses))
    for key, ops in sorted(groups.items(), key=lambda item: (phases.index(item[0][0]), -len(item[1]), item[0])):
        phase, name, outcome, _ = key
        yield phase, name, len(ops), outcome, _reasons(ops), _op_names(ops)


def _reasons(ops: Sequence[Op]) -> str:
    """The reason; of several that differ only in the place, the first and an ellipsis."""
    texts = list(dict.fromkeys(op.reason.text for op in ops))
    return texts[0] if len(texts) == 1 else f"{texts[0]}, …"


def _op_names(ops: Sequence[Op]) -> str:
    names = ", ".join(f"{op.id} ({line_and_column(op)})" for op in ops[:_NAMED])
    return names if len(ops) <= _NAMED else f"{names}, {len(ops) - _NAMED} more"


def _print_unlocated(terminal: Console, ops: Sequence[Op], *, list_all: bool) -> None:
    say(terminal, "")
    say(terminal, f"{plural(len(ops), 'op')} without a location of their own")
    if not list_all:
        say(terminal, _op_names(ops))
        return
    for op in ops:
        say(terminal, f"{or_question_mark(op.file)}:{line_and_column(op)}: {op.name} ({op.id})")


def _print_spot(terminal: Console, op: Op, spot: LosingPass) -> None:
    culprit = "; no printed pass shows where"
    if spot.pass_name:
        argument = f" ({spot.argument})" if spot.argument else ""
        culprit = f" by {spot.pass_name}{argument}, change {spot.number}, on {spot.anchor}"
    say(terminal, "")
    say(terminal, f"{op.id} {op.name} at {line_and_column(op)}: location lost in phase {spot.phase}{culprit}")
    for title, text in (("before", spot.before), ("after", spot.after)):
        for line in (f"  {title}", *(f"    {line}" for line in text.splitlines())) if text else ():
            say(terminal, line)


# ---- show
#
# Text of `show`: ops, dispatch sites with their ops, kernels, and the IR, loops and instructions of a kernel.


_LINE = Heading("line", leave=20, least=12)
_KERNEL = Heading("kernel", least=20)
_NAME = Heading("name", least=12)
_OPS = (
    Heading("op"),
    _LINE,
    _NAME,
    Heading("scope", leave=50, least=8),
    Heading("python", leave=70, least=12),
    Heading("outcome"),
    Heading("sites", leave=40, least=9),
    Heading("reason", leave=30, least=20, words=True),
)
_SITES = (
    Heading("site"),
    _KERNEL,
    Heading("function", leave=50, least=10),
    Heading("path", leave=60, least=12),
    Heading("command", leave=70),
    Heading("root", leave=30, least=12),
    _LINE,
    number("ops", leave=40),
)
_MEMBERS = (
    Heading("site"),
    Heading("op"),
    _LINE,
    _NAME,
    Heading("evidence"),
    number("operations", leave=30),
    number("read", leave=31),
    number("written", leave=31),
)
_KERNELS = (_KERNEL, number("IR lines", leave=10), Heading("sites", least=12, words=True))
_LINES = (
    number("line"),
    number("instructions", leave=30),
    Heading("ops", leave=20, least=20),
    Heading("text", least=30, at_end=True, mlir=True),
)
_LOOPS = (Heading("address"), number("instructions"), Heading("ops", least=30, words=True))
_INSTRUCTIONS = (Heading("address"), number("line"), Heading("instruction", least=30, at_end=True))


def print_map(selection: Selection, graph: TraceGraph, out: TextIO, *, whole: bool = False) -> None:
    """Print ops, sites and kernels of a map.

    Args:
        selection: what to print.
        graph: the map that the selection is part of.
        out: the output; a terminal gets colours and lines that fit its width.
        whole: print the coverage of the whole map first and its diagnostics last.
    """
    terminal = console(out)
    if whole:
        _print_coverage(terminal, graph)
    if selection.ops:
        print_table(terminal, "Ops", _OPS, (_op_row(op, graph) for op in selection.ops), gap=False)
    if selection.sites:
        print_table(terminal, "Dispatch sites", _SITES, (_site_row(site, graph) for site in selection.sites))
    members = list(_member_rows(selection.sites, graph))
    if members:
        print_table(terminal, "Ops in dispatches", _MEMBERS, members)
    if selection.kernels:
        rows = ((kernel.name, len(kernel.steps), ", ".join(kernel.sites)) for kernel in selection.kernels)
        print_table(terminal, "Kernels", _KERNELS, rows)
    print_diagnostics(terminal, graph.diagnostics if whole else ())


def _print_coverage(terminal: Console, graph: TraceGraph) -> None:
    outcomes = {outcome: sum(op.outcome is outcome for op in graph.ops) for outcome in Outcome}
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in outcomes.items() if count)
    with_members = sum(bool(site.members) for site in graph.sites)
    inferred = sum(op.reason.inferred for op in graph.ops)
    say(terminal, f"{graph.module.name}, compiled by {graph.module.iree_compiler}")
    say(terminal, f"{plural(len(graph.ops), 'op')}: {counts or 'none'}; {plural(inferred, 'outcome')} inferred")
    dispatches = plural(len(graph.sites), "dispatch")
    say(terminal, f"{dispatches} of {plural(len(graph.kernels), 'kernel')}, {with_members} traced to ops")
    say(terminal, "")


def _op_row(op: Op, graph: TraceGraph) -> tuple[str, ...]:
    frame = python_frame(graph, op)
    python = file_line(frame.file, frame.line) if frame else ""
    sites = ", ".join(graph.sites_of_op.get(op.id, ()))
    return op.id, op_line(op), op.name, scope_text(graph, op), python, op.outcome.value, sites, op.reason.text


def _site_row(site: Site, graph: TraceGraph) -> tuple[object, ...]:
    function = "(at load)" if site.initializer else or_dash(site.function)
    command = f"{or_dash(site.command_buffer)}:{or_dash(site.command_index)}"
    path = " › ".join(site.path)
    return site.id, site.kernel, function, path, command, *root_and_line(graph, site), len(site.members)


def _member_rows(sites: Sequence[Site], graph: TraceGraph) -> Iterator[tuple[str, ...]]:
    for site in sites:
        for member in site.members:
            op = graph.op_by_id.get(member.op)
            line, name = (op_line(op), op.name) if op else ("–", "–")
            evidence = member.evidence.value + (", root" if member.root else "")
            moved = format_bytes(member.bytes_read), format_bytes(member.bytes_written)
            yield site.id, member.op, line, name, evidence, format_count(member.operations), *moved


def print_kernel(view: KernelView, graph: TraceGraph, out: TextIO, *, assembly: bool = False) -> None:
    """Print the final IR of a kernel, its loops and, with `assembly`, its instructions."""
    terminal = console(out)
    if view.lines:
        print_table(terminal, _title(view), _LINES, _line_rows(view, graph))
    if view.loops:
        print_table(terminal, "Loops in the machine code", _LOOPS, _loop_rows(view, graph))
    if assembly and view.instructions:
        print_table(terminal, "Instructions", _INSTRUCTIONS, _instruction_rows(view))
    if view.no_code:
        say(terminal, f"no loops and no instructions: {view.no_code}")


def _title(view: KernelView) -> str:
    first, *others = view.kernel.sites or ("",)
    ops_of = f", with the ops of {first}; its other dispatches run the same code" if others else ""
    return f"Final IR of {view.kernel.name} (kernels/{or_dash(view.kernel.text)}){ops_of}"


def _line_rows(view: KernelView, graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    for line in view.lines:
        ops = ops_text(graph, ops_at_site(graph, view.kernel, line.ops))
        yield line.line, line.instructions or "", ops, line.text


def _loop_rows(view: KernelView, graph: TraceGraph) -> Iterator[tuple[object, ...]]:
    for depth, loop in loop_tree(view.loops):
        ops = ops_text(graph, ops_at_site(graph, view.kernel, loop.ops), most=12)
        yield "  " * depth + hex(loop.address), loop.instructions, ops or "–"


def _instruction_rows(view: KernelView) -> Iterator[tuple[object, ...]]:
    for instruction in view.instructions:
        yield hex(instruction.address), instruction.line or "–", f"{instruction.mnemonic} {instruction.operands}"
