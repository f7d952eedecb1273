"""`tracemap build` left early: with Ctrl-C no compiler goes on, and nothing half made stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import SAMPLES, interruptible, run_cli
from tests.test_cli_record import DEADLINE_S, waited_for
from tracemap.mapping.compiler.compiling import Compiler

MODEL = SAMPLES / "models" / "jax_gpt2_small_12l.mlir"


def compilers(mark: str) -> list[str]:
    """The command lines of the running compilers that name a text."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # no process, or one that has ended
            continue
        if Path(words[0]).name == "iree-compile" and mark in " ".join(words):
            found.append(" ".join(words))
    return found


@pytest.mark.parametrize("moment", ["--compile-to=", "--compile-from="])
def test_ctrl_c_ends_the_compiler_and_leaves_nothing(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While kernels are configured, and while code is generated from them, which another thread has begun."""
    temporary, target = tmp_path / "temporary", tmp_path / "target"
    temporary.mkdir()
    target.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = interruptible("build", MODEL, "-o", target / "m.tracemap")
    for _ in range(5):  # it may be done before the moment is seen
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            waited_for(lambda: process.poll() is not None or any(moment in words for words in compilers(str(tmp_path))))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            break
        shutil.rmtree(target / "m.tracemap")
    assert process.returncode != 0
    assert compilers(str(tmp_path)) == []
    assert list(temporary.iterdir()) == []
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("flag", ["--iree-codegen-tuning-spec-path=spec.mlir", "--iree-opt-level=O1"])
def test_tuning_specs_are_read_by_one_thread(flag: str) -> None:
    """Several that read the same spec may wait for one another for ever (IREE 3.13)."""
    one = "--mlir-disable-threading"
    compiler = Compiler(Path("iree-compile"), (flag,))
    assert (one in compiler.with_printing()) == (one in compiler.flags_to_run) == ("spec" in flag)
    assert Compiler(Path("iree-compile"), (flag, one)).flags_to_run.count(one) == 1
    assert compiler.flags == (flag,)


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_pipe_that_nobody_writes_to_is_refused_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    done = run_cli("build", name, "-o", "m.tracemap", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("is a pipe that nobody has written to for 5 seconds [model-unreadable]\n")
