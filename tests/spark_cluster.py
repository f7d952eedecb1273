"""A cluster of Spark's on the loopback: a master and workers of one core each, started by the wheel's `spark-class`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    """Whether something becomes true in time."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


class Cluster:
    """A master and workers of one core each, all processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._shown = free_port(), free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the master."""
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
        except (OSError, ValueError):  # while it starts it answers with a page that says so
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
        made.begin()
        yield made
    finally:
        made.end()
