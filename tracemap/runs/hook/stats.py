"""Statistics of calls like those of IREE's own hook: means, quantiles, correlations, conditional probabilities.

Sums are in single precision and in order, as in that tool, so results match to the last digit. Calls come from our
hook's recordings, or from CSV files of IREE's hook.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import QueryInvalid, RunEmpty, RunInvalid, UsageInvalid
from tracemap.core.files import FileFormat, check_is_file, copy_user_input, display_name, format_of_file, is_file
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.sanitize import unescape_formula
from tracemap.options.measure import StatsOptions
from tracemap.runs.columns import check_width, csv_rows
from tracemap.runs.hook.recording import (
    HookProcess,
    HookThread,
    duration_ns,
    kernels_named,
    no_calls_error,
    read_recording,
    start_ns,
)
from tracemap.runs.sql import damage_of, query_database, quoted, reader_call

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Amounts = npt.NDArray[np.float32 | np.float64]
    """Event counts are integers up to 2⁵³; float32 would round them from 2²⁴ on."""

DURATION = "duration_us"
_FIXED = ("thread", "cpu", "node", DURATION)
_MAX_COLUMNS = 68
"""Statistics are for pairs of columns: 68 columns already give two thousand. A call has at most 16 events."""
_EXPECTED_INPUT = (
    "statistics need single calls: name the folder that the hook recorded into (tracemap hook env -o FOLDER), or a "
    f"CSV file of IREE's hook, which begins with the columns {', '.join(_FIXED)}"
)


@dataclass(frozen=True)
class ThreadCalls:
    """The calls of one thread: CPU, NUMA node, and measured series; the first series is the duration in us."""

    thread: str
    cpus: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int64]
    names: tuple[str, ...]
    series: tuple[Amounts, ...]

    @property
    def singles(self) -> tuple[Floats, ...]:
        """The series in single precision, as IREE's statistics use them."""
        return tuple(values_of_series.astype("float32") for values_of_series in self.series)


@dataclass(frozen=True)
class ThreadedCalls:
    """The calls of all threads, at least one per thread, with diagnostics."""

    threads: tuple[ThreadCalls, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class SeriesStats:
    """Mean of one series, and means of its quantiles, lowest first (NaN: the quantile is empty)."""

    name: str
    mean: float
    bucket_means: tuple[float, ...]


@dataclass(frozen=True)
class PairStats:
    """Pearson's correlation of two series (NaN: one is constant), and P(bucket of `of` | bucket of `given`).

    Rows of the table are buckets of `of`, columns are buckets of `given`; each nonempty column adds up to 1.
    """

    of: str
    given: str
    correlation: float
    table: npt.NDArray[np.float32]


@dataclass(frozen=True)
class ThreadStats:
    """Statistics of one thread's calls; `pairs`: each series with every earlier one."""

    thread: str
    calls: int
    calls_of_cpu: tuple[tuple[int, int], ...]
    series: tuple[SeriesStats, ...]
    pairs: tuple[PairStats, ...]


# ---- reading


def read_calls(path: Path, options: StatsOptions) -> ThreadedCalls:
    """The calls of each thread that the options select.

    Args:
        path: a folder of our hook's recording, a folder of IREE's CSV files, or such a file.
        options: selection of calls and events.

    Raises:
        QueryInvalid: no call is left, or there is no such event.
        RunEmpty: there are no calls.
        RunInvalid: a file is damaged, or of another kind.
        RunVersion: a recording of another format version.
        UsageInvalid: calls of IREE's CSV files are selected by kernel or start, which these files do not contain.
    """
    diagnostics: tuple[Diagnostic, ...] = ()
    if is_recording(path):
        recording = read_recording(path)
        diagnostics = recording.diagnostics
        kernels = kernels_named(recording, options.kernel)
        of_process = ((process, thread) for process in recording.processes for thread in process.threads)
        threads = [_thread_calls(process, thread, kernels, options) for process, thread in of_process]
    elif options.kernel or options.skip_ms:
        raise UsageInvalid(f"{path}: IREE's CSV files contain no kernels or start times; select when recording")
    else:
        threads = _iree_hook_calls(path)
    threads = [_with_events(path, calls, options.counters) for calls in threads if len(calls.cpus)]
    if not threads:
        raise no_calls_error(path, options)
    return ThreadedCalls(tuple(threads), diagnostics)


def is_recording(path: Path) -> bool:
    """Whether a folder is a recording of our hook. A folder with only CSV files is one of IREE's hook."""
    is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises OSError for names that are too long
    return is_folder and (any(path.glob("hook-*.jsonl")) or not any(path.glob("*.csv")))


def _thread_calls(
    process: HookProcess, thread: HookThread, kernels: Sequence[str], options: StatsOptions
) -> ThreadCalls:
    import numpy as np

    calls = thread.calls
    chosen = np.ones(len(calls), dtype=bool)
    if options.kernel:
        numbers = [number for number, about in process.kernels.items() if about.name in kernels]
        chosen &= np.isin(calls["kernel"], numbers)
    if options.skip_ms and len(calls):
        starts = start_ns(process, calls)
        chosen &= starts >= starts[0] + options.skip_ms * 1_000_000
    durations = (duration_ns(process, calls)[chosen] / 1000).astype(np.float32)
    counts = (thread.events[chosen, index].astype(np.float64) for index in range(len(thread.event_names)))
    return ThreadCalls(
        thread.name,
        calls["cpu"][chosen].astype(np.int64),
        calls["node"][chosen].astype(np.int64),
        (DURATION, *thread.event_names),
        (durations, *counts),
    )


def _iree_hook_calls(path: Path) -> list[ThreadCalls]:
    """The threads in CSV files of IREE's hook: in a folder, in one file, or from a pipe."""
    if os.path.isdir(path):  # noqa: PTH112 - as above
        return [calls for file in sorted(path.glob("*.csv")) for calls in _csv_calls(file, str(file))]
    if is_file(str(path)):
        return _csv_calls(path, str(path))
    with temporary_folder() as folder:  # the file is read twice, which a pipe does not allow
        copy_user_input(str(path), folder / "calls.csv", RunInvalid)
        return _csv_calls(folder / "calls.csv", display_name(str(path)))


def _csv_calls(path: Path, source_name: str) -> list[ThreadCalls]:
    """The threads in one CSV file of IREE's hook, in the order of their first line; messages use `source_name`."""
    import duckdb

    if not os.path.exists(path):  # noqa: PTH110 - as above
        raise RunInvalid(f"{source_name}: does not exist; {_EXPECTED_INPUT}")
    check_is_file(path, RunInvalid)
    if (kind := format_of_file(path)) not in (None, FileFormat.TEXT, FileFormat.RUN, FileFormat.EMPTY):
        raise RunInvalid(f"{source_name}: is {kind}, not calls of the hook; {_EXPECTED_INPUT}")
    with csv_rows(path, source_name) as rows:
        check_width(Path(source_name), len(next(rows, ())), _MAX_COLUMNS)
    try:
        with query_database() as connection:
            table = reader_call("read_csv", path, "header=true, delim=',', quote='\"', all_varchar=true")
            names = [str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
            if tuple(names[:4]) != _FIXED:
                raise RunInvalid(f"{source_name}: its columns begin with {', '.join(names[:4])}; {_EXPECTED_INPUT}")
            numbers = ", ".join(
                [f"CAST({name} AS BIGINT) AS {name}" for name in ("cpu", "node")]
                + [f"CAST({quoted(name)} AS DOUBLE) AS s{index}" for index, name in enumerate(names[3:])]
            )
            columns = connection.execute(f"SELECT thread, {numbers} FROM {table}").fetchnumpy()
    except duckdb.Error as error:
        damage = damage_of(error).replace(str(path), source_name)
        raise RunInvalid(f"{source_name}: cannot be read ({damage}); {_EXPECTED_INPUT}") from error
    return _by_thread(source_name, columns, tuple(names[3:]))


def _by_thread(source_name: str, columns: dict[str, Any], names: tuple[str, ...]) -> list[ThreadCalls]:
    import numpy as np

    if not len(columns["thread"]):
        raise RunEmpty(f"{source_name}: holds no call")
    if any(np.ma.is_masked(column) for column in columns.values()):
        raise RunInvalid(f"{source_name}: a cell is empty")
    threads = np.asarray(columns["thread"], dtype=object)
    calls_of_threads = []
    for thread in dict.fromkeys(threads.tolist()):
        rows = threads == thread
        series = tuple(np.asarray(columns[f"s{index}"], dtype=np.float64)[rows] for index in range(len(names)))
        if not all(np.isfinite(values).all() for values in series):
            raise RunInvalid(f"{source_name}: a cell is no finite number")
        cpus, nodes = (np.asarray(columns[name], dtype=np.int64)[rows] for name in ("cpu", "node"))
        calls_of_threads.append(ThreadCalls(unescape_formula(thread), cpus, nodes, names, series))
    return calls_of_threads


def _with_events(path: Path, calls: ThreadCalls, events: Sequence[str]) -> ThreadCalls:
    for name in events:
        if name not in calls.names[1:]:
            raise QueryInvalid(f"{path}: has no event {name!r}; it has: {', '.join(calls.names[1:]) or 'none'}")
    names = (calls.names[0], *events) if events else calls.names
    return replace(calls, names=names, series=tuple(calls.series[calls.names.index(name)] for name in names))


# ---- computing


def thread_stats(calls: ThreadCalls, buckets: int, *, tables: bool = True) -> ThreadStats:
    """The statistics of one thread's calls (at least one), over `buckets` quantiles."""
    import numpy as np

    cpus, counts = np.unique(calls.cpus, return_counts=True)
    series, pairs = series_stats(calls.names, calls.singles, buckets, tables=tables)
    by_cpu = tuple((int(cpu), int(count)) for cpu, count in zip(cpus, counts, strict=True))
    return ThreadStats(calls.thread, len(calls.cpus), by_cpu, series, pairs)


def series_stats(
    names: Sequence[str], values: Sequence[Floats], buckets: int, *, tables: bool = True
) -> tuple[tuple[SeriesStats, ...], tuple[PairStats, ...]]:
    """The statistics of series of equal length (at least 1), and of each pair of them."""
    import numpy as np

    split = [_buckets(values_of_series, buckets) for values_of_series in values]
    series = tuple(
        SeriesStats(name, _mean(values_of_series), means)
        for name, values_of_series, (means, _) in zip(names, values, split, strict=True)
    )
    pairs = tuple(
        PairStats(
            names[of],
            names[given],
            _correlation(values[of], values[given]),
            _conditional(split[given][1], split[of][1], buckets) if tables else np.zeros((0, 0), dtype=np.float32),
        )
        for given in range(len(series))
        for of in range(given)
    )
    return series, pairs


def _mean(values: Floats) -> float:
    """Mean by summing in order and in single precision; numpy's own sum is pairwise, more accurate, and different."""
    import numpy as np

    sums = np.add.accumulate(values, dtype=np.float32)
    return float(sums[-1] / np.float32(len(values))) if len(values) else float("nan")


def _correlation(left: Floats, right: Floats) -> float:
    import numpy as np

    def covariance(left: Floats, right: Floats) -> np.float32:
        return np.float32(_mean((left - np.float32(_mean(left))) * (right - np.float32(_mean(right)))))

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return float(covariance(left, right) / np.sqrt(covariance(left, left) * covariance(right, right)))


def _buckets(values: Floats, count: int) -> tuple[tuple[float, ...], npt.NDArray[np.int64]]:
    """The mean of each quantile, and the quantile of each value; ties go to the lower one."""
    import numpy as np

    ordered = np.sort(values)
    edges = [min(len(values) - 1, len(values) * index // count) for index in range(count)] + [len(values)]
    means = tuple(_mean(ordered[edges[index] : edges[index + 1]]) for index in range(count))
    return means, np.searchsorted(ordered[edges[1:-1]], values, side="left")


def _conditional(given: npt.NDArray[np.int64], of: npt.NDArray[np.int64], count: int) -> Floats:
    import numpy as np

    table = np.zeros((count, count), dtype=np.float32)
    np.add.at(table, (of, given), np.float32(1))
    sizes = np.bincount(given, minlength=count).astype(np.float32)
    return np.asarray(np.divide(table, sizes, out=np.zeros_like(table), where=sizes > 0), dtype=np.float32)
