"""Terminal output of `stats`, `lower`, `remarks` and `what-if`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.attribution.what_if import REMOVED, ROOFLINE, UNCHANGED, ProgramGains, TargetGain, factor_name
from tracemap.core.units import Unknown, format_ns, plural
from tracemap.map.bundle_documents import STATISTICS_PASSES, Remark, Remarks
from tracemap.map.lowering import Link, Loop, Lowering, SourceOp, Stage
from tracemap.map.model import Evidence, TraceGraph
from tracemap.options.compile import RemarksOptions
from tracemap.options.reports import WhatIfOptions
from tracemap.reports.cost_lookup import MapCosts, default_metric
from tracemap.reports.escaping import for_hook_text, line_and_column, op_line, or_dash, or_question_mark
from tracemap.reports.html import SHADES, shade_level
from tracemap.reports.lowering_page import heading, place_text
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say
from tracemap.runs.hook.stats import DURATION, PairStats, ThreadStats

if TYPE_CHECKING:
    from rich.console import Console


# ---- stats
#
# Statistics of kernel calls as text, character for character in the layout of IREE's hook.


_LABELS = {DURATION: "duration_ms"}
"""IREE's hook writes ms but means us. The text keeps that; JSON and CSV have the right unit."""


def stats_text(threads: Sequence[ThreadStats], buckets: int, gamma: float, *, tables: bool) -> str:
    """The statistics of all threads, in order."""
    return "".join(line + "\n" for thread in threads for line in _thread_lines(thread, buckets, gamma, tables))


def _thread_lines(thread: ThreadStats, buckets: int, gamma: float, tables: bool) -> Iterator[str]:
    yield f"Statistics for thread {for_hook_text(thread.thread)}:"
    yield f"  {thread.calls} matching calls, of which:"
    yield from (f"    {count} calls on cpu {cpu}" for cpu, count in thread.calls_of_cpu)
    for index, series in enumerate(thread.series):
        yield f"  {_label(series.name)}:"
        yield f"    mean: {_number(series.mean, 3)}"
        yield f"    {buckets}-ile means: " + " ".join(_number(mean, 3) for mean in series.bucket_means)
        first = index * (index - 1) // 2  # pairs of earlier series come first: 0 + 1 + … of them
        for pair in thread.pairs[first : first + index]:
            yield f"  correlation of {_label(pair.of)} vs. {_label(pair.given)}: {_number(pair.correlation, 2)}"
            if tables:
                yield from _table_lines(pair, buckets, gamma)


def _table_lines(pair: PairStats, buckets: int, gamma: float) -> Iterator[str]:
    of, given = _label(pair.of), _label(pair.given)
    yield f"  conditional probability of {of} {buckets}-ile (↓) given {given} {buckets}-ile (→):"
    yield " " * 8 + "".join(f" {column:2x}" for column in range(buckets))
    for row in range(buckets):
        yield f"      {row:2x}" + "".join(f" {SHADES[shade_level(float(cell), gamma)]}" for cell in pair.table[row])
    yield ""


def _label(name: str) -> str:
    return _LABELS.get(name, for_hook_text(name))


def _number(value: float, digits: int) -> str:
    """A number as C prints it; NaN as `-nan`, since x86's default NaN has its sign bit set."""
    return "-nan" if math.isnan(value) else f"{value:.{digits}g}"


# ---- lowering
#
# Text of `lower`: the loops of every stage with their ops, then the place of every op in every stage.


_ONLY_OUTERMOST = "The table of ops names outermost loops. Rows of nested loops show the ops inside them."
_LOOPS = (
    Heading("loop"),
    Heading("lines"),
    Heading("function", leave=20, least=10),
    Heading("kind", leave=10, least=10),
    Heading("ops", least=20),
)


def print_lowering(lowering: Lowering, out: TextIO) -> None:
    """Print the loops of every stage with their ops, then the place of every op in every stage.

    Stage 0, the model, has a table only if it has loops. Only the JSON has constants.
    """
    terminal = console(out)
    say(terminal, f"{lowering.model}: {plural(len(lowering.ops), 'op')}, iree-opt {lowering.compiler}")
    for index, stage in enumerate(lowering.stages):
        if stage.loops or index:
            say(terminal, "")
            say(terminal, heading(stage, index))
            _print_stage(terminal, stage, lowering)
    shown = [op for op in lowering.ops if not op.constant]
    stages = (Heading(f"stage {number}", least=12) for number in range(1, len(lowering.stages)))
    headings = (Heading("op"), Heading("line", leave=10), Heading("name", least=14), *stages)
    print_table(terminal, "Ops by stage", headings, (_op_row(op, lowering) for op in shown))
    constants = len(lowering.ops) - len(shown)
    if constants:
        say(terminal, f"{plural(constants, 'constant')} not shown; --format json has all")


def _print_stage(terminal: Console, stage: Stage, lowering: Lowering) -> None:
    if not stage.loops:
        say(terminal, "no loops")
        return
    rows = _loop_rows(stage.loops, lowering, op_per_line=not terminal.soft_wrap)  # in a pipe, a row is one line
    print_table(terminal, "", _LOOPS, rows)
    untraced = sum(loop.untraced for loop in stage.loops)
    inside = sum(loop.operations for loop in stage.loops)
    if any(loop.children for loop in stage.loops):
        say(terminal, _ONLY_OUTERMOST)
    if untraced:
        say(terminal, f"{untraced} of {plural(inside, 'operation')} in loops cannot be traced to an op")


def _loop_rows(
    loops: Sequence[Loop], lowering: Lowering, *, op_per_line: bool, level: int = 0
) -> Iterator[tuple[object, ...]]:
    for loop in loops:
        lines = f"{or_question_mark(loop.line)}-{or_question_mark(loop.last_line)}"
        ops = tuple(_link_text(link, lowering) for link in loop.links) or ("none",)
        yield "  " * level + loop.id, lines, loop.function, loop.name, ops if op_per_line else ", ".join(ops)
        yield from _loop_rows(loop.children, lowering, op_per_line=op_per_line, level=level + 1)


def _link_text(link: Link, lowering: Lowering) -> str:
    op = lowering.op_by_id[link.op]
    fused = "" if link.evidence is Evidence.LOCATED else f" {link.evidence.value}"
    return f"{op.id} {op.name} {line_and_column(op)}{fused}"


def _op_row(op: SourceOp, lowering: Lowering) -> tuple[str, ...]:
    places = zip(lowering.places_of(op.id), lowering.stages, strict=True)
    return op.id, line_and_column(op), op.name, *[place_text(place, stage) for place, stage in places][1:]


# ---- remarks
#
# Text of `remarks`: a table of compiler remarks with their ops and lines of kernel IR, and how many more there are.


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
    return [remark for remark in remarks if remark.pass_name not in STATISTICS_PASSES]


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


# ---- what-if


def print_gains(costed: MapCosts, gains: ProgramGains, out: TextIO, options: WhatIfOptions) -> None:
    """Print a line for a single change, or the table of all ops."""
    terminal = console(out)
    if options.names_change:
        for change in gains.changes:
            say(terminal, gain_text(change))
        return
    shown = gains.changes[: options.top or None]
    attribution = costed.attribution
    assert attribution is not None
    metric = costed.metrics[default_metric(costed.metrics)]
    faster = faster_text(shown[0].factor) if shown else ""
    headings = [
        *(Heading("op"), Heading("line", least=8), Heading("name", least=8)),
        *(number(f"of {metric.name} %", leave=20), number(f"if {faster} %")),
        *(Heading("low %", right=True, leave=10, begins_pair=True), number("high %", leave=10)),
        Heading("why none", leave=30, least=18, words=True),
    ]
    rows = []
    for change in shown:
        op, gain = costed.graph.op_by_id[change.ops[0]], change.gain
        share = 100 * costed.attributed(op.id).get(metric.name, 0) / metric.work if metric.work else 0.0
        numbers = (f"{gain.percent(time):.1f}" for time in (gain.after_ns, gain.high_ns, gain.low_ns))
        rows.append((op.id, op_line(op), op.node or op.name, f"{share:.1f}", *numbers, gain.reason))
    title = f"Gain of the mean time of an invocation, {format_ns(gains.before_ns)}, if an op gets {faster}"
    print_table(terminal, title, headings, rows, gap=False)
    if len(gains.changes) > len(shown):
        say(terminal, f"… {plural(len(gains.changes) - len(shown), 'more op')}")


def faster_text(factor: float) -> str:
    """A factor in words: `2x faster`; empty for work that does not change."""
    if factor == UNCHANGED:
        return ""
    return {ROOFLINE: "at its roofline", REMOVED: "removed"}.get(factor, f"{factor_name(factor)} faster")


def gain_text(change: TargetGain) -> str:
    """The gain by a change, in one line."""
    gain = change.gain
    saved, low, high = (gain.percent(time) for time in (gain.after_ns, gain.high_ns, gain.low_ns))
    if saved < 0:
        low, high = 0.0 - high, 0.0 - low
    sign = "" if gain.after_ns == gain.before_ns else "−" if saved > 0 else "+"
    before, after = format_ns(gain.before_ns), format_ns(gain.after_ns)
    before = before.removesuffix(f" {after.rpartition(' ')[2]}")
    what = " ".join(filter(None, (change.target, faster_text(change.factor))))
    why = f"; {gain.reason}" if gain.reason else ""
    return f"{what}: {sign}{abs(saved):.1f} % ({low:.1f} to {high:.1f}), {before} -> {after} per invocation{why}"
