"""What tracemap writes: a result in its format; files, refused before the work is done, there whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tracemap.codec import pretty
from tracemap.errors import TargetExists, TargetUnwritable
from tracemap.owned.home import beside


def check_file(target: Path, *, force: bool) -> None:
    """Find out before the work whether a file can be written.

    Raises:
        TargetExists: it exists and `force` is not set.
        TargetUnwritable: it is a folder, or its folder does not exist or may not be written.
    """
    if target.is_dir():
        raise TargetUnwritable(f"{target}: is a folder; name a file")
    check_folder_of(target)
    if target.exists() and not force:
        raise TargetExists(f"{target}: exists already; pass --force to replace it, or choose another name")


def check_files(*targets: Path | None, force: bool) -> None:
    """`check_file` of each; None: this one is not wanted."""
    for target in targets:
        if target is not None:
            check_file(target, force=force)


def check_folder_of(target: Path) -> None:
    """Find out whether something can be made in the folder that a target lies in.

    Raises:
        TargetUnwritable: it does not exist, or may not be written.
    """
    if not target.parent.is_dir():
        raise TargetUnwritable(f"{target}: the folder {target.parent} does not exist; make it, or choose another place")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TargetUnwritable(f"{target}: the folder {target.parent} may not be written; choose another place")


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary name beside `target` that takes its place when all went well, and is removed when not.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    try:
        with beside(target) as temporary:
            yield temporary
            temporary.replace(target)
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error


def write_text(text: str, target: Path) -> None:
    """Write a text, as UTF-8 and with its line ends as they are; half a surrogate pair becomes `?`.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with replaced(target) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def show_as(form: str, out: TextIO, text: Callable[[TextIO], object], value: Callable[[], object]) -> None:
    """Write a result to a stream in a format: `json`, for which `value` makes it, or else what `text` writes.

    The stream is flushed: a reader that has gone away is noticed while somebody can still handle it.
    """
    if form == "json":
        out.write(pretty(value()))
    else:
        text(out)
    out.flush()


def write_shown(show: Callable[[TextIO], None], target: Path) -> None:
    """Write what `show` puts into a stream, as `write_text` does.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    text = io.StringIO()
    show(text)
    write_text(text.getvalue(), target)
