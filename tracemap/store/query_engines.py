"""Query engines of a store: DuckDB and Spark."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracemap.core.errors import StoreInvalid, ToolFailed, ToolMissing, UsageInvalid
from tracemap.core.process.temporary_files import child_note, noted_in_ledger, temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.runs.sql import (
    available_memory,
    check_allocated,
    damage_of,
    fill_table,
    open_database,
    out_of_memory,
    reader_call,
    reading_errors,
    rows_of,
)
from tracemap.store.folder import Place
from tracemap.store.layout import AMOUNT, CALLS, COLUMNS, Row

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession


# ---- engine
#
# Query engines: views of the store's tables, and SQL in the common subset of DuckDB and Spark.
#
# A test checks that the queries in `store` keep to that subset: sums of integers cast to DECIMAL(38,0), windows,
# `filter`, `percentile_cont … within group`. Integer division differs, so each engine defines `quotient(a, b)`, which
# rounds down like Python's `//`, also for negative numbers.


QUOTIENT: Final = "quotient"
# `//` and `%` truncate towards 0. The second `%` makes the remainder that of rounding down.
_A, _B = "CAST(a AS HUGEINT)", "CAST(b AS HUGEINT)"
_QUOTIENT: Final = f"CREATE MACRO {QUOTIENT}(a, b) AS CAST(({_A} - ({_A} % {_B} + {_B}) % {_B}) // {_B} AS {AMOUNT})"
_EVERY_S: Final = 1.0


def text_literal(text: str) -> str:
    """A text literal for all engines: quotes and backslashes, which some engines treat as escapes, become `chr(N)`."""
    parts = re.split(r"(['\\])", text)
    literals = (f"chr({ord(part)})" if part in {"'", "\\"} else f"'{part}'" for part in parts if part)
    return f"({' || '.join(literals)})" if text else "''"


class Engine(Protocol):
    """Runs queries on views and temporary tables."""

    def view(self, name: str, files: Sequence[str]) -> None:
        """Create a view of files of one table. Without files it has no rows.

        Files of calls differ in their metrics. A metric that a file lacks is NULL.
        """

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Create a small table from Python rows, with columns of these SQL types."""

    def columns(self, name: str) -> Sequence[str]:
        """The names of a view's columns."""

    def keep(self, name: str, query: str) -> None:
        """Run a query and store its rows as a table."""

    def rows(self, query: str) -> list[Row]:
        """All rows of a query. Integers and decimals without fraction become ints."""


class DuckEngine:
    """DuckDB in this process, with bounded memory; it spills to disk."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, memory: int, progress: Progress) -> None:
        self._connection = connection
        self._memory = memory
        self._progress = progress
        connection.execute("SET preserve_insertion_order = false")
        # Each query opens thousands of files. None is ever replaced, so cache their metadata.
        connection.execute("SET parquet_metadata_cache = true")
        # Do not trust a file's statistics: a damaged file that claimed to have no NULL was summed up.
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        connection.execute(_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """See `Engine.view`."""
        if not files:
            empty = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in COLUMNS[name].items())
            self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT {empty} LIMIT 0")
            return
        self._execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {_parquet(files, name)}")
        # The first file sets the types for all files; others raise an error.
        types = {str(column): str(kind) for column, kind, *_ in self._execute(f"DESCRIBE {name}").fetchall()}
        if any(types.get(column) != kind for column, kind in COLUMNS.get(name, {}).items()):
            raise StoreInvalid(f"the store cannot be read: its {name} have other columns than a store's")

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """See `Engine.fill`."""
        fill_table(self._connection, name, columns, rows)

    def columns(self, name: str) -> Sequence[str]:
        """See `Engine.columns`."""
        return [str(column) for column, *_ in self._execute(f"DESCRIBE {name}").fetchall()]

    def keep(self, name: str, query: str) -> None:
        """See `Engine.keep`."""
        with self._watched():
            self._execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def rows(self, query: str) -> list[Row]:
        """See `Engine.rows`."""
        with self._watched():
            return [tuple(map(_plain, row)) for row in self._execute(query).fetchall()]

    def _execute(self, query: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(query)
        except out_of_memory() as error:
            check_allocated(error)
            raise UsageInvalid(
                f"the query needs more than {self._memory // 1_000_000} MB, even when it spills to disk: "
                "raise --memory, set TMPDIR to a folder with more room, or select fewer runs with --where"
            ) from error
        except reading_errors() as error:
            raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Report the progress of a query once a second."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_EVERY_S):
                percent = self._connection.query_progress()
                if percent >= 0:
                    self._progress(f"summing calls: {percent:.0f} %")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of any type
    """A cell as a Python value: decimals become ints."""
    return int(cell) if isinstance(cell, Decimal) else cell


def columns_of(files: Sequence[str]) -> dict[str, str]:
    """The union of the columns of Parquet files, with their types, from the footers.

    Raises:
        StoreInvalid: a file cannot be read.
    """
    try:
        described = rows_of(f"DESCRIBE SELECT * FROM {_parquet(files, CALLS)}")
    except reading_errors() as error:
        raise StoreInvalid(f"the store cannot be read: {damage_of(error)}") from error
    return {str(column): str(kind) for column, kind, *_ in described}


def _parquet(files: Sequence[str], table: str) -> str:
    """SQL for files of a table. Only calls need the union of columns, as finding it takes as long as a small read."""
    return reader_call("read_parquet", files, f"union_by_name = {str(table == CALLS).lower()}")


@contextmanager
def duck_engine(memory_mb: int, progress: Progress, place: Place | None = None) -> Iterator[DuckEngine]:
    """DuckDB with a limit in megabytes (0: what the machine can spare), which reads files of a storage."""
    memory = memory_mb * 1_000_000 or available_memory()
    with open_database(memory) as connection:
        engine = DuckEngine(connection, memory, progress)
        if place is None:
            yield engine
            return
        place.open_to(connection)
        try:
            yield engine
        except StoreInvalid:
            place.check_answers()
            raise


# ---- spark session
#
# A Spark session, in local processes or on a cluster. It leaves nothing behind.
#
# Spark runs in a Java process that this process starts and registers as its child, so that they end together.


MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://(?P<hosts>[\w.\-]+:\d+(,[\w.\-]+:\d+)*)|yarn"
)
"""The accepted masters, in Spark's notation (docs/submitting-applications.md of Spark)."""

_JAVA: Final = "Java 17 or later (Debian: openjdk-17-jre-headless)"
_LEAST_MEMORY_MB: Final = 512
"""Spark does not start with less."""
_ANSWER_S: Final = 10.0
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    # A backslash in a text, such as a metric's name, is literal, as in DuckDB.
    "spark.sql.parser.escapedStringLiterals": "true",
    # Shuffles move a few rows per run, for any number of calls.
    "spark.sql.shuffle.partitions": "8",
    # List files on the driver: a job with a task for each file takes seconds longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # The driver plans for a few seconds, for which the C1 compiler alone takes half the time. Workers have both JITs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A lost worker makes its tasks run again; it does not fail the query.
    "spark.task.maxFailures": "8",
}


@contextmanager
def _spark_session(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkSession]:
    _check(master)
    progress("starting Spark")
    with temporary_folder() as folder, ExitStack() as ends:
        session = _started(master, memory_mb, folder)
        ends.callback(_stop, session)
        from pyspark import SparkContext

        java_process = SparkContext._gateway.proc  # no public attribute has it
        if java_process is not None:
            ends.enter_context(noted_in_ledger(*child_note(java_process.pid, group=False)))
        yield session


def _stop(session: SparkSession) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # Spark may have ended already
        session.stop()


def _check(master: str) -> None:
    parsed = MASTER.fullmatch(master)
    if not parsed:
        raise UsageInvalid(f"--engine {master}: unknown engine; choose duckdb, local[*] or spark://HOST:PORT")
    if importlib.util.find_spec("pyspark") is None:
        raise ToolMissing(f"Spark is not installed; run pip install 'tracemap[spark]', and install {_JAVA}")
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise ToolMissing(f"JAVA_HOME is {home}, which has no bin/java; Spark needs {_JAVA}")
    if not home and shutil.which("java") is None:
        raise ToolMissing(f"Spark needs {_JAVA}: install it, or set JAVA_HOME")
    if parsed["hosts"]:
        _check_answers(parsed["hosts"].split(","))


def _check_answers(addresses: list[str]) -> None:
    """Connect to a master, since Spark itself takes a minute to report that nothing answers."""
    reason: Exception | None = None
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_ANSWER_S):
                return
        except (OSError, OverflowError) as error:
            reason = error
    raise UsageInvalid(
        f"--engine spark://{','.join(addresses)}: no Spark master answers ({reason}); start one, or correct the address"
    )


def _started(master: str, memory_mb: int, folder: Path) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tracemap store")
    settings = {**_SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if memory_mb:
        for process in ("driver", "executor"):
            settings[f"spark.{process}.memory"] = f"{max(memory_mb, _LEAST_MEMORY_MB)}m"
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Report errors in a sentence, without Spark's JSON records on standard error.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    log = folder / "log"
    try:
        # In the main thread Spark would install its own handler for Ctrl-C.
        with _stderr_to(log), ThreadPoolExecutor(1) as executor:
            return executor.submit(builder.getOrCreate).result()
    except (PySparkException, Py4JError, OSError) as error:
        logged = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        lines = logged or str(error).strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if "rror" in line or "xception" in line] or lines
        raise ToolFailed(f"Spark on {master} did not start: {errors[-1].strip()}") from error


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """Redirect standard error of processes that start inside, for their whole life: Spark prints a banner there."""
    sys.stderr.flush()
    saved, opened = os.dup(2), os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(opened, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(opened)


# ---- spark engine
#
# Run queries on Spark. A cluster's workers read the store, which every worker must see under the same path.
#
# Queries are the same text as for DuckDB. Spark is imported on use.


_TYPES: Final = {"VARCHAR": "STRING", "INTEGER": "INT"}
_PATTERN: Final = re.compile(r"[\\*?{}\[\]]")
# Spark's `div` returns BIGINT for all types, so divide decimals that have no remainder, which is exact. `%` truncates
# towards 0; the second one makes the remainder that of rounding down.
_SPARK_QUOTIENT: Final = (
    f"CREATE OR REPLACE TEMPORARY FUNCTION {QUOTIENT}(a {AMOUNT}, b {AMOUNT}) RETURNS {AMOUNT} "
    f"RETURN CAST((a - (a % b + b) % b) / b AS {AMOUNT})"
)
_MOST_IDLE_S: Final = 60.0
"""Longest wait for a worker to accept work."""
_OF_FILES: Final = re.compile(r"FAILED_READ_FILE|parquet", re.IGNORECASE)
_LONGEST: Final = 400


class _SparkEngine:
    """Query engine on a Spark session."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._frames: dict[str, DataFrame] = {}
        session.sql(_SPARK_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """Pass the columns of the files: Spark would start a job to find them."""
        if not files:
            self.fill(name, COLUMNS[name], ())
            return
        # Spark treats file names as patterns.
        paths = [_PATTERN.sub(r"\\\g<0>", str(Path(path).absolute())) for path in files]
        with _explained():
            self._session.read.schema(_declared(columns_of(files))).parquet(*paths).createOrReplaceTempView(name)

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Each worker gets the whole table."""
        from pyspark.sql.functions import broadcast

        with _explained():
            cells = [tuple(map(_cell, columns.values(), row)) for row in rows]
            frame = self._session.createDataFrame(cells, _declared(columns))
            broadcast(frame).createOrReplaceTempView(name)

    def columns(self, name: str) -> Sequence[str]:
        return list(self._session.table(name).columns)

    def keep(self, name: str, query: str) -> None:
        with self._watched(), _explained():
            frame = self._session.sql(query).persist()
            frame.count()
        if (old := self._frames.pop(name, None)) is not None:
            old.unpersist()
        self._frames[name] = frame
        frame.createOrReplaceTempView(name)

    def rows(self, query: str) -> list[Row]:
        with self._watched(), _explained():
            return [tuple(map(_plain, row)) for row in self._session.sql(query).collect()]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Report the progress of a query, and cancel it if no worker accepts its work.

        Raises:
            ToolFailed: no worker accepted work in time.
        """
        watch = _Watch(self._session, self._progress)
        thread = threading.Thread(target=watch.look, daemon=True)
        thread.start()
        try:
            yield
        except (StoreInvalid, ToolFailed) as error:
            if watch.cancelled:
                raise ToolFailed(
                    f"no Spark worker accepted work for {_MOST_IDLE_S:.0f} s: start workers, or wait until other "
                    "applications release them; a worker needs the memory given by --memory"
                ) from error
            raise
        finally:
            watch.done.set()
            thread.join()


class _Watch:
    """Watches the tasks of Spark's workers while a query runs."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self.done = threading.Event()
        self.cancelled = False
        self._context = session.sparkContext
        self._progress = progress

    def look(self) -> None:
        """Look every second until `done` is set."""
        from py4j.protocol import Py4JError

        busy = time.monotonic()
        while not self.done.wait(_EVERY_S):
            try:
                stages = self._stages()
            except (Py4JError, OSError):
                return  # Spark has ended; the thread that waits for the result reports it
            if not stages or any(stage.numActiveTasks for stage in stages):
                busy = time.monotonic()
            elif time.monotonic() > busy + _MOST_IDLE_S:
                self.cancelled = True
                self._context.cancelAllJobs()
                return
            if stages:
                tasks, ended = (
                    sum(getattr(stage, name) for stage in stages) for name in ("numTasks", "numCompletedTasks")
                )
                self._progress(f"summing on Spark: {ended} of {tasks} tasks")

    def _stages(self) -> list[Any]:
        tracker = self._context.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return [stage for stage in stages if stage is not None]


def _declared(columns: Mapping[str, str]) -> str:
    """Columns in Spark's notation. Names of metrics may be any text."""
    names = {column: column.replace("`", "``") for column in columns}
    return ", ".join(f"`{names[column]}` {_TYPES.get(kind, kind)}" for column, kind in columns.items())


def _cell(kind: str, cell: Any) -> Any:  # noqa: ANN401 - a cell of any type
    return Decimal(cell) if kind == AMOUNT and cell is not None else cell


@contextmanager
def _explained() -> Iterator[None]:
    """Translate Spark's errors into one sentence.

    Raises:
        StoreInvalid: a file cannot be read.
        ToolFailed: any other failure.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        java_error = getattr(error, "java_exception", None)
        text = str(error if java_error is None else java_error.toString())
        line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)[:_LONGEST]
        if _OF_FILES.search(text):
            raise StoreInvalid(
                f"Spark cannot read the store: {line}; all workers must see the store under the same path"
            ) from error
        raise ToolFailed(f"Spark failed: {line}") from error
    except (Py4JError, OSError) as error:
        raise ToolFailed(
            f"Spark ended before it answered ({error}): its process was killed or ran out of memory"
        ) from error


@contextmanager
def spark_engine(master: str, memory_mb: int, progress: Progress) -> Iterator[Engine]:
    """An engine on a master: `local[*]`, or `spark://HOST:PORT` for a cluster. Its session ends with the context.

    `memory_mb`: limit for each of its processes; 0: Spark's default.

    Raises:
        UsageInvalid: the master is invalid, or does not answer.
        ToolMissing: Spark or Java is not installed.
        ToolFailed: the session does not start.
    """
    with _spark_session(master, memory_mb, progress) as session:
        yield _SparkEngine(session, progress)
