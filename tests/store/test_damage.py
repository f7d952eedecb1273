"""Damage to a store: named, or left out with a note."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest

from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli, run_cli
from tracemap.commands.store import store_compare, store_query, store_sites, store_trend
from tracemap.core.errors import StoreInvalid
from tracemap.map.bundle import load
from tracemap.options.store import StoreCompareOptions, StoreQueryOptions, StoreSitesOptions, StoreTrendOptions
from tracemap.runs.sql import rows_of
from tracemap.store.folder import STORE_KEY, STORE_VERSION
from tracemap.store.layout import ops_name
from tracemap.store.model import QueryScope

MODELS = ("hand_mlp", "hand_oneline")
CALLS = (20, 21)
BEFORE, AFTER = (f"iterations={number}" for number in CALLS)
RUNS = len(MODELS) * len(CALLS)


def query(store: Path, *, skip_bad: bool) -> tuple[QueryScope, int]:
    looked = store_query(StoreQueryOptions(store=store, skip_bad=skip_bad)).looked
    return looked, looked.runs


def query_calls(store: Path, *, skip_bad: bool) -> tuple[QueryScope, int]:
    looked = store_query(StoreQueryOptions(store=store, skip_bad=skip_bad, calls=True)).looked
    return looked, looked.runs


def sites(store: Path, *, skip_bad: bool) -> tuple[QueryScope, int]:
    looked = store_sites(StoreSitesOptions(store=store, skip_bad=skip_bad)).looked
    return looked, looked.runs


def trend(store: Path, *, skip_bad: bool) -> tuple[QueryScope, int]:
    looked = store_trend(StoreTrendOptions(store=store, skip_bad=skip_bad)).looked
    return looked, looked.runs


def compare(store: Path, *, skip_bad: bool) -> tuple[QueryScope, int]:
    asked = StoreCompareOptions(store=store, skip_bad=skip_bad, before=(BEFORE,), after=(AFTER,))
    found = store_compare(asked)
    assert found.before.skipped == found.after.skipped
    return found.after, found.before.runs + found.after.runs


Ask = Callable[..., tuple[QueryScope, int]]
"""What was looked at by a question, and how many runs."""
READS: dict[Ask, tuple[str, ...]] = {
    query: ("runs", "ops", "costs"),
    query_calls: ("runs", "ops", "costs", "calls", "targets", "aside"),
    sites: ("runs", "calls", "targets"),
    trend: ("runs", "ops", "costs", "spreads"),
    compare: ("runs", "ops", "costs", "spreads"),
}
CASES = [pytest.param(ask, table, id=f"{ask.__name__}-{table}") for ask, tables in READS.items() for table in tables]


def cut(data: bytes) -> bytes:
    return data[:-20]


def flipped(data: bytes) -> bytes:
    """One bit of the header of the first page of the first column, which all questions read."""
    return data[:4] + bytes([data[4] ^ 1]) + data[5:]


@pytest.fixture(scope="module")
def whole(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two models, each with two runs."""
    folder = tmp_path_factory.mktemp("whole")
    for model in MODELS:
        for number in CALLS:
            run = folder / f"{model}-{number}.parquet"
            check_cli("record", built(model), "--iterations", str(number), "-o", run)
            check_cli("store", "add", run, "--map", built(model), "--store", folder / "store")
    return folder / "store"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def file_of(store: Path, table: str) -> Path:
    """The file that the first run of the second model has of a table; of `ops` that of its map."""
    header = min(store.glob(f"runs/model={MODELS[1]}/**/*.parquet"))
    if table != "ops":
        return min(store.glob(f"{table}/**/{header.name}"))
    ((sha,),) = rows_of(f"SELECT map FROM read_parquet('{header}', hive_partitioning = false)")
    return store / "ops" / f"{ops_name(MODELS[1], sha)}.parquet"


@pytest.mark.long
@pytest.mark.parametrize("damage", [cut, flipped])
@pytest.mark.parametrize(("ask", "table"), CASES)
def test_a_damaged_file_is_named_and_can_be_left_out(
    store: Path, ask: Ask, table: str, damage: Callable[[bytes], bytes]
) -> None:
    broken = file_of(store, table)
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(
        StoreInvalid, match=r"delete these files and add their runs again, or leave them out with --skip-bad"
    ) as refused:
        ask(store, skip_bad=False)
    assert str(broken) in str(refused.value)
    looked, runs = ask(store, skip_bad=True)
    assert [skipped.file for skipped in looked.skipped] == [str(broken)]
    assert runs == RUNS - (len(CALLS) if table == "ops" else 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ask", "table", "cells", "why"),
    [
        (query, "costs", "NULL::DECIMAL(38,0) AS amount", "its column amount has lost values"),
        (query_calls, "costs", "NULL::DECIMAL(38,0) AS amount", "its column amount has lost values"),
        (sites, "calls", "'nan'::DOUBLE AS cpu_ns", "its column cpu_ns is not of integers"),
    ],
)
def test_values_that_are_none_are_damage(store: Path, ask: Ask, table: str, cells: str, why: str) -> None:
    """A file may be readable to its end, and have lost what it is asked for all the same."""
    broken = file_of(store, table)
    for path in store.glob(f"{table}/**/*.parquet"):
        if path != broken:
            path.unlink()  # no other run has what a sum could be made of
            next(store.glob(f"runs/**/{path.name}")).unlink()
    with duckdb.connect() as connection:
        rows = f"SELECT * REPLACE ({cells}) FROM read_parquet('{broken}', hive_partitioning = false)"
        copy = broken.with_suffix(".copy")
        connection.execute(
            f"COPY ({rows}) TO '{copy}' (FORMAT parquet, KV_METADATA {{'{STORE_KEY}': '{STORE_VERSION}'}})"
        )
    copy.replace(broken)
    with pytest.raises(StoreInvalid, match=why):
        ask(store, skip_bad=False)


def varint(number: int) -> bytes:
    """As Thrift and Parquet write them: seven bits a byte, the lowest first."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


@pytest.mark.long
@pytest.mark.parametrize("ask", [trend, compare])
def test_a_file_that_denies_that_its_values_are_lost_is_damaged(store: Path, ask: Ask) -> None:
    """One bit says of all of a page that they are none; what the file says of its values says that none is."""
    broken = file_of(store, "spreads")
    with duckdb.connect() as connection:
        maybe = "CASE WHEN random() >= 0 THEN median END AS median"  # else nothing is said of single values
        rows = f"SELECT * REPLACE ({maybe}) FROM read_parquet('{broken}', hive_partitioning = false)"
        copy = broken.with_suffix(".copy")
        options = f"FORMAT parquet, COMPRESSION uncompressed, KV_METADATA {{'{STORE_KEY}': '{STORE_VERSION}'}}"
        connection.execute(f"COPY ({rows}) TO '{copy}' ({options})")
        ((count,),) = connection.execute(f"SELECT count(*) FROM read_parquet('{copy}')").fetchall()
    run = varint(count << 1)  # that so many values have the same level, which follows: 1, they are there
    levels = (len(run) + 1).to_bytes(4, "little") + run
    assert copy.read_bytes().count(levels + b"\1") == 1
    broken.write_bytes(copy.read_bytes().replace(levels + b"\1", levels + b"\0"))
    copy.unlink()
    with duckdb.connect() as connection:
        lost = f"SELECT count(*) FROM read_parquet('{broken}') WHERE median IS NULL"
        assert connection.execute(lost).fetchall() == [(0,)]
    with pytest.raises(StoreInvalid, match="its column median has lost values"):
        ask(store, skip_bad=False)
    looked, runs = ask(store, skip_bad=True)
    assert [skipped.file for skipped in looked.skipped] == [str(broken)]
    assert runs == RUNS - 1


@pytest.mark.parametrize("ask", [query, trend, compare])
def test_runs_whose_ops_are_lost_are_named_and_can_be_left_out(store: Path, ask: Ask) -> None:
    file_of(store, "ops").unlink()
    with pytest.raises(StoreInvalid, match="has lost the ops of its map; add a run of the map again"):
        ask(store, skip_bad=False)
    looked, runs = ask(store, skip_bad=True)
    headers = sorted(map(str, store.glob(f"runs/model={MODELS[1]}/**/*.parquet")))
    assert sorted(skipped.file for skipped in looked.skipped) == headers
    assert runs == RUNS - len(headers)


@pytest.mark.long
@pytest.mark.parametrize("ask", [trend, compare])
@pytest.mark.parametrize("table", ["costs", "spreads"])
def test_no_bit_of_a_file_stops_those_who_leave_out_what_is_bad(store: Path, ask: Ask, table: str) -> None:
    """What a file says of its values is read by some questions only; a bit that is in nobody's way may stay."""
    broken = file_of(store, table)
    whole = broken.read_bytes()
    for place in range(4, len(whole), len(whole) // 16):
        broken.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        looked, runs = ask(store, skip_bad=True)
        assert [skipped.file for skipped in looked.skipped] in ([], [str(broken)]), place
        assert runs == RUNS - len(looked.skipped), place


def test_where_no_run_is_left_the_files_are_named(store: Path) -> None:
    broken = sorted(store.glob("costs/**/*.parquet"))
    for path in broken:
        path.write_bytes(flipped(path.read_bytes()))
    for words in (("trend",), ("compare", "--before", BEFORE, "--after", AFTER), ("query",)):
        done = run_cli("store", *words, "--store", store, "--skip-bad")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no run without damaged files is left" in done.stderr
        assert any(str(path) in done.stderr for path in broken)


@pytest.mark.long
@pytest.mark.parametrize("table", ["ops", "maps", "runs"])
def test_ops_are_not_matched_with_what_is_damaged(table: str, built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """A map keeps its keys for ever: they would say that its ops are none of those before, or others."""
    store, before, after = tmp_path / "store", *MODELS
    added = partial(check_cli, "store", "add", "--store", store, "--model", "same")
    added(recorded(before), "--map", built(before))
    (path,) = (store / table).glob("**/*.parquet")
    path.write_bytes(cut(path.read_bytes()))
    there = sorted(store.glob("**/*"))
    again = ("store", "add", recorded(after), "--map", built(after), "--store", store, "--model", "same")
    done = run_cli(*again)
    assert (done.returncode, done.stdout) == (2, "")
    assert path.name in done.stderr
    assert "add" in done.stderr
    assert sorted(store.glob("**/*")) == there
    path.unlink()
    added(recorded(before), "--map", built(before))
    added(recorded(after), "--map", built(after))


@pytest.mark.long
@pytest.mark.parametrize("without", ["the first", pytest.param("the second", marks=pytest.mark.long)])
def test_maps_without_their_model_are_matched_where_all_ops_are_alike(without: str, tmp_path: Path) -> None:
    """As of those who keep their models to themselves: another compilation, and then another model."""
    model, other, store = (tmp_path / name for name in ("m.mlir", "other.mlir", "store"))
    shutil.copy(SAMPLES / "models" / "jax_mlp.mlir", model)
    text = model.read_text(encoding="utf-8")
    other.write_text(text.replace("stablehlo.maximum", "stablehlo.minimum"), encoding="utf-8")
    kept = [("--no-sources",) if which == without else () for which in ("the first", "the second")]
    bundles = [tmp_path / f"{number}.tracemap" for number in range(3)]
    check_cli("build", model, *kept[0], "-o", bundles[0])
    check_cli("build", model, *kept[1], "-o", bundles[1], "--", "--iree-opt-level=O0")
    check_cli("build", other, "--no-sources", "-o", bundles[2])
    runs = [tmp_path / f"{number}.parquet" for number in range(3)]
    for bundle, run in zip(bundles, runs, strict=True):
        check_cli("record", bundle, "--iterations", "5", "-o", run)
    to_store = ("--store", store, "--model", "m")
    added = [("store", "add", run, "--map", each, *to_store) for run, each in zip(runs, bundles, strict=True)]
    check_cli(*added[0])
    check_cli(*added[1])
    query = (
        f"SELECT how, count(DISTINCT key), count(DISTINCT op) FROM '{store}/ops/*.parquet' GROUP BY how ORDER BY how"
    )
    ops = len(load(bundles[0]).graph.ops)
    assert rows_of(query) == [("alike", ops, ops), ("first", ops, ops)]
    there = sorted(store.glob("**/*"))
    done = run_cli(*added[2])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{bundles[2]}: its ops differ from those of the newest map of m" in done.stderr
    assert sorted(store.glob("**/*")) == there
