"""From an `.ireeprof` on disk to events: cut off what a killed writer left half done, export it, read the export."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import RunEmpty, RunInvalid, ToolFailed
from tracemap.measurements.header import UNTOLD_HEADER
from tracemap.measurements.ireeprof import Profile, copy_whole_records, is_profile, read_export
from tracemap.measurements.model import Run
from tracemap.measurements.runfile import read_run, write_run
from tracemap.measurements.sql import engine
from tracemap.toolchain import check_tool, find_tool
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import duckdb


def load_profile(
    profile: Path,
    connection: duckdb.DuckDBPyConnection,
    *,
    invocations: Integer = UNKNOWN,
    warmup: int = 0,
    timed_flushes: bool = False,
) -> Profile:
    """Read an `.ireeprof`, also one whose writer was killed; arguments as for `measurements.ireeprof.read_export`.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no `.ireeprof`, or iree-profile cannot read it.
        RunVersion: the installed iree-profile exports another schema version.
    """
    with tempfile.TemporaryDirectory(prefix="tracemap-profile-") as folder:
        whole = Path(folder) / "whole.ireeprof"
        truncated = copy_whole_records(profile, whole)
        exported = _exported(whole if truncated else profile, profile, Path(folder) / "events.jsonl")
        read = read_export(exported, connection, invocations=invocations, warmup=warmup, timed_flushes=timed_flushes)
    return read if truncated is None else replace(read, diagnostics=(truncated, *read.diagnostics))


def _exported(profile: Path, named: Path, target: Path) -> Path:
    try:
        check_tool([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={target}", profile])
    except ToolFailed as error:
        raise RunInvalid(f"{named}: {error}") from error
    return target


def open_run(path: Path, folder: Path) -> Run:
    """Open whatever holds a run: a table (see `measurements.runfile.read_run`), or an `.ireeprof` made elsewhere.

    Args:
        path: the file; `-` is standard input.
        folder: where the events of an `.ireeprof` are put; they are needed as long as the run is.

    Raises:
        RunEmpty: nothing was recorded.
        RunInvalid: no run, or a damaged one.
        RunVersion: it is of another format version.
    """
    if not path.is_file() or not (is_profile(path) or path.suffix == ".ireeprof"):
        return read_run(path)
    with engine() as connection:
        profile = load_profile(path, connection)
        if profile.event_count == 0 and not profile.lost_records:
            raise RunEmpty(f"{path}: the profile holds no event: nothing ran, or host execution was not profiled")
        header = replace(
            UNTOLD_HEADER,
            clock=profile.clock,
            iterations=profile.invocations,
            programs=profile.programs,
            buffers=profile.buffers,
            diagnostics=profile.diagnostics,
        )
        table = folder / f"{path.name}.parquet"
        write_run(header, profile.events, table, force=True)
    return replace(read_run(table), has_header=False)
