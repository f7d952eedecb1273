"""Files of every earlier format version: read, or refused by version in one sentence.

`tests/programs/formats/` has a bundle, a run (as CSV and as Parquet) and a recording of calls for each version, made of
the same small program by the tracemap of its time; names of the machine's folders were taken out of their headers.
Whoever raises a version adds what the one before wrote.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import duckdb
import pytest

from tests.checks import check_attribution, check_links, check_page
from tests.support import ROOT, json_cli, run_cli
from tracemap.map.model import MAP_VERSION
from tracemap.runs.hook.process import HOOK_FORMAT_VERSION, HOOK_READ_VERSIONS
from tracemap.runs.model import RUN_FORMAT_VERSION

FORMATS = ROOT / "tests" / "programs" / "formats"
BUNDLE = FORMATS / f"bundle-{MAP_VERSION}.tracemap"
OLD_RUNS = [f"run-{version}.{end}" for version in range(1, RUN_FORMAT_VERSION) for end in ("csv", "parquet")]
RUNS = [f"run-{RUN_FORMAT_VERSION}.csv", f"run-{RUN_FORMAT_VERSION}.parquet"]


def refused(slug: str, *arguments: str | Path, cwd: Path) -> str:
    done = run_cli(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f" [{slug}]\n"), done.stderr
    assert not list(cwd.iterdir())
    return done.stderr


@pytest.mark.parametrize(
    ("kind", "current"),
    [
        ("bundle-*.tracemap", MAP_VERSION),
        ("run-*.csv", RUN_FORMAT_VERSION),
        ("run-*.parquet", RUN_FORMAT_VERSION),
        ("calls-*", HOOK_FORMAT_VERSION),
    ],
)
def test_every_version_is_kept(kind: str, current: int) -> None:
    kept = {int("".join(re.findall(r"-(\d+)", path.name))) for path in FORMATS.glob(kind)}
    assert kept == set(range(1, current + 1))


def test_the_files_are_of_the_versions_that_they_are_called_by() -> None:
    for path in FORMATS.glob("bundle-*"):
        assert json.loads((path / "map.json").read_bytes())["schema_version"] == _number(path)
    for path in FORMATS.glob("run-*.json"):
        assert json.loads(path.read_bytes())["schema_version"] == _number(path)
    for path in FORMATS.glob("run-*.parquet"):
        rows = duckdb.execute("SELECT value FROM parquet_kv_metadata(?)", [str(path)]).fetchall()
        assert [json.loads(value)["schema_version"] for (value,) in rows] == [_number(path)]
    for path in FORMATS.glob("calls-*/*.jsonl"):
        assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["version"] == _number(path.parent)


def _number(path: Path) -> int:
    return int(path.name.split(".", maxsplit=1)[0].rpartition("-")[2])


@pytest.mark.parametrize("version", range(1, MAP_VERSION))
@pytest.mark.parametrize("command", ["show", "audit", "report", "record", "attribute"])
def test_older_bundles_are_refused_by_name(version: int, command: str, tmp_path: Path) -> None:
    bundle = FORMATS / f"bundle-{version}.tracemap"
    given: dict[str, tuple[str | Path, ...]] = {
        "report": (bundle, "-o", "page.html"),
        "record": (bundle, "-o", "run.csv"),
        "attribute": (FORMATS / RUNS[0], "--map", bundle),
    }
    said = refused("bundle-version", command, *given.get(command, (bundle,)), cwd=tmp_path)
    assert f"version {version};" in said
    assert "build the bundle again" in said


@pytest.mark.long
@pytest.mark.parametrize("run", OLD_RUNS)
@pytest.mark.parametrize("command", ["attribute", "report"])
def test_older_runs_are_refused_by_name(run: str, command: str, tmp_path: Path) -> None:
    given = ("--map", BUNDLE) if command == "attribute" else ("-o", "page.html")
    first: tuple[Path, ...] = (FORMATS / run,) if command == "attribute" else (BUNDLE, FORMATS / run)
    said = refused("run-version", command, *first, *given, cwd=tmp_path)
    assert f"version {_number(Path(run))}," in said
    assert "record again" in said


@pytest.mark.parametrize("version", sorted({*range(1, HOOK_FORMAT_VERSION)} - {*HOOK_READ_VERSIONS}))
def test_older_recordings_of_calls_are_refused_by_name(version: int, tmp_path: Path) -> None:
    said = refused("run-version", "stats", FORMATS / f"calls-{version}", cwd=tmp_path)
    assert f"version {version}," in said


def test_the_present_bundle_is_read(tmp_path: Path) -> None:
    shown = json_cli("show", BUNDLE)
    check_links(shown)
    names = ["func.func", "arith.constant", "linalg.matmul", "arith.mulf", "func.return"]
    assert [op["name"] for op in shown["ops"]] == names
    assert [kernel["name"] for kernel in shown["kernels"]] == ["scaled_dispatch_0_matmul_4x4x8_f32"]
    assert json_cli("audit", BUNDLE)["module"] == shown["module"]
    page = tmp_path / "page.html"
    assert run_cli("report", BUNDLE, "-o", page).returncode == 0
    check_page(page, shown["module"]["name"])


@pytest.mark.parametrize("run", RUNS)
def test_the_present_runs_are_read_as_when_they_were_made(run: str, tmp_path: Path) -> None:
    copy = Path(shutil.copy(FORMATS / run, tmp_path))
    if copy.suffix == ".csv":
        shutil.copy(FORMATS / f"{run}.json", tmp_path)
    attribution = json_cli("attribute", copy, "--map", BUNDLE)
    check_attribution(attribution, copy)
    measured = {metric["name"]: metric["measured"] for metric in attribution["metrics"]}
    dispatched = duckdb.execute(f"SELECT sum(cpu_ns) FROM '{copy}' WHERE kind = 'dispatch'").fetchall()
    assert measured["cpu_ns"] == dispatched[0][0]


@pytest.mark.parametrize("version", HOOK_READ_VERSIONS)
def test_recordings_of_calls_are_read(version: int) -> None:
    stats = json_cli("stats", FORMATS / f"calls-{version}")
    assert [thread["calls"] for thread in stats["threads"]] == [1]
