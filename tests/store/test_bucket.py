"""A store in a bucket on the loopback: same answers as a folder, and messages on failure."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from tests.buckets import BUCKET, MISSING, Server, served, variables
from tests.conftest import Built
from tests.support import Json, check_cli, command_line, json_cli, run_cli
from tracemap.commands.store import store_list
from tracemap.core.errors import StoreInvalid, UsageInvalid
from tracemap.core.toolchain import no_progress
from tracemap.options.store import StoreListOptions
from tracemap.store.costs import query_calls
from tracemap.store.layout import CALLS, store_at
from tracemap.store.lineage import Names
from tracemap.store.query_engines import duck_engine
from tracemap.store.run_headers import find_damaged_files, read_headers

with_bucket: Final = pytest.mark.skipif(bool(MISSING), reason=MISSING)
RUNS: Final = 3
STORE: Final = f"s3://{BUCKET}/of a team/[x]*"
PREFIX: Final = "of a team/[x]*"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def bundle(built: Built) -> Path:
    return built("hand_mlp")


@pytest.fixture(scope="module")
def runs(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = [folder / f"{number}.parquet" for number in range(RUNS)]
    for number, run in enumerate(found):
        check_cli("record", bundle, "--iterations", str(20 + number), "-o", run)
    return found


def add(bundle: Path, store: str | Path, *words: str | Path) -> Json:
    return json_cli("store", "add", *words, "--map", bundle, "--store", store, "--model", "../a/b*[x]?%41")


@pytest.fixture(scope="module")
def folder(bundle: Path, runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store") / "nightly"
    add(bundle, store, *runs, "--tag", "branch=main")
    return store


@pytest.fixture(scope="module")
def store(bundle: Path, runs: list[Path], server: Server) -> str:
    add(bundle, STORE, *runs, "--tag", "branch=main")
    assert server.files()
    return STORE


@pytest.fixture
def changed(store: str, server: Server) -> Iterator[dict[str, bytes]]:
    """What lies in the bucket, which a test changes: it lies there again afterwards."""
    files = server.files()
    assert all(f"s3://{BUCKET}/{name}".startswith(store) for name in files)
    yield files
    for name in server.files().keys() - files.keys():
        server.ask("DELETE", "/" + quote(name))
    for name, content in files.items():
        server.put(name, content)


def failed(*words: str | Path) -> str:
    """What a command says that refuses: one sentence."""
    done = run_cli(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    (said,) = done.stderr.splitlines()
    return said


QUESTIONS: Final = {
    "query": ("query",),
    "groups": ("query", "--group-by", "iterations,tag.branch", "--format", "json"),
    "calls": ("query", "--calls", "--format", "json"),
    "sites": ("sites", "--format", "json"),
    "trend": ("trend", "--format", "json"),
    "compare": ("compare", "--before", "iterations=20", "--after", "iterations>20", "--format", "json"),
}


@pytest.mark.long
@with_bucket
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_answers_are_those_of_a_folder(folder: Path, store: str, question: tuple[str, ...]) -> None:
    of_folder, of_bucket = (check_cli("store", *question, "--store", where) for where in (folder, store))
    assert of_bucket == of_folder


@pytest.mark.long
@with_bucket
def test_files_have_the_names_that_they_have_in_a_folder(folder: Path, store: str, server: Server) -> None:
    """And no others are left there; what is in them is the same but for when they were added."""
    names = {f"{store}/{path.relative_to(folder)}" for path in folder.rglob("*.parquet")}
    files = {f"s3://{BUCKET}/{name}": content for name, content in server.files().items()}
    assert files.keys() == names
    same = {name for name in names if files[name] == (folder / name.removeprefix(store + "/")).read_bytes()}
    assert {name.removeprefix(store + "/").partition("/")[0] for name in names - same} == {"runs"}


@pytest.mark.long
@with_bucket
def test_the_same_run_is_there_once(
    bundle: Path, store: str, runs: list[Path], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names the store as well, and a slash at its end changes nothing."""
    before = server.files()
    copy = shutil.copy(runs[0], tmp_path / "copy.parquet")
    monkeypatch.setenv("TRACEMAP_STORE", store + "/")
    (added,) = json_cli("store", "add", copy, "--map", bundle, "--model", "other")["runs"]
    assert not added["added"]
    assert server.files() == before
    assert len(json_cli("store", "list")["runs"]) == RUNS


@pytest.mark.long
@with_bucket
def test_writers_do_not_disturb_one_another(bundle: Path, runs: list[Path], server: Server) -> None:
    store = f"s3://{BUCKET}/of many"
    words = command_line("store", "add", *runs, "--map", bundle, "--store", store)
    writers = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0] * 2
    found = json_cli("store", "query", "--store", store)
    assert found["looked"] == {"runs": RUNS, "skipped": [], "unfinished": 0, "ahead": 0}
    for name in server.files():
        if name.startswith("of many/"):
            server.ask("DELETE", "/" + quote(name))


@pytest.mark.long
@with_bucket
def test_what_is_there_is_never_replaced(store: str, server: Server) -> None:
    """Whoever is second keeps what the first one wrote, though nobody asks whether it is there."""
    before = server.files()
    with store_at(store).map_file("0" * 64).published() as path:
        path.write_bytes(b"first")
    with store_at(store).map_file("0" * 64).published() as path:
        path.write_bytes(b"second")
    (name,) = server.files().keys() - before.keys()
    assert server.ask("GET", "/" + quote(name)) == b"first"
    server.ask("DELETE", "/" + quote(name))


# ---- what is broken


def of_table(files: dict[str, bytes], table: str) -> list[str]:
    return sorted(name for name in files if name.startswith(f"{PREFIX}/{table}/"))


@pytest.mark.long
@with_bucket
def test_a_cut_file_is_named_and_can_be_left_out(store: str, server: Server, changed: dict[str, bytes]) -> None:
    broken = of_table(changed, CALLS)[0]
    server.put(broken, changed[broken][:-20])
    said = failed("store", "query", "--store", store)
    assert f"s3://{BUCKET}/{broken} is truncated" in said
    assert "--skip-bad" in said
    found = json_cli("store", "query", "--store", store, "--skip-bad")
    assert found["looked"]["runs"] == RUNS - 1
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [f"s3://{BUCKET}/{broken}"]


@pytest.mark.long
@with_bucket
def test_a_damaged_page_of_a_file_is_named_and_can_be_left_out(
    store: str, server: Server, changed: dict[str, bytes]
) -> None:
    broken = max(of_table(changed, CALLS), key=lambda name: len(changed[name]))
    data = bytearray(changed[broken])
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    server.put(broken, bytes(data))
    assert f"s3://{BUCKET}/{broken}" in failed("store", "query", "--store", store, "--calls")
    found = json_cli("store", "query", "--store", store, "--calls", "--skip-bad")
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [f"s3://{BUCKET}/{broken}"]


@pytest.mark.long
@with_bucket
@pytest.mark.usefixtures("changed")
@pytest.mark.parametrize("name", ["mine.parquet", "a'b;--.parquet", "*/[a-z]?.parquet", "\x1b[31m\x07.parquet", "../u"])
def test_files_of_others_are_names_and_nothing_else(store: str, server: Server, name: str) -> None:
    """Those of Parquet that are none of a store's are named, whatever their names mean elsewhere."""
    server.put(f"{PREFIX}/runs/{name}", b"PAR1 of another PAR1")
    if not name.endswith(".parquet"):
        assert len(json_cli("store", "list", "--store", store)["runs"]) == RUNS
        return
    said = failed("store", "list", "--store", store)
    assert "is truncated" in said
    assert "\x1b" not in said
    found = json_cli("store", "query", "--store", store, "--skip-bad")
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [f"{store}/runs/{name}"]
    assert found["looked"]["runs"] == RUNS


@with_bucket
def test_a_copy_with_a_name_that_is_a_pattern_is_one_file(
    store: str, server: Server, changed: dict[str, bytes]
) -> None:
    """Copies of all headers, under names that would stand for them all."""
    headers = of_table(changed, "runs")
    for name in headers:
        moved = f"{PREFIX}/runs/*/**/[0-9]/{name.rpartition('/')[2]}"
        server.ask("DELETE", "/" + quote(name))
        server.put(moved, changed[name])
    assert len(json_cli("store", "list", "--store", store)["runs"]) == RUNS


@pytest.mark.long
@with_bucket
def test_a_run_that_is_not_there_whole_is_not_seen(store: str, server: Server, changed: dict[str, bytes]) -> None:
    server.ask("DELETE", "/" + quote(of_table(changed, "runs")[0]))
    found = json_cli("store", "query", "--store", store)["looked"]
    assert (found["runs"], found["unfinished"], found["skipped"]) == (RUNS - 1, 1, [])


# ---- who does not answer


@pytest.mark.long
@with_bucket
def test_no_server(bundle: Path, runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name, value in variables(closed.getsockname()[1]).items():
            monkeypatch.setenv(name, value)
        began = time.monotonic()
        assert "cannot be read: Could not connect" in failed("store", "list", "--store", STORE)
        assert time.monotonic() < began + 60
        assert "Could not connect" in failed("store", "add", runs[0], "--map", bundle, "--store", STORE)


@pytest.mark.long
@with_bucket
def test_a_server_that_goes_away_is_to_blame_not_the_files(bundle: Path, runs: list[Path]) -> None:
    store = f"s3://{BUCKET}/for a while"
    with served() as server:
        add(bundle, store, *runs)
        headers = read_headers(store_at(store), skip_bad=True)
        server.process.kill()
        server.process.wait()
        with pytest.raises(
            StoreInvalid, match=rf"{re.escape(headers.files(CALLS)[0])}: cannot be read: Could not connect"
        ):
            find_damaged_files(headers, [CALLS])
        with (
            pytest.raises(StoreInvalid, match=r"cannot be read: Could not connect"),
            duck_engine(0, no_progress, headers.listing.place) as engine,
        ):
            query_calls(engine, headers, Names({}, ()), "cpu_ns", ())


@pytest.mark.long
@with_bucket
@pytest.mark.usefixtures("server")
def test_no_such_bucket_or_store() -> None:
    for where in (f"s3://{BUCKET}/nothing", "s3://no-such-bucket/at-all"):
        assert "is not a store, is empty, or the bucket does not exist" in failed("store", "list", "--store", where)


@pytest.mark.long
@with_bucket
@pytest.mark.usefixtures("server")
def test_a_bucket_that_cannot_be_written_is_said(bundle: Path, runs: list[Path]) -> None:
    said = failed("store", "add", runs[0], "--map", bundle, "--store", "s3://no-such-bucket/at-all")
    assert "cannot be written" in said
    assert "[target-unwritable]" in said


@pytest.mark.long
@with_bucket
def test_spark_reads_folders_only(store: str) -> None:
    assert "Spark reads only stores in folders" in failed("store", "query", "--store", store, "--engine", "local[*]")


# ---- addresses


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://", "has no bucket name"),
        ("s3:///prefix", "has no bucket name"),
        ("ftp://a/b", "a store is a folder or s3://"),
        ("file:///tmp", "a store is a folder or s3://"),
    ],
)
def test_addresses_that_are_none_of_a_store(address: str, why: str) -> None:
    assert why in failed("store", "list", "--store", address)


@pytest.mark.long
def test_an_address_that_was_made_a_path_is_refused() -> None:
    with pytest.raises(UsageInvalid, match="pass it as a string"):
        store_list(StoreListOptions(store=Path("s3://bucket/prefix")))


@pytest.mark.long
def test_what_reads_buckets_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s3fs.py").write_text("raise ImportError('none here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    fresh = command_line("store", "list", "--store", "s3://bucket/prefix")
    done = subprocess.run(fresh, capture_output=True, text=True, check=False)
    assert "pip install 'tracemap[bucket]'" in done.stderr
    assert "[tool-missing]" in done.stderr
