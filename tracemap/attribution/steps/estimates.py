"""Weights of a site's members estimated from machine code: the rule `code`, for kernels in which nothing was measured.

A kernel's estimate is the same for all sites that call it with as many workgroups. It is made once, and kept in the
bundle where that can be written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.attribution.steps.lines import KernelSteps, Lines, Spot, in_loops, kernel_steps, lines_of_ops, of_members
from tracemap.attribution.weights import Weights
from tracemap.graph.documents import CacheLatency, KeptEstimates, KernelEstimate, LineEstimate
from tracemap.graph.model import Site, TraceGraph
from tracemap.machine.estimate import Cache, Caches, Estimate, estimate
from tracemap.machine.images import Image
from tracemap.machine.traffic import LINE_BYTES
from tracemap.measurements.model import ASSUMED_PEAKS, CacheSpeed, Peaks, RunHeader
from tracemap.units import UNKNOWN, Integer

_CODE: Final = "\0code"
"""A metric of ours, which no run can have: hundredths of a cycle that instructions are estimated to take."""
_METHOD: Final = 3
"""The version of all that estimates hang on: counted on with each change to what they come to."""
_X86: Final = "EM_X86_64"
"""The architecture whose whole numbers are followed (`machine.integers`)."""

DEFAULT_CACHES: Final[Caches] = (Cache(32 << 10, 200), Cache(1 << 20, 400), Cache(32 << 20, 1000))
"""Of one core of a present-day server, where nobody measured the machine."""
_CLOCK_HZ: Final = 3_500_000_000
"""Of a core of a present-day server: how fast it really goes is not told."""

_FACTOR_OF_CORE, _FACTOR_OF_WAITS = 1.5, 2.0
"""By how much an op's part of a kernel may be off, as a factor of what it costs: `docs/accuracy.md` has what is
measured (`make accuracy`). Of kernels that execute, and of those that wait."""
_MUCH: Final = 0.25
"""The part of a kernel's time from which waiting counts."""


_Key = tuple[str, tuple[int, ...], str, tuple[int, ...]]
"""Of an estimate: its kernel, how many workgroups; site and sizes where the program computes sizes."""

Numbers = Mapping[str, Sequence[int]]
"""By site the numbers of 32 bits that its kernel is called with; no entry where only a run tells one of them."""


@dataclass
class CodeEstimates:
    """Weights of members, by the machine code of their kernels.

    Args:
        graph: the map.
        images: the machine code, asked for only where something is to be estimated.
        headers: of the runs, which tell the sizes of grids that the program computes.
        kept: what the bundle keeps of earlier estimates.
        peaks: of the machine.
        numbers: what kernels are called with, asked for only where the program computes sizes.
    """

    graph: TraceGraph
    images: Callable[[], Sequence[Image]]
    headers: Sequence[RunHeader] = ()
    kept: Callable[[], KeptEstimates] = KeptEstimates
    peaks: Peaks = ASSUMED_PEAKS
    numbers: Callable[[], Numbers] = dict
    made: dict[_Key, KernelEstimate] = field(default_factory=dict)
    """Those that the bundle does not keep yet."""
    _steps: dict[str, KernelSteps] = field(default_factory=dict)
    _shared: dict[str, Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """By kernel: the lines whose work is done on others, by these."""

    def weights(self, site: Site) -> Weights | None:
        """The weights of a site's members; None where its kernel has no machine code that can be read."""
        if len(site.members) < 2:
            return Weights((1, 0)) if site.members else None
        found = self._estimate(site)
        if not found.lines:
            return None
        steps = self._steps_of(site.kernel)
        if site.kernel not in self._shared:
            self._shared[site.kernel] = steps.shared_lines(frozenset(found.with_code))
        shared = self._shared[site.kernel]
        # What is of no op, such as a kernel's first instructions, is there for the sake of all of them.
        *values, _ = of_members(steps, Counter({each.line: each.hundredths for each in found.lines}), site, shared)
        if not any(values):
            return None
        bounds: tuple[tuple[int, int], ...] = ()
        if any(each.least != each.hundredths or each.most != each.hundredths for each in found.lines):
            least = of_members(steps, Counter({each.line: each.least for each in found.lines}), site, shared)
            most = of_members(steps, Counter({each.line: each.most for each in found.lines}), site, shared)
            bounds = (*zip(least[:-1], most[:-1], strict=True), (0, 0))
        return Weights((*values, 0), sum(values), factor=found.factor, bounds=bounds)

    def _estimate(self, site: Site) -> KernelEstimate:
        workgroups = self._workgroups(site)
        is_dynamic = any(member.bytes is UNKNOWN for member in site.members)
        key = site.kernel, workgroups, site.id if is_dynamic else "", self._sizes if is_dynamic else ()
        found = self._known.get(key) or self.made.get(key)
        if found is None:
            numbers = self._numbers.get(site.id, ()) if is_dynamic else ()
            found = self.made[key] = self._fresh(key, numbers)
        return found

    @cached_property
    def _numbers(self) -> Numbers:
        return self.numbers()

    @cached_property
    def _known(self) -> Mapping[_Key, KernelEstimate]:
        kept = self.kept()
        made_for = kept.module_sha256, kept.caches, kept.method
        holds = made_for == (self.graph.module.sha256, self._kept_caches, _METHOD)
        kernels = kept.kernels if holds else ()
        return {(each.kernel, each.workgroups, each.site, each.sizes): each for each in kernels}

    @cached_property
    def caches(self) -> Caches:
        """Those of the machine; how long a line takes is rounded, so that what is kept holds for its next run, too."""
        found = self.peaks.caches
        return tuple(Cache(each.bytes, _line_hundredths(each)) for each in found) if found else DEFAULT_CACHES

    @property
    def _kept_caches(self) -> tuple[CacheLatency, ...]:
        return tuple(CacheLatency(*cache) for cache in self.caches)

    def all_made(self) -> KeptEstimates:
        """All estimates, those that were kept first."""
        kernels = (*self._known.values(), *(self.made[key] for key in sorted(self.made)))
        return KeptEstimates(
            method=_METHOD, module_sha256=self.graph.module.sha256, caches=self._kept_caches, kernels=kernels
        )

    def _steps_of(self, kernel: str) -> KernelSteps:
        if kernel not in self._steps:
            self._steps[kernel] = kernel_steps(self.graph, self.graph.kernel_by_name[kernel], self.images)
        return self._steps[kernel]

    def _fresh(self, key: _Key, numbers: Sequence[int]) -> KernelEstimate:
        kernel, workgroups, *_ = key
        steps = self._steps_of(kernel)
        code = steps.code
        is_x86 = any(kernel in image.function_by_name and image.machine == _X86 for image in self.images())
        if not code.instructions or not is_x86:
            return KernelEstimate(*key)
        found = estimate(code.instructions, code.loops, workgroups, self.caches, numbers)
        mean, least, most = _lines(steps, found)
        lines = tuple(LineEstimate(line, mean[line], least[line], most[line]) for line in sorted(mean))
        return KernelEstimate(*key, lines, tuple(sorted(code.lines)), _factor(found))

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The sizes that arguments of the first run had for each `?`, in order; 0 where it does not tell."""
        functions = {function.name: function for function in self.graph.functions}
        return next(
            (
                tuple(
                    int(actual) if actual.isdigit() else 0
                    for argument, given in zip(functions[header.function].arguments, header.inputs, strict=False)
                    for declared, actual in zip(_extents(argument.type), _extents(given), strict=False)
                    if declared == "?"
                )
                for header in self.headers
                if header.function in functions
            ),
            (),
        )

    def _workgroups(self, site: Site) -> tuple[int, ...]:
        """The size of the grid of a site's calls; of a dimension that the program computes, what a run had."""
        told = self._grids.get(site.id, (UNKNOWN, UNKNOWN, UNKNOWN))
        recorded = self._recorded.get(site.kernel, (1, 1, 1))
        return tuple(recorded[number] if count is UNKNOWN else max(1, count) for number, count in enumerate(told))

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


def _line_hundredths(cache: CacheSpeed) -> int:
    """In steps of a fifth more each."""
    cycles = LINE_BYTES * _CLOCK_HZ / cache.bytes_per_second
    return max(1, round(100 * _STEP ** round(math.log(cycles, _STEP))))


_STEP: Final = 1.2


def _extents(text: str) -> list[str]:
    """The extents of a tensor's type, or of an input as a run's header tells it; none of a scalar.

    >>> _extents("tensor<?x64xf32>"), _extents("96x64xf32: random")
    (['?', '64'], ['96', '64'])
    """
    return re.findall(r"([?]|\d+)x", text.partition(":")[0].partition("=")[0])


def _factor(found: Estimate) -> float:
    waits = sum(found.chain.values()) + sum(found.memory.values())
    return _FACTOR_OF_WAITS if waits > _MUCH * (waits + sum(found.core.values())) else _FACTOR_OF_CORE


def _lines(steps: KernelSteps, found: Estimate) -> tuple[Lines, Lines, Lines]:
    """An estimate by lines that are of ops, then its least, then its most; code of none is of those in its loop."""
    line_of = {each.address: each.line for each in steps.code.instructions}
    rows = [
        StepRow(0, steps.kernel.name, line_of[address], address, values)
        for address, values in sorted(found.total().items())
        if values[0] and address != NO_ADDRESS
    ]
    spots = [steps.spot_of(row, _CODE) for row in rows]

    def of_bound(number: int) -> Lines:
        seen: Counter[Spot] = Counter()
        for row, spot in zip(rows, spots, strict=True):
            seen[spot] += row.values[number]
        return lines_of_ops(steps, seen, in_loops(steps, rows, number, _CODE, {}), {})

    mean = of_bound(0)
    return (mean, of_bound(1), of_bound(2)) if found.doubts else (mean, mean, mean)
