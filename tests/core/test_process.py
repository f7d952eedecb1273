"""Child processes and temporary files end with their process, or with the next start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.commands.test_record import alive, waited_for
from tests.support import SAMPLES, check_cli, command_line
from tracemap.core.errors import TargetUnwritable
from tracemap.core.process import temporary_files as home
from tracemap.core.process.children import end, start
from tracemap.core.process.temporary_files import clear_abandoned, moved_away, temporary_folder, temporary_sibling
from tracemap.core.toolchain import run_tool
from tracemap.ir.model_reader import parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.compiler.compilation import Compilation, Compiler
from tracemap.map.build.compiler.flags import compile_flags
from tracemap.map.build.compiler.library import TaggedModel
from tracemap.map.build.tagging import Tags, unused_prefix, write_tagged

LEAVES = """
import os, signal, sys
from pathlib import Path
from tracemap.core.process.children import start
from tracemap.core.process.temporary_files import moved_away, temporary_folder, temporary_sibling
target = Path(sys.argv[1])
with (
    temporary_folder() as own,
    temporary_folder(target.parent) as other,
    temporary_sibling(target) as file,
    moved_away(target),
):
    for path in (own / "file", other / "file", file):
        path.write_text("something")
    child = start(["sleep", "600"])
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier tests of this process may have left a temporary folder that stays until its end."""
    monkeypatch.setattr(home._Current, "home", None)
    monkeypatch.setattr(home._Current, "cleared", set())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for temporary things, in this process too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def test_what_a_killed_process_left_is_cleared_by_the_next(temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "target"
    target.mkdir(parents=True)
    (target / "old").touch()
    done = subprocess.run([sys.executable, "-c", LEAVES, str(target)], stdout=subprocess.PIPE, text=True, check=False)
    child = int(done.stdout)
    assert alive(child)
    assert len(list(temporary.iterdir())) == 1
    assert len(list(target.parent.iterdir())) == 3
    assert not target.exists()
    check_cli("events", "page-faults")  # nothing temporary is made: nothing is looked at
    assert alive(child)
    with temporary_folder() as folder:
        assert not alive(child)
        assert list(temporary.iterdir()) == [folder.parent]
    assert list(temporary.iterdir()) == []
    assert list(target.parent.iterdir()) == [target]
    assert (target / "old").exists()


def test_what_lives_or_is_of_somebody_else_is_kept(temporary: Path, tmp_path: Path) -> None:
    own = [temporary / name for name in ("tracemap-home-mine", f"tracemap-home-{'0' * 16}", "tracemap-0")]
    for folder in own:
        (folder / "work").mkdir(parents=True)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "ledger").write_text(f'["path", "{tmp_path}/kept/file"]\n', encoding="utf-8")
    (kept / "file").touch()
    (temporary / f"tracemap-home-{'1' * 16}").symlink_to(kept)
    with temporary_folder() as folder:
        clear_abandoned(temporary)
        assert folder.exists()
    assert all((folder / "work").exists() for folder in own)
    assert (kept / "file").exists()


@pytest.mark.parametrize("line", ["", "{}", '["path"]', '["child", "1"]', '["child", "x", "1", "1", "group"]', "[[]]"])
def test_a_ledger_that_makes_no_sense_does_no_harm(line: str, temporary: Path) -> None:
    left = temporary / f"tracemap-home-{'0' * 16}"
    left.mkdir()
    (left / "ledger").write_text(line, encoding="utf-8")
    clear_abandoned(temporary)
    assert not left.exists()


def test_where_no_folder_can_be_made_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results and programs do without."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(TargetUnwritable, match="TMPDIR"), temporary_folder():
        pass
    with temporary_sibling(tmp_path / "target") as path:
        path.touch()
    assert list(tmp_path.iterdir()) == []
    assert run_tool(["true"]).returncode == 0


def test_a_forked_process_leaves_its_parents_things_alone(temporary: Path) -> None:
    with temporary_folder() as folder:
        child = os.fork()
        if not child:
            with temporary_folder() as other:
                os._exit(folder.parent == other.parent)
        assert os.waitpid(child, 0)[1] == 0
        assert folder.exists()
        clear_abandoned(temporary)
        assert list(temporary.iterdir()) == [folder.parent]


def replace_and_fail(target: Path) -> None:
    with moved_away(target):
        assert not target.exists()
        raise ValueError("no")


def test_what_was_not_replaced_is_put_back(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ValueError, match="no"):
        replace_and_fail(target)
    assert target.is_dir()
    with moved_away(target):
        target.touch()
    assert target.is_file()
    assert list(tmp_path.iterdir()) == [target]


def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    child = start(["sh", "-c", f"sleep 600 & echo $! > {started}; wait"])
    waited_for(lambda: started.exists() and started.read_text().endswith("\n"))
    end(child)
    waited_for(lambda: not alive(int(started.read_text())))
    assert home._Current.home is None


# ---- commands that a signal ends


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_dies_of_the_signal_when_it_has_cleared_all(number: signal.Signals, temporary: Path) -> None:
    model, target = SAMPLES / "models" / "jax_gpt2_small_12l.mlir", temporary / "m.tracemap"
    command = command_line("build", model, "-o", target)
    for _ in range(5):  # it may be done before the moment is seen
        status, err = signalled(command, number, temporary)
        if status:
            break
        shutil.rmtree(target)
    assert status == -number
    assert err == f"tracemap: {'interrupted' if number == signal.SIGINT else f'ended by {number.name}'}\n"
    assert list(temporary.iterdir()) == []


def signalled(command: list[str], number: signal.Signals, temporary: Path) -> tuple[int, str]:
    """Send a command a signal while it compiles; how it ended, and what it said."""
    process = subprocess.Popen(with_signals(command), stderr=subprocess.PIPE, text=True)
    phases = "tracemap-home-*/tracemap-*/phases*/*"
    waited_for(lambda: process.poll() is not None or len(list(temporary.glob(phases))) > 1)
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, err


def with_signals(command: list[str], ignored: str = "") -> list[str]:
    """A command as a user starts it, but for a signal that is to be ignored."""
    code = "import os, signal, sys\n"
    for name in ("SIGINT", "SIGHUP"):
        code += f"signal.signal(signal.{name}, signal.{'SIG_IGN' if name == ignored else 'SIG_DFL'})\n"
    code += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [command[0], "-c", code, *command[1:]]


def test_a_command_that_waits_for_another_dies_with_it(temporary: Path) -> None:
    """Whoever is interrupted while he waits holds the lock of what he waits for."""
    script = temporary.with_name("iree-compile")
    script.write_text(f"#!/bin/sh\necho $$ > {temporary}/pid\nexec sleep 600\n", encoding="utf-8")
    script.chmod(0o755)
    process = subprocess.Popen(with_signals(command_line("build", "--", script, "--version")), stderr=subprocess.PIPE)
    pid = temporary / "pid"
    waited_for(lambda: pid.exists() and pid.read_text().endswith("\n"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert not alive(int(pid.read_text()))
    assert list(temporary.iterdir()) == [pid]


CLOSED = """
import os
from tracemap.core.process import children, temporary_files
from tracemap.core.process.signals import EndedBySignal
children.clear_all()
for begin in (lambda: children.start(["sleep", "600"]), temporary_files.enter):
    try:
        begin()
    except (EndedBySignal, OSError):
        continue
    os._exit(1)
"""


def test_a_process_that_ends_begins_nothing(temporary: Path) -> None:
    """As another thread might while all is cleared."""
    subprocess.run([sys.executable, "-c", CLOSED], check=True)
    assert list(temporary.iterdir()) == []


LOCKED = """
from tracemap.core.process import children
child = children.start(["sleep", "600"])
child._waitpid_lock.acquire()
assert not children.ended_within(child, 0.1)
children.clear_all()
assert children.ended_within(child, 0.1)
"""


def test_all_is_cleared_while_somebody_holds_the_lock_of_a_program(temporary: Path) -> None:
    """As one does who was cut short while he asked for its end."""
    subprocess.run([sys.executable, "-c", LOCKED], check=True, timeout=20)
    assert list(temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("ignored", ["SIGINT", "SIGHUP"])
def test_signals_that_were_ignored_stay_so(ignored: str, temporary: Path, tmp_path: Path) -> None:
    """In the background of a shell, and under nohup."""
    pid, go_on = tmp_path / "pid", tmp_path / "go"
    script = tmp_path / "iree-compile"
    waits = f"#!/bin/sh\necho $$ > {pid}\nwhile [ ! -e {go_on} ]; do sleep 0.1; done\n"
    script.write_text(waits, encoding="utf-8")
    script.chmod(0o755)
    command = with_signals(command_line("build", "--", script, "--version"), ignored)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    waited_for(lambda: pid.exists() and pid.read_text().endswith("\n"))
    process.send_signal(signal.Signals[ignored])
    time.sleep(0.2)
    assert process.poll() is None
    assert alive(int(pid.read_text()))
    go_on.touch()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert list(temporary.iterdir()) == []


@pytest.mark.long
def test_programs_that_are_started_tell_how_they_end_whatever_a_parent_has_ignored(tmp_path: Path) -> None:
    """Where SIGCHLD is ignored, as some daemons leave it, the system forgets how children end."""
    model = SAMPLES / "models" / "hand_mlp.mlir"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    for words in (("build", model, "-o", "m.tracemap"), ("record", "m.tracemap", "--iterations", "3", "-o", "r.csv")):
        command = [sys.executable, "-c", ignoring, *command_line(*words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_leaving_a_compilation_ends_its_second_half(tmp_path: Path) -> None:
    model = (SAMPLES / "models" / "jax_gpt2_small_12l.mlir").read_bytes()
    parsed = parse_model(MlirParser(), model)
    tagged = TaggedModel(model, "model.mlir", unused_prefix(model))
    compiler = Compiler.installed(compile_flags("local", ()))
    for number in range(5):  # it may be done before it is seen to have begun
        folder = tmp_path / str(number)
        folder.mkdir()
        with Compilation(compiler, tagged, folder) as compilation:
            assert compilation.has_parsed()
            compilation.go_on(partial(write_tagged, parsed.module, Tags(tagged.prefix), tagged.name, folder))
            waited_for(compilation.configured.exists)
        status = compilation._first_run.status
        if status:
            break
    assert status == -signal.SIGKILL
