"""Options of `bench`, `tune`, `swap` and `sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.measure import CallOptions, FunctionOptions
from tracemap.options.option import ABSOLUTE, BEHIND_DASHES, RELATIVE, Options, option
from tracemap.units import UNKNOWN, Unknown

# ---- bench
#
# What `tracemap bench` can be asked.


@dataclass(frozen=True, slots=True)
class BenchOptions(FunctionOptions):
    """Which kernels of a bundle to run alone, how, and where the result goes."""

    kernel: tuple[str, ...] = option((), "Only kernels whose name is like this, such as '*matmul*'.", metavar="GLOB")
    op: tuple[str, ...] = option((), "Only kernels that an op works in: op12.", metavar="OP")
    top: int = option(0, "Only so many, those that cost the most in the run.  [default: all]", metavar="N", at_least=1)
    run: Path | None = option(None, "The run to compare with.  [default: the newest in the bundle]", metavar="RUN")
    cold: bool = option(
        False, "Measure with cold caches too.  [default: only where the application takes another time]"
    )
    no_verify: bool = option(False, "Do not compare what kernels compute with a reference.")
    repetitions: int = option(10, "How often a batch of calls is timed.", metavar="N", at_least=1, at_most=10_000)
    processes: int = option(
        5, "So many processes share the repetitions; times differ between them.", metavar="N", at_least=1, at_most=1_000
    )
    min_time: float = option(
        10.0,
        "A batch takes so long at least, and a hundred times as long as its submission.",
        metavar="MS",
        above=0,
        at_most=60_000,
    )
    time_limit: float = option(
        60.0, "Give a kernel up that takes longer in a process.", metavar="S", above=0, at_most=86_400
    )
    seconds: float = option(
        1.0,
        "Where the application takes another time, record it again for so long, on one worker; 0: not at all.",
        metavar="S",
        at_least=0,
        at_most=86_400,
    )
    output: Path | None = option(None, "Write here instead of standard output.", "-o", "--output")
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json", "csv", "google-benchmark"] = option("text", "What to print.")


# ---- tune
#
# What `tracemap tune` can be asked.


@dataclass(frozen=True, slots=True)
class TuneOptions(CallOptions):
    """Which kernels of a bundle to tune, how long to look, and how the result is tried in the application."""

    op: tuple[str, ...] = option((), "Tune the kernels that an op works in: op12.", metavar="OP")
    kernel: tuple[str, ...] = option((), "Tune kernels whose name is like this.", metavar="GLOB")
    top: int = option(
        0, "Tune the N that cost the most in the newest run.  [default: what is named]", metavar="N", at_least=1
    )
    candidates: int = option(
        24, "Try at most so many configurations of a kernel.", metavar="N", at_least=1, at_most=10_000
    )
    time_limit: float = option(60.0, "Measure a kernel no longer than this.", metavar="S", above=0, at_most=86_400)
    output: Path | None = option(None, "The tuning spec.  [default: BUNDLE's name, with .spec.mlir]", "-o", "--output")
    work: Path | None = option(
        None,
        "Keep candidates and results here, to go on after an end.  [default: OUTPUT.work; BUNDLE's name if printed]",
    )
    write_for_amdsharktuner: Path | None = option(
        None, "For AMD GPUs: write the kernels into this folder, for amdsharktuner to tune.", metavar="DIR"
    )
    pairs: int = option(
        6, "Record the application before and after so often, in turn; 0: not at all.", metavar="N", at_least=0
    )
    seconds: float = option(1.0, "Measure no longer than this in each recording.", metavar="S", above=0, at_most=86_400)
    threshold: float = option(3.0, "A gain is more than this, in percent.", metavar="PERCENT", at_least=0)
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json"] = option("text", "What to print.")


# ---- swap
#
# What `tracemap swap` can be asked.


@dataclass(frozen=True, slots=True)
class SwapOptions(CallOptions):
    """Which kernels of a bundle to replace by what, where the new bundle goes, and how the two are compared."""

    output: Path | None = option(None, "The new bundle, or with --dump the file.", "-o", "--output")
    dump: Literal["source", "configuration", "object"] | None = option(
        None, "Write the kernel as it is at this stage, to be edited, instead of replacing it."
    )
    sources_from: Path | None = option(
        None, "Replace kernels by the sources in this folder, EXECUTABLE.mlir each.", path="folder"
    )
    configurations_from: Path | None = option(None, "The same with configurations.", path="folder")
    objects_from: Path | None = option(None, "The same with objects.", path="folder")
    no_verify: bool = option(False, "Do not compare what the kernels compute with the original's reference.")
    verify_application: bool = option(
        False, "Call the functions of both bundles with the same inputs, and compare their outputs."
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Outputs must be those of the original to the last bit.")
    pairs: int = option(
        6, "Record the two bundles so often, in turn; 0: not at all.", metavar="N", at_least=0, at_most=1000
    )
    seconds: float = option(1.0, "Measure no longer than this in each recording.", metavar="S", above=0, at_most=86_400)
    threshold: float = option(
        5.0, "Name an op whose cost changed by more than this, in percent.", metavar="PERCENT", at_least=0
    )
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json"] = option("text", "What to print.")


# ---- sweep
#
# What `tracemap sweep` can be asked.


@dataclass(frozen=True, slots=True)
class SweepOptions(Options):
    """Which operations to compile with which configurations, what to do with them, and where the table goes."""

    size: tuple[str, ...] = option(
        (),
        "A size as LETTER=SIZES; SIZES are numbers and ranges: M=64,128 or K=64:512:64 (512 included).  [repeatable]",
        metavar="LETTER=SIZES",
    )
    type: tuple[str, ...] = option(
        ("f32",), "Element types: f32, f16, bf16, f64, i8 (with i32 sums).  [default: f32]", metavar="A,B", split=True
    )
    epilogue: tuple[str, ...] = option(
        ("none",), "What is fused behind: none, bias, relu, bias+relu.  [default: none]", metavar="A,B", split=True
    )
    config: tuple[str, ...] = option(
        (),
        "A configuration: default, or tiles=32x64;vectors=8x8x16;pipeline=NAME;spec=FILE.  "
        "[repeatable; default: default]",
        metavar="CONFIG",
    )
    configs_from: Path | None = option(None, "Each tuning spec (*.mlir) of a folder is one more.", path="folder")
    dispatches: tuple[str, ...] = option(
        (), "Only operations whose name matches one of these regular expressions.", metavar="REGEX,…", split=True
    )
    only: Literal["generate", "compile", "verify", "profile"] | None = option(
        None, "Do no more than this; generate: write the programs into the work folder, compile: compile them too."
    )
    no_verify: bool = option(False, "Do not compare what kernels compute with numpy's results.")
    repetitions: int = option(5, "How often a batch of calls is timed.", metavar="N", at_least=1, at_most=10_000)
    min_time: float = option(10.0, "A batch takes so long at least.", metavar="MS", above=0, at_most=60_000)
    jobs: int = option(0, "Compile so many at once.  [default: one per core]", metavar="N", at_least=1, at_most=1024)
    tag: tuple[str, ...] = option(
        (), "A column for the rows of this call; other tags make other rows.  [repeatable]", metavar="NAME=VALUE"
    )
    output: Path | None = option(None, "The table (CSV).  [default: standard output]", "-o", "--output")
    append: bool = option(False, "Add rows to a table that exists; what it has already is not done again.")
    work: Path | None = option(
        None,
        "Keep programs, modules and results here, to go on after an end.  [default: OUTPUT.work; nowhere if printed]",
    )
    force: bool = option(False, "Replace the output if it exists.")
    flags: tuple[str, ...] = option((), "Flags for iree-compile.", BEHIND_DASHES, metavar="[-- IREE-COMPILE FLAGS]")
