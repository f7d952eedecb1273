"""The same questions on Apache Spark: a cluster's workers read the store, which lies where all of them see it.

The texts of queries are those that DuckDB gets. Spark is imported where it is asked for.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import StoreInvalid, ToolFailed
from tracemap.store.engine import QUOTIENT, columns_of
from tracemap.store.spark_session import spark_session
from tracemap.store.tables import AMOUNT, COLUMNS, Row
from tracemap.toolchain import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
