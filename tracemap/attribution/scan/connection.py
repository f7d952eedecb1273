"""The SQL connection that reads runs, its tables, and metrics in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from tracemap.core.errors import RunInvalid, UsageInvalid
from tracemap.core.process.limits import usable_processors
from tracemap.runs.bad_cells import explain_bad_cell
from tracemap.runs.model import STEP_METRICS, TIME_METRICS, Metric, Run
from tracemap.runs.sql import (
    available_memory,
    check_allocated,
    damage_of,
    fill_table,
    open_database,
    out_of_memory,
    quoted,
    reading_errors,
)

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt


# ---- tables


Row = tuple[Any, ...]
"""A row of a query's result."""

_LEAST_BYTES_OF_ROW = {"csv": 90, "parquet": 10}
"""Bytes of the smallest usual event in a file, by format, with all columns that `record` writes."""

_BYTES_OF_METRIC = 550_000
"""Memory of the aggregates of one metric on each thread of the database, even for few rows."""
_LEAST_BYTES_OF_METRIC = 500_000
"""Memory per metric below which queries fail after a long time."""


@contextmanager
def open_tables(runs: Sequence[Run], memory_mb: int = 0) -> Iterator[Tables]:
    """Tables for these runs, on a connection with this memory limit in MB (0: the memory that the machine can spare).

    Raises:
        UsageInvalid: the runs have more metrics than fit into that memory.
    """
    memory = memory_mb * 1_000_000 or available_memory()
    threads = _threads_for(runs, memory)
    with open_database(memory) as connection:
        if threads < usable_processors():
            connection.execute(f"SET threads = {threads}")
        connection.execute("SET preserve_insertion_order = false")
        # The optimizer does not know the size of a CSV. It would take all events for the small side of a join and keep
        # them in memory. The joins here are written in the right order.
        # The minima in a file's statistics may be wrong; trusting them would disable the check for negative values.
        connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side,statistics_propagation'")
        yield Tables(connection, tuple(runs), memory)


def _threads_for(runs: Sequence[Run], memory: int) -> int:
    """The number of threads whose aggregates fit into the memory, at least one.

    Raises:
        UsageInvalid: the aggregates of one thread do not fit.
    """
    widest = max(runs, key=lambda run: len(run.metrics), default=None)
    metrics = len(widest.metrics) if widest is not None else 0
    if widest is not None and metrics * _LEAST_BYTES_OF_METRIC > memory:
        raise UsageInvalid(
            f"{widest.file}: {metrics:,} metrics need {metrics * _BYTES_OF_METRIC // 1_000_000:,} MB of memory, but "
            f"the limit is {memory // 1_000_000:,} MB: leave columns out, or raise the limit with --memory"
        )
    return max(1, memory // (max(1, metrics) * _BYTES_OF_METRIC))


class Tables(msgspec.Struct, frozen=True):
    """The connection, the runs whose files its queries read, and its memory limit."""

    connection: duckdb.DuckDBPyConnection
    runs: tuple[Run, ...]
    memory_bytes: int

    def for_run(self, run: Run) -> Tables:
        """The same connection for queries that read the file of one run."""
        return Tables(self.connection, (run,), self.memory_bytes)

    @property
    def most_rows(self) -> int:
        """Approximate upper bound of the number of rows, from the sizes of the runs' files."""
        return sum(run.table.stat().st_size // _LEAST_BYTES_OF_ROW[run.format] for run in self.runs)

    def query(self, text: str) -> list[Row]:
        """All rows of a query.

        Raises:
            RunInvalid: a cell does not have its column's type, or a file is damaged.
            UsageInvalid: the query needs more memory than the limit.
        """
        with self._translated_errors():
            return self.connection.execute(text).fetchall()

    def fits(self, text: str) -> bool:
        """Execute a statement; if a value does not fit its column or is not a number, change nothing and return False.

        Raises:
            RunInvalid, UsageInvalid: as in `query`.
        """
        import duckdb

        with self._translated_errors():
            try:
                self.connection.execute(text)
            except duckdb.ConversionException:
                return False
        return True

    def columns(self, text: str) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of a query's rows, which must have no NULL.

        Raises:
            RunInvalid, UsageInvalid: as in `query`.
        """
        with self._translated_errors():
            return self.connection.execute(text).fetchnumpy()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise errors of a query as errors of the run that it reads."""
        try:
            yield
        except out_of_memory() as error:
            check_allocated(error)
            raise UsageInvalid(
                f"the rows of {self._file_names} need more memory than the limit of "
                f"{self.memory_bytes // 1_000_000} MB: raise it with --memory"
            ) from error
        except reading_errors() as error:
            if len(self.runs) == 1:
                raise explain_bad_cell(self.runs[0], error) from error
            # Queries over several runs read no cells of their files.
            raise RunInvalid(f"{self._file_names}: cannot be read: {damage_of(error)}") from error

    @property
    def _file_names(self) -> str:
        return ", ".join(run.file for run in self.runs)

    def make(self, name: str, query: str) -> None:
        """Create a table from a query's rows; replaces a table of that name."""
        self.query(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def fill(self, name: str, columns: str, rows: Sequence[Row]) -> None:
        """Create a table from Python rows, bound column by column; replaces a table of that name."""
        fill_table(self.connection, name, dict(column.split() for column in columns.split(", ")), rows)


# ---- metrics
#
# The metrics of attribution, and their values in SQL: whole numbers that add up over all runs.


MILLIONTHS: Final = 1_000_000
"""Units per 1 of a metric with fractions. Such metrics are attributed in millionths, so that they balance exactly."""
IN_MILLIONTHS: Final = "millionths"
"""The unit of metrics with fractions."""

RANKED_BY = tuple(reversed(TIME_METRICS))
"""The times that rank calls by slowness, in order of preference: wall time first, because it includes waits."""


def ranked_by(metrics: Sequence[Metric]) -> int | None:
    """The number of the metric that ranks calls by slowness; None if there is no time."""
    numbers = {metric.name: number for number, metric in enumerate(metrics)}
    return next((numbers[name] for name in RANKED_BY if name in numbers), None)


def common_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that all runs have: times first, then in the order of the file.

    A sum over only some of the runs would have no meaning. Runs with only `step` rows are ignored here.

    Raises:
        UsageInvalid: the runs have no metric in common.
    """
    event_metrics = []
    for run in runs:
        of_steps = frozenset(run.step_metrics)
        event_metrics.append({metric.name: metric for metric in run.metrics if metric not in of_steps})
    nonempty = [metrics for metrics in event_metrics if metrics]
    if not nonempty:
        return ()
    common = [name for name in nonempty[0] if all(name in metrics for metrics in nonempty)]
    if not common:
        raise UsageInvalid("the runs have no metric in common: attribute them separately")
    times = [name for name in TIME_METRICS if name in common]
    ordered = (*times, *(name for name in common if name not in times))
    # A metric of several runs has fractions if it has in any run.
    variants = {name: [metrics[name] for metrics in nonempty] for name in ordered}
    doubles = {name for name in ordered if any(metric.type == "DOUBLE" for metric in variants[name])}
    return tuple(
        structs.replace(own[0], type="DOUBLE") if name in doubles else own[0] for name, own in variants.items()
    )


def step_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics of steps that any run has; a run without such a metric does not make the sum incomplete.

    Raises:
        UsageInvalid: a metric is of steps in one run and of dispatches in another.
    """
    known = {metric.name: metric for run in runs for metric in run.step_metrics}
    both = sorted(known.keys() & {metric.name for metric in common_metrics(runs)})
    if both:
        raise UsageInvalid(
            f"{both[0]} counts dispatches in one run and steps in another: attribute the runs separately"
        )
    return tuple(known[name] for name in STEP_METRICS if name in known)


def value_of(metric: Metric, run: Run) -> str:
    """A metric of an `event` of a run as a whole number, in SQL; NULL if the run has only steps."""
    run_metric = next((candidate for candidate in run.metrics if candidate.name == metric.name), None)
    if run_metric is None:
        return "CAST(NULL AS BIGINT)"
    value = f"event.{quoted(metric.name)}"
    if metric.type != "DOUBLE":
        return value
    # Multiplying integers as integers keeps all digits.
    integers = f"{value} * {MILLIONTHS}"
    return integers if run_metric.type == "BIGINT" else f"CAST(round({integers}) AS BIGINT)"


def value_column(number: int) -> str:
    """The column of the n-th metric in tables of this package; its name in the file may be anything."""
    return f"value_{number}"
