"""From an `.ireeprof` on disk to events: cut off what a killed writer left half done, export it, read the export."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import RunInvalid, ToolFailed
from tracemap.measurements.ireeprof.invocations import NOTHING_KNOWN, KnownCalls
from tracemap.measurements.ireeprof.profile import Profile, read_export
from tracemap.measurements.ireeprof.whole_records import copy_whole_records
from tracemap.toolchain import check_tool, find_tool

if TYPE_CHECKING:
    import duckdb


def load_profile(
    profile: Path, connection: duckdb.DuckDBPyConnection, table: str = "events", known: KnownCalls = NOTHING_KNOWN
) -> Profile:
    """Read an `.ireeprof`, also one whose writer was killed.

    Args:
        profile: the file.
        connection: holds the events until they are written; tables `profile_*` in it are overwritten.
        table: the name of the table of events in it.
        known: what is known of the calls.

    Raises:
        RunEmpty: it holds no record.
        RunInvalid: it is no `.ireeprof`, it is damaged, or iree-profile cannot read it.
        RunVersion: the installed iree-profile exports another schema version.
    """
    with tempfile.TemporaryDirectory(prefix="tracemap-profile-") as folder:
        whole = Path(folder) / "whole.ireeprof"
        truncated = copy_whole_records(profile, whole)
        exported = _exported(whole if truncated else profile, profile, Path(folder) / "events.jsonl")
        read = read_export(exported, connection, table, known, exported_from=profile)
    return read if truncated is None else replace(read, diagnostics=(truncated, *read.diagnostics))


def _exported(profile: Path, named: Path, target: Path) -> Path:
    try:
        check_tool([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={target}", profile])
    except ToolFailed as error:
        raise RunInvalid(f"{named}: {error}") from error
    return target
