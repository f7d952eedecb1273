"""Result of a frontend: a model as MLIR, with the program's inputs, parameters and Python sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tracemap.diagnostics import Diagnostic
from tracemap.graph.documents import Keeping
from tracemap.mapping.texts import no_text


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model, as MLIR text or bytecode.

    `name`: name of the program, used in the names of the model's file and bundle; `keeping`: its inputs and parameters;
    `text_of`: returns the texts of its Python files.
    """

    name: str
    data: bytes
    keeping: Keeping = field(default_factory=Keeping)
    text_of: Callable[[str], str | None] = no_text
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def file_name(self) -> str:
        """Name of the model's text in reports."""
        return f"{self.name}.mlir"


def as_identifier(name: str, otherwise: str = "main") -> str:
    """Convert a program's name to a valid identifier; `otherwise` if nothing is left of it.

    >>> as_identifier("<lambda>"), as_identifier("***")
    ('lambda', 'main')
    """
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or otherwise
