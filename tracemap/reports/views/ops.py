"""Views with a row for each op, or for ops of one line of the model or of one name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import asdict

from tracemap.attribution.model import OpCost, OpResult, PerInvocation
from tracemap.graph.ops import Op
from tracemap.graph.query import python_frame
from tracemap.reports.costed import CostedMap
from tracemap.reports.labels import file_line, op_line
from tracemap.reports.views.costs import Costs
from tracemap.reports.views.model import Cell, Column, LaterRow, Row, View, known_cell
from tracemap.units import Unknown

UNCERTAIN: Final = Column("uncertain", "")
"""The mark of a cost of which half is open, or more."""
UNCERTAIN_MARK: Final = "~"

LEAVE_LINE, LEAVE_INTERVAL, LEAVE_SCOPE, LEAVE_PYTHON = 10, 15, 50, 61
LEAVE_MEDIAN, LEAVE_SPREAD = 62, 75
LEAVE_CALLS, LEAVE_INCLUSIVE, LEAVE_BOUNDS = 80, 81, 82

_LINE = Column("line", "line", leave=LEAVE_LINE, least=12)
_PYTHON = Column("python", "python", leave=LEAVE_PYTHON, least=12)
_NAME = Column("name", "name", least=12)
_SCOPE = Column("scope", "scope", leave=LEAVE_SCOPE, least=8)


def by_op(costed: CostedMap, costs: Costs) -> View:
    """A row for each op: where it is, and what it costs."""
    columns = (
        Column("op", "op"),
        *(_LINE, _PYTHON, _NAME, _SCOPE),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
        UNCERTAIN,
        costs.of_first("likely_low", "from", LEAVE_INTERVAL),
        costs.of_first("likely_high", "to", LEAVE_INTERVAL),
        costs.of_invocations("median", "median", LEAVE_MEDIAN),
        costs.of_invocations("p10", "p10", LEAVE_SPREAD),
        costs.of_invocations("p90", "p90", LEAVE_SPREAD + 1),
        costs.of_invocations("max", "max", LEAVE_SPREAD + 2, usual=False),
        costs.of_invocations("median_low", "median from", LEAVE_SPREAD + 3, usual=False),
        costs.of_invocations("median_high", "median to", LEAVE_SPREAD + 4, usual=False),
        costs.of_first("inclusive", "inclusive", LEAVE_INCLUSIVE),
        costs.of_first("low", "low", LEAVE_BOUNDS),
        costs.of_first("high", "high", LEAVE_BOUNDS),
    )
    rows = [_op_row(costed, costs, result) for result in costed.op_results.values()]
    return View("op", columns, rows, costs.first.name)


def _op_row(costed: CostedMap, costs: Costs, result: OpResult) -> Row:
    return LaterRow(costs.cells(costed.attributed(result.op)), partial(_about_op, costed, costs, result))


def _about_op(costed: CostedMap, costs: Costs, result: OpResult) -> Row:
    """All cells of an op's row but its costs."""
    op, cost = costed.graph.op_by_id[result.op], result.metrics[costs.first.name]
    frame = python_frame(costed.graph, op)
    return {
        "op": op.id,
        "line": op_line(op),
        "python": file_line(frame.file, frame.line) if frame else "",
        "name": op.name,
        "scope": costed.scope_of(op),
        "calls": known_cell(result.calls),
        "inclusive": cost.inclusive,
        "low": cost.low,
        "high": cost.high,
        **_known(cost.per_invocation),
        **_likely(cost),
    }


def _known(spread: PerInvocation) -> Mapping[str, Cell]:
    """The figures of a spread by their names, but those that are unknown."""
    return {name: value for name, value in asdict(spread).items() if not isinstance(value, Unknown)}


def _likely(cost: OpCost) -> Mapping[str, Cell]:
    """What is open of a cost; nothing where nothing says so."""
    mark = {UNCERTAIN.key: UNCERTAIN_MARK} if cost.uncertain else {}
    if isinstance(cost.likely_low, Unknown) or isinstance(cost.likely_high, Unknown):
        return mark
    return {"likely_low": cost.likely_low, "likely_high": cost.likely_high, UNCERTAIN.key: "", **mark}


def by_line(costed: CostedMap, costs: Costs) -> View:
    """A row for each line of the model that has an op with a cost."""
    columns = (Column("line", "line", least=12), _NAMES, _SCOPE, _OPS, *costs.columns())
    rows = []
    for ops in _grouped(costed, lambda op: (op.file, op.line)).values():
        scopes = dict.fromkeys(costed.scope_of(op) for op in ops)
        rows.append({"line": op_line(ops[0]), "scope": and_more(list(scopes)), **_of_ops(costed, costs, ops)})
    return View("line", columns, rows, costs.first.name)


def by_name(costed: CostedMap, costs: Costs) -> View:
    """A row for each name of ops: how much all of them cost together."""
    columns = (Column("name", "name", least=12), _OPS, *costs.columns())
    groups = _grouped(costed, lambda op: op.name).values()
    rows = [{"name": ops[0].name, **_of_ops(costed, costs, ops)} for ops in groups]
    return View("name", columns, rows, costs.first.name)


_NAMES = Column("names", "names", leave=LEAVE_LINE, least=12)
_OPS = Column("ops", "ops", "count", leave=LEAVE_CALLS)


def _grouped(costed: CostedMap, key: Callable[[Op], Hashable]) -> dict[Hashable, list[Op]]:
    groups: dict[Hashable, list[Op]] = defaultdict(list)
    for op in map(costed.graph.op_by_id.__getitem__, costed.op_results):
        groups[key(op)].append(op)
    return groups


def _of_ops(costed: CostedMap, costs: Costs, ops: Iterable[Op]) -> Row:
    amounts = Counter[str]()
    weights = {}
    for op in ops:
        attributed = costed.attributed(op.id)
        amounts.update(attributed)
        weights[op] = attributed[costs.first.name]
    return {"names": names_of(weights), "ops": len(weights), **costs.cells(amounts)}


def names_of(weights: Mapping[Op, int]) -> str:
    """The names of ops, those that cost most first."""
    by_cost = sorted(weights, key=lambda op: -weights[op])
    return and_more(list(dict.fromkeys(op.name for op in by_cost)))


def and_more(texts: list[str]) -> str:
    """The first of several texts, and how many others there are."""
    return texts[0] + (f" +{len(texts) - 1}" if len(texts) > 1 else "")
