"""What a bundle is made of: a model, where the bundle goes, and the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import InputInvalid
from tracemap.graph.kept import Keeping
from tracemap.graph.model import LIBRARY
from tracemap.inputs import check_is_file
from tracemap.mapping.compiler.compiling import Compiler
from tracemap.mapping.texts import no_text
from tracemap.options.build import BuildOptions

_ARCHIVES: Final = (".irpa", ".safetensors", ".gguf")
"""Endings of files of parameters, by which IREE's runtime tells them apart."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build: a model's bytes (of a compilation made elsewhere there may be none) and its name (shown, kept)."""

    model: bytes
    file_name: str
    target: Path
    options: BuildOptions = field(default_factory=BuildOptions)
    own_folder: tuple[Path, ...] = ()
    """The folder below which Python files are looked for last; none for a model without one."""
    compiler: Compiler | None = None
    """The program and all its flags, as somebody else gives them; None: they are made of the options."""
    name_for_compiler: str = ""
    """What the compiler would call the model (it names libraries so); "": its file name."""

    opaque_kernels: frozenset[str] = frozenset()
    """Names of kernels whose machine code is not made from their IR: they have no text and no steps."""

    text_of: Callable[[str], str | None] = no_text
    """The text of a Python file that frames name, where whoever hands in the model knows it; else it is looked for."""
    keeping: Keeping = field(default_factory=Keeping)
    """What the module is called with, where that is handed in with the model."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """What is to be said of how the model was made."""

    @property
    def kept(self) -> Keeping:
        """What the bundle keeps to be called with: what was handed in, and what the options name."""
        named = self.options.parameter_files
        scopes = {scope for scope, _ in named}
        others = (each for each in self.keeping.references if each[0] not in scopes)
        return replace(self.keeping, references=(*others, *named))

    def check_parameters(self) -> None:
        """Refuse files of parameters that could not be handed to the module.

        Raises:
            InputInvalid: one cannot be read, or is of a kind that IREE does not read.
        """
        for _, path in self.options.parameter_files:
            check_is_file(path, InputInvalid)
            if path.suffix not in _ARCHIVES:
                raise InputInvalid(f"--parameters: {path} is none of the kinds that IREE reads: {', '.join(_ARCHIVES)}")

    @property
    def source_roots(self) -> tuple[Path, ...]:
        """Where Python files of frames may lie, the options' folders first."""
        return (*self.options.source_roots, *self.own_folder)

    @property
    def library(self) -> tuple[str, ...]:
        """Patterns of files whose frames are not the user's own."""
        return self.options.library or LIBRARY
