"""What is compared: a map with its costs, and the machine code of its kernels."""

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
"""As a part of all, how many calls a run may have lost, and say so, without that it is another run."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an op's kernels do in an invocation: so many calls, in so many workgroups."""

    calls: float | Unknown
    workgroups: float | Unknown

    def is_that_of(self, other: Work) -> bool:
        """Whether it is as much, as far as both tell."""
        pairs = ((self.calls, other.calls), (self.workgroups, other.workgroups))
        known = [(a, b) for a, b in pairs if not (isinstance(a, Unknown) or isinstance(b, Unknown))]
        return all(abs(a - b) <= _LOST * max(a, b) for a, b in known)


UNTOLD: Final = Work(UNKNOWN, UNKNOWN)


@dataclass(frozen=True)
class Compared:
    """One of two bundles: its name, its map and, maybe, what runs of it cost; `images` reads its machine code.

    `runs`: their names; `attributions`: one for each of them, of runs that add up; `remarks`: the compiler's, where the
    bundle keeps them; `compiled`: how long the compiler took.
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
        """What is said of it."""
        headers = [each.run for each in self.attributions]
        return ComparedSide(
            bundle=self.name,
            map_sha256=self.map_sha256,
            module_sha256=self.graph.module.sha256,
            run=self._run,
            runs=self.runs,
            iterations=sum_of([each.iterations for each in headers]) if headers else UNKNOWN,
            invocation_ns=headers[0].invocation.median_ns if len(headers) == 1 else UNKNOWN,
            ops=len(self.graph.ops),
            compile_ns=self.compiled.elapsed_ns,
            compile_cpu_ns=self.compiled.cpu_ns,
        )

    @property
    def _run(self) -> Text:
        """The only run, or the first and how many more."""
        if not self.runs:
            return UNKNOWN
        return self.runs[0] + (f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else "")

    def spreads(self, metric: str) -> Mapping[Text, tuple[Spread, ...]]:
        """What each op costs in an invocation, for each run; without those that not all runs tell of."""
        runs = [{op.op: spread_of(op.metrics.get(metric)) for op in run.ops} for run in self.attributions]
        found: dict[Text, tuple[Spread, ...]] = {}
        for op in runs[0] if runs else ():
            spreads = tuple([spread for run in runs if (spread := run.get(op)) is not None])
            if len(spreads) == len(runs):
                found[op] = spreads
        return found

    def work_of(self, metric: str) -> Mapping[Text, Work]:
        """How often the sites of each op are called in an invocation, in how many workgroups; nothing where unknown."""
        invocations = invocations_of(self.attributions, metric)
        if isinstance(invocations, Unknown) or not invocations:
            return {}
        found: dict[Text, Work] = {}
        of_runs = [{site.site: site for site in run.sites} for run in self.attributions]
        for op, sites in self.graph.sites_of_op.items():
            own = [of_run[site] for of_run in of_runs for site in sites if site in of_run]
            calls, tiles = sum_of([each.calls for each in own]), sum_of([each.tiles for each in own if each.calls])
            found[op] = Work(*(each if isinstance(each, Unknown) else each / invocations for each in (calls, tiles)))
        return found

    @cached_property
    def kernels_of(self) -> Mapping[OpId, tuple[str, ...]]:
        """The kernels that each op works in, by name."""
        kernel_of = {site.id: site.kernel for site in self.graph.sites}
        return {op: tuple(sorted({kernel_of[site] for site in sites})) for op, sites in self.graph.sites_of_op.items()}

    @cached_property
    def ops_of_kernel(self) -> Mapping[str, tuple[OpId, ...]]:
        """The ops that work in each kernel, by its name."""
        found: dict[str, list[OpId]] = {}
        for op, kernels in self.kernels_of.items():
            for kernel in kernels:
                found.setdefault(kernel, []).append(op)
        return {kernel: tuple(ops) for kernel, ops in found.items()}

    @cached_property
    def partners_of(self) -> Mapping[OpId, frozenset[OpId]]:
        """The ops that each op shares a site with, and itself: the same set for all ops of the same sites."""
        members = {site.id: {member.op for member in site.members} for site in self.graph.sites}
        works = self.graph.sites_of_op
        found = {sites: frozenset().union(*map(members.__getitem__, sites)) for sites in set(works.values())}
        return {op: found[sites] for op, sites in works.items()}

    @cached_property
    def _images(self) -> Sequence[Image]:
        try:
            return self.images()
        except ModuleInvalid:
            return ()

    def code(self, kernel: str) -> tuple[str, ...]:
        """The instructions of a kernel, wherever it lies; none where they cannot be read."""
        if kernel not in self._codes:
            found = kernel_images(self._images, kernel)
            try:
                self._codes[kernel] = placeless(*found[0]) if found else ()
            except ModuleInvalid:
                self._codes[kernel] = ()
        return self._codes[kernel]

    def figures(self, kernel: str) -> KernelCode:
        """What the code of a kernel amounts to."""
        found = kernel_images(self._images, kernel)
        try:
            counted = figures_of(*found[0]) if found else None
        except ModuleInvalid:
            counted = None
        if counted is None:
            return KernelCode()
        return KernelCode(counted.instructions, counted.loops, counted.vector_bits, counted.spills)

    @cached_property
    def _codes(self) -> dict[str, tuple[str, ...]]:
        return {}
