"""Where an op stands as people think of it: its scope and its frames, joined across the calls that lead to it.

An op of a function that is called several times has one location, but as many places: JAX gives the ops of a nested jit
bare names, and the calls the rest. A membership keeps the calls that lead to its op.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Frame, Op


def scope_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[str, ...]:
    """The scopes of the calls, outermost first, then the op's own; one that repeats what is around it counts once."""
    joined: tuple[str, ...] = ()
    for call in path:
        joined = _inside(joined, graph.op_by_id[call].scope)
    return _inside(joined, op.scope)


def _inside(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    return inner if inner[: len(outer)] == outer else outer + inner


def frames_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[Frame, ...]:
    """The op's own frames, then those of the calls that lead to it, innermost first; each frame once."""
    stacks = [op.frames, *(graph.op_by_id[call].frames for call in reversed(path))]
    return tuple(dict.fromkeys(frame for stack in stacks for frame in stack))


def is_library(graph: TraceGraph, frame: Frame) -> bool:
    """Whether a frame is in a library, by the map's patterns: not where a user looks for a cost first."""
    return any(fnmatchcase(frame.file, pattern) for pattern in graph.library)


def users_first(graph: TraceGraph, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own files, innermost first, then those of libraries."""
    return tuple(sorted(frames, key=lambda frame: is_library(graph, frame)))
