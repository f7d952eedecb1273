"""How many processors this process may run on."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """At least 1; not all of the machine's, where something (`taskset`, a container's set) leaves fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
