"""What `audit` prints: how far each phase locates ops, what became of those it lost, and the passes that lost them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tracemap.graph.audit import Audit, Loss, Spot
from tracemap.graph.model import SOURCE, Op, TraceGraph
from tracemap.reports.escaping import line_and_column, or_question_mark
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.units import format_share, plural

if TYPE_CHECKING:
    from rich.console import Console

_WHY_LATE = (
    "flow keeps one of equal kernels, and hal has machine code in place of their bodies: "
    "ops that do work go on in their sites"
)

_NAMED = 6
"""Ops that a row of the table names; the JSON names all."""

_PHASES = (Heading("phase"), number("located"), number("lost"))
_LOSSES = (
    Heading("phase"),
    Heading("kind", least=12),
    number("ops"),
    Heading("became"),
    Heading("why", leave=20, least=24, words=True),
    Heading("which", leave=60, least=24, words=True),
)


def print_audit(graph: TraceGraph, audit: Audit, out: TextIO, *, list_all: bool) -> None:
    """Print counts by phase, losses by phase and kind of op, and spots.

    Args:
        graph: the map.
        audit: what was found.
        out: where to; the width of the terminal is used where it is one.
        list_all: name every op without a location of its own.
    """
    to = console(out)
    own = audit.ops - len(audit.without_location)
    counted = f"{plural(audit.ops, 'op')}, {own} with a location of their own"
    say(to, f"{graph.module.name}: {counted} ({format_share(own, audit.ops)})")
    say(to, "")
    print_table(to, "", _PHASES, _phase_rows(audit))
    if audit.unknown:
        say(to, f"{plural(audit.unknown, 'op')} not followed: the bundle does not say how far they get")
    if audit.losses:
        print_table(to, "Lost, each once, in the first phase without it", _LOSSES, _loss_rows(audit.losses))
        say(to, _WHY_LATE)
    if audit.without_location:
        _print_without(to, audit.without_location, list_all=list_all)
    for spot in audit.spots:
        _print_spot(to, graph.op_by_id[spot.op], spot)


def _phase_rows(audit: Audit) -> Iterator[tuple[object, ...]]:
    yield SOURCE, audit.ops - audit.unknown, ""
    for count in audit.phases:
        yield count.phase, count.located, count.lost or ""


def _loss_rows(losses: Sequence[Loss]) -> Iterator[tuple[object, ...]]:
    """One row per phase, kind of op and what became of it, in the order of phases, then by size."""
    groups: dict[tuple[str, str, str, str], list[Op]] = defaultdict(list)
    for loss in losses:
        groups[loss.phase, loss.op.name, loss.op.fate.value, loss.op.reason.slug].append(loss.op)
    # Losses come in the order of compilation, and so do the phases that they name.
    phases = list(dict.fromkeys(loss.phase for loss in losses))
    for key, ops in sorted(groups.items(), key=lambda item: (phases.index(item[0][0]), -len(item[1]), item[0])):
        phase, name, fate, _ = key
        yield phase, name, len(ops), fate, _reasons(ops), _named(ops)


def _reasons(ops: Sequence[Op]) -> str:
    """The sentence of the reason; of several that differ only in where, the first and an ellipsis."""
    texts = list(dict.fromkeys(op.reason.text for op in ops))
    return texts[0] if len(texts) == 1 else f"{texts[0]}, …"


def _named(ops: Sequence[Op]) -> str:
    names = ", ".join(f"{op.id} ({line_and_column(op)})" for op in ops[:_NAMED])
    return names if len(ops) <= _NAMED else f"{names}, {len(ops) - _NAMED} more"


def _print_without(to: Console, ops: Sequence[Op], *, list_all: bool) -> None:
    say(to, "")
    say(to, f"{plural(len(ops), 'op')} without a location of their own")
    if not list_all:
        say(to, _named(ops))
        return
    for op in ops:
        say(to, f"{or_question_mark(op.file)}:{line_and_column(op)}: {op.name} ({op.id})")


def _print_spot(to: Console, op: Op, spot: Spot) -> None:
    where = "; no pass that printed shows where"
    if spot.pass_name:
        called = f" ({spot.argument})" if spot.argument else ""
        where = f" by {spot.pass_name}{called}, change {spot.number}, on {spot.anchor}"
    say(to, "")
    say(to, f"{op.id} {op.name} at {line_and_column(op)}: lost in the phase {spot.phase}{where}")
    for title, text in (("before", spot.before), ("after", spot.after)):
        for line in (f"  {title}", *(f"    {line}" for line in text.splitlines())) if text else ():
            say(to, line)
