"""Reader of recordings of the CUDA library, made by a process that recorded itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.runs.cuda.launches import cuda_profile, device_peaks, tool_name
from tracemap.runs.cuda.recording import read_process
from tracemap.runs.model import ASSUMED_PEAKS, UNKNOWN_HEADER
from tracemap.runs.readers.rows import ForeignRun
from tracemap.runs.sql import damage_of, reading_errors

if TYPE_CHECKING:
    import duckdb


def read_cuda_recording(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """A run from a process's file, for example of a service that recorded itself.

    Raises:
        RunEmpty: nothing ran on a device.
        RunInvalid: a file is damaged, or the library recorded nothing; the message has its reason.
    """
    process = read_process(path)
    if process.refusal is not None:
        raise RunEmpty(f"{path}: nothing was recorded: {process.refusal.text}")
    try:
        profile = cuda_profile(process, connection, "cuda_events")
    except reading_errors() as error:  # impossible times
        raise RunInvalid(f"{path}: a record is damaged: {damage_of(error)}") from error
    if not profile.event_count:
        raise RunEmpty(f"{path}: nothing ran on a device")
    header = structs.replace(
        UNKNOWN_HEADER,
        clock=profile.clock,
        device="cuda",
        tools=(tool_name(process),),
        peaks=device_peaks(process) or ASSUMED_PEAKS,
        diagnostics=profile.diagnostics,
    )
    # The order gives sites and invocations; until then they have no columns.
    columns = f"* EXCLUDE ({', '.join((*_BY_ORDER, *_EMPTY))})"
    return ForeignRun(header, connection.sql(f"SELECT {columns} FROM {profile.events.name} ORDER BY row"))


_BY_ORDER: Final = ("row", "site", "invocation", "warmup")
_EMPTY: Final = ("command_buffer_id", "command_index", "submission_id", "cpu", "covered_ns")
"""Columns that these recordings never fill."""
