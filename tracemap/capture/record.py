"""`tracemap record`: run a compiled module under the profiler and write what was measured, as a run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from tracemap._version import __version__
from tracemap.capture.benchmark import check_profiles, count_workers
from tracemap.capture.cache_simulation import CacheSimulation, add_caches
from tracemap.capture.counters.choosing import events_to_count, in_passes
from tracemap.capture.counters.events import Event
from tracemap.capture.counting import add_counts, check_hook
from tracemap.capture.execution import Execution
from tracemap.capture.launches import Launches, launched, outcome
from tracemap.capture.machine import geometry, line_bytes, measure_peaks, this_machine
from tracemap.capture.niceness import own_niceness
from tracemap.capture.noise import disturbed, unseen
from tracemap.capture.optional_measurements import Besides, compared, devices_to_time
from tracemap.capture.plan import Plan, RecordRequest, make_plan
from tracemap.capture.reserving import reserved
from tracemap.capture.sampling import add_samples
from tracemap.capture.stopping_rule import Outcome
from tracemap.diagnostics import PAUSED, Diagnostic
from tracemap.errors import ProgramFailed
from tracemap.measurements.events import EventTable
from tracemap.measurements.ireeprof.records import EXPORT_MEMORY
from tracemap.measurements.model import DeviceTime, Invocation, RunHeader, nice_words
from tracemap.measurements.runfile import write_run
from tracemap.measurements.sql import fitting, open_database, spared_memory
from tracemap.owned.children import paused_ns
from tracemap.owned.ending import answer, asked_by, putting_off
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Integer, Text, format_ns

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
        with putting_off():  # from the first launch on there is something to write
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
        paused_before_ns = paused_ns()
        launches = launched(plan, connection, progress)
        about_pauses = _about_pauses(paused_ns() - paused_before_ns)
        ending = launches.last.ending
        about = [*_about(plan, launches), *about_pauses]
        besides = Besides(interrupted=ending.interrupted)
        about += _add_what_was_seen(plan, launches, passes, besides, progress)
        found = outcome(plan.goal, launches)
        about += _about_end(found, launches, plan.niceness)
        devices = _devices(plan, launches, besides, progress)
        about += besides.diagnostics
        progress("measuring the machine")
        header = structs.replace(_header(plan, launches, found, about), devices=devices)
        plan.request.check()
        progress("writing the run")
        write_run(header, launches.joined.events.in_order(), output, force=plan.options.force)
    kept = plan.options.keep_profile and plan.profile.stat().st_size > 0
    if not kept:
        plan.profile.unlink(missing_ok=True)
    if ending.failed:
        if asked_by():
            answer()
        error = ProgramFailed(f"{launches.failure(plan.entry)}; what it recorded until then is in {output}")
        error.keeps_run = True
        raise error
    besides.check(plan.entry.name, output)
    enough = found.sentence if found is not None and found.is_enough else ""
    return Recorded(output, header, launches.event_count, enough, plan.profile if kept else None)


def _about(plan: Plan, launches: Launches) -> Iterator[Diagnostic]:
    """What the way in which the program ran says of the run."""
    if launches.last.ending.failed:
        yield Diagnostic("program-killed", launches.failure(plan.entry))
    if plan.batch.pieces == 1 and plan.batch.said:
        text = (
            f"{plan.entry.name} is synchronous, so that {' and '.join(plan.batch.said)} makes no batches of it: an "
            "invocation is one call of the function, and its time is not divided"
        )
        yield Diagnostic("batches-ignored", text)
    if launches.event_count == 0:
        yield Diagnostic("no-events", f"{plan.entry.name} ran without any work on the device")
    of_profiles = (told for each in launches.executions for told in (*each.profile.diagnostics, *each.diagnostics))
    yield from dict.fromkeys(of_profiles)
    yield from launches.diagnostics


def _about_end(found: Outcome | None, launches: Launches, niceness: Integer) -> Iterator[Diagnostic]:
    """What is to be known of how well the run is measured."""
    if found is not None and not found.is_enough:
        yield Diagnostic("budget-spent", found.sentence)
    elapsed_ns = launches.elapsed_ns if launches.event_count else UNKNOWN  # else nothing tells the time of its calls
    disturbance, count = launches.disturbance, len(launches.executions)
    told = disturbed(disturbance, niceness, elapsed_ns) or unseen(disturbance, elapsed_ns, count)
    if told is not None:
        yield told


def _about_pauses(pause_ns: int) -> Iterator[Diagnostic]:
    if pause_ns > 0:
        text = (
            f"the program was paused for {format_ns(pause_ns)}, which are part of the elapsed time: of means, and of "
            "what seems to be host, queue, profiler or kernels; medians are without it"
        )
        yield Diagnostic(PAUSED, text)


def _add_what_was_seen(
    plan: Plan, launches: Launches, passes: Sequence[Sequence[Event]], besides: Besides, progress: Progress
) -> Iterator[Diagnostic]:
    """Add counts, samples and simulated counts to what was timed, as far as Ctrl-C lets us.

    A program that failed once would fail again, and is worth no more than what it recorded.
    """
    execution, events = launches.first, launches.joined.events
    is_good = execution.is_whole or not execution.ending.failed
    if passes and is_good:
        progress("counting events")
        calls, more = execution.calls, execution.more
        yield from besides.add(
            "counts of events",
            lambda: add_counts(events, lambda profile: plan.command(profile, calls, more), passes, plan.niceness),
        )
    if plan.sample_hz:  # after the counts, which are of dispatches only
        yield from _add_samples(plan, execution)
    if (caches := plan.request.caches) is not None and is_good:
        yield from besides.add("simulated counts", lambda: _add_caches(plan, events, caches, progress))


def _devices(plan: Plan, launches: Launches, besides: Besides, progress: Progress) -> tuple[DeviceTime, ...]:
    """The times of other devices, where they were asked for and the program did not fail."""
    ending, is_asked = launches.last.ending, bool(plan.options.compare_devices)
    if not is_asked or (ending.failed and not launches.last.is_whole):
        return ()
    return besides.measure("times of other devices", lambda: compared(plan, launches.median.value, progress))


def _add_caches(plan: Plan, events: EventTable, caches: CacheSimulation, progress: Progress) -> tuple[Diagnostic, ...]:
    try:
        return add_caches(events, plan.simulated, caches, progress)
    except BaseException as error:
        if not (isinstance(error, ProgramFailed) and error.interrupted):
            plan.profile.unlink(missing_ok=True)  # what was timed would pass for a run that was asked for
        raise


def _add_samples(plan: Plan, execution: Execution) -> tuple[Diagnostic, ...]:
    hz, trouble = plan.sample_hz, execution.ending.of_hook
    module, until_ns = plan.request.module, execution.until_ns
    return add_samples(execution.profile.events, execution.samples, module, hz, trouble, until_ns)


def _invocation(launches: Launches, found: Outcome | None) -> Invocation:
    median, cut = launches.median, launches.last.watcher.cut
    why: Text = "iterations" if cut is None or cut.why is None else cut.why.value
    if found is not None:
        why = found.why.value
    elif launches.diagnostics:
        why = launches.diagnostics[0].slug
    return Invocation(median.value, median.low, median.high, UNKNOWN if launches.last.ending.failed else why)


def _header(plan: Plan, launches: Launches, found: Outcome | None, about: Sequence[Diagnostic]) -> RunHeader:
    request = plan.request
    return RunHeader(
        module_sha256=request.module_sha256,
        bundle=request.bundle,
        command=(*nice_words(own_niceness() if plan.niceness is UNKNOWN else plan.niceness), *launches.first.command),
        function=plan.entry.name,
        device=plan.device,
        workers=count_workers(plan.device, plan.flags),
        clock=launches.first.profile.clock,
        iterations=launches.calls,
        warmup=launches.warmup,
        launches=len(launches.executions),
        elapsed_ns=launches.elapsed_ns,
        elapsed=launches.elapsed,
        invocation=_invocation(launches, found),
        disturbance=launches.disturbance,
        inputs=tuple(given.said for given in plan.inputs),
        peaks=measure_peaks(),
        programs=launches.joined.programs,
        buffers=launches.joined.buffers,
        tools=tools_used(),
        diagnostics=tuple(about),
        line_bytes=line_bytes(geometry(()).caches),
        simulated_line_bytes=UNKNOWN if request.caches is None else line_bytes(request.caches.geometry.caches),
        machine=this_machine(),
        events=launches.joined.events.measured,
    )


def tools_used() -> tuple[str, ...]:
    """What records a run, with the versions."""
    try:
        version = importlib.metadata.version(_RUNTIME)
    except importlib.metadata.PackageNotFoundError:  # the programs were found on PATH
        version = "of unknown version"
    return (f"tracemap {__version__}", f"{_RUNTIME} {version}")
