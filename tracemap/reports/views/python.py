"""Views by lines of Python, by callers of shared helpers, and by scopes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import PurePath

from tracemap.attribution.model import Overhead
from tracemap.core.units import UNKNOWN
from tracemap.map.model import Frame, Op
from tracemap.map.query import pass_of, plain_scope, user_frames
from tracemap.reports.cost_lookup import OVERHEAD_LABELS, OVERHEAD_PARTS, MapCosts, OpOccurrence
from tracemap.reports.escaping import file_line, or_dash
from tracemap.reports.views.costs import OVERHEAD, PERCENT, SHARE, Cell, Column, Costs, LazyRow, Row, View
from tracemap.reports.views.ops import (
    GAINS,
    LEAVE_CALLS,
    LEAVE_INCLUSIVE,
    LEAVE_LINE,
    LEAVE_OVERHEAD,
    LEAVE_SCOPE,
    and_more,
    error_columns,
    errors_of_ops,
    gain_cells,
    names_of,
    pass_cells,
    pass_columns,
)

NOWHERE = "(no frame)"
NO_SCOPE = "(no scope)"


_FileLine = tuple[str, int] | None


@dataclass(slots=True)
class _Sum:
    """Costs at a line or in a scope: the ranking metric per op and pass, and all metrics; for a line also its frame."""

    frame: Frame | None = None
    ops: Counter[Op] = field(default_factory=Counter)
    amounts: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)

    def add(self, reached: OpOccurrence, metric: str) -> None:
        """Add an op's share of a site or transfer; `metric` is the ranking metric."""
        self.ops[reached.op] += reached.attributed.get(metric, 0)
        self.amounts.update(reached.attributed)
        self.passes[pass_of(reached.scope)] += reached.attributed.get(metric, 0)

    def row(self, costed: MapCosts, costs: Costs) -> Row:
        """The cells that all views have in common."""
        return {
            "line": file_line(self.frame.file, self.frame.line) if self.frame else NOWHERE,
            "function": or_dash(self.frame.function) if self.frame else "",
            "names": names_of(self.ops),
            "ops": len(self.ops),
            **costs.cells(self.amounts),
            **pass_cells(self.passes),
            **errors_of_ops(costed, self.ops),
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
        *pass_columns(costs),
        *error_columns(costed),
    )
    metric = costs.first.name
    own, inclusive = _Lines(), _Lines()
    for reached in _measured(costed):
        frames = user_frames(costed.graph, reached.frames)
        own.at(frames[0] if frames else None).add(reached, metric)
        for frame in {(frame.file, frame.line): frame for frame in reversed(frames)}.values() or [None]:
            own.at(frame)
            inclusive.at(frame).add(reached, metric)
    rows = [
        {**line_sum.row(costed, costs), "inclusive": inclusive[line].amounts[metric]} for line, line_sum in own.items()
    ]
    return View("Python line", columns, rows, costs.first.name)


# ---- source lines


def by_source(costed: MapCosts, costs: Costs) -> View:
    """A row per source line: a line of the user's Python, else a node of ONNX, else a line of the model.

    `kernel` is the most expensive of its kernels, and the number of others.
    """
    columns = (
        Column("line", "line", least=17),
        _FUNCTION,
        _NAMES,
        _OPS,
        *costs.columns(),
        *GAINS,
        *pass_columns(costs),
        *error_columns(costed),
        costs.overhead(LEAVE_OVERHEAD, usual=costed.has_notable_overhead),
        _KERNELS,
    )
    sums, kernels = defaultdict[str, _Sum](_Sum), defaultdict[str, Counter[str]](Counter)
    occurrences = defaultdict[str, list[OpOccurrence]](list)
    overhead = Counter[str]()
    functions: dict[str, str] = {}
    for reached in _measured(costed):
        line, function = costed.line_of(reached.op, reached.frames)
        sums[line].add(reached, costs.first.name)
        occurrences[line].append(reached)
        site = costed.graph.site_by_id.get(reached.work)
        kernels[line][site.kernel if site else costed.graph.transfer_by_id[reached.work].kind] += reached.attributed[
            costs.first.name
        ]
        functions.setdefault(line, function)
    for op_id, amount in () if costed.passes else costed.overhead_of_op.items():
        line, function = costed.line_of(costed.graph.op_by_id[op_id])
        overhead[line] += amount
        functions.setdefault(line, function)
        sums[line].ops[costed.graph.op_by_id[op_id]] += 0
    rows = [
        LazyRow(
            {
                **line_sum.row(costed, costs),
                "line": line,
                "function": functions[line],
                **({OVERHEAD: overhead[line]} if overhead[line] else {}),
                "kernel": and_more([kernel for kernel, _ in kernels[line].most_common()]),
            },
            partial(_gain_of, costed, occurrences[line]),
        )
        for line, line_sum in sums.items()
    ]
    return View("source line", columns, rows, costs.first.name)


def _gain_of(costed: MapCosts, occurrences: Sequence[OpOccurrence]) -> Row:
    return gain_cells(costed.gain_of(occurrences))


_KERNELS = Column("kernel", "kernel", leave=LEAVE_SCOPE - 1, least=20)


# ---- overhead


def by_overhead(costed: MapCosts, costs: Costs) -> View:
    """A row per loop, branch or other place of the host program: the elapsed time without a kernel there."""
    total = costs.overhead()
    columns = (
        Column("place", "place", least=10),
        Column("line", "line", leave=LEAVE_LINE, least=12),
        _FUNCTION,
        _NAMES,
        Column("gaps", "gaps", "count", divisor=total.divisor, leave=LEAVE_CALLS),
        Column("per_gap", "per gap", "ns", leave=LEAVE_CALLS - 1),
        total,
        Column(SHARE, "of elapsed", PERCENT, leave=LEAVE_LINE - 1),
        *(
            Column(name, name, "ns", divisor=total.divisor, leave=LEAVE_INCLUSIVE + index)
            for index, name in enumerate(OVERHEAD_PARTS)
        ),
    )
    rows = [_overhead_row(costed, row) for row in (costed.attribution.overhead if costed.attribution else ())]
    return View("place", columns, rows, OVERHEAD)


def _overhead_row(costed: MapCosts, row: Overhead) -> Row:
    ops = [costed.graph.op_by_id[op] for op in row.ops]
    line, function = costed.line_of(ops[0]) if ops else ("", "")
    cells: dict[str, Cell] = {
        "place": OVERHEAD_LABELS[row.place],
        "line": line,
        "function": function,
        "names": names_of(dict.fromkeys(ops, 0)),
        OVERHEAD: row.total_ns,
        **{name: amount for name, amount in zip(OVERHEAD_PARTS, row.parts, strict=True) if amount},
    }
    if isinstance(row.count, int) and row.count:
        cells |= {"gaps": row.count, "per_gap": Fraction(row.total_ns, row.count)}
    elapsed_ns = costed.attribution.run.elapsed_ns if costed.attribution else UNKNOWN
    if isinstance(elapsed_ns, int) and elapsed_ns:
        cells[SHARE] = Fraction(100 * row.total_ns, elapsed_ns)
    return cells


# ---- callers


def by_caller(costed: MapCosts, costs: Costs) -> View:
    """A row per line of the user's Python that calls a shared helper or makes ops itself."""
    columns = (
        Column("line", "caller", least=17),
        _FUNCTION,
        _NAMES,
        _OPS,
        *costs.columns(),
        *pass_columns(costs),
        *error_columns(costed),
    )
    stacks = [(reached, user_frames(costed.graph, reached.frames)) for reached in _measured(costed)]
    helpers = shared_helpers(frames for _, frames in stacks)
    sums = _Lines()
    for reached, frames in stacks:
        sums.at(caller_of(frames, helpers)).add(reached, costs.first.name)
    rows = [line_sum.row(costed, costs) for line_sum in sums.values()]
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


def helper_line(costed: MapCosts, metric: str) -> str:
    """The most expensive line of Python if it is in a shared helper, so that its callers tell more; else ""."""
    stacks = [(reached, user_frames(costed.graph, reached.frames)) for reached in _measured(costed)]
    sums = _Lines()
    for reached, frames in stacks:
        if frames:
            sums.at(frames[0]).add(reached, metric)
    most = max(sums.values(), key=lambda line_sum: line_sum.amounts[metric], default=_Sum())
    frame, helpers = most.frame, shared_helpers(frames for _, frames in stacks)
    return file_line(frame.file, frame.line) if frame and _function(frame) in helpers else ""


def caller_of(frames: Sequence[Frame], helpers: frozenset[_Function]) -> Frame | None:
    """The innermost frame outside of shared helpers; else the outermost frame; None without frames."""
    outside = (frame for frame in frames if _function(frame) not in helpers)
    return next(outside, frames[-1] if frames else None)


# ---- functions


def by_function(costed: MapCosts, costs: Costs) -> View:
    """A row per function of the user's Python, node of ONNX, or function of the model.

    A function's cost is that of its own ops; `inclusive` has the functions that it calls, too.
    """
    columns = (
        Column("function", "function", least=17),
        Column("file", "file", leave=LEAVE_SCOPE, least=10),
        *(_NAMES, _OPS),
        *costs.columns(),
        costs.of_first("inclusive", "inclusive", LEAVE_LINE),
        *pass_columns(costs),
        *error_columns(costed),
    )
    metric = costs.first.name
    own, inclusive = defaultdict[tuple[str, str], _Sum](_Sum), Counter[tuple[str, str]]()
    for reached in _measured(costed):
        functions = list(dict.fromkeys(_functions_of(costed, reached)))
        own[functions[0]].add(reached, metric)
        for function in functions:
            inclusive[function] += reached.attributed.get(metric, 0)
    rows = [
        {**own[function].row(costed, costs), "function": function[0], "file": function[1], "inclusive": cost}
        for function, cost in inclusive.items()
    ]
    return View("function", columns, rows, metric)


def _functions_of(costed: MapCosts, reached: OpOccurrence) -> list[tuple[str, str]]:
    """Names and files of the functions that made an op, innermost first."""
    frames = user_frames(costed.graph, reached.frames)
    if frames:
        return [(or_dash(frame.function), PurePath(frame.file).name) for frame in frames]
    return [(reached.op.node or or_dash(reached.op.function), "")]


# ---- scopes


def by_scope(costed: MapCosts, costs: Costs) -> View:
    """A row per scope, including nested ones; ops of the forward and the backward pass have the same scope.

    `own` is the ranking metric of ops directly in the scope.
    """
    columns = (
        Column(SCOPE, "scope", least=24),
        *(_NAMES, _OPS),
        *costs.columns(),
        costs.of_first("own", "own", LEAVE_INCLUSIVE),
        *pass_columns(costs),
        *error_columns(costed),
    )
    inclusive, own = defaultdict[str, _Sum](_Sum), Counter[str]()
    for reached in _measured(costed):
        scope = plain_scope(reached.scope)
        own["/".join(scope) or NO_SCOPE] += reached.attributed.get(costs.first.name, 0)
        for depth in range(1, len(scope) + 1):
            inclusive["/".join(scope[:depth])].add(reached, costs.first.name)
        if not scope:
            inclusive[NO_SCOPE].add(reached, costs.first.name)
    rows = [{**scope_sum.row(costed, costs), SCOPE: scope, "own": own[scope]} for scope, scope_sum in inclusive.items()]
    return View(SCOPE, columns, rows, costs.first.name, share=False)


SCOPE = "scope"


def as_tree(rows: Sequence[Row]) -> list[Row]:
    """Rows of scopes, each below the next scope around it that has a row, indented and without the names of that one.

    Rows keep their order where the tree leaves it open.
    """
    scopes = {str(row[SCOPE]): row for row in rows}
    below: dict[str, list[str]] = defaultdict(list)
    for scope in scopes:
        parents = (scope[:end] for end in range(len(scope) - 1, 0, -1) if scope[end] == "/")
        below[next((parent for parent in parents if parent in scopes), "")].append(scope)
    ordered: list[Row] = []
    waiting = [("", 0, scope) for scope in reversed(below[""])]
    while waiting:
        parent, depth, scope = waiting.pop()
        name = scope.removeprefix(parent and f"{parent}/")
        ordered.append({**scopes[scope], SCOPE: "  " * depth + name})
        waiting += [(scope, depth + 1, child) for child in reversed(below[scope])]
    return ordered


# ---- passes


def by_pass(costed: MapCosts, costs: Costs) -> View:
    """A row per pass of a training step, and one of the ops whose scopes tell none."""
    columns = (Column("pass", "pass", least=8), _NAMES, _OPS, *costs.columns(), *error_columns(costed))
    sums = defaultdict[str, _Sum](_Sum)
    for reached in _measured(costed):
        sums[pass_of(reached.scope) or "(no pass)"].add(reached, costs.first.name)
    rows = [{**pass_sum.row(costed, costs), "pass": name} for name, pass_sum in sums.items()]
    return View("pass", columns, rows, costs.first.name)
