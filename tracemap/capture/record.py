"""`tracemap record`: run a compiled module under the profiler and write what was measured, as a run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from tracemap._version import __version__
from tracemap.capture.benchmark import check_profiles, count_workers
from tracemap.capture.comparing import compared, devices_to_time
from tracemap.capture.counters.choosing import events_to_count, in_passes
from tracemap.capture.counters.events import Event
from tracemap.capture.counting import add_counts, check_hook
from tracemap.capture.disturbance import disturbed, observed, unseen
from tracemap.capture.enough import Outcome, still_changing
from tracemap.capture.execution import Execution, timed_execution
from tracemap.capture.geometry import geometry, line_bytes
from tracemap.capture.machine import this_machine
from tracemap.capture.peaks import measure_peaks
from tracemap.capture.plan import Plan, RecordRequest, make_plan
from tracemap.capture.reserving import reserved
from tracemap.capture.sampling import add_samples, samples_in_kernels
from tracemap.capture.simulating import CacheSimulation, add_caches
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ProgramFailed
from tracemap.measurements.circumstances import Disturbance
from tracemap.measurements.elapsed import Span, Stops, elapsed_parts, of_host_alone, parts_by_device
from tracemap.measurements.events import EventTable
from tracemap.measurements.ireeprof.records import EXPORT_MEMORY
from tracemap.measurements.medians import median_of
from tracemap.measurements.model import UNKNOWN_PARTS, Clock, ElapsedParts, Invocation, RunHeader
from tracemap.measurements.runfile import write_run
from tracemap.measurements.sql import fitting, open_database, spared_memory
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Integer, Text

_RUNTIME = "iree-base-runtime"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was written: where, its header, and how many events it has.

    `enough`: why no more calls were made, and what is known of the median one; empty where their number was given.
    `profile`: IREE's own, where it was kept; None: it was not.
    """

    path: Path
    header: RunHeader
    events: int
    enough: str = ""
    profile: Path | None = None


def record(request: RecordRequest, progress: Progress = no_progress) -> Recorded:
    """Run the module and write the run.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        TargetExists: the output exists and `force` is not set, or another recording is making it.
        TargetUnwritable: the output cannot be written.
        ProgramFailed: the program failed; what it recorded until then is kept where the message says.
        ToolMissing: the runtime's tools are not installed.
        ToolTooOld: they write no profiles.
        EventUnavailable: one of the counters is not known or cannot be counted here.
        UsageInvalid: flags that do not go together.
    """
    if request.reservation is None:
        options = request.options
        with reserved(request.output, force=options.force, keep=options.keep_profile) as reservation:
            return record(replace(request, reservation=reservation), progress)
    check_profiles()
    passes = _passes(request)
    with temporary_folder() as folder:
        progress("making inputs")
        plan = make_plan(request, request.reservation.profile, folder)
        devices_to_time(plan.options.compare_devices, plan.device)  # what cannot be compared is refused before it runs
        return _run(plan, passes, progress)


def _passes(request: RecordRequest) -> list[tuple[Event, ...]]:
    """The events to count in each further execution; whether they can be counted is found out before anything runs."""
    if request.options.counters or request.options.sample_hz:
        check_hook()
    return in_passes(events_to_count(request.options.counters), request.options.counters_per_pass)


def _run(plan: Plan, passes: Sequence[Sequence[Event]], progress: Progress) -> Recorded:
    output = plan.request.output
    remedy = "record fewer calls with --iterations"
    with fitting("the events", remedy), open_database(spared_memory(EXPORT_MEMORY)) as connection:
        execution = timed_execution(plan, connection, progress)
        about = list(_about(plan, execution))
        about += _add_what_was_seen(plan, execution, passes, progress)
        measured = _measured_span(execution)
        disturbance = observed(execution.watcher.looks, measured.begin_ns, measured.end_ns)
        outcome = _outcome(plan, execution, disturbance)
        calls_ns = _elapsed_ns(execution) if execution.profile.event_count else UNKNOWN  # else nothing tells their time
        about += _about_end(outcome, disturbance, calls_ns)
        call_ns = median_of(execution.times_ns[execution.warmup :]).value
        devices = () if execution.ending.failed else compared(plan, call_ns, progress)
        progress("measuring the machine")
        header = structs.replace(_header(plan, execution, about, disturbance), devices=devices)
        progress("writing the run")
        write_run(header, execution.profile.events.in_order(), output, force=plan.options.force)
    kept = plan.options.keep_profile and plan.profile.stat().st_size > 0
    if not kept:
        plan.profile.unlink(missing_ok=True)
    if execution.ending.failed:
        raise ProgramFailed(f"{execution.failure(plan.entry)}; what it recorded until then is in {output}")
    enough = outcome.sentence if outcome is not None and outcome.is_enough else ""
    return Recorded(output, header, execution.profile.event_count, enough, plan.profile if kept else None)


def _about(plan: Plan, execution: Execution) -> Iterator[Diagnostic]:
    """What the way in which the program ran says of the run."""
    if execution.ending.failed:
        yield Diagnostic("program-killed", execution.failure(plan.entry))
    if execution.profile.event_count == 0:
        yield Diagnostic("no-events", f"{plan.entry.name} ran without any work on the device")
    yield from execution.profile.diagnostics
    yield from execution.diagnostics


def _about_end(outcome: Outcome | None, disturbance: Disturbance, elapsed_ns: Integer) -> Iterator[Diagnostic]:
    """What is to be known of how well the run is measured."""
    if outcome is not None and not outcome.is_enough:
        yield Diagnostic("budget-spent", outcome.sentence)
    if (found := disturbed(disturbance) or unseen(disturbance, elapsed_ns)) is not None:
        yield found


def _add_what_was_seen(
    plan: Plan, execution: Execution, passes: Sequence[Sequence[Event]], progress: Progress
) -> Iterator[Diagnostic]:
    """Add counts, samples and simulated counts to what was timed.

    A program that failed once would fail again, and is worth no more than what it recorded.
    """
    events, calls, more = execution.profile.events, execution.calls, execution.more
    if passes and not execution.ending.failed:
        progress("counting events")
        yield from add_counts(events, lambda profile: plan.command(profile, calls, more), passes)
    if plan.sample_hz:  # after the counts, which are of dispatches only
        yield from _add_samples(plan, execution)
    if plan.request.caches is not None and not execution.ending.failed:
        yield from _add_caches(plan, events, plan.request.caches, progress)


def _add_caches(plan: Plan, events: EventTable, caches: CacheSimulation, progress: Progress) -> tuple[Diagnostic, ...]:
    try:
        return add_caches(events, plan.simulated, caches, progress)
    except BaseException:  # what was timed would pass for a run that was asked for
        plan.profile.unlink(missing_ok=True)
        raise


def _add_samples(plan: Plan, execution: Execution) -> tuple[Diagnostic, ...]:
    hz, trouble = plan.sample_hz, execution.ending.of_hook
    module, until_ns = plan.request.module, execution.until_ns
    return add_samples(execution.profile.events, execution.samples, module, hz, trouble, until_ns)


def _measured_span(execution: Execution) -> Span:
    """When the measured calls began and ended: by the program's own clock, else as far as the profile tells."""
    if (clocked := _clocked(execution)) is not None:
        return clocked
    span = execution.profile.span
    return Span(span.measured_ns, span.last_ns if execution.until_ns is UNKNOWN else execution.until_ns)


def _clocked(execution: Execution) -> Span | None:
    """The measured calls by the program's own clock; None: it does not tell when they began and ended.

    Of a program that was ended the profile tells more: when the first call began that is left out.
    """
    if execution.until_ns is not UNKNOWN:
        return None
    calls = len(execution.profile.begins_ns) if execution.profile.event_count else execution.calls
    if execution.stops is None or not execution.warmup < calls <= len(execution.stops.stopped_ns):
        return None
    begin, end = execution.stops.going_ns[execution.warmup], execution.stops.stopped_ns[calls - 1]
    return Span(int(begin), int(end))


def _outcome(plan: Plan, execution: Execution, disturbance: Disturbance) -> Outcome | None:
    """Why no more calls were made; None where their number was given, or the program failed."""
    cut, goal = execution.watcher.cut, plan.goal
    if cut is None or cut.why is None or goal is None or execution.ending.failed:
        return None
    measured = execution.times_ns[execution.warmup :]
    changing = still_changing(execution.times_ns, execution.warmup, goal.precision)
    samples = samples_in_kernels(execution.profile.events) if goal.sample_hz else UNKNOWN
    calls, size = execution.calls - execution.warmup, plan.profile.stat().st_size
    much = disturbed(disturbance) is not None
    return Outcome(cut.why, goal, calls, median_of(measured), samples, changing, size, much)


def _invocation(execution: Execution) -> Invocation:
    median, cut = median_of(execution.times_ns[execution.warmup :]), execution.watcher.cut
    why: Text = "iterations" if cut is None or cut.why is None else cut.why.value
    return Invocation(median.value, median.low, median.high, UNKNOWN if execution.ending.failed else why)


def _header(plan: Plan, execution: Execution, about: Sequence[Diagnostic], disturbance: Disturbance) -> RunHeader:
    request, profile, elapsed_ns = plan.request, execution.profile, _elapsed_ns(execution)
    return RunHeader(
        module_sha256=request.module_sha256,
        bundle=request.bundle,
        command=execution.command,
        function=plan.entry.name,
        device=plan.device,
        workers=count_workers(plan.device, plan.flags),
        clock=profile.clock,
        iterations=_iterations(execution),
        warmup=execution.warmup,
        elapsed_ns=elapsed_ns,
        elapsed=_elapsed_parts(execution, elapsed_ns),
        invocation=_invocation(execution),
        disturbance=disturbance,
        inputs=tuple(given.said for given in plan.inputs),
        peaks=measure_peaks(),
        programs=profile.programs,
        buffers=profile.buffers,
        tools=tools_used(),
        diagnostics=tuple(about),
        line_bytes=line_bytes(geometry(()).caches),
        simulated_line_bytes=UNKNOWN if request.caches is None else line_bytes(request.caches.geometry.caches),
        machine=this_machine(),
    )


def _elapsed_parts(execution: Execution, elapsed_ns: Integer) -> ElapsedParts:
    """What the elapsed time went for. Of a device with a clock of its own the rows alone tell, on that clock.

    Where rows were lost nothing tells: their kernels would pass for time of the host.
    """
    profile = execution.profile
    if profile.lost_records:
        return UNKNOWN_PARTS
    if profile.clock is not Clock.HOST:
        return parts_by_device(profile.events, elapsed_ns)
    if (stops := _stops_alone(execution)) is not None:
        return of_host_alone(stops, execution.warmup, execution.calls)
    return elapsed_parts(profile.events, elapsed_ns, _measured_span(execution), execution.stops)


def _stops_alone(execution: Execution) -> Stops | None:
    """When the program stopped its clock, where nothing else tells of its calls; None: something does, or nothing."""
    return None if execution.profile.event_count or not execution.calls else execution.stops


def tools_used() -> tuple[str, ...]:
    """What records a run, with the versions."""
    try:
        version = importlib.metadata.version(_RUNTIME)
    except importlib.metadata.PackageNotFoundError:  # the programs were found on PATH
        version = "of unknown version"
    return (f"tracemap {__version__}", f"{_RUNTIME} {version}")


def _iterations(execution: Execution) -> Integer:
    if not execution.ending.failed:
        return execution.calls - execution.warmup
    recorded = execution.profile.invocations
    return max(0, recorded - execution.warmup) if isinstance(recorded, int) else UNKNOWN


def _elapsed_ns(execution: Execution) -> Integer:
    """Wall time of the measured iterations.

    Where the program's clock does not tell, the profile knows when the warm-up was over (the first submission after
    it), but not when the last call returned; and the program adds up all calls, warm-up included, but without what
    passes between them. So: what was recorded, or the program's sum, less what passed between the first submission and
    the first one after the warm-up, whichever is more. Of a program that was ended there is no such sum.
    """
    span, total, measured = execution.profile.span, execution.ending.total_ns, _measured_span(execution)
    begin, end = measured.begin_ns, measured.end_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    if not isinstance(total, int) or _clocked(execution) is not None:
        return recorded
    if isinstance(span.first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - span.first_ns))
    # Nothing was submitted, or calls cannot be told apart: the warm-up counts as any other call.
    return round(total * (execution.calls - execution.warmup) / execution.calls)
