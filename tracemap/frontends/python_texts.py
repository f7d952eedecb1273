"""Source texts of the Python code in this process, including notebook cells.

A model may name any file, but only files that this process has loaded code from are read.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Final

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
