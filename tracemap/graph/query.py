"""Queries of the trace graph: ops on a line, scopes, and lines of a kernel's text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tracemap.errors import QueryInvalid, start_of
from tracemap.graph.model import CallPath, Frame, Kernel, Op, OpId, Site, Step, TraceGraph
from tracemap.machine.debug_lines import NO_LINE, LineOp, OpLines
from tracemap.units import UNKNOWN

if TYPE_CHECKING:
    import networkx


# ---- frames
#
# Which lines of a kernel's text do an op's work, and which are the frame around such lines.
#
# A loop nest of several fused ops is one operation with a region: loads, stores and loop control stand on its own
# line, with the location of one of the ops. The lines inside tell whose the work is; the frame tells nothing more.


NOBODY = NO_LINE
"""The line of what belongs to no op."""

_HANDS_ON = frozenset({"linalg.yield", "iree_codegen.load_from_buffer", "iree_codegen.store_to_buffer"})
"""Steps that only hand on what others compute."""


@dataclass(frozen=True)
class Frames:
    """The steps of a kernel; `members` are the ops of all its sites."""

    kernel: Kernel
    members: frozenset[OpId]

    @cached_property
    def _step_at(self) -> dict[int, Step]:
        return {step.line: step for step in self.kernel.steps}

    @cached_property
    def _of_ops(self) -> Sequence[Step]:
        return [step for step in self.kernel.steps if not self.members.isdisjoint(step.ops)]

    @cached_property
    def _lines_inside(self) -> Mapping[int, Sequence[int]]:
        """The lines of ops inside of each step that holds any."""
        found: dict[int, list[int]] = defaultdict(list)
        for step in self._of_ops:
            if step.op_name not in _HANDS_ON:
                for outer in self._outer(step):
                    found[outer].append(step.line)
        return found

    def _outer(self, step: Step) -> Sequence[int]:
        """The lines of the steps around one, from inside out."""
        lines: list[int] = []
        while step.parent is not UNKNOWN and step.parent in self._step_at and step.parent not in lines:
            lines.append(step.parent)
            step = self._step_at[step.parent]
        return lines

    @cached_property
    def owned(self) -> frozenset[int]:
        """The lines that are of ops, and tell whose the work is that stands on them."""
        lines = {step.line for step in self._of_ops if step.line not in self._lines_inside}
        working = {step.line for step in self._of_ops if step.op_name not in _HANDS_ON}
        return frozenset((lines & working or lines) | self._unlocated.keys())

    @cached_property
    def _unlocated(self) -> Mapping[int, int]:
        """The lines of no op in a region without any that is of one, and the line of the op whose region it is.

        Passes that make a region anew, as of a convolution, leave its operations without locations: what is computed
        there is the op's.
        """
        whole = {step.line for step in self._of_ops} - self._lines_inside.keys()
        found = {}
        for step in self.kernel.steps:
            if self.members.isdisjoint(step.ops) and step.op_name not in _HANDS_ON:
                for outer in whole.intersection(self._outer(step)):  # at most one: what holds another is not whole
                    found[step.line] = outer
        return found

    @cached_property
    def op_lines(self) -> OpLines:
        """What machine code is told of them."""
        told = sorted((step for step in self.kernel.steps if step.line in self.owned), key=lambda step: step.line)
        return OpLines(self.owned, tuple(LineOp(step.line, step.op_name, step.parent, step.takes) for step in told))

    def around(self, line: int) -> int:
        """A line that is of ops: this one, or the innermost step around it; `NOBODY` where there is none."""
        step = self._step_at.get(line)
        if step is None:
            return NOBODY
        lines = (line, *self._outer(step))
        return next((each for each in lines if not self.members.isdisjoint(self._step_at[each].ops)), NOBODY)

    def inside(self, line: int) -> Collection[int]:
        """The lines that do the work in the frame that a line stands for; of what hands on, those around it."""
        step = self._step_at.get(line)
        if step is None or step.op_name not in _HANDS_ON:
            return self._lines_inside.get(line, ())
        return self.owned if step.parent is UNKNOWN else self._lines_inside.get(step.parent, ())

    def members_at(self, line: int, site: Site) -> tuple[int, ...]:
        """The numbers of the site's members that a line is of."""
        ops = self.ops_at(line)
        return tuple(number for number, member in enumerate(site.members) if member.op in ops)

    def ops_at(self, line: int) -> Sequence[OpId]:
        """The ops that a line is of."""
        step = self._step_at.get(self._unlocated.get(line, line))
        return () if step is None else step.ops


def kernel_frames(graph: TraceGraph, kernel: Kernel) -> Frames:
    """The frames of a kernel of the map."""
    return Frames(kernel, frozenset(member.op for site in kernel.sites for member in graph.site_by_id[site].members))


# ---- query
#
# Questions to the trace graph: what stands on a line, in which scope an op is, who uses a kernel.
#
# An op of a function that is called several times has one location, but as many places: JAX gives the ops of a nested
# jit bare names, and the calls the rest. A membership keeps the calls that lead to its op, and scopes and frames are
# joined across them.
#
# The graph's nodes are ops, sites and kernels; edges lead from ops to the sites that they are members of or call, and
# from sites to their kernel. A selection is what was asked for and its neighbours.


_FILE_LINE = re.compile(r"(?P<file>.+):(?P<line>\d{1,18})", re.DOTALL)


_LONGEST_SAID = 400


@dataclass(frozen=True, slots=True)
class Selection:
    """Ops, sites and kernels, each in the order of the map."""

    ops: tuple[Op, ...]
    sites: tuple[Site, ...]
    kernels: tuple[Kernel, ...]


def everything(graph: TraceGraph) -> Selection:
    """The whole map."""
    return Selection(graph.ops, graph.sites, graph.kernels)


def select(graph: TraceGraph, what: str) -> Selection:
    """What `what` names, with all that is connected to it.

    Raises:
        QueryInvalid: it names nothing in the map.
    """
    return _connected(graph, named(graph, what))


def named(graph: TraceGraph, what: str) -> list[str]:
    """The ids and names of what `what` names: one, or several ops.

    `what` is an op (`op12`), a site (`site3`), a kernel's name, a place (`model.mlir:12`, `layers.py:40`), or a scope
    and all below it (`h0/attn`), tried in this order.

    Raises:
        QueryInvalid: it names nothing in the map.
    """
    if what in graph.op_by_id or what in graph.site_by_id or what in graph.kernel_by_name:
        return [what]
    place = _FILE_LINE.fullmatch(what)
    if place is not None:
        ops = ops_at(graph, place["file"], int(place["line"]))
        if ops:
            return [op.id for op in ops]
    names = ops_in_scope(graph, tuple(component for component in what.split("/") if component))
    if names:
        return names
    if place is not None:
        _check_line(graph, place["file"], int(place["line"]))
    raise QueryInvalid(
        f"{start_of(what, _LONGEST_SAID)}: no op, site, kernel, line or scope of the map is called so; "
        "ask for FILE:LINE, op12, site3, a kernel's name or a scope"
    )


def _check_line(graph: TraceGraph, file: str, line: int) -> None:
    """Refuse a line on which no op begins, by the op above it: it may be one of a region of this op's.

    Raises:
        QueryInvalid: there is such an op.
    """
    above = [
        (op.line, op)
        for op in graph.ops
        if isinstance(op.line, int) and op.line < line and isinstance(op.file, str) and same_file(op.file, file)
    ]
    if above:
        _, last = max(above, key=lambda each: each[0])
        raise QueryInvalid(
            f"{start_of(f'{file}:{line}', _LONGEST_SAID)}: no op of the map begins on this line; the last one above it "
            f"is {last.id} ({start_of(last.name, _LONGEST_SAID)}) on line {last.line}: ask for that"
        )


def ops_in_scope(graph: TraceGraph, scope: tuple[str, ...]) -> list[str]:
    """The ids of the ops in a scope or below it, also of those that a call leads there in one of their sites."""
    if not scope:
        return []
    below = (op for op in graph.ops if any(each[: len(scope)] == scope for each in (op.scope, *scopes_of(graph, op))))
    return [op.id for op in below]


def ops_at(graph: TraceGraph, file: str, line: int) -> list[Op]:
    """The ops whose own line, or a line of whose frames, it is. Files match if one path is the end of the other."""
    return [
        op
        for op in graph.ops
        if (op.line == line and isinstance(op.file, str) and same_file(op.file, file))
        or any(frame.line == line and same_file(frame.file, file) for frame in op.frames)
    ]


def same_file(one: str, other: str) -> bool:
    """Whether one path is the end of the other, by whole components."""
    first, second = PurePosixPath(one).parts, PurePosixPath(other).parts
    shorter = min(len(first), len(second))
    return shorter > 0 and first[-shorter:] == second[-shorter:]


def links(graph: TraceGraph) -> networkx.DiGraph[str]:
    """The graph of links: op -> site (member or call op), site -> kernel."""
    import networkx

    found: networkx.DiGraph[str] = networkx.DiGraph()
    for site in graph.sites:
        found.add_edge(site.id, site.kernel)
        found.add_edges_from((member.op, site.id) for member in site.members)
        found.add_edges_from((call, site.id) for call in site.calls)
    return found


def _connected(graph: TraceGraph, names: Iterable[str]) -> Selection:
    """The named nodes, what they lead to, and what leads to them; of the sites found also all members."""
    network = links(graph)
    start = [name for name in names if name in network]
    reached = set(names)
    frontier = set(start)
    while frontier:  # downwards: ops to sites to kernels
        frontier = {successor for name in frontier for successor in network.successors(name)} - reached
        reached |= frontier
    kernels = {name for name in start if name in graph.kernel_by_name}
    sites = {site for kernel in kernels for site in network.predecessors(kernel)}
    sites |= {name for name in reached if name in graph.site_by_id}
    members = {member.op for site in sites for member in graph.site_by_id[site].members}
    reached |= sites | members
    return Selection(
        ops=tuple(op for op in graph.ops if op.id in reached),
        sites=tuple(site for site in graph.sites if site.id in reached),
        kernels=tuple(kernel for kernel in graph.kernels if kernel.name in reached),
    )


_CALLED_BY_NONE: Final[tuple[CallPath, ...]] = ((),)
"""The ways to an op that no calls lead to."""


def scope_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[str, ...]:
    """The scopes of the calls, outermost first, then the op's own; one that repeats what is around it counts once."""
    joined: tuple[str, ...] = ()
    for call in path:
        joined = _inside(joined, graph.op_by_id[call].scope)
    return _inside(joined, op.scope)


def scopes_of(graph: TraceGraph, op: Op) -> tuple[tuple[str, ...], ...]:
    """The scopes that an op has by the calls that lead to it, each once; its own where no calls are known to."""
    paths = graph.paths_of_op.get(op.id, _CALLED_BY_NONE)
    if paths == _CALLED_BY_NONE:  # as of nearly all ops
        return (op.scope,)
    return tuple(dict.fromkeys([scope_of(graph, op, path) for path in paths]))


def scope_text(graph: TraceGraph, op: Op) -> str:
    """The scope of an op for tables; of one that several calls lead to, the first, and how many more there are."""
    first, *others = scopes_of(graph, op)
    return "/".join(first) + (f" +{len(others)}" if others else "")


def _inside(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    return inner if inner[: len(outer)] == outer else outer + inner


def frames_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[Frame, ...]:
    """The op's own frames, then those of the calls that lead to it, innermost first; each frame once."""
    if not path and len(op.frames) < 2:
        return op.frames
    stacks = [op.frames, *(graph.op_by_id[call].frames for call in reversed(path))]
    return tuple(dict.fromkeys(frame for stack in stacks for frame in stack))


def stack_of(graph: TraceGraph, op: Op) -> tuple[Frame, ...]:
    """The frames of an op with those of the first calls that lead to it; the user's own come first."""
    return users_first(graph, frames_of(graph, op, graph.paths_of_op.get(op.id, _CALLED_BY_NONE)[0]))


def users_first(graph: TraceGraph, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own files, innermost first, then those of libraries, by the map's patterns."""
    if len(frames) < 2:
        return tuple(frames)
    return tuple(sorted(frames, key=lambda frame: _is_of(frame.file, graph.library)))


def python_frame(graph: TraceGraph, op: Op) -> Frame | None:
    """The innermost of the user's own frames that made an op, calls that lead to it included; None: there is none."""
    return next(iter(users_own(graph, stack_of(graph, op))), None)


def users_own(graph: TraceGraph, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own files alone, innermost first."""
    return tuple(frame for frame in frames if not _is_of(frame.file, graph.library))


@cache
def _is_of(file: str, patterns: tuple[str, ...]) -> bool:
    """Whether any of the patterns is the file's; many frames name few files."""
    return any(fnmatchcase(file, pattern) for pattern in patterns)
