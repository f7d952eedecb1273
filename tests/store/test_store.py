"""A store of runs: added, found, and summed, compared with each run attributed by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.recording import delay_last_dispatch
from tests.support import SAMPLES, Json, check_cli, command_line, json_cli, run_cli
from tests.tables import printed_table
from tracemap.commands.store import store_add
from tracemap.core.codec import pretty_json
from tracemap.core.toolchain import no_progress
from tracemap.map.bundle import load
from tracemap.options.store import StoreAddOptions, StoreSitesOptions
from tracemap.runs.columns import events_sql
from tracemap.runs.runfile import read_run, write_run
from tracemap.runs.sql import rows_of
from tracemap.store.costs import query_calls
from tracemap.store.layout import store_at
from tracemap.store.lineage import Names
from tracemap.store.query_engines import duck_engine
from tracemap.store.run_headers import read_headers, sizes_of

MODEL = "hand_mlp"
RUNS = 3


@pytest.fixture(scope="module")
def bundle(built: Built) -> Path:
    return built(MODEL)


@pytest.fixture(scope="module")
def runs(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of one bundle, with samples in the last one."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for number in range(RUNS):
        found.append(folder / f"{number}.parquet")
        flags = ("--sample", "999") if number == RUNS - 1 else ()
        check_cli("record", bundle, "--iterations", str(20 + number), *flags, "-o", found[-1])
    return found


@pytest.fixture(scope="module")
def store(bundle: Path, runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "nightly"
    add(bundle, folder, *runs, "--tag", "branch=main")
    return folder


def add(bundle: Path, store: Path, *words: str | Path) -> Json:
    return json_cli("store", "add", *words, "--map", bundle, "--store", store)


def query(store: Path, *words: str) -> Json:
    return json_cli("store", "query", "--store", store, *words)


def failed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that refuses."""
    done = run_cli(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    return done


def attributed(bundle: Path, runs: Sequence[Path]) -> list[Json]:
    return [json_cli("attribute", run, "--map", bundle) for run in runs]


def costs_of(group: Json, metric: str) -> dict[str, int]:
    """By op, or by reason, what a group costs; nothing is left out that is 0."""
    found = {op["op"]: op["amounts"][metric] for op in group["ops"]}
    found |= {row["reason"]: row["amounts"][metric] for row in group["unattributed"]}
    return {name: cost for name, cost in found.items() if cost}


def truth_of(results: Sequence[Json], metric: str) -> dict[str, int]:
    """The same, added up from the attributions of single runs."""
    found: Counter[str] = Counter()
    for result in results:
        found.update({op["op"]: op["metrics"][metric]["attributed"] for op in result["ops"]})
        found.update({row["reason"]: row["metrics"][metric] for row in result["unattributed"]})
    return {name: cost for name, cost in found.items() if cost}


@pytest.mark.long
@pytest.mark.parametrize("how", [(), ("--calls",)], ids=["summaries", "calls"])
@pytest.mark.parametrize("metric", ["cpu_ns", "duration_ns"])
def test_sums_are_those_of_the_single_runs(
    bundle: Path, store: Path, runs: list[Path], metric: str, how: tuple[str, ...]
) -> None:
    found = query(store, "--metric", metric, *how)
    (group,) = found["groups"]
    results = attributed(bundle, runs)
    assert costs_of(group, metric) == truth_of(results, metric)
    (total,) = group["metrics"]
    measured = [each for result in results for each in result["metrics"] if each["name"] == metric]
    assert (
        total["measured"] == sum(each["measured"] for each in measured) == total["attributed"] + total["unattributed"]
    )
    assert total["invocations"] == sum(each["invocations"] for each in measured) == 20 + 21 + 22
    assert found["added_up"] == ("calls" if how else "summaries")


@pytest.mark.long
def test_groups_are_told_apart_by_columns_and_tags(bundle: Path, store: Path, runs: list[Path]) -> None:
    found = query(store, "--group-by", "iterations,tag.branch,tag.none", "--metric", "cpu_ns")
    groups = [
        (each["group"]["iterations"], each["group"]["tag.branch"], each["group"]["tag.none"])
        for each in found["groups"]
    ]
    assert groups == [("20", "main", None), ("21", "main", None), ("22", "main", None)]
    for group, result in zip(found["groups"], attributed(bundle, runs), strict=True):
        assert costs_of(group, "cpu_ns") == truth_of([result], "cpu_ns")


@pytest.mark.long
def test_samples_are_added_up_where_runs_have_them(bundle: Path, store: Path, runs: list[Path]) -> None:
    (group,) = query(store, "--metric", "samples")["groups"]
    (result,) = attributed(bundle, runs[-1:])
    assert costs_of(group, "samples") == truth_of([result], "samples")
    assert "omit --calls" in failed("store", "query", "--store", store, "--metric", "samples", "--calls").stderr


@pytest.mark.long
def test_a_run_in_which_nothing_was_counted_has_the_metric_all_the_same(
    bundle: Path, runs: list[Path], tmp_path: Path
) -> None:
    """Nights without a page fault were left out of the mean, and a store of such nights did not have the metric."""
    paths = [tmp_path / "some.parquet", tmp_path / "none.parquet"]
    for path, faults in zip(paths, (10, 0), strict=True):
        run = read_run(runs[0])
        events = f"SELECT *, CAST(CASE kind WHEN 'dispatch' THEN {faults} END AS BIGINT) AS faults"
        with duckdb.connect() as connection:
            write_run(run.header, connection.sql(f"{events} FROM ({events_sql(run)})"), path, force=False)
    for store, own in ((tmp_path / "both", paths), (tmp_path / "silent", paths[1:])):
        add(bundle, store, *own)
        for words in ((), ("--calls",)):
            (group,) = query(store, "--metric", "faults", *words)["groups"]
            assert group["metrics"][0]["invocations"] == 20 * len(own)
    assert query(tmp_path / "silent")["groups"][0]["metrics"][0]["name"] == "cpu_ns"


def test_the_same_run_is_there_once(bundle: Path, store: Path, runs: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.parquet"
    shutil.copy(runs[0], copy)
    before = sorted(path for path in store.rglob("*"))
    (added,) = add(bundle, store, copy)["runs"]
    assert not added["added"]
    assert sorted(path for path in store.rglob("*")) == before


def test_what_is_there_is_not_joined_again(
    bundle: Path, store: Path, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another place, by another name, and with the map's ops lost, which are there again then."""

    def refused(request: object) -> None:
        raise AssertionError(f"{request} is joined")

    copy, loaded = tmp_path / "copy.parquet", load(bundle)
    shutil.copy(runs[0], copy)
    here = tmp_path / "store"
    shutil.copytree(store, here)
    (ops,) = (here / "ops").iterdir()
    ops.unlink()
    monkeypatch.setattr("tracemap.attribution.attribute.open_attribution", refused)
    (added,) = store_add([copy], loaded, StoreAddOptions(store=here)).runs
    assert not added.added
    assert list((here / "runs").rglob(f"{added.run}.parquet"))
    assert query(here)["groups"] == query(store)["groups"]
    with pytest.raises(AssertionError, match="is joined"):
        store_add([copy], loaded, StoreAddOptions(store=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.long
def test_what_a_run_has_lost_is_there_again_when_it_is_added_again(
    bundle: Path, store: Path, runs: list[Path], tmp_path: Path
) -> None:
    here = tmp_path / "store"
    shutil.copytree(store, here)
    lost = sorted(here.glob("c*/*/*/*/*.parquet"))
    for path in lost:
        path.unlink()
    assert "has lost its calls and its costs" in failed("store", "query", "--store", here).stderr
    assert [run["added"] for run in add(bundle, here, *runs)["runs"]] == [True] * RUNS
    assert sorted(here.glob("c*/*/*/*/*.parquet")) == lost
    assert query(here, "--calls")["groups"] == query(store)["groups"]
    assert [run["added"] for run in add(bundle, here, *runs)["runs"]] == [False] * RUNS


def test_conditions_choose_runs(store: Path) -> None:
    def listed(*conditions: str) -> list[int]:
        words = [word for each in conditions for word in ("--where", each)]
        return [run["iterations"] for run in json_cli("store", "list", "--store", store, *words)["runs"]]

    assert listed() == [20, 21, 22]
    assert listed("iterations>20", "tag.branch=ma*") == [21, 22]
    assert listed("iterations!=21") == [20, 22]
    assert listed("compiler>=3.9") == [20, 21, 22]
    assert listed("compiler<3.100", "compiler>2.99") == [20, 21, 22]
    for condition, why in (
        ("tag.branch=x", "none of the 3 runs"),
        ("colour=red", "not a column of runs"),
        ("compiler<3.9", "none of the 3 runs"),
        ("host", "not a condition"),
        ("date<yesterday", "such as 2026-11-09"),
        ("date>=2026-11-9", "such as 2026-11-09"),
    ):
        assert why in failed("store", "list", "--store", store, "--where", condition).stderr


@pytest.mark.long
def test_files_are_plain_parquet(bundle: Path, store: Path, runs: list[Path]) -> None:
    """What other tools see: the events of all runs, each with its target, and the places of targets."""
    assert {path.suffix for path in store.rglob("*") if path.is_file()} == {".parquet"}
    calls, targets = (
        f"read_parquet('{store}/{table}/**/*.parquet', union_by_name = true)" for table in ("calls", "targets")
    )
    rows = rows_of(
        f"SELECT place, CAST(sum(cpu_ns) AS BIGINT) FROM {calls} AS c JOIN {targets} AS t USING (run, target) "
        "WHERE c.target >= 0 GROUP BY place"
    )
    expected: Counter[str] = Counter()
    for result in attributed(bundle, runs):
        for site in result["sites"]:
            cost = site["metrics"]["cpu_ns"]
            expected[site["site"]] += cost["total"] + cost["outliers"]
    assert {place: total for place, total in rows if total} == {
        place: total for place, total in expected.items() if total
    }


# ---- what is broken


@pytest.fixture
def copied(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def calls_of(store: Path) -> list[Path]:
    return sorted(store.glob("calls/**/*.parquet"))


@pytest.mark.long
def test_a_cut_file_is_named_and_can_be_left_out(copied: Path) -> None:
    broken = calls_of(copied)[0]
    broken.write_bytes(broken.read_bytes()[:-20])
    said = failed("store", "query", "--store", copied).stderr
    assert str(broken) in said
    assert "--skip-bad" in said
    found = query(copied, "--skip-bad")
    assert found["looked"]["runs"] == RUNS - 1
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [str(broken)]


def test_a_foreign_file_is_named_and_can_be_left_out(copied: Path) -> None:
    foreign = copied / "runs" / "mine.parquet"
    rows_of(f"COPY (SELECT 1 AS colour) TO '{foreign}' (FORMAT parquet)")
    assert str(foreign) in failed("store", "list", "--store", copied).stderr
    found = query(copied, "--skip-bad")
    assert found["looked"]["runs"] == RUNS
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [str(foreign)]


def test_a_damaged_page_of_a_file_is_named_and_can_be_left_out(copied: Path) -> None:
    broken = max(calls_of(copied), key=lambda path: path.stat().st_size)
    data = bytearray(broken.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    broken.write_bytes(data)
    assert str(broken) in failed("store", "query", "--store", copied, "--calls").stderr
    found = query(copied, "--calls", "--skip-bad")
    assert found["looked"]["runs"] == RUNS - 1
    assert [skipped["file"] for skipped in found["looked"]["skipped"]] == [str(broken)]


def test_a_run_that_is_not_there_whole_is_not_seen(copied: Path) -> None:
    header = next(copied.glob("runs/**/*.parquet"))
    header.unlink()
    found = query(copied)
    assert (found["looked"]["runs"], found["looked"]["unfinished"], found["looked"]["skipped"]) == (RUNS - 1, 1, [])


def test_what_was_killed_under_other_words_is_no_part_of_a_run(copied: Path) -> None:
    """Of two killed additions, one beside the other, and before and behind where the run lies in the order of names."""
    truth = query(copied, "--calls")["groups"]
    for table in ("calls", "targets", "aside", "costs", "spreads"):
        for path in [*copied.glob(f"{table}/*/*/*/*.parquet")]:
            for other in ("model=!", "model=~"):
                left = copied / table / other / path.relative_to(copied / table / path.parts[-4])
                left.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, left)
    found = query(copied, "--calls")
    assert found["groups"] == truth
    assert found["looked"]["skipped"] == []


@pytest.mark.long
def test_writers_do_not_disturb_one_another(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = command_line("store", "add", *runs, "--map", bundle, "--store", store)
    writers = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert query(store)["looked"] == {"runs": RUNS, "skipped": [], "unfinished": 0, "ahead": 0}
    assert not [*store.rglob(".*")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o500)
    assert "cannot be written" in failed("store", "add", runs[0], "--map", bundle, "--store", store).stderr


def test_what_is_no_store_is_said_so(tmp_path: Path) -> None:
    assert "no such folder" in failed("store", "list", "--store", tmp_path / "none").stderr
    assert "is not a store" in failed("store", "list", "--store", tmp_path).stderr
    assert "Missing option '--store'" in failed("store", "list").stderr


# ---- what is said of runs


def test_names_of_hosts_and_models_are_never_paths(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    bare = tmp_path / "bare.csv"
    rows_of(
        f"COPY (SELECT kernel, cpu_ns FROM '{runs[0]}' WHERE kind = 'dispatch' AND NOT warmup) TO '{bare}' (FORMAT csv)"
    )
    hostile = "../../../etc/\x1b[31m|host=x " + "y" * 300
    add(bundle, store, bare, "--host", hostile, "--model", "..", "--recorded", "2026-11-20T02:30:00Z")
    (run,) = json_cli("store", "list", "--store", store)["runs"]
    assert (run["host"], run["model"], run["date"]) == (hostile, "..", "2026-11-20")
    assert {path.name for path in tmp_path.iterdir()} == {"store", "bare.csv"}
    (file,) = store.glob("runs/*/*/*/*.parquet")
    assert all(len(part) < 100 for part in file.relative_to(store).parts)
    assert "\x1b" not in check_cli("store", "list", "--store", store)


@pytest.mark.long
def test_words_that_are_no_unicode_are_kept_as_escapes(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    """Half a surrogate pair is what Python makes of odd bytes on the command line."""
    store = tmp_path / "store"
    add(bundle, store, runs[0], "--model", "m\udcff", "--tag", "branch=b\udcfe")
    listed = json_cli("store", "list", "--store", store, "--where", "tag.branch=b\udcfe")
    assert [(run["model"], run["tags"]) for run in listed["runs"]] == [("m\\udcff", {"branch": "b\\udcfe"})]


@pytest.mark.long
def test_a_run_that_is_there_is_named_by_the_model_that_it_has(bundle: Path, store: Path, runs: list[Path]) -> None:
    (had,) = add(bundle, store, runs[0])["runs"]
    (found,) = add(bundle, store, runs[0], "--model", "other")["runs"]
    assert (found["model"], found["added"]) == (had["model"], False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--tag", "main"), "is not a tag"),
        (("--tag", "a=1", "--tag", "a=2"), "set it once"),
        (("--recorded", "yesterday"), "is not a time"),
        (("--recorded", "1969-12-31T23:59:59Z"), "before 1970 or after 2262"),
        (("--recorded", "2300-01-01"), "before 1970 or after 2262"),
        (("--host", "other"), "has a different value itself"),
    ],
)
def test_what_is_said_wrongly_is_refused(
    bundle: Path, words: tuple[str, ...], why: str, runs: list[Path], tmp_path: Path
) -> None:
    assert why in failed("store", "add", runs[0], "--map", bundle, "--store", tmp_path / "s", *words).stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("said", "date"),
    [
        ("2026-11-20T23:59:59.7Z", "2026-11-20"),
        ("2026-11-20T23:59:59.7-02:00", "2026-11-21"),
        ("2026-11-20T00:30:00+01:00", "2026-11-19"),
        ("2026-11-20", "2026-11-20"),
    ],
)
def test_a_run_is_of_the_day_on_which_it_was_recorded(said: str, date: str, bundle: Path, tmp_path: Path) -> None:
    """As UTC has it, to the last fraction of its last second."""
    kernel = load(bundle).graph.kernels[0].name
    (tmp_path / "bare.csv").write_text(f"kernel,cpu_ns\n{kernel},5\n")
    store_add([tmp_path / "bare.csv"], load(bundle), StoreAddOptions(store=tmp_path / "s", recorded=said))
    assert [row["date"] for row in read_headers(store_at(tmp_path / "s"), skip_bad=False).rows] == [date]


@pytest.mark.long
def test_clocks_that_are_ahead_are_counted(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store, bare = tmp_path / "store", tmp_path / "bare.csv"
    rows_of(f"COPY (SELECT kernel, cpu_ns FROM '{runs[0]}' WHERE kind = 'dispatch') TO '{bare}' (FORMAT csv)")
    add(bundle, store, bare, "--recorded", "2199-01-01")
    assert query(store)["looked"]["ahead"] == 1
    assert "the clock of the recording machine is ahead" in check_cli("store", "query", "--store", store)


# ---- maps of several compilations


@pytest.mark.long
def test_ops_keep_their_keys_where_the_model_is_edited(tmp_path: Path) -> None:
    """A line more at the top moves all ops; they are found again by what they compute."""
    text = (SAMPLES / "models" / f"{MODEL}.mlir").read_text(encoding="utf-8")
    place = text.index("linalg.matmul")
    line = text.rindex("\n", 0, place) + 1
    edited = text[:line] + "    %unused = arith.constant 4711 : index\n" + text[line:]
    store = tmp_path / "store"
    for name, content in (("old", text), ("new", edited)):
        model = tmp_path / name / "model.mlir"
        model.parent.mkdir()
        model.write_text(content, encoding="utf-8")
        bundle = model.with_suffix(".tracemap")
        check_cli("build", model, "-o", bundle)
        check_cli("record", bundle, "--iterations", "5")
        check_cli("store", "add", next((bundle / "runs").iterdir()), "--store", store, "--tag", f"name={name}")
    (both,) = query(store)["groups"]
    single = query(store, "--group-by", "tag.name")["groups"]
    names = [
        [(op["op"], op["name"]) for op in sorted(group["ops"], key=lambda op: str(op["op"]))]
        for group in (both, *single)
    ]
    assert names[0] == names[1] == names[2]
    assert all(op["runs"] == 2 for op in both["ops"])


@pytest.mark.long
def test_ops_that_nothing_matches_are_none_of_those_before(tmp_path: Path) -> None:
    """Two programs by one name: each has a first op, which is something else in each."""
    store = tmp_path / "store"
    for name in ("arith.addf %x, %x", "math.tanh %x"):
        model = tmp_path / name.split()[0] / "model.mlir"
        model.parent.mkdir()
        body = f"  %0 = {name} : tensor<64xf32>\n  return %0 : tensor<64xf32>\n"
        model.write_text(f"func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {{\n{body}}}\n", encoding="utf-8")
        bundle = model.with_suffix(".tracemap")
        check_cli("build", model, "-o", bundle)
        check_cli("record", bundle, "--iterations", "5")
        check_cli("store", "add", next((bundle / "runs").iterdir()), "--store", store)
    (group,) = query(store)["groups"]
    names = {op["name"]: op["runs"] for op in group["ops"]}
    assert {"arith.addf": 1, "math.tanh": 1}.items() <= names.items()
    assert all(op["runs"] == 1 for op in group["ops"] if op["op"] is not None)


@pytest.mark.long
def test_ops_of_two_models_keep_their_own_names(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Both have an `op6`, which is something else in each."""
    store = tmp_path / "store"
    models = ("hand_mlp", "hand_attention")
    for model in models:
        check_cli("store", "add", recorded(model), "--map", built(model), "--store", store)
    groups = {group["model"]: group for group in query(store)["groups"]}
    for model in models:
        truth = json_cli("attribute", recorded(model), "--map", built(model))["ops"]
        named = {op["op"]: (op["name"], op["line"]) for op in truth}
        found = {op["op"]: (op["name"], op["line"]) for op in groups[model]["ops"]}
        assert found.items() <= named.items()
        assert costs_of(groups[model], "cpu_ns") == truth_of(attributed(built(model), [recorded(model)]), "cpu_ns")
    assert query(store, "--calls")["groups"] == query(store)["groups"]


@pytest.mark.long
def test_a_tag_may_be_empty_or_a_number(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    for run, words in zip(runs, (("--tag", "pr="), ("--tag", "pr=10"), ()), strict=True):
        add(bundle, store, run, *words)
    assert [group["group"]["tag.pr"] for group in query(store, "--group-by", "tag.pr")["groups"]] == ["", "10", None]
    listed = json_cli("store", "list", "--store", store, "--where", "tag.pr>9")["runs"]
    assert [run["tags"] for run in listed] == [{"pr": "10"}]


@pytest.mark.long
def test_sums_of_runs_that_tell_no_invocations_are_called_so(bundle: Path, runs: list[Path], tmp_path: Path) -> None:
    store, bare = tmp_path / "store", tmp_path / "bare.csv"
    rows_of(f"COPY (SELECT kernel, cpu_ns FROM '{runs[0]}' WHERE kind = 'dispatch') TO '{bare}' (FORMAT csv)")
    add(bundle, store, bare, runs[1])
    assert ": 2 runs, sums" in check_cli("store", "query", "--store", store)
    assert ": 1 run, per invocation" in check_cli("store", "query", "--store", store, "--where", "iterations=21")


def test_the_output_is_written_and_not_replaced(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    check_cli("store", "query", "--store", store, "--format", "json", "-o", target)
    assert json.loads(target.read_text(encoding="utf-8")) == query(store)
    check_cli("store", "query", "--store", store, "--format", "json", "-o", target)
    target.write_text("of another program")
    assert "has no mark of tracemap" in failed("store", "query", "--store", store, "-o", target).stderr


@pytest.mark.long
def test_python_answers_as_the_commands_do(bundle: Path, store: Path, runs: list[Path], tmp_path: Path) -> None:
    words = ("--format", "json", "--store", store)
    one, other = "iterations=20", "iterations=21"
    assert pretty_json(tracemap.store_list(store)) == check_cli("store", "list", *words)
    grouped = check_cli("store", "query", *words, "--group-by", "iterations", "--calls")
    assert pretty_json(tracemap.store_query(store, group_by=["iterations"], calls=True)) == grouped
    asked = StoreSitesOptions(store=store, metric="duration_ns")
    sites = check_cli("store", "sites", *words, "--metric", "duration_ns", "--where", one)
    assert pretty_json(tracemap.store_sites(str(store), asked, where=[one])) == sites
    assert pretty_json(tracemap.store_trend(store, threshold=5)) == check_cli(
        "store", "trend", *words, "--threshold", "5"
    )
    compared = check_cli("store", "compare", *words, "--before", one, "--after", other)
    assert pretty_json(tracemap.store_compare(store, [one], [other])) == compared
    added = tracemap.store_add(runs[0], tmp_path / "s", bundle, tag=["branch=main"])
    assert pretty_json(added).replace(": true", ": false") == check_cli(
        "store", "add", runs[0], "--map", bundle, "--tag", "branch=main", "--format", "json", "--store", tmp_path / "s"
    )
    with pytest.raises(TypeError, match="no option 'groupby'; did you mean 'group_by'"):
        tracemap.store_query(store, groupby=["host"])


@pytest.mark.long
@pytest.mark.parametrize("counts", [(-8, 1), (-7,), (-1,), (7, 6)])
def test_what_is_negative_is_split_alike_by_either_way(built: Built, tmp_path: Path, counts: tuple[int, ...]) -> None:
    """Events that may be of any of several sites are split evenly; what cannot be divided is lost by neither way."""
    bundle, run, store = built("hand_repeat12"), tmp_path / "run.csv", tmp_path / "store"
    kernels = Counter(site.kernel for site in load(bundle).graph.sites)
    ((kernel, sites),) = kernels.most_common(1)
    assert sites > 1
    rows = (f"{kernel},{100 + number},{count}\n" for number, count in enumerate(counts))
    run.write_text("".join(["kernel,duration_ns,delta\n", *rows]), encoding="utf-8")
    add(bundle, store, run)
    asked = ("--metric", "delta")
    (summed,), (anew,) = query(store, *asked)["groups"], query(store, *asked, "--calls")["groups"]
    assert summed["metrics"][0]["measured"] == sum(counts)
    for key in ("metrics", "ops", "unattributed"):
        assert anew[key] == summed[key]


# ---- percentiles


def test_percentiles_of_sites_are_those_of_their_calls(store: Path, runs: list[Path]) -> None:
    """Exact ones against numpy's: each of the model's kernels has a single site."""
    (group,) = json_cli("store", "sites", "--store", store)["groups"]
    listed = ", ".join(f"'{run}'" for run in runs)
    events = f"read_parquet([{listed}], union_by_name = true)"
    rows = rows_of(f"SELECT kernel, cpu_ns FROM {events} WHERE kind = 'dispatch' AND NOT warmup")
    sites = {site["kernel"]: site for site in group["sites"]}
    assert sites.keys() == {kernel for kernel, _ in rows}
    for kernel, site in sites.items():
        values = np.array([value for name, value in rows if name == kernel])
        expected = np.percentile(values, [10, 50, 90, 99])
        found = [site[name] for name in ("p10", "median", "p90", "p99")]
        assert np.abs(np.array(found) - expected).max() <= 1
        assert (site["calls"], site["most"]) == (len(values), values.max())


@pytest.mark.long
def test_what_tells_calls_apart_is_no_metric_of_them(store: Path) -> None:
    """No column of the calls but those that `store query` knows has percentiles."""
    columns = {name for (name, *_) in rows_of(f"DESCRIBE SELECT * FROM '{calls_of(store)[0]}'")}
    metrics = {"cpu_ns", "duration_ns"}
    assert columns > metrics
    for column in sorted(columns):
        words = ("store", "sites", "--store", store, "--metric", column)
        if column in metrics:
            check_cli(*words)
        else:
            assert f"--metric {column}: no calls have it" in failed(*words).stderr
    assert "no calls have it" in failed("store", "sites", "--store", store, "--metric", "RUN").stderr


def test_buckets_tell_percentiles_as_well_as_they_say(store: Path) -> None:
    headers = read_headers(store_at(store), skip_bad=False)
    with duck_engine(0, no_progress) as engine:
        exact, sketched = (query_calls(engine, headers, Names({}, ()), "cpu_ns", (), most) for most in (10**9, 0))
    assert (exact.error_percent, sketched.error_percent) == (0, 0.5)
    for one, other in zip(exact.groups[0].sites, sketched.groups[0].sites, strict=True):
        assert (one.calls, one.most) == (other.calls, other.most)
    values = {site.kernel: site for site in exact.groups[0].sites}
    for site in sketched.groups[0].sites:
        # A rank between two calls is one of them here, and between them there.
        assert abs(site.median - values[site.kernel].median) <= 0.05 * values[site.kernel].median + 20


@pytest.mark.long
def test_shares_are_those_of_attribute(bundle: Path, tmp_path: Path) -> None:
    """Also where a call waited: what it waited is no work, in both."""
    run, store = tmp_path / "run.csv", tmp_path / "store"
    check_cli("record", bundle, "--iterations", "40", "-o", run)
    delay_last_dispatch(run, "cpu_ns", 5_000_000)
    text = check_cli("attribute", run, "--map", bundle, "--metric", "cpu_ns", "--columns", "op,cpu_ns,share")
    told = {row["op"]: row["of cpu %"] for row in printed_table(text, "Ops by ")}
    add(bundle, store, run)
    asked = check_cli("store", "query", "--store", store, "--metric", "cpu_ns")
    rows = printed_table(asked, MODEL)
    assert {row["op"]: row["share"] for row in rows if row["op"]} == {op: f"{share} %" for op, share in told.items()}
    (waited,) = (row for row in rows if row["name"] == "outliers")
    assert waited["share"] == ""


@pytest.mark.long
def test_simulated_counts_are_of_the_one_call_that_each_run_simulated(bundle: Path, tmp_path: Path) -> None:
    """They are what `attribute` shows, however many calls are timed beside them, over all runs and in each."""
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind")
    recorded = [tmp_path / f"{timed}.parquet" for timed in (2, 5)]
    for run in recorded:
        check_cli("record", bundle, "--cache-sim", "--iterations", run.stem, "-o", run)
    one = {op["op"]: op["metrics"]["Ir"]["attributed"] for op in attributed(bundle, recorded[:1])[0]["ops"]}
    store = tmp_path / "store"
    add(bundle, store, *recorded)
    (group,) = query(store, "--metric", "Ir,cpu_ns")["groups"]
    assert {each["name"]: each["invocations"] for each in group["metrics"]} == {"Ir": 2, "cpu_ns": 7}
    assert {op["op"]: op["amounts"]["Ir"] for op in group["ops"]} == {op: 2 * cost for op, cost in one.items()}
    (model,) = json_cli("store", "trend", "--store", store, "--metric", "Ir")["models"]
    costs = {each["op"]["op"]: [point["cost"] for point in each["points"]] for each in model["most_expensive"]}
    assert costs
    assert costs == {op: [one[op]] for op in costs}


@pytest.mark.long
def test_calls_of_different_functions_have_no_cost_in_common(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """As in `attribute`: sums are shown, which `--group-by function` makes those of one invocation."""
    folder = tmp_path / "store"
    for function in ("encode", "decode"):
        add(built("hand_multifunc"), folder, recorded(f"hand_multifunc.{function}"))
    (group,) = query(folder)["groups"]
    assert [metric["invocations"] for metric in group["metrics"]] == [None]
    said = check_cli("store", "query", "--store", folder)
    assert "hand_multifunc: 2 runs, sums: the runs are of several functions (--group-by function)" in said
    apart = query(folder, "--group-by", "function")["groups"]
    assert [metric["invocations"] for each in apart for metric in each["metrics"]] == [3, 3]
    assert "hand_multifunc, function encode: 1 run, per invocation" in check_cli(
        "store", "query", "--store", folder, "--group-by", "function"
    )


def test_inputs_without_a_size_are_unknown() -> None:
    """A header that somebody else wrote may have anything in its list."""
    told: list[list[str | None]] = [["8x4xf32=@x.npy", "4xi32: zeros", "7"], ["@x.npy", "4xf32"], [None, "4xf32"], []]
    assert [sizes_of(each) for each in told] == ["8x4xf32, 4xi32, scalar", None, None, None]


@pytest.mark.long
def test_calls_with_inputs_of_other_sizes_have_no_cost_in_common(built: Built, tmp_path: Path) -> None:
    """A night on which four times the rows were computed is none on which the model became slower."""
    bundle, folder = built("hand_dynamic"), tmp_path / "store"
    sizes = {size: f"{size}x{size}xf32, {size}x128xf32, 128xf32" for size in (8, 32)}
    for size in sizes:
        run = tmp_path / f"{size}.parquet"
        check_cli("record", bundle, "--dim", str(size), "--iterations", "8", "-o", run)
        add(bundle, folder, run, "--tag", f"night={size}")
    (group,) = query(folder)["groups"]
    assert [metric["invocations"] for metric in group["metrics"]] == [None]
    assert "(--group-by inputs)" in check_cli("store", "query", "--store", folder)
    apart = query(folder, "--group-by", "inputs")["groups"]
    assert {each["group"]["inputs"] for each in apart} == {*sizes.values()}
    assert [metric["invocations"] for each in apart for metric in each["metrics"]] == [8, 8]
    assert query(folder, "--where", "inputs=8x8*")["looked"]["runs"] == 1
    models = json_cli("store", "trend", "--store", folder)["models"]
    assert [(model["function"], model["inputs"], model["nights"]) for model in models] == [
        ("dyn", sizes[8], 1),
        ("dyn", sizes[32], 1),
    ]
    assert f"hand_dynamic, inputs {sizes[8]}: " in check_cli("store", "trend", "--store", folder)
    sides = ("--before", "tag.night=8", "--after", "tag.night=32")
    assert "the same function and input sizes" in failed("store", "compare", "--store", folder, *sides).stderr


@pytest.mark.long
def test_trends_and_comparisons_are_of_one_function(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Nights on which another function was called are no nights on which the model became slower."""
    folder, bundle = tmp_path / "store", built("hand_multifunc")
    for number, function in enumerate(("encode", "decode")):
        run = recorded(f"hand_multifunc.{function}")
        add(bundle, folder, run, "--tag", f"night={number}")
    models = json_cli("store", "trend", "--store", folder)["models"]
    assert [(model["model"], model["function"]) for model in models] == [
        ("hand_multifunc", "decode"),
        ("hand_multifunc", "encode"),
    ]
    for model in models:
        (alone,) = attributed(bundle, [recorded(f"hand_multifunc.{model['function']}")])
        costs = {op["op"]: op["metrics"]["cpu_ns"]["per_invocation"]["median"] for op in alone["ops"]}
        assert model["most_expensive"]
        for each in model["most_expensive"]:
            assert [point["cost"] for point in each["points"]] == [costs[each["op"]["op"]]]
    said = check_cli("store", "trend", "--store", folder)
    assert "hand_multifunc, function decode: too few nights to detect a change" in said
    refused = failed("store", "compare", "--store", folder, "--before", "tag.night=0", "--after", "tag.night=1")
    assert "no model has runs of the same function" in refused.stderr


def test_buckets_hold_values_below_nothing(bundle: Path, tmp_path: Path) -> None:
    """A metric may be a difference. Of many calls with one below -1 the store "could not be read"."""
    kernel, values = load(bundle).graph.kernels[0].name, [*range(-2000, -900, 100), -1, 0, 1, 700, 800]
    rows = "".join(f"{kernel},{value}\n" for value in values)
    (tmp_path / "run.csv").write_text(f"kernel,change\n{rows}", encoding="utf-8")
    add(bundle, tmp_path / "store", tmp_path / "run.csv")
    headers = read_headers(store_at(tmp_path / "store"), skip_bad=False)
    with duck_engine(0, no_progress) as engine:
        (site,) = query_calls(engine, headers, Names({}, ()), "change", (), most_exact=0).groups[0].sites
    assert (site.calls, site.most) == (len(values), 800)
    for found, rank in ((site.p10, 1), (site.median, 7), (site.p90, 13)):
        assert abs(found - sorted(values)[rank]) <= 0.005 * abs(sorted(values)[rank]) + 1
