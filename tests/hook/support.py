"""Runs the stock tools and Python with the hook, in every way that it has in, and reads what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.recording import compiled
from tests.support import PLAIN_FLAGS, SAMPLES, made_once
from tracemap.core.toolchain import find_tool
from tracemap.hook import HookSettings, settings_environment
from tracemap.hook.compiling import FOLDER, HookUnavailable, compile_library, find_compiler, sources
from tracemap.runs.hook.process import ProcessFile, read_processes
from tracemap.runs.hook.recording import HookRecording, read_recording

PROGRAM = Path(__file__).with_name("program.py")
MODEL = SAMPLES / "models" / "hand_mlp.mlir"
FLAGFILE = SAMPLES / "flags" / "hand_mlp.flags"
PROFILING = "--device_profiling_mode=queue-events,host-execution,executable-metadata"

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{FOLDER}")
"""With which the tests' own C is compiled, and the hook into it."""

Kernels = Counter[str]
"""How many calls of workgroups, by kernel."""


def need_compiler() -> None:
    """Skip where the library cannot be built; with the reason."""
    try:
        find_compiler()
    except HookUnavailable as error:
        pytest.skip(str(error))


def system_linker() -> str:
    """The linker that comes with the compiler's wheel, in place of the system's."""
    import iree.compiler._mlir_libs as libraries

    lld = Path(next(iter(libraries.__path__))) / "iree-lld"
    return f"--iree-llvmcpu-system-linker-path={lld} -flavor gnu"


def module(folder: Path, elf: str, model: Path = MODEL) -> Path:
    """The model as a module whose executables are of one kind: `embedded` or `system`."""
    system = ("--iree-llvmcpu-link-embedded=false", system_linker())
    place = folder / elf
    place.mkdir(exist_ok=True)
    return compiled(place, model, *PLAIN_FLAGS, *(system if elf == "system" else ()))


def built_library(folder: Path, name: str = "plain", flags: Sequence[str] = ()) -> Path:
    """The hook's library, compiled from the sources as they are now, once in a session."""
    target = folder / name / "libtracemap_hook.so"
    target.parent.mkdir(exist_ok=True)
    with made_once(target) as missing:
        if missing:
            compile_library(target, flags)
    return target


def sanitized_hook(folder: Path, sanitizer: str) -> list[str]:
    """What a program is linked of to have the hook in it, looked at by sanitizers; made once in a session.

    The hook's own `mmap` and its like are left out, since sanitizers have some of their own, which must stay the first;
    the hook is reached as a plugin is then.
    """
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-O1", "-g"]
    objects = folder / f"hook-{sanitizer}"
    with made_once(objects) as missing:
        if missing:
            _need_sanitizer(flags)
            partly = Path(tempfile.mkdtemp(dir=folder))
            own = [*find_compiler(), *FLAGS, *flags, "-DTRACEMAP_HOOK_WITHOUT_PRELOAD", "-c", *map(str, sources())]
            subprocess.run(own, cwd=partly, check=True)
            partly.rename(objects)
    return [*flags, *map(str, sorted(objects.glob("*.o")))]


def _need_sanitizer(flags: Sequence[str]) -> None:
    command = [*find_compiler(), *flags, "-x", "c", "-", "-o", os.devnull]
    done = subprocess.run(command, input="int main(void) { return 0; }", capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this compiler has no {flags[0]}: {done.stderr.splitlines()[0]}")


def run(command: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        AssertionError: it failed, or said something of the hook; with what it said.
    """
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **(variables or {})},
        cwd=SAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tracemap hook" not in done.stderr, done.stderr
    return done.stdout


def tool_command(tool: str, vmfb: Path, driver: str, *flags: str) -> list[str]:
    """`iree-run-module` or `iree-benchmark-module` on the model."""
    fixed = ["--benchmark_min_time=3x"] if tool == "iree-benchmark-module" else []
    return [str(find_tool(tool)), f"--module={vmfb}", f"--device={driver}", f"--flagfile={FLAGFILE}", *fixed, *flags]


def python_command(vmfb: Path, driver: str, *options: str, loads: int = 1, calls: int = 3) -> list[str]:
    """The Python program on the model."""
    return [sys.executable, str(PROGRAM), str(vmfb), driver, str(loads), str(calls), *options]


def hooked(library: Path, output: Path, **settings: object) -> dict[str, str]:
    """The variables that preload this library."""
    chosen = HookSettings(**settings)  # type: ignore[arg-type] # the test's own keywords are checked by the dataclass
    return {**settings_environment(output, chosen), "LD_PRELOAD": str(library)}


def hooked_by_plugin(output: Path) -> dict[str, str]:
    """The variables of a plugin: nothing is preloaded."""
    return settings_environment(output)


def tiles_of_profile(profile: Path) -> Kernels:
    """Tiles by kernel, as IREE's own profiler counted them."""
    exported = profile.with_suffix(".jsonl")
    run([find_tool("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={exported}", profile])
    tiles: Kernels = Counter()
    for line in exported.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["record_type"] == "host_execution_event" and record["tile_count"]:
            tiles[record["key"]] += record["tile_count"]
    return tiles


def calls_of(recording: HookRecording) -> Kernels:
    """Recorded calls by kernel."""
    found: Kernels = Counter()
    for process in recording.processes:
        for thread in process.threads:
            found.update(process.kernels[int(number)].name for number in thread.calls["kernel"])
    return found


def recorded_calls(output: Path) -> Kernels:
    """Recorded calls by kernel, of a folder."""
    return calls_of(read_recording(output))


def tell_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process's file have its first line alone until a reader of the hook's files has looked at it.

    The process goes on then: nothing tells of its end.
    """
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b'"kind":"end"' not in line]
    path.write_bytes(lines[0])

    def looked_at(folder: Path) -> dict[str, ProcessFile]:
        found = read_processes(folder)
        path.write_bytes(b"".join(lines))
        return found

    monkeypatch.setattr("tracemap.runs.hook.process.read_processes", looked_at)
