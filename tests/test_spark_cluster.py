"""A cluster of Spark's on the loopback, of a master and two workers: questions are answered though processes are lost.

Master and workers are those of the wheel, started by its `spark-class`. They run only where Spark is (`make spark`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fleet import make_store
from tests.support import json_cli, run_cli
from tests.test_spark import MISSING, answered, check_refused, duck, java_machines, wait_for
from tracemap.store.costs import Question

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

FILES, CALLS = 16, 250_000
MEMORY_MB: Final = 600
FROM_CALLS: Final = Question(("host",), ("cpu_ns", "duration_ns"), from_calls=True)


class Cluster:
    """A master and workers of one core each, all processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._shown = free_port(), free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        words = ("--host", "127.0.0.1", "--port", self.port, "--webui-port", self._shown)
        self._start("master.Master", *words)
        assert wait_for(lambda: self.state() is not None, 60), self.said()

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def add_worker(self) -> subprocess.Popen[bytes]:
        """A worker that has been registered."""
        before = self.workers()
        resources = ("--cores", "1", "--memory", "1500m", "--work-dir", self.folder / "work", "--webui-port", "0")
        worker = self._start("worker.Worker", "--host", "127.0.0.1", *resources, self.master)
        assert wait_for(lambda: self.workers() > before, 60), self.said()
        return worker

    def workers(self) -> int:
        state = self.state()
        return 0 if state is None else int(str(state["aliveworkers"]))

    def state(self) -> dict[str, object] | None:
        """What the master shows; None: it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._shown}/json/", timeout=5) as answer:
                found = json.load(answer)
        except OSError:
            return None
        assert isinstance(found, dict)
        return found

    def said(self) -> str:
        """The ends of the logs."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for process in reversed(self._started):
            kill_with_children(process)

    def _start(self, kind: str, *words: object) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *words]
        # What is measured or lost is no log of theirs.
        surroundings = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        with (self.folder / f"{len(self._started)}.log").open("wb") as log:
            started = subprocess.Popen([*map(str, command)], stdout=log, stderr=log, env=surroundings, cwd=self.folder)
        self._started.append(started)
        return started


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def children_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found


def kill_with_children(process: subprocess.Popen[bytes]) -> int:
    """Kill a process and what it has started; returns how many that were."""
    children = children_of(process.pid)
    process.kill()
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.wait()
    return len(children)


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    folder.mkdir()
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some million calls, made of a real run."""
    folder = tmp_path_factory.mktemp("calls")
    make_store(folder, folder / "store", FILES, CALLS)
    return folder / "store"


def test_a_worker_that_is_killed_in_the_middle_changes_nothing(store: Path, tmp_path: Path) -> None:
    from tracemap.store.spark import spark_engine

    killed: list[int] = []
    with duck() as engine:
        expected = answered(engine, store, FROM_CALLS)
    with cluster_in(tmp_path / "cluster") as cluster:
        lost, _ = cluster.add_worker(), cluster.add_worker()
        seen: list[str] = []

        def progress(said: str) -> None:
            """Kill one worker and its executor as soon as some of the work is done, but not all."""
            seen.append(said)
            done, _, tasks = said.removeprefix("adding up on Spark: ").removesuffix(" tasks").partition(" of ")
            if not killed and tasks.isdigit() and int(tasks) > 4 and 0 < int(done) < int(tasks):
                killed.append(kill_with_children(lost))

        with spark_engine(cluster.master, MEMORY_MB, progress) as spark:
            found = answered(spark, store, FROM_CALLS)
        assert killed == [1], seen
        assert wait_for(lambda: cluster.workers() == 1, 90), cluster.said()
    assert found == expected


def test_the_command_on_a_cluster_prints_the_same(store: Path, tmp_path: Path) -> None:
    words = ("store", "query", "--store", store, "--calls", "--group-by", "host")
    before = java_machines()
    with cluster_in(tmp_path / "cluster") as cluster:
        for _ in range(2):
            cluster.add_worker()
        found = json_cli(*words, "--engine", cluster.master, "--memory", str(MEMORY_MB))
    assert found == json_cli(*words)
    assert java_machines() <= before


def test_a_cluster_without_workers_is_given_up(store: Path, tmp_path: Path) -> None:
    with cluster_in(tmp_path / "cluster") as cluster:
        done = run_cli("store", "query", "--store", store, "--engine", cluster.master)
    check_refused(done)
    assert "Spark has no worker that takes the work" in done.stderr
