"""The same questions on Apache Spark: a cluster's workers read the store, which lies where all of them see it.

Spark is imported where it is asked for, and needs Java. The texts of queries are those that DuckDB gets.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import StoreInvalid, ToolMissing, UsageInvalid
from tracemap.owned.home import temporary_folder
from tracemap.store.tables import AMOUNT, COLUMNS, Row
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://[\w.\-]+:\d+(,[\w.\-]+:\d+)*|yarn"
)
"""The masters that are taken, as Spark writes them (docs/submitting-applications.md of Spark)."""

_TYPES: Final = {"VARCHAR": "STRING", "INTEGER": "INT"}
_PATTERN: Final = re.compile(r"[\\*?{}\[\]]")
_JAVA: Final = "Java 17 or later (Debian: openjdk-17-jre-headless)"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    # What is shuffled are a few rows for each run, be the calls ever so many.
    "spark.sql.shuffle.partitions": "16",
    # A worker that is lost is one task to be done again, not the end of the question.
    "spark.task.maxFailures": "8",
}
_QUOTIENT: Final = (
    f"CREATE OR REPLACE TEMPORARY FUNCTION quotient(a {AMOUNT}, b {AMOUNT}) RETURNS {AMOUNT} "
    f"RETURN CAST(a div b AS {AMOUNT})"
)


class SparkEngine:
    """A session of Spark's."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._kept: dict[str, DataFrame] = {}
        session.sql(_QUOTIENT)

    def view(self, name: str, files: Sequence[Path]) -> None:
        """As `Engine.view`."""
        if not files:
            self._small(name, COLUMNS[name], ())
            return
        # Spark takes names for patterns.
        paths = [_PATTERN.sub(r"\\\g<0>", str(path.absolute())) for path in files]
        with _explained():
            self._session.read.option("mergeSchema", "true").parquet(*paths).createOrReplaceTempView(name)

    def fill(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """As `Engine.fill`: every worker gets the whole table."""
        self._small(name, columns, rows)

    def _small(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        from pyspark.sql.functions import broadcast

        declared = ", ".join(f"{column} {_TYPES.get(kind, kind)}" for column, kind in columns.items())
        made = self._session.createDataFrame([*rows], declared)
        broadcast(made).createOrReplaceTempView(name)

    def columns(self, name: str) -> Sequence[str]:
        """As `Engine.columns`."""
        return list(self._session.table(name).columns)

    def keep(self, name: str, query: str) -> None:
        """As `Engine.keep`."""
        self._progress(f"computing the table {name} on Spark")
        with _explained():
            made = self._session.sql(query).persist()
            made.count()
        if (old := self._kept.pop(name, None)) is not None:
            old.unpersist()
        self._kept[name] = made
        made.createOrReplaceTempView(name)

    def rows(self, query: str) -> list[Row]:
        """As `Engine.rows`."""
        with _explained():
            return [tuple(map(_plain, row)) for row in self._session.sql(query).collect()]


def _plain(cell: Any) -> Any:  # noqa: ANN401 - a cell of whatever type
    return int(cell) if isinstance(cell, Decimal) else cell


@contextmanager
def _explained() -> Iterator[None]:
    """What Spark says of a query that failed, in one sentence.

    Raises:
        StoreInvalid: it failed.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        java = getattr(error, "java_exception", None)
        said = str(error if java is None else java.toString()).strip().splitlines()
        raise StoreInvalid(f"Spark cannot answer: {said[0] if said else type(error).__name__}") from error


@contextmanager
def spark_engine(master: str, memory_mb: int, progress: Progress) -> Iterator[SparkEngine]:
    """A session on a master: `local[*]`, or a cluster's `spark://HOST:PORT`; it ends with the question.

    `memory_mb`: what each of its processes may hold; 0: what Spark takes.

    Raises:
        UsageInvalid: the master is none.
        ToolMissing: Spark or Java is not installed, or the session does not start.
    """
    if not MASTER.fullmatch(master):
        raise UsageInvalid(f"--engine {master}: is not known; choose duckdb, local[*] or spark://HOST:PORT")
    if importlib.util.find_spec("pyspark") is None:
        raise ToolMissing(f"Spark is not installed: pip install 'tracemap[spark]', and {_JAVA}")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise ToolMissing(f"Spark needs {_JAVA}: install it, or set JAVA_HOME")
    progress("starting Spark")
    session = _started(master, memory_mb)
    try:
        yield SparkEngine(session, progress)
    finally:
        session.stop()


def _started(master: str, memory_mb: int) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tracemap store")
    if master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if memory_mb:
        for process in ("driver", "executor"):
            builder = builder.config(f"spark.{process}.memory", f"{memory_mb}m")
    with temporary_folder() as folder:
        log = folder / "log"
        try:
            with _stderr_to(log):
                return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            said = [*log.read_text(encoding="utf-8", errors="replace").splitlines(), *str(error).strip().splitlines()]
            told = [line for line in said if "rror" in line or "xception" in line] or said or ["no reason is told"]
            raise ToolMissing(f"Spark on {master} does not start: {told[-1]}") from error


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
