"""How much memory programs can still have."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_OF_MACHINE = Path("/proc/meminfo")
_OF_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""What a container may have: control groups, version 2 and 1."""


def free_memory() -> int:
    """Bytes that programs can still have, as Linux says; as many as can be where nothing says it."""
    free = [_number(_OF_MACHINE, "MemAvailable:") * 1024 or sys.maxsize]
    free += [_number(path) or sys.maxsize for path in _OF_GROUP]
    return min(free)


def _number(path: Path, name: str = "") -> int:
    """The number that follows a name in a file; 0: there is none."""
    try:
        found = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
