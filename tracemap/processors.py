"""Number of CPUs that this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """At least 1; less than the machine has if `taskset` or a container restricts this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
