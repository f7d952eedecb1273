"""Count events on an NVIDIA GPU in one more execution, under Nsight Compute.

Nsight Compute runs each kernel alone, several times if the counters do not fit together, so times and counts come from
different executions of the same program. The k-th launch of a kernel does the same work in both, since the program
itself decides the order of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import run_benchmark
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import EventUnavailable, RunEmpty, RunInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import find_tool
from tracemap.core.units import UNKNOWN, Integer, join_names, plural
from tracemap.runs.columns import LAUNCH
from tracemap.runs.events import EventTable
from tracemap.runs.readers.nsight import NsightTable, read_nsight_compute
from tracemap.runs.sql import quoted


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An event in the field's terms, NVIDIA's name of it, and what it counts."""

    name: str
    metric: str
    description: str


GPU_EVENTS: Final = (
    GpuEvent("l2-misses", "lts__t_sectors_srcunit_tex_lookup_miss.sum", "sectors of 32 bytes that the L2 cache lacked"),
    GpuEvent("l2-accesses", "lts__t_sectors_srcunit_tex.sum", "sectors of 32 bytes asked of the L2 cache"),
    GpuEvent("l1-misses", "l1tex__t_sectors_lookup_miss.sum", "sectors of 32 bytes that the L1 caches lacked"),
    GpuEvent("l1-accesses", "l1tex__t_sectors.sum", "sectors of 32 bytes asked of the L1 caches"),
    GpuEvent("dram-bytes", "dram__bytes.sum", "bytes read from and written to the GPU's memory"),
    GpuEvent("dram-read-bytes", "dram__bytes_read.sum", "bytes read from the GPU's memory"),
    GpuEvent("dram-write-bytes", "dram__bytes_write.sum", "bytes written to the GPU's memory"),
    GpuEvent("instructions", "smsp__inst_executed.sum", "instructions of warps"),
    GpuEvent("tensor-instructions", "sm__inst_executed_pipe_tensor.sum", "instructions of warps on tensor cores"),
    GpuEvent("bank-conflicts", "l1tex__data_bank_conflicts_pipe_lsu.sum", "conflicts of banks of shared memory"),
)
"""Which of them a chip has, Nsight Compute says; on an H100, l2-misses was tried."""
_FORBIDDEN: Final = "ERR_NVGPUCTRPERM"
_ERROR: Final = "==ERROR=="
_SUM: Final = ".sum"


def find_gpu_event(name: str) -> GpuEvent:
    """The event of this name; NVIDIA's own name of a sum is one, too.

    >>> find_gpu_event("dram-bytes").metric, find_gpu_event("sm__cycles_active.sum").name
    ('dram__bytes.sum', 'sm__cycles_active.sum')

    Raises:
        EventUnavailable: there is none.
    """
    known = next((event for event in GPU_EVENTS if name in (event.name, event.metric)), None)
    if known is not None:
        return known
    if "__" in name and name.endswith(_SUM) and name.replace("_", "").replace(".", "").isalnum() and name.isascii():
        return GpuEvent(name, name, "")
    names = ", ".join(event.name for event in GPU_EVENTS)
    raise EventUnavailable(
        f"{name!r} is no event of a GPU: choose one of {names}, or a metric of Nsight Compute that ends in {_SUM}"
    )


def gpu_events_to_count(names: Sequence[str]) -> list[GpuEvent]:
    """The events, once Nsight Compute is found.

    Raises:
        EventUnavailable: an event is unknown or named twice.
        ToolMissing: Nsight Compute is not installed.
    """
    events = [find_gpu_event(name) for name in names]
    metrics = [event.metric for event in events]
    if twice := next((event.name for event in events if metrics.count(event.metric) > 1), ""):
        raise EventUnavailable(f"{twice} is named twice")
    if events:
        find_tool("ncu")
    return events


def add_gpu_counts(
    timed: EventTable, command: Callable[[], list[str]], events: Sequence[GpuEvent], niceness: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Run again under Nsight Compute, and add a column per event to the timed dispatches.

    Args:
        timed: the events of the timed execution.
        command: the command line of the program, which makes the same calls.
        events: from `gpu_events_to_count`.
        niceness: niceness of the program; UNKNOWN: our own.

    Raises:
        ProgramFailed: the execution failed.
    """
    with temporary_folder() as folder:
        table = folder / "counted.csv"
        ending = run_benchmark([*_profiler(events, table), *command()], niceness=niceness)
        said = f"{ending.stdout}\n{ending.stderr}\n{_text_of(table)}"
        if _FORBIDDEN in said:
            text = (
                f"this user may not count events on the GPU ({_FORBIDDEN}): run as root, or set the option "
                "NVreg_RestrictProfilingToAdminUsers=0 of the driver's kernel module and load it again"
            )
            return (Diagnostic("no-counters", f"no events were counted: {text}"),)
        ending.check("the execution under Nsight Compute, for counters,")
        try:
            counted = read_nsight_compute(table, timed.connection, NsightTable.DETAILS)
        except (RunEmpty, RunInvalid):
            errors = (line.removeprefix(_ERROR).strip() for line in said.splitlines() if line.startswith(_ERROR))
            why = next(errors, "Nsight Compute saw no kernel")
            return (Diagnostic("no-counters", f"no events were counted: {why}"),)
        found = [event for event in events if event.metric in counted.events.columns]
        missing = [event.name for event in events if event not in found]
        without = 0
        if found:
            counted.events.create_view("gpu_counts", replace=True)
            columns = ", ".join(f"CAST(round({quoted(event.metric)}) AS BIGINT)" for event in found)
            order = f"row_number() OVER (PARTITION BY kernel ORDER BY {LAUNCH})"
            query = f"SELECT kernel, {order} AS submitted, {columns} FROM gpu_counts WHERE kind = 'dispatch'"
            without = timed.add_counts(query, [event.name for event in found])
            timed.connection.execute("DROP VIEW gpu_counts")
    return tuple(_diagnostics(found, missing, without))


def _diagnostics(found: Sequence[GpuEvent], missing: Sequence[str], without: int) -> list[Diagnostic]:
    """Diagnostics about what was counted and what was not."""
    notes = []
    if found:
        metrics = join_names([f"{event.name} ({event.metric})" for event in found])
        text = f"{metrics} counted in another execution under Nsight Compute, which runs each kernel alone"
        notes.append(Diagnostic("counted-apart", text))
    if missing:
        notes.append(Diagnostic("no-counters", f"this GPU or Nsight Compute does not count {join_names(missing)}"))
    if without:
        text = f"{plural(without, 'dispatch')} have no counts: the executions differed"
        notes.append(Diagnostic("counters-unmatched", text))
    return notes


def _profiler(events: Sequence[GpuEvent], table: Path) -> list[str]:
    """The command line of Nsight Compute before that of the program: caches and clocks stay as the program has them."""
    metrics = ",".join(dict.fromkeys(event.metric for event in events))
    keep = ("--cache-control", "none", "--clock-control", "none")
    form = ("--csv", "--print-units", "base", "--log-file", str(table))
    return [str(find_tool("ncu")), *form, *keep, "--metrics", metrics]


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
