"""Damaged files end in one sentence: a few of the tries of `make mutations`; and its watchdog."""

from __future__ import annotations

import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.mutations import databases
from tests.mutations.changes import (
    changed_bytes,
    changed_csv,
    changed_json,
    changed_json_lines,
    changed_lines,
    changed_words,
)
from tests.mutations.guiding import try_guided
from tests.mutations.inputs import make_inputs
from tests.mutations.readers import READERS, Reader
from tests.mutations.trying import Limits, ended, try_reader
from tests.support import made_once
from tracemap.core.errors import RunInvalid

CASES = Path(__file__).parent.parent / "mutations" / "cases"
TRIES = {
    "parquet-header": 15,
    "parquet": 15,
    "dumps": 15,
    "profile": 15,
    "exported-run": 15,
    "store-add": 15,
    "map": 40,
    "module": 120,
    "header": 40,
}
"""Of readers that take long, and of those that know many kinds of damage; `make mutations` tries thousands."""
FEW_TRIES = 25
UNNOTICED = ("bundle", "benchmark", "stops", "colours")
"""Readers that make do with what is damaged."""


@pytest.fixture(scope="session")
def inputs(made: Path) -> Path:
    folder = made / "mutations" / "inputs"
    folder.parent.mkdir(exist_ok=True)
    with made_once(folder) as missing:
        if missing:
            make_inputs(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_end_well(name: str, inputs: Path) -> None:
    reader = READERS[name]
    if not reader.files(inputs):
        pytest.skip("this machine lacks what makes its files: a compiler of C, or valgrind")
    endings: set[str] = set()
    for seed in range(1, 9):
        summary = try_reader(reader, inputs, TRIES.get(name, FEW_TRIES), seed=seed)
        assert not summary.findings, f"{summary.text()}\n{summary.findings[0].details}"
        endings |= {outcome.ending for outcome in summary.outcomes}
        # What was recorded has other times and sizes each time, so that the same dice damage it elsewhere.
        if "read" in endings and (len(endings) > 1 or name in UNNOTICED):
            return
    assert "read" in endings, "the damage is so coarse that nothing is read any more"
    pytest.fail("the damage is never noticed")


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_more_damaged_files_end_well(name: str, inputs: Path) -> None:
    """Ten times as many; not one of 10,000 goes wrong today, but a reader that has changed may."""
    reader = READERS[name]
    if not reader.files(inputs):
        pytest.skip("this machine lacks what makes its files: a compiler of C, or valgrind")
    summary = try_reader(reader, inputs, 10 * TRIES.get(name, FEW_TRIES), seed=2)
    assert not summary.findings, f"{summary.text()}\n{summary.findings[0].details}"


# ---- what was found


def all_cases() -> list[Path]:
    return sorted(CASES.glob("*/*"))


@pytest.mark.long
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.parent.name}/{case.name}")
def test_cases_of_the_past_end_well(case: Path, inputs: Path, tmp_path: Path) -> None:
    """A file that went wrong once; its name begins with the number of the reader's target in whose place it stands."""
    reader = READERS[case.parent.name]
    pattern, _ = reader.targets[int(case.name.partition("-")[0])]
    folder = Path(shutil.copytree(inputs, tmp_path / "files"))
    shutil.copy(case, sorted(folder.glob(pattern))[0])
    started = time.monotonic()
    outcome = ended(0, reader, folder, random.Random(0))
    assert not outcome.finding, outcome.details
    assert time.monotonic() - started < Limits().time_s


@pytest.mark.long
def test_guided_tries_are_counted_and_reach_further(inputs: Path, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed (make fuzz installs it)")
    found = try_guided("benchmark", 0, inputs.absolute(), tmp_path, 1000, seed=1)
    assert (found.tries, found.findings) == (1000, {})
    assert sum(found.endings.values()) == 1000
    assert len(list((tmp_path / "benchmark-0").iterdir())) > 3


# ---- the watchdog, databases and the changes


def test_databases_are_handed_on_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[duckdb.DuckDBPyConnection] = []
    plain = duckdb.connect

    def counted(**settings: Any) -> duckdb.DuckDBPyConnection:  # noqa: ANN401 - DuckDB's settings
        opened.append(plain(**settings))
        return opened[-1]

    monkeypatch.setattr(databases, "_OPEN", counted)
    monkeypatch.setattr(duckdb, "connect", plain)
    databases.hand_on_databases()
    with duckdb.connect() as first:
        fresh = first.execute("SELECT * FROM duckdb_settings() ORDER BY ALL").fetchall()
        first.execute("SET preserve_insertion_order = false")
        first.execute("SET memory_limit = '300MB'")
        first.execute("CREATE OR REPLACE TABLE rows AS SELECT 1 AS x")
        first.execute("CREATE TEMP TABLE shown AS SELECT 1 AS x")
        first.execute("CREATE MACRO half(a) AS a / 2")
    with duckdb.connect() as second:
        assert len(opened) == 1
        assert second.execute("SELECT * FROM duckdb_settings() ORDER BY ALL").fetchall() == fresh
        assert second.execute("SELECT * FROM duckdb_tables() WHERE NOT internal").fetchall() == []
        with pytest.raises(duckdb.CatalogException):
            second.execute("SELECT half(2)")
        second.execute("ATTACH ':memory:' AS another")
    with duckdb.connect() as third:
        assert len(opened) == 2
        assert third.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall() == [(1,)]


def misbehave(folder: Path, _dice: random.Random) -> None:
    """The first byte of the file says how; of the seed 3, six tries have all ways."""
    kind = (folder / "file").read_bytes()[:1]
    if kind == b"h":
        time.sleep(60)
    elif kind == b"d":
        os._exit(3)
    elif kind == b"m":
        assert b"x" * (300 << 20)
    elif kind == b"e":
        raise RunInvalid("refused")
    elif kind == b"t":
        raise KeyError(kind)


def next_kind(_data: bytes, dice: random.Random) -> bytes:
    return dice.choice((b"h", b"d", b"m", b"e", b"t", b"r"))


@pytest.mark.long
def test_a_try_that_hangs_dies_or_grows_is_found_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"whole")
    reader = Reader("misbehaving", (("file", next_kind),), misbehave)
    limits = Limits(time_s=6, memory_bytes=250 << 20)
    summary = try_reader(reader, tmp_path, 6, seed=3, jobs=2, limits=limits)
    assert [outcome.number for outcome in summary.outcomes] == list(range(6))
    endings = {outcome.ending: outcome.finding for outcome in summary.outcomes}
    assert endings == {
        "hangs": True,
        "the process ends with 3": True,
        "takes too much memory": True,
        "KeyError in outside of tracemap": True,
        "run-invalid": False,
        "read": False,
    }
    hanging = next(finding for finding in summary.findings if finding.ending == "hangs")
    assert "misbehave" in hanging.details
    assert f"--seed 3 --only {hanging.number}" in summary.text()


def test_undamaged_files_that_are_not_read_are_no_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"t")
    with pytest.raises(RuntimeError, match="KeyError"):
        try_reader(Reader("broken", (("file", next_kind),), misbehave), tmp_path, 1, seed=1)


@pytest.mark.parametrize(
    "change", [changed_bytes, changed_json, changed_json_lines, changed_csv, changed_lines, changed_words]
)
def test_same_dice_make_the_same_damage_and_others_another(change: object) -> None:
    assert callable(change)
    data = b'{"a": [1, 2, {"b": "text"}], "c": null}\n{"a": 3, "d": [true]}\n'
    if change is changed_json:
        data = data.splitlines()[0]
    made = [change(data, random.Random(seed)) for seed in range(200)]
    assert made == [change(data, random.Random(seed)) for seed in range(200)]
    assert len(set(made)) > 100


def test_a_text_is_made_longer_only_up_to_a_bound() -> None:
    """Four times by a thousand, in the harness itself, were the gigabytes for which a reader was blamed."""
    data = b'{"text":"' + b"x" * 3_000_000 + b'"}'
    tracemalloc.start()
    try:
        for seed in range(20):
            changed_json(data, random.Random(seed))
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
