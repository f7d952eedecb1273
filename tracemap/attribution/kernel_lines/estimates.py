"""Weights of a site's ops, estimated from machine code: the rule `code`, for kernels without measurements inside.

A kernel's estimate is the same for all sites that call it with the same workgroup counts. It is computed once, and kept
in the bundle if that is writable.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracemap.attribution.kernel_lines.lines import (
    KernelSteps,
    Lines,
    Spot,
    in_loops,
    kernel_steps,
    lines_of_ops,
    member_costs,
)
from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.attribution.weights import Weights
from tracemap.core.units import UNKNOWN, Integer
from tracemap.machine.caches import DEFAULT_CACHES, LINE_BYTES, Cache, Caches
from tracemap.machine.images import Image
from tracemap.map.bundle_documents import CacheLatency, KernelEstimate, LineEstimate, StoredEstimates
from tracemap.map.model import Site, TraceGraph
from tracemap.runs.model import ASSUMED_PEAKS, Peaks, RunHeader

if TYPE_CHECKING:
    from tracemap.machine.estimate import Estimate

_CODE: Final = "\0code"
"""An internal metric, with a name that no run can have: estimated hundredths of a cycle of instructions."""
_METHOD: Final = 3
"""Version of the estimation method: increase it with every change that alters estimates."""
_X86: Final = "EM_X86_64"
"""The architecture whose integer code can be followed (`machine.integers`)."""

_CLOCK_HZ: Final = 3_500_000_000
"""The clock rate of a core of a present-day server; runs do not have the real one."""

_STEP: Final = 1.2

_FACTOR_OF_CORE, _FACTOR_OF_WAITS = 1.5, 2.0
"""Factors by which an op's cost may be off, for kernels that mostly execute and that mostly wait. `docs/accuracy.md`
has the measurements (`make accuracy`)."""
_MOSTLY_WAITING: Final = 0.25
"""The fraction of waits in a kernel's time from which it counts as mostly waiting."""


_Key = tuple[str, tuple[int, ...], str, tuple[int, ...]]
"""Key of an estimate: kernel and workgroup counts; also site and sizes if the program computes sizes."""

Numbers = Mapping[str, Sequence[int]]
"""The 32-bit integers that kernels are called with, by site; no entry if only a run has one of them."""


@dataclass
class CodeEstimates:
    """Weights of ops, from the machine code of their kernels.

    Args:
        graph: the map.
        images: reads the machine code; called only if an estimate is needed.
        headers: the headers of the runs, which have the grid sizes that the program computes.
        kept: reads the estimates that the bundle keeps.
        peaks: the peaks of the machine.
        numbers: the integers that kernels are called with; called only if the program computes sizes.
    """

    graph: TraceGraph
    images: Callable[[], Sequence[Image]]
    headers: Sequence[RunHeader] = ()
    kept: Callable[[], StoredEstimates] = StoredEstimates
    peaks: Peaks = ASSUMED_PEAKS
    numbers: Callable[[], Numbers] = dict
    new: dict[_Key, KernelEstimate] = field(default_factory=dict)
    """New estimates, which the bundle does not keep yet."""
    _steps: dict[str, KernelSteps] = field(default_factory=dict)
    _shared: dict[str, Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """Results of `KernelSteps.shared_lines`, by kernel."""

    def weights(self, site: Site) -> Weights | None:
        """The weights of a site's ops; None if its kernel has no readable machine code."""
        if len(site.members) < 2:
            return Weights((1, 0)) if site.members else None
        kernel_estimate = self._estimate(site)
        if not kernel_estimate.lines:
            return None
        steps = self._steps_of(site.kernel)
        if site.kernel not in self._shared:
            self._shared[site.kernel] = steps.shared_lines(frozenset(kernel_estimate.with_code))
        shared = self._shared[site.kernel]

        def member_values(estimate: str) -> list[int]:
            # Code of no op, such as a kernel's prologue, is needed by all ops, so it changes no weights.
            lines = Counter({line.line: getattr(line, estimate) for line in kernel_estimate.lines})
            return member_costs(steps, lines, site, shared)[:-1]

        values = member_values("hundredths")
        if not any(values):
            return None
        bounds: tuple[tuple[int, int], ...] = ()
        if any(line.least != line.hundredths or line.most != line.hundredths for line in kernel_estimate.lines):
            bounds = (*zip(member_values("least"), member_values("most"), strict=True), (0, 0))
        return Weights((*values, 0), sum(values), factor=kernel_estimate.factor, bounds=bounds)

    def _estimate(self, site: Site) -> KernelEstimate:
        workgroups = self._workgroups(site)
        is_dynamic = any(member.bytes is UNKNOWN for member in site.members)
        key = site.kernel, workgroups, site.id if is_dynamic else "", self._sizes if is_dynamic else ()
        known = self._known.get(key) or self.new.get(key)
        if known is None:
            numbers = self._numbers.get(site.id, ()) if is_dynamic else ()
            known = self.new[key] = self._compute(key, numbers)
        return known

    @cached_property
    def _numbers(self) -> Numbers:
        return self.numbers()

    @cached_property
    def _known(self) -> Mapping[_Key, KernelEstimate]:
        kept = self.kept()
        basis = kept.module_sha256, kept.caches, kept.method
        is_valid = basis == (self.graph.module.sha256, self._kept_caches, _METHOD)
        kernels = kept.kernels if is_valid else ()
        return {(kernel.kernel, kernel.workgroups, kernel.site, kernel.sizes): kernel for kernel in kernels}

    @cached_property
    def caches(self) -> Caches:
        """The machine's caches; times per line are rounded, so that kept estimates stay valid for the next run.

        They are in hundredths of a cycle, rounded to a power of `_STEP` cycles.
        """
        caches = []
        for cache in self.peaks.caches:
            cycles = LINE_BYTES * _CLOCK_HZ / cache.bytes_per_second
            caches.append(Cache(cache.bytes, max(1, round(100 * _STEP ** round(math.log(cycles, _STEP))))))
        return tuple(caches) or DEFAULT_CACHES

    @property
    def _kept_caches(self) -> tuple[CacheLatency, ...]:
        return tuple(CacheLatency(*cache) for cache in self.caches)

    def all_estimates(self) -> StoredEstimates:
        """All estimates, the kept ones first."""
        kernels = (*self._known.values(), *(self.new[key] for key in sorted(self.new)))
        return StoredEstimates(
            method=_METHOD, module_sha256=self.graph.module.sha256, caches=self._kept_caches, kernels=kernels
        )

    def _steps_of(self, kernel: str) -> KernelSteps:
        if kernel not in self._steps:
            self._steps[kernel] = kernel_steps(self.graph, self.graph.kernel_by_name[kernel], self.images)
        return self._steps[kernel]

    def _compute(self, key: _Key, numbers: Sequence[int]) -> KernelEstimate:
        from tracemap.machine.estimate import estimate

        kernel, workgroups, *_ = key
        steps = self._steps_of(kernel)
        code = steps.code
        is_x86 = any(kernel in image.function_by_name and image.machine == _X86 for image in self.images())
        if not code.instructions or not is_x86:
            return KernelEstimate(*key)
        computed = estimate(code.instructions, code.loops, workgroups, self.caches, numbers)
        mean, least, most = _lines(steps, computed)
        lines = tuple(LineEstimate(line, mean[line], least[line], most[line]) for line in sorted(mean))
        waits = sum(computed.chain.values()) + sum(computed.memory.values())
        is_waiting = waits > _MOSTLY_WAITING * (waits + sum(computed.core.values()))
        factor = _FACTOR_OF_WAITS if is_waiting else _FACTOR_OF_CORE
        return KernelEstimate(*key, lines, tuple(sorted(code.lines)), factor)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The first run's value of each `?` in the argument types, in order; 0 if unknown."""
        functions = {function.name: function for function in self.graph.functions}
        for header in self.headers:
            if header.function in functions:
                return tuple(
                    int(actual) if actual.isdigit() else 0
                    for argument, value in zip(functions[header.function].arguments, header.inputs, strict=False)
                    for declared, actual in zip(_extents(argument.type), _extents(value), strict=False)
                    if declared == "?"
                )
        return ()

    def _workgroups(self, site: Site) -> tuple[int, ...]:
        """The grid size of a site's calls; for a dimension that the program computes, the size in a run."""
        static = self._grids.get(site.id, (UNKNOWN,) * 3)
        recorded = self._recorded.get(site.kernel, (1, 1, 1))
        return tuple(recorded[axis] if count is UNKNOWN else max(1, count) for axis, count in enumerate(static))

    @cached_property
    def _grids(self) -> Mapping[str, tuple[Integer, ...]]:
        return {
            site: command.workgroups
            for buffer in self.graph.command_buffers
            for command in buffer.commands
            if command.kind == "dispatch" and len(command.workgroups) == 3
            for site in (command.site, *command.merged)
            if site is not UNKNOWN
        }

    @cached_property
    def _recorded(self) -> Mapping[str, tuple[int, ...]]:
        return {
            command.kernel: tuple(max(1, count) for count in command.workgroups)
            for header in reversed(self.headers)
            for program in header.programs
            for command in program
            if command.kernel is not UNKNOWN and len(command.workgroups) == 3
        }


def _extents(text: str) -> list[str]:
    """The extents of a tensor type, or of an input in a run's header; empty for a scalar.

    >>> _extents("tensor<?x64xf32>"), _extents("96x64xf32: random")
    (['?', '64'], ['96', '64'])
    """
    return re.findall(r"([?]|\d+)x", text.partition(":")[0].partition("=")[0])


def _lines(steps: KernelSteps, computed: Estimate) -> tuple[Lines, Lines, Lines]:
    """Mean, lower and upper bound of an estimate by lines of ops; code of no op goes to the ops of its loop."""
    line_of = {instruction.address: instruction.line for instruction in steps.code.instructions}
    rows = [
        StepRow(0, steps.kernel.name, line_of[address], address, values)
        for address, values in sorted(computed.total().items())
        if values[0] and address != NO_ADDRESS
    ]
    spots = [steps.spot_of(row, _CODE) for row in rows]

    def lines_of_value(number: int) -> Lines:
        by_spot: Counter[Spot] = Counter()
        for row, spot in zip(rows, spots, strict=True):
            by_spot[spot] += row.values[number]
        return lines_of_ops(steps, by_spot, in_loops(steps, rows, number, _CODE, {}), {})

    mean = lines_of_value(0)
    return (mean, lines_of_value(1), lines_of_value(2)) if computed.doubts else (mean, mean, mean)
