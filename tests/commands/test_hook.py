"""`tracemap hook` prints commands that work in a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.hook import support
from tests.hook.test_host import host, kernels
from tests.support import ROOT, check_cli, run_cli
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.runs.hook.recording import read_recording

__all__ = ["host", "kernels"]

TRACEMAP = f"{sys.executable} -m tracemap"


@pytest.fixture(autouse=True)
def library() -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")


def shell(script: str, cwd: Path) -> str:
    done = subprocess.run(["sh", "-ec", script], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_path_is_a_library_of_this_format() -> None:
    path = Path(check_cli("hook", "path").strip())
    assert path.read_bytes().startswith(b"\x7fELF")


def test_words_for_env(host: Path, kernels: Path, tmp_path: Path) -> None:
    shell(f"mkdir calls; env $({TRACEMAP} hook env -o calls --calls 10) {host} {kernels} threads 1 100", tmp_path)
    assert read_recording(tmp_path / "calls").call_count == 10


def test_lines_for_a_shell(host: Path, kernels: Path, tmp_path: Path) -> None:
    options = "--filter 'touch*' --every 2 --counters page-faults,minor-faults --export"
    script = f'mkdir "a b"; eval "$({TRACEMAP} hook env -o "a b" {options})"; {host} {kernels} threads 1 100 2'
    shell(script, tmp_path)
    recording = read_recording(tmp_path / "a b")
    assert support.calls_of(recording) == {"touch_pages": 50}
    assert recording.event_names == ("page-faults", "minor-faults")


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (("-o", "missing"), "target-unwritable"),
        (("-o", ".", "--filter", "a*"), "usage-invalid"),
        (("-o", ".", "--counters", "nothing"), "event-unavailable"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[str, ...], slug: str, tmp_path: Path) -> None:
    done = run_cli("hook", "env", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith(f"[{slug}]\n")


@pytest.mark.long
def test_the_package_builds_the_library(tmp_path: Path) -> None:
    """As an installation does, from a copy of what it needs."""
    support.need_compiler()
    build = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext", "--build-lib", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tracemap" / "hook" / LIBRARY_NAME).is_file()


def test_without_a_compiler_the_rest_is_installed(tmp_path: Path) -> None:
    build = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext", "--build-lib", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    assert "no C compiler" in done.stdout + done.stderr
    assert not (tmp_path / "tracemap" / "hook" / LIBRARY_NAME).exists()


def test_variables_of_irees_hook_stand_for_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IREE_HOOK_FILTER_NAME", "main_dispatch_0")
    monkeypatch.setenv("IREE_HOOK_SKIP_START_MS", "7")
    monkeypatch.setenv("IREE_HOOK_PERF_EVENT_TYPES", "no-such-event")
    done = run_cli("hook", "env", "-o", tmp_path)
    assert done.returncode == 2
    assert "no-such-event is not the name of an event" in done.stderr
    printed = check_cli("hook", "env", "-o", tmp_path, "--counters", "")
    assert "TRACEMAP_HOOK_FILTER=main_dispatch_0" in printed.splitlines()
    assert "TRACEMAP_HOOK_SKIP_MS=7" in printed.splitlines()


def test_variables_of_before_do_not_stay(tmp_path: Path) -> None:
    """What is not asked for is set to nothing: a shell may have exported more."""
    exports = check_cli("hook", "env", "-o", tmp_path, "--export")
    plain = check_cli("hook", "env", "-o", tmp_path)
    named = [line.removeprefix("export ").partition("=")[0] for line in exports.splitlines()]
    assert [line.partition("=")[0] for line in plain.splitlines()] == named
    assert "TRACEMAP_HOOK_FILTER=" in plain.splitlines()


def test_debug_information_alone_and_with_records(built: Built, tmp_path: Path) -> None:
    symbols, calls, dumps = (tmp_path / name for name in ("symbols", "calls", "dumps"))
    check_cli("debug-info", built("hand_mlp"), "-o", symbols)
    calls.mkdir()
    dumps.mkdir()
    alone = dict(line.split("=", 1) for line in check_cli("hook", "env", "--debug-info", symbols).splitlines())
    assert alone.keys() == {"LD_PRELOAD", "TRACEMAP_HOOK_DEBUG_INFO"}
    assert alone["TRACEMAP_HOOK_DEBUG_INFO"] == str(symbols.resolve())
    words = ("--debug-info", symbols, "--debug-info", symbols, "--jitdump", dumps, "-o", calls)
    both = dict(line.split("=", 1) for line in check_cli("hook", "env", *words).splitlines())
    assert both["TRACEMAP_HOOK_DEBUG_INFO"] == f"{symbols.resolve()}:{symbols.resolve()}"
    assert (both["TRACEMAP_HOOK_JITDUMP"], both["TRACEMAP_HOOK_OUTPUT"]) == (str(dumps), str(calls))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "-o is missing"),
        (("--device", "cuda"), "-o is missing"),
        (("--debug-info", "."), "has no debug information"),
        (("-o", ".", "--jitdump", "."), "--jitdump needs --debug-info"),
        (("-o", ".", "--jitdump", "missing"), "does not exist"),
        (("-o", ".", "--device", "cuda", "--debug-info", "."), "works on the CPU only"),
    ],
)
def test_impossible_debug_information_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    refused = run_cli("hook", "env", *arguments, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
