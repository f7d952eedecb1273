"""Run tracemap in this process and say on stderr, last, what it took itself, without the programs that it started.

`python -m benchmarks.own_usage record model.tracemap …`: CPU seconds and the peak of resident memory in MiB.
"""

from __future__ import annotations

import resource
import sys

from tracemap.cli.main import main


def _say() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\n{used.ru_utime + used.ru_stime:.3f} {used.ru_maxrss / 1024:.1f}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    finally:
        _say()
