"""Text of `lower`: the loops of every stage with their ops, then the place of every op in every stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.graph.lowering import Link, Loop, Lowering, SourceOp, Stage
from tracemap.graph.model import Evidence
from tracemap.reports.escaping import line_and_column, or_question_mark
from tracemap.reports.lowering_page import heading, place_text
from tracemap.reports.terminal.tables import Heading, console, print_table, say
from tracemap.units import plural

if TYPE_CHECKING:
    from rich.console import Console

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
    for number, stage in enumerate(lowering.stages):
        if stage.loops or number:
            say(terminal, "")
            say(terminal, heading(stage, number))
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
