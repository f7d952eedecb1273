"""A side of a comparison: a map with its costs, and the machine code of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tracemap.attribution.model import Attribution
from tracemap.comparison.costs import invocations_of
from tracemap.comparison.findings import Spread, spread_of
from tracemap.comparison.model import ComparedSide, KernelCode
from tracemap.errors import ModuleInvalid
from tracemap.graph.documents import NOT_KEPT, CompileTimes, Remarks
from tracemap.graph.model import OpId, TraceGraph
from tracemap.machine.figures import figures_of, placeless
from tracemap.machine.images import Image, kernel_images
from tracemap.units import UNKNOWN, Text, Unknown, sum_of

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


@dataclass(frozen=True)
class Compared:
    """A side: a bundle's name and map, its runs' costs if any, and a reader of its machine code (`images`).

    `runs`: names of the runs; `attributions`: one for each run, of runs that can be summed; `remarks`: the compiler's
    remarks, if the bundle has them; `compiled`: compile times.
    """

    name: str
    map_sha256: str
    graph: TraceGraph
    runs: tuple[str, ...]
    attributions: tuple[Attribution, ...]
    images: Callable[[], Sequence[Image]]
    remarks: Remarks | None = None
    compiled: CompileTimes = NOT_KEPT

    @cached_property
    def said(self) -> ComparedSide:
        """The side's record in the result."""
        headers = [header.run for header in self.attributions]
        return ComparedSide(
            bundle=self.name,
            map_sha256=self.map_sha256,
            module_sha256=self.graph.module.sha256,
            run=self._run,
            runs=self.runs,
            iterations=sum_of([header.iterations for header in headers]) if headers else UNKNOWN,
            invocation_ns=headers[0].invocation.median_ns if len(headers) == 1 else UNKNOWN,
            ops=len(self.graph.ops),
            compile_ns=self.compiled.elapsed_ns,
            compile_cpu_ns=self.compiled.cpu_ns,
        )

    @property
    def _run(self) -> Text:
        """The only run, or the first one and the number of others."""
        if not self.runs:
            return UNKNOWN
        return self.runs[0] + (f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else "")

    def spreads(self, metric: str) -> Mapping[Text, tuple[Spread, ...]]:
        """Spread of each op's cost per invocation, for each run. Ops that some runs lack are left out."""
        runs = [{op.op: spread_of(op.metrics.get(metric)) for op in run.ops} for run in self.attributions]
        result: dict[Text, tuple[Spread, ...]] = {}
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
        ops_by_kernel: dict[str, list[OpId]] = {}
        for op, kernels in self.kernels_of.items():
            for kernel in kernels:
                ops_by_kernel.setdefault(kernel, []).append(op)
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

    def code(self, kernel: str) -> tuple[str, ...]:
        """The instructions of a kernel without their addresses; empty if they cannot be read."""
        if kernel not in self._codes:
            images = kernel_images(self._images, kernel)
            try:
                self._codes[kernel] = placeless(*images[0]) if images else ()
            except ModuleInvalid:
                self._codes[kernel] = ()
        return self._codes[kernel]

    def figures(self, kernel: str) -> KernelCode:
        """Figures of a kernel's code."""
        images = kernel_images(self._images, kernel)
        try:
            figures = figures_of(*images[0]) if images else None
        except ModuleInvalid:
            figures = None
        if figures is None:
            return KernelCode()
        return KernelCode(figures.instructions, figures.loops, figures.vector_bits, figures.spills)

    @cached_property
    def _codes(self) -> dict[str, tuple[str, ...]]:
        return {}
