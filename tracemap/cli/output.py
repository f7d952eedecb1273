"""Writes what a command prints, to standard output or a file that is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tracemap.errors import TargetExists, TargetUnwritable


def check_output(target: Path | None, *, force: bool) -> None:
    """Refuse an output before the work is done.

    Raises:
        TargetExists: it exists and `force` is not set.
        TargetUnwritable: its folder does not exist or may not be written.
    """
    if target is None:
        return
    if target.is_dir():
        raise TargetUnwritable(f"{target} is a folder; name a file")
    if target.exists() and not force:
        raise TargetExists(f"{target} exists already; pass --force to replace it, or another name")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK):
        raise TargetUnwritable(f"{target}: the folder {target.parent} does not exist or may not be written")


def write_output(text: str, target: Path | None) -> None:
    """Write a text to a file (whole or not at all), or to standard output.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    if target is None:
        click.echo(text, nl=False)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
