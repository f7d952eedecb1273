"""The tabs of tables: ops, sites, scopes, correlations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tracemap.attribution.call_statistics import SiteTogether
from tracemap.attribution.model import OpCost, SiteCost, SiteResult, SlowCall
from tracemap.attribution.timeline import Excerpt
from tracemap.graph.model import Frame, Membership, Op, OpId, Site
from tracemap.graph.query import scopes_of
from tracemap.reports.cost_lookup import NOTHING, CostedMap, added, default_metric, remarks
from tracemap.reports.escaping import file_line, or_dash
from tracemap.reports.page.model import (
    CallsTogether,
    LineLink,
    MemberRow,
    OpCostRow,
    OpRow,
    Pair,
    ScopeRow,
    SiteCostRow,
    SiteRow,
    SlowCallRow,
    amounts,
    spread,
)
from tracemap.units import UNKNOWN, Integer, Text, Unknown

# ---- together
#
# How what was measured of the calls of sites goes together: correlations and heat maps, in the cards of sites.


_PARTS: Final = 10_000
"""Of a probability: percent are shown, and a hundredth of one is something."""


def together_of(costed: CostedMap, excerpts: Sequence[Excerpt]) -> Mapping[str, CallsTogether]:
    """By site, of the first run that tells it; left out are sites of few calls, and metrics that not all runs have."""
    numbers = {metric.name: number for number, metric in enumerate(costed.metrics)}
    found: dict[str, CallsTogether] = {}
    for run, excerpt in enumerate(excerpts, start=1):
        for site, measured in excerpt.together.sites.items():
            if site not in found and sum(each.name in numbers for each in measured.series) > 1:
                found[site] = _site(run, excerpt.together.one_of, measured, numbers)
    return found


def _site(run: int, one_of: int, measured: SiteTogether, numbers: Mapping[str, int]) -> CallsTogether:
    shown = [each for each in measured.series if each.name in numbers]
    places = {each.name: place for place, each in enumerate(shown)}
    series = tuple((numbers[each.name], tuple(map(_whole, each.bucket_means))) for each in shown)
    pairs = tuple(
        Pair(
            places[pair.of],
            places[pair.given],
            _whole(100 * pair.correlation),
            tuple(round(_PARTS * probability) for probability in pair.table.ravel().tolist()),
        )
        for pair in measured.pairs
        if pair.of in places and pair.given in places
    )
    return CallsTogether(run, measured.calls, one_of, series, pairs)


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


# ---- table tabs
#
# The tabs of tables: ops with their lines and costs, sites with what each member got, and the tree of scopes.


Texts = Sequence[Sequence[str]]
"""The lines of each source file."""
Path = tuple[str, ...]
"""A scope: its name and those around it, outermost first."""


def op_rows(costed: CostedMap, ops: Iterable[Op], texts: Texts) -> tuple[OpRow, ...]:
    """A row for each of these ops of a model, whose source files have these lines."""
    links = _Links(costed.source_index, list(map(len, texts)))
    return tuple(_op_row(costed, op, links) for op in ops)


MOST_HOTTEST: Final = 12
"""The ops that the overview names."""


def hottest_ops(costed: CostedMap) -> Sequence[Op]:
    """The ops that cost most of the metric that is shown first; of equal ones the first of the model."""
    if not costed.metrics:
        return ()
    metric = costed.metrics[default_metric(costed.metrics)].name
    costs = {op: result.metrics[metric].attributed for op, result in costed.op_results.items()}
    costing = [op for op, cost in costs.items() if cost > 0]
    return [costed.graph.op_by_id[op] for op in nlargest(MOST_HOTTEST, costing, key=costs.__getitem__)]


_NO_LINE: Final = LineLink("", "")


class _Links:
    """Turns file and line into text and anchor; only lines that are on the page have one."""

    def __init__(self, index: Mapping[str, int], lengths: Sequence[int]) -> None:
        self._index = index
        self._lengths = lengths

    def of(self, file: Text, line: Integer) -> LineLink:
        text = file_line(file, line)
        index = UNKNOWN if isinstance(file, Unknown) else self._index.get(file, UNKNOWN)
        # Only lines of the kept text have an anchor; a link to any other would lead nowhere.
        if isinstance(index, Unknown) or isinstance(line, Unknown) or not 1 <= line <= self._lengths[index]:
            return LineLink(text, "")
        return LineLink(text, f"F{index}L{line}")

    def of_python(self, stack: Sequence[Frame]) -> LineLink:
        """The innermost frame whose file is kept, else the innermost."""
        if not stack:
            return _NO_LINE
        frames = [frame for frame in stack if frame.file in self._index] or stack
        return self.of(frames[0].file, frames[0].line)


def _op_row(costed: CostedMap, op: Op, links: _Links) -> OpRow:
    sites = costed.graph.sites_of_op.get(op.id, ())
    result = costed.op_results.get(op.id)
    return OpRow(
        id=str(op.id),
        name=op.name,
        line=links.of(op.file, op.line),
        python=links.of_python(costed.frames_of(op)),
        function=or_dash(op.function),
        scope=costed.scope_of(op),
        fate=op.fate.value,
        reason=op.reason.text,
        kernels=tuple(dict.fromkeys([costed.graph.site_by_id[site].kernel for site in sites])),
        sites=sites,
        calls=result.calls if result else UNKNOWN,
        costs=tuple([_op_cost(result.metrics[metric.name]) for metric in costed.metrics]) if result else (),
    )


def _op_cost(cost: OpCost) -> OpCostRow:
    return OpCostRow(
        attributed=cost.attributed,
        inclusive=cost.inclusive,
        low=cost.low,
        high=cost.high,
        per_invocation=spread(cost.per_invocation),
        likely=_likely(cost),
        uncertain=cost.uncertain,
    )


def _likely(cost: OpCost) -> tuple[int, int] | None:
    if isinstance(cost.likely_low, Unknown) or isinstance(cost.likely_high, Unknown):
        return None
    return cost.likely_low, cost.likely_high


def site_rows(costed: CostedMap) -> tuple[SiteRow, ...]:
    """A row for every site of the program, in their order."""
    return tuple(_site_row(costed, site, costed.site_results.get(site.id)) for site in costed.graph.sites)


def _site_row(costed: CostedMap, site: Site, result: SiteResult | None) -> SiteRow:
    shares = {share.op: amounts(share.attributed, costed.metrics) for share in result.shares} if result else {}
    return SiteRow(
        id=site.id,
        kernel=site.kernel,
        function=or_dash(site.function),
        path=site.path,
        command=f"{or_dash(site.command_buffer)}:{or_dash(site.command_index)}",
        load_time=site.initializer,
        members=tuple(_member_row(member, shares) for member in site.members),
        remarks=tuple(remarks(site, result)),
        calls=result.calls if result else UNKNOWN,
        tiles=result.tiles if result else UNKNOWN,
        imbalance_percent=result.imbalance_percent if result else UNKNOWN,
        slowest_ns=result.slowest[0].time_ns if result and result.slowest else UNKNOWN,
        slowest_calls=tuple(map(_slow_call, result.slowest)) if result else (),
        costs=tuple(_site_cost(result.metrics[metric.name]) for metric in costed.metrics) if result else (),
    )


def _slow_call(call: SlowCall) -> SlowCallRow:
    return SlowCallRow(call.run, call.invocation, call.start_ns, call.duration_ns, call.cpu_ns)


def _member_row(member: Membership, shares: Mapping[OpId, tuple[int, ...]]) -> MemberRow:
    return MemberRow(
        op=str(member.op),
        evidence=member.evidence.value,
        root=member.root,
        operations=member.operations,
        bytes=member.bytes,
        attributed=shares.get(member.op, ()),
    )


def _site_cost(cost: SiteCost) -> SiteCostRow:
    return SiteCostRow(cost.total, cost.disturbance, spread(cost.per_call))


@dataclass(slots=True)
class _Scope:
    """What stands directly in a scope, or in it and below: ops, and their cost by metric name."""

    ops: set[OpId] = field(default_factory=set)
    attributed: Mapping[str, int] = field(default_factory=lambda: NOTHING)

    def take(self, ops: Collection[OpId], attributed: Mapping[str, int]) -> None:
        self.ops.update(ops)
        self.attributed = added(self.attributed, attributed)


def scope_rows(costed: CostedMap) -> tuple[ScopeRow, ...]:
    """The tree of scopes in program order; empty when no op has a scope.

    An op that is reached through several calls stands in each scope that they lead to. Ops without a scope that work in
    a site stand in a row of their own (the empty path), so that the rows add up.
    """
    own = _scopes(costed)
    if not any(own):
        return ()
    below: dict[Path, _Scope] = defaultdict(_Scope)
    for path, scope in own.items():
        for around in _with_those_around(path):
            below[around].take(scope.ops, scope.attributed)
    return tuple(
        ScopeRow(
            path=path,
            ops=len(below[path].ops),
            attributed=amounts(own[path].attributed, costed.metrics),
            inclusive=amounts(below[path].attributed, costed.metrics),
        )
        for path in _tree_order(own)
    )


def _scopes(costed: CostedMap) -> dict[Path, _Scope]:
    """Every scope and those around it, in the order of the model's ops."""
    own: dict[Path, _Scope] = {}
    for op in costed.graph.ops:
        reached = costed.reached_by_op.get(op.id, ())
        for each in reached:
            _enter(own, each.scope).take((op.id,), each.attributed)
        for scope in () if reached else filter(None, scopes_of(costed.graph, op)):
            _enter(own, scope).ops.add(op.id)
    return own


def _enter(own: dict[Path, _Scope], path: Path) -> _Scope:
    """The scope of a path, which comes after those around it."""
    if path not in own:
        for around in _with_those_around(path):
            own.setdefault(around, _Scope())
    return own[path]


def _with_those_around(path: Path) -> list[Path]:
    """A scope after those around it; the row of ops without a scope is around none."""
    return [path[:depth] for depth in range(1, len(path) + 1)] or [path]


def _tree_order(paths: Iterable[Path]) -> list[Path]:
    """Parents before children, siblings as they first occur."""
    rank = {path: index for index, path in enumerate(paths)}
    return sorted(rank, key=lambda path: [rank[path[:depth]] for depth in range(1, len(path) + 1)])
