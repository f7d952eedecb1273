"""Which events can be counted here, and which fit together.

Both are determined by trial: events are opened by perf_event_open for this process.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracemap.capture.counters.events import MOST_EVENTS, SOFTWARE, Event, find_event
from tracemap.errors import EventUnavailable

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an event can be counted here; if not, `reason` says why and what helps."""

    event: Event
    opens: bool
    reason: str


def check_event(event: Event) -> Availability:
    """Open the event for this process: how it can be counted, or why not."""
    number = try_open(event)
    if number == errno.EACCES and event.is_kernel_made:
        return Availability(event, opens=False, reason=f"{_not_allowed()}; in user mode alone it would always read 0")
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
    return f"not allowed: perf_event_paranoid is {level}; try `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON"


def events_to_count(names: Sequence[str]) -> list[Event]:
    """The events, ready for the hook.

    Raises:
        EventUnavailable: an event is unknown, cannot be opened here, or is named twice.
    """
    if duplicates := sorted({name for name in names if list(names).count(name) > 1}):
        raise EventUnavailable(f"{duplicates[0]} is named twice")
    events = []
    for name in names:
        availability = check_event(find_event(name))
        if not availability.opens:
            raise EventUnavailable(f"{name} cannot be counted: {availability.reason}")
        if any(mark.isspace() or mark in "|;" for mark in name) or len(name) > 63:
            raise EventUnavailable(f"{name}: the name is too long, or contains a blank, | or ;")
        events.append(availability.event)
    return events


# ---- passes


def split_into_passes(events: Sequence[Event], per_pass: int = 0) -> list[tuple[Event, ...]]:
    """Split events into groups, in their order; each group is counted in one execution.

    A processor has few counters. A short trial finds out whether events fit together: if the kernel multiplexes them,
    counts would only be estimates.

    Args:
        events: from `events_to_count`.
        per_pass: most events per group; 0: as many as can be counted exactly.
    """
    limit = min(per_pass or MOST_EVENTS, MOST_EVENTS)
    passes: list[tuple[Event, ...]] = []
    for event in events:
        fitting = (index for index, members in enumerate(passes) if _has_room(members, event, limit))
        index = next(fitting, len(passes))
        passes[index : index + 1] = [(*(passes[index] if index < len(passes) else ()), event)]
    return passes


def _has_room(members: Sequence[Event], event: Event, limit: int) -> bool:
    if len(members) >= limit:
        return False
    # Software events do not occupy hardware counters.
    limited = [member for member in (*members, event) if member.type != SOFTWARE]
    return event.type == SOFTWARE or len(limited) == 1 or run_together(limited)


# ---- trials


_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTR_SIZE = 112
_EXCLUDE_KERNEL, _EXCLUDE_HV, _DISABLED = 1 << 5, 1 << 6, 1
_CLOEXEC = 8
_USER_RDPMC = 1 << 2
_CAPABILITIES_OFFSET = 40
_TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING."""
_TRIAL_NS = 5_000_000


def _attributes(event: Event, read_format: int, disabled: int) -> bytes:
    flags = disabled | _EXCLUDE_HV | (_EXCLUDE_KERNEL if event.user_only else 0)
    head = struct.pack(
        "=IIQQQQQIIQQ", event.type, _ATTR_SIZE, event.config, 0, 0, read_format, flags, 0, 0, event.config1, 0
    )
    return head.ljust(_ATTR_SIZE, b"\0")


def _open(event: Event, leader: int = -1, read_format: int = 0, disabled: int = _DISABLED) -> int:
    """The file descriptor; OSError if the kernel refuses. `leader`: leader of the group to join, -1 for none."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "no perf_event_open")
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = _attributes(event, read_format, disabled)
    file: int = libc.syscall(ctypes.c_long(number), attributes, 0, -1, leader, ctypes.c_ulong(_CLOEXEC))
    if file < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return file


def try_open(event: Event) -> int:
    """0 if the event opens, else the kernel's error number."""
    try:
        os.close(_open(event))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def is_user_readable(event: Event) -> bool:
    """Whether a program may read this counter itself, by rdpmc."""
    try:
        file = _open(event)
    except OSError:
        return False
    try:
        with mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
            (capabilities,) = struct.unpack_from("=Q", page, _CAPABILITIES_OFFSET)
            return bool(capabilities & _USER_RDPMC)
    except OSError:
        return False
    finally:
        os.close(file)


def run_together(events: Sequence[Event]) -> bool:
    """Whether the kernel counts the events as one group without multiplexing."""
    files: list[int] = []
    try:
        for event in events:
            leader = files[0] if files else -1
            files.append(_open(event, leader, _TIMES, disabled=0))
        end = time.monotonic_ns() + _TRIAL_NS
        while time.monotonic_ns() < end:
            pass
        # value, time_enabled, time_running (struct read_format in linux/perf_event.h)
        enabled, running = struct.unpack("=8xQQ", os.read(files[0], 24))
        return bool(0 < enabled == running)
    except OSError:
        return False
    finally:
        for file in reversed(files):
            os.close(file)
