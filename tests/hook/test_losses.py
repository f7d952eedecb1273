"""Where the hook cannot write, the program goes on and the recording counts the losses."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.hook import support
from tests.hook.test_host import HERE, compile_c, host, kernels, library, output  # noqa: F401 - fixtures
from tests.support import SAMPLES, command_line, run_cli
from tracemap.core.errors import RunEmpty, RunInvalid
from tracemap.runs.hook.recording import HookRecording, read_recording
from tracemap.runs.hook.samples import read_samples

KIB = 1 << 10


def limited(kind: int, limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (limit, limit))


def called(
    library: Path,  # noqa: F811
    program: list[str | Path],
    output: Path,  # noqa: F811
    limit: Callable[[], None] = lambda: None,
    **settings: object,
) -> str:
    """Run the host under the hook to its good end; returns what the hook said."""
    done = subprocess.run(
        [str(word) for word in program],
        env={**os.environ, **support.hooked(library, output, **settings)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def told(recording: HookRecording) -> dict[str, str]:
    return {item.slug: item.message for item in recording.diagnostics}


NOTHING = {
    1: "or it could not create a file",
    600: "recorded no call",
    4 * KIB: "1 kernel left out; the first is kernels",
    4800: "1 kernel left out; the first is touch_pages",
    70 * KIB: "the calls of 2 threads are missing: there is no room for them: File too large",
}
"""What is told under a limit that leaves room for no call."""


@pytest.mark.parametrize("limit", [*NOTHING, 1100 * KIB, 1300 * KIB])
@pytest.mark.parametrize("sample_hz", [0, 997])
def test_a_limit_on_files_does_not_end_the_program(
    limit: int, sample_hz: int, library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    """It would by a signal, which comes with what goes beyond it; nobody ignores it here."""
    program: list[str | Path] = [host, kernels, "together", "2", "40000"]
    said = called(library, program, output, limited(resource.RLIMIT_FSIZE, limit), sample_hz=sample_hz)
    assert "File too large" in said or "file is full" in said
    assert max((path.stat().st_size for path in output.iterdir()), default=0) <= limit
    if limit in NOTHING:
        assert NOTHING[limit] in nothing_of(output)
        return
    recording = read_recording(output)
    lost = sum(thread.lost for process in recording.processes for thread in process.threads)
    assert recording.call_count + lost == 80_000
    assert set(told(recording)) == {"calls-lost"}


def test_threads_without_a_file_are_told(library: Path, host: Path, kernels: Path, output: Path) -> None:  # noqa: F811
    """The process has descriptors for its own file and for that of one thread."""
    program: list[str | Path] = [host, kernels, "together", "4", "100"]
    said = called(library, program, output, limited(resource.RLIMIT_NOFILE, 5))
    assert said.count("Too many open files") == 3
    recording = read_recording(output)
    assert recording.call_count == 100
    assert [process.ended for process in recording.processes] == [True]
    assert "the calls of 3 threads are missing" in told(recording)["threads-lost"]
    assert "Too many open files" in told(recording)["threads-lost"]
    done = run_cli("stats", output)
    assert done.returncode == 0
    assert "the calls of 3 threads are missing" in done.stderr
    assert "[threads-lost]" in done.stderr


def test_threads_without_samples_are_told(library: Path, host: Path, kernels: Path, output: Path) -> None:  # noqa: F811
    program: list[str | Path] = [host, kernels, "together", "4", "100"]
    limit = limited(resource.RLIMIT_NOFILE, 5)
    called(library, program, output, limit, record_calls=False, sample_hz=997, sampler="timer")
    samples = read_samples(output)
    assert len(samples.threads) == 1
    (lost,) = (item.message for item in samples.diagnostics if item.slug == "threads-lost")
    assert "the samples of 3 threads are missing" in lost


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a file system in memory of so many KiB; skips where that is not allowed."""
    mounted: list[Path] = []

    def make(size: int) -> Path:
        folder = tmp_path / f"small-{size}"
        folder.mkdir()
        mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount, and not everywhere")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run([shutil.which("umount") or "umount", str(folder)], check=True)


@pytest.mark.parametrize("size", [64, 96, 128, 160, 700, 2000, 2500])
@pytest.mark.parametrize("sample_hz", [0, 997])
def test_a_full_file_system_is_told(
    size: int, sample_hz: int, library: Path, host: Path, kernels: Path, small: Callable[[int], Path]  # noqa: F811
) -> None:  # fmt: skip
    """Its last lines find the room that was kept for them: the program came to its end."""
    folder = small(size)
    program: list[str | Path] = [host, kernels, "threads", "3", "40000"]
    said = called(library, program, folder, sample_hz=sample_hz)
    assert "No space left on device" in said or "file is full" in said
    if size == 64:
        with pytest.raises(RunEmpty):
            read_recording(folder)
        assert "nothing is recorded" in said or "the calls of 3 threads are missing" in nothing_of(folder)
        return
    if size < 2000:
        assert "the calls of 3 threads are missing" in nothing_of(folder)
        return
    recording = read_recording(folder)
    assert [process.ended for process in recording.processes] == [True]
    lost = sum(thread.lost for process in recording.processes for thread in process.threads)
    missing = 3 - len(recording.processes[0].threads)
    assert recording.call_count + lost == 40_000 * (3 - missing)
    assert f"the calls of {missing} thread" in told(recording).get("threads-lost", "") or not missing
    assert lost == 0 or "calls-lost" in told(recording)


def nothing_of(folder: Path) -> str:
    with pytest.raises(RunEmpty) as caught:
        read_recording(folder)
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 100, 40_000, 100_000])
@pytest.mark.parametrize("settings", [{}, {"every": 2}, {"sample_hz": 997, "sampler": "timer"}], ids=str)
def test_files_that_another_program_cuts_do_not_end_the_program(
    size: int, settings: dict[str, object], library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    """A write to pages beyond the end of a mapped file raises SIGBUS."""
    said = called(
        library, [host, kernels, "cut", "2", "40000", "1", output, str(size)], output, lambda: None, **settings
    )
    assert said.count("another program has cut the file of what is loaded") == (size < 600)
    assert "a thread's calls are not recorded: another program has cut their file" in said
    if size < 600:  # nothing is left, or calls of kernels whose names are gone
        with pytest.raises((RunEmpty, RunInvalid), match=r"another program has cut|does not name"):
            read_recording(output)
        return
    recording = read_recording(output)
    assert recording.call_count > 500
    assert "another program has cut their file" in told(recording)["threads-lost"]


def test_times_whose_file_another_program_cuts_do_not_end_the_program(
    made: Path, library: Path, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    clocks, stops = compile_c(made / "clocks", "-O1", HERE / "clocks.c"), tmp_path / "stops"
    done = subprocess.run(
        [str(clocks), "cut", str(stops)],
        env={**os.environ, "LD_PRELOAD": str(library), "TRACEMAP_HOOK_STOPS": str(stops)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "another program has cut the file" in done.stderr
    assert stops.stat().st_size == 0


@pytest.mark.parametrize("sent", [False, True])
def test_a_bus_error_of_the_program_ends_it_as_before(
    sent: bool, library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    """By its own write, and by the signal that it sends to itself."""
    command = [str(host), str(kernels), "raise" if sent else "beyond", "1", "100"]
    variables = {**os.environ, **support.hooked(library, output)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
    assert read_recording(output).call_count == 100


def test_a_child_of_a_bare_clone_leaves_its_parents_files_alone(
    library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    """It cut them to its own records when it ended, and the parent's next call was a bus error."""
    assert not called(library, [host, kernels, "clone", "1", "40000"], output)
    recording = read_recording(output)
    assert recording.call_count == 80_000
    assert not recording.diagnostics
    assert [process.ended for process in recording.processes] == [True]


WITHOUT_FILES = ("--iterations", "1", "--warmup", "0", "--flagfile", support.FLAGFILE)


def lost_in_run(run: Path, slug: str, done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert f"[{slug}]" in done.stderr
    header = json.loads(run.with_name(f"{run.name}.json").read_text(encoding="utf-8"))
    return next(str(item["message"]) for item in header["diagnostics"] if item["slug"] == slug)


def test_a_run_says_what_calls_it_lost(built: Built, tmp_path: Path) -> None:
    """The limit leaves room for the profile, and none for a thread's calls."""
    run = tmp_path / "run.csv"
    words = ("record", built("hand_mlp"), *WITHOUT_FILES, "--counters", "page-faults", "-o", run)
    done = subprocess.run(
        command_line(*words),
        cwd=SAMPLES,
        preexec_fn=limited(resource.RLIMIT_FSIZE, 700 * KIB),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "File too large" in lost_in_run(run, "no-counters", done)


@pytest.mark.long
def test_a_run_says_what_samples_it_lost(built: Built, tmp_path: Path, small: Callable[[int], Path]) -> None:
    """The folder for temporary things has room for the profile as text, and none for the hook's files."""
    run = tmp_path / "run.csv"
    words = command_line("record", built("hand_mlp"), *WITHOUT_FILES, "--sample", "-o", run)
    surroundings = {**os.environ, "TMPDIR": str(small(60))}
    done = subprocess.run(words, cwd=SAMPLES, env=surroundings, capture_output=True, text=True, check=False)
    assert "No space left on device" in lost_in_run(run, "no-samples", done)


@pytest.mark.long
def test_inputs_that_find_no_room_are_an_error(built: Built, tmp_path: Path, small: Callable[[int], Path]) -> None:
    surroundings = {**os.environ, "TMPDIR": str(small(16))}
    words = command_line("record", built("hand_mlp"), "-o", tmp_path / "run.csv")
    done = subprocess.run(words, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "inputs cannot be written" in done.stderr
    assert done.stderr.endswith("[target-unwritable]\n")
