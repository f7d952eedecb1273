"""Terminal output of the cost of building: `build --timing`, `show --cost`, and `diff` of two such bundles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.core.units import Integer, Unknown, format_bytes, format_ns, format_share, plural
from tracemap.map.build_cost import BuildCost, BuildCostChanges, CostChange, CostPart
from tracemap.map.model import TraceGraph
from tracemap.reports.escaping import op_line
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say

if TYPE_CHECKING:
    from rich.console import Console

_PARTS: Final = (Heading("part"), number("amount"), number("share"))
_KERNELS: Final = (
    *(Heading("kernel", least=12), Heading("sites", leave=30), number("compile time"), number("MLIR", leave=20)),
    *(number("LLVM IR", leave=20), number("machine code", leave=20), number("code bytes"), number("data", leave=25)),
)
_OPS: Final = (
    *(Heading("op"), Heading("line", least=8), Heading("name", least=8), number("compile time"), number("code bytes")),
    *(number("data", leave=25), number("bytecode", leave=25), number("constants")),
)
_REST: Final = (Heading("part"), Heading("of", least=12, leave=20), number("bytes"), Heading("reason", words=True))
_PASSES: Final = (Heading("pass", least=12), Heading("tool"), number("time"))
_CHANGES: Final = (
    *(Heading("name", least=12), number("compile time before"), number("after"), number("bytes before")),
    number("after "),
)


_MOST_PASSES: Final = 20


def print_build_cost(cost: BuildCost, graph: TraceGraph, out: TextIO, *, top: int = 0) -> None:
    """Print what the compiler's time and the module's bytes went to, the most expensive first.

    Args:
        cost: the cost; only its kernels and ops are printed.
        graph: the map.
        out: the stream.
        top: the most rows of each table; 0: all.
    """
    terminal, more = console(out), "`tracemap show BUNDLE --cost`" if top else "--format json"
    if not isinstance(cost.elapsed_ns, Unknown):
        peak = "" if isinstance(cost.peak_bytes, Unknown) else f", peak memory {format_bytes(cost.peak_bytes)}"
        say(terminal, f"compile time {format_ns(cost.elapsed_ns)} with one thread{peak}")
        print_table(terminal, "", _PARTS, _part_rows(cost.times, cost.elapsed_ns, format_ns), gap=False)
    say(terminal, f"module {cost.module_bytes:,} bytes")
    print_table(terminal, "", _PARTS, _part_rows(cost.bytes, cost.module_bytes, "{:,}".format), gap=False)
    kernels = (
        (
            *(own.kernel, plural(len(own.sites), "site"), _time(own.duration_ns), _time(own.translation_ns)),
            *(_time(own.optimization_ns), _time(own.generation_ns), *_amounts(own.code_bytes, own.data_bytes)),
        )
        for own in cost.kernels[: top or None]
    )
    _print_top(terminal, "Kernels, slowest to compile first", _KERNELS, list(kernels), len(cost.kernels), more)
    ops = (
        (
            *(own.op, op_line(op), op.node or op.name, _time(own.duration_ns)),
            *_amounts(own.code_bytes, own.data_bytes, own.bytecode_bytes, own.constant_bytes),
        )
        for own in cost.ops[: top or None]
        for op in (graph.op_by_id[own.op],)
    )
    _print_top(terminal, "Ops, with their part of the kernels' time (inferred)", _OPS, list(ops), len(cost.ops), more)
    if not top:
        rest = ((own.part, own.name, f"{own.bytes:,}", own.reason) for own in cost.unattributed)
        _print_top(terminal, "Unattributed bytes", _REST, list(rest), len(cost.unattributed), more)
    passes = ((own.pass_name, own.tool, format_ns(own.duration_ns)) for own in cost.passes[: top or _MOST_PASSES])
    _print_top(terminal, "Compiler passes, slowest first", _PASSES, list(passes), len(cost.passes), more)


def _amounts(*amounts: int) -> Iterator[str]:
    return (f"{amount:,}" if amount else "" for amount in amounts)


def _print_top(
    terminal: Console,
    title: str,
    headings: Sequence[Heading],
    rows: Sequence[Sequence[str]],
    count: int,
    more: str,
) -> None:
    if rows:
        print_table(terminal, title, headings, rows)
    if count > len(rows):
        say(terminal, f"… {count - len(rows)} more: {more}")


def _part_rows(parts: Sequence[CostPart], whole: int, show: object) -> Iterator[tuple[str, str, str]]:
    for part in parts:
        yield part.name, show(part.amount), format_share(part.amount, whole)  # type: ignore[operator]


def _time(value: Integer) -> str:
    return "" if isinstance(value, Unknown) else format_ns(value)


def print_cost_changes(terminal: Console, changes: BuildCostChanges, top: int | None) -> None:
    """Print the cost of building before and after: of the whole, of kernels and of ops."""
    times = f"{format_ns(changes.before_ns)} → {format_ns(changes.after_ns)}"
    sizes = f"{changes.before_bytes:,} → {changes.after_bytes:,} bytes"
    say(terminal, "")
    say(terminal, f"cost of building: compile time with one thread {times}, module {sizes}")
    for title, rows in (("Compiled kernels", changes.kernels), ("Bytes of ops", changes.ops)):
        if rows:
            print_table(terminal, f"{title} that changed", _CHANGES, map(_change_row, rows[:top]))
            if top and len(rows) > top:
                say(terminal, f"… {len(rows) - top} more")


def _change_row(change: CostChange) -> tuple[str, ...]:
    sizes = ("" if isinstance(size, Unknown) else f"{size:,}" for size in (change.before_bytes, change.after_bytes))
    return change.name, _time(change.before_ns), _time(change.after_ns), *sizes
