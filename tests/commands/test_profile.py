"""`tracemap profile`: one command from a model, bundle or script to its most expensive source lines and the page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tracemap
from tests.checks import check_page
from tests.conftest import Built
from tests.support import SAMPLES, run_cli
from tracemap.runs.runfile import read_run

MLP = SAMPLES / "models" / "hand_mlp.mlir"
QUICK = ("--seconds", "0.2")


def profiled(*arguments: str | Path, cwd: Path) -> list[str]:
    """The lines that a profile prints."""
    done = run_cli("profile", *QUICK, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_becomes_a_page_twice_in_a_row(tmp_path: Path) -> None:
    for count in (1, 2):
        lines = profiled(MLP, cwd=tmp_path)
        assert len(lines) <= 20
        assert re.match(r"elapsed \S+ \S+ per invocation \(mean; median .*: kernels \d+ %", lines[0])
        costs = [line for line in lines if line.startswith("hand_mlp.mlir:")]
        assert [costs[0].split()[1], costs[0].split()[-1]] == ["linalg.matmul", "mlp_dispatch_0_matmul_32x256x784_f32"]
        assert len(costs) == 5
        assert "Page: hand_mlp.html" in lines
        assert len(list((tmp_path / "hand_mlp.tracemap" / "runs").glob("*.parquet"))) == count
    check_page(tmp_path / "hand_mlp.html", "module")


@pytest.mark.long
def test_a_page_of_another_program_is_left_alone(built: Built, tmp_path: Path) -> None:
    bundle = shutil.copytree(built("hand_mlp"), tmp_path / "hand_mlp.tracemap")  # it gets a run
    other = tmp_path / "hand_mlp.html"
    other.write_text("mine")
    assert "Page: hand_mlp-2.html" in profiled(bundle, cwd=tmp_path)
    assert other.read_text() == "mine"
    done = run_cli("profile", *QUICK, bundle, "-o", other, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no mark of tracemap; choose another name, or pass --force [target-exists]" in done.stderr


def test_a_script_is_profiled_by_what_it_builds(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys, tracemap\ntracemap.build(sys.argv[1], 'own.tracemap')\n")
    lines = profiled(script, MLP, cwd=tmp_path)
    assert "Page: own.html" in lines


def test_targets_that_cannot_be_profiled_are_named(tmp_path: Path) -> None:
    scripts = {
        "empty.py": ("pass", "calls neither a function of jax.jit nor tracemap.build"),
        "failing.py": ("def f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero"),
        "leaving.py": ("raise SystemExit(3)", "exited with 3 before the profile began"),
    }
    for name, (text, said) in scripts.items():
        (tmp_path / name).write_text(text)
        done = run_cli("profile", name, cwd=tmp_path)
        assert done.returncode != 0
        assert said in done.stderr
        assert "tracemap/frontends" not in done.stderr
    for arguments, said in (
        (("run.parquet",), "run.parquet: is a run, and `profile` makes a new one"),
        (("missing.py",), "missing.py: there is no such file"),
        (("missing.mlir",), "missing.mlir: "),
        (("--dim", "3", "empty.py"), "a script has inputs of its own"),
    ):
        done = run_cli("profile", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.long
def test_profile_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = math.exp %x : tensor<8xf32>
  return %y : tensor<8xf32>
}"""
    found = tracemap.profile(text, np.ones(8, np.float32), seconds=0.2, output="page.html")
    assert str(found).splitlines()[-2] == f"Page: {found.page}"
    assert read_run(found.run).header.inputs[0].startswith("8xf32")
    assert any("math.exp" in op.name and op.metrics["cpu_ns"].attributed for op in found.attribution.ops)
    assert "math.exp" in found._repr_html_()
    again = tracemap.profile(found.attribution.bundle, "8xf32=2", seconds=0.2)
    assert (read_run(again.run).header.inputs, again.page.name) == (("8xf32=2",), "model.html")
    with pytest.raises(TypeError, match="only a program has keywords"):
        tracemap.profile(text, keywords={"x": 1})
    with pytest.raises(TypeError, match="did you mean 'seconds'"):
        tracemap.profile(text, second=1)
