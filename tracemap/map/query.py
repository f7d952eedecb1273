"""Queries of a map: what `op3`, `model.py:12`, a function or a scope names; dispatches and ops; lost locations."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Final

import msgspec

from tracemap.core.codec import Count, Record
from tracemap.core.errors import QueryInvalid, start_of
from tracemap.core.units import UNKNOWN, join_names, matching_names, plural, suggest_names
from tracemap.machine.debug_lines import NO_LINE, LineOp, OpLines
from tracemap.map.model import (
    PHASES,
    SOURCE,
    CallPath,
    Frame,
    Kernel,
    KernelLine,
    Op,
    OpId,
    Site,
    SourceFile,
    TraceGraph,
)

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


class Loss(msgspec.Struct, frozen=True):
    """An op, and the first phase that no longer locates it."""

    op: Op
    phase: str


class LosingPass(msgspec.Struct, frozen=True):
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


class Audit(msgspec.Struct, frozen=True):
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


class KernelLines(msgspec.Struct, frozen=True, dict=True):
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

_POSITION = re.compile(r"(?:(?P<file>.+?):)?(?P<line>\d{1,18})(?::(?P<column>\d{1,18}))?", re.DOTALL)
_NUMBERED = re.compile(r"(op|site)(\d{1,18})", re.ASCII)
_MAX_QUOTED = 400
_NEAR_LINES: Final = 3
"""Distance up to which the nearest line with ops takes the place of the line that was asked for."""

Texts = Callable[[SourceFile], str]
"""Reads the text of a source file of the map."""


class Selection(msgspec.Struct, frozen=True):
    """Ops, sites and kernels, each in the order of the map."""

    ops: tuple[Op, ...]
    sites: tuple[Site, ...]
    kernels: tuple[Kernel, ...]


class Target(msgspec.Struct, frozen=True):
    """The items that a text of the user names.

    `names`: ids of ops and sites and names of kernels, in the order of the map. `matches`: the kinds of names that the
    text is, such as `Python function cell`; empty for ids and lines. `file`, `line`: the line that it names ("", 0:
    none). `nearest`: if no op is on that line, a sentence that says so; the names are those of the nearest line.
    """

    names: tuple[str, ...]
    matches: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    nearest: str = ""

    def description(self, what: str) -> str:
        """The text, the kinds of names that it is, and the items; "" for an id or a full name."""
        title = f"{self.file}:{self.line}" if self.nearest else what
        return (
            ""
            if self.names == (what,)
            else ": ".join(filter(None, (title, ", ".join(self.matches), join_names(self.names))))
        )


def select_all(graph: TraceGraph) -> Selection:
    """The whole map."""
    return Selection(graph.ops, graph.sites, graph.kernels)


def select(graph: TraceGraph, what: str) -> Selection:
    """Select what `resolve` finds, with everything connected to it.

    Raises:
        QueryInvalid: nothing in the map has this name.
    """
    return connected(graph, resolve(graph, what).names)


def resolve(graph: TraceGraph, what: str, texts: Texts | None = None, *, nearest: bool = False) -> Target:
    """Find what a text names. All options and arguments that name a part of a map go through this function.

    These are tried in turn, and the first that match count:

    1. an op's id (`op12`), a dispatch site's (`site3`) or a kernel's full name;
    2. a line: `12` (of the model), `model.mlir:12`, `layers.py:40`, each with an optional `:COLUMN`;
    3. a scope with everything below it (`h0/attn`), a function of the model, a Python function (`cell`, `rnn.py:cell`),
       an ONNX node (`/conv1/Conv`), and the name of ops (`stablehlo.add` or `add`);
    4. a part of scopes (`attn`), and the beginning of the names of kernels or ops, or a glob (`*matmul*`).

    Args:
        graph: the map.
        what: the text.
        texts: reads sources, for the functions of Python frames that do not name theirs; None: these have none.
        nearest: if no op is on the line, select the nearest line of the file, instead of an error that names it.

    Raises:
        QueryInvalid: nothing in the map has this name; the message has the nearest names.
    """
    if what in graph.op_by_id or what in graph.site_by_id or what in graph.kernel_by_name:
        return Target((what,))
    position = _position(graph, what)
    on_line = [] if position is None else position.ops
    if position is not None and on_line:
        return Target(tuple(op.id for op in on_line), position.other_files, position.file, position.line)
    names = _Names(graph, texts)
    matches = names.equal_to(what) or names.like(what)
    if matches:
        chosen = {name for _, group in matches for name in group}
        ordered = [op.id for op in graph.ops] + [kernel.name for kernel in graph.kernels]
        return Target(tuple(name for name in ordered if name in chosen), tuple(kind for kind, _ in matches))
    if position is not None:
        return position.nearest(fail=not nearest)
    raise QueryInvalid(_nothing_named(graph, what, names.all()))


def _nothing_named(graph: TraceGraph, what: str, names: Iterable[str]) -> str:
    numbered = _NUMBERED.fullmatch(what)
    numbers = [int(name[len(numbered[1]) :]) for name in _ids(graph, numbered[1])] if numbered else []
    if numbered and numbers:
        kind, below = numbered[1], [number for number in numbers if number < int(numbered[2])]
        nearest = f"{kind}{max(below, default=numbers[0])}"
        name = f" ({start_of(graph.op_by_id[nearest].name, _MAX_QUOTED)})" if kind == "op" else ""
        return (
            f"{what}: the map has no {kind} of this id; its ids are {kind}{numbers[0]} to {kind}{numbers[-1]}, "
            f"and the nearest is {nearest}{name}"
        )
    quote = start_of(what, _MAX_QUOTED) or repr(what)
    return (
        f"{quote}: no op, function, scope, line, dispatch or kernel of the map has this name"
        f"{suggest_names(what, names) or _FORMS}"
    )


_FORMS: Final = "; ask for FILE:LINE, a function, a scope, op12, site3, or the name of a kernel or of ops"


def _ids(graph: TraceGraph, kind: str) -> Sequence[str]:
    return [op.id for op in graph.ops] if kind == "op" else [site.id for site in graph.sites]


class _Position(msgspec.Struct, frozen=True, dict=True):
    """A line that the user names, and the files of the map that it may be in."""

    graph: TraceGraph
    what: str
    file: str
    line: int
    column: int
    files: frozenset[str]

    @cached_property
    def ops(self) -> Sequence[Op]:
        """The ops that begin or have a frame on the line; else the innermost op whose region the line is in."""
        on_line = self._ops_by_line.get(self.line, ())
        in_column = [op for op in on_line if self.column and (op.line, op.column) == (self.line, self.column)]
        return in_column or on_line or self._around[-1:]

    @property
    def _around(self) -> Sequence[Op]:
        """The ops from whose first line to the last inner operation the line is, by their first line."""
        ops = [
            (op.line, op) for op in self.graph.ops if op.file in self.files and op.parts and isinstance(op.line, int)
        ]
        ends = [max([part.line for part in op.parts if isinstance(part.line, int)], default=0) for _, op in ops]
        around = [first for first, end in zip(ops, ends, strict=True) if first[0] <= self.line <= end]
        return [op for _, op in sorted(around, key=itemgetter(0))]

    @cached_property
    def _ops_by_line(self) -> Mapping[int, Sequence[Op]]:
        ops: dict[int, dict[Op, None]] = defaultdict(dict)
        for op in self.graph.ops:
            if op.file in self.files and isinstance(op.line, int):
                ops[op.line][op] = None
            for frame in op.frames:
                if frame.file in self.files:
                    ops[frame.line][op] = None
        return {line: tuple(on_line) for line, on_line in ops.items()}

    @property
    def other_files(self) -> tuple[str, ...]:
        """The files with ops on this line if there are several, as a phrase."""
        places = {op.file for op in self.ops if op.line == self.line} | {
            frame.file for op in self.ops for frame in op.frames if frame.line == self.line
        }
        files = sorted(str(file) for file in places & self.files)
        return (f"in {len(files)} files ({join_names(files)})",) if len(files) > 1 else ()

    def nearest(self, *, fail: bool) -> Target:
        """The nearest line with ops; of two, the upper one, since a long operation begins on its first line.

        Raises:
            QueryInvalid: the map does not have the file, no near line has ops, or the caller wants an error.
        """
        quoted, lines = start_of(self.what, _MAX_QUOTED), self._ops_by_line
        if not lines:
            files = _files(self.graph)
            names = dict.fromkeys([*(PurePosixPath(file).name for file in files), *files])
            suggestion = suggest_names(self.file, names, 1)
            raise QueryInvalid(
                f"{quoted}: no op of the map is in a file of this name"
                + (f"{suggestion[:-1]}:{self.line}?" if suggestion else f"; the files are {join_names(files)}")
            )
        line = min(lines, key=lambda number: (abs(number - self.line), number))
        ops = [f"{op.id} {start_of(op.name, _MAX_QUOTED)}" for op in lines[line]]
        place = f"{start_of(self.file, _MAX_QUOTED)}:{line}"
        sentence = (
            f"{quoted}: no op of the map begins on this line; the nearest line with ops is {place} "
            f"({join_names(ops, most=2)})"
        )
        if fail or abs(line - self.line) > _NEAR_LINES:
            raise QueryInvalid(f"{sentence}: ask for {place}")
        return Target(tuple(op.id for op in lines[line]), (), self.file, line, sentence)


def _position(graph: TraceGraph, what: str) -> _Position | None:
    match = _POSITION.fullmatch(what)
    if match is None:
        return None
    known = _files(graph)
    name, line, column = match["file"] or "", match["line"], match["column"] or ""
    if name.isdecimal() and not column and not any(same_file(file, name) for file in known):
        name, line, column = "", name, line  # `16:10`, as reasons of outcomes say it
    if not (name or known):
        return None
    file = name or known[0]  # the model is the first
    files = frozenset(candidate for candidate in known if same_file(candidate, file))
    return _Position(graph, what, file, int(line), int(column or 0), files)


def _files(graph: TraceGraph) -> Sequence[str]:
    """All files with ops, in the order of the map, the model first."""
    ops = [op.file for op in graph.ops if isinstance(op.file, str)]
    return tuple(dict.fromkeys([*ops[:1], *ops, *(frame.file for op in graph.ops for frame in op.frames)]))


_Match = tuple[str, Sequence[str]]
"""A kind of name, such as `scope h0`, and the ids or names of what has it."""


class _Names(msgspec.Struct, frozen=True, dict=True):
    """The names in a map that are neither ids nor lines."""

    graph: TraceGraph
    texts: Texts | None

    def equal_to(self, what: str) -> list[_Match]:
        """All that has this full name."""
        ops = self.graph.ops
        scope, symbol = tuple(component for component in what.split("/") if component), what.removeprefix("@")
        file, _, name = what.rpartition(":")
        groups: list[_Match] = [(f"scope {'/'.join(scope)}", ops_in_scope(self.graph, scope))]
        groups.append((f"function {symbol}", [op.id for op in ops if op.function == symbol]))
        for place, function in dict.fromkeys(self._python_functions):
            if _names_function(name, function) and (not file or same_file(place, file)):
                group = [op.id for op in ops if any((place, function) == self._function(frame) for frame in op.frames)]
                groups.append((f"Python function {function} ({PurePosixPath(place).name})", group))
        node = what.strip("/")
        groups.append((f"ONNX node {what}", [op.id for op in ops if node and op.node.strip("/") == node]))
        groups.append((f"ops named {what}", [op.id for op in ops if what and f".{op.name}".endswith(f".{what}")]))
        return [(kind, group) for kind, group in groups if group]

    def like(self, what: str) -> list[_Match]:
        """Scopes with this part, and ops and kernels by the beginning or a glob of their name, without dialect too."""
        ops, kernels = self.graph.ops, matching_names(what, self.graph.kernel_by_name)
        op_names = dict.fromkeys(op.name for op in ops)
        named = matching_names(what, op_names) or [
            name for name in op_names if matching_names(what, [name.partition(".")[2]])
        ]
        part = tuple(component for component in what.split("/") if component)
        scopes = dict.fromkeys(scope[: _end_of(part, scope)] for op in ops for scope in scopes_of(self.graph, op))
        inner = [scope for scope in scopes if scope]
        in_scopes = [op for scope in inner for op in ops_in_scope(self.graph, scope)]
        groups: list[_Match] = [
            (f"scopes {join_names(['/'.join(scope) for scope in inner])}", in_scopes),
            (f"ops named {join_names(named)}", [op.id for op in ops if op.name in named]),
            (plural(len(kernels), "kernel"), kernels),
        ]
        return [(kind, group) for kind, group in groups if group]

    def all(self) -> Iterator[str]:
        """All names, for suggestions."""
        ops = self.graph.ops
        yield from (op.function for op in ops if isinstance(op.function, str))
        yield from (function.rpartition(".")[2] for _, function in self._python_functions)
        yield from ("/".join(scope) for op in ops for scope in (op.scope, *scopes_of(self.graph, op)))
        yield from (op.node for op in ops)
        yield from (op.name for op in ops)
        yield from self.graph.kernel_by_name

    @cached_property
    def _python_functions(self) -> Sequence[tuple[str, str]]:
        """All functions of Python frames, with their files."""
        functions = (self._function(frame) for op in self.graph.ops for frame in op.frames)
        return tuple(dict.fromkeys(function for function in functions if function[1]))

    def _function(self, frame: Frame) -> tuple[str, str]:
        """The file and the function of a frame; from the source if the frame does not name it, "" if unknown."""
        if isinstance(frame.function, str):
            return frame.file, frame.function
        return frame.file, self._functions_by_line.get(frame.file, {}).get(frame.line, "")

    @cached_property
    def _functions_by_line(self) -> Mapping[str, Mapping[int, str]]:
        texts = self.texts
        if texts is None:
            return {}
        sources = (source for source in self.graph.sources if source.language == "python")
        return {source.name: _functions_in(texts(source)) for source in sources}


def _end_of(part: tuple[str, ...], scope: tuple[str, ...]) -> int:
    """The index after the first occurrence of a part of a scope; 0 if there is none."""
    ends = range(len(part), len(scope) + 1) if part else ()
    return next((end for end in ends if scope[end - len(part) : end] == part), 0)


def _names_function(what: str, function: str) -> bool:
    """Whether a text is a function's qualified name, with or without `<locals>`, or the end of it."""
    return bool(what) and what in (function, function.replace(".<locals>", ""), function.rpartition(".")[2])


def _functions_in(text: str) -> Mapping[int, str]:
    """The qualified name of the innermost function at each line of a Python text; empty if it has another syntax."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    functions: dict[int, str] = {}
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:  # outer functions first, so that inner ones replace them
        node, prefix = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.update(
                dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), prefix + node.name)
            )
            prefix += f"{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            prefix += f"{node.name}."
        todo += [(child, prefix) for child in ast.iter_child_nodes(node)]
    return functions


def ops_of(graph: TraceGraph, names: Iterable[str]) -> tuple[Op, ...]:
    """The named ops, and the ops in the named dispatch sites and kernels."""
    named = set(names)
    inside = {
        member.op for site in graph.sites if not named.isdisjoint((site.id, site.kernel)) for member in site.members
    }
    return tuple(op for op in graph.ops if op.id in named or op.id in inside)


def kernels_named(graph: TraceGraph, what: str, texts: Texts | None = None) -> tuple[str, ...]:
    """The kernels that a text names, or that run what it names.

    Raises:
        QueryInvalid: nothing has this name, or it runs in no kernel.
    """
    kernels = tuple(matching_names(what, graph.kernel_by_name))
    return kernels or kernels_of(graph, what, resolve(graph, what, texts).names)


def kernels_of(graph: TraceGraph, what: str, names: Sequence[str]) -> tuple[str, ...]:
    """The named kernels, and those that run the named ops and dispatch sites; `what` is the user's text for them.

    Raises:
        QueryInvalid: there are none.
    """
    kernels = tuple(kernel.name for kernel in connected(graph, names).kernels)
    if not kernels:
        ops = [f"{op.id} {op.outcome.value}: {start_of(op.reason.text, _MAX_QUOTED)}" for op in ops_of(graph, names)]
        raise QueryInvalid(f"{start_of(what, _MAX_QUOTED)}: runs in no kernel ({join_names(ops, '; ', 2)})")
    return kernels


def ops_in_scope(graph: TraceGraph, scope: tuple[str, ...]) -> list[str]:
    """The ids of the ops in a scope or below it, including ops that are there through one of their calls.

    A scope without the names that JAX's transformations add, such as `h0/attn`, is that of both passes.
    """
    size = len(scope)
    return [
        op.id
        for op in graph.ops
        if scope
        and any(scope in (other[:size], plain_scope(other)[:size]) for other in (op.scope, *scopes_of(graph, op)))
    ]


def same_file(one: str, other: str) -> bool:
    """Whether one path ends with the other, in whole components."""
    first, second = PurePosixPath(one).parts, PurePosixPath(other).parts
    shorter = min(len(first), len(second))
    return shorter > 0 and first[-shorter:] == second[-shorter:]


def connected(graph: TraceGraph, names: Iterable[str]) -> Selection:
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


_RECOMPUTED = frozenset({"remat", "rematted_computation"})
"""Scopes of forward ops that `jax.checkpoint` repeats in the backward pass: in maps, and as JAX writes them."""
_OF_CHECKPOINTS = _RECOMPUTED | {"checkpoint"}
"""Scopes that `jax.checkpoint` adds, those of the backward pass only included."""
_WRAPPED = re.compile(r"(?:jvp|transpose)\((.*)\)", re.DOTALL)


@cache
def plain_scope(scope: tuple[str, ...]) -> tuple[str, ...]:
    """A scope without the names that JAX's transformations add, so that forward and backward ops have the same one.

    The backward pass repeats enclosing names: `grad/transpose(grad)/jvp(layer0)` becomes `grad/layer0`.
    """
    plain: list[str] = []
    derived = any(name.startswith(("jvp(", "transpose(")) for name in scope)
    for name in scope:
        if derived and name in _OF_CHECKPOINTS:
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
    if any(name.startswith("transpose(") for name in scope):
        return "backward" if _RECOMPUTED.isdisjoint(scope) else "recompute"
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
