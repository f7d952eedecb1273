"""A Spark cluster of a master and two workers: queries survive lost processes.

Master and workers are those of the wheel, started by its `spark-class`. They run only where Spark is (`make spark`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.store import make_store
from tests.spark_cluster import cluster_in, kill_with_children, wait_for
from tests.store.test_spark import MISSING, answered, check_refused, duck, java_machines
from tests.support import json_cli, run_cli
from tracemap.store.costs import Question

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

FILES, CALLS = 16, 250_000
MEMORY_MB: Final = 600
FROM_CALLS: Final = Question(("host",), ("cpu_ns", "duration_ns"), from_calls=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some million calls, made of a real run."""
    folder = tmp_path_factory.mktemp("calls")
    make_store(folder, folder / "store", FILES, CALLS)
    return folder / "store"


def test_a_worker_that_is_killed_in_the_middle_changes_nothing(store: Path, tmp_path: Path) -> None:
    from tracemap.store.query_engines import spark_engine

    killed: list[int] = []
    with duck() as engine:
        expected = answered(engine, store, FROM_CALLS)
    with cluster_in(tmp_path / "cluster") as cluster:
        lost, _ = cluster.add_worker(), cluster.add_worker()
        seen: list[str] = []

        def progress(said: str) -> None:
            """Kill one worker and its executor as soon as some of the work is done, but not all."""
            seen.append(said)
            done, _, tasks = said.removeprefix("summing on Spark: ").removesuffix(" tasks").partition(" of ")
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
    assert "no Spark worker accepted work" in done.stderr
