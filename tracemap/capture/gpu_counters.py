"""Count events on an NVIDIA GPU in one more execution, by CUPTI's range profiler in tracemap's CUDA library.

The profiler runs each kernel alone, several times if the counters do not fit together, so times and counts come from
different executions of the same program. The k-th launch of a kernel does the same work in both, since the program
itself decides the order of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tracemap.capture.benchmark import run_benchmark
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import EventUnavailable
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.units import UNKNOWN, Integer, join_names, plural
from tracemap.hook.cuda import counters_environment
from tracemap.runs.cuda.launches import recorded_process
from tracemap.runs.cuda.recording import LaunchCount, read_counts
from tracemap.runs.events import EventTable
from tracemap.runs.sql import fill_table


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
"""CUPTI 13.0 accepts all of them for chips from Volta (GV100) to Blackwell (GB100).

On GeForce cards of Blackwell it lacks DRAM reads and writes apart, on integrated GPUs all of DRAM.
"""
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
        f"{name!r} is no event of a GPU: choose one of {names}, or NVIDIA's name of a metric that ends in {_SUM}"
    )


def gpu_events_to_count(names: Sequence[str]) -> list[GpuEvent]:
    """The events.

    Raises:
        EventUnavailable: an event is unknown or named twice.
    """
    events = [find_gpu_event(name) for name in names]
    metrics = [event.metric for event in events]
    if twice := next((event.name for event in events if metrics.count(event.metric) > 1), ""):
        raise EventUnavailable(f"{twice} is named twice")
    return events


def add_gpu_counts(
    timed: EventTable, command: Callable[[], list[str]], events: Sequence[GpuEvent], niceness: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Run again with counters, and add a column per event to the timed dispatches.

    Args:
        timed: the events of the timed execution.
        command: the command line of the program, which makes the same calls.
        events: from `gpu_events_to_count`.
        niceness: niceness of the program; UNKNOWN: our own.

    Raises:
        ProgramFailed: the execution failed.
    """
    with temporary_folder() as folder:
        variables = counters_environment(folder, [event.metric for event in events])
        ending = run_benchmark(command(), variables, niceness=niceness)
        process = recorded_process(folder)
        if process is not None and process.refusal is not None:
            return (Diagnostic("no-counters", f"no events were counted: {process.refusal.text}"),)
        ending.check("the execution with counters")
        counts = [] if process is None else read_counts(process)
        if not counts:
            return (Diagnostic("no-counters", "no events were counted: the CUDA library saw no launch"),)
        found = [event for number, event in enumerate(events) if any(row.metric == number for row in counts)]
        missing = [event.name for event in events if event not in found]
        without = _add(timed, events, found, counts)
    return tuple(_diagnostics(found, missing, without))


def _add(
    timed: EventTable, events: Sequence[GpuEvent], found: Sequence[GpuEvent], counts: Sequence[LaunchCount]
) -> int:
    """Add the counts to the timed dispatches by kernel and number of launch; returns how many dispatches lack them."""
    rows = [(row.launch, row.kernel, row.metric, row.count) for row in counts]
    columns = {"launch": "BIGINT", "kernel": "VARCHAR", "metric": "BIGINT", "amount": "BIGINT"}
    fill_table(timed.connection, _COUNTS, columns, rows)
    amounts = ", ".join(f"any_value(amount) FILTER (metric = {events.index(event)})" for event in found)
    number = "row_number() OVER (PARTITION BY kernel ORDER BY launch)"
    query = f"SELECT kernel, {number} AS submitted, {amounts} FROM {_COUNTS} GROUP BY launch, kernel"
    without = timed.add_counts(query, [event.name for event in found])
    timed.connection.execute(f"DROP TABLE {_COUNTS}")
    return without


_COUNTS: Final = "gpu_counts"


def _diagnostics(found: Sequence[GpuEvent], missing: Sequence[str], without: int) -> list[Diagnostic]:
    """Diagnostics about what was counted and what was not."""
    notes = []
    if found:
        metrics = join_names([f"{event.name} ({event.metric})" for event in found])
        text = f"{metrics} counted in another execution by CUPTI's range profiler, which runs each kernel alone"
        notes.append(Diagnostic("counted-apart", text))
    if missing:
        notes.append(Diagnostic("no-counters", f"this GPU does not count {join_names(missing)}"))
    if without:
        text = f"{plural(without, 'dispatch')} have no counts: the executions differed"
        notes.append(Diagnostic("counters-unmatched", text))
    return notes
