"""What the commands that take a model or its bundle can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import BEHIND_DASHES, Options, option, required
from tracemap.units import UNKNOWN, Unknown


@dataclass(frozen=True, slots=True)
class BuildOptions(Options):
    """How to compile a model, or read a compilation made elsewhere, and what its bundle holds."""

    output: Path | None = option(None, "The bundle.  [default: MODEL's name .tracemap]", "-o", "--output")
    device: Literal["local", "vulkan", "cuda", "hip"] = option(
        "local", "What to compile for, unless the flags after -- name a target."
    )
    source_roots: tuple[Path, ...] = option(
        (),
        "A folder below which Python files of frames are looked for, before MODEL's own.  [repeatable]",
        "--source-root",
        path="folder",
    )
    no_sources: bool = option(False, "Keep no source text in the bundle.")
    force: bool = option(False, "Replace a bundle that exists.")
    from_dumps: Path | None = option(
        None,
        "Read the phase dumps of a compilation made elsewhere from this folder, instead of compiling.",
        path="folder",
    )
    module: Path | None = option(None, "With --from-dumps: the module that the compilation made.", path="file")
    library: tuple[str, ...] = option(
        (),
        "Files (as a shell's pattern) whose frames come after the user's own.  [repeatable; default: site-packages …]",
        metavar="PATTERN",
    )
    flags: tuple[str, ...] = option((), "Flags for iree-compile.", BEHIND_DASHES, metavar="[-- IREE-COMPILE FLAGS]")


@dataclass(frozen=True, slots=True)
class ShowOptions(Options):
    """How to print a map."""

    format: Literal["text", "json"] = option("text", "What to print.")
    assembly: bool = option(False, "With a kernel: its instructions too.")


@dataclass(frozen=True, slots=True)
class AuditOptions(Options):
    """How to print what became of ops, what to find out besides, and when to fail."""

    format: Literal["text", "json"] = option("text", "Tables, or JSON that names every op.")
    fail_under: float | Unknown = option(
        UNKNOWN,
        "End with status 1, and a list, where fewer ops than this have a location of their own in the model.",
        metavar="PERCENT",
        at_least=0,
        at_most=100,
    )
    ops: tuple[str, ...] = option(
        (),
        "Compile again, printing IR around passes, and name the pass that lost this op.  [repeatable]",
        "--pass",
        metavar="OP",
    )


@dataclass(frozen=True, slots=True)
class LowerOptions(Options):
    """Which pass pipelines to run over a model, and where the result goes."""

    pipelines: tuple[str, ...] = required(
        "A pass pipeline as iree-opt takes it, builtin.module(…); the next one goes on from its result.  [repeatable]",
        "--pipeline",
        metavar="PIPELINE",
    )
    format: Literal["text", "json"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Write the page of stages too.", metavar="PAGE")
    force: bool = option(False, "Replace outputs that exist.")
