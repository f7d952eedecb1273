"""A bench as Google Benchmark's JSON, which `compare.py` of its tools reads (google/benchmark, docs/tools.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tracemap.experiments.model import Bench, KernelBench, Spread


def google_benchmark(made: Bench) -> dict[str, Any]:
    """The document: a benchmark for each kernel that was timed, and one with `/cold` where caches were cold."""
    rows = [each for kernel in made.kernels for each in _of_kernel(kernel)]
    return document("tracemap bench", {"module_sha256": made.module_sha256, "device": made.device}, rows)


def document(executable: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A document of these benchmarks, which get their numbers; `about` goes to the context."""
    context = {
        "executable": executable,
        "num_cpus": os.cpu_count() or 1,
        **about,
        "library_build_type": "release",
        "caches": [],
    }
    return {"context": context, "benchmarks": [{**row, "family_index": number} for number, row in enumerate(rows)]}


def benchmark(name: str, iterations: int, real_ns: float, cpu_ns: float) -> dict[str, Any]:
    """An entry; times are of one iteration."""
    return {
        "name": name,
        "family_index": 0,
        "per_family_instance_index": 0,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": 1,
        "iterations": iterations,
        "real_time": real_ns,
        "cpu_time": cpu_ns,
        "time_unit": "ns",
    }


def _of_kernel(kernel: KernelBench) -> list[dict[str, Any]]:
    name = kernel.kernel if not kernel.sites else f"{kernel.kernel}/{kernel.sites[0]}"
    timed = [(name, kernel.time_ns), (f"{name}/cold", kernel.cold_ns)]
    return [_benchmark(name, spread, kernel) for name, spread in timed if spread is not None]


def _benchmark(name: str, spread: Spread, kernel: KernelBench) -> dict[str, Any]:
    """One entry; times are of one call."""
    return {
        **benchmark(name, spread.batch * spread.repetitions, spread.median, spread.median),
        **_rates(spread, kernel),
        "label": kernel.verification.status.value,
    }


def _rates(spread: Spread, kernel: KernelBench) -> dict[str, float]:
    """What is done in a second at the speed of this entry; the kernel's own rates are those of its warm calls."""
    rates = {"items_per_second": kernel.operations_per_s, "bytes_per_second": kernel.bytes_per_s}
    if kernel.time_ns is None or not spread.median:
        return {}
    slower = kernel.time_ns.median / spread.median
    return {name: rate * slower for name, rate in rates.items() if rate is not None}
