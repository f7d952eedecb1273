"""The audit for terminals and as JSON, schema version 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from tracemap.graph.audit import Audit, Loss, Spot
from tracemap.graph.encoding import module_to_json
from tracemap.graph.model import SOURCE, Op, TraceGraph
from tracemap.reports.terminal import PIPED_WIDTH, printable
from tracemap.units import Unknown, format_share, plural, to_json

Json = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of the JSON. 1: first."""

_WHY_LATE = (
    "flow keeps one of equal kernels, and hal has machine code in place of their bodies: "
    "ops that do work go on in their sites\n"
)

_NAMED = 6
"""Ops that a row of the table names; the JSON names all."""


def audit_json(graph: TraceGraph, audit: Audit) -> Json:
    """The whole audit; every key is always present, unknown is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "audit",
        "module": module_to_json(graph.module),
        "locations": {
            "ops": audit.ops,
            "own": audit.ops - len(audit.without_location),
            "without": [_op_json(op) for op in audit.without_location],
        },
        "phases": [{"phase": count.phase, "located": count.located, "lost": count.lost} for count in audit.phases],
        "not_followed": audit.unknown,
        "losses": [
            {
                **_op_json(loss.op),
                "phase": loss.phase,
                "fate": loss.op.fate.value,
                "reason": {"slug": loss.op.reason.slug, "text": loss.op.reason.text},
            }
            for loss in audit.losses
        ],
        "spots": [_spot_json(spot) for spot in audit.spots],
    }


def _op_json(op: Op) -> Json:
    return {
        "op": op.id,
        "name": op.name,
        "file": to_json(op.file),
        "line": to_json(op.line),
        "column": to_json(op.column),
    }


def _spot_json(spot: Spot) -> Json:
    found = bool(spot.pass_name)
    return {
        "op": spot.op,
        "phase": spot.phase,
        "pass": spot.pass_name if found else None,
        "argument": spot.argument or None,
        "number": spot.number if found else None,
        "anchor": spot.anchor or None,
        "before": spot.before,
        "after": spot.after if found else None,
    }


def print_audit(graph: TraceGraph, audit: Audit, out: TextIO, *, list_all: bool) -> None:
    """Print counts by phase, losses by phase and kind of op, and spots.

    Args:
        graph: the map.
        audit: what was found.
        out: where to; the width of the terminal is used where it is one.
        list_all: name every op without a location of its own.
    """
    own = audit.ops - len(audit.without_location)
    out.write(printable(graph.module.name) + f": {plural(audit.ops, 'op')}, {own} with a location of their own")
    out.write(f" ({format_share(own, audit.ops)})\n\n")
    _print_table(out, ("phase", "located", "lost"), _phase_rows(audit), numbers=(1, 2))
    if audit.unknown:
        out.write(f"{plural(audit.unknown, 'op')} not followed: the bundle does not say how far they get\n")
    if audit.losses:
        out.write("\nLost, each once, in the first phase without it\n")
        _print_table(out, ("phase", "kind", "ops", "became", "why", "which"), _loss_rows(audit.losses), numbers=(2,))
        out.write(_WHY_LATE)
    if audit.without_location:
        _print_without(audit.without_location, out, list_all=list_all)
    for spot in audit.spots:
        _print_spot(graph.op_by_id[spot.op], spot, out)


def _phase_rows(audit: Audit) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(SOURCE, str(audit.ops - audit.unknown), "")]
    return rows + [(count.phase, str(count.located), str(count.lost or "")) for count in audit.phases]


def _loss_rows(losses: Sequence[Loss]) -> list[tuple[str, ...]]:
    """One row per phase, kind of op and what became of it, in the order of phases, then by size."""
    groups: dict[tuple[str, str, str, str], list[Op]] = {}
    for loss in losses:
        key = (loss.phase, loss.op.name, loss.op.fate.value, loss.op.reason.slug)
        groups.setdefault(key, []).append(loss.op)
    phases = {loss.phase: place for place, loss in reversed(list(enumerate(losses)))}
    ordered = sorted(groups.items(), key=lambda item: (phases[item[0][0]], -len(item[1]), item[0]))
    return [(phase, name, str(len(ops)), fate, _reasons(ops), _named(ops)) for (phase, name, fate, _), ops in ordered]


def _reasons(ops: Sequence[Op]) -> str:
    """The sentence of the reason; of several that differ only in where, the first and an ellipsis."""
    texts = list(dict.fromkeys(op.reason.text for op in ops))
    return texts[0] if len(texts) == 1 else f"{texts[0]}, …"


def _named(ops: Sequence[Op]) -> str:
    names = ", ".join(f"{op.id} ({_line(op)})" for op in ops[:_NAMED])
    return names if len(ops) <= _NAMED else f"{names}, {len(ops) - _NAMED} more"


def _line(op: Op) -> str:
    return "?" if isinstance(op.line, Unknown) else f"{op.line}:{op.column}"


def _print_without(ops: Sequence[Op], out: TextIO, *, list_all: bool) -> None:
    out.write(f"\n{plural(len(ops), 'op')} without a location of their own\n")
    if not list_all:
        out.write(printable(_named(ops)) + "\n")
        return
    for op in ops:
        file = "?" if isinstance(op.file, Unknown) else op.file
        out.write(printable(f"{file}:{_line(op)}: {op.name} ({op.id})") + "\n")


def _print_spot(op: Op, spot: Spot, out: TextIO) -> None:
    out.write(printable(f"\n{op.id} {op.name} at {_line(op)}: lost in the phase {spot.phase}"))
    if spot.pass_name:
        called = f" ({spot.argument})" if spot.argument else ""
        out.write(printable(f" by {spot.pass_name}{called}, change {spot.number}, on {spot.anchor}"))
    else:
        out.write("; no pass that printed shows where")
    for title, text in (("before", spot.before), ("after", spot.after)):
        if text:
            out.write(f"\n  {title}\n" + "\n".join(f"    {printable(line)}" for line in text.splitlines()))
    out.write("\n")


def _print_table(out: TextIO, headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        number = place in numbers
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = None if out.isatty() else PIPED_WIDTH
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(table)
