"""The hook in programs that use descriptors, pipes, signals and folders as they like."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.hook import support
from tests.hook.test_host import HERE, compile_c, host, kernels, library, output  # noqa: F401 - fixtures
from tests.hook.test_samples import ADD_UP
from tracemap.runs.hook.recording import read_recording
from tracemap.runs.hook.samples import read_samples

# ruff: noqa: F811 - fixtures

Done = subprocess.CompletedProcess[str]


def ran(command: list[str | Path], variables: dict[str, str], prepare: Callable[[], None] = lambda: None) -> Done:
    """A program's good end, and what it printed, its child having been prepared before it begins."""
    words = [str(word) for word in command]
    env = {**os.environ, **variables}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, preexec_fn=prepare)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("most_files", [8, 1024])
def test_a_program_without_standard_descriptors_prints_into_no_record(
    closed: tuple[int, ...], most_files: int, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    """What is opened first has the number of what is closed: the program would print into it."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
        for descriptor in closed:
            os.close(descriptor)

    variables = support.hooked(library, output, sample_hz=997, sampler="timer")
    done = ran([host, kernels, "printing", "1", "100"], variables, prepare)
    assert done.stdout == ("" if 1 in closed else "printed\n")
    recording = read_recording(output)
    assert recording.call_count == 100
    assert not recording.diagnostics
    assert len(read_samples(output).threads) == 1


@pytest.mark.parametrize("most_files", [24, 1024])
@pytest.mark.parametrize("sample_hz", [0, 997])
def test_files_of_a_program_that_closes_all_descriptors_are_left_alone(
    most_files: int, sample_hz: int, library: Path, host: Path, kernels: Path, output: Path
) -> None:
    """They have the numbers that the hook's had, which was written to, cut and closed by them."""
    variables = support.hooked(library, output, sample_hz=sample_hz, sampler="timer")
    program: list[str | Path] = [host, kernels, "closing", "2", "40000", "0", output.parent]
    done = ran(program, variables, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files)))
    own = sorted(output.parent.glob("own-*.txt"))
    assert [path.read_text() for path in own] == ["a line of the program\n" * 20_000] * 8
    recording = read_recording(output)
    lost = sum(thread.lost for process in recording.processes for thread in process.threads)
    assert recording.call_count >= 16_384
    assert recording.call_count + lost >= 80_000
    assert "the program has closed" in done.stderr


def test_what_the_hook_says_into_a_broken_pipe_ends_no_program(library: Path, host: Path, kernels: Path) -> None:
    """A signal comes with what is written there, which ends a program that does not expect to print anything."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, **support.hooked(library, Path("/missing"))}
    command = [str(host), str(kernels), "threads", "2", "100"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 0


def test_a_report_into_a_broken_pipe_ends_no_program(library: Path, host: Path, kernels: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "LD_PRELOAD": str(library), "IREE_HOOK_BUCKET_COUNT": "4"}
    command = [str(host), str(kernels), "threads", "2", "100"]
    done = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_profiler_of_the_program_may_begin_and_end_meanwhile(
    library: Path, host: Path, kernels: Path, output: Path
) -> None:
    """It leaves SIGPROF to its default, which ends the process: no timer of the hook sends it."""
    variables = support.hooked(library, output, record_calls=False, sample_hz=997, sampler="timer")
    assert ran([host, kernels, "unprofiled", "1", "100000", ADD_UP], variables).stdout == "0\n"
    assert len(read_samples(output).located) > 20


def test_a_folder_is_that_of_the_beginning_wherever_the_program_goes(
    library: Path, host: Path, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("records", "tables"):
        Path(folder).mkdir()
    program: list[str | Path] = [host, kernels, "elsewhere", "2", "100"]
    assert not ran(program, {"LD_PRELOAD": str(library), "TRACEMAP_HOOK_OUTPUT": "records"}).stderr
    recording = read_recording(Path("records"))
    assert recording.call_count == 200
    assert not recording.diagnostics
    ran(program, {"LD_PRELOAD": str(library), "IREE_HOOK_OUTPUT_CSV": "tables"})
    assert len(list(Path("tables").iterdir())) == 2


@pytest.fixture(scope="module")
def clocks(made: Path) -> Path:
    support.need_compiler()
    return compile_c(made / "clocks", "-O1", HERE / "clocks.c")


@pytest.mark.long
@pytest.mark.parametrize("noting", [False, True])
@pytest.mark.parametrize("mode", ["fork", "handler"])
def test_clocks_are_read_where_no_lock_may_be_waited_for(
    mode: str, noting: bool, clocks: Path, library: Path, tmp_path: Path
) -> None:
    stops = tmp_path / "stops"
    ran([clocks, mode], {"LD_PRELOAD": str(library)} | ({"TRACEMAP_HOOK_STOPS": str(stops)} if noting else {}))
    assert stops.exists() == noting
    if noting:
        moments = np.fromfile(stops, dtype=np.int64)
        moments = moments[: np.count_nonzero(moments)]
        assert len(moments) > 300
        assert (np.diff(moments) >= 0).all()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["handler", "clone", "taken", "moved", "image"])
def test_memory_that_a_program_reserves_for_itself(mode: str, made: Path, library: Path, output: Path) -> None:
    """The handler waited for a lock of its own thread; a page that was gone was read."""
    support.need_compiler()
    program = compile_c(made / "memory", "-O1", HERE / "memory.c")
    command = ["timeout", "60", str(program), mode]
    variables = {**os.environ, **support.hooked(library, output)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


STANDING_BEFORE = """#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  time->tv_sec = clock, time->tv_nsec = 5;
  return 0;
}
"""


def test_a_clock_of_another_library_stays_the_programs(
    library: Path, host: Path, kernels: Path, tmp_path: Path, output: Path
) -> None:
    """One that makes up times stands behind the hook: the program sees its times, and the hook's records do not."""
    (tmp_path / "clock.c").write_text(STANDING_BEFORE, encoding="utf-8")
    other = compile_c(tmp_path / "clock.so", "-shared", "-fPIC", tmp_path / "clock.c")
    variables = support.hooked(library, output) | {"LD_PRELOAD": f"{library} {other}"}
    assert ran([host, kernels, "measure", "1", "100"], variables).stdout == "0.000\n"
    (process,) = read_recording(output).processes
    assert process.start[1] > 10**9
