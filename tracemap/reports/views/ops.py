"""Views with a row per op, site or kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Final

from msgspec.structs import asdict

from tracemap.attribution.model import (
    MOST_SLOWEST,
    OpCost,
    OpResult,
    PerInvocation,
    SiteResult,
    SlowCall,
    TransferResult,
    slowness,
)
from tracemap.graph.model import Op
from tracemap.graph.query import python_frame
from tracemap.measurements.model import TIME_METRICS
from tracemap.reports.cost_lookup import CostedMap
from tracemap.reports.escaping import file_line, op_line, root_and_line
from tracemap.reports.views.costs import CLOCKS, Costs
from tracemap.reports.views.model import Cell, Column, LaterRow, Row, View, known_cell
from tracemap.units import Unknown, sum_of

# ---- ops
#
# Views with a row for each op, or for ops of one line of the model or of one name.


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


# ---- places
#
# Views with a row for each site, or for each kernel: what ran, not who caused it.


_KERNEL = Column("kernel", "kernel", least=26)
_LEAVE_SPREAD = 40


def by_site(costed: CostedMap, costs: Costs) -> View:
    """A row for each site, and for each transfer that is of an op: its cost, and how much it varies over calls.

    What disturbed it, which is no part of its cost, has a column where anything did. Beside its spread stands the
    slowest call, how evenly workers shared the work, and in how many tiles it is cut.
    """
    disturbed = any(result.metrics[costs.first.name].disturbance for result in costed.results.values())
    columns = (
        Column("site", "site"),
        _KERNEL,
        Column("root", "root", leave=LEAVE_SCOPE, least=12),
        Column("line", "line", leave=LEAVE_LINE, least=12),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
        costs.of_first("disturbance", "disturbance", _LEAVE_SPREAD - 1, usual=disturbed),
        costs.of_calls("median", "p50", _LEAVE_SPREAD + 3),
        costs.of_calls("p10", "p10", _LEAVE_SPREAD + 4),
        costs.of_calls("p90", "p90", _LEAVE_SPREAD + 4),
        Column("slowest", f"slowest {_clock_of_slowest(costed)}", "ns", "/call", leave=_LEAVE_SPREAD + 2),
        Column("imbalance", "imbalance", "count", leave=_LEAVE_SPREAD),
        Column("tiles", "tiles", "count", "/call", leave=_LEAVE_SPREAD + 1),
    )
    rows = [
        {
            "site": place,
            "calls": known_cell(result.calls),
            "disturbance": result.metrics[costs.first.name].disturbance,
            **_about(costed, place),
            **_workers(result),
            **_spread(result, costs),
            **_cost(result, costs),
        }
        for place, result in costed.results.items()
    ]
    return View("site", columns, rows, costs.first.name)


def _clock_of_slowest(costed: CostedMap) -> str:
    """What people call the clock by which calls are slow."""
    names = {metric.name for metric in costed.metrics}
    return next((CLOCKS[name] for name in reversed(TIME_METRICS) if name in names), "")


def _workers(result: SiteResult | TransferResult) -> Mapping[str, Cell]:
    """How its calls were shared out among workers, as far as it is known, and the slowest of them."""
    found: dict[str, Cell] = {}
    if isinstance(result.tiles, int) and isinstance(result.calls, int) and result.calls:
        found["tiles"] = Fraction(result.tiles, result.calls)
    if not isinstance(result.imbalance_percent, Unknown):
        found["imbalance"] = Fraction(result.imbalance_percent, 100)
    if result.slowest and not isinstance(result.slowest[0].time_ns, Unknown):
        found["slowest"] = result.slowest[0].time_ns
    return found


def slowest_calls(costed: CostedMap, places: Iterable[str]) -> View:
    """The slowest single calls of these sites and transfers; without rows where no run has times."""
    by_call: dict[SlowCall, list[str]] = defaultdict(list)
    for place in places:
        for call in costed.results[place].slowest:
            by_call[call].append(place)
    names = {metric.name for metric in costed.metrics}
    columns = (
        Column("site", "site", least=8),
        _KERNEL,
        Column("run", "run", "count", leave=60, usual=any(call.run > 1 for call in by_call)),
        Column("invocation", "invocation", "count", leave=40),
        Column("start", "start ns", leave=50),
        *(Column(name, clock, "ns") for name, clock in CLOCKS.items() if name in names),
    )
    rows = [_slow_row(costed, call, by_call[call]) for call in sorted(by_call, key=slowness)[:MOST_SLOWEST]]
    return View("slowest call", columns, rows, "", share=False)


def _slow_row(costed: CostedMap, call: SlowCall, places: Sequence[str]) -> Row:
    """A call; of one that may be of several sites, all of them."""
    known = {name: value for name, value in asdict(call).items() if not isinstance(value, Unknown)}
    start = "" if isinstance(call.start_ns, Unknown) else str(call.start_ns)
    return {**known, "site": " or ".join(places), "kernel": _about(costed, places[0])["kernel"], "start": start}


def _about(costed: CostedMap, place: str) -> Mapping[str, Cell]:
    """What a site or transfer is: its kernel or kind, and the op that it is of."""
    site = costed.graph.site_by_id.get(place)
    if site is not None:
        root, line = root_and_line(costed.graph, site)
        return {"kernel": site.kernel, "root": root, "line": line}
    transfer = costed.graph.transfer_by_id[place]
    op = next((costed.graph.op_by_id[op] for op in transfer.ops), None)
    return {"kernel": transfer.kind} | ({"root": f"{op.id} {op.name}", "line": op_line(op)} if op else {})


def _spread(result: SiteResult | TransferResult, costs: Costs) -> Mapping[str, Cell]:
    spread = result.metrics[costs.first.name].per_call
    return {"median": spread.median, "p10": spread.p10, "p90": spread.p90} if spread else {}


def _cost(result: SiteResult | TransferResult, costs: Costs) -> Mapping[str, Cell]:
    return costs.cells({name: cost.total for name, cost in result.metrics.items()})


def by_kernel(costed: CostedMap, costs: Costs) -> View:
    """A row for each kernel, and for each kind of transfer: how many sites share it, and what they cost together."""
    columns = (
        _KERNEL,
        Column("root", "root", leave=LEAVE_SCOPE, least=12),
        Column("sites", "sites", "count", leave=LEAVE_CALLS),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
    )
    groups: dict[Cell, list[str]] = defaultdict(list)
    for place in costed.results:
        groups[_about(costed, place)["kernel"]].append(place)
    rows = [{"kernel": kernel, **_of_places(costed, costs, places)} for kernel, places in groups.items()]
    return View("kernel", columns, rows, costs.first.name)


def _of_places(costed: CostedMap, costs: Costs, places: Sequence[str]) -> Row:
    amounts = Counter[str]()
    for place in places:
        amounts.update(costed.total(place))
    sites = [costed.graph.site_by_id[place] for place in places if place in costed.graph.site_by_id]
    root = next((costed.graph.op_by_id[site.root.op].name for site in sites if site.root), "")
    calls = sum_of([costed.results[place].calls for place in places])
    return {"root": root, "sites": len(places), "calls": known_cell(calls), **costs.cells(amounts)}
