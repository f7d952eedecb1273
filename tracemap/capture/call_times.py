"""Times of the measured calls of one execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracemap.capture.execution import Execution
from tracemap.capture.noise import observed
from tracemap.measurements.elapsed import Span, Stops, elapsed_parts, of_host_alone, parts_by_device
from tracemap.measurements.model import UNKNOWN_PARTS, Clock, Disturbance, ElapsedParts
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class CallTimes:
    """Measured calls of an execution: number, times, elapsed time with the gaps, its parts, and the noise."""

    calls: Integer
    times_ns: npt.NDArray[Any]
    elapsed_ns: Integer
    elapsed: ElapsedParts
    disturbance: Disturbance


def call_times(execution: Execution) -> CallTimes:
    """Analyze an execution, before rows of other executions are added to its events."""
    elapsed_ns, span = _elapsed_ns(execution), _span(execution)
    return CallTimes(
        _calls(execution),
        execution.times_ns[execution.warmup_batches :],
        elapsed_ns,
        _parts(execution, elapsed_ns, span),
        observed(execution.watcher.snapshots, span.begin_ns, span.end_ns),
    )


def _span(execution: Execution) -> Span:
    """Begin and end of the measured calls: by the program's own clock, else from the profile."""
    if (clock_span := _span_by_clock(execution)) is not None:
        return clock_span
    span = execution.profile.span
    return Span(span.measured_ns, span.last_ns if execution.until_ns is UNKNOWN else execution.until_ns)


def _span_by_clock(execution: Execution) -> Span | None:
    """Begin and end by the program's own clock; None if unknown.

    None also for a stopped program: there the profile shows when the first omitted call began.
    """
    if execution.until_ns is not UNKNOWN:
        return None
    warmup = execution.warmup_batches
    calls = len(execution.profile.begins_ns) or execution.calls // execution.batch
    if execution.stops is None or not warmup < calls <= len(execution.stops.stopped_ns):
        return None
    begin, end = execution.stops.going_ns[warmup], execution.stops.stopped_ns[calls - 1]
    return Span(int(begin), int(end))


def _parts(execution: Execution, elapsed_ns: Integer, span: Span) -> ElapsedParts:
    """Parts of the elapsed time. For a device whose clock is not related to the host's, only its own rows count.

    Unknown if records were lost, since their kernels would count as host time.
    """
    profile = execution.profile
    if profile.lost_records:
        return UNKNOWN_PARTS
    if profile.clock is not Clock.HOST and not profile.on_host:
        return parts_by_device(profile.events, elapsed_ns)
    if (stops := _stops_without_events(execution)) is not None:
        return of_host_alone(stops, execution.warmup_batches, execution.calls // execution.batch)
    return elapsed_parts(profile.events, elapsed_ns, span, execution.stops)


def _stops_without_events(execution: Execution) -> Stops | None:
    """The stops of the program's clock if there are calls without any event; else None."""
    return None if execution.profile.event_count or not execution.calls else execution.stops


def _calls(execution: Execution) -> Integer:
    if not execution.ending.failed:
        return execution.calls - execution.warmup
    recorded = execution.profile.invocations
    return max(0, recorded - execution.warmup) if isinstance(recorded, int) else UNKNOWN


def _elapsed_ns(execution: Execution) -> Integer:
    """Wall time of the measured iterations.

    If the program's clock is unknown, there are two lower bounds. The profile knows the end of the warm-up (the first
    submission after it), but not when the last call returned. The program reports the sum of all calls, warm-up
    included, without the gaps between them; from that, the time from the first submission to the end of the warm-up is
    subtracted. The result is the larger one. A stopped program reports no sum.
    """
    span, total, own = execution.profile.span, execution.ending.total_ns, _span(execution)
    begin, end = own.begin_ns, own.end_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    if not isinstance(total, int) or _span_by_clock(execution) is not None:
        return recorded
    if isinstance(span.first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - span.first_ns))
    # Nothing was submitted, or calls cannot be distinguished: count the warm-up like any other call.
    return round(total * (execution.calls - execution.warmup) / execution.calls)
