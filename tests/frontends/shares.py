"""How much of what was measured is on the lines of a user's own file."""

from __future__ import annotations

from fnmatch import fnmatch

from tracemap.attribution.model import Attribution
from tracemap.map.bundle import Bundle
from tracemap.map.query import frames_of


def share_on_lines_of(file: str, result: Attribution, bundle: Bundle) -> float:
    """How much of the attributed time is on lines of a file: of each op the innermost frame that is no library's."""
    ours = total = 0
    graph = bundle.graph
    for cost in result.sites:
        for share, member in zip(cost.shares, graph.site_by_id[cost.site].members, strict=True):
            frames = frames_of(graph, graph.op_by_id[member.op], member.path)
            own = [frame for frame in frames if not any(fnmatch(frame.file, pattern) for pattern in graph.library)]
            total += share.attributed["cpu_ns"]
            ours += share.attributed["cpu_ns"] if own and own[0].file == file else 0
    return ours / total
