"""Reader of Google Benchmark's JSON, from `iree-benchmark-module --dispatch_statistics=true --benchmark_format=json`.

The row of a function, `BM_main/process_time/real_time`, is followed by rows of its kernels, `BM_main/KERNEL`. Their
times, and the counter `calls`, are per iteration; multiplied by the iterations, both are whole numbers again.
`real_time` is wall time from the first workgroup to the last, `cpu_time` the sum over workers. Kernel rows cover all
repetitions together. Google Benchmark documents the format in docs/user_guide.md, "Output Formats".
"""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from tracemap.core.codec import decode
from tracemap.core.errors import RunInvalid
from tracemap.core.files import open_stored_file
from tracemap.core.units import MAX_INTEGER, NS_OF_UNIT, UNKNOWN, Integer
from tracemap.runs.model import UNKNOWN_HEADER, Machine, RunHeader, recorded_at
from tracemap.runs.readers.rows import ForeignRun, Total, run_of_totals

if TYPE_CHECKING:
    import duckdb


_MOST_BYTES: Final = 64 << 20
"""Most bytes of a file; with a thousand kernels it has half a megabyte."""
_ITERATION: Final = "iteration"


class _Context(msgspec.Struct, frozen=True):
    date: str | None = None
    host_name: str | None = None
    executable: str | None = None
    num_cpus: int | None = None
    library_version: str | None = None


class _Row(msgspec.Struct, frozen=True):
    """The fields of a row that are read; kernel rows have the counters `calls` and `percent`."""

    name: str
    run_type: str = _ITERATION
    iterations: int = 0
    real_time: float = math.nan
    cpu_time: float = math.nan
    time_unit: str = "ns"
    calls: float | None = None
    percent: float | None = None
    error_occurred: bool = False
    error_message: str = ""

    @property
    def function(self) -> str:
        """The function that was called."""
        return self.name.partition("/")[0].removeprefix("BM_")

    @property
    def kernel(self) -> str:
        """The kernel of a kernel row."""
        return self.name.partition("/")[2]

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel row."""
        return self.calls is not None and self.percent is not None and bool(self.kernel)


class _Report(msgspec.Struct, frozen=True):
    benchmarks: list[_Row]
    context: _Context = _Context()


def read_google_benchmark(path: Path, connection: duckdb.DuckDBPyConnection) -> ForeignRun:
    """Read a report; overwrites the table `kernel_totals` of the connection.

    Raises:
        RunEmpty: no kernel was called.
        RunInvalid: the file is not such a report, is damaged, or has no kernel rows.
    """
    with open_stored_file(path, RunInvalid) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise RunInvalid(f"{path}: is larger than {_MOST_BYTES >> 20} MB, too large for Google Benchmark's output")
    try:
        report = decode(data, _Report)
    except ValueError as error:
        raise RunInvalid(f"{path}: not an output of Google Benchmark, or damaged: {error}") from error
    rows = [row for row in report.benchmarks if row.run_type == _ITERATION]
    for row in rows:
        if row.error_occurred:
            raise RunInvalid(f"{path}: the benchmark {row.name!r} failed: {row.error_message[:200]!r}")
    kernels = [row for row in rows if row.is_kernel]
    if not kernels:
        raise RunInvalid(
            f"{path}: has no kernel rows; run iree-benchmark-module with --dispatch_statistics=true on a local device"
        )
    totals: list[Total] = []
    for row in kernels:
        # A device without CPU time reports 0; that is unknown, not zero.
        cpu_ns = _whole_ns(path, row, row.cpu_time) if row.cpu_time else None
        count = _whole(path, row, (row.calls or 0) * row.iterations)
        totals.append((row.kernel, count, _whole_ns(path, row, row.real_time), cpu_ns))
    calls = [row for row in rows if row.calls is None and row.function in {kernel.function for kernel in kernels}]
    return run_of_totals(path, connection, "Google Benchmark", totals, _header(path, report.context, calls))


def _whole_ns(path: Path, row: _Row, time: float) -> int:
    """A time per iteration, multiplied by the iterations, in ns."""
    if row.time_unit not in NS_OF_UNIT:
        raise RunInvalid(f"{path}: the row {row.name!r} has an unknown time_unit {row.time_unit[:20]!r}")
    return _whole(path, row, time * NS_OF_UNIT[row.time_unit] * row.iterations)


def _whole(path: Path, row: _Row, value: float) -> int:
    if not 0 <= value < MAX_INTEGER:
        raise RunInvalid(f"{path}: the row {row.name!r} has impossible times, calls or iterations")
    return round(value)


def _header(path: Path, context: _Context, calls: list[_Row]) -> RunHeader:
    """The header: number of invocations, if there is only one function, and the machine."""
    functions = {row.function for row in calls}
    is_single = len(functions) == 1
    version, processors = context.library_version, context.num_cpus
    return structs.replace(
        UNKNOWN_HEADER,
        command=() if context.executable is None else (context.executable,),
        function=functions.pop() if is_single else UNKNOWN,
        iterations=_whole(path, calls[0], sum(row.iterations for row in calls)) if is_single else UNKNOWN,
        elapsed_ns=sum(_whole_ns(path, row, row.real_time) for row in calls) if is_single else UNKNOWN,
        tools=() if version is None else (f"Google Benchmark {version}",),
        machine=Machine(
            host=context.host_name or UNKNOWN,
            cpu_model=UNKNOWN,
            processors=processors if processors is not None and 0 < processors <= MAX_INTEGER else UNKNOWN,
            recorded_ns=_recorded_ns(context.date),
        ),
    )


def _recorded_ns(date: str | None) -> Integer:
    """The start of the program, from a date such as 2026-11-23T06:09:31+00:00; unknown without a time zone."""
    try:
        start = datetime.fromisoformat(date or "")
    except ValueError:
        return UNKNOWN
    return UNKNOWN if start.tzinfo is None else recorded_at(start)
