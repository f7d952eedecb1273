"""What is handed in from Python beside options: of the type that is asked for, or refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tracemap.errors import UsageInvalid, start_of

_LONGEST_SAID = 60


def not_taken(name: str, value: object, wanted: str) -> UsageInvalid:
    """What is said of a value that is not what is asked for."""
    return UsageInvalid(f"{name} is {start_of(repr(value), _LONGEST_SAID)}; it must be {wanted}")


def text_of(name: str, value: object) -> str:
    """A text.

    Raises:
        UsageInvalid: it is none.
    """
    if not isinstance(value, str):
        raise not_taken(name, value, "a text")
    return value


def path_of(name: str, value: object, wanted: str = "a path") -> Path:
    """A path, as a text or as one of Python's.

    Raises:
        UsageInvalid: it is none, or has a NUL, which no file's name has.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise not_taken(name, value, wanted)
    if "\0" in os.fspath(value):
        raise not_taken(name, value, f"{wanted}, in which there is no NUL")
    return Path(value)


def items_of(name: str, value: object) -> list[object]:
    """The items of a series, which a text is not.

    Raises:
        UsageInvalid: it is none.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise not_taken(name, value, "a list")
    return list(value)


def files_of(name: str, value: object) -> dict[str, Path]:
    """Files by names.

    Raises:
        UsageInvalid: it is none such.
    """
    if not isinstance(value, Mapping):
        raise not_taken(name, value, "a dictionary of names and files")
    return {text_of(f"a name in {name}", key): path_of(f"a file in {name}", file) for key, file in value.items()}
