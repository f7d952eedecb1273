"""What a frontend makes of a program: a model as MLIR, and all that the program knows of itself beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tracemap.diagnostics import Diagnostic
from tracemap.graph.documents import Keeping
from tracemap.mapping.texts import no_text


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was made of a program, as text or bytecode.

    `name`: what the program is called, of which the names of the model's file and of its bundle are made;
    `keeping`: the inputs that it was handed in with, and its parameters; `text_of`: the texts of its Python files.
    """

    name: str
    data: bytes
    keeping: Keeping = field(default_factory=Keeping)
    text_of: Callable[[str], str | None] = no_text
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def file_name(self) -> str:
        """What the model's text is called in reports."""
        return f"{self.name}.mlir"


def as_identifier(name: str, otherwise: str = "main") -> str:
    """A program's name as one of files and functions, as far as there is something to make one of.

    >>> as_identifier("<lambda>"), as_identifier("***")
    ('lambda', 'main')
    """
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or otherwise
