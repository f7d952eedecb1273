"""Runs that readers of other packages convert (docs/extending.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from tracemap.core.errors import ExtensionBroken, RunInvalid
from tracemap.core.extensions import READERS, extensions
from tracemap.core.files import open_stored_file
from tracemap.core.process.temporary_files import name_prefix
from tracemap.runs.model import Run
from tracemap.runs.runfile import read_run

HEAD_BYTES: Final = 1 << 16
"""Number of first bytes of a file that readers see."""


class RunReader(Protocol):
    """Converts files of another tool. A module with these two functions is one, too."""

    def recognizes(self, head: bytes, name: str, /) -> bool:
        """Recognize a file of this tool by its first bytes (at most 65,536) and its name without the folder."""

    def convert(self, source: Path, target: Path, /) -> None:
        """Write the events of a file as a table of a run to `target`, whose name ends with `.csv` (docs/formats.md).

        A header may be written next to it, to `target` with `.json` appended. A `ValueError` says why the file is
        damaged.
        """


def run_of_extension(path: Path, folder: Path, refusal: RunInvalid) -> Run | None:
    """The run of a file that tracemap itself does not read; None if no extension recognizes it.

    Args:
        path: the file.
        folder: folder for the converted events.
        refusal: tracemap's own error; broken readers are added to it.

    Raises:
        ExtensionBroken: the extension fails, or writes no run.
        RunInvalid: the extension says that the file is damaged.
    """
    readers = extensions(READERS)
    if not readers:
        return None
    with open_stored_file(path, RunInvalid) as file:
        head = file.read(HEAD_BYTES)
    for extension in readers:
        try:
            reader: RunReader = extension.load()
            if not extension.run(reader.recognizes, head, path.name):
                continue
        except (AttributeError, ExtensionBroken) as error:
            refusal.add_note(str(error if isinstance(error, ExtensionBroken) else extension.broken(str(error))))
            continue
        target = folder / f"{name_prefix(path.name)}.csv"
        try:
            extension.run(_converted, reader, path, target)
            run = read_run(target)
        except RunInvalid as error:
            if str(error).startswith(str(path)):
                raise
            raise extension.broken(str(error).replace(str(target), "its table")) from error
        return replace(run, given=str(path))
    return None


def _converted(reader: RunReader, path: Path, target: Path) -> None:
    try:
        reader.convert(path, target)
    except ValueError as error:
        raise RunInvalid(f"{path}: {' '.join(str(error).split())}") from error
