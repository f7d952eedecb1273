"""The newest run of a bundle, also after removals and beyond the thousandth; bundles where runs belong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tracemap
from tests.conftest import Built
from tests.support import check_cli, json_cli, run_cli
from tracemap.commands.runs import newest_run, newest_runs


def names(bundle: Path) -> list[str]:
    return sorted(path.name for path in (bundle / "runs").iterdir())


@pytest.mark.long
def test_numbers_are_not_given_again(built: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))
    for _ in range(2):
        check_cli("record", bundle, "--iterations", "1")
    (bundle / "runs" / "run-001.parquet").unlink()
    check_cli("record", bundle, "--iterations", "3")
    assert names(bundle) == ["run-002.parquet", "run-003.parquet"]
    newest = newest_run(tracemap.load(bundle))
    assert newest is not None
    assert newest.name == "run-003.parquet"


def test_numbers_are_compared_as_numbers(built: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))
    (bundle / "runs").mkdir(exist_ok=True)
    for name in ("run-999", "run-1000-9", "run-1000-10"):
        (bundle / "runs" / f"{name}.parquet").touch()
    found = newest_runs(tracemap.load(bundle))
    assert [path.stem for path in found] == ["run-1000-9", "run-1000-10"]


def test_a_bundle_stands_for_its_newest_run(built: Built, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap"))
    for arguments in (("attribute", bundle), ("export", bundle, "--to", "csv", "-o", "-")):
        done = run_cli(*arguments)
        assert done.returncode == 2
        assert f"{bundle}: this bundle has no run; record one with `tracemap record {bundle}`" in done.stderr
    done = run_cli("report", "m.tracemap", cwd=tmp_path)
    assert done.stderr.endswith("has no run, so the page has no costs\nnext: tracemap record m.tracemap\n")
    for _ in range(2):
        done = run_cli("record", "m.tracemap", "--iterations", "2", cwd=tmp_path)
    assert done.stderr.endswith("next: tracemap attribute m.tracemap/runs/run-002.parquet\n")
    done = run_cli("attribute", "m.tracemap", cwd=tmp_path)
    assert done.stderr.startswith("m.tracemap: newest run: run-002.parquet\n")
    assert done.stderr.endswith("next: tracemap report m.tracemap m.tracemap/runs/run-002.parquet\n")
    newest = json_cli("attribute", "m.tracemap/runs/run-002.parquet", cwd=tmp_path)
    assert json_cli("attribute", "m.tracemap", cwd=tmp_path) == newest
    assert [op.op for op in tracemap.attribute(bundle).ops] == [op["op"] for op in newest["ops"]]
    for _ in range(2):
        done = run_cli("report", "m.tracemap", cwd=tmp_path)
        assert done.stderr == "m.tracemap: newest run: run-002.parquet\npage: m.html\n"
    assert "cpu_ns" in (tmp_path / "m.html").read_text(encoding="utf-8")
