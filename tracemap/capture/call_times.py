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
class Measured:
    """The measured calls of an execution: how many, how long each took, all of them with what is between, and why."""

    calls: Integer
    times_ns: npt.NDArray[Any]
    elapsed_ns: Integer
    elapsed: ElapsedParts
    disturbance: Disturbance


def measured(execution: Execution) -> Measured:
    """Ask an execution, whose events are still its own."""
    elapsed_ns, span = _elapsed_ns(execution), _span(execution)
    return Measured(
        _calls(execution),
        execution.times_ns[execution.warmup_batches :],
        elapsed_ns,
        _parts(execution, elapsed_ns, span),
        observed(execution.watcher.looks, span.begin_ns, span.end_ns),
    )


def _span(execution: Execution) -> Span:
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
    warmup = execution.warmup_batches
    calls = len(execution.profile.begins_ns) or execution.calls // execution.batch
    if execution.stops is None or not warmup < calls <= len(execution.stops.stopped_ns):
        return None
    begin, end = execution.stops.going_ns[warmup], execution.stops.stopped_ns[calls - 1]
    return Span(int(begin), int(end))


def _parts(execution: Execution, elapsed_ns: Integer, span: Span) -> ElapsedParts:
    """What the elapsed time went for. Of a device whose clock nothing connects the rows alone tell, on that clock.

    Where rows were lost nothing tells: their kernels would pass for time of the host.
    """
    profile = execution.profile
    if profile.lost_records:
        return UNKNOWN_PARTS
    if profile.clock is not Clock.HOST and not profile.on_host:
        return parts_by_device(profile.events, elapsed_ns)
    if (stops := _stops_alone(execution)) is not None:
        return of_host_alone(stops, execution.warmup_batches, execution.calls // execution.batch)
    return elapsed_parts(profile.events, elapsed_ns, span, execution.stops)


def _stops_alone(execution: Execution) -> Stops | None:
    """When the program stopped its clock, where nothing else tells of its calls; None: something does, or nothing."""
    return None if execution.profile.event_count or not execution.calls else execution.stops


def _calls(execution: Execution) -> Integer:
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
    span, total, own = execution.profile.span, execution.ending.total_ns, _span(execution)
    begin, end = own.begin_ns, own.end_ns
    recorded = end - begin if isinstance(begin, int) and isinstance(end, int) else UNKNOWN
    if not isinstance(total, int) or _clocked(execution) is not None:
        return recorded
    if isinstance(span.first_ns, int) and isinstance(begin, int) and isinstance(recorded, int):
        return max(recorded, total - (begin - span.first_ns))
    # Nothing was submitted, or calls cannot be told apart: the warm-up counts as any other call.
    return round(total * (execution.calls - execution.warmup) / execution.calls)
