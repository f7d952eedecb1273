"""From an `.ireeprof` on disk to events: cut off what a killed writer left half done, export it, read the export."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import RunInvalid, ToolFailed
from tracemap.measurements.ireeprof import Profile, copy_whole_records, read_export
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
