"""Files of models: their content, the name of their bundle, the folder of their Python files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tracemap.errors import ModelUnreadable, UsageInvalid

STANDARD_INPUT: Final = "-"


def read_model(model: str) -> tuple[bytes, str]:
    """The content of a model's file (`-`: standard input) and the name that it goes by.

    Raises:
        ModelUnreadable: it cannot be read.
    """
    if model == STANDARD_INPUT:
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        return Path(model).read_bytes(), Path(model).name
    except OSError as error:
        raise ModelUnreadable(f"{model}: cannot be read: {error.strerror}") from error


def own_folder(model: str) -> tuple[Path, ...]:
    """The folder below which a model's Python files are looked for last; none for standard input."""
    return () if model == STANDARD_INPUT else (Path(model).parent,)


def default_bundle(model: str) -> Path:
    """The bundle of a model that was given no other name.

    Raises:
        UsageInvalid: a model from standard input has no name for its bundle.
    """
    if model == STANDARD_INPUT:
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")
