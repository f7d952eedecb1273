"""What `audit` prints: how far each phase locates ops, what became of those it lost, and the passes that lost them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TextIO

from tracemap.graph.audit import Audit, Loss, Spot
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import SOURCE, Op
from tracemap.reports.escaping import for_terminal
from tracemap.reports.labels import line_and_column, or_question_mark
from tracemap.reports.terminal.tables import Number, console, table
from tracemap.units import format_share, plural

_WHY_LATE = (
    "flow keeps one of equal kernels, and hal has machine code in place of their bodies: "
    "ops that do work go on in their sites\n"
)

_NAMED = 6
"""Ops that a row of the table names; the JSON names all."""

_PHASES = ("phase", Number("located"), Number("lost"))
_LOSSES = ("phase", "kind", Number("ops"), "became", "why", "which")


def print_audit(graph: TraceGraph, audit: Audit, out: TextIO, *, list_all: bool) -> None:
    """Print counts by phase, losses by phase and kind of op, and spots.

    Args:
        graph: the map.
        audit: what was found.
        out: where to; the width of the terminal is used where it is one.
        list_all: name every op without a location of its own.
    """
    own = audit.ops - len(audit.without_location)
    out.write(for_terminal(graph.module.name) + f": {plural(audit.ops, 'op')}, {own} with a location of their own")
    out.write(f" ({format_share(own, audit.ops)})\n\n")
    console(out).print(table("", _PHASES, _phase_rows(audit)))
    if audit.unknown:
        out.write(f"{plural(audit.unknown, 'op')} not followed: the bundle does not say how far they get\n")
    if audit.losses:
        out.write("\nLost, each once, in the first phase without it\n")
        console(out).print(table("", _LOSSES, _loss_rows(audit.losses)))
        out.write(_WHY_LATE)
    if audit.without_location:
        _print_without(audit.without_location, out, list_all=list_all)
    for spot in audit.spots:
        _print_spot(graph.op_by_id[spot.op], spot, out)


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


def _print_without(ops: Sequence[Op], out: TextIO, *, list_all: bool) -> None:
    out.write(f"\n{plural(len(ops), 'op')} without a location of their own\n")
    if not list_all:
        out.write(for_terminal(_named(ops)) + "\n")
        return
    for op in ops:
        out.write(for_terminal(f"{or_question_mark(op.file)}:{line_and_column(op)}: {op.name} ({op.id})") + "\n")


def _print_spot(op: Op, spot: Spot, out: TextIO) -> None:
    out.write("\n" + for_terminal(f"{op.id} {op.name} at {line_and_column(op)}: lost in the phase {spot.phase}"))
    if spot.pass_name:
        called = f" ({spot.argument})" if spot.argument else ""
        out.write(for_terminal(f" by {spot.pass_name}{called}, change {spot.number}, on {spot.anchor}"))
    else:
        out.write("; no pass that printed shows where")
    for title, text in (("before", spot.before), ("after", spot.after)):
        if text:
            out.write(f"\n  {title}\n" + "\n".join(f"    {for_terminal(line)}" for line in text.splitlines()))
    out.write("\n")
