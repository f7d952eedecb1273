"""`tracemap record`: run a compiled module under the profiler and write what was measured, as a run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracemap._version import __version__
from tracemap.capture.benchmark import count_workers
from tracemap.capture.counters.choosing import events_to_count, in_passes
from tracemap.capture.counters.events import Event
from tracemap.capture.execution import Execution, add_counts, check_hook, timed_execution
from tracemap.capture.peaks import measure_peaks
from tracemap.capture.plan import Plan, RecordRequest, make_plan
from tracemap.capture.reserving import reserved
from tracemap.capture.sampling import add_samples
from tracemap.capture.simulating import CacheSimulation, add_caches
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed
from tracemap.measurements.events import EventTable
from tracemap.measurements.model import RunHeader
from tracemap.measurements.runfile import write_run
from tracemap.measurements.sql import open_database
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Integer

_RUNTIME = "iree-base-runtime"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was written: where, its header, and how many events it has."""

    path: Path
    header: RunHeader
    events: int


def record(request: RecordRequest, progress: Progress = no_progress) -> Recorded:
    """Run the module and write the run.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        TargetExists: the output exists and `force` is not set, or another recording is making it.
        TargetUnwritable: the output cannot be written.
        ProgramFailed: the program failed; what it recorded until then is kept where the message says.
        ToolMissing: the runtime's tools are not installed.
        EventUnavailable: one of the counters is not known or cannot be counted here.
        UsageInvalid: flags that do not go together.
    """
    if request.reservation is None:
        with reserved(request.output, force=request.options.force) as reservation:
            return record(replace(request, reservation=reservation), progress)
    passes = _passes(request)
    with temporary_folder() as folder:
        progress("making inputs")
        return _run(make_plan(request, request.reservation.profile, folder), passes, progress)


def _passes(request: RecordRequest) -> list[tuple[Event, ...]]:
    """The events to count in each further execution; whether they can be counted is found out before anything runs."""
    if request.options.counters or request.options.sample_hz:
        check_hook()
    return in_passes(events_to_count(request.options.counters), request.options.counters_per_pass)


def _run(plan: Plan, passes: Sequence[Sequence[Event]], progress: Progress) -> Recorded:
    output = plan.request.output
    with open_database() as connection:
        execution = timed_execution(plan, connection, progress)
        events = execution.profile.events
        about = list(_about(plan, execution))
        about += execution.profile.diagnostics
        # A program that failed once would fail again, and is worth no more than what it recorded.
        if passes and not execution.ending.failed:
            progress("counting events")
            about += add_counts(events, lambda profile: plan.command(profile, execution.more), passes)
        if plan.options.sample_hz:  # after the counts, which are of dispatches only
            trouble = execution.ending.of_hook
            about += add_samples(events, execution.samples, plan.request.module, plan.options.sample_hz, trouble)
        if plan.request.caches is not None and not execution.ending.failed:
            about += _add_caches(plan, events, plan.request.caches, progress)
        progress("measuring the machine")
        header = _header(plan, execution, about)
        progress("writing the run")
        write_run(header, events.in_order(), output, force=plan.options.force)
    plan.profile.unlink(missing_ok=True)
    if execution.ending.failed:
        raise ProgramFailed(f"{execution.failure(plan.entry)}; what it recorded until then is in {output}")
    return Recorded(output, header, execution.profile.event_count)


def _about(plan: Plan, execution: Execution) -> Iterator[Diagnostic]:
    """What the way in which the program ended says of the run."""
    if execution.ending.failed:
        yield Diagnostic("program-killed", execution.failure(plan.entry))
    if execution.profile.event_count == 0:
        yield Diagnostic("no-events", f"{plan.entry.name} ran without any work on the device")


def _add_caches(plan: Plan, events: EventTable, caches: CacheSimulation, progress: Progress) -> tuple[Diagnostic, ...]:
    try:
        return add_caches(events, plan.simulated, caches, progress)
    except BaseException:  # what was timed would pass for a run that was asked for
        plan.profile.unlink(missing_ok=True)
        raise


def _header(plan: Plan, execution: Execution, about: Sequence[Diagnostic]) -> RunHeader:
    request, profile = plan.request, execution.profile
    return RunHeader(
        module_sha256=request.module_sha256,
        bundle=request.bundle,
        command=execution.command,
        function=plan.entry.name,
        device=plan.device,
        workers=count_workers(plan.device, plan.flags),
        clock=profile.clock,
        iterations=_iterations(plan, execution),
        warmup=plan.options.warmup,
        elapsed_ns=_elapsed_ns(plan, execution),
        inputs=tuple(given.said for given in plan.inputs),
        peaks=measure_peaks(),
        programs=profile.programs,
        buffers=profile.buffers,
        tools=(f"tracemap {__version__}", f"{_RUNTIME} {_runtime_version()}"),
        diagnostics=tuple(about),
    )


def _runtime_version() -> str:
    try:
        return importlib.metadata.version(_RUNTIME)
    except importlib.metadata.PackageNotFoundError:  # the programs were found on PATH
        return "of unknown version"


def _iterations(plan: Plan, execution: Execution) -> Integer:
    if not execution.ending.failed:
        return plan.options.iterations
    recorded = execution.profile.invocations
    return max(0, recorded - plan.options.warmup) if isinstance(recorded, int) else UNKNOWN


def _elapsed_ns(plan: Plan, execution: Execution) -> Integer:
    """Wall time of the measured iterations.

    The benchmark's own clock covers all calls from begin to end, but gives one sum with the warm-up in it; the profile
    knows when the warm-up was over (the first submission after it), but not when the last call returned. So: the sum,
    less what passed between the first submission and the first one after the warm-up.
    """
    span = execution.profile.span
    begin, end = span.measured_ns, span.last_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    total = execution.ending.total_ns
    if not isinstance(total, int):
        return recorded
    if isinstance(span.first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - span.first_ns))
    # Nothing was submitted, or calls cannot be told apart: the warm-up counts as any other call.
    return round(total * plan.options.iterations / plan.calls)
