"""Options of commands that run programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.options.option import (
    ABSOLUTE,
    FLAGS_AFTER_DASHES,
    RELATIVE,
    Options,
    count,
    duration,
    name_list,
    option,
)

MOST_CALLS: Final = 1_000_000_000
"""A billion calls of 1 µs take a quarter of an hour. IREE's benchmark makes a single call if N exceeds an int32."""


@dataclass(frozen=True, slots=True)
class FunctionOptions(Options):
    """Options of all commands that run a function: the function and its inputs."""

    function: Text = option(UNKNOWN, "Function to run.  [default: the only one]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "Input in IREE's syntax (4x4xf32=0.5, 7, @x.npy), one per argument, or with the argument's name (x=@x.npy).  "
        "[default: generated]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = count(UNKNOWN, "Size of every dynamic dimension (`?`) in generated inputs.", at_least=0)
    flagfile: Path | None = option(None, "IREE flag file: function, inputs, parameters.", metavar="F")
    runtime_flags: tuple[str, ...] = option(
        (), "Flags for the IREE program that tracemap starts.", FLAGS_AFTER_DASHES, metavar="[-- RUNTIME FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class CallOptions(FunctionOptions):
    """Options of all commands that run a function: the function, its inputs, and the workers."""

    serial: bool = option(False, "Use one worker instead of all cores.")


def call_of(options: Options) -> dict[str, Any]:
    """The fields that describe the invocation, by name, to copy into the options of another command."""
    known = {field.name for field in fields(CallOptions)}
    return {field.name: getattr(options, field.name) for field in fields(options) if field.name in known}


MOST_HZ: Final = 20_000
LEAST_NICENESS: Final = -20
"""Ahead of all other programs except real-time ones (man 7 sched)."""


@dataclass(frozen=True, slots=True)
class BisectOptions(CallOptions):
    """Options of `bisect`: what got worse, how to measure it, and BAD's flags if it is a model."""

    metric: Literal["time", "compile_time", "module_bytes", "live_bytes_at_peak", "outputs", "crash"] = option(
        "time",
        "What got worse: time of an invocation or of the compiler, size of the module, planned peak of memory, outputs "
        "that differ from GOOD's, or a crash or error of the compiler.",
    )
    op: Text = option(UNKNOWN, "With --metric time: the op of GOOD that got slower, such as op12.", metavar="OP")
    releases: tuple[str, ...] = name_list(
        "With builds by two releases of IREE: the releases in order, GOOD's first.  [default: all in between]",
    )
    output: Path | None = option(
        None,
        "Folder for the builds. A search that was interrupted uses them again.  [default: GOOD's name with .bisect]",
        "-o",
        "--output",
    )
    seconds: float = duration(0.5, "Time limit of each recording, with --metric time.")
    repeat: int = count(
        6, "Recordings of each build and of GOOD in alternation; up to four times as many near the limit.", at_least=6
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    format: Literal["text", "json"] = option("text", "Output format.")
    runtime_flags: tuple[str, ...] = option(
        (), "Flag for the IREE program that tracemap starts.  [repeatable]", "--runtime-flag", metavar="FLAG"
    )
    flags: tuple[str, ...] = option(
        (), "Flags for iree-compile, if BAD is a model.", FLAGS_AFTER_DASHES, metavar="[-- IREE-COMPILE FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class ReduceOptions(Options):
    """Options of `reduce`: the problem, the output, and how to run the model."""

    op: str = option("", "Op with the problem, or its line, dispatch or kernel, as for `tracemap show`.", "--op")
    shows: Literal["slow", "nan", "wrong", "lost", "crash"] | None = option(
        None,
        "Problem to keep: a slow kernel, a NaN, a wrong result, a lost location, or a compiler that fails.  "
        "[default: slow for a bundle, crash for a model]",
    )
    anonymous: bool = option(False, "Replace names and texts of the original model, and the data of its constants.")
    output: Path | None = option(
        None,
        "Model to write. Its inputs are written next to it.  [default: reduced.mlir]",
        "-o",
        "--output",
    )
    function: Text = option(UNKNOWN, "Function with the problem.  [default: one that has the op]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "Input in IREE's syntax (4x4xf32=0.5, 7, @x.npy), one per argument, or with the argument's name (x=@x.npy).  "
        "[default: generated]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = count(UNKNOWN, "Size of every dynamic dimension (`?`) in generated inputs.", at_least=0)
    seconds: float = duration(0.5, "Time limit of each recording, to compare the time of a slow kernel.")
    repeat: int = count(6, "Recordings of each model, in alternation.", at_least=6)
    force: bool = option(False, "Overwrite files that tracemap did not write.")
    flags: tuple[str, ...] = option(
        (), "With a model: flags for iree-compile.", FLAGS_AFTER_DASHES, metavar="[-- COMPILER FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class RecordOptions(CallOptions):
    """Options of `record`: how to run a bundle's module, and what to measure."""

    output: Path | None = option(
        None,
        "File to write the run to: Parquet, or CSV if the name ends in .csv.  [default: BUNDLE/runs/run-NNN.parquet]",
        "-o",
        "--output",
    )
    iterations: Integer = count(
        UNKNOWN,
        "Measure exactly N invocations, regardless of --precision and --seconds.  "
        "[default: as many as --precision needs]",
        at_most=MOST_CALLS,
    )
    precision: float = option(
        2.0,
        "Measure until the 95 % confidence interval of the median invocation is within this percentage of the median.",
        metavar="PERCENT",
        above=0,
        at_most=100,
    )
    seconds: float = duration(5.0, "Time limit for measuring.")
    launches: int = count(
        10,
        "Number of processes to split --seconds over, since memory layout differs between processes. Fewer if "
        "the program starts slowly; 1 with --iterations, --sample, --counters, --cache-sim or --keep-profile.",
        at_most=100,
    )
    nice: Integer = option(
        UNKNOWN,
        "Niceness of the measured program.  [default: -20, the highest priority, if the system allows it]",
        metavar="N",
        at_least=LEAST_NICENESS,
        at_most=19,
    )
    warmup: Integer = count(
        UNKNOWN,
        "Number of warm-up invocations, which reports leave out.  [default: until times are steady;"
        " 3 with --iterations]",
        at_least=0,
        at_most=MOST_CALLS,
    )
    repeat: int = count(
        1,
        "Number of recordings, in separate processes, written as runs/run-NNN-I.parquet for `tracemap "
        "diff` to compare.",
        at_most=1000,
    )
    alternate: Path | None = option(
        None, "Also record this bundle with the same options, alternating with BUNDLE.", metavar="OTHER"
    )
    compare_devices: tuple[str, ...] = name_list(
        "Also time the invocations on these devices and on the run's own device, without the profiler: "
        "local-sync,local-task."
    )
    counters: tuple[str, ...] = name_list(
        "Events to count in extra executions of the program, such as page-faults,cache-misses; see `tracemap events`. "
        "On a CUDA device: such as l2-misses,dram-bytes."
    )
    counters_per_pass: int = count(
        0, "Maximum number of events to count in one execution.  [default: as many as the processor counts at a time]"
    )
    sample_hz: Integer = option(
        0,
        "Sample the program counter HZ times per second of each thread's CPU time, to measure the time of ops "
        "inside kernels.  [without HZ: the rate for 2,000 samples within --seconds]",
        "--sample",
        metavar="HZ",
        at_least=1,
        at_most=MOST_HZ,
        bare=UNKNOWN,
    )
    cache_sim: bool = option(
        False, "Simulate one invocation under valgrind, to count instructions and cache misses per line of kernel IR."
    )
    cache_geometry: tuple[str, ...] = option(
        (),
        "Size of the simulated I1, D1 or LL cache, such as D1=32768,8,64.  [repeatable; default: this "
        "machine's caches]",
        metavar="CACHE=BYTES,WAYS,LINE",
    )
    keep_profile: bool = option(False, "Keep IREE's own profile next to the run, as RUN.ireeprof, for iree-profile.")
    force: bool = option(False, "Overwrite an output that tracemap did not write.")


# ---- profile
#
# Options of `tracemap profile`.


@dataclass(frozen=True, slots=True)
class ProfileOptions(Options):
    """Options of `profile`: those of `build`, `record` and `report` that most users need."""

    output: Path | None = option(None, "Page to write.  [default: the bundle's name with .html]", "-o", "--output")
    open: bool = option(False, "Open the page in the browser.")
    function: Text = option(UNKNOWN, "Function of the model to run.  [default: the only one]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "Input in IREE's syntax (4x4xf32=0.5, 7, @x.npy), one per argument, or with the argument's name (x=@x.npy).  "
        "[default: those of the program, or generated]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = option(
        UNKNOWN, "Size of every dynamic dimension (`?`) in generated inputs.", metavar="N", at_least=0
    )
    flagfile: Path | None = option(None, "IREE flag file: function, inputs, parameters.", metavar="F")
    seconds: float = duration(5.0, "Time limit for measuring.")
    sample: bool = option(False, "Sample the program counter, to measure the time of ops inside kernels.")
    serial: bool = option(False, "Use one worker instead of all cores.")
    device: Literal["local", "vulkan", "cuda", "hip"] = option("local", "Target to compile for.")
    source_roots: tuple[Path, ...] = option(
        (),
        "Folder to search for the Python files in the model's locations, before TARGET's own folder.  [repeatable]",
        "--source-root",
        path="folder",
    )
    top: int = option(5, "Source lines to print.", metavar="N", at_least=1, at_most=1000)
    force: bool = option(False, "Overwrite a page that tracemap did not write.")
    flags: tuple[str, ...] = option((), "Flags for iree-compile.", FLAGS_AFTER_DASHES, metavar="[-- FLAGS]")


@dataclass(frozen=True, slots=True)
class RunOptions(CallOptions):
    """Options of `run`: the function to run, and how to use its outputs."""

    outputs: tuple[str, ...] = option(
        (),
        "Destination of an output, one per output: - (print), @x.npy, @x.bin, +x.npy (append), or empty "
        "(discard).  [default: print]",
        "--output",
        metavar="SPEC",
    )
    expected_outputs: tuple[str, ...] = option(
        (),
        "Expected output in the syntax of --input, or (ignored), one per output. The exit status is 1 if "
        "an output differs.",
        "--expected-output",
        metavar="SPEC",
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Require outputs that equal the expected ones to the last bit.")
    force: bool = option(False, "Overwrite files that tracemap did not write.")


@dataclass(frozen=True, slots=True)
class BenchmarkOptions(CallOptions):
    """Options of `benchmark`: the functions to time, how long, and the output."""

    repetitions: int = count(1, "Number of times to repeat the measurement.", at_most=MOST_CALLS)
    min_time: float = duration(0.5, "Minimum duration of a measurement.")
    iterations: Integer = count(
        UNKNOWN,
        "Exact number of invocations per measurement.  [default: as many as --min-time needs]",
        at_most=MOST_CALLS,
    )
    dispatch_repeat: int = count(
        1,
        "Run each kernel N times per invocation and divide the time by N, so that runtime overhead counts"
        " less. Compiles the module again.",
        at_most=100_000,
    )
    time_unit: Literal["ms", "us", "ns"] = option("ms", "Unit of times in the table and in JSON.")
    format: Literal["text", "json"] = option("text", "Google Benchmark's table, or its JSON.")


@dataclass(frozen=True, slots=True)
class StatsOptions(Options):
    """Options of `stats`: the recorded calls to include, and the output."""

    kernel: str = option(
        "",
        "Only calls of kernels with this name, its beginning, or a pattern.  [default: all]",
        metavar="NAME",
        variable="IREE_HOOK_FILTER_NAME",
    )
    skip_ms: int = option(
        0,
        "Skip the first milliseconds of each thread, counted from its first call.",
        metavar="MS",
        at_least=0,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    counters: tuple[str, ...] = name_list(
        "Only these events, in this order.  [default: all counted events]", variable="IREE_HOOK_PERF_EVENT_TYPES"
    )
    buckets: int = count(16, "Number of quantiles.", at_most=1024, variable="IREE_HOOK_BUCKET_COUNT")
    no_table: bool = option(False, "Leave out the tables of conditional probabilities.")
    gamma: float = option(
        0.5,
        "Exponent that maps probabilities to shades in the tables.",
        metavar="G",
        above=0,
        variable="IREE_HOOK_GAMMA",
    )
    csv: Path | None = option(
        None,
        "Also write the calls into this folder, one CSV file per thread, as IREE's hook does.",
        variable="IREE_HOOK_OUTPUT_CSV",
    )
    calls: Path | None = option(
        None,
        "Also write the calls as a table with one row per workgroup call: Parquet, or CSV if the name ends in .csv.",
        metavar="FILE",
    )
    html: Path | None = option(None, "Also write a page with histograms, correlations and heat maps.", metavar="PAGE")
    force: bool = option(False, "Overwrite files that tracemap did not write.")
    format: Literal["text", "json"] = option("text", "The text format of IREE's hook, or JSON.")


_MOST_CALLS: Final = 1_000_000_000_000_000
"""The hook ignores a larger number, and then records all calls."""


@dataclass(frozen=True, slots=True)
class HookEnvOptions(Options):
    """Options of `hook env`: the calls to record in another program, and the folder for them."""

    output: Path | None = option(
        None, "Folder for the record files; it must exist. Each process adds its own files.", "-o", "--output"
    )
    debug_info: tuple[Path, ...] = option(
        (),
        "Folder that `tracemap debug-info` wrote: perf, gdb and valgrind show the model's lines. Without --output, "
        "nothing is recorded.  [repeatable]",
        path="folder",
    )
    jitdump: Path | None = option(
        None, "With --debug-info: existing folder for a jitdump, for `perf inject --jit`.", path="folder"
    )
    device: Literal["local", "cuda"] = option(
        "local", "Work to record: calls on the CPU, or kernels and copies on NVIDIA GPUs."
    )
    filter: str = option(
        "",
        "Only kernels whose name matches this pattern.  [default: all]",
        metavar="GLOB",
        variable="IREE_HOOK_FILTER_NAME",
    )
    skip_ms: int = option(
        0,
        "Skip the first milliseconds of each thread, counted from its first call.",
        metavar="MS",
        at_least=0,
        at_most=1_000_000_000,
        variable="IREE_HOOK_SKIP_START_MS",
    )
    seconds: int = count(
        0, "On a GPU: record for this long after --skip-ms.  [default: no limit]", at_least=0, at_most=_MOST_CALLS
    )
    calls: int = count(0, "Maximum number of calls to record.  [default: no limit]", at_least=0, at_most=_MOST_CALLS)
    every: int = count(1, "Record only one call in N.", at_most=_MOST_CALLS)
    thread_mb: int = option(
        1024,
        "Maximum size of the calls recorded per thread, in megabytes.",
        metavar="MB",
        at_least=2,
        at_most=1_000_000,
    )
    keep: Literal["oldest", "newest"] = option(
        "oldest", "Calls to keep when --thread-mb is reached: the oldest, or the newest (for long-running servers)."
    )
    counters: tuple[str, ...] = name_list(
        "Events to count around each call; see `tracemap events`.", variable="IREE_HOOK_PERF_EVENT_TYPES"
    )
    export: bool = option(False, "Print export statements for a shell's eval, instead of arguments for env.")


@dataclass(frozen=True, slots=True)
class EventsOptions(Options):
    """Options of `events`: events to list, and the output."""

    device: Literal["local", "cuda"] = option("local", "Events of this machine's CPUs, or of NVIDIA GPUs.")
    all: bool = option(False, "On AMD's Zen 4: also list its raw events.")
    format: Literal["text", "json"] = option("text", "A table, or JSON with the hook's setting for each event.")


@dataclass(frozen=True, slots=True)
class DoctorOptions(Options):
    """Options of `doctor`: the output format."""

    format: Literal["text", "json"] = option("text", "A table, or JSON.")
    report: bool = option(False, "Print a bug report in Markdown, with everything but your own words filled in.")
