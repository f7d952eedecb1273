"""Attach samples of the program counter to kernels, lines of kernel IR, and dispatches.

Samples and profile come from the same execution and clock. A sample belongs to the dispatch of its kernel that was
running then. If several were (workers may run two sites of one kernel at a time), only the kernel is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import RunEmpty
from tracemap.core.units import UNKNOWN, Integer, format_share, plural
from tracemap.machine.code_figures import code_locations
from tracemap.machine.images import NOWHERE, Image, read_images
from tracemap.runs.events import EventTable
from tracemap.runs.hook.samples import HookSamples, read_samples
from tracemap.runs.model import COLUMNS, SAMPLES
from tracemap.runs.sql import fill_table, first_integer

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

_DISPATCH_COLUMNS = ("command_buffer_id", "command_index", "submission_id", "site", "call", "invocation", "start_ns")
"""Columns that a sample takes from its dispatch; without a dispatch, `start_ns` is the sample's own time."""


def add_samples(
    timed: EventTable, folder: Path, module: Path, hz: int, trouble: str, until_ns: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Add one row per sample to the events of the sampled execution.

    Args:
        timed: the events.
        folder: the hook's output.
        module: the executed module; its debug lines locate samples in the kernel IR.
        hz: the requested rate.
        trouble: the hook's error messages, "" if none.
        until_ns: samples from then on are dropped; UNKNOWN: none are.

    Raises:
        RunInvalid: the hook's files are damaged.
        ModuleInvalid: the module's machine code cannot be read.
    """
    try:
        samples = read_samples(folder)
    except RunEmpty:
        return (Diagnostic("no-samples", f"no samples were taken: {trouble or 'no executable ran on the CPU'}"),)
    if isinstance(until_ns, int):
        samples = replace(samples, located=samples.located[samples.located["time_ns"] < until_ns])
    columns, kernels = _located_samples(samples, read_images(module))
    connection = timed.connection
    numbered = {"kernel_number": "BIGINT", "kernel": "VARCHAR"}
    callers = [(number, kernel) for number, names in enumerate(kernels.values()) for kernel in names]
    fill_table(connection, "sampled_code", numbered, list(enumerate(kernels)))
    fill_table(connection, "sampled_kernels", numbered, callers)
    connection.register("sample_columns", columns)
    cell_of = {name: f"d.{name}" for name in _DISPATCH_COLUMNS} | _OWN_CELLS
    cells = ", ".join(f"CAST({cell_of.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    cells = cells.format(events=timed.name)
    connection.execute(_SAMPLE_ROWS.format(events=timed.name, samples=SAMPLES, cells=cells))
    connection.unregister("sample_columns")
    timed.add_rows("SELECT * EXCLUDE number FROM sample_rows ORDER BY number")
    timed.sort("start_ns, kind, kernel, step, address")
    return (_sampling_diagnostic(samples, hz, connection), *samples.diagnostics)


def samples_in_kernels(timed: EventTable) -> int:
    """Number of samples of measured calls that lie in kernels."""
    in_kernels = f"SELECT count(kernel) FROM {timed.name} WHERE kind = 'step' AND NOT warmup"
    return first_integer(timed.connection, in_kernels)


def _located_samples(
    samples: HookSamples, images: Sequence[Image]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[str, ...]]]:
    """Locate samples in the module's machine code.

    Returns the columns time_ns, tid, cpu, kernel_number (-1: none), step and address (-1: none), and the functions by
    number. A function maps to the kernels that may have called it: usually itself.
    """
    import numpy as np

    located = samples.located
    kernels: dict[str, tuple[str, ...]] = {}
    kernel = np.full(len(located), -1, dtype=np.int64)
    step = np.zeros(len(located), dtype=np.int64)
    address = np.full(len(located), NOWHERE, dtype=np.int64)
    addresses = [{(name, function.low) for name, function in image.function_by_name.items()} for image in images]
    for index, executable in enumerate(samples.executables):
        # It was loaded from the image whose kernels have the same addresses.
        fits = (image for image, lows in zip(images, addresses, strict=True) if {*executable.kernels} <= lows)
        image = next(fits, None) if executable.kernels else None
        of_executable = np.flatnonzero(located["executable"] == index)
        if image is None or not len(of_executable):
            continue
        spots = code_locations(image, located["address"][of_executable].astype(np.int64))
        for function in spots.functions:  # code linked into several executables may run for kernels of each
            kernels[function.name] = tuple(
                dict.fromkeys((*kernels.get(function.name, ()), *spots.kernels_of(function)))
            )
        numbers = {name: number for number, name in enumerate(kernels)}
        own_cells = np.array([numbers[function.name] for function in spots.functions], dtype=np.int64)
        inside = spots.numbers >= 0
        kernel[of_executable[inside]] = own_cells[spots.numbers[inside]]
        step[of_executable[inside]] = spots.lines[inside]
        address[of_executable[inside]] = spots.addresses[inside]
    columns = {
        "time_ns": located["time_ns"].astype(np.int64),
        "tid": located["tid"].astype(np.int64),
        "cpu": located["cpu"].astype(np.int64),
        "kernel_number": kernel,
        "step": step,
        "address": address,
    }
    return columns, kernels


# A sample belongs to the only running dispatch of its kernel. A shared function belongs to the kernels that call it.
_SAMPLE_ROWS = """
CREATE OR REPLACE TEMP TABLE sample_rows AS
WITH s AS (SELECT *, row_number() OVER () AS number FROM sample_columns),
d AS (SELECT * FROM {events} WHERE kind = 'dispatch'),
running AS (
    SELECT s.number, min(d.row) AS row
    FROM s JOIN sampled_kernels AS k USING (kernel_number)
    JOIN d ON d.kernel = k.kernel AND d.start_ns <= s.time_ns AND s.time_ns <= d.start_ns + d.duration_ns
    GROUP BY s.number HAVING count(*) = 1
)
SELECT s.number, 1::BIGINT AS {samples}, {cells}
FROM s LEFT JOIN sampled_code AS k USING (kernel_number)
LEFT JOIN running USING (number)
LEFT JOIN d ON d.row = running.row
"""
_OWN_CELLS: Final = {
    "kind": "'step'",
    "kernel": "coalesce(d.kernel, k.kernel)",
    "start_ns": "coalesce(d.start_ns, s.time_ns)",
    "warmup": "coalesce(d.warmup, s.time_ns < (SELECT min(start_ns) FROM {events} WHERE NOT warmup), false)",
    "thread": "CAST(s.tid AS VARCHAR)",
    "cpu": "s.cpu",
    "step": "CASE WHEN k.kernel IS NOT NULL THEN s.step END",
    "address": "CASE WHEN s.address >= 0 THEN s.address END",
}


def _sampling_diagnostic(samples: HookSamples, hz: int, connection: duckdb.DuckDBPyConnection) -> Diagnostic:
    ((count, inside, joined),) = connection.execute(
        "SELECT count(*), count(kernel), count(submission_id) FROM sample_rows"
    ).fetchall()
    cost = f"sampling took {100 * samples.overhead:.1f} % of the threads' time" if samples.overhead else "cost unknown"
    text = (
        f"{plural(count, 'sample')} of the program counter, {hz} per second and thread, by {samples.sampler}; "
        f"{cost}; {format_share(inside, count)} lie in kernels, {format_share(joined, count)} in a known dispatch"
    )
    return Diagnostic("sampled", text)
