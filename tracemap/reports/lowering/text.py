"""Loops and the ops in them, stage by stage, for terminals and as JSON, schema version 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from tracemap.graph.lowering import Link, Loop, Lowering, OpPlace, SourceOp, Stage
from tracemap.graph.model import Reason
from tracemap.reports.terminal import PIPED_WIDTH, printable
from tracemap.units import Integer, Unknown, plural, to_json

Json = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of the JSON. 1: first."""

_ONLY_OUTERMOST = "Links are with outermost loops; rows of loops within show what is in them."
_PLACES_NAMED = 4
"""Places of an op that a table names; the JSON names all."""
_GONE = "gone"
_INLINED = "inlined"


def lowering_json(lowering: Lowering) -> Json:
    """The whole lowering with the text of every stage; every key is always present, unknown is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "lowering",
        "model": lowering.model,
        "iree_compiler": lowering.compiler,
        "ops": [_op_json(op, lowering.places_of(op.id)) for op in lowering.ops],
        "stages": [_stage_json(stage) for stage in lowering.stages],
    }


def _op_json(op: SourceOp, places: Sequence[OpPlace]) -> Json:
    return {
        "id": op.id,
        "name": op.name,
        "function": to_json(op.function),
        "line": to_json(op.line),
        "column": to_json(op.column),
        "constant": op.constant,
        "stages": [
            {
                "loops": list(place.loops),
                "remainders": list(place.remainders),
                "inlined": place.inlined,
                "gone": place.is_gone,
                "reason": None if isinstance(place.reason, Unknown) else _reason_json(place.reason),
            }
            for place in places
        ],
    }


def _reason_json(reason: Reason) -> Json:
    return {"slug": reason.slug, "text": reason.text, "inferred": reason.inferred}


def _stage_json(stage: Stage) -> Json:
    return {
        "pipeline": stage.pipeline or None,
        "loops": [_loop_json(loop) for loop in stage.loops],
        "remainders": [
            {
                "name": remainder.name,
                "function": remainder.function,
                "line": to_json(remainder.line),
                "links": [_link_json(link) for link in remainder.links],
            }
            for remainder in stage.remainders
        ],
        "text": stage.text,
    }


def _loop_json(loop: Loop) -> Json:
    return {
        "id": loop.id,
        "name": loop.name,
        "function": loop.function,
        "line": to_json(loop.line),
        "last_line": to_json(loop.last_line),
        "operations": loop.operations,
        "untraced": loop.untraced,
        "links": [_link_json(link) for link in loop.links],
        "children": [_loop_json(child) for child in loop.children],
    }


def _link_json(link: Link) -> Json:
    return {"op": link.op, "evidence": link.evidence.value, "lines": list(link.lines)}


def place_text(place: OpPlace, stage: Stage) -> str:
    """Where an op is in a stage: `loop2`, `loop2, linalg.fill at 7`, `inlined` or `gone (dead)`; of many the first."""
    if place.is_gone:
        return _GONE if isinstance(place.reason, Unknown) else f"{_GONE} ({place.reason.slug})"
    outside = [stage.remainders[number] for number in place.remainders]
    words = [*place.loops, *(f"{item.name} at {_number(item.line)}" for item in outside)]
    if len(words) > _PLACES_NAMED:
        words = [*words[:_PLACES_NAMED], f"{len(words) - _PLACES_NAMED} more"]
    return ", ".join([*words, _INLINED] if place.inlined else words)


def position(op: SourceOp) -> str:
    """Line and column of an op, `?` where they are not known."""
    return "?" if isinstance(op.line, Unknown) else f"{op.line}:{_number(op.column)}"


def heading(stage: Stage, number: int) -> str:
    """What a stage is called."""
    return f"stage {number}: " + (stage.pipeline or "the model")


def print_lowering(lowering: Lowering, out: TextIO) -> None:
    """Print the loops of every stage with their ops, then where every op is, stage by stage.

    Stage 0, the model, has a table of its own only where it has loops. Constants are in the JSON only.
    """
    out.write(f"{printable(lowering.model)}: {plural(len(lowering.ops), 'op')}, iree-opt {lowering.compiler}\n")
    for number, stage in enumerate(lowering.stages):
        if stage.loops or number:
            out.write(f"\n{printable(heading(stage, number))}\n")
            _print_stage(stage, lowering, out)
    out.write("\nWhere each op is\n")
    shown = [op for op in lowering.ops if not op.constant]
    constants = len(lowering.ops) - len(shown)
    headings = ("op", "line", "name", *(f"stage {number}" for number in range(1, len(lowering.stages))))
    _print_table(out, headings, [_op_row(op, lowering) for op in shown])
    if constants:
        out.write(f"{plural(constants, 'constant')} left out; --format json has all\n")


def _print_stage(stage: Stage, lowering: Lowering, out: TextIO) -> None:
    if not stage.loops:
        out.write("no loops\n")
        return
    between = "\n" if out.isatty() else ", "  # a row is a line only for other programs
    _print_table(out, ("loop", "lines", "function", "kind", "ops"), list(_loop_rows(stage.loops, lowering, between)))
    untraced = sum(loop.untraced for loop in stage.loops)
    inside = sum(loop.operations for loop in stage.loops)
    if any(loop.children for loop in stage.loops):
        out.write(_ONLY_OUTERMOST + "\n")
    if untraced:
        out.write(f"{untraced} of {plural(inside, 'operation')} in loops have no location that leads to an op\n")


def _loop_rows(loops: Sequence[Loop], lowering: Lowering, between: str, level: int = 0) -> Iterator[tuple[str, ...]]:
    for loop in loops:
        lines = f"{_number(loop.line)}-{_number(loop.last_line)}"
        name = "  " * level + loop.id
        ops = between.join(printable(_named(link, lowering)) for link in loop.links)
        yield name, lines, loop.function, loop.name, ops or "none"
        yield from _loop_rows(loop.children, lowering, between, level + 1)


def _named(link: Link, lowering: Lowering) -> str:
    op = lowering.op_by_id[link.op]
    fused = "" if link.evidence.value == "located" else f" {link.evidence.value}"
    return f"{op.id} {op.name} {position(op)}{fused}"


def _op_row(op: SourceOp, lowering: Lowering) -> tuple[str, ...]:
    places = zip(lowering.places_of(op.id), lowering.stages, strict=True)
    return op.id, position(op), op.name, *[place_text(place, stage) for place, stage in places][1:]


def _number(value: Integer) -> str:
    return "?" if isinstance(value, Unknown) else str(value)


def _print_table(out: TextIO, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in headings:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    width = None if out.isatty() else PIPED_WIDTH
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(table)
