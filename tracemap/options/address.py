"""Options that take a folder or the address of a bucket: a text, as paths would swallow one of an address's slashes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SWALLOWED: Final = re.compile(r"[A-Za-z0-9]{2,}:/(?!/)")


def is_address(text: str) -> bool:
    """Whether a text begins as an address does: SCHEME://."""
    return _ADDRESS.match(text) is not None


def taken_address(name: str, value: str | os.PathLike[str]) -> str:
    """An address as it was given; else the path.

    Raises:
        UsageInvalid: an address was made a path, which is a folder called `s3:`; or nothing is named.
    """
    text = os.fspath(value)
    if not text:  # as a path it would be the working folder, which nobody has named
        raise UsageInvalid(f"{name} is empty; name a folder, or the address of a bucket")
    if is_address(text):
        return text
    if not isinstance(value, str) and _SWALLOWED.match(text):
        raise UsageInvalid(f"{name} is {text!r}, an address made a path; hand it in as a text")
    return str(Path(text))
