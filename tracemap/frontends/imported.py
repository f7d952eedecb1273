"""Imported models, and the Python sources that they name."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.map.build.tagging import no_known_text
from tracemap.map.bundle_documents import CallToKeep

# ---- python texts
#
# Source texts of the Python code in this process, including notebook cells.
#
# A model may name any file, but only files that this process has loaded code from are read.

OWN_FOLDER: Final = Path(__file__).parent.parent
"""Folder of tracemap's own code, which is never part of the program."""


def loaded_text(name: str) -> str | None:
    """The text of a Python file that this process has loaded; None for other files."""
    if (name not in linecache.cache and name not in _loaded_files()) or Path(name).is_relative_to(OWN_FOLDER):
        return None
    return "".join(linecache.getlines(name)) or None


def _loaded_files() -> set[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str) and file.endswith(".py")}


# ---- imported
#
# Result of a frontend: a model as MLIR, with the program's inputs, parameters and Python sources.


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """An imported model, as MLIR text or bytecode.

    `name`: name of the program, used in the names of the model's file and bundle; `keeping`: its inputs and parameters;
    `text_of`: returns the texts of its Python files; `explain`: rewords the compiler's error in the framework's terms.
    """

    name: str
    data: bytes
    keeping: CallToKeep = field(default_factory=CallToKeep)
    text_of: Callable[[str], str | None] = no_known_text
    diagnostics: tuple[Diagnostic, ...] = ()
    explain: Callable[[str], str] = str

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
