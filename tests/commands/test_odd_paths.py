"""Paths with a special meaning: `.`, `..`, standard input twice, a program without output."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Built, Recorded
from tests.support import SAMPLES, run_cli

MLP = SAMPLES / "models" / "hand_mlp.mlir"


@pytest.mark.long
@pytest.mark.parametrize(("folder", "output"), [(".", "."), ("runs", "..")])
def test_a_bundle_takes_the_place_of_the_one_around(folder: str, output: str, built: Built, tmp_path: Path) -> None:
    bundle = shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap")
    (bundle / "runs").mkdir(exist_ok=True)
    (bundle / "runs" / "kept.csv").touch()
    (bundle / "map.json").write_text("{}")
    done = run_cli("build", MLP, "-o", output, "--force", cwd=bundle / folder)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.tracemap"]
    assert (bundle / "runs" / "kept.csv").exists()
    assert run_cli("show", bundle).returncode == 0


def test_standard_input_is_read_once(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    maps = ("--map-a", built("hand_mlp"), "--map-b", built("hand_mlp"))
    done = run_cli("diff", "-", "-", *maps, cwd=tmp_path, stdin=recorded("hand_mlp", ".csv").read_bytes())
    assert done.returncode == 2
    assert done.stderr == (
        "tracemap: error: -: is named twice but can be read only once; write it to a file first [usage-invalid]\n"
    )


def test_diff_names_its_own_options(recorded: Recorded, tmp_path: Path) -> None:
    run = Path(shutil.copy(recorded("hand_mlp", ".csv"), tmp_path / "run.csv"))
    done = run_cli("diff", run, run, cwd=tmp_path)
    assert done.stderr.endswith("name the bundle with --map (diff: --map-a, --map-b) [bundle-missing]\n")


def test_pages_of_several_comparisons_in_a_folder(built: Built, tmp_path: Path) -> None:
    bundles = [built("hand_mlp")] * 3
    done = run_cli("diff", *bundles[1:], "--baseline", bundles[0], "--html", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "tracemap: error: .: is a folder; name a file [target-unwritable]\n"


def test_a_compiler_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a script in its place that swallows its arguments."""
    program = tmp_path / "bin" / "iree-compile"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    command = ("iree-compile", MLP, "--iree-hal-target-device=local", "-o", "m.vmfb")
    done = run_cli("build", "--", *command, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "ended with status 0 and wrote no output" in done.stderr
    assert done.stderr.endswith("[tool-failed]\n")
