"""The newest run of a bundle, also after removals and beyond the thousandth."""

from __future__ import annotations

import shutil
from pathlib import Path

import tracemap
from tests.conftest import Built
from tests.support import check_cli
from tracemap.commands.runs import newest_run, newest_runs


def names(bundle: Path) -> list[str]:
    return sorted(path.name for path in (bundle / "runs").iterdir())


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
