"""The formats in which a result is shown: words for people, or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from tracemap.codec import pretty


def show_as(form: str, out: TextIO, text: Callable[[TextIO], object], value: Callable[[], object]) -> None:
    """Write a result to a stream in a format: `json`, for which `value` makes it, or else what `text` writes.

    The stream is flushed: a reader that has gone away is noticed while somebody can still handle it.
    """
    if form == "json":
        out.write(pretty(value()))
    else:
        text(out)
    out.flush()
