"""Views by what stands above the MLIR: lines of Python, those of them that called shared helpers, and scopes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tracemap.graph.model import Frame, Op
from tracemap.graph.query import users_own
from tracemap.reports.cost_lookup import CostedMap, Reached
from tracemap.reports.escaping import file_line, or_dash
from tracemap.reports.views.costs import Costs
from tracemap.reports.views.model import Column, Row, View
from tracemap.reports.views.ops import LEAVE_CALLS, LEAVE_INCLUSIVE, LEAVE_LINE, LEAVE_SCOPE, names_of

NOWHERE = "(no frame)"
NO_SCOPE = "(no scope)"


_Place = tuple[str, int] | None


@dataclass(slots=True)
class _Sum:
    """What stands at one line or in one scope: ops with their costs, and all costs; of a line its frame."""

    frame: Frame | None = None
    ops: Counter[Op] = field(default_factory=Counter)
    amounts: Counter[str] = field(default_factory=Counter)

    def add(self, each: Reached, first: str) -> None:
        """Count what an op has of a site."""
        self.ops[each.op] += each.attributed.get(first, 0)
        self.amounts.update(each.attributed)

    def row(self, costs: Costs) -> Row:
        """The cells that all views have."""
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


def _works(costed: CostedMap) -> Iterator[Reached]:
    """What ops have of sites and transfers that were measured."""
    return (each for each in costed.reached if each.attributed)


class _Lines(dict[_Place, _Sum]):
    """Sums by line; files are told apart by their whole path."""

    def at(self, frame: Frame | None) -> _Sum:
        """The sum of a frame's line; that of ops without a frame, where there is none."""
        return self.setdefault((frame.file, frame.line) if frame else None, _Sum(frame))


# ---- Python lines


def by_python(costed: CostedMap, costs: Costs) -> View:
    """A row for each line of the user's: its own cost, of ops that it makes itself, and that of all below it."""
    columns = (
        Column("line", "python", least=17),
        *(_FUNCTION, _NAMES, _OPS),
        *costs.columns(),
        costs.of_first("inclusive", "inclusive", LEAVE_LINE),
    )
    own, around = _Lines(), _Lines()
    for each in _works(costed):
        frames = users_own(costed.graph, each.frames)
        own.at(frames[0] if frames else None).add(each, costs.first.name)
        for frame in {(frame.file, frame.line): frame for frame in reversed(frames)}.values() or [None]:
            own.at(frame)
            around.at(frame).add(each, costs.first.name)
    rows = [{**found.row(costs), "inclusive": around[place].amounts[costs.first.name]} for place, found in own.items()]
    return View("Python line", columns, rows, costs.first.name)


# ---- callers


def by_caller(costed: CostedMap, costs: Costs) -> View:
    """A row for each line of the user's that called a shared helper, or made its ops itself."""
    columns = (Column("line", "caller", least=17), _FUNCTION, _NAMES, _OPS, *costs.columns())
    works = [(each, users_own(costed.graph, each.frames)) for each in _works(costed)]
    helpers = shared_helpers(frames for _, frames in works)
    sums = _Lines()
    for each, frames in works:
        sums.at(caller_of(frames, helpers)).add(each, costs.first.name)
    rows = [found.row(costs) for found in sums.values()]
    return View("caller", columns, rows, costs.first.name)


_Function = tuple[object, ...]


def _function(frame: Frame) -> _Function:
    """What a frame is in: its function; where nobody tells, the line has to do."""
    return (frame.file, frame.function) if isinstance(frame.function, str) else (frame.file, frame.line)


def shared_helpers(stacks: Iterable[Sequence[Frame]]) -> frozenset[_Function]:
    """The functions of the user's that are called from several places, and make ops for each of them.

    A place is the frame around one of the function. Recursion is no call from outside.
    """
    places: dict[_Function, set[tuple[object, ...]]] = defaultdict(set)
    for frames in stacks:
        for frame, around in pairwise(frames):
            if _function(frame) != _function(around):
                places[_function(frame)].add((around.file, around.line, around.column))
    return frozenset(function for function, found in places.items() if len(found) > 1)


def caller_of(frames: Sequence[Frame], helpers: frozenset[_Function]) -> Frame | None:
    """The innermost frame that is not in a shared helper; the outermost where all are; None of no frames."""
    outside = (frame for frame in frames if _function(frame) not in helpers)
    return next(outside, frames[-1] if frames else None)


# ---- scopes

_WRAPPED = re.compile(r"(?:jvp|transpose)\((.*)\)", re.DOTALL)


def by_scope(costed: CostedMap, costs: Costs) -> View:
    """A row for each scope with all below it; forward and backward ones count in the plain scope too.

    The row of the first metric alone, `own`, is of ops that stand in the scope itself.
    """
    columns = (
        Column("scope", "scope", least=24),
        *(_NAMES, _OPS),
        *costs.columns(),
        costs.of_first("own", "own", LEAVE_INCLUSIVE),
    )
    below, own = defaultdict[str, _Sum](_Sum), Counter[str]()
    for each in _works(costed):
        own["/".join(each.scope) or NO_SCOPE] += each.attributed.get(costs.first.name, 0)
        for scope in _scopes_around(each.scope):
            below[scope].add(each, costs.first.name)
    rows = [{**found.row(costs), "scope": scope, "own": own[scope]} for scope, found in below.items()]
    return View("scope", columns, rows, costs.first.name, share=False)


def _scopes_around(scope: tuple[str, ...]) -> Iterable[str]:
    """A scope, those around it, and the same of its plain one; each once."""
    paths = (path[: depth + 1] for path in (scope, plain_scope(scope)) for depth in range(len(path)))
    return dict.fromkeys("/".join(path) for path in paths) or [NO_SCOPE]


def plain_scope(scope: Sequence[str]) -> tuple[str, ...]:
    """A scope as it is called in the model: without what says that it is a derivative's.

    The backward pass names what is around it once more: `grad/transpose(grad)/jvp(layer0)` is of `grad/layer0`.
    """
    plain: list[str] = []
    for name in scope:
        bare = name
        while wrapped := _WRAPPED.fullmatch(bare):
            bare = wrapped[1]
        if bare == name or (bare and bare != (plain[-1] if plain else None)):
            plain.append(bare)
    return tuple(plain)
