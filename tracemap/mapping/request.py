"""What a bundle is made of: a model, where the bundle goes, and the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.diagnostics import Diagnostic
from tracemap.graph.kept import Keeping
from tracemap.graph.model import LIBRARY
from tracemap.mapping.compiler.compiling import Compiler
from tracemap.mapping.texts import no_text
from tracemap.options.build import BuildOptions


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
    def source_roots(self) -> tuple[Path, ...]:
        """Where Python files of frames may lie, the options' folders first."""
        return (*self.options.source_roots, *self.own_folder)

    @property
    def library(self) -> tuple[str, ...]:
        """Patterns of files whose frames are not the user's own."""
        return self.options.library or LIBRARY
