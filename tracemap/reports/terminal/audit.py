"""Text of `audit`: located ops per compiler phase, lost locations with the ops' outcomes, and the passes at fault."""

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
        groups[loss.phase, loss.op.name, loss.op.fate.value, loss.op.reason.slug].append(loss.op)
    # Losses are in the order of compilation, so their phases are, too.
    phases = list(dict.fromkeys(loss.phase for loss in losses))
    for key, ops in sorted(groups.items(), key=lambda item: (phases.index(item[0][0]), -len(item[1]), item[0])):
        phase, name, fate, _ = key
        yield phase, name, len(ops), fate, _reasons(ops), _op_names(ops)


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


def _print_spot(terminal: Console, op: Op, spot: Spot) -> None:
    culprit = "; no printed pass shows where"
    if spot.pass_name:
        argument = f" ({spot.argument})" if spot.argument else ""
        culprit = f" by {spot.pass_name}{argument}, change {spot.number}, on {spot.anchor}"
    say(terminal, "")
    say(terminal, f"{op.id} {op.name} at {line_and_column(op)}: location lost in phase {spot.phase}{culprit}")
    for title, text in (("before", spot.before), ("after", spot.after)):
        for line in (f"  {title}", *(f"    {line}" for line in text.splitlines())) if text else ():
            say(terminal, line)
