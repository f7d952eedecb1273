"""The tables of a page: ops, sites with their members, and the tree of scopes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.attribution.model import MetricTotal, OpCost, SiteResult
from tracemap.graph.model import Frame, Membership, Op, OpId, Site
from tracemap.reports.page.join import Joined, Reached, amount, heat, place_text, spread, text_or_dash
from tracemap.reports.page.model import (
    Amount,
    MemberRow,
    OpCostRow,
    OpRow,
    Place,
    ScopeRow,
    SiteCostRow,
    SiteRow,
    SourcePage,
)
from tracemap.units import UNKNOWN, Integer, Text, Unknown, format_bytes, format_count

SPLIT_EVENLY = "the run's events name only the kernel, which has several sites: this is the site's even share"
EQUAL_MEMBERS = "the members' work is not computable (dynamic shapes): the cost is split evenly over them"
AT_LOAD = "runs once, at load: not measured"
NO_MEMBERS = "the compiler made this work up: no op of the model is a member"


def op_rows(joined: Joined, sources: Sequence[SourcePage]) -> tuple[OpRow, ...]:
    """A row for every op of the model, in their order."""
    places = _Places(joined, sources)
    return tuple(_op_row(joined, op, places) for op in joined.graph.ops)


class _Places:
    """Turns file and line into text and anchor; only lines that are on the page have one."""

    def __init__(self, joined: Joined, sources: Sequence[SourcePage]) -> None:
        self._index = joined.source_index
        self._lengths = [len(source.lines) for source in sources]

    def of(self, file: Text, line: Integer) -> Place:
        text = place_text(file, line)
        index = UNKNOWN if isinstance(file, Unknown) else self._index.get(file, UNKNOWN)
        if isinstance(index, Unknown) or isinstance(line, Unknown) or not 1 <= line <= self._lengths[index]:
            return Place(text, "")
        return Place(text, f"F{index}L{line}")

    def of_python(self, stack: Sequence[Frame]) -> Place:
        """The innermost frame whose file is kept, else the innermost."""
        frames = [frame for frame in stack if frame.file in self._index] or stack
        return self.of(frames[0].file, frames[0].line) if frames else Place("", "")


def _op_row(joined: Joined, op: Op, places: _Places) -> OpRow:
    sites = joined.graph.sites_of_op.get(op.id, ())
    result = joined.op_results.get(op.id)
    return OpRow(
        id=op.id,
        name=op.name,
        place=places.of(op.file, op.line),
        python=places.of_python(joined.frames_of(op)),
        function=text_or_dash(op.function),
        scope=joined.scope_of(op),
        fate=op.fate.value,
        reason_slug=op.reason.slug,
        reason=op.reason.text,
        kernels=tuple(dict.fromkeys(joined.graph.site_by_id[site].kernel for site in sites)),
        sites=sites,
        calls=result.calls if result else UNKNOWN,
        costs={metric.name: _op_cost(result.metrics[metric.name], metric) for metric in joined.metrics}
        if result
        else {},
    )


def _op_cost(cost: OpCost, metric: MetricTotal) -> OpCostRow:
    return OpCostRow(
        attributed=amount(cost.attributed, metric),
        inclusive=amount(cost.inclusive, metric),
        low=amount(cost.low, metric),
        high=amount(cost.high, metric),
        per_call=spread(cost.per_call, metric),
        sampled=_sampled(cost, metric),
    )


def _sampled(cost: OpCost, metric: MetricTotal) -> tuple[Amount, Amount] | None:
    if isinstance(cost.sampled_low, Unknown) or isinstance(cost.sampled_high, Unknown):
        return None
    return amount(cost.sampled_low, metric), amount(cost.sampled_high, metric)


def site_rows(joined: Joined) -> tuple[SiteRow, ...]:
    """A row for every site of the program, in their order."""
    return tuple(_site_row(joined, site, joined.site_results.get(site.id)) for site in joined.graph.sites)


def _site_row(joined: Joined, site: Site, result: SiteResult | None) -> SiteRow:
    shares = {share.op: joined.amounts(share.attributed) for share in result.shares} if result else {}
    return SiteRow(
        id=site.id,
        kernel=site.kernel,
        function=text_or_dash(site.function),
        path=site.path,
        command=f"{text_or_dash(site.command_buffer)}:{text_or_dash(site.command_index)}",
        load_time=site.initializer,
        members=tuple(_member_row(member, shares) for member in site.members),
        notes=tuple(_notes(site, result)),
        calls=result.calls if result else UNKNOWN,
        costs=_site_costs(joined, result) if result else {},
    )


def _member_row(member: Membership, shares: Mapping[OpId, Mapping[str, Amount]]) -> MemberRow:
    return MemberRow(
        op=member.op,
        evidence=member.evidence.value,
        root=member.root,
        operations=format_count(member.operations),
        bytes=format_bytes(member.bytes),
        attributed=shares.get(member.op, {}),
    )


def _notes(site: Site, result: SiteResult | None) -> Iterable[str]:
    if site.initializer:
        yield AT_LOAD
    if not site.members:
        yield NO_MEMBERS
    if result and result.split_evenly:
        yield SPLIT_EVENLY
    if result and result.equal_members:
        yield EQUAL_MEMBERS


def _site_costs(joined: Joined, result: SiteResult) -> dict[str, SiteCostRow]:
    rows = {}
    for metric in joined.metrics:
        cost = result.metrics[metric.name]
        rows[metric.name] = SiteCostRow(amount(cost.total, metric), spread(cost.per_call, metric))
    return rows


@dataclass(slots=True)
class _Scope:
    """What stands directly in a scope: ops, and their cost by metric name."""

    ops: dict[str, None] = field(default_factory=dict)
    attributed: dict[str, int] = field(default_factory=dict)


def scope_rows(joined: Joined) -> tuple[ScopeRow, ...]:
    """The tree of scopes in program order; empty when no op has a scope.

    An op that is reached through several calls stands in each scope that they lead to. Ops without a scope that work in
    a site stand in a row of their own (the empty path), so that the rows add up.
    """
    own = _scopes(joined)
    if not any(own):
        return ()
    below: dict[tuple[str, ...], _Scope] = {path: _Scope() for path in own}
    for path, scope in own.items():
        for depth in range(1 if path else 0, len(path) + 1):
            around = below[path[:depth]]
            around.ops.update(scope.ops)
            for name, value in scope.attributed.items():
                around.attributed[name] = around.attributed.get(name, 0) + value
    names = [metric.name for metric in joined.metrics]
    peaks = {name: max(scope.attributed.get(name, 0) for scope in own.values()) for name in names}
    return tuple(
        ScopeRow(
            path=path,
            ops=len(below[path].ops),
            attributed=joined.amounts({name: own[path].attributed.get(name, 0) for name in names}),
            inclusive=joined.amounts({name: below[path].attributed.get(name, 0) for name in names}),
            heat={name: heat(own[path].attributed.get(name, 0), peaks[name]) for name in names},
        )
        for path in _tree_order(own)
    )


def _scopes(joined: Joined) -> dict[tuple[str, ...], _Scope]:
    """Every scope and those around it, in the order of the model's ops."""
    reached: dict[str, list[Reached]] = {}
    for each in joined.reached:
        reached.setdefault(each.op.id, []).append(each)
    own: dict[tuple[str, ...], _Scope] = {}
    for op in joined.graph.ops:
        for each in reached.get(op.id, ()):
            scope = _scope(own, each.scope)
            scope.ops[op.id] = None
            for name, value in each.attributed.items():
                scope.attributed[name] = scope.attributed.get(name, 0) + value
        if op.scope and op.id not in reached:
            _scope(own, op.scope).ops[op.id] = None
    return own


def _scope(own: dict[tuple[str, ...], _Scope], path: tuple[str, ...]) -> _Scope:
    for depth in range(1, len(path)):
        own.setdefault(path[:depth], _Scope())
    return own.setdefault(path, _Scope())


def _tree_order(paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Parents before children, siblings as they first occur."""
    rank = {path: index for index, path in enumerate(paths)}
    return sorted(rank, key=lambda path: [rank[path[:depth]] for depth in range(1, len(path) + 1)])
