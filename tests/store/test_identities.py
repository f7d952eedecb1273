"""Identities in a store: ops, units, runs; and inputs that are refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.support import Json, check_cli, command_line, json_cli, run_cli
from tracemap.map.bundle import load

OPS_BEFORE = ("addf", "mulf", "subf")
Bare = Callable[[str, Path, str, str], Path]


def program(folder: Path, name: str, ops: tuple[str, ...]) -> Path:
    """The bundle of a program that has these ops of `arith`, then another one."""
    lines = [f"  %{number} = arith.{op} %a, %a : tensor<64x64xf32>" for number, op in enumerate(ops)]
    results = ", ".join(["%r", *(f"%{number}" for number in range(len(ops)))])
    types = ", ".join(["tensor<64x64xf32>"] * (len(ops) + 1))
    model = folder / name / "model.mlir"
    model.parent.mkdir()
    model.write_text(
        "\n".join(
            (
                f"func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> ({types}) {{",
                *lines,
                "  %r = math.tanh %b : tensor<64x64xf32>",
                f"  return {results} : {types}",
                "}\n",
            )
        ),
        encoding="utf-8",
    )
    bundle = folder / f"{name}.tracemap"
    check_cli("build", model, "-o", bundle)
    return bundle


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    """Writes a table with a row for each kernel of a bundle, which has one column: its name, and the value in it."""

    def write(name: str, bundle: Path, column: str, value: str) -> Path:
        table = tmp_path / name
        rows = (f"{kernel.name},{value}" for kernel in load(bundle).graph.kernels)
        table.write_text("\n".join((f"kernel,{column}", *rows, "")), encoding="utf-8")
        return table

    return write


def queried(store: Path, *words: str) -> list[Json]:
    (group,) = json_cli("store", "query", "--store", store, *words)["groups"]
    return list(group["ops"])


@pytest.mark.long
def test_a_map_that_is_there_as_another_models_has_keys_of_its_own_in_each(tmp_path: Path, bare: Bare) -> None:
    """One op is the first of one program and the fourth of the other: no sum may take it for the other's first."""
    short, long = program(tmp_path, "short", ()), program(tmp_path, "long", OPS_BEFORE)
    runs = {bundle: bare(f"{bundle.stem}.csv", bundle, "duration_ns", "100") for bundle in (short, long)}
    store, alone = tmp_path / "store", tmp_path / "alone"
    first = bare("first.csv", long, "duration_ns", "7")
    check_cli("store", "add", first, "--map", long, "--store", store)  # as a model of its own name
    for place in (store, alone):
        for bundle in (short, long):
            check_cli("store", "add", runs[bundle], "--map", bundle, "--store", place, "--model", "net")
    ops = queried(store, "--where", "model=net")
    assert ops == queried(alone)
    assert {op["name"]: op["runs"] for op in ops if op["name"]}["math.tanh"] == 2
    assert all(op["runs"] == 1 for op in ops if op["name"] in {f"arith.{name}" for name in OPS_BEFORE})


def test_a_run_that_is_there_leaves_nothing_under_another_models_name(tmp_path: Path, built: Built, bare: Bare) -> None:
    bundle, store = built("hand_mlp"), tmp_path / "store"
    run = bare("run.csv", bundle, "duration_ns", "5")
    check_cli("store", "add", run, "--map", bundle, "--store", store)
    before = sorted(path for path in store.rglob("*"))
    said = json_cli("store", "add", run, "--map", bundle, "--store", store, "--model", "other")
    assert [(each["model"], each["added"]) for each in said["runs"]] == [("hand_mlp", False)]
    assert sorted(path for path in store.rglob("*")) == before


@pytest.mark.long
def test_whole_numbers_and_fractions_of_a_metric_are_not_added_up(tmp_path: Path, built: Built, bare: Bare) -> None:
    """Fractions are kept in millionths, as the name of the metric then says."""
    bundle, store = built("hand_mlp"), tmp_path / "store"
    for name, value in (("whole.csv", "2"), ("parts.csv", "2.5"), ("more.csv", "0.25")):
        check_cli("store", "add", bare(name, bundle, "joules", value), "--map", bundle, "--store", store)
    for how in ((), ("--calls",)):
        sums: dict[str, int] = {}
        for op in queried(store, "--metric", "joules,joules_millionths", *how):
            for metric, amount in op["amounts"].items():
                sums[metric] = sums.get(metric, 0) + amount
        kernels = len(load(bundle).graph.kernels)
        assert sums == {"joules": 2 * kernels, "joules_millionths": 2_750_000 * kernels}
    both = bare("both.csv", bundle, "joules,joules_millionths", "2.5,3")
    done = run_cli("store", "add", both, "--map", bundle, "--store", store)
    assert done.returncode == 2
    assert "has the same name as another metric (joules_millionths); rename it in the run" in done.stderr


@pytest.mark.long
def test_metrics_that_differ_in_case_are_not_mixed(tmp_path: Path, built: Built, bare: Bare) -> None:
    """Single calls lie in columns, which engines tell apart by small letters: medians were of both metrics together."""
    bundle, store = built("hand_mlp"), tmp_path / "store"
    for name, metric, value in (("one.csv", "Cycles", "1000"), ("two.csv", "cycles", "7")):
        run = bare(name, bundle, metric, value)
        check_cli("store", "add", run, "--map", bundle, "--store", store, "--host", metric)
    for metric, other in (("Cycles", "cycles"), ("cycles", "Cycles")):
        for words in (("sites",), ("query", "--calls")):
            done = run_cli("store", *words, "--store", store, "--metric", metric)
            assert done.returncode == 2
            assert f"--metric {metric}: some runs spell it {other}" in done.stderr
    for words in (("sites",), ("query", "--calls"), ("query",)):
        check_cli("store", *words, "--store", store, "--metric", "cycles", "--where", "host=cycles")


@pytest.mark.long
def test_what_exceeds_64_bits_in_an_invocation_is_added_up(tmp_path: Path, built: Built) -> None:
    """As the time of day of each call of a loop, which is a column of numbers; it ended in a traceback."""
    bundle, store, run = built("hand_mlp"), tmp_path / "store", tmp_path / "run.csv"
    kernel, now = load(bundle).graph.kernels[0].name, 1_763_600_000_000_000_000
    calls = [f"{kernel},{invocation},5,{now}\n" for invocation in range(8) for _ in range(6)]
    run.write_text("kernel,invocation,cpu_ns,time_of_day\n" + "".join(calls), encoding="utf-8")
    check_cli("store", "add", run, "--map", bundle, "--store", store)
    for words in ((), ("--calls",)):
        ops = queried(store, "--metric", "time_of_day", *words)
        assert sum(op["amounts"]["time_of_day"] for op in ops) == now * len(calls)


@pytest.mark.long
def test_perfs_clocks_are_nanoseconds(tmp_path: Path, built: Built, bare: Bare) -> None:
    """As `attribute` shows them; they were numbers of something."""
    bundle, store = built("hand_mlp"), tmp_path / "store"
    run = bare("run.csv", bundle, "task-clock:u", "1500000")
    check_cli("store", "add", run, "--map", bundle, "--store", store)
    for what in ("query", "sites"):
        assert "1.50 ms" in check_cli("store", what, "--store", store, "--metric", "task-clock:u")


@pytest.mark.long
def test_a_run_through_a_pipe_is_the_run_of_the_file(tmp_path: Path, built: Built) -> None:
    bundle, store = built("hand_mlp"), tmp_path / "store"
    kernel = load(bundle).graph.kernels[0].name
    common = {"run_type": "iteration", "iterations": 2, "time_unit": "ns"}
    report = {
        "context": {"date": "2026-01-01T00:00:00+00:00", "host_name": "h", "num_cpus": 2},
        "benchmarks": [
            {"name": "BM_mlp/process_time/real_time", "real_time": 1000, "cpu_time": 900} | common,
            {"name": f"BM_mlp/{kernel}", "real_time": 100, "cpu_time": 90, "calls": 1, "percent": 50} | common,
        ],
    }
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report), encoding="utf-8")
    first = json_cli("store", "add", file, "--map", bundle, "--store", store)["runs"]
    with file.open("rb") as content:
        done = subprocess.run(
            command_line("store", "add", "-", "--map", bundle, "--store", store, "--format", "json"),
            stdin=content,
            capture_output=True,
            check=True,
        )
    (piped,) = json.loads(done.stdout)["runs"]
    assert (piped["run"], piped["added"]) == (first[0]["run"], False)


@pytest.mark.long
def test_calls_of_another_kernel_are_another_run(tmp_path: Path, built: Built) -> None:
    """Files of IREE's hook do not name their kernel. Added again with the right one, they were "there already"."""
    bundle, store, calls = built("hand_mlp"), tmp_path / "store", tmp_path / "calls.csv"
    calls.write_text("thread,cpu,node,duration_us,cycles\nw,0,0,1.5,100\n", encoding="utf-8")
    kernels = [kernel.name for kernel in load(bundle).graph.kernels[:2]]
    added = []
    for kernel in (*kernels, kernels[0]):
        added += json_cli("store", "add", calls, "--dispatch", kernel, "--map", bundle, "--store", store)["runs"]
    assert [each["added"] for each in added] == [True, True, False]
    assert added[0]["run"] == added[2]["run"]


@pytest.mark.long
@pytest.mark.parametrize("way", ["link", "literal", "map"])
def test_a_store_takes_nothing_from_outside_of_a_bundle(way: str, tmp_path: Path, bare: Bare) -> None:
    """A bundle of somebody else's may name a file of this machine, and stores are shared."""
    bundle = program(tmp_path, "evil", ())
    run = bare("run.csv", bundle, "duration_ns", "5")
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET 12345", encoding="utf-8")
    source = load(bundle).graph.sources[0].path
    if way == "link":
        (bundle / "source" / source).unlink()
        (bundle / "source" / source).symlink_to(secret)
    elif way == "literal":
        (bundle / "literals").mkdir(exist_ok=True)
        (bundle / "literals" / "x").symlink_to(secret)
    else:
        map_ = bundle / "map.json"
        map_.write_bytes(map_.read_bytes().replace(f'"{source}"'.encode(), b'"../../secret.txt"'))
    store = tmp_path / "store"
    done = run_cli("store", "add", run, "--map", bundle, "--store", store)
    assert done.returncode == 2
    assert "lies outside of the bundle" in done.stderr
    assert "[bundle-invalid]" in done.stderr
    assert not list(store.rglob("*.parquet"))
