"""Which events can be counted here, and which of them at a time. Both are found out by trying."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracemap.capture.counters.event import MOST_EVENTS, SOFTWARE, Event
from tracemap.capture.counters.names import find_event
from tracemap.capture.counters.perf import is_user_readable, run_together, try_open
from tracemap.errors import EventUnavailable

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an event can be counted here; where not, `reason` says why and what would help."""

    event: Event
    opens: bool
    reason: str


def check_event(event: Event) -> Availability:
    """Open the event for this process, and say how it can be counted, or why not."""
    number = try_open(event)
    if number == errno.EACCES and event.is_kernel_made:
        return Availability(event, opens=False, reason=f"{_not_allowed()}; without the kernel's part it would read 0")
    if number == errno.EACCES:
        event = replace(event, user_only=True)
        number = try_open(event)
    if number:
        return Availability(event, opens=False, reason=_reason(number))
    return Availability(replace(event, mode=_mode(event)), opens=True, reason="user code only" * event.user_only)


def _mode(event: Event) -> str:
    if event.type == SOFTWARE:
        return "group" if event.is_clock else "ring"
    return "rdpmc" if is_user_readable(event) else "group"


def _reason(number: int) -> str:
    if number in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine has no such counter (virtual machines often hide them)"
    if number in (errno.EACCES, errno.EPERM):
        return _not_allowed()
    if number == errno.EINVAL:
        return "the counter cannot be used for one thread, or its number is wrong"
    if number == errno.ENOSYS:
        return "the kernel has no perf_event_open, or a sandbox forbids it"
    return os.strerror(number)


def _not_allowed() -> str:
    try:
        level = _PARANOID.read_text(encoding="ascii").strip()
    except OSError:
        level = "unknown"
    return f"not allowed: perf_event_paranoid is {level}; `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON helps"


def events_to_count(names: Sequence[str]) -> list[Event]:
    """The events, ready for the hook.

    Raises:
        EventUnavailable: one is not known or cannot be opened here, or one is named twice.
    """
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise EventUnavailable(f"{twice[0]} is named twice")
    events = []
    for name in names:
        found = check_event(find_event(name))
        if not found.opens:
            raise EventUnavailable(f"{name} cannot be counted: {found.reason}")
        if any(mark.isspace() or mark in "|;" for mark in name) or len(name) > 63:
            raise EventUnavailable(f"{name}: the name is too long, or holds a blank, | or ;")
        events.append(found.event)
    return events


# ---- more events than counters


def in_passes(events: Sequence[Event], per_pass: int = 0) -> list[tuple[Event, ...]]:
    """Events in groups that are counted in one execution each, in their order.

    A processor has few counters. Whether events find room together is found out by counting with them for a moment:
    what the kernel has to take turns with would be an estimate.

    Args:
        events: as `events_to_count` returns them.
        per_pass: how many to count at a time at most; 0: as many as can be counted exactly.
    """
    most = min(per_pass or MOST_EVENTS, MOST_EVENTS)
    passes: list[tuple[Event, ...]] = []
    for event in events:
        together = next((index for index, known in enumerate(passes) if _has_room(known, event, most)), len(passes))
        passes[together : together + 1] = [(*(passes[together] if together < len(passes) else ()), event)]
    return passes


def _has_room(known: Sequence[Event], event: Event, most: int) -> bool:
    if len(known) >= most:
        return False
    # Software events have no counters of their own to run short of.
    limited = [each for each in (*known, event) if each.type != SOFTWARE]
    return event.type == SOFTWARE or len(limited) == 1 or run_together(limited)
