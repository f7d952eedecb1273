"""Small builders: valid ops, sites, graphs and attributions in one line each, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.attribution.model import (
    Attribution,
    MemberShare,
    MetricTotal,
    OpCost,
    OpResult,
    PerCall,
    ResidualReason,
    ResidualRow,
    RunSummary,
    SiteCost,
    SiteResult,
)
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import ModuleInfo, SourceFile, TraceGraph
from tracemap.graph.ops import Evidence, Fate, Frame, Op, OpId, Part, Reason
from tracemap.graph.program import Kernel, Membership, Site
from tracemap.options.attribute import Rule
from tracemap.units import UNKNOWN, Integer, Text, split_by_largest_remainder

MODEL = SourceFile(name="model.mlir", path="model.mlir", language="mlir")


def op(
    number: int,
    line: Integer = UNKNOWN,
    *,
    name: str = "linalg.generic",
    function: Text = "main",
    file: Text = "model.mlir",
    scope: Sequence[str] = (),
    frames: Sequence[tuple[str, int]] = (),
    fate: Fate = Fate.DISPATCHED,
    reason: str = "does work in a site",
    part_lines: Sequence[int] = (),
) -> Op:
    """`op<number>` on a line of `model.mlir`; frames are pairs of file and line, innermost first."""
    return Op(
        id=OpId.of(number),
        name=name,
        function=function,
        file=file,
        line=line,
        column=UNKNOWN if line is UNKNOWN else 5,
        scope=tuple(scope),
        frames=tuple(Frame(file, line, UNKNOWN, UNKNOWN) for file, line in frames),
        fate=fate,
        reason=Reason(fate.value, reason),
        parts=tuple(Part("arith.addf", line, 7) for line in part_lines),
    )


def site(
    number: int,
    *members: int,
    kernel: str = "main$async_dispatch_0",
    path: Sequence[int] = (),
    initializer: bool = False,
    function: Text = "main",
) -> Site:
    """`site<number>` with the ops of these numbers as members, the first as root."""
    return Site(
        id=f"site{number}",
        ordinal=number,
        function=UNKNOWN if initializer else function,
        path=tuple(OpId.of(call) for call in path),
        kernel=kernel,
        initializer=initializer,
        command_buffer=0,
        command_index=number,
        members=tuple(
            Membership(OpId.of(member), Evidence.LOCATED, root=position == 0, operations=100, bytes=64)
            for position, member in enumerate(members)
        ),
    )


def graph(
    ops: Sequence[Op],
    sites: Sequence[Site] = (),
    *,
    sources: Sequence[SourceFile] = (MODEL,),
    diagnostics: Sequence[Diagnostic] = (),
    name: str = "model",
) -> TraceGraph:
    """A graph of these ops and sites; its kernels are those that the sites name."""
    kernels = dict.fromkeys(site.kernel for site in sites)
    return TraceGraph(
        module=ModuleInfo(name, "ab" * 32, "3.13.0", ("--iree-hal-target-device=local",)),
        functions=(),
        ops=tuple(ops),
        sites=tuple(sites),
        kernels=tuple(Kernel(kernel, tuple(s.id for s in sites if s.kernel == kernel)) for kernel in kernels),
        command_buffers=(),
        sources=tuple(sources),
        diagnostics=tuple(diagnostics),
    )


def attribution(
    map_: TraceGraph,
    totals: Mapping[str, Mapping[str, int]],
    *,
    calls: int = 2,
    residual: Mapping[ResidualReason, Mapping[str, int]] | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    elapsed_ns: Integer = 10_000,
) -> Attribution:
    """An attribution by the rule `equal`.

    Args:
        map_: the graph.
        totals: metric -> site id -> cost; sites that are left out cost nothing and were not called.
        calls: how often each site that has a cost ran.
        residual: reason -> metric -> cost.
        diagnostics: as they are.
        elapsed_ns: of the run.
    """
    metrics = tuple(totals)
    rows = tuple(ResidualRow(reason, 1, dict(costs)) for reason, costs in (residual or {}).items())
    measurable = [entry for entry in map_.sites if entry.members and not entry.initializer]
    sites = tuple(_site_result(entry, totals, calls) for entry in measurable)
    balances = []
    for metric in metrics:
        attributed = sum(result.metrics[metric].total for result in sites)
        rest = sum(row.metrics[metric] for row in rows)
        unit = "ns" if metric.endswith("_ns") else "count"
        balances.append(MetricTotal(metric, unit, "sum", attributed + rest, attributed, rest))
    return Attribution(
        map_sha256="cd" * 32,
        rule=Rule.EQUAL,
        run=RunSummary(elapsed_ns, calls, 1, "local-task", "main", ("iree-benchmark-module",)),
        metrics=tuple(balances),
        ops=_op_results(map_, sites, metrics),
        sites=sites,
        residual=rows,
        diagnostics=tuple(diagnostics),
    )


def _site_result(entry: Site, totals: Mapping[str, Mapping[str, int]], calls: int) -> SiteResult:
    costs = {metric: by_site.get(entry.id, 0) for metric, by_site in totals.items()}
    called = any(entry.id in by_site for by_site in totals.values())
    split = {metric: split_by_largest_remainder(cost, [1] * len(entry.members)) for metric, cost in costs.items()}
    return SiteResult(
        site=entry.id,
        calls=calls if called else 0,
        metrics={metric: SiteCost(cost, _per_call(cost, calls) if called else None) for metric, cost in costs.items()},
        shares=tuple(
            MemberShare(member.op, {metric: split[metric][position] for metric in costs})
            for position, member in enumerate(entry.members)
        ),
        split_evenly=False,
        equal_members=False,
    )


def _per_call(cost: int, calls: int) -> PerCall:
    return PerCall(cost // calls, cost // calls, cost - cost // calls * (calls - 1))


def _op_results(map_: TraceGraph, sites: Sequence[SiteResult], metrics: Sequence[str]) -> tuple[OpResult, ...]:
    results = []
    for member, site_ids in map_.sites_of_op.items():
        mine = [result for result in sites if result.site in site_ids]
        calls = sum(result.calls for result in mine)
        costs = {metric: _op_cost(map_, member, mine, metric, calls) for metric in metrics}
        results.append(OpResult(member, calls, costs))
    return tuple(results)


def _op_cost(map_: TraceGraph, member: OpId, mine: Sequence[SiteResult], metric: str, calls: int) -> OpCost:
    inclusive = sum(result.metrics[metric].total for result in mine)
    attributed = sum(share.attributed[metric] for result in mine for share in result.shares if share.op == member)
    alone = [result for result in mine if len(map_.site_by_id[result.site].members) == 1]
    low = sum(result.metrics[metric].total for result in alone)
    per_call = _per_call(inclusive, calls) if calls else None
    return OpCost(inclusive, attributed, low, inclusive, UNKNOWN, UNKNOWN, per_call)
