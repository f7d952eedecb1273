"""The parser runs in a process of its own: a crash or an endless loop there is an error here."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from iree.compiler import ir

from tests.commands.test_errors import refused
from tests.commands.test_record import alive, waited_for
from tests.map.test_from_dumps import by_hand  # noqa: F401 (a fixture)
from tracemap.core.errors import ModelInvalid
from tracemap.core.process.forked import ForkedWork
from tracemap.ir.parsing import MlirParser, check_parses_in_subprocess


def children() -> set[str]:
    """Those of this process, of which other tests that ran in it may have left some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def refuse() -> None:
    raise ModelInvalid("line 3: \u2018]\u2019 " + "expected " * 20_000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def loop() -> None:
    while True:
        time.sleep(1)


def fail() -> None:
    raise OSError("nobody is to see this")


@pytest.mark.long
@pytest.mark.parametrize(
    ("parse", "most_s", "message"),
    [
        (refuse, 60.0, "line 3: \u2018]\u2019 expected expected"),
        (die, 60.0, r"the parser of IREE's compiler crashes on it \(SIGSEGV\)"),
        (loop, 1.0, "the parser of IREE's compiler does not finish within 1 s"),
        (fail, 60.0, r"the parser of IREE's compiler crashes on it \(status 1\)"),
    ],
)
def test_what_becomes_of_a_parse(
    parse: Callable[[], object], most_s: float, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = children()
    with pytest.raises(ModelInvalid, match=message):
        check_parses_in_subprocess(parse, most_s)
    assert capfd.readouterr() == ("", "")
    assert children() <= before  # none is left, not even unwaited for


def test_a_parse_may_not_go_on_for_longer_than_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()

    def spin() -> None:
        os.write(writing, b"%d" % os.getpid())
        while True:
            pass

    parent = os.fork()
    if parent == 0:
        try:
            os.close(reading)
            monkeypatch.setattr(ForkedWork, "told", lambda *_: time.sleep(600))  # nobody but the child is to end it
            check_parses_in_subprocess(spin, 1.0)
        finally:
            os._exit(0)
    os.close(writing)  # so that of a child that is gone the end of the file is read
    child = int(os.read(reading, 20))
    os.close(reading)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    waited_for(lambda: not alive(child))


def test_signals_are_answered_by_whoever_asks_for_the_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes during the fork is the parent's, and only its own handler is called."""
    seen: list[tuple[int, int]] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append((os.getpid(), number)))
    fork = os.fork

    def forked() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        pid = fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr("os.fork", forked)
    try:
        with pytest.raises(ModelInvalid, match="SIGTERM"):
            check_parses_in_subprocess(lambda: None, 10.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [(os.getpid(), signal.SIGTERM)]


def test_a_process_may_have_many_files_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2000), hard))
    try:
        with ExitStack() as opened:
            for _ in range(1100):
                opened.enter_context(Path(os.devnull).open("rb"))
            check_parses_in_subprocess(lambda: None, 10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_parse_that_ends_well_is_not_seen() -> None:
    check_parses_in_subprocess(lambda: None, 10.0)


def test_what_does_not_parse_is_parsed_elsewhere_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parse that fails may spoil the heap of its process (a `linalg.generic` with a fault behind its region does)."""
    here, parse = os.getpid(), ir.Module.parse

    def parsed(*given: object) -> object:
        assert os.getpid() != here
        return parse(*given)

    monkeypatch.setattr("tracemap.ir.parsing.ir.Module", SimpleNamespace(parse=parsed))
    with pytest.raises(ModelInvalid, match="redefinition of block"):
        MlirParser().parse("func.func @f() { \ncf.br ^bb1\n^bb1:\ncf.br ^bb1\n^bb1:\nreturn }")


def test_no_thread_of_the_parser_can_wait_for_the_lock_of_this_one() -> None:
    """A diagnostic of such a thread takes Python's lock: whoever holds it and waits for the thread waits for ever."""
    functions = "".join(f"func.func @f{number}() {{ return }}" for number in range(50))
    program = f"""
from pathlib import Path
from tracemap.ir.parsing import MlirParser
MlirParser().parse({functions!r})
print(*(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "llvm-worker" not in done.stdout


@pytest.mark.long
def test_a_dump_on_which_the_parser_crashes_is_refused(by_hand: Path, tmp_path: Path) -> None:  # noqa: F811
    """The count region returns twice, once nothing: the verifier compares that with three types."""
    shutil.copytree(by_hand / "hand_mlp", tmp_path / "by_hand")
    dump = tmp_path / "by_hand" / "dumps" / "hand_mlp.5.dispatch-creation.mlir"
    lines = dump.read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if "flow.return %x, %y, %z" in line)
    lines.insert(at + 1, "      flow.return")
    dump.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ("build", "--from-dumps", dump.parent, "--module", tmp_path / "by_hand" / "m.vmfb")
    for _ in range(4):  # what lies behind the types differs from process to process
        error = refused("dumps-invalid", *given, "-o", "b.tracemap", cwd=tmp_path)
        assert "the dump of the phase dispatch-creation does not parse: " in error


CRASHING = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = flow.dispatch.workgroups(%a) : (tensor<4xf32>) -> tensor<4xf32> = (
    %x: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf32>>,
    %y: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4xf32>>
  ) {
    flow.return
  } count() -> (index, index, index) {
    %c1 = arith.constant 1 : index
    flow.return %c1, %c1, %c1 : index, index, index
    flow.return
  }
  return %0 : tensor<4xf32>
}
"""


def test_a_model_on_which_the_parser_crashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(CRASHING, encoding="utf-8")
    for _ in range(4):
        assert "model.mlir" in refused("model-invalid", "build", "model.mlir", cwd=tmp_path)
