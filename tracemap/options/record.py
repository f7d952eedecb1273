"""What `tracemap record` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.options.call import MOST_CALLS, CallOptions
from tracemap.options.option import option
from tracemap.units import UNKNOWN, Integer

MOST_HZ: Final = 20_000
LEAST_NICENESS: Final = -20
"""Ahead of all others that are not of real time (man 7 sched)."""


@dataclass(frozen=True, slots=True)
class RecordOptions(CallOptions):
    """How to run a bundle's module, and what to measure of it."""

    output: Path | None = option(
        None,
        "The run to write: Parquet, or CSV if it ends in .csv.  [default: BUNDLE/runs/run-NNN.parquet]",
        "-o",
        "--output",
    )
    iterations: Integer = option(
        UNKNOWN,
        "Measured calls, exactly.  [default: until their median is known]",
        metavar="N",
        at_least=1,
        at_most=MOST_CALLS,
    )
    precision: float = option(
        2.0,
        "Measure until the 95 % interval of the median call is within so much of it, in percent.",
        metavar="PERCENT",
        above=0,
        at_most=100,
    )
    seconds: float = option(5.0, "Measure no longer than this.", metavar="S", above=0, at_most=86_400)
    launches: int = option(
        10,
        "Share --seconds out over so many launches, as where a process has its data in memory makes kernels slower or "
        "faster; fewer where starting takes long, and one alone beside --iterations, --sample, --counters, "
        "--cache-sim, --keep-profile.",
        metavar="N",
        at_least=1,
        at_most=100,
    )
    nice: Integer = option(
        UNKNOWN,
        "Run the program at this niceness.  [default: -20, ahead of others, where the system allows it]",
        metavar="N",
        at_least=LEAST_NICENESS,
        at_most=19,
    )
    warmup: Integer = option(
        UNKNOWN,
        "Calls before the measured ones, which are marked and left out of reports.  "
        "[default: until they are steady; 3 with --iterations]",
        metavar="N",
        at_least=0,
        at_most=MOST_CALLS,
    )
    repeat: int = option(
        1,
        "Record so often, each in a process of its own, as runs/run-NNN-I.parquet: what tracemap diff compares.",
        metavar="N",
        at_least=1,
        at_most=1000,
    )
    alternate: Path | None = option(
        None, "Record this bundle as well, in turn with BUNDLE, with the same options.", metavar="OTHER"
    )
    compare_devices: tuple[str, ...] = option(
        (),
        "Time the same calls on these devices and on the run's own, without the profiler: local-sync,local-task.",
        metavar="A,B",
        split=True,
    )
    counters: tuple[str, ...] = option(
        (),
        "Events to count in further executions, such as page-faults,cache-misses; see tracemap events.",
        metavar="A,B",
        split=True,
    )
    counters_per_pass: int = option(
        0,
        "Count so many events in an execution.  [default: as many as the processor counts at a time]",
        metavar="N",
        at_least=1,
    )
    sample_hz: Integer = option(
        0,
        "Sample the program counter so often per second and thread, for time per op in kernels.  "
        "[without HZ: as often as 2,000 samples in --seconds ask for]",
        "--sample",
        metavar="HZ",
        at_least=1,
        at_most=MOST_HZ,
        bare=UNKNOWN,
    )
    cache_sim: bool = option(
        False, "Simulate one call under valgrind, for instructions and cache misses by step of the kernels."
    )
    cache_geometry: tuple[str, ...] = option(
        (),
        "A cache to simulate, I1, D1 or LL: D1=32768,8,64.  [default: this machine's]",
        metavar="CACHE=BYTES,WAYS,LINE",
    )
    keep_profile: bool = option(False, "Keep IREE's own profile beside the run, as RUN.ireeprof, for iree-profile.")
    force: bool = option(False, "Replace the output if it exists.")
