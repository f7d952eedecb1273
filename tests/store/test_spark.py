"""Queries on Apache Spark and DuckDB agree; messages where Spark is missing.

Runs are recorded here, and others are made of them: of other metrics, of kernels only, of no call that is known. One
Java machine serves all questions of this file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import Built, Recorded
from tests.spark_cluster import wait_for
from tests.support import Json, check_cli, command_line, interruptible, run_cli
from tracemap.core.codec import encode
from tracemap.core.errors import UsageInvalid
from tracemap.core.toolchain import no_progress
from tracemap.runs.sql import literal, open_database, quoted, rows_of
from tracemap.store.costs import MOST_EXACT, Question, query_calls, query_costs
from tracemap.store.layout import store_at
from tracemap.store.lineage import Names, read_names
from tracemap.store.query_engines import DuckEngine, Engine
from tracemap.store.run_headers import read_headers

MISSING: Final = (
    "pyspark is not installed: `make spark` installs it"
    if importlib.util.find_spec("pyspark") is None
    else "there is no Java (Debian: openjdk-17-jre-headless)"
    if shutil.which("java") is None
    else ""
)
on_spark: Final = pytest.mark.skipif(bool(MISSING), reason=MISSING)
MODEL, SHARED = "hand_mlp", "hand_repeat12"
"""A model of which each kernel has one site, and one whose sites share kernels."""
HOSTILE: Final = "a'b\\n\"x`y;--"


@pytest.fixture(scope="module")
def store(built: Built, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store = folder / "a {store} of [*] runs"
    for model in (MODEL, SHARED):
        run = recorded(model)
        dispatches = f"FROM '{run}' WHERE kind = 'dispatch' AND NOT warmup"
        bare = {
            "kernels": f"SELECT kernel, cpu_ns {dispatches}",
            "other": f"SELECT kernel, duration_ns * 3 AS instructions, cpu_ns {dispatches}",
            "hostile": f"SELECT kernel, cpu_ns, cpu_ns % 7 AS {quoted(HOSTILE)} {dispatches}",
            "nobody": "SELECT 'none' AS kernel, 17 AS cpu_ns",
        }
        runs = [run]
        for name, query in bare.items():
            runs.append(folder / f"{model}-{name}.csv")
            rows_of(f"COPY ({query}) TO {literal(str(runs[-1]))} (FORMAT csv)")
        for number, each in enumerate(runs):
            words = ("--map", built(model), "--store", store, "--tag", f"how={each.stem}", "--allow-mismatch")
            told = () if each is run else ("--host", f"h{number % 3}", "--recorded", f"2026-11-{20 - number}")
            check_cli("store", "add", each, *words, *told)
    return store


@contextmanager
def duck() -> Iterator[DuckEngine]:
    with open_database() as connection:
        yield DuckEngine(connection, 0, no_progress)


@pytest.fixture(scope="module")
def spark() -> Iterator[Engine]:
    from tracemap.store.query_engines import spark_engine

    with spark_engine("local[2]", 0, no_progress) as engine:
        yield engine


def answered(engine: Engine, store: Path, question: Question) -> Json:
    headers = read_headers(store_at(store), skip_bad=False)
    names = read_names(headers.listing, headers.maps_of_models)
    answer = json.loads(encode(query_costs(engine, headers, names, question)))
    assert isinstance(answer, dict)
    return answer


ALL: Final = ("cpu_ns", "duration_ns", "instructions", HOSTILE)
QUESTIONS: Final = {
    "plain": Question(),
    "groups": Question(("host", "tag.how", "iterations")),
    "metrics": Question(("date",), ALL),
    "calls": Question((), (), from_calls=True),
    "calls of groups": Question(("tag.how",), ("duration_ns",), from_calls=True),
    "calls of metrics": Question(("host", "tag.how"), ALL, from_calls=True),
}


@on_spark
@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_the_same(store: Path, spark: Engine, name: str) -> None:
    with duck() as engine:
        expected = answered(engine, store, QUESTIONS[name])
    assert answered(spark, store, QUESTIONS[name]) == expected
    assert sum(group["runs"] for group in expected["groups"]) == 10


@pytest.mark.long
@pytest.mark.parametrize("of", [(), ("cpu_ns", "duration_ns")])
def test_calls_and_summaries_are_the_same_in_duckdb(store: Path, of: tuple[str, ...]) -> None:
    """What Spark is compared with is right for these runs, too."""
    with duck() as engine:
        one, other = (answered(engine, store, Question(("tag.how",), of, from_calls=each)) for each in (False, True))
    assert one["groups"] == other["groups"]
    assert (one["added_up"], other["added_up"]) == ("summaries", "calls")


@on_spark
@pytest.mark.parametrize("most_exact", [0, MOST_EXACT], ids=["histogram", "exact"])
def test_percentiles_of_calls_are_the_same(store: Path, spark: Engine, most_exact: int) -> None:
    headers, nobody, found = read_headers(store_at(store), skip_bad=False), Names({}, ()), []
    with duck() as engine:
        for each in (engine, spark):
            found.append(encode(query_calls(each, headers, nobody, "cpu_ns", ("tag.how",), most_exact)))
    assert json.loads(found[0]) == json.loads(found[1])


@on_spark
def test_runs_that_lack_a_table_are_an_empty_one(spark: Engine) -> None:
    spark.view("aside", [])
    assert list(spark.columns("aside")) == ["run", "target", "metric", "reason", "amount"]
    assert spark.rows("SELECT * FROM aside") == []


@on_spark
def test_a_metric_that_no_run_has_is_refused_as_by_duckdb(store: Path, spark: Engine) -> None:
    said = []
    with duck() as engine:
        for each in (engine, spark):
            with pytest.raises(UsageInvalid) as caught:
                answered(each, store, Question((), ("colour",)))
            said.append(str(caught.value))
    assert said[0] == said[1]


@on_spark
def test_quotients_are_rounded_down_alike(spark: Engine) -> None:
    numbers = [(a, b) for a in (-7, -1, 0, 1, 7, 10**30) for b in (1, 2, 3, 10**15)]
    columns = {"a": "DECIMAL(38,0)", "b": "DECIMAL(38,0)"}
    found = []
    with duck() as engine:
        for each in (engine, spark):
            each.fill("numbers", columns, numbers)
            found.append(each.rows("SELECT a, b, quotient(a, b) AS c FROM numbers ORDER BY a, b"))
    assert found[0] == found[1]
    assert sorted(found[0]) == sorted((a, b, a // b) for a, b in numbers)


# ---- the whole command


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@on_spark
def test_the_command_prints_the_same_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    words = ("store", "query", "--store", store, "--calls", "--group-by", "tag.how", "--format", "json")
    ours = run_cli(*words, cwd=tmp_path)
    done = run_cli(*words, "--engine", "local[2]", "--memory", "600", cwd=tmp_path)
    assert (done.returncode, ours.returncode) == (0, 0), done.stderr
    assert done.stdout == ours.stdout
    assert everything_in(tmp_path) == []


@on_spark
def test_damaged_files_are_named_and_can_be_left_out(store: Path, tmp_path: Path) -> None:
    """A page of one file is zeros, another is cut off, a third is no file of a store."""
    copied = Path(shutil.copytree(store, tmp_path / "store"))
    calls = sorted(copied.glob("calls/**/*.parquet"), key=lambda path: path.stat().st_size)
    zeroed, cut = calls[-1], calls[0]
    data = bytearray(zeroed.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    zeroed.write_bytes(data)
    words = ("store", "query", "--store", copied, "--calls", "--format", "json")
    spark = ("--engine", "local[2]")
    done = run_cli(*words, *spark)
    check_refused(done)
    assert str(zeroed) in done.stderr
    cut.write_bytes(cut.read_bytes()[:-30])
    foreign = copied / "calls" / "mine.parquet"
    rows_of(f"COPY (SELECT 1 AS colour) TO {literal(str(foreign))} (FORMAT parquet)")
    done, ours = (json.loads(check_cli(*words, "--skip-bad", *more)) for more in (spark, ()))
    assert done == ours
    assert done["looked"]["runs"] == 8
    assert {each["file"] for each in done["looked"]["skipped"]} == {str(zeroed), str(cut), str(foreign)}


def check_refused(done: subprocess.CompletedProcess[str]) -> None:
    """One sentence, and nothing of what a program says to its makers."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("tracemap: error: ") == 1
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr


def java_machines() -> set[int]:
    """The Java machines of this user that work for a store."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"java" in (line := (folder / "cmdline").read_bytes()) and b"tracemap store" in line:
                found.add(int(folder.name))
    return found


@on_spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_no_java_machine_is_left_by_a_query_that_is_ended(store: Path, number: signal.Signals, tmp_path: Path) -> None:
    """The moment is that at which the query has begun: Spark runs, and its first tasks do."""
    before = java_machines()
    words = interruptible("store", "query", "--store", store, "--calls", "--engine", "local[2]")
    surroundings = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=surroundings) as child:
        assert wait_for(lambda: bool(java_machines() - before) and any(tmp_path.rglob("blockmgr-*")), 60)
        time.sleep(1)
        child.send_signal(number)
        assert child.wait(30) == -number
    assert wait_for(lambda: not java_machines() - before, 5 if number == signal.SIGKILL else 0.5)
    if number != signal.SIGKILL:
        assert everything_in(tmp_path) == []


# ---- no Spark


def query(store: Path, engine: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = command_line("store", "query", "--store", store, "--engine", engine)
    surroundings = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"} | variables
    return subprocess.run(words, capture_output=True, text=True, check=False, env=surroundings, timeout=150)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["nonsense", "spark://", "spark://host", "local[x]", "k8s://h:1", "spark://h:1/x"])
def test_an_engine_that_is_none_is_refused(store: Path, engine: str) -> None:
    done = query(store, engine)
    check_refused(done)
    assert f"--engine {engine}: unknown engine; choose duckdb, local[*] or spark://HOST:PORT" in done.stderr


def test_without_spark_it_is_said_what_to_install(store: Path) -> None:
    """An interpreter that sees the packages of this one, but not pyspark."""
    if importlib.util.find_spec("pyspark") is not None:
        pytest.skip("pyspark is installed")
    done = query(store, "local[2]")
    check_refused(done)
    assert "Spark is not installed; run pip install 'tracemap[spark]', and install Java 17" in done.stderr
    assert done.stderr.endswith("[tool-missing]\n")


@on_spark
def test_without_java_it_is_said_what_to_install(store: Path) -> None:
    done = query(store, "local[2]", PATH="")
    check_refused(done)
    assert "Spark needs Java 17 or later" in done.stderr
    assert done.stderr.endswith("[tool-missing]\n")


@on_spark
def test_a_java_that_is_none_is_said_so(store: Path, tmp_path: Path) -> None:
    done = query(store, "local[2]", JAVA_HOME=str(tmp_path))
    check_refused(done)
    assert f"JAVA_HOME is {tmp_path}, which has no bin/java" in done.stderr


@on_spark
def test_what_spark_says_of_a_start_that_fails_is_passed_on(store: Path, tmp_path: Path) -> None:
    """A program that is called java, but is none."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Error: this is no Java' >&2\nexit 3\n", encoding="utf-8")
    java.chmod(0o755)
    done = query(store, "local[2]", JAVA_HOME=str(tmp_path))
    check_refused(done)
    assert "Spark on local[2] did not start: Error: this is no Java [tool-failed]" in done.stderr


@on_spark
def test_a_master_that_is_not_there_is_said_so_at_once(store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = query(store, f"spark://127.0.0.1:{port}")
    check_refused(done)
    assert f"--engine spark://127.0.0.1:{port}: no Spark master answers" in done.stderr


@on_spark
def test_a_master_that_keeps_silent_is_given_up(store: Path) -> None:
    """Whoever listens there takes connections and never says a word; Spark asks three times, for 20 s each."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        done = query(store, f"spark://127.0.0.1:{silent.getsockname()[1]}")
    check_refused(done)
    assert "did not start" in done.stderr
    assert time.monotonic() - began < 140
