"""A disk that fills during `store add` or a query: one sentence, and the store is unchanged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Built, Recorded
from tests.disks import disk_of
from tests.support import check_cli, command_line, json_cli
from tracemap.runs.sql import rows_of

CALLS = 3_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 6 MB."""
    with disk_of("6m", tmp_path / "small") as folder:
        yield folder


def on_disk(disk: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose temporary files go to a disk, with little memory."""
    surroundings = {**os.environ, "TMPDIR": str(disk)}
    command = command_line(*words, "--memory", "128")
    return subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)


def check_refused_for_room(done: subprocess.CompletedProcess[str], disk: Path) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert "--memory" in done.stderr
    assert [*disk.iterdir()] == []


def files_of(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_store_stays_as_it_was(built: Built, recorded: Recorded, small_disk: Path, tmp_path: Path) -> None:
    """Calls are sorted as they are added, and percentiles want them all at once: neither fits."""
    store, bundle, run = tmp_path / "store", built("hand_mlp"), recorded("hand_mlp")
    check_cli("store", "add", run, "--map", bundle, "--store", store)
    before, answer = files_of(store), json_cli("store", "query", "--store", store)
    large = tmp_path / "large.parquet"
    dispatches = f"(SELECT kernel, cpu_ns FROM '{run}' WHERE kind = 'dispatch' AND NOT warmup)"
    rows_of(
        f"COPY (SELECT kernel, cpu_ns + copy * 7919 % 100003 AS cpu_ns FROM {dispatches}, range({CALLS}) AS r(copy) "
        f"LIMIT {CALLS}) TO '{large}' (FORMAT parquet)"
    )
    check_refused_for_room(on_disk(small_disk, "store", "add", large, "--map", bundle, "--store", store), small_disk)
    assert files_of(store) == before
    assert json_cli("store", "query", "--store", store) == answer
    check_cli("store", "add", large, "--map", bundle, "--store", store)
    done = on_disk(small_disk, "store", "sites", "--store", store, "--metric", "cpu_ns")
    check_refused_for_room(done, small_disk)
    (group,) = json_cli("store", "query", "--store", store, "--calls")["groups"]
    assert group["runs"] == 2
