"""Calls of a bundle's kernels in this very process: the hook is attached once, and a span of time is cut out.

The hook records what `iree.runtime` loads after it is attached, for as long as the process runs; what begins and ends
is only what is looked at.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import RunEmpty, ToolMissing
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import check_runtime

if TYPE_CHECKING:
    from tracemap.capture.disturbance import Look
    from tracemap.diagnostics import Diagnostic
    from tracemap.graph.bundle import Bundle
    from tracemap.measurements.model import RunHeader


class _Attached:
    """The hook in this process: its folder, once it is attached, which stays for as long as the process runs."""

    lock = threading.Lock()
    stays = ExitStack()
    folder: Path | None = None


atexit.register(_Attached.stays.close)


def attached() -> Path:
    """The folder of this process's calls; the hook is attached where it is not yet.

    Raises:
        ToolMissing: the hook's library or `iree.runtime` is not installed, or it cannot be hooked.
    """
    from tracemap.hook import HookUnavailable, attach

    check_runtime()
    importlib.import_module("iree.runtime")  # what is not there yet cannot be hooked
    with _Attached.lock:
        if _Attached.folder is None:
            folder = _Attached.stays.enter_context(temporary_folder())
            try:
                attach(folder)
            except HookUnavailable as error:
                raise ToolMissing(f"calls in this process cannot be recorded: {error}") from error
            _Attached.folder = folder
        return _Attached.folder


def look_here() -> Look:
    """What has happened to this process until now."""
    from tracemap.capture.disturbance import look

    return look(os.getpid())


def write_span(bundle: Bundle, begin: Look, end: Look, target: Path) -> int:
    """Write the executions of a bundle's kernels between two looks as a run; returns how many there are.

    A row is an execution: from the first call of its workgroups to the end of the last one, and the CPU time of all.

    Args:
        bundle: whose kernels are looked at.
        begin: what was seen before the first of the calls.
        end: what was seen behind the last one.
        target: Parquet, or CSV if it ends in `.csv`.

    Raises:
        RunEmpty: no kernel of the bundle was called.
        TargetExists, TargetUnwritable: the run cannot be written.
    """
    from tracemap.hook import moment
    from tracemap.measurements.hook.calls import load_calls
    from tracemap.measurements.hook.recording import read_recording
    from tracemap.measurements.runfile import check_target, write_run
    from tracemap.measurements.sql import open_database

    check_target(target, force=False)
    kernels = [kernel.name for kernel in bundle.graph.kernels]
    folder = attached()
    if not any(folder.iterdir()):
        raise RunEmpty(_NOTHING)
    with open_database() as connection:
        recording = read_recording(folder, {os.getpid(): moment()})
        calls = load_calls(recording, connection)
        calls.create_view("calls")
        connection.execute("CREATE TEMP TABLE wanted AS SELECT unnest(?) AS kernel", [kernels])
        connection.execute(_EXECUTIONS, {"begin": begin.time_ns, "end": end.time_ns})
        ((count,),) = connection.execute("SELECT count(*) FROM executions").fetchall()
        if not count:
            raise RunEmpty(_NOTHING)
        # That this very process has not come to its end is no loss.
        about = [each for each in recording.diagnostics if each.slug != "program-killed"]
        header = _header(bundle, begin, end, about)
        write_run(header, connection.table("executions"), target, force=False)
    return int(count)


def _header(bundle: Bundle, begin: Look, end: Look, about: Sequence[Diagnostic]) -> RunHeader:
    """What is known of this process and its machine; the hook sees kernels: neither whose they are, nor the calls."""
    from msgspec import structs

    from tracemap.capture.disturbance import disturbed, observed, unseen
    from tracemap.capture.geometry import geometry, line_bytes
    from tracemap.capture.machine import this_machine
    from tracemap.capture.peaks import measure_peaks
    from tracemap.capture.record import tools_used
    from tracemap.measurements.model import UNTOLD_HEADER, Clock

    disturbance = observed((begin, end), begin.time_ns, end.time_ns)
    found = disturbed(disturbance) or unseen(disturbance, end.time_ns - begin.time_ns)
    return structs.replace(
        UNTOLD_HEADER,
        bundle=str(bundle.path.resolve()),
        command=tuple(sys.orig_argv),
        clock=Clock.HOST,
        disturbance=disturbance,
        peaks=measure_peaks(),
        tools=tools_used(),
        diagnostics=(*about, *([] if found is None else [found])),
        line_bytes=line_bytes(geometry(()).caches),
        machine=this_machine(),
    )


_EXECUTIONS: Final = """
CREATE TEMP TABLE executions AS
SELECT 'dispatch' AS kind, kernel, min(start_ns) AS start_ns,
    max(start_ns + duration_ns) - min(start_ns) AS duration_ns, sum(duration_ns)::BIGINT AS cpu_ns,
    any_value(workgroups_x) AS workgroups_x, any_value(workgroups_y) AS workgroups_y,
    any_value(workgroups_z) AS workgroups_z
FROM calls JOIN (SELECT DISTINCT kernel FROM wanted) USING (kernel)
WHERE start_ns BETWEEN $begin AND $end
GROUP BY process, kernel, workgroups_x, workgroups_y, workgroups_z, call
ORDER BY start_ns, kernel
"""
_NOTHING: Final = (
    "no kernel of the bundle was called in this process; what is loaded before the first `tracemap.recording` is not "
    "seen: load the module inside of it"
)
