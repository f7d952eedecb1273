"""The figures of a run per invocation: its dispatches, their times, and the time between them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Final

import msgspec

from tracemap.attribution.advice.kernel_facts import Evidence, KernelFacts
from tracemap.attribution.model import (
    AdviceRule,
    Attribution,
    Overhead,
    OverheadPlace,
    SiteResult,
)
from tracemap.attribution.what_if import ProgramModel, program_ns
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import Unknown, format_share
from tracemap.map.model import OpId, Site, TraceGraph
from tracemap.map.query import python_frame
from tracemap.runs.model import Peaks


class Dispatch(msgspec.Struct, frozen=True, dict=True):
    """A dispatch site that ran: times and calls per invocation, and its kernel.

    `wall_ns`: its part of the invocation; `cpu_ns`: the time of all workers.
    """

    site: Site
    result: SiteResult
    wall_ns: float
    cpu_ns: float
    calls: float
    kernel: KernelFacts

    @property
    def quiet_ns(self) -> float:
        """Its CPU time in the fastest tenth of its calls, which other programs do not make slower."""
        cpu = self.result.metrics.get("cpu_ns")
        fastest = cpu.per_call.p10 * self.calls if cpu and cpu.per_call else self.cpu_ns
        return min(self.cpu_ns, fastest) or self.cpu_ns

    @property
    def ops(self) -> tuple[OpId, ...]:
        """Its ops, the root first."""
        members = sorted(self.site.members, key=lambda member: not member.root)
        return tuple(member.op for member in members)

    @cached_property
    def operations(self) -> int:
        """Arithmetic operations of a call; 0 if unknown."""
        counts = [member.operations for member in self.site.members]
        return sum(count for count in counts if isinstance(count, int))

    @cached_property
    def bytes(self) -> int:
        """Memory traffic of a call that its ops need; 0 if unknown."""
        counts = [member.bytes for member in self.site.members]
        return (
            0 if any(isinstance(count, Unknown) for count in counts) else sum(c for c in counts if isinstance(c, int))
        )


class Finding(msgspec.Struct, frozen=True):
    """A cause of time: the gain without it, and its bounds, per invocation."""

    rule: AdviceRule
    gain_ns: float
    low_ns: float
    high_ns: float
    ops: tuple[OpId, ...]
    dispatch: Dispatch | None = None
    detail: str = ""
    """The cause in words, for the text."""
    bytes: float = 0.0
    """Memory traffic per invocation that is not needed."""


@dataclass(frozen=True)
class Program:
    """The figures of a run, per invocation."""

    evidence: Evidence

    @property
    def graph(self) -> TraceGraph:
        """The map."""
        return self.evidence.graph

    @property
    def attribution(self) -> Attribution:
        """The costs."""
        return self.evidence.attribution

    @cached_property
    def model(self) -> ProgramModel:
        """The model of an invocation."""
        return ProgramModel(self.graph, self.attribution)

    @cached_property
    def iterations(self) -> int:
        """Measured invocations; 0 if their time is unknown, or if they are of several functions."""
        run = self.attribution.run
        known = isinstance(run.elapsed_ns, int) and isinstance(run.iterations, int)
        return run.iterations if known and len(self.attribution.functions) <= 1 else 0  # type: ignore[return-value]

    @cached_property
    def elapsed_ns(self) -> float:
        """Time of an invocation; see `invocation_ns`."""
        return invocation_ns(self.attribution)

    @cached_property
    def noise_ns(self) -> float:
        """The noise of the median invocation, by its interval."""
        run = self.attribution.run.invocation
        median, low, high = run.median_ns, run.low_ns, run.high_ns
        known = isinstance(median, int) and isinstance(low, int) and isinstance(high, int) and median
        noise = (high - low) / 2 / median if known else _UNKNOWN_NOISE  # type: ignore[operator]
        return min(_MOST_NOISE, noise) * self.elapsed_ns

    @cached_property
    def running(self) -> float:
        """The part of the time in which threads that wanted a CPU had one; calls take longer by what they wait."""
        noise = self.attribution.run.noise
        if not (isinstance(noise.running_ns, int) and isinstance(noise.waiting_ns, int) and noise.running_ns):
            return 1.0
        return noise.running_ns / (noise.running_ns + noise.waiting_ns)

    @cached_property
    def workers(self) -> int:
        """Number of workers; 1 if unknown."""
        workers = self.attribution.run.workers
        return workers if isinstance(workers, int) and workers else 1

    @cached_property
    def peaks(self) -> Peaks | None:
        """The speeds of one core; None if they were not measured."""
        peaks = self.attribution.run.peaks
        return peaks if peaks.source == "measured" else None

    @cached_property
    def kernels_ns(self) -> float:
        """Time in which a kernel ran."""
        return sum(dispatch.wall_ns for dispatch in self.dispatches)

    @cached_property
    def overhead_ns(self) -> float:
        """Time of queue and host; 0 if the device did nothing."""
        return self._measured_overhead_ns * self.overhead_scale

    @cached_property
    def _measured_overhead_ns(self) -> float:
        parts = self.attribution.run.elapsed
        if not self.iterations or not (parts.kernels_ns or parts.transfers_ns or parts.queue_ns):
            return 0.0
        known = [part for part in (parts.queue_ns, parts.host_ns) if isinstance(part, int)]
        rows = [row.total_ns for row in self.attribution.overhead if row.place not in _NO_OVERHEAD]
        return sum(rows or known) / self.iterations

    @cached_property
    def overhead_scale(self) -> float:
        """Factor for measured overhead, so that it adds up to the invocation with the kernels."""
        left_ns = max(0.0, self.elapsed_ns - self.kernels_ns)
        return min(1.0, left_ns / self._measured_overhead_ns) if self._measured_overhead_ns else 1.0

    def overhead_of(self, row: Overhead) -> float:
        """Time of a place between kernels."""
        return row.total_ns / self.iterations * self.overhead_scale

    @cached_property
    def calls(self) -> float:
        """Number of kernel calls."""
        return sum(dispatch.calls for dispatch in self.dispatches)

    @cached_property
    def dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches that ran, the most expensive first."""
        typical = [
            (result, wall_ns, wall_ns * cpu_part)
            for result in self.attribution.sites
            for wall_ns, cpu_part in [self._typical_times(result)]
            if wall_ns
        ]
        total_ns = sum(wall_ns for _, wall_ns, _ in typical)
        measured = self.attribution.run.elapsed.kernels_ns
        kernels_ns = measured / self.iterations if self.iterations and isinstance(measured, int) else total_ns
        # Dispatches may overlap, so their times may add up to more than the time of kernels.
        scale = min(1.0, kernels_ns / total_ns, self.elapsed_ns / total_ns) if total_ns else 1.0
        facts: dict[str, KernelFacts] = {}
        dispatches = []
        for result, wall_ns, cpu_ns in typical:
            site = self.graph.site_by_id[result.site]
            if site.kernel not in facts:
                facts[site.kernel] = KernelFacts(self.evidence, self.graph.kernel_by_name[site.kernel])
            calls = result.calls / self.iterations if isinstance(result.calls, int) else 0.0
            dispatches.append(Dispatch(site, result, wall_ns * scale, cpu_ns, calls, facts[site.kernel]))
        return tuple(sorted(dispatches, key=lambda dispatch: -dispatch.wall_ns))

    def _typical_times(self, result: SiteResult) -> tuple[float, float]:
        """Wall time of a dispatch in a typical invocation, 0 if unknown; the CPU time as a multiple of it."""
        wall, cpu = result.metrics.get("duration_ns"), result.metrics.get("cpu_ns")
        if not (wall and wall.total and isinstance(result.calls, int) and result.calls and self.iterations):
            return 0.0, 0.0
        mean_ns = wall.total / self.iterations
        median_ns = wall.per_call.median * result.calls / self.iterations if wall.per_call else mean_ns
        return min(mean_ns, median_ns), cpu.total / wall.total if cpu and cpu.total else 1.0

    @property
    def hot(self) -> Iterator[Dispatch]:
        """The dispatches that take enough time for advice of their own, at most `_MOST_DISPATCHES`."""
        few = self.dispatches[:_MOST_DISPATCHES]
        return (dispatch for dispatch in few if dispatch.wall_ns > _LEAST_PART * LEAST_SHARE * self.elapsed_ns)

    def dispatch_of(self, site: str) -> Dispatch | None:
        """The dispatch of a site, if it ran."""
        return self._by_site.get(site)

    @cached_property
    def _by_site(self) -> Mapping[str, Dispatch]:
        return {dispatch.site.id: dispatch for dispatch in self.dispatches}

    @property
    def is_for_any_cpu(self) -> bool:
        """Whether the kernels are compiled for any CPU, without the vector registers of this one."""
        return any(flag.endswith("-target-cpu=generic") for flag in self.graph.module.flags)

    def memory_ns(self, traffic: float, footprint: float) -> float:
        """Time of one core for memory traffic, if the data of a call has the size `footprint`; 0 if unknown."""
        if self.peaks is None:
            return 0.0
        rate = self.peaks.bytes_per_second
        for cache in self.peaks.caches:
            if footprint > cache.bytes:
                rate = cache.bytes_per_second
        return traffic / rate * 1e9

    def compute_ns(self, operations: float) -> float:
        """Time of one core for arithmetic operations at its peak; 0 if unknown."""
        return operations / self.peaks.operations_per_second * 1e9 if self.peaks else 0.0

    def roofline_ns(self, dispatch: Dispatch) -> float:
        """CPU time of a dispatch at the roofline, in all its calls; 0 if unknown."""
        memory = self.memory_ns(dispatch.bytes, dispatch.bytes)
        return max(self.compute_ns(dispatch.operations), memory) * dispatch.calls

    def place(self, op: OpId) -> str:
        """The source line of an op: `rnn.py:14`."""
        known = self.graph.op_by_id[op]
        if frame := python_frame(self.graph, known):
            return f"{PurePath(frame.file).name}:{frame.line}"
        file = known.file if isinstance(known.file, str) else "model"
        return (
            f"{PurePath(file).name}:{known.line}" if isinstance(known.line, int) else f"{op} of {PurePath(file).name}"
        )

    def share(self, nanoseconds: float) -> str:
        """A time as a share of the invocation."""
        return format_share(round(nanoseconds), max(1, round(self.elapsed_ns)))

    def command(self, *words: object) -> str:
        """A command of tracemap, for a shell."""
        return shlex.join(("tracemap", *map(str, words)))

    def of_runs(self, name: str, *options: object) -> str:
        """A command on the runs."""
        runs = self.evidence.runs
        names = (*runs, "--map", self.bundle) if runs else (self.bundle,)
        return self.command(name, *names, *options)

    def recording(self, *options: object) -> str:
        """A command that records the program again, with the function and inputs of the run."""
        return self.command("record", self.bundle, *self._call, *options)

    @cached_property
    def _call(self) -> tuple[str, ...]:
        """The options that select the function and the inputs of the run, where `record` would choose others."""
        functions, run = self.graph.functions, self.attribution.run
        function = next((function for function in functions if function.name == run.function), None)
        if function is None:
            return ()
        named = ("--function", function.name) if len(functions) > 1 else ()
        if len(run.inputs) != len(function.arguments):
            return named
        specs = [
            _spec(argument.type, description)
            for argument, description in zip(function.arguments, run.inputs, strict=True)
        ]
        names = [""] * len(specs) if all(specs) else [f"{argument.name}=" for argument in function.arguments]
        return (*named, *(f"--input={name}{spec}" for name, spec in zip(names, specs, strict=True) if spec))

    @property
    def bundle(self) -> str:
        """The bundle's folder, for commands."""
        return str(self.evidence.bundle)


def _spec(declared: str, description: str) -> str:
    """The value for `--input` of an argument, by its description in a run's header; "" if `record` generates it.

    >>> _spec("tensor<?x4xf32>", "8x4xf32: random in [0, 0.1), seed 0 (made up)"), _spec("tensor<i32>", "i32=4")
    ('8x4xf32=0.05', 'i32=4')
    """
    shape, separator, _ = description.partition(": ")
    if not separator:
        return description
    is_saved = description.endswith("kept in the bundle")
    if is_saved or "?" not in declared:
        return ""
    return f"{shape}={0.05 if _FLOAT.search(shape) else 0}"


_FLOAT: Final = re.compile(r"x?b?f\d+$")
_NO_OVERHEAD: Final = (OverheadPlace.OUTLIERS, OverheadPlace.PROFILER, OverheadPlace.UNEXPLAINED)
"""Places whose time is none of the program's own overhead."""


def invocation_ns(attribution: Attribution) -> float:
    """Mean time of an invocation without outliers, to which gains refer; 0 if it is unknown."""
    try:
        return float(program_ns(attribution))
    except UsageInvalid:
        run = attribution.run
    elapsed_ns, iterations, median_ns = run.elapsed_ns, run.iterations, run.invocation.median_ns
    known = isinstance(elapsed_ns, int) and isinstance(iterations, int) and iterations
    mean_ns = elapsed_ns / iterations if known and len(attribution.functions) <= 1 else 0.0  # type: ignore[operator]
    return min(mean_ns, float(median_ns)) if isinstance(median_ns, int) and median_ns else mean_ns


LEAST_SHARE: Final = 0.01
"""Least share of the time that advice gains."""
_LEAST_PART: Final = 0.2
"""Least part of that share for a single dispatch, since several may have the same cause."""
_UNKNOWN_NOISE: Final = 0.05
"""Assumed noise of a run with too few invocations for an interval."""
_MOST_NOISE: Final = 0.05
"""Most noise to compare with, since the figures of one run are relative to one another."""
_MOST_DISPATCHES: Final = 64
"""Most dispatches that rules examine, the most expensive first."""
