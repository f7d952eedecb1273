"""Options of `bench`, `tune`, `swap` and `sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.options.measure import CallOptions, FunctionOptions
from tracemap.options.option import (
    ABSOLUTE,
    FLAGS_AFTER_DASHES,
    RELATIVE,
    Options,
    count,
    duration,
    name_list,
    option,
    percentage,
)

OPS_HELP: Final = (
    "an op (op12), the ops of a line (train.py:40), of a function, a scope or an ONNX node, or ops by name"
)


@dataclass(frozen=True, slots=True)
class BenchOptions(FunctionOptions):
    """Options of `bench`: which kernels to run alone, how to time them, and the output."""

    kernel: tuple[str, ...] = option(
        (), "Only kernels with this name, its beginning, or a pattern such as '*matmul*'.  [repeatable]", metavar="NAME"
    )
    op: tuple[str, ...] = option((), f"Only kernels that run {OPS_HELP}.  [repeatable]", metavar="WHAT")
    top: int = count(0, "Only the N most expensive kernels of the run.  [default: all]")
    run: Path | None = option(None, "Run to compare with.  [default: the newest in the bundle]", metavar="RUN")
    cold: bool = option(
        False,
        "Measure all kernels with cold caches, too.  [default: only kernels whose time in the application differs]",
    )
    no_verify: bool = option(False, "Do not compare the kernels' results with a reference.")
    repetitions: int = count(
        10, "Number of timed batches of calls per kernel, in all processes together.", at_most=10_000
    )
    processes: int = count(
        5, "Number of processes to split the repetitions over, since times differ between processes.", at_most=1_000
    )
    min_time: float = option(
        10.0,
        "Minimum duration of a batch; at least 100 times the cost of submitting it.",
        metavar="MS",
        above=0,
        at_most=60_000,
    )
    time_limit: float = duration(60.0, "Give up on a kernel that takes longer than this in one process.")
    seconds: float = option(
        1.0,
        "Time limit for recording the application again on one worker, to explain kernels whose time "
        "differs there; 0: do not record.",
        metavar="S",
        at_least=0,
        at_most=86_400,
    )
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
    format: Literal["text", "json", "csv", "google-benchmark"] = option("text", "Output format.")


@dataclass(frozen=True, slots=True)
class TuneOptions(CallOptions):
    """Options of `tune`: which kernels to tune, how long to search, and how to test the result in the application."""

    op: tuple[str, ...] = option((), f"Tune the kernels that run {OPS_HELP}.  [repeatable]", metavar="WHAT")
    kernel: tuple[str, ...] = option(
        (), "Tune kernels with this name, its beginning, or a pattern.  [repeatable]", metavar="NAME"
    )
    top: int = count(
        0, "Tune the N most expensive kernels of the newest run.  [default: all that --op and --kernel select]"
    )
    candidates: int = count(24, "Maximum number of configurations to try per kernel.", at_most=10_000)
    time_limit: float = duration(60.0, "Time limit for the search on one kernel.")
    output: Path | None = option(
        None, "Tuning spec to write.  [default: BUNDLE's name with .spec.mlir]", "-o", "--output"
    )
    work: Path | None = option(
        None,
        "Folder for candidates and results, so that an interrupted search can resume.  [default: "
        "OUTPUT.work; BUNDLE.spec.mlir.work if the spec is printed]",
    )
    write_for_amdsharktuner: Path | None = option(
        None, "For AMD GPUs: write the kernels into this folder, for amdsharktuner to tune.", metavar="DIR"
    )
    pairs: int = count(
        6, "Number of alternating recordings of the application before and after tuning; 0: none.", at_least=0
    )
    seconds: float = duration(1.0, "Time limit for each recording.")
    threshold: float = percentage(3.0, "Minimum gain to count as an improvement, in percent.")
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
    format: Literal["text", "json"] = option("text", "Output format.")


@dataclass(frozen=True, slots=True)
class SwapOptions(CallOptions):
    """Options of `swap`: replacements for kernels, the new bundle, and how to compare it with the original."""

    output: Path | None = option(None, "New bundle to write; with --dump: the file to write.", "-o", "--output")
    dump: Literal["source", "configuration", "object"] | None = option(
        None, "Write the kernel at this stage of compilation, for editing, instead of replacing it."
    )
    sources_from: Path | None = option(
        None, "Folder of kernel sources to use: NAME.mlir replaces the executable NAME.", path="folder"
    )
    configurations_from: Path | None = option(
        None, "Folder of edited configurations, with the same file names.", path="folder"
    )
    objects_from: Path | None = option(None, "Folder of edited objects, with the same file names.", path="folder")
    no_verify: bool = option(False, "Do not verify the results of the replaced kernels.")
    verify_application: bool = option(
        False, "Run the functions of both bundles with the same inputs, and compare their outputs."
    )
    atol: float | Unknown = option(UNKNOWN, ABSOLUTE, metavar="X", at_least=0)
    rtol: float | Unknown = option(UNKNOWN, RELATIVE, metavar="X", at_least=0)
    exact: bool = option(False, "Require outputs that equal the original's to the last bit.")
    pairs: int = count(6, "Number of alternating recordings of each bundle; 0: none.", at_least=0, at_most=1000)
    seconds: float = duration(1.0, "Time limit for each recording.")
    threshold: float = percentage(5.0, "Report ops whose cost changed by more than this percentage.")
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
    format: Literal["text", "json"] = option("text", "Output format.")


@dataclass(frozen=True, slots=True)
class SweepOptions(Options):
    """Options of `sweep`: operations and configurations to try, how far to go, and the table."""

    size: tuple[str, ...] = option(
        (),
        "Sizes of one dimension, as numbers or ranges: M=64,128 or K=64:512:64 (512 included).  [repeatable]",
        metavar="LETTER=SIZES",
    )
    type: tuple[str, ...] = option(
        ("f32",),
        "Element types: f32, f16, bf16, f64, i8 (accumulated in i32).  [default: f32]",
        metavar="A,B",
        split=True,
    )
    epilogue: tuple[str, ...] = option(
        ("none",), "Epilogues to fuse: none, bias, relu, bias+relu.  [default: none]", metavar="A,B", split=True
    )
    config: tuple[str, ...] = option(
        (),
        "Configuration: default, or tiles=32x64;vectors=8x8x16;pipeline=NAME;spec=FILE.  [repeatable; "
        "default: default]",
        metavar="CONFIG",
    )
    configs_from: Path | None = option(
        None, "Folder of tuning specs (*.mlir), each of which is one configuration to try.", path="folder"
    )
    dispatches: tuple[str, ...] = name_list(
        "Only generated operations whose name matches one of these regular expressions.", metavar="REGEX,…"
    )
    only: Literal["generate", "compile", "verify", "profile"] | None = option(
        None,
        "Stop after this step. generate: write the programs into the work folder; compile: also compile "
        "them; verify: also check their results; profile: all steps.",
    )
    no_verify: bool = option(False, "Do not compare the kernels' results with numpy's.")
    repetitions: int = count(5, "Number of timed batches of calls per configuration.", at_most=10_000)
    min_time: float = option(10.0, "Minimum duration of a batch.", metavar="MS", above=0, at_most=60_000)
    jobs: int = count(0, "Number of parallel compilations.  [default: one per core]", at_most=1024)
    tag: tuple[str, ...] = option(
        (),
        "Extra column with this value. With --append, existing rows with other tags do not count as done. "
        " [repeatable]",
        metavar="NAME=VALUE",
    )
    output: Path | None = option(None, "Table to write (CSV).  [default: standard output]", "-o", "--output")
    append: bool = option(False, "Add rows to an existing table, and skip the rows that it already has.")
    work: Path | None = option(
        None,
        "Folder for programs, modules and results, so that an interrupted sweep can resume.  [default: "
        "OUTPUT.work; none if the table is printed]",
    )
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
    flags: tuple[str, ...] = option(
        (), "Flags for iree-compile.", FLAGS_AFTER_DASHES, metavar="[-- IREE-COMPILE FLAGS]"
    )


@dataclass(frozen=True, slots=True)
class NumericsOptions(FunctionOptions):
    """Options of `numerics`: the call, what to compare its results with, and the output."""

    against: str = option(
        "",
        "Also compare with `f64`, a double-precision run of the whole program, or with another bundle.  "
        "[default: each kernel alone]",
        metavar="f64|BUNDLE",
    )
    calls: int = count(16, "Calls of a kernel on the same buffers to compare with the reference.", at_least=0)
    statistics: bool = option(False, "Only count and measure the outputs; compare nothing.")
    top: int = count(20, "Rows of the table; 0: all.", at_least=0)
    format: Literal["text", "json"] = option("text", "A table, or JSON with all values.")
