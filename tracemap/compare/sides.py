"""The sides of a comparison and the costs of their ops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

from tracemap.attribution.model import Attribution
from tracemap.attribution.scan.connection import IN_MILLIONTHS, MILLIONTHS
from tracemap.compare.findings import MedianInterval, spread_of
from tracemap.compare.model import BASIS, Amount, ComparedSide, KernelCode
from tracemap.core.errors import ModuleInvalid
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, rounded_ratio, sum_of
from tracemap.machine.code_figures import address_free_code, figures_of
from tracemap.machine.images import CodeFunction, Image, kernel_images
from tracemap.map.build_cost import BuildCost
from tracemap.map.bundle_documents import UNKNOWN_TIMES, CompileTimes, Remarks
from tracemap.map.model import OpId, TraceGraph
from tracemap.runs.model import TIME_METRICS

# ---- costs


Scaled = Mapping[str, Mapping[str, int]]
"""Scaled costs, by metric and by op or reason."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one side by metric: the totals, and the parts that add up to them."""

    wholes: Mapping[str, int]
    ops: Scaled
    unattributed: Scaled


def common_metrics(before: Sequence[Attribution], after: Sequence[Attribution]) -> tuple[tuple[str, str], ...]:
    """Names and units of the metrics that all runs have, in the order of the second side; empty without runs.

    A metric with fractions in some runs is in millionths for all runs; in the others it merely happens to be whole.
    """
    if not before or not after:
        return ()
    units_of_runs = [{metric.name: metric.unit for metric in attribution.metrics} for attribution in (*after, *before)]
    common = []
    for name in units_of_runs[0]:
        units = {units_of_run.get(name, "") for units_of_run in units_of_runs}
        if "" not in units and len(units - {IN_MILLIONTHS}) <= 1:
            common.append((name, IN_MILLIONTHS if IN_MILLIONTHS in units else units.pop()))
    return tuple(common)


def invocations_of(runs: Sequence[Attribution], metric: str) -> Integer:
    """Invocations of a metric over all runs. Unknown if the runs called different functions."""
    if len({run.run.function for run in runs}) > 1:
        return UNKNOWN
    return sum_of(
        [metric_total.invocations for run in runs for metric_total in run.metrics if metric_total.name == metric]
    )


def are_per_invocation(before: Sequence[Attribution], after: Sequence[Attribution]) -> bool:
    """Whether the number of invocations is known for each common metric on both sides."""
    names = [name for name, _ in common_metrics(before, after)]
    counts = [invocations_of(runs, name) for runs in (before, after) if runs for name in names]
    return all(not isinstance(count, Unknown) and count > 0 for count in counts)


def costs(
    runs: Sequence[Attribution], metrics: Sequence[tuple[str, str]], *, per_invocation: bool, slowdown: float = 1
) -> Costs:
    """Sum the costs of a side's runs, scaled to `BASIS` invocations or unscaled.

    Args:
        runs: the runs of the side.
        metrics: names and units.
        per_invocation: scale to invocations.
        slowdown: divisor of times, with four decimal places.
    """
    wholes, ops, unattributed = {}, {}, {}
    for name, unit in metrics:
        op_sums, reason_sums = Counter[str](), Counter[str]()
        for run in runs:
            # A run without fractions counts wholes.
            own_unit = next(metric.unit for metric in run.metrics if metric.name == name)
            factor = MILLIONTHS if unit == IN_MILLIONTHS != own_unit else 1
            for op in run.ops:
                op_sums[op.op] += op.metrics[name].attributed * factor
            for row in run.unattributed:
                reason_sums[row.reason.value] += row.metrics[name] * factor
        count = invocations_of(runs, name)
        values = [*op_sums.values(), *reason_sums.values()]
        divisor, factor = (count, BASIS) if per_invocation and isinstance(count, int) else (1, 1)
        if name in TIME_METRICS and slowdown != 1:
            divisor, factor = divisor * round(slowdown * _DECIMALS), factor * _DECIMALS
        scaled = scaled_to(values, divisor, factor)
        wholes[name] = sum(scaled)
        ops[name] = dict(zip(op_sums, scaled, strict=False))
        unattributed[name] = dict(zip(reason_sums, scaled[len(op_sums) :], strict=True))
    return Costs(wholes, ops, unattributed)


_DECIMALS: Final = 10_000


def scaled_to(values: Sequence[int], divisor: int, factor: int = BASIS) -> list[int]:
    """Scale integers, such as sums over `divisor` invocations to `factor` of them; they add up to the rounded sum.

    Units lost by rounding down go, one each, to the largest remainders (Hamilton's method).
    """
    if divisor == factor:
        return list(values)
    parts = [value * factor // divisor for value in values]
    missing = rounded_ratio(sum(values) * factor, divisor) - sum(parts)
    remainders = [value * factor % divisor for value in values]
    for index in sorted(range(len(remainders)), key=remainders.__getitem__, reverse=True)[:missing]:
        parts[index] += 1
    return parts


def amount(before: int, after: int) -> Amount:
    """A cost before and after, with its change."""
    return Amount(before, after, after - before)


# ---- sides


_Code = TypeVar("_Code")
_LOST: Final = 0.01
"""Tolerance: a run may have lost this share of its calls, and have reported it, and still count as equal work."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an op's kernels per invocation: calls and workgroups."""

    calls: float | Unknown
    workgroups: float | Unknown

    def is_that_of(self, other: Work) -> bool:
        """Whether the work is equal, as far as both are known."""
        pairs = ((self.calls, other.calls), (self.workgroups, other.workgroups))
        known = [(a, b) for a, b in pairs if not (isinstance(a, Unknown) or isinstance(b, Unknown))]
        return all(abs(a - b) <= _LOST * max(a, b) for a, b in known)


UNKNOWN_WORK: Final = Work(UNKNOWN, UNKNOWN)


Configurations = Mapping[str, Mapping[str, str]]
"""The lowering configuration of each kernel: pipeline, and sizes by tiling level."""


def no_configurations() -> Configurations:
    """The configurations of a bundle whose kernels cannot be read."""
    return {}


@dataclass(frozen=True)
class Side:
    """A side: a bundle's name and map, its runs' costs if any, and a reader of its machine code (`images`).

    `runs`: names of the runs; `attributions`: one for each run, of runs that can be summed; `remarks`: the compiler's
    remarks, if the bundle has them; `compiled`: compile times; `configurations`: reads those of the kernels.
    """

    name: str
    map_sha256: str
    graph: TraceGraph
    runs: tuple[str, ...]
    attributions: tuple[Attribution, ...]
    images: Callable[[], Sequence[Image]]
    remarks: Remarks | None = None
    compiled: CompileTimes = UNKNOWN_TIMES
    cost: BuildCost | None = None
    """The cost of building, if the bundle records the compiler's time."""
    configurations: Callable[[], Configurations] = no_configurations

    @cached_property
    def configuration_of(self) -> Configurations:
        """The lowering configurations of the kernels; empty if they cannot be read."""
        return self.configurations()

    @cached_property
    def said(self) -> ComparedSide:
        """The side's record in the result."""
        headers = [header.run for header in self.attributions]
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return ComparedSide(
            bundle=self.name,
            map_sha256=self.map_sha256,
            module_sha256=self.graph.module.sha256,
            # The only run, or the first one and the number of others.
            run=self.runs[0] + more if self.runs else UNKNOWN,
            runs=self.runs,
            iterations=sum_of([header.iterations for header in headers]) if headers else UNKNOWN,
            invocation_ns=headers[0].invocation.median_ns if len(headers) == 1 else UNKNOWN,
            ops=len(self.graph.ops),
            compile_ns=self.compiled.elapsed_ns,
            compile_cpu_ns=self.compiled.cpu_ns,
        )

    def spreads(self, metric: str) -> Mapping[Text, tuple[MedianInterval, ...]]:
        """Spread of each op's cost per invocation, for each run. Ops that some runs lack are left out."""
        runs = [{op.op: spread_of(op.metrics.get(metric)) for op in run.ops} for run in self.attributions]
        result: dict[Text, tuple[MedianInterval, ...]] = {}
        for op in runs[0] if runs else ():
            spreads = tuple([spread for run in runs if (spread := run.get(op)) is not None])
            if len(spreads) == len(runs):
                result[op] = spreads
        return result

    def work_of(self, metric: str) -> Mapping[Text, Work]:
        """Calls and workgroups of each op's sites per invocation; empty if the number of invocations is unknown."""
        invocations = invocations_of(self.attributions, metric)
        if isinstance(invocations, Unknown) or not invocations:
            return {}
        works: dict[Text, Work] = {}
        of_runs = [{site.site: site for site in run.sites} for run in self.attributions]
        for op, sites in self.graph.sites_of_op.items():
            own = [of_run[site] for of_run in of_runs for site in sites if site in of_run]
            calls, tiles = sum_of([site.calls for site in own]), sum_of([site.tiles for site in own if site.calls])
            works[op] = Work(
                *(count if isinstance(count, Unknown) else count / invocations for count in (calls, tiles))
            )
        return works

    @cached_property
    def kernels_of(self) -> Mapping[OpId, tuple[str, ...]]:
        """Names of the kernels that contain each op."""
        kernel_of = {site.id: site.kernel for site in self.graph.sites}
        return {op: tuple(sorted({kernel_of[site] for site in sites})) for op, sites in self.graph.sites_of_op.items()}

    @cached_property
    def ops_of_kernel(self) -> Mapping[str, tuple[OpId, ...]]:
        """The ops in each kernel, by its name."""
        ops_by_kernel: dict[str, list[OpId]] = defaultdict(list)
        for op, kernels in self.kernels_of.items():
            for kernel in kernels:
                ops_by_kernel[kernel].append(op)
        return {kernel: tuple(ops) for kernel, ops in ops_by_kernel.items()}

    @cached_property
    def partners_of(self) -> Mapping[OpId, frozenset[OpId]]:
        """The ops that share a site with each op, including itself. Ops of the same sites share one set."""
        ops_of_site = {site.id: {member.op for member in site.members} for site in self.graph.sites}
        sites_of_op = self.graph.sites_of_op
        partners = {
            sites: frozenset().union(*map(ops_of_site.__getitem__, sites)) for sites in set(sites_of_op.values())
        }
        return {op: partners[sites] for op, sites in sites_of_op.items()}

    @cached_property
    def _images(self) -> Sequence[Image]:
        try:
            return self.images()
        except ModuleInvalid:
            return ()

    def _read(self, kernel: str, read: Callable[[Image, CodeFunction], _Code]) -> _Code | None:
        """A kernel's code as `read` gives it; None if it cannot be read."""
        images = kernel_images(self._images, kernel)
        try:
            return read(*images[0]) if images else None
        except ModuleInvalid:
            return None

    def code(self, kernel: str) -> tuple[str, ...]:
        """The instructions of a kernel without their addresses; empty if they cannot be read."""
        if kernel not in self._codes:
            self._codes[kernel] = self._read(kernel, address_free_code) or ()
        return self._codes[kernel]

    def figures(self, kernel: str) -> KernelCode:
        """Figures of a kernel's code."""
        figures = self._read(kernel, figures_of)
        if figures is None:
            return KernelCode()
        return KernelCode(figures.instructions, figures.loops, figures.vector_bits, figures.spills)

    @cached_property
    def _codes(self) -> dict[str, tuple[str, ...]]:
        return {}
