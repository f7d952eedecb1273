"""Costs of a run on a map, looked up by op, site, kernel and line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tracemap.attribution.model import Attribution, MetricTotal, OpResult, SiteResult, TransferResult
from tracemap.codec import Record
from tracemap.graph.model import CallPath, Frame, Op, OpId, Site, TraceGraph
from tracemap.graph.query import frames_of, scope_of, scope_text, stack_of, users_first
from tracemap.measurements.model import UNKNOWN_PARTS
from tracemap.reports.escaping import or_dash
from tracemap.units import ASSUMED_SIZE, Text, Unknown, format_share, split_by_largest_remainder

if TYPE_CHECKING:
    from tracemap.comparison.model import MetricDifference


DEFAULT_METRIC = "cpu_ns"
"""The metric shown first where a run has it: summed over workers, so it adds up."""

SPLIT_EVENLY = "the run's events name only the kernel, which has several sites: this is the site's even share"
ASSUMED_SIZES = (
    f"the members' work depends on sizes not known before: the cost is split as if each of these were {ASSUMED_SIZE}"
)
EQUAL_MEMBERS = "the members' work is not computable: the cost is split evenly over them"
AT_LOAD = "runs once, at load: not measured"
NO_MEMBERS = "the compiler made this work up: no op of the model is a member"


def default_metric(metrics: Sequence[MetricTotal | MetricDifference]) -> int:
    """The number of the metric that is shown first: `cpu_ns` where it is there, else the first; -1 where none is."""
    names = [metric.name for metric in metrics]
    return names.index(DEFAULT_METRIC) if DEFAULT_METRIC in names else min(0, len(names) - 1)


def called_functions(attribution: Attribution) -> str:
    """The functions that the runs called, with the word for them."""
    named = attribution.functions or (attribution.run.function,)
    return f"{'function' if len(named) == 1 else 'functions'} {', '.join(map(or_dash, named))}"


def explained_of_elapsed(attribution: Attribution) -> str:
    """What the elapsed time went for, in shares of it; where that is not known, how much of it the rows account for.

    The latter is over 100 % where calls overlap. Empty where the elapsed time is unknown.
    """
    elapsed, parts = attribution.run.elapsed_ns, attribution.run.elapsed
    if not isinstance(elapsed, Unknown) and elapsed and parts != UNKNOWN_PARTS:
        shown = zip(ELAPSED_PARTS, parts.values(), strict=True)
        shares = [f"{name} {format_share(part, elapsed)}" for name, part in shown if isinstance(part, int) and part]
        return ", ".join(shares)
    duration = next((metric for metric in attribution.metrics if metric.name == "duration_ns"), None)
    if isinstance(elapsed, Unknown) or duration is None:
        return ""
    return f"rows explain {format_share(duration.measured, elapsed)}"


ELAPSED_PARTS = ("kernels", "transfers", "queue", "host", "profiler", "not explained")
"""What people read of the parts of elapsed time, in the order of `ElapsedParts`."""


def heat(value: int, peak: int) -> float:
    """0 to 1: the square root of the share of the hottest, so that a hundredth of it still shows as a tenth."""
    return math.sqrt(value / peak) if value > 0 and peak > 0 else 0.0


def remarks(site: Site, result: SiteResult | None) -> Iterable[str]:
    """What is to be known of a site's cost and of how it was split."""
    if site.initializer and result is None:
        yield AT_LOAD
    if not site.members:
        yield NO_MEMBERS
    if result and result.split_evenly:
        yield SPLIT_EVENLY
    if result and result.assumed_sizes:
        yield ASSUMED_SIZES
    if result and result.equal_members:
        yield EQUAL_MEMBERS


def added(sums: Mapping[str, int], values: Mapping[str, int]) -> Mapping[str, int]:
    """Sums by name with values added, neither of which changes: most sums of a page are of one thing, and its own."""
    if not sums:
        return values
    return {**sums, **{name: sums.get(name, 0) + value for name, value in values.items()}}


def parts_of(costs: Mapping[str, int], count: int) -> Sequence[Mapping[str, int]]:
    """Costs by metric name, split evenly over so many calls: whole numbers, which add up to them."""
    if count == 1:
        return (costs,)
    split = {name: split_by_largest_remainder(cost, [1] * count) for name, cost in costs.items()}
    return [{name: parts[place] for name, parts in split.items()} for place in range(count)]


NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
"""What sums begin with."""


class Reached(Record, frozen=True):
    """An op in one of its sites or transfers: scope and frames joined across the calls that lead there.

    `work` is the id of the site or transfer; `attributed` is the op's share of its cost, by metric name. An op that
    several calls lead to within one site is reached once for each, with an equal part of its share: calls of one
    function do the same work.
    """

    op: Op
    work: str
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    attributed: Mapping[str, int]


@dataclass(frozen=True)
class CostedMap:
    """A map and, maybe, the costs of a run.

    Ops work in sites (dispatches) and in transfers (copies and fills of their own). A *work* here is the id of either;
    only works that can be measured, those that run on calls, have results.
    """

    graph: TraceGraph
    attribution: Attribution | None

    @cached_property
    def metrics(self) -> tuple[MetricTotal, ...]:
        """The metrics of the run; none without one."""
        return self.attribution.metrics if self.attribution else ()

    @cached_property
    def op_results(self) -> Mapping[OpId, OpResult]:
        """Results of ops that were measured: they work in at least one site that was, or in a transfer."""
        results = self.attribution.ops if self.attribution else ()
        # An op whose sites were not measured, as they ran at load: a result of 0 would say that it costs nothing.
        measurable = set(self.results)
        return {
            result.op: result for result in results if measurable.intersection(self._works_of_op.get(result.op, ()))
        }

    @cached_property
    def site_results(self) -> Mapping[str, SiteResult]:
        """Results of sites that could be measured: those that run on calls, and those at load that the run has."""
        return {result.site: result for result in (self.attribution.sites if self.attribution else ())}

    @cached_property
    def unmeasured_sites(self) -> tuple[str, ...]:
        """The sites that run at load of which the run has nothing: no profile of the stock tools has them."""
        at_load = (site.id for site in self.graph.sites if site.initializer)
        return tuple(site for site in at_load if site not in self.site_results)

    @cached_property
    def _transfer_results(self) -> Mapping[str, TransferResult]:
        results = self.attribution.transfers if self.attribution else ()
        return {result.transfer: result for result in results}

    @cached_property
    def results(self) -> Mapping[str, SiteResult | TransferResult]:
        """Results by work."""
        return {**self.site_results, **self._transfer_results}

    @cached_property
    def _works_of_op(self) -> Mapping[OpId, tuple[str, ...]]:
        works: dict[OpId, list[str]] = defaultdict(list)
        for op, sites in self.graph.sites_of_op.items():
            works[op].extend(sites)
        for transfer in self.graph.transfers:
            for op in transfer.ops:
                works[op].append(transfer.id)
        return {op: tuple(ids) for op, ids in works.items()}

    @cached_property
    def _works_through(self) -> Mapping[OpId, tuple[str, ...]]:
        """Works by the op they are reached through: call ops on their path, and functions around path and ops."""
        function_ops = {op.function: op.id for op in self.graph.ops if op.name.endswith(".func")}
        through: dict[OpId, list[str]] = defaultdict(list)
        for site in self.graph.sites:
            inside = [*site.calls, *(member.op for member in site.members)]
            for op in dict.fromkeys([*site.calls, *self._functions(site.function, inside, function_ops)]):
                through[op].append(site.id)
        for transfer in self.graph.transfers:
            for op in dict.fromkeys(self._functions(transfer.function, transfer.ops, function_ops)):
                through[op].append(transfer.id)
        return {op: tuple(works) for op, works in through.items()}

    def _functions(self, around: Text, inside: Iterable[OpId], function_ops: Mapping[Text, OpId]) -> list[OpId]:
        names = [around, *(self.graph.op_by_id[op].function for op in inside if op in self.graph.op_by_id)]
        return [function_ops[name] for name in names if name in function_ops]

    def works_of(self, op: Op) -> tuple[str, ...]:
        """What an op works in; of call ops and functions what is reached through them."""
        # Calls and functions do no work of their own; their lines show the whole of what they lead to.
        return self._works_of_op.get(op.id) or self._works_through.get(op.id, ())

    def attributed(self, op: OpId) -> Mapping[str, int]:
        """The attributed cost of an op by metric name; empty without a result."""
        return self._attributed.get(op, {})

    @cached_property
    def _attributed(self) -> Mapping[OpId, Mapping[str, int]]:
        return {
            op: {name: cost.attributed for name, cost in result.metrics.items()}
            for op, result in self.op_results.items()
        }

    def total(self, work: str) -> Mapping[str, int]:
        """The whole cost of a site or transfer by metric name; empty without a result."""
        return self._totals.get(work, {})

    @cached_property
    def _totals(self) -> Mapping[str, Mapping[str, int]]:
        return {
            work: {name: cost.total for name, cost in result.metrics.items()} for work, result in self.results.items()
        }

    @cached_property
    def source_index(self) -> Mapping[str, int]:
        """Number of a source file by its name in locations and by its path in the bundle."""
        indices: dict[str, int] = {}
        for index, source in enumerate(self.graph.sources):
            indices.setdefault(source.name, index)
            indices.setdefault(source.path, index)
        return indices

    @cached_property
    def reached(self) -> tuple[Reached, ...]:
        """Every op of every site and transfer, with the scope and frames that it has when reached there."""
        paths = [(site.id, member.op, member.paths) for site in self.graph.sites for member in site.members]
        # The map knows of no calls that lead to a transfer: the host program submits it by itself.
        paths += [(transfer.id, op, ((),)) for transfer in self.graph.transfers for op in transfer.ops]
        shares = {
            (work, share.op): share.attributed for work, result in self.results.items() for share in result.shares
        }
        return tuple(
            self._reach(work, op, path, part)
            for work, op, several in paths
            for path, part in zip(several, parts_of(shares.get((work, op), {}), len(several)), strict=True)
        )

    def _reach(self, work: str, op_id: OpId, path: CallPath, attributed: Mapping[str, int]) -> Reached:
        graph, op = self.graph, self.graph.op_by_id[op_id]
        frames = users_first(graph, frames_of(graph, op, path))
        return Reached(op, work, scope_of(graph, op, path), frames, attributed)

    @cached_property
    def reached_by_op(self) -> Mapping[OpId, tuple[Reached, ...]]:
        """`reached` by op; only ops that work somewhere have an entry."""
        found: dict[OpId, list[Reached]] = defaultdict(list)
        for each in self.reached:
            found[each.op.id].append(each)
        return {op: tuple(several) for op, several in found.items()}

    def scope_of(self, op: Op) -> str:
        """The scope of an op for tables; of one that several calls lead to, the first, and how many more there are."""
        return scope_text(self.graph, op)

    def frames_of(self, op: Op) -> tuple[Frame, ...]:
        """The frames of an op, those of the first calls that lead to it included; the user's own come first."""
        return stack_of(self.graph, op)
