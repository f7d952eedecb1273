"""The tabs of Python files: an op's cost stands on the lines of its stack, as a profiler of Python would show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracemap.graph.ops import Frame
from tracemap.reports.costed import CostedMap
from tracemap.reports.page.line_use import LineUse


def python_lines(costed: CostedMap, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source that are frames: of every op as it is reached, and of ops that work nowhere."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for reached in costed.reached:
        # Depth counts kept frames only: what a library does is its caller's own cost.
        for depth, frame in enumerate(_kept(costed, reached.frames)):
            if costed.source_index[frame.file] == index:
                use = uses[frame.line]
                use.ops[reached.op.id] = use.works[reached.work] = None
                use.inclusive.update(reached.attributed)
                if depth == 0:
                    use.attributed.update(reached.attributed)
    for op in costed.graph.ops:
        if op.id not in costed.reached_by_op:
            for frame in _kept(costed, op.frames):
                if costed.source_index[frame.file] == index:
                    uses[frame.line].ops[op.id] = None
    return uses


def _kept(costed: CostedMap, frames: Sequence[Frame]) -> list[Frame]:
    """The frames whose file is on the page; a line that a recursion passes more than once counts once."""
    kept = {(frame.file, frame.line): frame for frame in reversed(frames) if frame.file in costed.source_index}
    return list(reversed(kept.values()))
