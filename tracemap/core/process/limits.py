"""Memory and processors that this process may use."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path
from typing import Final, NamedTuple

# ---- memory
#
# Memory that programs can still allocate.


_MEMINFO: Final = Path("/proc/meminfo")
_SELF_STATUS: Final = Path("/proc/self/status")
_KIB: Final = 1024


class Group(NamedTuple):
    """Files of a control group: its limit, its usage, and which part of the usage can be reclaimed at once."""

    limit: Path
    used: Path
    stat: Path
    spare: str


_VERSION_2: Final = Path("/sys/fs/cgroup")
_VERSION_1: Final = _VERSION_2 / "memory"
_GROUPS: Final = (
    Group(_VERSION_2 / "memory.max", _VERSION_2 / "memory.current", _VERSION_2 / "memory.stat", "inactive_file"),
    Group(
        _VERSION_1 / "memory.limit_in_bytes",
        _VERSION_1 / "memory.usage_in_bytes",
        _VERSION_1 / "memory.stat",
        "total_inactive_file",
    ),
)


def free_memory() -> int:
    """Bytes that programs can still allocate, as Linux reports; sys.maxsize if it does not."""
    frees = [_number(_MEMINFO, "MemAvailable:") * _KIB or sys.maxsize, *map(free_in_group, _GROUPS)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:  # the shell's limit of address space (`ulimit -v`) is reached before memory's
        frees.append(limit - _number(_SELF_STATUS, "VmSize:") * _KIB)
    return max(0, min(frees))


def free_in_group(group: Group) -> int:
    """Bytes that a container can still allocate; the cache of recently read files does not count as used."""
    limit = _number(group.limit)
    used = _number(group.used) - _number(group.stat, group.spare)
    return limit - max(0, used) if limit else sys.maxsize


def _number(path: Path, name: str = "") -> int:
    """The number after a name in a file; 0 if there is none."""
    try:
        match = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


# ---- processors
#
# Number of CPUs that this process may use.


def usable_processors() -> int:
    """At least 1; less than the machine has if `taskset` or a container restricts this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
