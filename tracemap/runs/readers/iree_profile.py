"""Reader of IREE's profiles (`.ireeprof`) and of their exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tracemap.core.errors import RunEmpty, RunInvalid, ToolFailed
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.runs.ireeprof.calls import NOTHING_KNOWN, KnownCalls
from tracemap.runs.ireeprof.profile import Profile, read_export
from tracemap.runs.ireeprof.records import copy_whole_records
from tracemap.runs.model import UNKNOWN_HEADER
from tracemap.runs.readers.rows import ForeignRun

if TYPE_CHECKING:
    import duckdb


def read_iree_profile(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read a profile; raises as `load_profile`."""
    return _profile_run(path, load_profile(path, connection))


def read_iree_export(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read what `iree-profile export` wrote; raises as `ireeprof.profile.read_export`."""
    return _profile_run(path, read_export(path, connection))


def _profile_run(path: Path, read: Profile) -> ForeignRun:
    if read.event_count == 0 and not read.lost_records:
        raise RunEmpty(f"{path}: the profile holds no event: nothing ran, or host execution was not profiled")
    header = structs.replace(
        UNKNOWN_HEADER,
        clock=read.clock,
        iterations=read.invocations,
        programs=read.programs,
        buffers=read.buffers,
        diagnostics=read.diagnostics,
    )
    return ForeignRun(header, read.events.in_order())


def load_profile(
    profile: Path,
    connection: duckdb.DuckDBPyConnection,
    table: str = "events",
    known: KnownCalls = NOTHING_KNOWN,
    *,
    must_be_whole: bool = False,
) -> Profile:
    """Read an `.ireeprof`, even if its writer was killed.

    Args:
        profile: the file.
        connection: the database for the events; tables `profile_*` in it are overwritten.
        table: the name of the table of events in it.
        known: known facts about the calls.
        must_be_whole: the writer ended well, so a file without an end is damaged.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no `.ireeprof`, it is damaged, or iree-profile cannot read it.
        RunVersion: the installed iree-profile exports another schema version.
    """
    with temporary_folder() as folder:
        whole = folder / "whole.ireeprof"
        truncated = copy_whole_records(profile, whole)
        if truncated is not None and must_be_whole:
            raise RunInvalid(f"{profile}: {truncated.message}")
        exported, readable = folder / "events.jsonl", whole if truncated else profile
        try:
            check_tool(
                [find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={exported}", readable]
            )
        except ToolFailed as error:
            raise RunInvalid(f"{profile}: {error}") from error
        read = read_export(exported, connection, table, known, exported_from=profile)
    return read if truncated is None else replace(read, diagnostics=(truncated, *read.diagnostics))
