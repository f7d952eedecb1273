"""Measurements after timing: counters, samples and simulated caches in further executions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tracemap.capture.benchmark import HOST_DEVICES, run_benchmark
from tracemap.capture.counters import Event
from tracemap.capture.plan import Plan
from tracemap.capture.stopping_rule import LEAST_WARMUP
from tracemap.core.diagnostics import INTERRUPTED, Diagnostic, has_slug
from tracemap.core.errors import ProgramFailed, RunEmpty, RunInvalid, ToolMissing, UsageInvalid
from tracemap.core.process.signals import confirm_signal, pending_signal
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, plural
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.runs.events import EventTable
from tracemap.runs.hook.calls import load_calls
from tracemap.runs.hook.recording import HookRecording, read_recording
from tracemap.runs.model import DeviceTime
from tracemap.runs.readers.iree_profile import load_profile
from tracemap.runs.sql import first_integer, quoted
from tracemap.runs.statistics import median_of

# ---- counting
#
# Count events in additional executions under the hook, after the timed one.
#
# Counting slows calls down, so times and counts come from different executions of the same program. Events that do not
# fit into the processor's counters together get one execution each. Within an execution, the hook's calls are joined
# to the profile's dispatches by kernel and start order. Across executions, dispatches are joined by kernel and
# submission order, which the program itself determines. If a profile lacks dispatches of a kernel (a busy machine may
# flush it too late), start order is used, provided that no calls of the kernel overlap. Dispatches that do not match
# have no counts, and a diagnostic says so.


Command = Callable[[Path], list[str]]
"""The command line that writes its profile to this path."""


def check_hook() -> None:
    """Check before the run that the hook can be used.

    Raises:
        ToolMissing: its library was not built; the message says what to install.
    """
    try:
        library_path()
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error


@dataclass(frozen=True)
class _Pass:
    """One execution under the hook: its events and the hook's recording.

    `missing`: dispatches without counts. `by_order`: kernels whose counts are assigned by start order alone.
    """

    events: Sequence[Event]
    recording: HookRecording
    missing: int
    by_order: int

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """Diagnostics about this execution."""
        yield from self.recording.diagnostics
        if self.by_order:
            text = (
                f"the profile of the counted execution lacks dispatches; counts of {plural(self.by_order, 'kernel')} "
                "are assigned to dispatches by start order (inferred)"
            )
            yield Diagnostic("counters-by-order", text)
        if self.missing:
            text = f"{plural(self.missing, 'dispatch')} have no counts: the executions differed"
            yield Diagnostic("counters-unmatched", text)


def add_counts(
    timed: EventTable, command: Command, passes: Sequence[Sequence[Event]], niceness: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Run again under the hook, once per pass, and add a column per event to the timed dispatches.

    Args:
        timed: the events of the timed execution.
        command: the program to run.
        passes: the events to count in each execution, from `counters.choosing.split_into_passes`.
        niceness: niceness of the program; UNKNOWN: our own.

    Raises:
        ProgramFailed: an execution failed.
    """
    finished: list[_Pass] = []
    diagnostics: list[Diagnostic] = []
    for events in passes:
        try:
            try:
                counted = _count(timed, command, events, niceness, must_be_whole=True)
            except RunInvalid:  # the profile is damaged, as may happen with flushes on a timer
                counted = _count(timed, command, events, niceness, must_be_whole=False)
        except ProgramFailed as error:
            if not (error.interrupted and finished):
                raise
            diagnostics.append(Diagnostic(INTERRUPTED, "counts of earlier executions are kept"))
            break
        if isinstance(counted, str):
            why = counted or "no executable ran on the CPU"
            return (Diagnostic("no-counters", f"no events were counted: {why}"),)
        finished.append(counted)
        diagnostics += counted.diagnostics
    return (_counting_diagnostic(finished), *dict.fromkeys(diagnostics))


def _count(
    timed: EventTable, command: Command, events: Sequence[Event], niceness: Integer, *, must_be_whole: bool
) -> _Pass | str:
    """Run once under the hook and add its counts. If it recorded nothing, return its error messages.

    Raises:
        ProgramFailed: the program failed.
        RunInvalid: its profile is damaged, or incomplete though `must_be_whole`; a second try may succeed.
    """
    with temporary_folder(_record_folder()) as folder:
        settings = HookSettings(events=tuple(event.setting for event in events))
        hook_variables = environment(folder, settings)
        ending = run_benchmark(command(folder / "counted.ireeprof"), hook_variables, niceness=niceness)
        ending.check("the execution under the hook, for counters,")
        try:
            recording = read_recording(folder)
        except RunEmpty:
            return ending.hook_messages
        path = folder / "counted.ireeprof"
        profile = load_profile(path, timed.connection, "counted_events", must_be_whole=must_be_whole)
        if must_be_whole and profile.lost_records:
            raise RunInvalid(f"{path}: records were lost")
        load_calls(recording, timed.connection)
        query, by_order = _joined_counts(timed, profile.events, events)
        missing = timed.add_counts(query, [event.name for event in events])
        return _Pass(events, recording, missing, by_order)


def _record_folder() -> Path | None:
    """/dev/shm if it has plenty of space: recording there costs half as much as on a disk. None: the usual folder."""
    with suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _PLENTY_BYTES and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return None


_MEMORY = Path("/dev/shm")
_PLENTY_BYTES = 4 << 30

# The k-th dispatch of a kernel by start time gets the hook's k-th call of that kernel. Calls before the first event of
# the profile are load-time work, which no profile contains; the slack allows for the hook's clock calibration. If the
# profile has fewer dispatches of a kernel than the hook, it lost some. Then start order is used, but only for kernels
# whose dispatches start in submission order, each after the previous one has ended.
_CALLED = """
CREATE OR REPLACE TEMP TABLE counted_calls AS
WITH called AS (
    SELECT kernel, call, workgroups_x, workgroups_y, workgroups_z, min(start_ns) AS start_ns,
        max(start_ns + duration_ns) AS end_ns, {sums}
    FROM hook_calls WHERE start_ns >= (SELECT min(start_ns) - {slack_ns} FROM {events}) GROUP BY ALL
)
SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, call) AS started FROM called
"""
# Whether a row starts after all earlier rows of its kernel, in a given order, have ended.
_STARTS_AFTER_EARLIER = (
    "start_ns >= coalesce(max({end}) OVER (PARTITION BY kernel ORDER BY {order} "
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ns)"
)
_KERNELS = """
CREATE OR REPLACE TEMP TABLE counted_kernels AS
WITH hooked AS (
    SELECT kernel, count(*) AS calls, bool_and(is_apart) AS are_apart
    FROM (SELECT kernel, {call_is_apart} AS is_apart FROM counted_calls)
    GROUP BY kernel
), profiled AS (
    SELECT kernel, count(*) AS calls FROM {counted} AS dispatch WHERE {has_work} GROUP BY kernel
), timed AS (
    SELECT kernel, count(*) AS calls, bool_and(is_next) AS are_in_order
    FROM (SELECT kernel, {dispatch_is_next} AS is_next FROM {timed} AS dispatch WHERE {has_work})
    GROUP BY kernel
)
SELECT kernel, hooked.calls = profiled.calls IS TRUE AS is_whole,
    hooked.calls = timed.calls AND are_apart AND are_in_order IS TRUE AS is_ordered
FROM hooked LEFT JOIN profiled USING (kernel) LEFT JOIN timed USING (kernel)
"""
_COUNTS = """
SELECT kernel, submitted, {counts}
FROM (SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY start_ns, row) AS started
      FROM {counted} AS dispatch WHERE {has_work})
JOIN counted_calls USING (kernel, started, workgroups_x, workgroups_y, workgroups_z)
SEMI JOIN (FROM counted_kernels WHERE is_whole) AS whole USING (kernel)
UNION ALL
SELECT kernel, submitted, {counts}
FROM (SELECT *, row_number() OVER (PARTITION BY kernel ORDER BY submitted) AS started
      FROM {timed} AS dispatch WHERE {has_work})
JOIN counted_calls USING (kernel, started, workgroups_x, workgroups_y, workgroups_z)
SEMI JOIN (FROM counted_kernels WHERE is_ordered AND NOT is_whole) AS ordered USING (kernel)
"""
_HAS_WORK = "workgroups_x * workgroups_y * workgroups_z > 0"
_SLACK_NS = 10_000


def _joined_counts(timed: EventTable, counted: EventTable, events: Sequence[Event]) -> tuple[str, int]:
    """Assign the counts of an execution to the timed dispatches.

    Returns:
        A SELECT of kernel, submitted, and e0, e1 … per dispatch; and the number of kernels assigned by start order
        alone, since the profile of the counted execution lacks dispatches.
    """
    sums = ", ".join(f"sum({quoted(event.name)})::BIGINT AS e{number}" for number, event in enumerate(events))
    counts = ", ".join(f"e{number}" for number in range(len(events)))
    rows = {"timed": timed.dispatches, "counted": counted.dispatches, "has_work": _HAS_WORK}
    connection = timed.connection
    connection.execute(_CALLED.format(events=counted.name, sums=sums, slack_ns=_SLACK_NS))
    call_is_apart = _STARTS_AFTER_EARLIER.format(end="end_ns", order="started")
    dispatch_is_next = _STARTS_AFTER_EARLIER.format(end="start_ns + duration_ns", order="submitted")
    connection.execute(_KERNELS.format(**rows, call_is_apart=call_is_apart, dispatch_is_next=dispatch_is_next))
    by_order = "SELECT count(*) FROM counted_kernels WHERE is_ordered AND NOT is_whole"
    return _COUNTS.format(**rows, counts=counts), first_integer(connection, by_order)


def _counting_diagnostic(passes: Sequence[_Pass]) -> Diagnostic:
    costs = [
        thread.overhead_ticks * process.ns_per_tick
        for counted_pass in passes
        for process in counted_pass.recording.processes
        for thread in process.threads
    ]
    names = "; ".join(
        ", ".join(event.name + (" (user code only)" if event.user_only else "") for event in counted_pass.events)
        for counted_pass in passes
    )
    where = "in a second execution" if len(passes) == 1 else f"in {len(passes)} additional executions"
    calls = max(counted_pass.recording.call_count for counted_pass in passes)
    return Diagnostic(
        "counted-apart",
        f"{names}: counted {where} under the hook, which added about {max(costs):.0f} ns to each of "
        f"{plural(calls, 'call')} of workgroups; times come from the first execution",
    )


# ---- comparing
#
# Times of the same program on other devices of the host, without the profiler.
#
# All devices run the same machine code; they differ in scheduling and synchronization. The program times each
# call by its own clock. The result is their median, as for recorded calls: a few delayed calls would distort a mean.


_TIME_LIMIT_NS: Final = 600_000_000
"""Time limit for the calls on one device; enough for the median."""
_FEWEST, _MOST = 5, 10_000
"""Limits of the number of calls per device, warm-up included. The program's report has half a kilobyte per call."""


def devices_to_time(asked: Sequence[str], own: str) -> tuple[str, ...]:
    """The devices to compare, without duplicates: the requested ones and the run's own. Empty if none is requested.

    Raises:
        UsageInvalid: a device does not run the same kernels, or there is no other device to compare.
    """
    devices = tuple(dict.fromkeys((*asked, own))) if asked else ()
    for device in devices:
        if device not in HOST_DEVICES:
            raise UsageInvalid(
                f"--compare-devices {device!r}: choose from {' and '.join(sorted(HOST_DEVICES))}, "
                "which run the same kernels"
            )
    if devices == (own,):
        others = " or ".join(sorted({*HOST_DEVICES} - {own}))
        raise UsageInvalid(f"--compare-devices {own}: the run already uses {own}; name another device: {others}")
    return devices


def device_times(plan: Plan, call_ns: Integer, progress: Progress) -> tuple[DeviceTime, ...]:
    """Time calls on each compared device, in the order of the option.

    Args:
        plan: the program, with its inputs and flags.
        call_ns: approximate time of a call; determines the number of calls.
        progress: receives a line of text per step.

    Raises:
        ProgramFailed: the program fails on a device.
    """
    names = devices_to_time(plan.options.compare_devices, plan.call.device)
    limit_ns = min(_TIME_LIMIT_NS, plan.options.seconds * 1e9 / max(1, len(names)))
    return tuple(_device_time(plan, device, call_ns, limit_ns, progress) for device in names)


def unprofiled_time(plan: Plan, call_ns: Integer, progress: Progress) -> tuple[DeviceTime, ...]:
    """The time of calls on the run's own device without the profiler, in a tenth of the time limit; empty if it fails.

    Raises:
        ProgramFailed: Ctrl-C ended the program.
    """
    limit_ns = min(_TIME_LIMIT_NS, plan.options.seconds * 1e8)
    try:
        return (_device_time(plan, plan.call.device, call_ns, limit_ns, progress),)
    except ProgramFailed as error:
        if error.interrupted:
            raise
        return ()


def _device_time(plan: Plan, device: str, call_ns: Integer, limit_ns: float, progress: Progress) -> DeviceTime:
    import numpy as np

    about_ns = max(1, call_ns) if isinstance(call_ns, int) else _TIME_LIMIT_NS
    calls = max(_FEWEST, min(_MOST, int(limit_ns / about_ns)))
    progress(f"timing {plan.call.entry.name} on {device}, {calls} calls")
    ending = run_benchmark(plan.unprofiled(device, calls), niceness=plan.niceness)
    ending.check(f"{plan.call.entry.name} on {device}")
    if not ending.means_ns:
        raise ProgramFailed(f"{plan.call.entry.name} on {device} did not report the times of its calls")
    times_ns = np.array(ending.means_ns, dtype=np.int64)
    measurement = times_ns[min(LEAST_WARMUP, len(times_ns) // 2) :]
    median = median_of(measurement)
    return DeviceTime(device, median.value, median.low, median.high, len(measurement), 1)


# ---- optional measurements
#
# Measurements in additional executions after timing. Ctrl-C skips the rest and keeps the timings.


_Measured = TypeVar("_Measured")


class OptionalMeasurements:
    """Run measurements one by one until the user presses Ctrl-C, and report the skipped ones."""

    def __init__(self, *, interrupted: bool) -> None:
        """`interrupted`: the user has already pressed Ctrl-C."""
        self._interrupted = interrupted
        self._left_out: list[str] = []

    def measure(self, name: str, measurement: Callable[[], tuple[_Measured, ...]]) -> tuple[_Measured, ...]:
        """Run one measurement; empty if Ctrl-C ends it or has ended an earlier one.

        Args:
            name: its name for the report; "" for one that the user did not ask for, which is not reported.
            measurement: returns what it measures.

        Raises:
            ProgramFailed: the program failed by itself.
        """
        if not (self._interrupted or pending_signal()):
            try:
                return measurement()
            except ProgramFailed as error:
                if not error.interrupted:
                    raise
        self._interrupted = True
        if name:
            self._left_out.append(name)
        return ()

    def add(self, name: str, addition: Callable[[], tuple[Diagnostic, ...]]) -> tuple[Diagnostic, ...]:
        """Add one measurement's rows to the events; it may report itself that Ctrl-C cut it short."""
        diagnostics = self.measure(name, addition)
        if has_slug(diagnostics, INTERRUPTED):
            self._interrupted = True
            self._left_out.append(f"some of the {name}")
        return tuple(diagnostic for diagnostic in diagnostics if diagnostic.slug != INTERRUPTED)

    @property
    def diagnostics(self) -> Iterator[Diagnostic]:
        """The diagnostic about skipped measurements, if any."""
        if self._left_out:
            text = f"Ctrl-C after the timing: the run has no {' and '.join(self._left_out)}"
            yield Diagnostic(INTERRUPTED, text)

    def check(self, name: str, path: object) -> None:
        """Raise ProgramFailed if Ctrl-C ended the recording; the message says where the run is."""
        if not (self._interrupted or pending_signal()):
            return
        confirm_signal()
        missing = f", without {' and '.join(self._left_out)}" if self._left_out else ""
        error = ProgramFailed(f"the recording of {name} was interrupted; the timings are in {path}{missing}")
        error.interrupted = True
        raise error
