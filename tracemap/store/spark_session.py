"""A session of Apache Spark: in processes of its own here, or on a cluster; it leaves nothing behind.

Spark runs in a Java machine that this process starts, and that is noted as its own: it ends with it, however that ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import ToolFailed, ToolMissing, UsageInvalid
from tracemap.owned.home import noted, temporary_folder
from tracemap.owned.ledger import child_note
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
