"""Views by lines of Python, by callers of shared helpers, and by scopes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tracemap.map.model import Frame, Op
from tracemap.map.query import user_frames
from tracemap.reports.cost_lookup import MapCosts, OpOccurrence
from tracemap.reports.escaping import file_line, op_line, or_dash
from tracemap.reports.views.costs import Column, Costs, Row, View
from tracemap.reports.views.ops import LEAVE_CALLS, LEAVE_INCLUSIVE, LEAVE_LINE, LEAVE_SCOPE, and_more, names_of

NOWHERE = "(no frame)"
NO_SCOPE = "(no scope)"


_FileLine = tuple[str, int] | None


@dataclass(slots=True)
class _Sum:
    """Costs at a line or in a scope: the ranking metric per op, and all metrics; for a line also its frame."""

    frame: Frame | None = None
    ops: Counter[Op] = field(default_factory=Counter)
    amounts: Counter[str] = field(default_factory=Counter)

    def add(self, reached: OpOccurrence, metric: str) -> None:
        """Add an op's share of a site or transfer; `metric` is the ranking metric."""
        self.ops[reached.op] += reached.attributed.get(metric, 0)
        self.amounts.update(reached.attributed)

    def row(self, costs: Costs) -> Row:
        """The cells that all views have in common."""
        return {
            "line": file_line(self.frame.file, self.frame.line) if self.frame else NOWHERE,
            "function": or_dash(self.frame.function) if self.frame else "",
            "names": names_of(self.ops) if self.ops else "",
            "ops": len(self.ops),
            **costs.cells(self.amounts),
        }


_FUNCTION = Column("function", "function", leave=LEAVE_SCOPE, least=10)
_NAMES = Column("names", "names", leave=LEAVE_LINE, least=12)
_OPS = Column("ops", "ops", "count", leave=LEAVE_CALLS)


def _measured(costed: MapCosts) -> Iterator[OpOccurrence]:
    """Shares of ops in measured sites and transfers."""
    return (reached for reached in costed.reached if reached.attributed)


class _Lines(dict[_FileLine, _Sum]):
    """Sums by line, with the full path of the file; None: ops without a frame."""

    def at(self, frame: Frame | None) -> _Sum:
        """The sum of a frame's line; None: of ops without a frame."""
        return self.setdefault((frame.file, frame.line) if frame else None, _Sum(frame))


# ---- Python lines


def by_python(costed: MapCosts, costs: Costs) -> View:
    """A row per line of the user's Python: the cost of its own ops, and `inclusive`, with the functions it calls."""
    columns = (
        Column("line", "python", least=17),
        *(_FUNCTION, _NAMES, _OPS),
        *costs.columns(),
        costs.of_first("inclusive", "inclusive", LEAVE_LINE),
    )
    metric = costs.first.name
    own, inclusive = _Lines(), _Lines()
    for reached in _measured(costed):
        frames = user_frames(costed.graph, reached.frames)
        own.at(frames[0] if frames else None).add(reached, metric)
        for frame in {(frame.file, frame.line): frame for frame in reversed(frames)}.values() or [None]:
            own.at(frame)
            inclusive.at(frame).add(reached, metric)
    rows = [{**line_sum.row(costs), "inclusive": inclusive[line].amounts[metric]} for line, line_sum in own.items()]
    return View("Python line", columns, rows, costs.first.name)


# ---- source lines


def by_source(costed: MapCosts, costs: Costs) -> View:
    """A row per source line: a line of the user's Python, else a node of ONNX, else a line of the model.

    `kernel` is the most expensive of its kernels, and the number of others.
    """
    columns = (Column("line", "line", least=17), _FUNCTION, _NAMES, _OPS, *costs.columns(), _KERNELS)
    sums, kernels = defaultdict[str, _Sum](_Sum), defaultdict[str, Counter[str]](Counter)
    functions: dict[str, str] = {}
    for reached in _measured(costed):
        line, function = source_of(costed, reached)
        sums[line].add(reached, costs.first.name)
        site = costed.graph.site_by_id.get(reached.work)
        kernels[line][site.kernel if site else costed.graph.transfer_by_id[reached.work].kind] += reached.attributed[
            costs.first.name
        ]
        functions.setdefault(line, function)
    rows = [
        {
            **line_sum.row(costs),
            "line": line,
            "function": functions[line],
            "names": without_dialect(names_of(line_sum.ops)),
            "kernel": and_more([kernel for kernel, _ in kernels[line].most_common()]),
        }
        for line, line_sum in sums.items()
    ]
    return View("source line", columns, rows, costs.first.name)


_KERNELS = Column("kernel", "kernel", leave=LEAVE_SCOPE - 1, least=20)


def source_of(costed: MapCosts, reached: OpOccurrence) -> tuple[str, str]:
    """The source line of an op and its function: of Python, else the node of ONNX, else the line of the model."""
    frames = user_frames(costed.graph, reached.frames)
    if frames:
        return file_line(frames[0].file, frames[0].line), or_dash(frames[0].function)
    return reached.op.node or op_line(reached.op), ""


def without_dialect(name: str) -> str:
    """An op's name without the dialect that a framework's importer uses: `dot_general`, `mm`, `MatMul`.

    >>> without_dialect("stablehlo.dot_general"), without_dialect("torch.aten.mm"), without_dialect("linalg.matmul")
    ('dot_general', 'mm', 'linalg.matmul')
    """
    return next((name.removeprefix(prefix) for prefix in _FRAMEWORKS if name.startswith(prefix)), name)


_FRAMEWORKS = ("stablehlo.", "torch.aten.", "onnx.")


# ---- callers


def by_caller(costed: MapCosts, costs: Costs) -> View:
    """A row per line of the user's Python that calls a shared helper or makes ops itself."""
    columns = (Column("line", "caller", least=17), _FUNCTION, _NAMES, _OPS, *costs.columns())
    stacks = [(reached, user_frames(costed.graph, reached.frames)) for reached in _measured(costed)]
    helpers = shared_helpers(frames for _, frames in stacks)
    sums = _Lines()
    for reached, frames in stacks:
        sums.at(caller_of(frames, helpers)).add(reached, costs.first.name)
    rows = [line_sum.row(costs) for line_sum in sums.values()]
    return View("caller", columns, rows, costs.first.name)


_Function = tuple[object, ...]


def _function(frame: Frame) -> _Function:
    """Identity of a frame's function; of its line if the function is unknown."""
    return (frame.file, frame.function) if isinstance(frame.function, str) else (frame.file, frame.line)


def shared_helpers(stacks: Iterable[Sequence[Frame]]) -> frozenset[_Function]:
    """The user's functions that make ops for several call sites. Recursive calls do not count.

    Stacks are innermost frame first.
    """
    call_sites: dict[_Function, set[tuple[object, ...]]] = defaultdict(set)
    for frames in stacks:
        for frame, caller in pairwise(frames):
            if _function(frame) != _function(caller):
                call_sites[_function(frame)].add((caller.file, caller.line, caller.column))
    return frozenset(function for function, callers in call_sites.items() if len(callers) > 1)


def caller_of(frames: Sequence[Frame], helpers: frozenset[_Function]) -> Frame | None:
    """The innermost frame outside of shared helpers; else the outermost frame; None without frames."""
    outside = (frame for frame in frames if _function(frame) not in helpers)
    return next(outside, frames[-1] if frames else None)


# ---- scopes

_WRAPPED = re.compile(r"(?:jvp|transpose)\((.*)\)", re.DOTALL)


def by_scope(costed: MapCosts, costs: Costs) -> View:
    """A row per scope, including nested ones. Forward and backward scopes also count in the plain scope.

    `own` is the ranking metric of ops directly in the scope.
    """
    columns = (
        Column("scope", "scope", least=24),
        *(_NAMES, _OPS),
        *costs.columns(),
        costs.of_first("own", "own", LEAVE_INCLUSIVE),
    )
    inclusive, own = defaultdict[str, _Sum](_Sum), Counter[str]()
    for reached in _measured(costed):
        own["/".join(reached.scope) or NO_SCOPE] += reached.attributed.get(costs.first.name, 0)
        for scope in _enclosing_scopes(reached.scope):
            inclusive[scope].add(reached, costs.first.name)
    rows = [{**scope_sum.row(costs), "scope": scope, "own": own[scope]} for scope, scope_sum in inclusive.items()]
    return View("scope", columns, rows, costs.first.name, share=False)


def _enclosing_scopes(scope: tuple[str, ...]) -> Iterable[str]:
    """A scope and its enclosing scopes, then the same for the plain scope, without duplicates."""
    paths = (path[: depth + 1] for path in (scope, plain_scope(scope)) for depth in range(len(path)))
    return dict.fromkeys("/".join(path) for path in paths) or [NO_SCOPE]


def plain_scope(scope: Sequence[str]) -> tuple[str, ...]:
    """A scope without the marks of derivatives, `jvp` and `transpose`.

    The backward pass repeats enclosing names: `grad/transpose(grad)/jvp(layer0)` becomes `grad/layer0`.
    """
    plain: list[str] = []
    for name in scope:
        bare = name
        while wrapped := _WRAPPED.fullmatch(bare):
            bare = wrapped[1]
        if bare == name or (bare and bare != (plain[-1] if plain else None)):
            plain.append(bare)
    return tuple(plain)
