"""Opens whatever holds a run: a table of ours or of others, an `.ireeprof` made elsewhere, standard input."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tracemap.capture.profile import load_profile
from tracemap.errors import RunEmpty
from tracemap.measurements.header import UNTOLD_HEADER
from tracemap.measurements.ireeprof.whole_records import is_profile
from tracemap.measurements.model import Run
from tracemap.measurements.runfile import read_run, write_run
from tracemap.measurements.sql import open_database


def open_run(path: Path, folder: Path) -> Run:
    """Open a run: a table (see `measurements.runfile.read_run`), or an `.ireeprof`.

    Args:
        path: the file; `-` is standard input.
        folder: where the events of an `.ireeprof`, or of standard input, are put, which must stay as long as the run.

    Raises:
        RunEmpty: nothing was recorded.
        RunInvalid: no run, or a damaged one.
        RunVersion: it is of another format version.
    """
    if str(path) == "-":
        path = _standard_input(folder)
    if not path.is_file() or not (path.suffix == ".ireeprof" or is_profile(path)):
        return read_run(path)
    table = folder / f"{path.name}.parquet"
    _convert(path, table)
    return replace(read_run(table), has_header=False)


def _standard_input(folder: Path) -> Path:
    """A file of what standard input holds: a table is read more than once, which a pipe does not allow."""
    copy = folder / "stdin.csv"
    with copy.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return copy


def _convert(profile: Path, table: Path) -> None:
    """Write the run that an `.ireeprof` holds, with all that it tells of how it came about."""
    with open_database() as connection:
        read = load_profile(profile, connection)
        if read.event_count == 0 and not read.lost_records:
            raise RunEmpty(f"{profile}: the profile holds no event: nothing ran, or host execution was not profiled")
        header = structs.replace(
            UNTOLD_HEADER,
            clock=read.clock,
            iterations=read.invocations,
            programs=read.programs,
            buffers=read.buffers,
            diagnostics=read.diagnostics,
        )
        write_run(header, read.events.in_order(), table, force=True)
