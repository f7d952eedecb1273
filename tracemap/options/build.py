"""What `tracemap build` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import BEHIND_DASHES, Options, option


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
