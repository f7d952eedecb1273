"""Look-ups that all parts of a page share: results by op and site, amounts as text, sites reached through an op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from tracemap.attribution.model import Attribution, MetricTotal, OpResult, PerCall, SiteResult
from tracemap.graph.model import Frame, Op, Site, TraceGraph
from tracemap.graph.trail import frames_of, scope_of, users_first
from tracemap.reports.page.model import Amount, Spread
from tracemap.units import Integer, Text, Unknown, format_quantity, format_share


def amount(value: int, metric: MetricTotal) -> Amount:
    """A value of a metric, as text and as a share of what was measured."""
    return Amount(value, format_quantity(value, metric.unit), format_share(value, metric.measured))


def spread(per_call: PerCall | None, metric: MetricTotal) -> Spread | None:
    """The spread over calls as amounts; None where there was no call."""
    if per_call is None:
        return None
    return Spread(amount(per_call.median, metric), amount(per_call.p10, metric), amount(per_call.p90, metric))


def heat(value: int, peak: int) -> float:
    """0 to 1: the square root of the share of the hottest, so that a hundredth of it still shows as a tenth."""
    return math.sqrt(value / peak) if value > 0 and peak > 0 else 0.0


def short_name(name: str) -> str:
    """The last part of a path-like name: locations may carry whole paths."""
    return PurePosixPath(name).name or name


def place_text(file: Text, line: Integer) -> str:
    """`model.mlir:12` for people; `–` where unknown."""
    if isinstance(file, Unknown):
        return "–"
    return short_name(file) if isinstance(line, Unknown) else f"{short_name(file)}:{line}"


def text_or_dash(value: Text | Integer) -> str:
    """The value as it is, `–` where unknown."""
    return "–" if isinstance(value, Unknown) else str(value)


@dataclass(frozen=True, slots=True)
class Reached:
    """An op in one of its sites: scope and frames joined across the calls that lead there, its share by metric name."""

    op: Op
    site: Site
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    attributed: Mapping[str, int]


@dataclass(frozen=True)
class Joined:
    """A map and, maybe, the costs of a run."""

    graph: TraceGraph
    attribution: Attribution | None

    @cached_property
    def metrics(self) -> tuple[MetricTotal, ...]:
        """The metrics of the run; none without one."""
        return self.attribution.metrics if self.attribution else ()

    @cached_property
    def op_results(self) -> Mapping[str, OpResult]:
        """Results of ops that can be measured: members of at least one site that runs on calls."""
        results = self.attribution.ops if self.attribution else ()
        sites = self.graph.sites_of_op
        on_calls = {site.id for site in self.graph.sites if not site.initializer}
        return {result.op: result for result in results if on_calls.intersection(sites.get(result.op, ()))}

    @cached_property
    def site_results(self) -> Mapping[str, SiteResult]:
        """Results of sites that can be measured: those that run on calls."""
        results = self.attribution.sites if self.attribution else ()
        return {result.site: result for result in results if not self.graph.site_by_id[result.site].initializer}

    @cached_property
    def sites_reached(self) -> Mapping[str, tuple[str, ...]]:
        """Sites by the op they are reached through: call ops on their path, and functions around path and members."""
        functions = {op.function: op.id for op in self.graph.ops if op.name.endswith(".func")}
        reached: dict[str, list[str]] = {}
        for site in self.graph.sites:
            ops = [*site.path, *self._functions_around(site, functions)]
            for op in dict.fromkeys(ops):
                reached.setdefault(op, []).append(site.id)
        return {op: tuple(sites) for op, sites in reached.items()}

    def _functions_around(self, site: Site, functions: Mapping[Text, str]) -> list[str]:
        inside = [*site.path, *(member.op for member in site.members)]
        names = [site.function, *(self.graph.op_by_id[op].function for op in inside if op in self.graph.op_by_id)]
        return [functions[name] for name in names if name in functions]

    @cached_property
    def source_index(self) -> Mapping[str, int]:
        """Number of a source file by its name in locations and by its path in the bundle."""
        indices: dict[str, int] = {}
        for index, source in enumerate(self.graph.sources):
            indices.setdefault(source.name, index)
            indices.setdefault(source.path, index)
        return indices

    def sites_of(self, op: Op) -> tuple[str, ...]:
        """The sites an op works in; for call ops and functions those reached through them."""
        return self.graph.sites_of_op.get(op.id) or self.sites_reached.get(op.id, ())

    def attributed(self, ops: Iterable[str], metric: str) -> int:
        """Sum of the attributed costs of ops; those without a result count nothing."""
        results = self.op_results
        return sum(results[op].metrics[metric].attributed for op in ops if op in results)

    def inclusive(self, sites: Iterable[str], metric: str) -> int:
        """Sum of the whole costs of sites."""
        results = self.site_results
        return sum(results[site].metrics[metric].total for site in sites if site in results)

    @cached_property
    def reached(self) -> tuple[Reached, ...]:
        """Every membership of a site that runs on calls, with the scope and frames of its op as reached there."""
        found = []
        for site in self.graph.sites:
            result = self.site_results.get(site.id)
            shares = {share.op: share.attributed for share in result.shares} if result else {}
            for member in site.members:
                op = self.graph.op_by_id[member.op]
                scope = scope_of(self.graph, op, member.path)
                frames = users_first(self.graph, frames_of(self.graph, op, member.path))
                found.append(Reached(op, site, scope, frames, shares.get(op.id, {})))
        return tuple(found)

    @cached_property
    def _reached_by_op(self) -> Mapping[str, tuple[Reached, ...]]:
        found: dict[str, list[Reached]] = {}
        for each in self.reached:
            found.setdefault(each.op.id, []).append(each)
        return {op: tuple(several) for op, several in found.items()}

    def scope_of(self, op: Op) -> str:
        """The scope of an op for tables; of one that several calls lead to, the first, and how many more there are."""
        scopes = list(dict.fromkeys(each.scope for each in self._reached_by_op.get(op.id, ()))) or [op.scope]
        more = f" +{len(scopes) - 1}" if len(scopes) > 1 else ""
        return "/".join(scopes[0]) + more

    def frames_of(self, op: Op) -> tuple[Frame, ...]:
        """The frames of an op, those of the first calls that lead to it included; the user's own come first."""
        reached = next((each.frames for each in self._reached_by_op.get(op.id, ())), None)
        return users_first(self.graph, op.frames) if reached is None else reached

    def amounts(self, values: Mapping[str, int]) -> dict[str, Amount]:
        """Values by metric name as amounts, in the order of the metrics."""
        return {metric.name: amount(values[metric.name], metric) for metric in self.metrics}
