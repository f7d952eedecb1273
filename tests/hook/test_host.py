"""The hook in a small host program: threads, forks, loading, settings, sanitizers, full disks."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from tests.hook import support
from tests.support import made_once
from tracemap.core.errors import RunEmpty
from tracemap.hook import settings_environment
from tracemap.hook.compiling import LIBRARIES, find_compiler, sources
from tracemap.runs.hook.calls import load_calls
from tracemap.runs.hook.recording import NO_WORKGROUP, HookRecording, read_recording

HERE = Path(support.__file__).parent
FLAGS = support.FLAGS


def compile_c(target: Path, *arguments: str | Path, libraries: Sequence[str] = LIBRARIES) -> Path:
    with made_once(target) as missing:
        if missing:
            command = [*find_compiler(), *FLAGS, *map(str, arguments), "-o", str(target), *libraries]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def library(made: Path) -> Path:
    support.need_compiler()
    return support.built_library(made)


@pytest.fixture(scope="session")
def kernels(made: Path) -> Path:
    support.need_compiler()
    return compile_c(made / "kernels.so", "-O2", "-shared", "-fPIC", HERE / "kernels.c")


@pytest.fixture(scope="session")
def host(made: Path) -> Path:
    support.need_compiler()
    return compile_c(made / "host", "-O2", HERE / "host.c")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "hook"
    folder.mkdir()
    return folder


def calls_by_kernel(recording: HookRecording) -> Counter[str]:
    return support.calls_of(recording)


def test_each_thread_has_a_file_of_its_own(library: Path, host: Path, kernels: Path, output: Path) -> None:
    support.run([host, kernels, "threads", "8", "500"], support.hooked(library, output))
    (process,) = read_recording(output).processes
    assert [len(thread.calls) for thread in process.threads] == [500] * 8
    assert len({thread.tid for thread in process.threads}) == 8
    for thread in process.threads:
        assert thread.header["closed"]
        assert thread.calls["workgroup_x"].tolist() == list(range(500))
        assert thread.overhead_ticks > thread.header["empty_ticks"] > 0


def test_both_sides_of_a_fork_are_recorded(library: Path, host: Path, kernels: Path, output: Path) -> None:
    support.run([host, kernels, "fork", "2", "100"], support.hooked(library, output))
    parent, child = read_recording(output).processes
    assert [len(thread.calls) for thread in parent.threads] == [200]
    assert sorted(len(thread.calls) for thread in child.threads) == [100, 100, 200]


def test_a_runtime_with_irees_hook_is_recorded_once(library: Path, host: Path, kernels: Path, output: Path) -> None:
    support.run([host, kernels, "runtime", "1", "50"], support.hooked(library, output))
    recording = read_recording(output)
    assert calls_by_kernel(recording) == {"empty": 50, "linked_in": 50}
    ((thread,),) = (process.threads for process in recording.processes)
    assert int((thread.calls["flags"] & NO_WORKGROUP != 0).sum()) == 50
    with duckdb.connect() as connection:
        calls = load_calls(recording, connection)
        told = calls.aggregate("kernel, count(workgroup_x), count(workgroups_z)", "kernel").order("kernel").fetchall()
    assert told == [("empty", 50, 50), ("linked_in", 0, 0)]


def test_other_symbols_are_looked_up_as_before(library: Path, host: Path, kernels: Path, output: Path) -> None:
    assert support.run([host, kernels, "next"], support.hooked(library, output)) == support.run([host, kernels, "next"])


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({"filter": "emp*"}, 1000),
        ({"filter": "[!e]*"}, 0),
        ({"filter": "*p[a-z]y"}, 1000),
        ({"filter": "empt"}, 0),
        ({"every": 7}, 143),
        ({"calls": 10}, 10),
        ({"skip_ms": 10_000}, 0),
    ],
    ids=str,
)
def test_settings_choose_calls(
    settings: dict[str, object], recorded: int, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    support.run([host, kernels, "threads", "1", "1000"], support.hooked(library, output, **settings))
    if recorded:
        assert read_recording(output).call_count == recorded
    else:
        with pytest.raises(RunEmpty):
            read_recording(output)


def test_the_start_is_skipped(library: Path, host: Path, kernels: Path, output: Path) -> None:
    """The host calls, waits 400 ms, and calls again."""
    support.run([host, kernels, "skip", "1", "100"], support.hooked(library, output, skip_ms=350))
    recording = read_recording(output)
    assert recording.call_count == 100
    assert recording.processes[0].threads[0].header["passed_over"] == 100


def test_a_full_file_is_said_and_counted(library: Path, host: Path, kernels: Path, output: Path) -> None:
    variables = {**os.environ, **support.hooked(library, output, thread_bytes=3 << 20)}
    command = [str(host), str(kernels), "threads", "1", "200000"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr.count("file is full") == 1
    recording = read_recording(output)
    (thread,) = recording.processes[0].threads
    assert len(thread.calls) + thread.lost == 200_000
    assert 2 << 20 < len(thread.calls) * thread.calls.dtype.itemsize <= 3 << 20
    assert "calls-lost" in [item.slug for item in recording.diagnostics]


def test_where_no_file_can_grow_the_program_runs_on(library: Path, host: Path, kernels: Path, output: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [str(host), str(kernels), "threads", "2", "100"]
    for folder in (output, output / "missing"):
        variables = {**os.environ, **settings_environment(folder), "LD_PRELOAD": str(library)}
        done = subprocess.run(
            ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh", *command],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limit,
        )
        assert done.returncode == 0
        assert "tracemap hook: " in done.stderr


STORM = (40, 50)
"""Threads, and calls of each at a time."""


@pytest.fixture(scope="session")
def embedded(made: Path) -> Path:
    """An executable that the host loads itself, as IREE's own loader does."""
    support.need_compiler()
    if platform.machine() != "x86_64":
        pytest.skip("the host relocates images for x86-64 only")
    linked = ("-nostdlib", "-Wl,--hash-style=sysv,-z,norelro,-e,iree_hal_executable_library_query")
    shared = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
    return compile_c(made / "embedded.so", *shared, *linked, HERE / "embedded.c", libraries=())


def stormed(host: Path, kernels: Path, embedded: Path, variables: dict[str, str], output: Path) -> None:
    """Forty threads load, call, unload and fork; nothing may be lost of that."""
    threads, calls = STORM
    support.run([host, kernels, "storm", str(threads), str(calls), "0", embedded], variables)
    recording = read_recording(output)
    assert not recording.diagnostics
    assert len(recording.processes) == 1 + threads
    assert calls_by_kernel(recording) == {"empty": threads * calls * (4 * 2 + 1), "embedded": threads * calls * 4}


def test_a_storm_is_recorded_whole(library: Path, host: Path, kernels: Path, embedded: Path, output: Path) -> None:
    stormed(host, kernels, embedded, support.hooked(library, output), output)


# ---- under sanitizers


@pytest.fixture(params=["address,undefined", "thread"])
def sanitized_host(request: pytest.FixtureRequest, made: Path) -> Path:
    """The host with the hook in it, both looked at while they run; skips where this compiler cannot."""
    support.need_compiler()
    sanitizer: str = request.param
    return compile_c(made / f"host-{sanitizer}", HERE / "host.c", *support.sanitized_hook(made, sanitizer))


@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["threads", "churn", "fork", "runtime"])
def test_sanitizers_find_nothing(mode: str, sanitized_host: Path, kernels: Path, output: Path) -> None:
    support.run([sanitized_host, kernels, mode, "4", "200"], settings_environment(output))
    assert read_recording(output).call_count >= 200


@pytest.mark.long
def test_sanitizers_find_nothing_in_a_storm(sanitized_host: Path, kernels: Path, embedded: Path, output: Path) -> None:
    # Leaks are looked for above: a child of many threads cannot stop those that it has not got.
    variables = {**settings_environment(output), "ASAN_OPTIONS": "detect_leaks=0"}
    stormed(sanitized_host, kernels, embedded, variables, output)


def test_sanitizers_find_nothing_in_what_a_storm_reports(
    sanitized_host: Path, kernels: Path, embedded: Path, output: Path
) -> None:
    """As IREE's own hook: the statistics of each thread, and its calls as CSV."""
    threads, calls = STORM
    command = [str(word) for word in (sanitized_host, kernels, "churn", threads, calls, 0, embedded)]
    variables = {**os.environ, "IREE_HOOK_OUTPUT_CSV": str(output)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"  {20 * calls} matching calls") == threads
    assert len(list(output.glob("iree_hook_*.csv"))) == threads


# ---- the other processor


def emulated_host(made: Path) -> list[str | Path]:
    """The host with the hook, built for AArch64, under an emulator; skips where there is none."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if platform.machine() == "aarch64" or not compiler or not emulator:
        pytest.skip("needs aarch64-linux-gnu-gcc and qemu-aarch64 (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    folder = made / "aarch64"
    folder.mkdir(exist_ok=True)
    shared = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    with made_once(folder / "host") as missing:
        if missing:
            for target, words in (
                ("libtracemap_hook.so", [*shared, *map(str, sources())]),
                ("kernels.so", [*shared, str(HERE / "kernels.c")]),
                ("host", ["-O2", str(HERE / "host.c")]),
            ):
                command = [compiler, *FLAGS, *words, "-o", str(folder / target), *LIBRARIES]
                subprocess.run(command, check=True, capture_output=True)
    preload = f"LD_PRELOAD={folder / 'libtracemap_hook.so'}"
    return [emulator, "-L", "/usr/aarch64-linux-gnu", "-E", preload, folder / "host", folder / "kernels.so"]


def test_the_other_processor(made: Path, output: Path) -> None:
    """AArch64 under emulation, where a cross compiler and the emulator are installed."""
    support.run([*emulated_host(made), "fork", "2", "100"], settings_environment(output))
    assert [process.pid > 0 for process in read_recording(output).processes] == [True, True]
    assert read_recording(output).call_count == 600
