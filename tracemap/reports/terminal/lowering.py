"""What `lower` prints: the loops of every stage with the ops in them, then where every op is, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.graph.lowering import Link, Loop, Lowering, SourceOp, Stage
from tracemap.graph.model import Evidence
from tracemap.reports.escaping import line_and_column, or_question_mark
from tracemap.reports.lowering_page import heading, whereabouts
from tracemap.reports.terminal.tables import Heading, console, print_table, say
from tracemap.units import plural

if TYPE_CHECKING:
    from rich.console import Console

_ONLY_OUTERMOST = "Links are with outermost loops; rows of loops within show what is in them."
_LOOPS = (
    Heading("loop"),
    Heading("lines"),
    Heading("function", leave=20, least=10),
    Heading("kind", leave=10, least=10),
    Heading("ops", least=20),
)


def print_lowering(lowering: Lowering, out: TextIO) -> None:
    """Print the loops of every stage with their ops, then where every op is, stage by stage.

    Stage 0, the model, has a table of its own only where it has loops. Constants are in the JSON only.
    """
    to = console(out)
    say(to, f"{lowering.model}: {plural(len(lowering.ops), 'op')}, iree-opt {lowering.compiler}")
    for number, stage in enumerate(lowering.stages):
        if stage.loops or number:
            say(to, "")
            say(to, heading(stage, number))
            _print_stage(to, stage, lowering)
    shown = [op for op in lowering.ops if not op.constant]
    stages = (Heading(f"stage {number}", least=12) for number in range(1, len(lowering.stages)))
    headings = (Heading("op"), Heading("line", leave=10), Heading("name", least=14), *stages)
    print_table(to, "Where each op is", headings, (_op_row(op, lowering) for op in shown))
    constants = len(lowering.ops) - len(shown)
    if constants:
        say(to, f"{plural(constants, 'constant')} left out; --format json has all")


def _print_stage(to: Console, stage: Stage, lowering: Lowering) -> None:
    if not stage.loops:
        say(to, "no loops")
        return
    rows = _loop_rows(stage.loops, lowering, a_line_each=not to.soft_wrap)  # a row is a line only for other programs
    print_table(to, "", _LOOPS, rows)
    untraced = sum(loop.untraced for loop in stage.loops)
    inside = sum(loop.operations for loop in stage.loops)
    if any(loop.children for loop in stage.loops):
        say(to, _ONLY_OUTERMOST)
    if untraced:
        say(to, f"{untraced} of {plural(inside, 'operation')} in loops have no location that leads to an op")


def _loop_rows(
    loops: Sequence[Loop], lowering: Lowering, *, a_line_each: bool, level: int = 0
) -> Iterator[tuple[object, ...]]:
    for loop in loops:
        lines = f"{or_question_mark(loop.line)}-{or_question_mark(loop.last_line)}"
        ops = tuple(_named(link, lowering) for link in loop.links) or ("none",)
        yield "  " * level + loop.id, lines, loop.function, loop.name, ops if a_line_each else ", ".join(ops)
        yield from _loop_rows(loop.children, lowering, a_line_each=a_line_each, level=level + 1)


def _named(link: Link, lowering: Lowering) -> str:
    op = lowering.op_by_id[link.op]
    fused = "" if link.evidence is Evidence.LOCATED else f" {link.evidence.value}"
    return f"{op.id} {op.name} {line_and_column(op)}{fused}"


def _op_row(op: SourceOp, lowering: Lowering) -> tuple[str, ...]:
    found = zip(lowering.places_of(op.id), lowering.stages, strict=True)
    return op.id, line_and_column(op), op.name, *[whereabouts(place, stage) for place, stage in found][1:]
