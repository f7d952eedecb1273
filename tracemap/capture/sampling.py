"""Samples of the program counter become rows of steps: which kernel, which line of its text, which dispatch.

Samples and profile are of the same execution and of the same clock. A sample belongs to the dispatch of its kernel
that was running then; where several were (workers run two sites of one kernel at a time), it names the kernel only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.diagnostics import Diagnostic
from tracemap.errors import RunEmpty
from tracemap.machine.images import NOWHERE, Image, read_images
from tracemap.machine.linked import spots_at
from tracemap.measurements.events import EventTable
from tracemap.measurements.hook.samples import HookSamples, SampledExecutable, read_samples
from tracemap.measurements.model import COLUMNS, SAMPLES
from tracemap.units import UNKNOWN, Integer, format_share, plural

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

_OF_DISPATCH = ("command_buffer_id", "command_index", "submission_id", "site", "call", "invocation", "start_ns")
"""What a row of a step has from the dispatch that it was seen in; `start_ns` is its own time where none is known."""


def add_samples(
    timed: EventTable, folder: Path, module: Path, hz: int, trouble: str, until_ns: Integer = UNKNOWN
) -> tuple[Diagnostic, ...]:
    """Add a row per sample to the events of the execution that was sampled.

    Args:
        timed: the events.
        folder: what the hook wrote.
        module: the module that was run; its debug lines tell the steps.
        hz: the rate that was asked for.
        trouble: what the hook said that it could not do, "" if nothing.
        until_ns: what was sampled from then on is left out; unknown: nothing is.

    Raises:
        RunInvalid: the hook's files are damaged.
        ModuleInvalid: the module's machine code cannot be read.
    """
    try:
        samples = read_samples(folder)
    except RunEmpty:
        return (Diagnostic("no-samples", f"no samples were taken: {trouble or 'no executable ran on the CPU'}"),)
    if isinstance(until_ns, int):
        samples = replace(samples, taken=samples.taken[samples.taken["time_ns"] < until_ns])
    columns, kernels = _resolved(samples, read_images(module))
    connection = timed.connection
    connection.execute("CREATE OR REPLACE TEMP TABLE sampled_code (kernel_number BIGINT, kernel VARCHAR)")
    connection.execute("CREATE OR REPLACE TEMP TABLE sampled_kernels (kernel_number BIGINT, kernel VARCHAR)")
    if kernels:
        of_kernels = [(number, kernel) for number, callers in enumerate(kernels.values()) for kernel in callers]
        connection.executemany("INSERT INTO sampled_code VALUES (?, ?)", list(enumerate(kernels)))
        connection.executemany("INSERT INTO sampled_kernels VALUES (?, ?)", of_kernels)
    connection.register("sample_columns", columns)
    connection.execute(_sample_rows_sql(timed.name))
    connection.unregister("sample_columns")
    timed.add_rows("SELECT * EXCLUDE number FROM sample_rows ORDER BY number")
    timed.sort("start_ns, kind, kernel, step, address")
    return (_how_sampled(samples, hz, connection), *samples.diagnostics)


def samples_in_kernels(timed: EventTable) -> int:
    """How many samples of measured calls lie in kernels."""
    in_kernels = f"SELECT count(kernel) FROM {timed.name} WHERE kind = 'step' AND NOT warmup"
    return int(timed.connection.execute(in_kernels).fetchall()[0][0])


def _resolved(
    samples: HookSamples, images: Sequence[Image]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[str, ...]]]:
    """Columns time_ns, tid, cpu, kernel (its number, -1: none), step, address (-1: none), and what was running.

    That is by its name, in the order of the numbers, with the kernels that it may be of: itself, as a rule.
    """
    import numpy as np

    taken = samples.taken
    kernels: dict[str, tuple[str, ...]] = {}
    kernel = np.full(len(taken), -1, dtype=np.int64)
    step = np.zeros(len(taken), dtype=np.int64)
    address = np.full(len(taken), NOWHERE, dtype=np.int64)
    for index, executable in enumerate(samples.executables):
        image = _image_of(executable, images)
        chosen = np.flatnonzero(taken["executable"] == index)
        if image is None or not len(chosen):
            continue
        spots = spots_at(image, taken["address"][chosen].astype(np.int64))
        for function in spots.functions:  # what several executables are linked with may run for kernels of each
            kernels[function.name] = tuple(
                dict.fromkeys((*kernels.get(function.name, ()), *spots.kernels_of(function)))
            )
        numbers = {name: number for number, name in enumerate(kernels)}
        own = np.array([numbers[function.name] for function in spots.functions], dtype=np.int64)
        inside = spots.numbers >= 0
        kernel[chosen[inside]] = own[spots.numbers[inside]]
        step[chosen[inside]] = spots.lines[inside]
        address[chosen[inside]] = spots.addresses[inside]
    columns = {
        "time_ns": taken["time_ns"].astype(np.int64),
        "tid": taken["tid"].astype(np.int64),
        "cpu": taken["cpu"].astype(np.int64),
        "kernel_number": kernel,
        "step": step,
        "address": address,
    }
    return columns, kernels


def _image_of(executable: SampledExecutable, images: Sequence[Image]) -> Image | None:
    """The image that an executable was loaded from: the one whose kernels lie where the executable's do."""
    for image in images:
        addresses = {name: function.low for name, function in image.function_by_name.items()}
        if executable.kernels and all(addresses.get(name) == address for name, address in executable.kernels):
            return image
    return None


# A sample belongs to the only dispatch of its kernel that was running then; of what several kernels call, of theirs.
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


def _sample_rows_sql(events: str) -> str:
    """Make `sample_rows`: the samples as rows of a run, and their number by time."""
    own = {name: cell.format(events=events) for name, cell in _OWN_CELLS.items()}
    known = {name: f"d.{name}" for name in _OF_DISPATCH} | own
    cells = ", ".join(f"CAST({known.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    return _SAMPLE_ROWS.format(events=events, samples=SAMPLES, cells=cells)


def _how_sampled(samples: HookSamples, hz: int, connection: duckdb.DuckDBPyConnection) -> Diagnostic:
    ((count, inside, joined),) = connection.execute(
        "SELECT count(*), count(kernel), count(submission_id) FROM sample_rows"
    ).fetchall()
    cost = f"they took {100 * samples.overhead:.1f} % of the threads' time" if samples.overhead else "cost unknown"
    text = (
        f"{plural(count, 'sample')} of the program counter, {hz} per second of each thread, by {samples.sampler}; "
        f"{cost}; {format_share(inside, count)} lie in kernels, {format_share(joined, count)} in a known dispatch"
    )
    return Diagnostic("sampled", text)
