"""Run the benchmarks named on the command line, all without names, and end with a table of targets."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    build,
    build_parts,
    differences,
    elapsed,
    growth,
    hook,
    kernels,
    large_models,
    large_runs,
    profile,
    real_sizes,
    record,
    reports,
    sampling,
    start,
    store,
    store_growth,
    store_spark,
    timeline,
)
from benchmarks.measure import Figure, prepare, print_figures

BENCHMARKS: dict[str, Callable[[Path], list[Figure]]] = {
    "start": start.measure,
    "build": build.measure,
    "build_largest": build.measure_largest,
    "record": record.measure,
    "record_time": record.measure_time,
    "profile": profile.measure,
    "elapsed": elapsed.measure,
    "hook": hook.measure,
    "sampling": sampling.measure,
    "kernels": kernels.measure,
    "reports": reports.measure,
    "large_runs": large_runs.measure,
    "large_models": large_models.measure,
    "growth": growth.measure,
    "store_growth": store_growth.measure,
    "timeline": timeline.measure,
    "differences": differences.measure,
}
LONG: dict[str, Callable[[Path], list[Figure]]] = {
    "build_parts": build_parts.measure,
    "largest_runs": large_runs.measure_largest,
    "real_sizes": real_sizes.measure,
    "store": store.measure,
    "store_spark": store_spark.measure,
}
"""Those that run only where they are named: they take many minutes and gigabytes, or have no figure with a target."""


def main(names: list[str]) -> int:
    """Run, print, and return 0; 2 for a name that is none of the benchmarks'."""
    prepare()
    every = BENCHMARKS | LONG
    unknown = sorted(set(names) - set(every))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(every)}", file=sys.stderr)
        return 2
    figures = []
    for name in names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix=f"tracemap-bench-{name}-") as folder:
            figures += every[name](Path(folder))
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
