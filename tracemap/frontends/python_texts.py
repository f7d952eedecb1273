"""The texts of the Python code that runs in this process, cells of notebooks included.

A model names files; only files that this process has loaded code from are read for it.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Final

OWN_FOLDER: Final = Path(__file__).parent.parent
"""Where tracemap's own code lies, which is no part of the program, though it called it."""


def loaded_text(name: str) -> str | None:
    """The text of a file of Python code that this process has loaded; None where it has not."""
    if (name not in linecache.cache and name not in _loaded_files()) or Path(name).is_relative_to(OWN_FOLDER):
        return None
    return "".join(linecache.getlines(name)) or None


def _loaded_files() -> set[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str) and file.endswith(".py")}
