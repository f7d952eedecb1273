"""Executions on CUDA devices: the driver loads tracemap's library into the program, since IREE profiles no CUDA.

The program makes each call in a repetition of its own, so its clock stops around each call. The hook records these
stops; they say when calls began, while the program runs and afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.capture.benchmark import Ending, Watch
from tracemap.core.errors import DeviceUnprofiled, ToolMissing
from tracemap.hook import HookUnavailable, library_path, stops_environment
from tracemap.hook.cuda import INJECTION, cuda_environment, cuda_library_path
from tracemap.runs.cuda.launches import (
    Calls,
    cuda_profile,
    device_peaks,
    recorded_process,
    repeated_stops,
    tool_name,
    whole_stops,
)
from tracemap.runs.ireeprof.profile import Profile
from tracemap.runs.model import Peaks

if TYPE_CHECKING:
    import duckdb

MOST_CALLS: Final = 1_000_000
"""Calls to request from a program that the stopping rule ends; each takes 8 bytes in the program's plan."""
_FLUSH_S: Final = 10.0
"""Time for the library to write its last records, before the program is killed."""
_NO_DRIVER: Final = re.compile(r"CUDA driver library '[^']*'[^;\n]* not available|CUDA_ERROR_NO_DEVICE")


def is_cuda(device: str) -> bool:
    """Whether a device of the runtime is one of CUDA.

    >>> is_cuda("cuda://1"), is_cuda("vulkan")
    (True, False)
    """
    return device.partition(":")[0] == "cuda"


def check_cuda() -> None:
    """Check before the run that the libraries are installed.

    Raises:
        ToolMissing: a library was not built, or CUPTI is not installed; the message says what to install.
        DeviceUnprofiled: another tool's library is to be loaded into programs.
    """
    try:
        library_path()
        own = cuda_library_path()
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error
    if os.environ.get(INJECTION, str(own)) != str(own):
        raise DeviceUnprofiled(f"{INJECTION} names another tool's library: unset it, since the driver loads only one")


def cuda_variables(folder: Path, stops: Path) -> dict[str, str]:
    """Environment variables for an execution that records into a folder, which is created."""
    folder.mkdir()
    return {**cuda_environment(folder), **stops_environment(stops)}


def ended_by_signal(watch: Watch) -> Watch:
    """A watch that ends the program by SIGTERM, so that the library writes its last records.

    Args:
        watch: the watch that says when to end it.
    """
    ended_s = 0.0

    def watch_and_end(pid: int) -> bool:
        nonlocal ended_s
        if ended_s:
            return time.monotonic() - ended_s < _FLUSH_S
        if not watch(pid):
            ended_s = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return True

    return watch_and_end


def unless_refused(watch: Watch, folder: Path) -> Watch:
    """A watch that also ends the program as soon as the library has refused to record.

    Args:
        watch: the watch that says when to end it otherwise.
        folder: the folder of the recording.
    """
    is_recording = False

    def watch_and_check(pid: int) -> bool:
        nonlocal is_recording
        process = None if is_recording else recorded_process(folder)
        is_recording = is_recording or (process is not None and bool(process.activity_files()))
        return (process is None or process.refusal is None) and watch(pid)

    return watch_and_check


def check_recorded(name: str, folder: Path, ending: Ending) -> None:
    """Reject an execution without a recording, with the reason.

    Raises:
        DeviceUnprofiled: there is no driver, it did not load the library, or CUPTI cannot be used.
    """
    if match := _NO_DRIVER.search(ending.stderr):
        raise DeviceUnprofiled(
            f"{name} needs an NVIDIA GPU and its driver ({match[0]}): install the driver, or record on another machine"
        )
    process = recorded_process(folder)
    if process is not None and process.refusal is not None:
        raise DeviceUnprofiled(f"{name} was not recorded: {process.refusal.text}")
    if process is None and not ending.failed:
        raise DeviceUnprofiled(
            f"{name} was not recorded: the CUDA driver did not load the library that {INJECTION} names; drivers of "
            "CUDA 12 and newer do, unless a sandbox forbids it"
        )


def load_cuda_profile(
    folder: Path,
    stops: Path,
    connection: duckdb.DuckDBPyConnection,
    table: str,
    calls: Calls,
    pieces: int,
) -> Profile | None:
    """The events of an execution; None if the library recorded nothing.

    Args:
        folder: the folder of the recording.
        stops: the hook's file of the program's clock.
        connection: the database for the events.
        table: the name of the table of events.
        calls: number of calls, and how many are warm-up.
        pieces: intervals of the running clock per call.
    """
    process = recorded_process(folder)
    if process is None:
        return None
    found = repeated_stops(stops, pieces)
    known = Calls(None if found is None else whole_stops(found), calls.warmup, calls.count, calls.batch)
    return cuda_profile(process, connection, table, known)


@dataclass(frozen=True, slots=True)
class CudaFacts:
    """NVIDIA's tools that made a recording, with their versions, and the peaks of the device (None: unknown)."""

    tools: tuple[str, ...] = ()
    peaks: Peaks | None = None


NO_CUDA: Final = CudaFacts()


def cuda_facts(folder: Path) -> CudaFacts:
    """Facts about a recording for the run's header."""
    process = recorded_process(folder)
    return NO_CUDA if process is None else CudaFacts((tool_name(process),), device_peaks(process))
