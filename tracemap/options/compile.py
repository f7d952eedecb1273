"""Options of `build`, `lower`, `audit`, `show` and `remarks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import BEHIND_DASHES, Options, option, required
from tracemap.options.results import DISPATCH_HELP, KEEP_DISTURBED_HELP, RULE_HELP, Rule, memory_option
from tracemap.units import UNKNOWN, Unknown

# ---- build
#
# What `tracemap build` can be asked.


@dataclass(frozen=True, slots=True)
class BuildOptions(Options):
    """How to compile a model, or read a compilation made elsewhere, and what its bundle holds."""

    output: Path | None = option(None, "The bundle.  [default: MODEL's name, with .tracemap]", "-o", "--output")
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
    remarks: bool = option(
        False, "Keep the compiler's remarks too: what it spilled or did not vectorise, and why. Compiles twice."
    )
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
    parameters: tuple[str, ...] = option(
        (),
        "A file of parameters that calls hand to the module (.irpa, .safetensors, .gguf), and their scope. The bundle "
        "refers to it, and copies nothing.  [repeatable]",
        metavar="[SCOPE=]FILE",
    )
    flags: tuple[str, ...] = option((), "Flags for iree-compile.", BEHIND_DASHES, metavar="[-- IREE-COMPILE FLAGS]")

    @property
    def parameter_files(self) -> tuple[tuple[str, Path], ...]:
        """The files of parameters with their scopes, "" for none; a scope ends at the first `=`, as IREE reads it."""
        split = (text.partition("=") for text in self.parameters)
        return tuple((scope, Path(path)) if equals else ("", Path(scope)) for scope, equals, path in split)


# ---- lower
#
# What `tracemap lower` can be asked.


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


# ---- audit
#
# What `tracemap audit` can be asked.


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


# ---- show
#
# What `tracemap show` can be asked.


@dataclass(frozen=True, slots=True)
class ShowOptions(Options):
    """How to print a map."""

    format: Literal["text", "json"] = option("text", "What to print.")
    remarks: bool = option(False, "What the compiler remarked, too, where the bundle was built with --remarks.")
    assembly: bool = option(False, "With a kernel: its instructions too.")


# ---- remarks
#
# What `tracemap remarks` can be asked.


@dataclass(frozen=True, slots=True)
class RemarksOptions(Options):
    """Which remarks to print, by which cost they are ranked, and where they go."""

    metric: str | None = option(None, "The metric to rank by.  [default: time]", metavar="NAME")
    top: int = option(40, "Rows of the text's table; 0: all.", metavar="N", at_least=0)
    figures: bool = option(False, "List what only counts, too: instructions, bytes of the stack.")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the result says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json"] = option("text", "A table, or JSON with all remarks.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    memory: int = memory_option()
    force: bool = option(False, "Replace the output if it exists.")
