"""What `tracemap sweep` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import BEHIND_DASHES, Options, option


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
