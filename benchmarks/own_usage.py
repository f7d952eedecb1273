"""Run tracemap in this process and say on stderr, last, what it took itself, and the programs that it started.

`python -m benchmarks.own_usage record model.tracemap …`: its own CPU seconds and peak of resident memory in MiB, then
the peak of the largest of those programs, in MiB; 0 where it started none.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from tracemap.commands.main import main


def _say() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\n{used.ru_utime + used.ru_stime:.3f} {_peak_mib():.1f} {largest:.1f}", file=sys.stderr)


def _peak_mib() -> float:
    """Of this program alone: the system's usage of a process counts what it was a copy of before it became this one."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


if __name__ == "__main__":
    try:
        main()
    finally:
        _say()
