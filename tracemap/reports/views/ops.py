"""Views with a row per op, dispatch site or kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from msgspec.structs import asdict

from tracemap.attribution.model import (
    MOST_SLOWEST,
    Errors,
    OpCost,
    OpResult,
    PerInvocation,
    SiteResult,
    SlowCall,
    TransferResult,
    slowness_key,
)
from tracemap.attribution.numeric_errors import largest_errors
from tracemap.attribution.what_if import Gain
from tracemap.core.units import Unknown, sum_of
from tracemap.map.model import Op
from tracemap.map.query import PASSES, python_frame
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.escaping import file_line, op_line, root_and_line
from tracemap.reports.views.costs import (
    CLOCKS,
    OVERHEAD,
    PERCENT,
    ULPS,
    Cell,
    Column,
    Costs,
    LazyRow,
    Row,
    View,
    known_cell,
)
from tracemap.runs.model import TIME_METRICS

# ---- ops, alone or grouped by line or name


UNCERTAIN: Final = Column("uncertain", "")
"""Marks costs that are uncertain by 50 % or more."""
UNCERTAIN_MARK: Final = "~"
LOW_END: Final = "likely_low"
"""The column with the low end of the likely range of a cost; the next column has the high end."""

LEAVE_LINE, LEAVE_INTERVAL, LEAVE_SCOPE, LEAVE_PYTHON = 10, 45, 50, 61
LEAVE_MEDIAN, LEAVE_SPREAD = 62, 75
LEAVE_CALLS, LEAVE_INCLUSIVE, LEAVE_BOUNDS = 80, 81, 82
LEAVE_PASSES, LEAVE_GAIN, LEAVE_OVERHEAD, LEAVE_ERROR = 55, 40, 58, 30
PASS: Final = Column("pass", "pass", leave=LEAVE_SCOPE + 1, least=8)

GAIN: Final = Column("gain", "gain if 2x", PERCENT, leave=LEAVE_GAIN)
GAIN_RANGE: Final = Column("gain_range", "gain if 2x %", usual=False)
GAINS: Final = (GAIN, GAIN_RANGE)
"""Columns of what the program gains if the ops of a row are twice as fast."""

_LINE = Column("line", "line", leave=LEAVE_LINE, least=12)
_PYTHON = Column("python", "python", leave=LEAVE_PYTHON, least=12)
_NAME = Column("name", "name", least=12)
_SCOPE = Column("scope", "scope", leave=LEAVE_SCOPE, least=8)


def error_columns(costed: MapCosts) -> tuple[Column, ...]:
    """The largest errors of the dispatches of a row; shown if `tracemap numerics` found any."""
    known = [result.errors for result in costed.site_results.values()]
    return (
        Column("error", "error", ULPS, leave=LEAVE_ERROR, usual=any(map(_has_isolated, known))),
        Column("accumulated", "accumulated", ULPS, leave=LEAVE_ERROR, usual=any(map(_has_accumulated, known))),
    )


def _has_isolated(errors: Errors) -> bool:
    return isinstance(errors.isolated_ulps, int)


def _has_accumulated(errors: Errors) -> bool:
    return isinstance(errors.accumulated_ulps, int)


def error_cells(errors: Iterable[Errors]) -> Mapping[str, Cell]:
    """The cells of `error_columns`: the largest of several errors."""
    largest = largest_errors(errors)
    return {"error": known_cell(largest.isolated_ulps), "accumulated": known_cell(largest.accumulated_ulps)}


def errors_of_ops(costed: MapCosts, ops: Iterable[Op]) -> Mapping[str, Cell]:
    """The cells of `error_columns` for ops."""
    results = (costed.op_results.get(op.id) for op in ops)
    return error_cells(result.errors for result in results if result is not None)


def pass_columns(costs: Costs) -> tuple[Column, ...]:
    """The passes of the ops in a row, and what each pass takes of the ranking metric."""
    return (
        replace(PASS, usual=False),
        *(costs.of_first(name, name, LEAVE_PASSES + index) for index, name in enumerate(PASSES)),
    )


def pass_cells(amounts: Mapping[str, int]) -> Mapping[str, Cell]:
    """The cells of `pass_columns`, from sums of the ranking metric by pass; empty without a known pass."""
    known = [name for name in PASSES if name in amounts]
    return {PASS.key: "+".join(known), **{name: amounts[name] for name in known}} if known else {}


def by_op(costed: MapCosts, costs: Costs) -> View:
    """A row per op: its location and costs. If the model comes from a framework, its Python line comes first."""
    places = (
        (replace(_PYTHON, leave=LEAVE_LINE), _NAME, replace(_LINE, leave=LEAVE_PYTHON))
        if costed.is_from_framework
        else (_LINE, _PYTHON, _NAME)
    )
    columns = (
        Column("op", "op"),
        *(*places, _SCOPE, PASS),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
        UNCERTAIN,
        costs.of_first(LOW_END, "from", LEAVE_INTERVAL),
        costs.of_first("likely_high", "to", LEAVE_INTERVAL),
        costs.of_invocations("median", "median", LEAVE_MEDIAN),
        costs.of_invocations("p10", "p10", LEAVE_SPREAD),
        costs.of_invocations("p90", "p90", LEAVE_SPREAD + 1),
        costs.of_invocations("max", "max", LEAVE_SPREAD + 2, usual=False),
        costs.of_invocations("median_low", "median from", LEAVE_SPREAD + 3, usual=False),
        costs.of_invocations("median_high", "median to", LEAVE_SPREAD + 4, usual=False),
        costs.of_first("inclusive", "inclusive", LEAVE_INCLUSIVE),
        *GAINS,
        costs.overhead(LEAVE_OVERHEAD, usual=costed.has_notable_overhead),
        *error_columns(costed),
        costs.of_first("low", "low", LEAVE_BOUNDS),
        costs.of_first("high", "high", LEAVE_BOUNDS),
    )
    rows = [_op_row(costed, costs, result) for result in costed.op_results.values()]
    return View("op", columns, rows, costs.first.name)


def _op_row(costed: MapCosts, costs: Costs, result: OpResult) -> Row:
    return LazyRow(costs.cells(costed.attributed(result.op)), partial(_details_of_op, costed, costs, result))


def _details_of_op(costed: MapCosts, costs: Costs, result: OpResult) -> Row:
    """The cells of an op's row except for its costs."""
    op, cost = costed.graph.op_by_id[result.op], result.metrics[costs.first.name]
    frame = python_frame(costed.graph, op)
    return {
        "op": op.id,
        "line": op_line(op),
        "python": file_line(frame.file, frame.line) if frame else "",
        "name": without_dialect(op.name),
        "scope": costed.scope_of(op),
        PASS.key: costed.pass_text(op),
        "calls": known_cell(result.calls),
        "inclusive": cost.inclusive,
        OVERHEAD: costed.overhead_of_op.get(op.id),
        "low": cost.low,
        "high": cost.high,
        **gain_cells(costed.gain_of_op(op.id)),
        **error_cells([result.errors]),
        **_known(cost.per_invocation),
        **_likely(cost),
    }


def gain_cells(gain: Gain | None) -> Mapping[str, Cell]:
    """The cells of `GAINS`: the part of the program's time that is saved, in percent, and with its interval."""
    if gain is None or not gain.before_ns:
        return {}
    saved, low, high = (gain.percent(time) for time in (gain.after_ns, gain.high_ns, gain.low_ns))
    return {
        GAIN.key: Fraction(100 * gain.saved_ns, gain.before_ns),
        GAIN_RANGE.key: f"{saved:.1f} ({low:.1f} to {high:.1f})",
    }


def _known(spread: PerInvocation) -> Mapping[str, Cell]:
    """The known figures of a spread, by name."""
    return {name: value for name, value in asdict(spread).items() if not isinstance(value, Unknown)}


def _likely(cost: OpCost) -> Mapping[str, Cell]:
    """The likely range of a cost and the mark of uncertainty; empty if unknown."""
    mark = {UNCERTAIN.key: UNCERTAIN_MARK} if cost.uncertain else {}
    if isinstance(cost.likely_low, Unknown) or isinstance(cost.likely_high, Unknown):
        return mark
    return {"likely_low": cost.likely_low, "likely_high": cost.likely_high, UNCERTAIN.key: "", **mark}


def by_line(costed: MapCosts, costs: Costs) -> View:
    """A row per line of the model whose ops have costs."""
    columns = (
        *(Column("line", "line", least=12), _NAMES, _SCOPE, _OPS),
        *costs.columns(),
        *pass_columns(costs),
        costs.overhead(LEAVE_OVERHEAD, usual=costed.has_notable_overhead),
        *error_columns(costed),
    )
    rows = []
    for ops in _grouped(costed, lambda op: (op.file, op.line)).values():
        scopes = dict.fromkeys(costed.scope_of(op) for op in ops)
        own = {"line": op_line(ops[0]), "scope": and_more(list(scopes)), **overhead_cell(costed, ops)}
        rows.append({**own, **_sum_cells(costed, costs, ops)})
    return View("line", columns, rows, costs.first.name)


def overhead_cell(costed: MapCosts, ops: Iterable[Op]) -> Mapping[str, Cell]:
    """The cell of the elapsed time without a kernel that belongs to ops; empty without any."""
    amount = sum(costed.overhead_of_op.get(op.id, 0) for op in dict.fromkeys(ops))
    return {OVERHEAD: amount} if amount else {}


def by_name(costed: MapCosts, costs: Costs) -> View:
    """A row per name of ops: the sum of their costs."""
    columns = (
        *(Column("name", "name", least=12), _OPS),
        *costs.columns(),
        *pass_columns(costs),
        *error_columns(costed),
    )
    groups = _grouped(costed, lambda op: op.name).values()
    rows = [{"name": without_dialect(ops[0].name), **_sum_cells(costed, costs, ops)} for ops in groups]
    return View("name", columns, rows, costs.first.name)


_NAMES = Column("names", "names", leave=LEAVE_LINE, least=12)
_OPS = Column("ops", "ops", "count", leave=LEAVE_CALLS)


def _grouped(costed: MapCosts, key: Callable[[Op], Hashable]) -> dict[Hashable, list[Op]]:
    groups: dict[Hashable, list[Op]] = defaultdict(list)
    for op in map(costed.graph.op_by_id.__getitem__, costed.op_results):
        groups[key(op)].append(op)
    return groups


def _sum_cells(costed: MapCosts, costs: Costs, ops: Iterable[Op]) -> Row:
    amounts, passes, weights = Counter[str](), Counter[str](), {}
    for op in ops:
        attributed = costed.attributed(op.id)
        amounts.update(attributed)
        passes.update(costed.passes_of(op, costs.first.name))
        weights[op] = attributed[costs.first.name]
    return {
        "names": names_of(weights),
        "ops": len(weights),
        **costs.cells(amounts),
        **pass_cells(passes),
        **errors_of_ops(costed, weights),
    }


def names_of(weights: Mapping[Op, int]) -> str:
    """The name of the most expensive op, and the number of other names."""
    by_cost = sorted(weights, key=lambda op: -weights[op])
    return and_more(list(dict.fromkeys(without_dialect(op.name) for op in by_cost)))


def without_dialect(name: str) -> str:
    """An op's name without the dialect that a framework's importer uses: `dot_general`, `mm`, `MatMul`.

    >>> without_dialect("stablehlo.dot_general"), without_dialect("torch.aten.mm"), without_dialect("linalg.matmul")
    ('dot_general', 'mm', 'linalg.matmul')
    """
    return next((name.removeprefix(prefix) for prefix in _FRAMEWORKS if name.startswith(prefix)), name)


_FRAMEWORKS = ("stablehlo.", "torch.aten.", "onnx.")


def and_more(texts: list[str]) -> str:
    """The first of several texts, and the number of others: `add +2`."""
    return "".join(texts[:1]) + (f" +{len(texts) - 1}" if len(texts) > 1 else "")


# ---- dispatch sites and kernels


_KERNEL = Column("kernel", "kernel", least=26)
_LEAVE_SPREAD = 40


def by_site(costed: MapCosts, costs: Costs) -> View:
    """A row per dispatch site, and per transfer that belongs to an op: its cost, and the spread over calls.

    Outliers have a column if there are any; they are not part of the cost. Further columns are the slowest call, the
    imbalance of workers, and the number of tiles.
    """
    has_outliers = any(result.metrics[costs.first.name].outliers for result in costed.results.values())
    columns = (
        Column("site", "site"),
        _KERNEL,
        Column("root", "root", leave=LEAVE_SCOPE, least=12),
        Column("line", "line", leave=LEAVE_LINE, least=12),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
        costs.of_first("outliers", "outliers", _LEAVE_SPREAD - 1, usual=has_outliers),
        costs.of_calls("median", "p50", _LEAVE_SPREAD + 3),
        costs.of_calls("p10", "p10", _LEAVE_SPREAD + 4),
        costs.of_calls("p90", "p90", _LEAVE_SPREAD + 4),
        Column("slowest", f"slowest {_clock_of_slowest(costed)}", "ns", "/call", leave=_LEAVE_SPREAD + 2),
        Column("imbalance", "imbalance", "count", leave=_LEAVE_SPREAD),
        Column("tiles", "tiles", "count", "/call", leave=_LEAVE_SPREAD + 1),
        *error_columns(costed),
    )
    rows = [
        {
            "site": work,
            "calls": known_cell(result.calls),
            "outliers": result.metrics[costs.first.name].outliers,
            **_identity(costed, work),
            **_workers(result),
            **_spread(result, costs),
            **_cost(result, costs),
            **(error_cells([result.errors]) if isinstance(result, SiteResult) else {}),
        }
        for work, result in costed.results.items()
    ]
    return View("dispatch site", columns, rows, costs.first.name)


def _clock_of_slowest(costed: MapCosts) -> str:
    """Short name of the clock that ranks slow calls: wall time if known, else CPU time."""
    names = {metric.name for metric in costed.metrics}
    return next((CLOCKS[name] for name in reversed(TIME_METRICS) if name in names), "")


def _workers(result: SiteResult | TransferResult) -> Mapping[str, Cell]:
    """Tiles per call, imbalance of the workers, and the slowest call, as far as they are known."""
    cells: dict[str, Cell] = {}
    if isinstance(result.tiles, int) and isinstance(result.calls, int) and result.calls:
        cells["tiles"] = Fraction(result.tiles, result.calls)
    if not isinstance(result.imbalance_percent, Unknown):
        cells["imbalance"] = Fraction(result.imbalance_percent, 100)
    if result.slowest and not isinstance(result.slowest[0].time_ns, Unknown):
        cells["slowest"] = result.slowest[0].time_ns
    return cells


def slowest_calls(costed: MapCosts, works: Iterable[str]) -> View:
    """The slowest single calls of these dispatch sites and transfers; no rows if no run has times."""
    by_call: dict[SlowCall, list[str]] = defaultdict(list)
    for work in works:
        for call in costed.results[work].slowest:
            by_call[call].append(work)
    names = {metric.name for metric in costed.metrics}
    columns = (
        Column("site", "site", least=8),
        _KERNEL,
        Column("run", "run", "count", leave=60, usual=any(call.run > 1 for call in by_call)),
        Column("invocation", "invocation", "count", leave=40),
        Column("start", "start ns", leave=50),
        *(Column(name, clock, "ns") for name, clock in CLOCKS.items() if name in names),
    )
    rows = [_slow_row(costed, call, by_call[call]) for call in sorted(by_call, key=slowness_key)[:MOST_SLOWEST]]
    return View("slowest call", columns, rows, "", share=False)


def _slow_row(costed: MapCosts, call: SlowCall, works: Sequence[str]) -> Row:
    """A call, with all dispatch sites that may have made it."""
    known = {name: value for name, value in asdict(call).items() if not isinstance(value, Unknown)}
    start = "" if isinstance(call.start_ns, Unknown) else str(call.start_ns)
    return {**known, "site": " or ".join(works), "kernel": _identity(costed, works[0])["kernel"], "start": start}


def _identity(costed: MapCosts, work: str) -> Mapping[str, Cell]:
    """Kernel of a dispatch site or kind of a transfer, and its op."""
    site = costed.graph.site_by_id.get(work)
    if site is not None:
        root, line = root_and_line(costed.graph, site)
        return {"kernel": site.kernel, "root": root, "line": line}
    transfer = costed.graph.transfer_by_id[work]
    op = next((costed.graph.op_by_id[op] for op in transfer.ops), None)
    return {"kernel": transfer.kind} | ({"root": f"{op.id} {op.name}", "line": op_line(op)} if op else {})


def _spread(result: SiteResult | TransferResult, costs: Costs) -> Mapping[str, Cell]:
    spread = result.metrics[costs.first.name].per_call
    return {"median": spread.median, "p10": spread.p10, "p90": spread.p90} if spread else {}


def _cost(result: SiteResult | TransferResult, costs: Costs) -> Mapping[str, Cell]:
    return costs.cells({name: cost.total for name, cost in result.metrics.items()})


def by_kernel(costed: MapCosts, costs: Costs) -> View:
    """A row per kernel and per kind of transfer, with its dispatch sites counted and their costs added up."""
    columns = (
        _KERNEL,
        Column("root", "root", leave=LEAVE_SCOPE, least=12),
        Column("sites", "sites", "count", leave=LEAVE_CALLS),
        costs.calls(LEAVE_CALLS),
        *costs.columns(),
        *error_columns(costed),
    )
    groups: dict[Cell, list[str]] = defaultdict(list)
    for work in costed.results:
        groups[_identity(costed, work)["kernel"]].append(work)
    rows = [{"kernel": kernel, **_kernel_cells(costed, costs, works)} for kernel, works in groups.items()]
    return View("kernel", columns, rows, costs.first.name)


def _kernel_cells(costed: MapCosts, costs: Costs, works: Sequence[str]) -> Row:
    amounts = Counter[str]()
    for work in works:
        amounts.update(costed.total(work))
    sites = [costed.graph.site_by_id[work] for work in works if work in costed.graph.site_by_id]
    root = next((costed.graph.op_by_id[site.root.op].name for site in sites if site.root), "")
    calls = sum_of([costed.results[work].calls for work in works])
    errors = [costed.site_results[work].errors for work in works if work in costed.site_results]
    return {
        "root": root,
        "sites": len(works),
        "calls": known_cell(calls),
        **costs.cells(amounts),
        **error_cells(errors),
    }
