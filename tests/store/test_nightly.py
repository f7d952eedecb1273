"""The sample of a nightly job: its made-up nights, the findings, the page, the script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from tests.conftest import Built
from tests.support import ROOT, SAMPLES, check_cli, json_cli, run_cli
from tracemap.core.codec import encode
from tracemap.map.bundle import load
from tracemap.runs.model import UNKNOWN_HEADER, UNKNOWN_MACHINE

NIGHTLY = ROOT / "samples" / "nightly"
NIGHTS, SINCE, PROCESSOR = 12, "2026-11-22", "Fictional Beta 8481C"


@pytest.fixture(scope="module")
def store(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of nights that one recording was made into; the dearest kernel is 12 % slower since one of them."""
    folder = tmp_path_factory.mktemp("nightly")
    run = folder / "run.parquet"
    check_cli("record", built("hand_mlp"), "--iterations", "300", "-o", run)
    made = [sys.executable, str(NIGHTLY / "fake_week.py"), str(run), str(folder / "week"), str(NIGHTS)]
    assert SINCE in subprocess.run(made, check=True, capture_output=True, text=True).stdout
    check_cli("store", "add", *sorted((folder / "week").iterdir()), "--map", built("hand_mlp"), "--store", folder / "s")
    return folder / "s"


@pytest.mark.long
def test_what_became_slower_is_named_with_its_night_and_processor(store: Path) -> None:
    (model,) = json_cli("store", "trend", "--store", store)["models"]
    assert (model["nights"], model["hosts"], model["cpu_models"], model["runs_left_out"]) == (NIGHTS, 4, 2, 0)
    assert {change["op"]["name"] for change in model["changes"]} >= {"linalg.matmul"}
    for change in model["changes"]:
        assert (change["kind"], change["night"], change["cpu_model"]) == ("slower", SINCE, PROCESSOR)
        assert 1.10 < change["ratio"] < 1.14


@pytest.mark.long
def test_nights_are_compared_host_by_host(store: Path) -> None:
    sides = ("--before", f"date<{SINCE}", "--after", f"date>={SINCE}")
    (model,) = json_cli("store", "compare", "--store", store, *sides)["models"]
    assert {each["cpu_model"] for each in model["differences"]} == {PROCESSOR}
    assert "linalg.matmul" in {each["op"]["name"] for each in model["differences"]}
    before = ("--before", "date<2026-11-18", "--after", "date=2026-11-19")
    (quiet,) = json_cli("store", "compare", "--store", store, *before)["models"]
    assert quiet["differences"] == []
    both = run_cli("store", "compare", "--store", store, "--before", "date<2026-11-19", "--after", "date=2026-11-18")
    assert (both.returncode, "runs are in both sets" in both.stderr) == (2, True)


@pytest.mark.long
def test_the_page_shows_the_nights(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "week.html"
    text = check_cli("store", "trend", "--store", store, "--html", page)
    assert SINCE in text
    markup = page.read_text(encoding="utf-8")
    assert markup.count("<svg ") > 2 * 5
    assert f"since {SINCE}" in markup
    assert "<script>alert" not in markup


def write_night(run: Path, host: str, night: int, costs: Mapping[str, float]) -> Path:
    """A run of a few calls, which says on which host and in which night it was recorded; returns its file."""
    random, recorded_ns = Random(run.name), (20_000 + night) * 86_400 * 10**9
    rows = [
        f"{kernel},{call},{round(cost * random.uniform(0.999, 1.001))}\n"
        for call in range(9)
        for kernel, cost in costs.items()
    ]
    run.write_text("".join(["kernel,invocation,cpu_ns\n", *rows]), encoding="utf-8")
    machine = structs.replace(UNKNOWN_MACHINE, host=host, cpu_model=PROCESSOR, recorded_ns=recorded_ns)
    header = structs.replace(UNKNOWN_HEADER, machine=machine, iterations=9)
    run.with_name(f"{run.name}.json").write_bytes(encode(header))
    return run


@pytest.mark.long
def test_what_all_ops_cost_is_the_sum_of_those_that_run_in_all_nights(built: Built, tmp_path: Path) -> None:
    """The machines are slower since the seventh night; in the first three nights one kernel did not run."""
    bundle, store, page = built("hand_mlp"), tmp_path / "s", tmp_path / "page.html"
    kernels = [site.kernel for site in load(bundle).graph.sites]
    runs = []
    for night in range(NIGHTS):
        slower = 1.3 if night >= 6 else 1.0
        costs = {kernel: 10_000 * (number + 1) * slower for number, kernel in enumerate(kernels)}
        ran = dict(list(costs.items())[: -1 if night < 3 else None])
        for host in ("b1", "b2", "b3"):
            runs.append(write_night(tmp_path / f"{night}-{host}.csv", host, night, ran))
    check_cli("store", "add", *runs, "--map", bundle, "--store", store)
    (model,) = json_cli("store", "trend", "--store", store, "--html", page)["models"]
    (change,) = (each for each in model["changes"] if each["op"]["op"] == "all ops")
    level = 10_000 * sum(range(1, len(kernels)))
    expected = [level * (1.3 if night >= 6 else 1.0) for night in range(NIGHTS)]
    assert [point["cost"] for point in change["series"]] == pytest.approx(expected, rel=0.005)


@pytest.mark.long
def test_compilers_are_drawn_in_the_order_in_which_they_came_into_use(built: Built, tmp_path: Path) -> None:
    """Release 3.9.0 is older than 3.10.0, though its letters come behind."""
    releases, page = ["3.8.0", "3.9.0", "3.10.0", "3.11.0"], tmp_path / "page.html"
    for number, release in enumerate(releases):
        bundle = tmp_path / release / "mlp.tracemap"
        shutil.copytree(built("hand_mlp"), bundle)
        stored = (bundle / "map.json").read_text(encoding="utf-8")
        said = re.sub(r'"iree_compiler": ?"[^"]*"', f'"iree_compiler":"{release}"', stored)
        (bundle / "map.json").write_text(said, encoding="utf-8")
        run, kernel = tmp_path / f"{release}.csv", load(bundle).graph.sites[0].kernel
        run.write_text(f"kernel,invocation,cpu_ns\n{kernel},0,{1000 + number}\n", encoding="utf-8")
        recording = ("--recorded", f"2026-11-{10 + number}", "--host", "ci-1")
        check_cli("store", "add", run, "--map", bundle, "--store", tmp_path / "s", *recording)
    words = ("store", "trend", "--store", tmp_path / "s", "--over", "compiler", "--html", page)
    (model,) = json_cli(*words)["models"]
    assert model["in_order"] == releases
    nights = re.findall(r"<title>([0-9.]+): ", page.read_text(encoding="utf-8"))
    assert nights[: len(releases)] == releases
    places = re.findall(r'<circle cx="([0-9.]+)"', page.read_text(encoding="utf-8"))[: len(releases)]
    assert places == sorted(places, key=float)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `tracemap` is that of this checkout."""
    program = tmp_path / "bin" / "tracemap"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tracemap "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("tonight", "status", "said"),
    [
        ("first", 0, "no run is from before"),
        ("2000-01-01", 0, "no run is from before"),
        (SINCE, 1, ",slower,"),
        ("2030-01-01", 2, ""),  # nothing was recorded tonight
    ],
)
@pytest.mark.long
def test_a_report_says_how_tonight_was(
    store: Path, tmp_path: Path, environment: dict[str, str], tonight: str, status: int, said: str
) -> None:
    dates = [run["date"] for run in json_cli("store", "list", "--store", store)["runs"]]
    words = [NIGHTLY / "report.sh", store, tmp_path / "page.html", min(dates) if tonight == "first" else tonight]
    done = subprocess.run(words, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert said in done.stdout
    assert (tmp_path / "page.html").is_file()


@pytest.mark.long
def test_a_job_records_and_reports(tmp_path: Path, environment: dict[str, str]) -> None:
    """The scripts as they are, on a real model: two nights of one machine."""
    for folder, suffix in (("models", ".mlir"), ("flags", ".flags")):
        shutil.copy(SAMPLES / folder / f"hand_mlp{suffix}", tmp_path)
    script = NIGHTLY / "nightly.sh"
    words = [str(script), "hand_mlp.mlir", "store", "branch=main", "night=1"]
    subprocess.run(words, check=True, cwd=tmp_path, env=environment, capture_output=True)
    runs = json_cli("store", "list", "--store", tmp_path / "store")["runs"]
    assert [run["tags"] for run in runs] == [{"branch": "main", "night": "1"}] * 3
    assert not list(tmp_path.glob("*.tracemap"))
