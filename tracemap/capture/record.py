"""`tracemap record`: run a compiled module under the profiler and write the run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap._version import __version__
from tracemap.capture.benchmark import HOST_DEVICES, check_profiles, count_workers
from tracemap.capture.cache_simulation import CacheSimulation, add_caches
from tracemap.capture.counters import Event, events_to_count, split_into_passes
from tracemap.capture.counting import (
    OptionalMeasurements,
    add_counts,
    check_hook,
    device_times,
    devices_to_time,
    unprofiled_time,
)
from tracemap.capture.cuda import is_cuda
from tracemap.capture.gpu_counters import GpuEvent, add_gpu_counts, gpu_events_to_count
from tracemap.capture.launches import Launches, record_launches, stopping_outcome
from tracemap.capture.machine import geometry, line_bytes, machine_identity, measure_peaks
from tracemap.capture.noise import noise_diagnostic, own_niceness, unknown_noise_diagnostic
from tracemap.capture.plan import Plan, RecordRequest, make_plan
from tracemap.capture.run_names import reserve_run
from tracemap.capture.sampling import add_samples
from tracemap.capture.stopping_rule import StoppingOutcome
from tracemap.core.diagnostics import BUDGET_SPENT, PAUSED, Diagnostic
from tracemap.core.errors import ProgramFailed
from tracemap.core.process.children import paused_ns
from tracemap.core.process.signals import confirm_signal, interrupt_deferred, pending_signal
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import UNKNOWN, Integer, Text, format_ns, sum_of
from tracemap.runs.elapsed import summed_parts
from tracemap.runs.events import EventTable
from tracemap.runs.ireeprof.records import EXPORT_MEMORY
from tracemap.runs.model import ASSUMED_PEAKS, DeviceTime, Invocation, RunHeader, nice_prefix
from tracemap.runs.runfile import write_run
from tracemap.runs.sql import available_memory, explained_out_of_memory, open_database

_RUNTIME = "iree-base-runtime"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A written run: its path, its header, and the number of events.

    `enough`: why recording stopped, with the median invocation; empty if the number of calls was given.
    `profile`: IREE's own profile, with --keep-profile; None: not is_kept.
    """

    path: Path
    header: RunHeader
    events: int
    enough: str = ""
    profile: Path | None = None


def record(request: RecordRequest, progress: Progress = no_progress) -> RecordedRun:
    """Run the module and write the run.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be generated.
        TargetExists: the output exists and `force` is not set, or another recording is writing it.
        TargetUnwritable: the output cannot be written.
        ProgramFailed: the program failed; the message names the file with the events recorded until then.
        ToolMissing: the runtime's tools are not installed.
        ToolTooOld: they write no profiles.
        EventUnavailable: a counter is unknown or cannot be counted here.
        UsageInvalid: flags that do not go together.
    """
    if request.reservation is None:
        options = request.options
        with reserve_run(request.output, force=options.force, keep=options.keep_profile) as reservation:
            return record(replace(request, reservation=reservation), progress)
    passes: Sequence[Sequence[Event]] = ()
    gpu_events: Sequence[GpuEvent] = ()
    # The events to count, one tuple per additional execution: check that they can be counted before anything runs.
    if is_cuda(str(request.device)):
        gpu_events = gpu_events_to_count(request.options.counters)
    else:
        check_profiles()
        if request.options.counters or request.options.sample_hz:
            check_hook()
        passes = split_into_passes(events_to_count(request.options.counters), request.options.counters_per_pass)
    with temporary_folder() as folder:
        progress("generating inputs")
        plan = make_plan(request, request.reservation.profile, folder)
        devices_to_time(
            plan.options.compare_devices, plan.call.device
        )  # reject invalid devices before the program runs
        with interrupt_deferred():  # defer Ctrl-C: from the first launch on there is something to write
            return _run(plan, passes, gpu_events, progress)


def _run(
    plan: Plan, passes: Sequence[Sequence[Event]], gpu_events: Sequence[GpuEvent], progress: Progress
) -> RecordedRun:
    output = plan.request.output
    remedy = "record fewer calls with --iterations"
    with explained_out_of_memory("the events", remedy), open_database(available_memory(EXPORT_MEMORY)) as connection:
        paused_before_ns = paused_ns()
        launches = record_launches(plan, connection, progress)
        pause_ns, ending = paused_ns() - paused_before_ns, launches.last.ending
        diagnostics = [*_run_diagnostics(plan, launches)]
        if pause_ns > 0:
            text = (
                f"the program was paused for {format_ns(pause_ns)}; the pause is part of the elapsed time and of means "
                "(as host, queue, profiler or kernel time), but not of medians"
            )
            diagnostics.append(Diagnostic(PAUSED, text))
        optional = OptionalMeasurements(interrupted=ending.interrupted)
        diagnostics += _add_measurements(plan, launches, passes, optional, progress)
        diagnostics += _add_gpu_counts(plan, launches, gpu_events, optional, progress)
        outcome = stopping_outcome(plan.goal, launches)
        diagnostics += _stopping_diagnostics(outcome, launches, plan.niceness)
        devices: tuple[DeviceTime, ...] = ()
        if plan.options.compare_devices and (launches.last.is_whole or not ending.failed):
            devices = optional.measure(
                "times of other devices", lambda: device_times(plan, launches.median.value, progress)
            )
        unprofiled = devices
        if not devices and _is_slowed_down(plan, launches):
            unprofiled = optional.measure("", lambda: unprofiled_time(plan, launches.median.value, progress))
        diagnostics += optional.diagnostics
        if plan.on_cuda and launches.event_count:
            located = plan.request.locate(launches.joined.events.launched_work())
            launches.joined.events.set_sites(located.sites)
            diagnostics += located.diagnostics
        progress("measuring the machine")
        own_ns = next((time.median_ns for time in unprofiled if time.device == plan.call.device), UNKNOWN)
        header = _header(plan, launches, outcome, diagnostics, devices, own_ns)
        plan.request.check()
        progress("writing the run")
        write_run(header, launches.joined.events.in_order(), output, force=plan.options.force)
    is_kept = plan.options.keep_profile and plan.profile.stat().st_size > 0
    if not is_kept:
        plan.profile.unlink(missing_ok=True)
    if ending.failed:
        if pending_signal():
            confirm_signal()
        error = ProgramFailed(f"{launches.failure(plan.call.entry)}; the events recorded until then are in {output}")
        error.keeps_run = True
        raise error
    optional.check(plan.call.entry.name, output)
    enough = outcome.sentence if outcome is not None and outcome.is_enough else ""
    return RecordedRun(output, header, launches.event_count, enough, plan.profile if is_kept else None)


_OVERHEAD: Final = 0.1
"""Least part of the elapsed time without a kernel from which on it matters that the profiler makes it longer."""


def _is_slowed_down(plan: Plan, launches: Launches) -> bool:
    """Whether to measure the time without the profiler: much of the time is overhead, and the time limit decides."""
    elapsed = summed_parts([times.elapsed for times in launches.call_times])
    if plan.call.device not in HOST_DEVICES or plan.call.asynchronous or not isinstance(elapsed.kernels_ns, int):
        return False
    if isinstance(plan.options.iterations, int) or launches.last.ending.failed or launches.last.ending.interrupted:
        return False
    elapsed_ns = launches.elapsed_ns
    return isinstance(elapsed_ns, int) and 0 < elapsed.kernels_ns < (1 - _OVERHEAD) * elapsed_ns


def _run_diagnostics(plan: Plan, launches: Launches) -> Iterator[Diagnostic]:
    """Diagnostics about how the program ran."""
    if launches.last.ending.failed:
        yield Diagnostic("program-killed", launches.failure(plan.call.entry))
    if plan.batch.pieces == 1 and plan.batch.ignored:
        text = (
            f"{' and '.join(plan.batch.ignored)} has no effect: {plan.call.entry.name} is synchronous, so its "
            "invocations run and are timed one by one"
        )
        yield Diagnostic("batches-ignored", text)
    if launches.event_count == 0:
        yield Diagnostic("no-events", f"{plan.call.entry.name} ran no work on the device")
    profile_diagnostics = (
        diagnostic
        for execution in launches.executions
        for diagnostic in (*execution.profile.diagnostics, *execution.diagnostics)
    )
    yield from dict.fromkeys(profile_diagnostics)
    yield from launches.diagnostics


def _stopping_diagnostics(
    outcome: StoppingOutcome | None, launches: Launches, niceness: Integer
) -> Iterator[Diagnostic]:
    """Diagnostics about how precise and how noisy the measurement is."""
    if outcome is not None and not outcome.is_enough:
        yield Diagnostic(BUDGET_SPENT, outcome.sentence)
    elapsed_ns = launches.elapsed_ns if launches.event_count else UNKNOWN  # without events, call times are unknown
    observed, count = launches.noise, len(launches.executions)
    noise = noise_diagnostic(observed, niceness, elapsed_ns) or unknown_noise_diagnostic(observed, elapsed_ns, count)
    if noise is not None:
        yield noise


def _add_measurements(
    plan: Plan,
    launches: Launches,
    passes: Sequence[Sequence[Event]],
    optional: OptionalMeasurements,
    progress: Progress,
) -> Iterator[Diagnostic]:
    """Add counts, samples and simulated counts to the timed events, until Ctrl-C.

    After a failure nothing more runs, since the program would fail again.
    """
    execution, events = launches.first, launches.joined.events
    is_good = execution.is_whole or not execution.ending.failed
    if passes and is_good:
        progress("counting events")
        calls, more = execution.calls, execution.more
        yield from optional.add(
            "counts of events",
            lambda: add_counts(events, lambda profile: plan.command(profile, calls, more), passes, plan.niceness),
        )
    if plan.sample_hz:  # after the counts, which belong to dispatches only
        module, trouble = plan.request.module, execution.ending.hook_messages
        profile_events, until_ns = execution.profile.events, execution.until_ns
        yield from add_samples(profile_events, execution.samples, module, plan.sample_hz, trouble, until_ns)
    if (caches := plan.request.caches) is not None and is_good:
        yield from optional.add("simulated counts", lambda: _add_caches(plan, events, caches, progress))


def _add_gpu_counts(
    plan: Plan, launches: Launches, events: Sequence[GpuEvent], optional: OptionalMeasurements, progress: Progress
) -> tuple[Diagnostic, ...]:
    """Add counts of a GPU to the timed events, unless the program failed."""
    execution = launches.first
    if not events or (execution.ending.failed and not execution.is_whole):
        return ()
    progress("counting events on the GPU")
    batches = execution.calls // execution.batch
    return optional.add(
        "counts of events",
        lambda: add_gpu_counts(launches.joined.events, lambda: plan.command_on_cuda(batches), events, plan.niceness),
    )


def _add_caches(plan: Plan, events: EventTable, caches: CacheSimulation, progress: Progress) -> tuple[Diagnostic, ...]:
    try:
        return add_caches(events, plan.simulated, caches, progress)
    except BaseException as error:
        if not (isinstance(error, ProgramFailed) and error.interrupted):
            plan.profile.unlink(missing_ok=True)  # the timings alone are not the run that the user asked for
        raise


def _header(
    plan: Plan,
    launches: Launches,
    outcome: StoppingOutcome | None,
    diagnostics: Sequence[Diagnostic],
    devices: tuple[DeviceTime, ...],
    unprofiled_ns: Integer,
) -> RunHeader:
    request, median, cut = plan.request, launches.median, launches.last.watcher.cut
    reason: Text = "iterations" if cut is None or cut.reason is None else cut.reason.value
    if launches.last.ending.failed:
        reason = UNKNOWN
    elif outcome is not None:
        reason = outcome.reason.value
    elif launches.diagnostics:
        reason = launches.diagnostics[0].slug
    return RunHeader(
        module_sha256=request.module_sha256,
        bundle=request.bundle,
        command=(*nice_prefix(own_niceness() if plan.niceness is UNKNOWN else plan.niceness), *launches.first.command),
        function=plan.call.entry.name,
        device=plan.call.device,
        workers=count_workers(plan.call.device, plan.call.flags),
        clock=launches.first.profile.clock,
        iterations=sum_of(times.calls for times in launches.call_times),
        warmup=sum(execution.warmup for execution in launches.executions),
        launches=len(launches.executions),
        elapsed_ns=launches.elapsed_ns,
        elapsed=summed_parts([times.elapsed for times in launches.call_times]),
        invocation=Invocation(median.value, median.low, median.high, reason),
        noise=launches.noise,
        inputs=tuple(given.said for given in plan.call.inputs),
        peaks=launches.first.cuda.peaks or (ASSUMED_PEAKS if plan.on_cuda else measure_peaks()),
        programs=launches.joined.programs,
        buffers=launches.joined.buffers,
        tools=(*tools_used(), *launches.first.cuda.tools),
        diagnostics=tuple(diagnostics),
        devices=devices,
        line_bytes=line_bytes(geometry(()).caches),
        simulated_line_bytes=UNKNOWN if request.caches is None else line_bytes(request.caches.geometry.caches),
        machine=machine_identity(),
        events=launches.joined.events.measured,
        clocked_ns=launches.clocked_ns,
        unprofiled_ns=unprofiled_ns,
    )


def tools_used() -> tuple[str, ...]:
    """The tools that record a run, with their versions."""
    try:
        version = importlib.metadata.version(_RUNTIME)
    except importlib.metadata.PackageNotFoundError:  # the tools were found on PATH
        version = "(unknown version)"
    return (f"tracemap {__version__}", f"{_RUNTIME} {version}")
