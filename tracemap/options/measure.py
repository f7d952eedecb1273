"""Options of commands that run programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from tracemap.options.option import ABSOLUTE, BEHIND_DASHES, RELATIVE, Options, option, required
from tracemap.units import UNKNOWN, Integer, Text, Unknown

# ---- call
#
# What every command can be asked that calls a function of a bundle's module.


MOST_CALLS: Final = 1_000_000_000
"""Calls of a microsecond take a quarter of an hour; of more than an int32 holds, IREE's benchmark makes one."""


@dataclass(frozen=True, slots=True)
class FunctionOptions(Options):
    """Which function is called, and with what: the base of the records of commands that call one."""

    function: Text = option(UNKNOWN, "The entry point to call.  [default: the only one]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "An input as IREE writes it (4x4xf32=0.5, 7, @x.npy), one per argument.  [default: made up]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = option(UNKNOWN, "The size of every `?` in made-up inputs.", metavar="N", at_least=0)
    flagfile: Path | None = option(None, "A flag file of IREE: function, inputs, parameters.", metavar="F")
    runtime_flags: tuple[str, ...] = option(
        (), "Flags for the program of IREE that is started.", BEHIND_DASHES, metavar="[-- RUNTIME FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class CallOptions(FunctionOptions):
    """Which function is called, with what, and on how many workers."""

    serial: bool = option(False, "One worker instead of all cores.")


def call_of(options: FunctionOptions) -> dict[str, Any]:
    """By their names, what options say of the call: for the options of another command that makes the same one."""
    known = {field.name for field in fields(CallOptions)}
    return {field.name: getattr(options, field.name) for field in fields(options) if field.name in known}


# ---- record
#
# What `tracemap record` can be asked.


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


# ---- run
#
# What `tracemap run` can be asked.


@dataclass(frozen=True, slots=True)
class RunOptions(CallOptions):
    """Which function to call, and what becomes of its outputs."""

    outputs: tuple[str, ...] = option(
        (),
        "Where an output goes, one per output: - (printed), @x.npy, @x.bin, +x.npy (appended), or nothing.  "
        "[default: printed]",
        "--output",
        metavar="SPEC",
    )
    expected_outputs: tuple[str, ...] = option(
        (),
        "An output as it should be, written as an input is, or (ignored); one per output. If one differs, the status "
        "is 1.",
        "--expected-output",
        metavar="SPEC",
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Outputs must be what is expected to the last bit.")
    force: bool = option(False, "Replace files that exist.")


# ---- benchmark
#
# What `tracemap benchmark` can be asked.


@dataclass(frozen=True, slots=True)
class BenchmarkOptions(CallOptions):
    """Which functions to time, how often, and how it is told."""

    repetitions: int = option(
        1, "Time the calls so often, each time anew.", metavar="N", at_least=1, at_most=MOST_CALLS
    )
    min_time: float = option(0.5, "Make calls for at least so many seconds.", metavar="S", above=0, at_most=86_400)
    iterations: Integer = option(
        UNKNOWN,
        "Make so many calls, exactly.  [default: as --min-time asks for]",
        metavar="N",
        at_least=1,
        at_most=MOST_CALLS,
    )
    dispatch_repeat: int = option(
        1,
        "Run each kernel so often in a call, and divide the time by it, so that what surrounds kernels counts less: "
        "the module is compiled again for it.",
        metavar="N",
        at_least=1,
        at_most=100_000,
    )
    time_unit: Literal["ms", "us", "ns"] = option("ms", "The unit of times in the table and in JSON.")
    format: Literal["text", "json"] = option("text", "The table of Google Benchmark, or its JSON.")


# ---- stats
#
# What `tracemap stats` can be asked.


@dataclass(frozen=True, slots=True)
class StatsOptions(Options):
    """Which of the recorded calls to look at, what to tell of them, and where it goes."""

    kernel: str = option(
        "", "Only calls of this kernel.  [default: all]", metavar="NAME", variable="IREE_HOOK_FILTER_NAME"
    )
    skip_ms: int = option(
        0,
        "Leave out each thread's first milliseconds, from its first call.",
        metavar="MS",
        at_least=0,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    counters: tuple[str, ...] = option(
        (),
        "Only these events, in this order.  [default: all that were counted]",
        metavar="A,B",
        variable="IREE_HOOK_PERF_EVENT_TYPES",
        split=True,
    )
    buckets: int = option(
        16, "How many quantiles.", metavar="N", at_least=1, at_most=1024, variable="IREE_HOOK_BUCKET_COUNT"
    )
    no_table: bool = option(False, "Leave out the tables of conditional probabilities.")
    gamma: float = option(
        0.5, "Shades show probability to this power.", metavar="G", above=0, variable="IREE_HOOK_GAMMA"
    )
    csv: Path | None = option(
        None,
        "Also write the calls into this folder, a CSV file per thread, as IREE's hook does.",
        variable="IREE_HOOK_OUTPUT_CSV",
    )
    calls: Path | None = option(
        None,
        "Also write the calls as a table, one row per call of a workgroup: Parquet, or CSV if it ends in .csv.",
        metavar="FILE",
    )
    html: Path | None = option(None, "Also write a page with histograms, correlations and heat maps.", metavar="PAGE")
    force: bool = option(False, "Replace files that exist.")
    format: Literal["text", "json"] = option("text", "The text of IREE's hook, or JSON.")


# ---- hook
#
# What `tracemap hook env` can be asked.


_MOST_CALLS: Final = 1_000_000_000_000_000
"""The hook ignores a number that it cannot hold, and records all calls then."""


@dataclass(frozen=True, slots=True)
class HookEnvOptions(Options):
    """Which calls a program of somebody's own records, and where to."""

    output: Path = required(
        "The folder for the record files; it must exist. Each process adds files of its own.", "-o", "--output"
    )
    filter: str = option(
        "", "Only kernels whose name fits.  [default: all]", metavar="GLOB", variable="IREE_HOOK_FILTER_NAME"
    )
    skip_ms: int = option(
        0,
        "Pass over each thread's first milliseconds, from its first call.",
        metavar="MS",
        at_least=0,
        at_most=1_000_000_000,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    calls: int = option(
        0, "Record so many calls in all.  [default: no limit]", metavar="N", at_least=0, at_most=_MOST_CALLS
    )
    every: int = option(1, "Record one call in so many.", metavar="N", at_least=1, at_most=_MOST_CALLS)
    thread_mb: int = option(
        1024, "Megabytes that the calls of each thread take at most.", metavar="MB", at_least=2, at_most=1_000_000
    )
    keep: Literal["oldest", "newest"] = option(
        "oldest",
        "Which calls to keep where there are more: the first ones, or the newest, as of a server that runs on.",
    )
    counters: tuple[str, ...] = option(
        (),
        "Events to count around each call; see tracemap events.",
        metavar="A,B",
        variable="IREE_HOOK_PERF_EVENT_TYPES",
        split=True,
    )
    export: bool = option(False, "Print lines for a shell to source, not words for env.")


# ---- events
#
# What `tracemap events` can be asked.


@dataclass(frozen=True, slots=True)
class EventsOptions(Options):
    """Which events to list, and how."""

    all: bool = option(False, "Also the raw events of AMD's Zen 4, where this is one.")
    format: Literal["text", "json"] = option("text", "A table, or JSON with what the hook is told of each event.")


# ---- doctor
#
# What `tracemap doctor` can be asked.


@dataclass(frozen=True, slots=True)
class DoctorOptions(Options):
    """How findings are printed."""

    format: Literal["text", "json"] = option("text", "A table, or JSON.")
