"""Queries of a map: what `op3`, `model.py:12` or a scope names; its dispatches and ops; lost locations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import PurePosixPath
from typing import Final

from tracemap.core.codec import Count, Record
from tracemap.core.errors import QueryInvalid, start_of
from tracemap.core.units import UNKNOWN
from tracemap.machine.debug_lines import NO_LINE, LineOp, OpLines
from tracemap.map.model import PHASES, SOURCE, CallPath, Frame, Kernel, KernelLine, Op, OpId, Site, TraceGraph

# ---- audit
#
# The phase in which each op loses its location, and the outcome of the op.
#
# Each op loses its location at most once: in the first phase after the last one that locates it.


class PhaseCount(Record, frozen=True):
    """Number of ops with a location after a phase, and number of ops that lost their location in it."""

    phase: str
    located: Count
    lost: Count


@dataclass(frozen=True, slots=True)
class Loss:
    """An op, and the first phase that no longer locates it."""

    op: Op
    phase: str


@dataclass(frozen=True, slots=True)
class LosingPass:
    """The pass in which an op lost its location.

    `pass_name`, `argument`: the pass and its command-line name, empty if no printed text shows the loss;
    `number`: its index among the passes that changed anything, from 1; `anchor`: the operation that it ran on;
    `before`, `after`: the lines around the op in the last text with it, and the same lines in the first text without.
    """

    op: OpId
    phase: str
    pass_name: str
    argument: str
    number: int
    anchor: str
    before: str
    after: str


@dataclass(frozen=True)
class Audit:
    """The audit of a map: counts by phase, losses by phase and op, and ops without a location of their own.

    `unknown`: the number of ops that no phase dump covers.
    """

    ops: int
    phases: tuple[PhaseCount, ...]
    losses: tuple[Loss, ...]
    without_location: tuple[Op, ...]
    unknown: int
    spots: tuple[LosingPass, ...] = ()

    def share_located(self) -> float:
        """The percentage of ops that have a location of their own; 100 if there are no ops."""
        return 100.0 if not self.ops else 100 * (self.ops - len(self.without_location)) / self.ops


def phase_of_loss(op: Op) -> str:
    """The first phase that does not locate an op; "" if the last one still does, or nothing was examined."""
    if op.last_phase is UNKNOWN or op.last_phase == PHASES[-1]:
        return ""
    return PHASES[0] if op.last_phase == SOURCE else PHASES[PHASES.index(op.last_phase) + 1]


def audit(graph: TraceGraph, spots: Sequence[LosingPass] = ()) -> Audit:
    """Count the ops of a map with and without a location after each phase."""
    losses = [Loss(op, phase_of_loss(op)) for op in graph.ops if phase_of_loss(op)]
    losses.sort(key=lambda loss: PHASES.index(loss.phase))
    unknown = sum(1 for op in graph.ops if op.last_phase is UNKNOWN)
    counts = []
    located = len(graph.ops) - unknown
    for phase in PHASES:
        lost = sum(1 for loss in losses if loss.phase == phase)
        located -= lost
        counts.append(PhaseCount(phase, located, lost))
    unlocated_ops = tuple(op for op in graph.ops if not op.own_location)
    return Audit(len(graph.ops), tuple(counts), tuple(losses), unlocated_ops, unknown, tuple(spots))


# ---- frames
#
# The lines of a kernel's text that do an op's work, and the loop nests around such lines.
#
# A loop nest of several fused ops is one operation with a region. Loads, stores and loop control are on the line of the
# nest, with the location of one of the ops. So only the lines inside tell which op does the work.

NO_OP_LINE = NO_LINE
"""The line for work that belongs to no op."""

_FORWARDING = frozenset({"linalg.yield", "iree_codegen.load_from_buffer", "iree_codegen.store_to_buffer"})
"""Steps that only pass on values that others compute."""


@dataclass(frozen=True)
class KernelLines:
    """The lines of kernel IR with their nesting; `members` are the ops of all dispatch sites of the kernel."""

    kernel: Kernel
    members: frozenset[OpId]

    @cached_property
    def _step_at(self) -> dict[int, KernelLine]:
        return {step.line: step for step in self.kernel.steps}

    @cached_property
    def _op_steps(self) -> Sequence[KernelLine]:
        return [step for step in self.kernel.steps if not self.members.isdisjoint(step.ops)]

    @cached_property
    def _lines_inside(self) -> Mapping[int, Sequence[int]]:
        """The lines of ops inside each step that contains any."""
        lines_inside: dict[int, list[int]] = defaultdict(list)
        for step in self._op_steps:
            if step.op_name not in _FORWARDING:
                for outer in self._outer(step):
                    lines_inside[outer].append(step.line)
        return lines_inside

    def _outer(self, step: KernelLine) -> Sequence[int]:
        """The lines of the enclosing steps, innermost first."""
        lines: list[int] = []
        while step.parent is not UNKNOWN and step.parent in self._step_at and step.parent not in lines:
            lines.append(step.parent)
            step = self._step_at[step.parent]
        return lines

    @cached_property
    def owned(self) -> frozenset[int]:
        """The lines whose own ops get the costs on them, instead of ops on lines inside."""
        lines = {step.line for step in self._op_steps if step.line not in self._lines_inside}
        working = {step.line for step in self._op_steps if step.op_name not in _FORWARDING}
        return frozenset((lines & working or lines) | self._unlocated.keys())

    @cached_property
    def _unlocated(self) -> Mapping[int, int]:
        """Lines without ops, in a region where no line has one, and the line of the op that holds the region.

        Passes that rebuild a region, such as that of a convolution, leave its operations without locations. Their work
        belongs to the op.
        """
        whole = {step.line for step in self._op_steps} - self._lines_inside.keys()
        regions = {}
        for step in self.kernel.steps:
            if self.members.isdisjoint(step.ops) and step.op_name not in _FORWARDING:
                for outer in whole.intersection(self._outer(step)):  # at most one, since these do not nest
                    regions[step.line] = outer
        return regions

    @cached_property
    def op_lines(self) -> OpLines:
        """The lines of ops as the analysis of machine code needs them."""
        steps = sorted((step for step in self.kernel.steps if step.line in self.owned), key=lambda step: step.line)
        return OpLines(self.owned, tuple(LineOp(step.line, step.op_name, step.parent, step.takes) for step in steps))

    def around(self, line: int) -> int:
        """This line if it belongs to an op, else that of the innermost enclosing line that does; else `NO_OP_LINE`."""
        step = self._step_at.get(line)
        if step is None:
            return NO_OP_LINE
        lines = (line, *self._outer(step))
        return next(
            (candidate for candidate in lines if not self.members.isdisjoint(self._step_at[candidate].ops)), NO_OP_LINE
        )

    def inside(self, line: int) -> Collection[int]:
        """The working lines inside the step at a line; for a step that only passes values on, those of its parent."""
        step = self._step_at.get(line)
        if step is None or step.op_name not in _FORWARDING:
            return self._lines_inside.get(line, ())
        return self.owned if step.parent is UNKNOWN else self._lines_inside.get(step.parent, ())

    def members_at(self, line: int, site: Site) -> tuple[int, ...]:
        """The indices in `Site.members` of the ops that a line belongs to."""
        ops = self.ops_at(line)
        return tuple(index for index, member in enumerate(site.members) if member.op in ops)

    def ops_at(self, line: int) -> Sequence[OpId]:
        """The ops that a line belongs to."""
        step = self._step_at.get(self._unlocated.get(line, line))
        return () if step is None else step.ops


def kernel_lines(graph: TraceGraph, kernel: Kernel) -> KernelLines:
    """The lines of kernel IR of a kernel in the map, with the ops of its dispatch sites."""
    return KernelLines(
        kernel, frozenset(member.op for site in kernel.sites for member in graph.site_by_id[site].members)
    )


# ---- query
#
# An op of a function that is called several times has one location but several call sites. JAX gives the ops of a
# nested jit short names; their calls have the rest. A membership keeps the calls that lead to its op, and scopes and
# frames are joined along them. A selection is the result of a query, with its neighbours.

_FILE_LINE = re.compile(r"(?P<file>.+):(?P<line>\d{1,18})", re.DOTALL)
_MAX_QUOTED = 400


@dataclass(frozen=True, slots=True)
class Selection:
    """Ops, sites and kernels, each in the order of the map."""

    ops: tuple[Op, ...]
    sites: tuple[Site, ...]
    kernels: tuple[Kernel, ...]


def select_all(graph: TraceGraph) -> Selection:
    """The whole map."""
    return Selection(graph.ops, graph.sites, graph.kernels)


def select(graph: TraceGraph, what: str) -> Selection:
    """Select an op, site, kernel, line or scope with everything connected to it.

    Raises:
        QueryInvalid: nothing in the map has this name.
    """
    return _connected(graph, resolve_names(graph, what))


def resolve_names(graph: TraceGraph, what: str) -> list[str]:
    """The ids and names that a query stands for: one, or several ops.

    The query `what` is an op (`op12`), a site (`site3`), a kernel's name, a line (`model.mlir:12`, `layers.py:40`), or
    a scope with everything below it (`h0/attn`), tried in this order.

    Raises:
        QueryInvalid: nothing in the map has this name.
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
        f"{start_of(what, _MAX_QUOTED)}: no op, dispatch, kernel, line or scope of the map has this name; "
        "ask for FILE:LINE, op12, site3, a kernel's name or a scope"
    )


def _check_line(graph: TraceGraph, file: str, line: int) -> None:
    """Reject a line on which no op begins, and name the nearest op above: the line may be in that op's region.

    Raises:
        QueryInvalid: there is an op above the line.
    """
    above = [
        (op.line, op)
        for op in graph.ops
        if isinstance(op.line, int) and op.line < line and isinstance(op.file, str) and same_file(op.file, file)
    ]
    if above:
        _, nearest = max(above, key=lambda item: item[0])
        raise QueryInvalid(
            f"{start_of(f'{file}:{line}', _MAX_QUOTED)}: no op of the map begins on this line; the nearest above it "
            f"is {nearest.id} ({start_of(nearest.name, _MAX_QUOTED)}) on line {nearest.line}: ask for {nearest.id}"
        )


def ops_in_scope(graph: TraceGraph, scope: tuple[str, ...]) -> list[str]:
    """The ids of the ops in a scope or below it, including ops that are there through one of their calls."""
    return [
        op.id
        for op in graph.ops
        if scope and any(other[: len(scope)] == scope for other in (op.scope, *scopes_of(graph, op)))
    ]


def ops_at(graph: TraceGraph, file: str, line: int) -> list[Op]:
    """The ops that begin on a line or have a frame on it. Two paths are the same file if one ends with the other."""
    return [
        op
        for op in graph.ops
        if (op.line == line and isinstance(op.file, str) and same_file(op.file, file))
        or any(frame.line == line and same_file(frame.file, file) for frame in op.frames)
    ]


def same_file(one: str, other: str) -> bool:
    """Whether one path ends with the other, in whole components."""
    first, second = PurePosixPath(one).parts, PurePosixPath(other).parts
    shorter = min(len(first), len(second))
    return shorter > 0 and first[-shorter:] == second[-shorter:]


def _connected(graph: TraceGraph, names: Iterable[str]) -> Selection:
    """The named ops, sites and kernels, with the sites and kernels connected to them, and all ops of these sites."""
    named = set(names)
    sites = tuple(
        site
        for site in graph.sites
        if not named.isdisjoint((site.id, site.kernel, *site.calls, *(member.op for member in site.members)))
    )
    ops = named | {member.op for site in sites for member in site.members}
    kernels = named | {site.kernel for site in sites}
    return Selection(
        ops=tuple(op for op in graph.ops if op.id in ops),
        sites=sites,
        kernels=tuple(kernel for kernel in graph.kernels if kernel.name in kernels),
    )


_CALLED_BY_NONE: Final[tuple[CallPath, ...]] = ((),)
"""The call paths of an op outside of called functions."""


def scope_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[str, ...]:
    """The scopes of the calls, outermost first, then the op's own; a scope that repeats the outer ones counts once."""
    full_scope: tuple[str, ...] = ()
    for call in path:
        full_scope = _inside(full_scope, graph.op_by_id[call].scope)
    return _inside(full_scope, op.scope)


def scopes_of(graph: TraceGraph, op: Op) -> tuple[tuple[str, ...], ...]:
    """The scopes of an op along its call paths, without duplicates; its own scope if no path is known."""
    paths = graph.paths_of_op.get(op.id, _CALLED_BY_NONE)
    if paths == _CALLED_BY_NONE:  # nearly all ops
        return (op.scope,)
    return tuple(dict.fromkeys([scope_of(graph, op, path) for path in paths]))


def scope_text(graph: TraceGraph, op: Op) -> str:
    """The first scope of an op for tables, with the number of further ones."""
    first, *others = scopes_of(graph, op)
    return "/".join(first) + (f" +{len(others)}" if others else "")


_OF_CHECKPOINTS = frozenset({"checkpoint", "rematted_computation"})
"""Scopes that `jax.checkpoint` adds to the backward pass only."""
_WRAPPED = re.compile(r"(?:jvp|transpose)\((.*)\)", re.DOTALL)


@cache
def plain_scope(scope: tuple[str, ...]) -> tuple[str, ...]:
    """A scope without the names that JAX's transformations add, so that forward and backward ops have the same one.

    The backward pass repeats enclosing names: `grad/transpose(grad)/jvp(layer0)` becomes `grad/layer0`.
    """
    plain: list[str] = []
    backward = False
    for name in scope:
        backward = backward or name.startswith("transpose(")
        if backward and name in _OF_CHECKPOINTS:
            continue
        bare = name
        while wrapped := _WRAPPED.fullmatch(bare):
            bare = wrapped[1]
        if bare == name or (bare and bare != (plain[-1] if plain else None)):
            plain.append(bare)
    return tuple(plain)


PASSES: Final = ("forward", "backward", "recompute", "optimizer")
"""The passes of a training step. `recompute` repeats a part of the forward pass inside the backward pass."""
_OPTIMIZER = re.compile(r".*optim.*|(adam|sgd|rmsprop|adagrad|lamb|lion)\w*|apply_(updates|gradients)", re.IGNORECASE)


@cache
def pass_of(scope: tuple[str, ...]) -> str:
    """The pass of a training step, from the names that JAX's transformations add to scopes; "" if they tell none.

    >>> pass_of(("grad", "jvp(layer0)")), pass_of(("transpose(jvp(layer0))",)), pass_of(("adam_update",))
    ('forward', 'backward', 'optimizer')
    """
    if "rematted_computation" in scope:
        return "recompute"
    if any(name.startswith("transpose(") for name in scope):
        return "backward"
    if any(name.startswith("jvp(") for name in scope):
        return "forward"
    return "optimizer" if any(_OPTIMIZER.fullmatch(name) for name in scope) else ""


def _inside(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    return inner if inner[: len(outer)] == outer else outer + inner


def frames_of(graph: TraceGraph, op: Op, path: Sequence[str]) -> tuple[Frame, ...]:
    """The op's own frames, then those of its calls, innermost first, without duplicates."""
    if not path and len(op.frames) < 2:
        return op.frames
    stacks = [op.frames, *(graph.op_by_id[call].frames for call in reversed(path))]
    return tuple(dict.fromkeys(frame for stack in stacks for frame in stack))


def stack_of(graph: TraceGraph, op: Op) -> tuple[Frame, ...]:
    """The frames of an op along its first call path; the user's own frames come first."""
    return user_frames_first(graph, frames_of(graph, op, graph.paths_of_op.get(op.id, _CALLED_BY_NONE)[0]))


def user_frames_first(graph: TraceGraph, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Sort the frames of the user's own files ahead of those of libraries, by the map's patterns."""
    if len(frames) < 2:
        return tuple(frames)
    return tuple(sorted(frames, key=lambda frame: _is_of(frame.file, graph.library)))


def python_frame(graph: TraceGraph, op: Op) -> Frame | None:
    """The innermost of the user's own frames that made an op, including those of its calls; None if there is none."""
    return next(iter(user_frames(graph, stack_of(graph, op))), None)


def user_frames(graph: TraceGraph, frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own files, innermost first."""
    return tuple(frame for frame in frames if not _is_of(frame.file, graph.library))


@cache
def _is_of(file: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file matches a pattern; cached, since many frames name few files."""
    return any(fnmatchcase(file, pattern) for pattern in patterns)
