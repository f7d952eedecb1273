"""The SQL connection that runs are read on, its tables, and the metrics in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import RunInvalid, UsageInvalid
from tracemap.measurements.badcells import explain_bad_cell
from tracemap.measurements.model import STEP_METRICS, TIME_METRICS, Metric, Run
from tracemap.measurements.sql import (
    check_allocated,
    damage_of,
    fill,
    open_database,
    out_of_memory,
    quoted,
    reading_errors,
    spared_memory,
)
from tracemap.processors import usable_processors

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


# ---- tables
#
# The SQL connection that runs are read on, its own tables, and how an error of its becomes one of the run's.


Row = tuple[Any, ...]
"""A row as SQL hands it out: what it holds depends on the query."""

_LEAST_BYTES_OF_ROW = {"csv": 90, "parquet": 10}
"""What an event hardly takes less than in a file of each format, with all columns that `record` writes."""

_BYTES_OF_METRIC = 550_000
"""Memory that the aggregates of one metric take on each thread of the database, however few the rows are."""
_LEAST_BYTES_OF_METRIC = 500_000
"""With less, queries fail after a long time."""


@contextmanager
def open_tables(runs: Sequence[Run], memory_mb: int = 0) -> Iterator[Tables]:
    """Tables for these runs, on a connection that may hold so many megabytes (0: what the machine can spare).

    Raises:
        UsageInvalid: the runs have more metrics than that memory can hold.
    """
    memory = memory_mb * 1_000_000 or spared_memory()
    threads = _threads_for(runs, memory)
    with open_database(memory) as connection:
        if threads < usable_processors():
            connection.execute(f"SET threads = {threads}")
        connection.execute("SET preserve_insertion_order = false")
        # The size of a CSV is not known to the optimizer, which then takes all events for the small side of a join and
        # keeps them in memory. Our joins are written in the right order.
        # What a file says of its least values is not to be believed: a check for negative ones would then find none.
        connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side,statistics_propagation'")
        yield Tables(connection, tuple(runs), memory)


def _threads_for(runs: Sequence[Run], memory: int) -> int:
    """The number of threads whose aggregates the memory holds, at least one.

    Raises:
        UsageInvalid: it does not hold those of one thread.
    """
    widest = max(runs, key=lambda run: len(run.metrics), default=None)
    metrics = len(widest.metrics) if widest is not None else 0
    if widest is not None and metrics * _LEAST_BYTES_OF_METRIC > memory:
        raise UsageInvalid(
            f"{widest.file}: {metrics:,} metrics need {metrics * _BYTES_OF_METRIC // 1_000_000:,} MB of memory, and "
            f"{memory // 1_000_000:,} MB are allowed: leave columns out, or allow more with --memory"
        )
    return max(1, memory // (max(1, metrics) * _BYTES_OF_METRIC))


@dataclass(frozen=True, slots=True)
class Tables:
    """The connection, the runs whose files its queries read, and what it may hold in memory."""

    connection: duckdb.DuckDBPyConnection
    runs: tuple[Run, ...]
    memory_bytes: int

    def of_run(self, run: Run) -> Tables:
        """The same connection, for queries that read the file of one run."""
        return Tables(self.connection, (run,), self.memory_bytes)

    @property
    def most_rows(self) -> int:
        """About how many rows the files of the runs have at most, by their sizes."""
        return sum(run.table.stat().st_size // _LEAST_BYTES_OF_ROW[run.format] for run in self.runs)

    def query(self, text: str) -> list[Row]:
        """All rows of a query.

        Raises:
            RunInvalid: it failed, be it for a cell that is not what its column says, or for a damaged file.
            UsageInvalid: the memory is too small for it.
        """
        with self._explained():
            return self.connection.execute(text).fetchall()

    def fits(self, text: str) -> bool:
        """Execute a statement, unless a value is no number, or not of the width of its column; then nothing is changed.

        Raises:
            RunInvalid, UsageInvalid: as `query` does.
        """
        import duckdb

        with self._explained():
            try:
                self.connection.execute(text)
            except duckdb.ConversionException:
                return False
        return True

    def columns(self, text: str) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of a query's rows, in which no value is unknown.

        Raises:
            RunInvalid, UsageInvalid: as `query` does.
        """
        with self._explained():
            return self.connection.execute(text).fetchnumpy()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of a query as those of the run that it reads."""
        try:
            yield
        except out_of_memory() as error:
            check_allocated(error)
            raise UsageInvalid(
                f"the rows of {self._named} take more memory than {self.memory_bytes // 1_000_000} MB: allow more with "
                "--memory"
            ) from error
        except reading_errors() as error:
            if len(self.runs) == 1:
                raise explain_bad_cell(self.runs[0], error) from error
            # Where there are several runs, it is not for a cell of theirs.
            raise RunInvalid(f"{self._named}: cannot be read: {damage_of(error)}") from error

    @property
    def _named(self) -> str:
        return ", ".join(run.file for run in self.runs)

    def make(self, name: str, query: str) -> None:
        """A table of a query's rows, in place of any that had the name."""
        self.query(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def fill(self, name: str, columns: str, rows: Sequence[Row]) -> None:
        """A table of rows of ours, bound column by column, in place of any that had the name."""
        fill(self.connection, name, dict(column.split() for column in columns.split(", ")), rows)


# ---- metrics
#
# The metrics that runs are attributed by, and their values in SQL: whole numbers that add up over all runs.


MILLIONTHS: Final = 1_000_000
"""Metrics that are not whole numbers are attributed in millionths, so that they balance exactly too."""
IN_MILLIONTHS: Final = "millionths"
"""The unit of what is attributed so."""

RANKED_BY = tuple(reversed(TIME_METRICS))
"""The times by which calls are slow, the first that there is: that on the wall tells when workers waited, too."""


def ranked_by(metrics: Sequence[Metric]) -> int | None:
    """The number of the metric by which calls are slow; None: there is no time."""
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    return next((numbers[name] for name in RANKED_BY if name in numbers), None)


def common_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that all runs have (a sum over some runs would be nobody's): times first, then as in the file.

    Runs that have seen nothing but steps do not count here. A metric is whole only if it is in all runs.

    Raises:
        UsageInvalid: the runs have no metric in common.
    """
    own = [_of_events(run) for run in runs]
    several = [metrics for metrics in own if metrics]
    if not several:
        return ()
    common = [name for name in several[0] if all(name in metrics for metrics in several)]
    if not common:
        raise UsageInvalid("the runs have no metric in common: attribute them one at a time")
    times = [name for name in TIME_METRICS if name in common]
    ordered = (*times, *(name for name in common if name not in times))
    return tuple(_over_all([metrics[name] for metrics in several]) for name in ordered)


def _of_events(run: Run) -> dict[str, Metric]:
    of_steps = frozenset(run.step_metrics)
    return {metric.name: metric for metric in run.metrics if metric not in of_steps}


def _over_all(same: Sequence[Metric]) -> Metric:
    """A metric of several runs: its values may have fractions as soon as those of one run have."""
    return replace(same[0], type="DOUBLE") if any(metric.type == "DOUBLE" for metric in same) else same[0]


def step_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics of steps that any run has: a run without samples has not seen none.

    Raises:
        UsageInvalid: one of them is of dispatches in another run.
    """
    known = {metric.name: metric for run in runs for metric in run.step_metrics}
    both = sorted(known.keys() & {metric.name for metric in common_metrics(runs)})
    if both:
        raise UsageInvalid(f"{both[0]} is of dispatches in one run, of steps in another: attribute them one at a time")
    return tuple(known[name] for name in STEP_METRICS if name in known)


def value_of(metric: Metric, run: Run) -> str:
    """A metric of a run's events (named `event`) as a whole number; NULL in a run that has seen nothing but steps."""
    own = next((each for each in run.metrics if each.name == metric.name), None)
    if own is None:
        return "CAST(NULL AS BIGINT)"
    value = f"event.{quoted(metric.name)}"
    if metric.type != "DOUBLE":
        return value
    # Multiplying whole numbers as such keeps all their digits.
    return f"{value} * {MILLIONTHS}" if own.type == "BIGINT" else f"CAST({_in_millionths(value)} AS BIGINT)"


def _in_millionths(value: str) -> str:
    return f"round({value} * {MILLIONTHS})"


def rounded_metrics(metrics: Sequence[Metric], run: Run) -> dict[str, tuple[str, str]]:
    """Those that lose digits in a run's events (named `event`): in SQL, how large they are and what they lose."""
    own = {metric.name for metric in run.metrics if metric.type == "DOUBLE"}
    values = {metric.name: f"event.{quoted(metric.name)}" for metric in metrics if metric.name in own}
    return {
        name: (f"abs({value})", f"abs({_in_millionths(value)} / {MILLIONTHS} - {value})")
        for name, value in values.items()
    }


def value_column(number: int) -> str:
    """The column of the n-th metric in tables of ours: its own name is the file's, and may be any."""
    return f"value_{number}"
