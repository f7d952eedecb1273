"""Query engine on Apache Spark."""

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
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import StoreInvalid, ToolFailed, ToolMissing, UsageInvalid
from tracemap.owned.home import child_note, noted, temporary_folder
from tracemap.store.engine import QUOTIENT, columns_of
from tracemap.store.layout import AMOUNT, COLUMNS, Row
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
def spark_session(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkSession]:
    """Start a session on a master. It ends with the context.

    `memory_mb`: limit for each of its processes; 0: Spark's default.

    Raises:
        UsageInvalid: the master is invalid, or does not answer.
        ToolMissing: Spark or Java is not installed.
        ToolFailed: the session does not start.
    """
    _check(master)
    progress("starting Spark")
    with temporary_folder() as folder, ExitStack() as ends:
        session = _started(master, memory_mb, folder)
        ends.callback(_stop, session)
        from pyspark import SparkContext

        java_process = SparkContext._gateway.proc  # no public attribute has it
        if java_process is not None:
            ends.enter_context(noted(*child_note(java_process.pid, group=False)))
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
    """Connect to a master, since Spark itself takes a minute to report that nothing answers.

    Raises:
        UsageInvalid: no address accepts a connection.
    """
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
_QUOTIENT: Final = (
    f"CREATE OR REPLACE TEMPORARY FUNCTION {QUOTIENT}(a {AMOUNT}, b {AMOUNT}) RETURNS {AMOUNT} "
    f"RETURN CAST((a - (a % b + b) % b) / b AS {AMOUNT})"
)
_EVERY_S: Final = 1.0
_MOST_IDLE_S: Final = 60.0
"""Longest wait for a worker to accept work."""
_OF_FILES: Final = re.compile(r"FAILED_READ_FILE|parquet", re.IGNORECASE)
_LONGEST: Final = 400


class SparkEngine:
    """Query engine on a Spark session."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._frames: dict[str, DataFrame] = {}
        session.sql(_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """See `Engine.view`. Pass the columns of the files: Spark would start a job to find them."""
        if not files:
            self.fill(name, COLUMNS[name], ())
            return
        # Spark treats file names as patterns.
        paths = [_PATTERN.sub(r"\\\g<0>", str(Path(path).absolute())) for path in files]
        with _explained():
            self._session.read.schema(_declared(columns_of(files))).parquet(*paths).createOrReplaceTempView(name)

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """See `Engine.fill`. Each worker gets the whole table."""
        from pyspark.sql.functions import broadcast

        with _explained():
            cells = [tuple(map(_cell, columns.values(), row)) for row in rows]
            frame = self._session.createDataFrame(cells, _declared(columns))
            broadcast(frame).createOrReplaceTempView(name)

    def columns(self, name: str) -> Sequence[str]:
        """See `Engine.columns`."""
        return list(self._session.table(name).columns)

    def keep(self, name: str, query: str) -> None:
        """See `Engine.keep`."""
        with self._watched(), _explained():
            frame = self._session.sql(query).persist()
            frame.count()
        if (old := self._frames.pop(name, None)) is not None:
            old.unpersist()
        self._frames[name] = frame
        frame.createOrReplaceTempView(name)

    def rows(self, query: str) -> list[Row]:
        """See `Engine.rows`."""
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


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of any type
    return int(cell) if isinstance(cell, Decimal) else cell


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
def spark_engine(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkEngine]:
    """An engine on a master: `local[*]`, or `spark://HOST:PORT` for a cluster. Its session ends with the context.

    `memory_mb`: limit for each of its processes; 0: Spark's default.

    Raises:
        UsageInvalid: the master is invalid, or does not answer.
        ToolMissing: Spark or Java is not installed.
        ToolFailed: the session does not start.
    """
    with spark_session(master, memory_mb, progress) as session:
        yield SparkEngine(session, progress)
