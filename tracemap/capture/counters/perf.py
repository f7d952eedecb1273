"""Events are opened by perf_event_open for this process, to find out what the hook will be able to count."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections.abc import Sequence

from tracemap.capture.counters.event import Event

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
    """A file descriptor; OSError if the kernel refuses. `leader`: of the group that it joins, -1 for none."""
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
    """0 if it opens, else the kernel's error number."""
    try:
        os.close(_open(event))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def is_user_readable(event: Event) -> bool:
    """Whether a program may read this counter itself."""
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
    """Whether the kernel counts events as one group, all of the time."""
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
