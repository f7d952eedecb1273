"""The memory of functions in the overview: bytes at each step, and the values at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from tracemap.core.units import format_bytes, format_share
from tracemap.map.memory_use import HeldValue, MemoryUse
from tracemap.map.model import TraceGraph
from tracemap.map.query import python_frame
from tracemap.reports.escaping import as_shown, file_line, op_line
from tracemap.reports.page.model import MemoryCurve, MemoryRow

HEIGHT: Final = 100
"""Height of the curve at the peak; its width is the number of steps."""
_MOST_ROWS: Final = 20
_WORDS: Final = {"external": "results"}


def memory_curves(graph: TraceGraph, uses: Sequence[MemoryUse]) -> tuple[MemoryCurve, ...]:
    """The curves of the functions that allocate memory."""
    return tuple(_curve(graph, use) for use in uses if use.peak_bytes)


def _curve(graph: TraceGraph, use: MemoryUse) -> MemoryCurve:
    shown = use.held[:_MOST_ROWS]
    return MemoryCurve(
        function=as_shown(use.function),
        peak=format_bytes(use.peak_bytes),
        parts=", ".join(f"{_WORDS.get(name, name)} {format_bytes(size)}" for name, size in use.by_resource.items()),
        unused=format_bytes(use.unused_bytes) if use.unused_bytes else "",
        kept=format_bytes(use.kept_bytes) if use.kept_bytes else "",
        step=use.step + 1,
        steps=len(use.curve),
        allocated=outline(use.curve, use.peak_bytes),
        needed=outline(use.needed, use.peak_bytes),
        rows=tuple(_row(graph, use, value) for value in shown),
        hidden=len(use.held) - len(shown),
    )


def outline(curve: Sequence[int], peak_bytes: int) -> str:
    """The outline of a step chart as an SVG path: a unit wide per step, closed at the bottom."""
    path, step = [f"M0 {HEIGHT}"], 0
    for size, steps in groupby(curve):
        path.append(f"V{HEIGHT - HEIGHT * size / peak_bytes:.6g}")
        step += len(list(steps))
        path.append(f"H{step}")
    return "".join([*path, f"V{HEIGHT}Z"])


def _row(graph: TraceGraph, use: MemoryUse, value: HeldValue) -> MemoryRow:
    ops = [graph.op_by_id[op] for op in value.ops]
    frame = python_frame(graph, ops[0]) if ops else None
    name = (ops[0].node or ops[0].name) if ops else f"({_WORDS.get(value.resource, value.resource)})"
    return MemoryRow(
        ops=value.ops,
        name=as_shown(f"{name}, previous trip" if value.is_carried else name),
        line=op_line(ops[0]) if ops else "",
        python=file_line(frame.file, frame.line) if frame else "",
        size=format_bytes(value.bytes),
        share=format_share(value.bytes, use.peak_bytes),
        written_by=value.written_by,
        read_by=value.read_by,
    )
