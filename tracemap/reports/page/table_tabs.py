"""The page's tabs of tables and trees."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from heapq import nlargest
from operator import add
from typing import Final

from tracemap.attribution.call_statistics import SiteCorrelations
from tracemap.attribution.model import (
    UNATTRIBUTED_TEXTS,
    UNKNOWN_ERRORS,
    Errors,
    OpCost,
    SiteCost,
    SiteResult,
)
from tracemap.attribution.timeline import Excerpt
from tracemap.attribution.what_if import Gain
from tracemap.core.codec import record_from
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, plural
from tracemap.map.model import Frame, Op, OpId, Site
from tracemap.map.query import scopes_of
from tracemap.reports.cost_lookup import NO_COSTS, MapCosts, OpOccurrence, add_costs, default_metric, remarks
from tracemap.reports.escaping import as_shown, file_line, or_dash, short_name
from tracemap.reports.page.model import (
    CallCorrelations,
    ErrorRow,
    GainRow,
    LineLink,
    MemberRow,
    OpCostRow,
    OpRow,
    Pair,
    ScopeRow,
    SiteCostRow,
    SiteRow,
    SlowCallRow,
    Tree,
    TreeNode,
    amounts,
    spread,
)
from tracemap.reports.page.overview_tab import Family
from tracemap.reports.page.source_tabs import frames_on_page
from tracemap.reports.views.ops import without_dialect

# ---- tree
#
# Trees of costs for icicle plots: by scope, and by the call stack of ops.
#
# Leaves are ops per call path, and unattributed costs, also outliers. They add up to the measured cost in every
# metric. Nodes that are too narrow to draw are merged into one leaf of their parent, with the number of ops.


_NARROWEST: Final = 2000
"""Nodes with less than 1/2000 of the total in every metric are merged."""
_NO_OP: Final = "no op"

Step = tuple[str, str, str]
"""A step of a path from the root: kind, label, and anchor or text of a node."""


_Grouping = tuple[Callable[[OpOccurrence], list[Step]], Callable[[OpOccurrence], Hashable]]
"""A grouping of ops: the path from the root to an op, without it, and its key; ops with equal keys share the path."""


@dataclass(slots=True)
class _Branch:
    """A node during construction.

    Attributes:
        children: child nodes by step, in insertion order.
        own: own costs per metric; empty for inner nodes.
        total: costs with descendants.
        ops: number of ops.
    """

    children: dict[Step, _Branch] = field(default_factory=dict)
    own: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    ops: int = 0

    def child(self, step: Step) -> _Branch:
        if step not in self.children:
            self.children[step] = _Branch(ops=int(step[0] == "op"))
        return self.children[step]

    def add(self, values: tuple[int, ...]) -> None:
        self.own = _sums(self.own, values)

    def sum_up(self) -> None:
        """Compute totals and numbers of ops, bottom-up."""
        self.total = self.own
        for branch in self.children.values():
            branch.sum_up()
            self.total = _sums(self.total, branch.total)
            self.ops += branch.ops


def _sums(sums: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, sums, values)) if sums else values


def trees_of(costed: MapCosts, families: Mapping[OpId, Family]) -> tuple[Tree, ...]:
    """The trees of a page: by scope if ops have scopes, and by source; empty without a run."""
    if not costed.metrics:
        return ()
    groupings: dict[str, _Grouping] = {}
    if any(reached.scope for reached in costed.reached):
        groupings["scope"] = _scope_steps, lambda reached: reached.scope
    groupings["source"] = (
        partial(_source_steps, costed),
        lambda reached: (reached.frames, reached.op.file, reached.op.function),
    )
    leaves = [
        (reached, _leaf(reached), amounts(reached.attributed, costed.metrics))
        for reached in costed.reached
        if any(reached.attributed.values())
    ]
    return tuple(_tree(costed, name, grouping, leaves, families) for name, grouping in groupings.items())


def _tree(
    costed: MapCosts,
    name: str,
    grouping: _Grouping,
    leaves: Sequence[tuple[OpOccurrence, Step, tuple[int, ...]]],
    families: Mapping[OpId, Family],
) -> Tree:
    root = _Branch()
    parents: dict[Hashable, _Branch] = {}
    steps_of, key_of = grouping
    for reached, leaf, values in leaves:
        key = key_of(reached)
        if key not in parents:
            parents[key] = reduce(_Branch.child, steps_of(reached), root)
        parents[key].child(leaf).add(values)
    for step, metrics in _unattributed(costed):
        root.child(("no-op", _NO_OP, "")).child(step).add(amounts(metrics, costed.metrics))
    root.sum_up()
    nothing = amounts(NO_COSTS, costed.metrics)
    drawing = _Drawing(families, root.total or nothing, nothing)
    drawing.nodes.append(TreeNode(-1, "all", "all", "", "", nothing))
    drawing.draw(root, 0)
    return Tree(name, tuple(drawing.nodes))


def _leaf(reached: OpOccurrence) -> Step:
    if reached.op.node:
        return ("op", reached.op.node, str(reached.op.id))
    line = "" if isinstance(reached.op.line, Unknown) else f" :{reached.op.line}"
    return ("op", f"{without_dialect(reached.op.name)}{line}", str(reached.op.id))


def _scope_steps(reached: OpOccurrence) -> list[Step]:
    return [("scope", name, "") for name in reached.scope] or [("scope", "(no scope)", "")]


def _source_steps(costed: MapCosts, reached: OpOccurrence) -> list[Step]:
    """The call stack of the op, outermost first; without a stack, its file and function."""
    frames = [
        (
            "frame",
            file_line(frame.file, frame.line) + ("" if isinstance(frame.function, Unknown) else f" {frame.function}"),
            f"F{costed.source_index[frame.file]}L{frame.line}",
        )
        for frame in reversed(frames_on_page(costed, reached.frames))
    ]
    if frames:
        return frames
    file, function = reached.op.file, reached.op.function
    if isinstance(file, Unknown):
        return [("file", "(no file)", "")]
    index = costed.source_index.get(file)
    function_step = [] if isinstance(function, Unknown) else [("function", f"@{function}", "")]
    return [("file", short_name(file), "" if index is None else f"F{index}"), *function_step]


def _unattributed(costed: MapCosts) -> Iterator[tuple[Step, Mapping[str, int]]]:
    """Unattributed costs by reason."""
    for row in costed.attribution.unattributed if costed.attribution else ():
        if any(row.metrics.values()):
            yield ("no-op", row.reason.value, UNATTRIBUTED_TEXTS[row.reason]), row.metrics


@dataclass(slots=True)
class _Drawing:
    """Writes a tree as a list of nodes; `total`: costs of the whole tree per metric."""

    families: Mapping[OpId, Family]
    total: tuple[int, ...]
    nothing: tuple[int, ...]
    nodes: list[TreeNode] = field(default_factory=list)

    def draw(self, branch: _Branch, number: int) -> None:
        """Append the descendants of the branch, whose index is `number`; merge narrow ones into one leaf."""
        narrow = _Branch()
        for (kind, label, leads_to), child in branch.children.items():
            if not self._is_visible(child.total):
                narrow.add(child.total)
                narrow.ops += child.ops
                continue
            family = self.families[OpId(leads_to)].value if kind == "op" else ""
            own = child.own or self.nothing
            self.nodes.append(TreeNode(number, as_shown(label), kind, family, leads_to, own))
            self.draw(child, len(self.nodes) - 1)
        if any(narrow.own):
            label = plural(narrow.ops, "smaller op") if narrow.ops else "other"
            self.nodes.append(TreeNode(number, label, "rest", "", "", narrow.own))

    def _is_visible(self, values: tuple[int, ...]) -> bool:
        return any(value * _NARROWEST >= total for value, total in zip(values, self.total, strict=True) if value)


# ---- correlations between the metrics of calls


_PARTS: Final = 10_000
"""Stored value of probability 1."""


def correlations_by_site(costed: MapCosts, excerpts: Sequence[Excerpt]) -> Mapping[str, CallCorrelations]:
    """Correlations by site, from the first run that has them.

    Leaves out sites with few calls, and metrics that not all runs have.
    """
    metric_indices = {metric.name: index for index, metric in enumerate(costed.metrics)}
    by_site: dict[str, CallCorrelations] = {}
    for run, excerpt in enumerate(excerpts, start=1):
        for site, statistics in excerpt.together.sites.items():
            if site not in by_site and sum(series.name in metric_indices for series in statistics.series) > 1:
                by_site[site] = _correlations(run, excerpt.together.one_of, statistics, metric_indices)
    return by_site


def _correlations(
    run: int, one_of: int, statistics: SiteCorrelations, metric_indices: Mapping[str, int]
) -> CallCorrelations:
    shown = [series for series in statistics.series if series.name in metric_indices]
    indices = {series.name: index for index, series in enumerate(shown)}
    rows = tuple((metric_indices[series.name], tuple(map(_rounded, series.bucket_means))) for series in shown)
    pairs = tuple(
        Pair(
            indices[pair.of],
            indices[pair.given],
            _rounded(100 * pair.correlation),
            tuple(round(_PARTS * probability) for probability in pair.table.ravel().tolist()),
        )
        for pair in statistics.pairs
        if pair.of in indices and pair.given in indices
    )
    return CallCorrelations(run, statistics.calls, one_of, rows, pairs)


def _rounded(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


# ---- tables of ops, dispatch sites and scopes


Texts = Sequence[Sequence[str]]
"""Lines of the source files."""
Path = tuple[str, ...]
"""A scope with its enclosing scopes, outermost first."""


def op_rows(costed: MapCosts, ops: Iterable[Op], texts: Texts) -> tuple[OpRow, ...]:
    """Rows of these ops; `texts` are the lines of the source files."""
    links = _Links(costed.source_index, list(map(len, texts)))
    return tuple(_op_row(costed, op, links) for op in ops)


MOST_HOTTEST: Final = 12
"""Most expensive ops in the overview."""


def hottest_ops(costed: MapCosts) -> Sequence[Op]:
    """The most expensive ops in the default metric; ties in the order of the model."""
    if not costed.metrics:
        return ()
    metric = costed.metrics[default_metric(costed.metrics)].name
    costs = {op: result.metrics[metric].attributed for op, result in costed.op_results.items()}
    expensive = [op for op, cost in costs.items() if cost > 0]
    return [costed.graph.op_by_id[op] for op in nlargest(MOST_HOTTEST, expensive, key=costs.__getitem__)]


@dataclass(frozen=True, slots=True)
class _Links:
    """Makes texts and anchors of source lines; only lines on the page have an anchor."""

    index_of: Mapping[str, int]
    lengths: Sequence[int]

    def of(self, file: Text, line: Integer) -> LineLink:
        text = file_line(file, line)
        index = UNKNOWN if isinstance(file, Unknown) else self.index_of.get(file, UNKNOWN)
        # Lines after the end of the stored text have no anchor.
        if isinstance(index, Unknown) or isinstance(line, Unknown) or not 1 <= line <= self.lengths[index]:
            return LineLink(text, "")
        return LineLink(text, f"F{index}L{line}")

    def of_python(self, stack: Sequence[Frame]) -> LineLink:
        """The innermost frame whose file is in the bundle, else the innermost frame."""
        if not stack:
            return LineLink("", "")
        frame = next((frame for frame in stack if frame.file in self.index_of), stack[0])
        return self.of(frame.file, frame.line)


def _op_row(costed: MapCosts, op: Op, links: _Links) -> OpRow:
    sites = costed.graph.sites_of_op.get(op.id, ())
    result = costed.op_results.get(op.id)
    return OpRow(
        id=str(op.id),
        name=op.name,
        line=links.of(op.file, op.line),
        python=links.of_python(costed.frames_of(op)),
        function=or_dash(op.function),
        scope=costed.scope_of(op),
        pass_name=costed.pass_text(op),
        outcome=op.outcome.value,
        reason=op.reason.text,
        kernels=tuple(dict.fromkeys([costed.graph.site_by_id[site].kernel for site in sites])),
        sites=sites,
        calls=result.calls if result else UNKNOWN,
        costs=tuple([_op_cost(result.metrics[metric.name]) for metric in costed.metrics]) if result else (),
        node=op.node,
        gain=_gain_row(costed.gain_of_op(op.id)),
        errors=_error_row(result.errors) if result else None,
    )


def _error_row(errors: Errors) -> ErrorRow | None:
    return None if errors == UNKNOWN_ERRORS else record_from(ErrorRow, errors)


def _gain_row(gain: Gain | None) -> GainRow | None:
    if gain is None:
        return None
    saved, low, high = (gain.percent(time) for time in (gain.after_ns, gain.high_ns, gain.low_ns))
    return GainRow(saved, low, high, gain.reason)


def _op_cost(cost: OpCost) -> OpCostRow:
    low, high = cost.likely_low, cost.likely_high
    return OpCostRow(
        attributed=cost.attributed,
        inclusive=cost.inclusive,
        low=cost.low,
        high=cost.high,
        per_invocation=spread(cost.per_invocation),
        likely=None if isinstance(low, Unknown) or isinstance(high, Unknown) else (low, high),
        uncertain=cost.uncertain,
    )


def site_rows(costed: MapCosts) -> tuple[SiteRow, ...]:
    """A row per dispatch site, in the order of the program."""
    return tuple(_site_row(costed, site, costed.site_results.get(site.id)) for site in costed.graph.sites)


def _site_row(costed: MapCosts, site: Site, result: SiteResult | None) -> SiteRow:
    shares = {share.op: amounts(share.attributed, costed.metrics) for share in result.shares} if result else {}
    return SiteRow(
        id=site.id,
        kernel=site.kernel,
        function=or_dash(site.function),
        path=site.path,
        command=f"{or_dash(site.command_buffer)}:{or_dash(site.command_index)}",
        load_time=site.initializer,
        members=tuple(
            MemberRow(
                op=str(member.op),
                evidence=member.evidence.value,
                root=member.root,
                operations=member.operations,
                bytes_read=member.bytes_read,
                bytes_written=member.bytes_written,
                attributed=shares.get(member.op, ()),
            )
            for member in site.members
        ),
        remarks=tuple(remarks(site, result)),
        calls=result.calls if result else UNKNOWN,
        tiles=result.tiles if result else UNKNOWN,
        imbalance_percent=result.imbalance_percent if result else UNKNOWN,
        slowest_ns=result.slowest[0].time_ns if result and result.slowest else UNKNOWN,
        slowest_calls=tuple(record_from(SlowCallRow, call) for call in result.slowest) if result else (),
        costs=tuple(_site_cost(result.metrics[metric.name]) for metric in costed.metrics) if result else (),
        errors=_error_row(result.errors) if result else None,
    )


def _site_cost(cost: SiteCost) -> SiteCostRow:
    return SiteCostRow(cost.total, cost.outliers, spread(cost.per_call))


@dataclass(slots=True)
class _Scope:
    """Ops of a scope, with or without nested scopes, and their costs by metric name."""

    ops: set[OpId] = field(default_factory=set)
    attributed: Mapping[str, int] = field(default_factory=lambda: NO_COSTS)

    def add(self, ops: Collection[OpId], attributed: Mapping[str, int]) -> None:
        self.ops.update(ops)
        self.attributed = add_costs(self.attributed, attributed)


def scope_rows(costed: MapCosts) -> tuple[ScopeRow, ...]:
    """The tree of scopes in program order; empty if no op has a scope.

    An op with several call paths is in the scope of each of them. Dispatched ops without a scope have a row of their
    own with an empty path, so that the rows add up.
    """
    own = _own_costs(costed)
    if not any(own):
        return ()
    inclusive: dict[Path, _Scope] = defaultdict(_Scope)
    for path, scope in own.items():
        for ancestor in _with_ancestors(path):
            inclusive[ancestor].add(scope.ops, scope.attributed)
    return tuple(
        ScopeRow(
            path=path,
            ops=len(inclusive[path].ops),
            attributed=amounts(own[path].attributed, costed.metrics),
            inclusive=amounts(inclusive[path].attributed, costed.metrics),
        )
        for path in _tree_order(own)
    )


def _own_costs(costed: MapCosts) -> dict[Path, _Scope]:
    """All scopes with their own ops, without nested scopes, in the order of the model's ops."""
    own: dict[Path, _Scope] = {}
    for op in costed.graph.ops:
        entries = costed.reached_by_op.get(op.id, ())
        for reached in entries:
            _scope_at(own, reached.scope).add((op.id,), reached.attributed)
        for scope in () if entries else filter(None, scopes_of(costed.graph, op)):
            _scope_at(own, scope).ops.add(op.id)
    return own


def _scope_at(own: dict[Path, _Scope], path: Path) -> _Scope:
    """The scope of a path; adds it after its ancestors if it is new."""
    if path not in own:
        for ancestor in _with_ancestors(path):
            own.setdefault(ancestor, _Scope())
    return own[path]


def _with_ancestors(path: Path) -> list[Path]:
    """A scope after its ancestors; the empty path has none."""
    return [path[:depth] for depth in range(1, len(path) + 1)] or [path]


def _tree_order(paths: Iterable[Path]) -> list[Path]:
    """Parents before children, siblings in the order of their first occurrence."""
    rank = {path: index for index, path in enumerate(paths)}
    return sorted(rank, key=lambda path: [rank[path[:depth]] for depth in range(1, len(path) + 1)])
