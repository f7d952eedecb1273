"""Options of `build`, `lower`, `audit`, `memory`, `show`, `debug-info` and `remarks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.options.option import FLAGS_AFTER_DASHES, Options, count, option, percentage, required
from tracemap.options.results import DISPATCH_HELP, KEEP_OUTLIERS_HELP, RULE_HELP, Rule, memory_option


@dataclass(frozen=True, slots=True)
class BuildOptions(Options):
    """Options of `build`: how to compile or import a model, and what its bundle contains."""

    output: Path | None = option(None, "Bundle to write.  [default: MODEL's name with .tracemap]", "-o", "--output")
    device: Literal["local", "vulkan", "cuda", "hip"] = option(
        "local", "Target to compile for, unless flags after -- select one."
    )
    source_roots: tuple[Path, ...] = option(
        (),
        "Folder to search for the Python files in the model's locations, before MODEL's own folder.  [repeatable]",
        "--source-root",
        path="folder",
    )
    no_sources: bool = option(False, "Do not copy source files into the bundle.")
    remarks: bool = option(
        False, "Also keep the compiler's remarks: what it spilled or did not vectorise, and why. Compiles twice."
    )
    timing: bool = option(
        False, "Also measure the compiler's seconds by kernel and pass, and print the slowest. Compiles twice."
    )
    force: bool = option(False, "Overwrite a damaged bundle too.")
    no_cache: bool = option(
        False,
        "Compile even if an earlier build had the same model and flags.  [default: copy that bundle, from "
        "$TRACEMAP_CACHE_DIR or ~/.cache/tracemap]",
    )
    from_dumps: Path | None = option(
        None,
        "Read the IR dumps of an earlier iree-compile invocation from this folder, instead of compiling.",
        path="folder",
    )
    module: Path | None = option(
        None, "With --from-dumps: the module (.vmfb) that the compilation produced.", path="file"
    )
    to: Literal["iree", "native"] = option(
        "iree", "Compile with IREE, or to a shared library with MLIR's own tools (mlir-opt, mlir-translate, clang)."
    )
    pipelines: tuple[str, ...] = option(
        (),
        "With --to native: pass pipeline in mlir-opt's syntax, builtin.module(…). The last must end in the llvm "
        "dialect.  [repeatable]",
        "--pipeline",
        metavar="PIPELINE",
    )
    from_native: Path | None = option(
        None,
        "Read this shared library or program instead of compiling. Its debug lines must be those of MODEL or of --ir.",
        path="file",
    )
    model_file: Path | None = option(None, "With --from-native: the model, instead of MODEL.", "--model", path="file")
    ir: tuple[Path, ...] = option(
        (), "With --from-native: a later stage of MODEL, printed with its locations.  [repeatable]", path="file"
    )
    library: tuple[str, ...] = option(
        (),
        "Shell pattern of Python files to treat as library code: ops are attributed to your own lines that call it.  "
        "[repeatable; default: site-packages …]",
        metavar="PATTERN",
    )
    parameters: tuple[str, ...] = option(
        (),
        "Parameter file (.irpa, .safetensors, .gguf) that the module needs at run time, and its scope. "
        "The bundle refers to the file and does not copy it.  [repeatable]",
        metavar="[SCOPE=]FILE",
    )
    flags: tuple[str, ...] = option(
        (),
        "Flags for iree-compile; with --to native, for clang (default: -O3).",
        FLAGS_AFTER_DASHES,
        metavar="[-- COMPILER FLAGS]",
    )

    @property
    def parameter_files(self) -> tuple[tuple[str, Path], ...]:
        """Parameter files with their scopes, "" for none; a scope ends at the first `=`, as in IREE."""
        split = (text.partition("=") for text in self.parameters)
        return tuple((scope, Path(path)) if equals else ("", Path(scope)) for scope, equals, path in split)


@dataclass(frozen=True, slots=True)
class LowerOptions(Options):
    """Options of `lower`: pass pipelines to run over a model, and outputs."""

    pipelines: tuple[str, ...] = required(
        "Pass pipeline in iree-opt's syntax, builtin.module(…). Each pipeline continues from the result "
        "of the one before.  [repeatable]",
        "--pipeline",
        metavar="PIPELINE",
    )
    format: Literal["text", "json"] = option("text", "Output format.")
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Also write an HTML page of all stages.", metavar="PAGE")
    force: bool = option(False, "Overwrite outputs that tracemap did not write.")


@dataclass(frozen=True, slots=True)
class AuditOptions(Options):
    """Options of `audit`: output format, ops to examine further, and the limit for failure."""

    format: Literal["text", "json"] = option("text", "Tables, or JSON that lists every op.")
    fail_under: float | Unknown = percentage(
        UNKNOWN,
        "Exit with status 1 if less than this percentage of the model's ops have a source location of their own, and "
        "list the other ops.",
        at_most=100,
    )
    ops: tuple[str, ...] = option(
        (),
        "Find the pass that lost the location of this op, line or function, and print the IR before and after it. "
        "Compiles again.  [repeatable]",
        "--pass",
        metavar="OP",
    )


@dataclass(frozen=True, slots=True)
class MemoryOptions(Options):
    """Options of `memory`: the function and the sizes of its arguments, ops to leave out, and the output format."""

    function: Text = option(UNKNOWN, "Only this function.", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "Input in IREE's syntax (8x128xf32), one per argument, or with the argument's name (x=8x128xf32). Only its "
        "shape matters.",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = count(UNKNOWN, "Size of every dynamic dimension (`?`) without an input.", at_least=0)
    without: tuple[str, ...] = option(
        (), "Leave out this op, line or function: its users use its operand.  [repeatable]", metavar="OP"
    )
    top: int = count(20, "Rows of the table, and ops with a peak without them; 0: all rows.", at_least=0)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the result carries a warning.")
    format: Literal["text", "json"] = option("text", "A table, or JSON with all values.")
    memory: int = memory_option()


@dataclass(frozen=True, slots=True)
class ShowOptions(Options):
    """Options of `show`: output format and details of the map."""

    format: Literal["text", "json"] = option("text", "Output format.")
    remarks: bool = option(
        False, "Also print the compiler's remarks. Requires a bundle from `tracemap build --remarks`."
    )
    cost: bool = option(
        False,
        "Print the bytes of the module by op and kernel, and the compiler's seconds of a bundle from `tracemap build "
        "--timing`; the text has the rest of the map only with WHAT.",
    )
    assembly: bool = option(False, "Also print the instructions of the kernels that WHAT names or runs in.")


@dataclass(frozen=True, slots=True)
class DebugInfoOptions(Options):
    """Options of `debug-info`: the folder to write, and the text that lines refer to."""

    output: Path = required("Folder to write.", "-o", "--output", metavar="DIR")
    lines: Literal["mlir", "python", "kernel"] = option(
        "mlir",
        "Lines to show: of the model, of the Python program that made it (of the model for ops without one), or of the "
        "kernels' IR.",
    )
    format: Literal["text", "json"] = option("text", "A summary, or JSON with all files.")
    force: bool = option(False, "Replace a folder of debug information with other files in it.")


@dataclass(frozen=True, slots=True)
class RemarksOptions(Options):
    """Options of `remarks`: which remarks to print, how to rank them, and where to write them."""

    metric: str | None = option(None, "Metric to rank by.  [default: time]", metavar="NAME")
    top: int = count(40, "Rows of the text table; 0: all.", at_least=0)
    figures: bool = option(False, "Also list remarks that only report numbers: instruction counts, stack bytes.")
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the result carries a warning.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json"] = option("text", "A table, or JSON with all remarks.")
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    memory: int = memory_option()
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
