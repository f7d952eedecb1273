"""Queries on Apache Spark."""

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
# A session of Apache Spark: in processes of its own here, or on a cluster; it leaves nothing behind.
#
# Spark runs in a Java machine that this process starts, and that is noted as its own: it ends with it, however that
# ends.


MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://(?P<hosts>[\w.\-]+:\d+(,[\w.\-]+:\d+)*)|yarn"
)
"""The masters that are taken, as Spark writes them (docs/submitting-applications.md of Spark)."""

_JAVA: Final = "Java 17 or later (Debian: openjdk-17-jre-headless)"
_LEAST_MEMORY_MB: Final = 512
"""Spark refuses to start with less."""
_ANSWER_S: Final = 10.0
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    # A backslash in a text, such as the name of a metric, stands for itself, as in DuckDB.
    "spark.sql.parser.escapedStringLiterals": "true",
    # What is shuffled are a few rows for each run, be the calls ever so many.
    "spark.sql.shuffle.partitions": "8",
    # Files are listed here: a job with a task for each of them takes longer by seconds.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Here is planned, for some seconds: the quick compiler of the Java machine needs half the time. Workers have both.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A worker that is lost is one task to be done again, not the end of the question.
    "spark.task.maxFailures": "8",
}


@contextmanager
def spark_session(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkSession]:
    """A session on a master, which ends with what is done inside.

    `memory_mb`: what each of its processes may hold; 0: what Spark takes.

    Raises:
        UsageInvalid: the master is none, or does not answer.
        ToolMissing: Spark or Java is not installed.
        ToolFailed: the session does not start.
    """
    _check(master)
    progress("starting Spark")
    with temporary_folder() as folder, ExitStack() as ends:
        session = _started(master, memory_mb, folder)
        ends.callback(_stop, session)
        from pyspark import SparkContext

        machine = SparkContext._gateway.proc  # nothing public tells which process it is
        if machine is not None:
            ends.enter_context(noted(*child_note(machine.pid, group=False)))
        yield session


def _stop(session: SparkSession) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # it may be gone already
        session.stop()


def _check(master: str) -> None:
    known = MASTER.fullmatch(master)
    if not known:
        raise UsageInvalid(f"--engine {master}: is not known; choose duckdb, local[*] or spark://HOST:PORT")
    if importlib.util.find_spec("pyspark") is None:
        raise ToolMissing(f"Spark is not installed: pip install 'tracemap[spark]', and {_JAVA}")
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise ToolMissing(f"JAVA_HOME is {home}, where no bin/java is; Spark needs {_JAVA}")
    if not home and shutil.which("java") is None:
        raise ToolMissing(f"Spark needs {_JAVA}: install it, or set JAVA_HOME")
    if known["hosts"]:
        _check_answers(known["hosts"].split(","))


def _check_answers(places: list[str]) -> None:
    """Spark itself asks a master that is not there for a minute."""
    said: Exception | None = None
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_ANSWER_S):
                return
        except (OSError, OverflowError) as error:
            said = error
    raise UsageInvalid(
        f"--engine spark://{','.join(places)}: no master answers there ({said}); start one, or mend the address"
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
    # What is wrong is said in a sentence, not in records of JSON on standard error.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    log = folder / "log"
    try:
        # In the main thread Spark would take Ctrl-C for itself, which is this program's.
        with _stderr_to(log), ThreadPoolExecutor(1) as apart:
            return apart.submit(builder.getOrCreate).result()
    except (PySparkException, Py4JError, OSError) as error:
        logged = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        said = logged or str(error).strip().splitlines() or ["no reason is told"]
        told = [line for line in said if "rror" in line or "xception" in line] or said
        raise ToolFailed(f"Spark on {master} does not start: {told[-1].strip()}") from error


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """Let what is started inside, and goes on afterwards, talk to a file: Spark greets on standard error."""
    sys.stderr.flush()
    kept, opened = os.dup(2), os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(opened, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(opened)


# ---- spark
#
# The same questions on Apache Spark: a cluster's workers read the store, which lies where all of them see it.
#
# The texts of queries are those that DuckDB gets. Spark is imported where it is asked for.


_TYPES: Final = {"VARCHAR": "STRING", "INTEGER": "INT"}
_PATTERN: Final = re.compile(r"[\\*?{}\[\]]")
# Spark's `div` gives a BIGINT, whatever it divides; what can be divided without a rest is exact as a decimal. `%` cuts
# off towards 0; the second one makes the rest one of rounding down.
_QUOTIENT: Final = (
    f"CREATE OR REPLACE TEMPORARY FUNCTION {QUOTIENT}(a {AMOUNT}, b {AMOUNT}) RETURNS {AMOUNT} "
    f"RETURN CAST((a - (a % b + b) % b) / b AS {AMOUNT})"
)
_EVERY_S: Final = 1.0
_MOST_IDLE_S: Final = 60.0
"""How long work may wait for a worker that takes it."""
_OF_FILES: Final = re.compile(r"FAILED_READ_FILE|parquet", re.IGNORECASE)
_LONGEST: Final = 400


class SparkEngine:
    """A session of Spark's."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._kept: dict[str, DataFrame] = {}
        session.sql(_QUOTIENT)

    def view(self, name: str, files: Sequence[str]) -> None:
        """As `Engine.view`. The files' columns are told: Spark would start a job to learn them."""
        if not files:
            self.fill(name, COLUMNS[name], ())
            return
        # Spark takes names for patterns.
        paths = [_PATTERN.sub(r"\\\g<0>", str(Path(path).absolute())) for path in files]
        with _explained():
            self._session.read.schema(_declared(columns_of(files))).parquet(*paths).createOrReplaceTempView(name)

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """As `Engine.fill`: every worker gets the whole table."""
        from pyspark.sql.functions import broadcast

        with _explained():
            cells = [tuple(map(_cell, columns.values(), row)) for row in rows]
            made = self._session.createDataFrame(cells, _declared(columns))
            broadcast(made).createOrReplaceTempView(name)

    def columns(self, name: str) -> Sequence[str]:
        """As `Engine.columns`."""
        return list(self._session.table(name).columns)

    def keep(self, name: str, query: str) -> None:
        """As `Engine.keep`."""
        with self._watched(), _explained():
            made = self._session.sql(query).persist()
            made.count()
        if (old := self._kept.pop(name, None)) is not None:
            old.unpersist()
        self._kept[name] = made
        made.createOrReplaceTempView(name)

    def rows(self, query: str) -> list[Row]:
        """As `Engine.rows`."""
        with self._watched(), _explained():
            return [tuple(map(_plain, row)) for row in self._session.sql(query).collect()]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell how far a query is, and give it up where no worker takes its work.

        Raises:
            ToolFailed: none does.
        """
        watch = _Watch(self._session, self._progress)
        thread = threading.Thread(target=watch.look, daemon=True)
        thread.start()
        try:
            yield
        except (StoreInvalid, ToolFailed) as error:
            if watch.given_up:
                raise ToolFailed(
                    f"Spark has no worker that takes the work, for {_MOST_IDLE_S:.0f} s now: start workers, or wait "
                    "until others leave them free; a worker needs the memory that --memory asks for"
                ) from error
            raise
        finally:
            watch.done.set()
            thread.join()


class _Watch:
    """Looks at what Spark's workers do while a query runs."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self.done = threading.Event()
        self.given_up = False
        self._context = session.sparkContext
        self._progress = progress

    def look(self) -> None:
        """Look every second, until it is done."""
        from py4j.protocol import Py4JError

        busy = time.monotonic()
        while not self.done.wait(_EVERY_S):
            try:
                stages = self._stages()
            except (Py4JError, OSError):
                return  # Spark is gone, which whoever waits for the answer sees as well
            if not stages or any(stage.numActiveTasks for stage in stages):
                busy = time.monotonic()
            elif time.monotonic() > busy + _MOST_IDLE_S:
                self.given_up = True
                self._context.cancelAllJobs()
                return
            if stages:
                tasks, ended = (
                    sum(getattr(stage, name) for stage in stages) for name in ("numTasks", "numCompletedTasks")
                )
                self._progress(f"adding up on Spark: {ended} of {tasks} tasks")

    def _stages(self) -> list[Any]:
        tracker = self._context.statusTracker()
        found = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return [stage for stage in found if stage is not None]


def _declared(columns: Mapping[str, str]) -> str:
    """Columns as Spark declares them; names of metrics are text from elsewhere."""
    names = {column: column.replace("`", "``") for column in columns}
    return ", ".join(f"`{names[column]}` {_TYPES.get(kind, kind)}" for column, kind in columns.items())


def _cell(kind: str, cell: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    return Decimal(cell) if kind == AMOUNT and cell is not None else cell


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    return int(cell) if isinstance(cell, Decimal) else cell


@contextmanager
def _explained() -> Iterator[None]:
    """What Spark says of a query that failed, in one sentence.

    Raises:
        StoreInvalid: a file cannot be read.
        ToolFailed: something else is wrong.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        java = getattr(error, "java_exception", None)
        said = str(error if java is None else java.toString())
        line = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)[:_LONGEST]
        if _OF_FILES.search(said):
            raise StoreInvalid(
                f"Spark cannot read the store: {line}; every worker must see the store under the same path"
            ) from error
        raise ToolFailed(f"Spark cannot answer: {line}") from error
    except (Py4JError, OSError) as error:
        raise ToolFailed(
            f"Spark has ended before it answered ({error}): its process was killed, or ran out of memory"
        ) from error


@contextmanager
def spark_engine(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkEngine]:
    """An engine on a master: `local[*]`, or a cluster's `spark://HOST:PORT`; its session ends with the question.

    `memory_mb`: what each of its processes may hold; 0: what Spark takes.

    Raises:
        UsageInvalid: the master is none, or does not answer.
        ToolMissing: Spark or Java is not installed.
        ToolFailed: the session does not start.
    """
    with spark_session(master, memory_mb, progress) as session:
        yield SparkEngine(session, progress)
