"""`tracemap reduce`: what is left of a model shows its problem, is small, and has no name of the original."""

from __future__ import annotations

import signal
import subprocess
import time
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from tests.oracle.reduce import QUICK, SOFTMAX, Case, judge, name_faults
from tests.support import SAMPLES, check_cli, command_line, long_where, run_cli
from tracemap.commands.problems import failure_signature
from tracemap.compare.reduction import minimize
from tracemap.ir.parsing import MlirParser


@pytest.mark.parametrize(
    "case", long_where(QUICK, lambda _, case: case.shows in ("slow", "nan")), ids=lambda case: case.shows
)
def test_what_is_left_shows_the_problem(case: Case, tmp_path: Path) -> None:
    judged = judge(case, tmp_path)
    assert judged.faults == ()


@pytest.mark.long
def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    """The verdicts of the first search are used, and the result is that of a search without a kill."""
    (tmp_path / "model.mlir").write_text(SOFTMAX)
    words = ("reduce", "model.mlir", "--shows", "crash")
    with subprocess.Popen(command_line(*words, "-o", "killed.mlir"), cwd=tmp_path, stderr=subprocess.DEVNULL) as child:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("killed.reduce/*"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed.mlir").exists()
    verdicts = {path: path.stat().st_mtime_ns for path in tmp_path.glob("killed.reduce/*")}
    assert len(verdicts) >= 2
    damaged, _ = verdicts.popitem()
    damaged.write_text("ye")  # half of a "yes"
    printed = check_cli(*words, "-o", "killed.mlir", cwd=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in verdicts} == verdicts
    assert check_cli(*words, "-o", "whole.mlir", cwd=tmp_path) == printed.replace("killed", "whole")
    whole, killed = ((tmp_path / f"{name}.mlir").read_text() for name in ("whole", "killed"))
    assert whole == killed.replace("killed", "whole")
    assert "@secret_forward" in whole  # without --anonymous
    assert list(name_faults(SOFTMAX, whole))


def test_smallest_sets() -> None:
    """Every set of at most two needed numbers of twelve is found, and no number of it is superfluous."""
    for pair in combinations_with_replacement(range(12), 2):
        assert minimize(range(12), frozenset(pair).issubset) == set(pair)
    assert minimize(range(12), lambda own: len(own) >= 5, frozenset({3})) >= {3}
    assert len(minimize(range(12), lambda own: len(own) >= 5, frozenset({3}))) == 5


def test_failures_of_the_compiler_are_equal_whatever_the_names() -> None:
    one = "a.mlir:3:10: error: 'linalg.fill' op has 3 results of @main\n  %0 = linalg.fill"
    other = "other.mlir:7:2: error: 'linalg.fill' op has 12 results of @f\n"
    assert failure_signature(1, one) == failure_signature(1, other)
    stack = "Stack dump:\n #0 0x00007f1 llvm::sys::PrintStackTrace(int) S.cpp:0:0\n #1 0x0000a mlir::f(int) F.cpp:9:1\n"
    assert failure_signature(-8, stack) == "SIGFPE in mlir::f(int)"
    assert failure_signature(-8, stack) != failure_signature(-11, stack)


def test_what_cannot_be_reduced(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "hand_mlp.mlir"
    bundle = tmp_path / "model.tracemap"
    check_cli("build", model, "-o", bundle)
    (tmp_path / "out-0.npy").touch()
    assert "out-0.npy: " in run_cli("reduce", bundle, "--op", "op6", "-o", tmp_path / "out.mlir").stderr
    (tmp_path / "out-0.npy").unlink()
    overwritten = run_cli("reduce", model, "--force", "-o", model)
    assert "the same command reads this file" in overwritten.stderr
    for words, message in (
        ((model, "--function", "missing", "--", "--iree-hal-target-device=x"), "has no function missing"),
        ((tmp_path / "missing.tracemap", "--shows", "nan", "--op", "op1"), "there is no such bundle"),
        ((bundle, "--op", "func.return"), "names no op that computes a value"),
        ((model, "--", "--iree-opt-level=O9"), "iree-compile rejects --iree-opt-level=O9"),
        ((model,), "the compiler does not fail on it"),
        ((model, "--shows", "nan", "--op", "op3"), "is no bundle"),
        ((bundle,), "name the op with the problem"),
        ((bundle, "--shows", "crash"), "needs the model and the flags that fail"),
        ((bundle, "--op", "op6", "--", "--iree-opt-level=O3"), "has its own compiler flags"),
        ((bundle, "--op", "op6", "--shows", "nan"), "has no NaN"),
        ((bundle, "--op", "op6", "--shows", "lost"), "still located after the last phase"),
        ((bundle, "--op", "missing"), "missing"),
    ):
        done = run_cli("reduce", "-o", tmp_path / "out.mlir", *words)
        assert done.returncode == 2, words
        assert message in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "out.mlir").exists()


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    empty = "(%p: tensor<4x0xf32>, %q: tensor<0x8xf32>) -> tensor<4x8xf32>"
    dot = "stablehlo.dot %p, %q : (tensor<4x0xf32>, tensor<0x8xf32>) -> tensor<4x8xf32>"
    model = f"func.func @main{empty} {{\n  %r = {dot}\n  return %r : tensor<4x8xf32>\n}}\n"
    (tmp_path / "model.mlir").write_text(model)
    printed = check_cli("reduce", "model.mlir", "-o", "./-a\nb.mlir", cwd=tmp_path)
    assert " './-a" in printed.splitlines()[-1]
    MlirParser().parse((tmp_path / "-a\nb.mlir").read_text())
