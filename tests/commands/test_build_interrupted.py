"""`tracemap build` interrupted: the compiler ends and nothing half written stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import tracemap
from tests.commands.test_errors import refused
from tests.commands.test_record import DEADLINE_S, waited_for
from tests.support import SAMPLES, interruptible, run_cli
from tracemap.core.errors import UsageInvalid
from tracemap.map.build.compiler.compilation import Compiler, check_flags
from tracemap.map.bundle import load

MODEL = SAMPLES / "models" / "jax_gpt2_small_12l.mlir"


def processes(mark: str) -> list[str]:
    """The command lines of the running processes that name a text; a compiler in a forked one has tracemap's."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # no process, or one that has ended
            continue
        if mark in " ".join(words):
            found.append(" ".join(words))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("last", ["global-optimization", "executable-configurations"])
def test_ctrl_c_ends_the_compiler_and_leaves_nothing(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While kernels are configured, and while code is generated from them: `last` is the phase before."""
    temporary, target = tmp_path / "temporary", tmp_path / "target"
    temporary.mkdir()
    target.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = interruptible("build", MODEL, "-o", target / "m.tracemap")
    for _ in range(5):  # it may be done before the moment is seen
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            waited_for(lambda: process.poll() is not None or any(temporary.rglob(f"*.{last}.mlir")))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            break
        shutil.rmtree(target / "m.tracemap")
    assert process.returncode != 0
    assert processes(str(tmp_path)) == []
    assert list(temporary.iterdir()) == []
    assert list(target.iterdir()) == []


@pytest.mark.long
def test_where_the_library_crashes_the_program_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(interruptible("build", MODEL, "-o", tmp_path / "m.tracemap")) as process:
        waited_for(lambda: any(tmp_path.rglob("phases/*.input.mlir")))
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        os.kill(int(child), signal.SIGSEGV)
        assert process.wait(DEADLINE_S) == 0
    assert load(tmp_path / "m.tracemap").graph.sites


@pytest.mark.parametrize("flag", ["--iree-codegen-tuning-spec-path=spec.mlir", "--iree-opt-level=O1"])
def test_tuning_specs_are_read_by_one_thread(flag: str) -> None:
    """Several that read the same spec may wait for one another for ever (IREE 3.13)."""
    one = "--mlir-disable-threading"
    compiler = Compiler(Path("iree-compile"), (flag,))
    assert (one in compiler.with_printing()) == (one in compiler.flags_to_run) == ("spec" in flag)
    assert Compiler(Path("iree-compile"), (flag, one)).flags_to_run.count(one) == 1
    assert compiler.flags == (flag,)


@pytest.mark.long
@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_pipe_that_nobody_writes_to_is_refused_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    done = run_cli("build", name, "-o", "m.tracemap", cwd=tmp_path)
    assert done.returncode == 2
    said = "a pipe that no program has opened for writing within 5 seconds; start its writer first [model-unreadable]\n"
    assert done.stderr.endswith(said)


# --- flags of the user's


NEEDS_VALUE = "--iree-llvmcpu-target-cpu-features"


def test_a_flag_that_lacks_its_value_is_named_and_takes_no_flag_of_ours(tmp_path: Path) -> None:
    words = ("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", "m.tracemap", "--", NEEDS_VALUE)
    said = refused("usage-invalid", *words, cwd=tmp_path)
    assert f"for the {NEEDS_VALUE} option: requires a value!" in said


def test_a_flag_that_lacks_its_value_is_named_by_the_python_api(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid, match=f"{NEEDS_VALUE} option: requires a value!"):
        tracemap.build(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "m.tracemap", flags=[NEEDS_VALUE])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        "--mlir-print-debuginfo=false",
        "-mlir-print-debuginfo=false",
        "--mlir-pretty-debuginfo",
        "@flags.txt",
        "-iree-hal-dump-executable-sources-to=dumped",
        "--iree-hal-dump-executable-sources-to dumped",
    ],
)
def test_flags_of_what_is_printed_take_no_location_away(flags: str, tmp_path: Path) -> None:
    (tmp_path / "flags.txt").write_text("--mlir-print-debuginfo=false '-mlir-pretty-debuginfo'\n", encoding="utf-8")
    model = SAMPLES / "models" / "hand_mlp.mlir"
    done = run_cli("build", model, "-o", "m.tracemap", "--", *flags.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    graph = load(tmp_path / "m.tracemap").graph
    assert [len(site.members) for site in graph.sites] == [2, 2, 2, 1]
    assert (tmp_path / "dumped").is_dir() is ("dumped" in flags)


def test_no_locations_at_all_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    """What follows a flag without a value may be its value, so it is handed on."""
    flags = ("--iree-opt-const-eval", "--mlir-print-debuginfo=false")
    words = ("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", "m.tracemap", "--", *flags)
    said = refused("usage-invalid", *words, cwd=tmp_path)
    assert "--iree-opt-const-eval may lack its value; write --iree-opt-const-eval=VALUE" in said


@pytest.mark.parametrize("flag", ["-compile-to=flow", "--compile-to=flow", "-o", "@flags.txt"])
def test_flags_that_build_sets_itself_are_refused_in_any_form(flag: str, tmp_path: Path) -> None:
    (tmp_path / "flags.txt").write_text("--iree-opt-level=O2 -compile-to=flow", encoding="utf-8")
    words = ("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", "m.tracemap", "--", flag)
    assert "`tracemap build` sets this flag itself" in refused("usage-invalid", *words, cwd=tmp_path)


def test_a_flag_without_its_value_is_not_accepted() -> None:
    with pytest.raises(UsageInvalid, match=NEEDS_VALUE):
        check_flags([NEEDS_VALUE])


def test_flags_of_the_user_come_last() -> None:
    compiler = Compiler(Path("iree-compile"), (f"--iree-codegen-tuning-spec-path={NEEDS_VALUE}", NEEDS_VALUE))
    for flags in (compiler.with_printing(), compiler.flags_to_run, compiler.for_remarks().flags):
        assert flags[-1] == NEEDS_VALUE
