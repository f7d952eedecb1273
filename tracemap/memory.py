"""How much memory programs can still have."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final, NamedTuple

_OF_MACHINE: Final = Path("/proc/meminfo")
_OF_PROCESS: Final = Path("/proc/self/status")
_KIB: Final = 1024


class Group(NamedTuple):
    """Where a control group says what a container may have and has, and what of that could be given back at once."""

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
    """Bytes that programs can still have, as Linux says; as many as can be where nothing says it."""
    of_machine = _number(_OF_MACHINE, "MemAvailable:") * _KIB or sys.maxsize
    return max(0, min(of_machine, _free_of_shell(), *map(free_of, _GROUPS)))


def free_of(group: Group) -> int:
    """What a container may still have; files that were only read lately take none away from programs."""
    limit = _number(group.limit)
    used = _number(group.used) - _number(group.stat, group.spare)
    return limit - max(0, used) if limit else sys.maxsize


def _free_of_shell() -> int:
    """What a limit of the shell (`ulimit -v`) leaves to this process, of addresses: they run out before memory does."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - _number(_OF_PROCESS, "VmSize:") * _KIB


def _number(path: Path, name: str = "") -> int:
    """The number that follows a name in a file; 0: there is none."""
    try:
        found = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
