"""`tracemap record`: what it prints and writes, and what a kill leaves."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.disks import disk_of
from tests.recording import events
from tests.support import SAMPLES, check_cli, interruptible, json_cli, run_cli
from tracemap.capture.stopping_rule import default_sample_hz
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.map.bundle import load
from tracemap.runs.ireeprof.records import whole_records
from tracemap.runs.readers.open_run import open_run
from tracemap.runs.runfile import read_run

ENDLESS = 10_000_000
DEADLINE_S = 60.0


@pytest.fixture
def multifunc(built: Built, tmp_path: Path) -> Path:
    """A copy of a bundle, to record into."""
    return Path(shutil.copytree(built("hand_multifunc"), tmp_path / "m.tracemap"))


def waited_for(what: Callable[[], object]) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it did not within a minute.
    """
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """The processes that one has started by its first thread; none of one that has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def started(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a group of its own, as one without a parent in its session cannot be stopped (man 7 credentials).

    It has ended afterwards, whatever was waited for in vain: paused, or for ever at work, it would be in others' way.
    """
    process = subprocess.Popen(
        interruptible(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def recording(bundle: Path, output: Path) -> Iterator[subprocess.Popen[str]]:
    """An endless recording that has written a good deal of its profile."""
    with started("record", bundle, "--function", "encode", "--iterations", str(ENDLESS), "-o", output) as process:
        waited_for(lambda: written_of_profile(output) > 100_000)
        yield process


def written_of_profile(run: Path) -> int:
    """Bytes of the profile of a run that is recorded; 0 before it begins, and after it was taken away."""
    try:
        return run.with_name(run.name + ".ireeprof").stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.long
def test_runs_are_numbered_in_the_bundle(multifunc: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        done = run_cli("record", multifunc, "--function", "encode", "--iterations", "2", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{multifunc}/runs/run-00{number}.parquet\n"
        assert done.stderr.startswith("encode: 2 iterations in ")
    header = read_run(multifunc / "runs" / "run-001.parquet").header
    assert (header.iterations, header.warmup, header.function) == (2, 3, "encode")
    assert header.bundle == str(multifunc)
    assert header.module_sha256 != "unknown"


@pytest.mark.long
@pytest.mark.parametrize("name", [" space", "@at", "me@host", "-dash"])
def test_a_path_with_what_means_something_to_programs(name: str, built: Built, tmp_path: Path) -> None:
    """IREE's programs cut spaces off the values of flags, and the path of a module off where it has an @."""
    shutil.copytree(built("hand_multifunc"), tmp_path / f"{name}.tracemap")
    bundle = f"./{name}.tracemap"
    done = run_cli("record", "--function=encode", "--iterations=2", "-o", f"./{name}.parquet", bundle, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert events(tmp_path / f"{name}.parquet")
    assert run_cli("run", "--function=encode", bundle, cwd=tmp_path).returncode == 0


def test_a_folder_of_temporary_files_with_an_at(
    multifunc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that lies there would be of no use."""
    bundle = multifunc.rename(tmp_path / "m@2.tracemap")
    (tmp_path / "t@t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t@t"))
    done = run_cli("record", bundle, "--function=encode", "--iterations=2", cwd=tmp_path)
    assert done.returncode == 2
    assert "set TMPDIR to a folder without @" in done.stderr
    assert done.stderr.endswith("[usage-invalid]\n")


@pytest.mark.long
def test_runs_of_several_functions_name_them_all(multifunc: Path, tmp_path: Path) -> None:
    """What they cost is added up; the functions stand in the order of the runs, each once."""
    runs = [tmp_path / f"{number}.csv" for number in range(3)]
    for function, run in zip(("encode", "decode", "encode"), runs, strict=True):
        check_cli("record", multifunc, "--function", function, "--iterations", "2", "-o", run, cwd=tmp_path)
    alone, together = (json_cli("attribute", *some, "--map", multifunc) for some in (runs[:1], runs))
    assert (alone["run"]["functions"], alone["run"]["iterations"]) == (["encode"], 2)
    assert (together["run"]["functions"], together["run"]["iterations"]) == (["encode", "decode"], 6)
    measured = [json_cli("attribute", run, "--map", multifunc)["metrics"][0]["measured"] for run in runs]
    assert together["metrics"][0]["measured"] == sum(measured)
    assert ": encode on local-task," in check_cli("attribute", runs[0], runs[2], "--map", multifunc)
    text = check_cli("attribute", *runs, "--map", multifunc, "--html", tmp_path / "page.html")
    assert ": encode, decode on local-task," in text
    assert "encode, decode" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_refused_recording_leaves_no_folder_for_runs(multifunc: Path, tmp_path: Path) -> None:
    shutil.rmtree(multifunc / "runs", ignore_errors=True)
    assert run_cli("record", multifunc, cwd=tmp_path).returncode == 2
    assert not (multifunc / "runs").exists()


def test_options_reach_the_program(multifunc: Path, tmp_path: Path) -> None:
    options = ("--serial", "--iterations", "4", "--warmup", "1", "--input", "32x64xf32=1", "--input", "64x64xf32=2")
    check_cli(
        "record", multifunc, "--function", "encode", *options, "-o", "run.csv", "--", "--task_worker_spin_us=1",
        cwd=tmp_path,
    )  # fmt: skip
    header = read_run(tmp_path / "run.csv").header
    assert (header.iterations, header.warmup, header.workers) == (4, 1, 1)
    assert header.inputs == ("32x64xf32=1", "64x64xf32=2")
    assert "--task_worker_spin_us=1" in header.command
    assert "--benchmark_min_time=5x" in header.command
    assert {row["invocation"] for row in events(tmp_path / "run.csv")} == set(range(5))


@pytest.mark.long
def test_a_run_without_events_says_so(multifunc: Path, tmp_path: Path) -> None:
    done = run_cli("record", multifunc, "--function", "no_compute", "-o", "run.csv", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "run.csv\n"
    assert "[no-events]" in done.stderr


@pytest.mark.long
def test_a_profile_that_is_kept(multifunc: Path, tmp_path: Path) -> None:
    """It is the user's from then on: IREE's tool reads it, and no further recording takes it away."""
    command = ("record", multifunc, "--function", "encode", "--iterations", "2")
    done = run_cli(*command, "--keep-profile", "-o", "run.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "IREE's profile is kept: run.csv.ireeprof\n" in done.stderr
    kept = (tmp_path / "run.csv.ireeprof").read_bytes()
    tool = [str(find_tool("iree-profile")), "summary", str(tmp_path / "run.csv.ireeprof")]
    told = subprocess.run(tool, capture_output=True, check=True, text=True).stdout
    assert " queue_events=5 " in next(line for line in told.splitlines() if line.startswith("chunks:"))
    (tmp_path / "converted").mkdir()
    run = open_run(tmp_path / "run.csv.ireeprof", tmp_path / "converted")
    assert len(events(run.table)) == len(events(tmp_path / "run.csv"))
    (tmp_path / "run.csv").unlink()
    check_cli(*command, "-o", "run.csv", cwd=tmp_path)
    assert (tmp_path / "run.csv.ireeprof").read_bytes() == kept
    assert sorted(path.name for path in tmp_path.glob("*.ireeprof*")) == ["run.csv.ireeprof"]
    check_cli(*command, "--keep-profile", cwd=tmp_path)
    assert (multifunc / "runs" / "run-001.parquet.ireeprof").stat().st_size > 0
    refused = run_cli(*command, "--keep-profile", "-o", "-", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--keep-profile" in refused.stderr


@pytest.mark.long
def test_force_replaces(multifunc: Path, tmp_path: Path) -> None:
    command = ("record", multifunc, "--function", "encode", "-o", "run.csv", "--iterations")
    check_cli(*command, "2", cwd=tmp_path)
    check_cli(*command, "3", "--force", cwd=tmp_path)
    assert read_run(tmp_path / "run.csv").header.iterations == 3


@pytest.mark.long
def test_a_killed_program_leaves_a_run(multifunc: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    with recording(multifunc, output) as process:
        for child in children_of(process.pid):
            os.kill(child, signal.SIGKILL)
        out, err = process.communicate()
    assert process.returncode == 1
    assert out == ""
    assert "SIGKILL" in err
    assert str(output) in err
    assert err.endswith("[program-failed]\n")
    check_salvaged(output)


def is_paused(pid: int) -> bool:
    """By the letter of man 5 proc_pid_stat."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


@pytest.mark.long
def test_ctrl_z_pauses_the_program_too(multifunc: Path, tmp_path: Path) -> None:
    """As often as it comes; then both go on."""
    output = tmp_path / "run.csv"
    with recording(multifunc, output) as process:
        both = (process.pid, *children_of(process.pid))
        assert len(both) == 2
        for _ in range(2):
            process.send_signal(signal.SIGTSTP)
            waited_for(lambda: all(map(is_paused, both)))
            process.send_signal(signal.SIGCONT)
            waited_for(lambda: not any(map(is_paused, both)))
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert not any(map(alive, both))
    check_salvaged(output)


def recorded_with_a_pause(bundle: Path, run: Path, seconds: float) -> tuple[float, float]:
    """Record calls for two seconds and pause for some while as they are measured; how long at least, and at most.

    Nothing at most: the signal came when all calls had been measured.
    """
    options = ("--function", "encode", "--seconds", "2", "--precision", "1e-6", "--launches", "1", "--force", "-o", run)
    with started("record", bundle, *options) as process:
        waited_for(lambda: process.poll() is not None or written_of_profile(run) > 10_000)
        asked = time.monotonic()
        process.send_signal(signal.SIGTSTP)
        waited_for(lambda: process.poll() is not None or is_paused(process.pid))
        paused, written = time.monotonic(), written_of_profile(run)
        time.sleep(seconds)
        called = time.monotonic()
        process.send_signal(signal.SIGCONT)
        waited_for(lambda: process.poll() is not None or written_of_profile(run) > written)
        went_on, was_measuring = time.monotonic(), process.poll() is None
        _, err = process.communicate()
    assert process.returncode == 0, err
    return (called - paused, went_on - asked) if was_measuring else (0.0, 0.0)


@pytest.mark.long
def test_a_pause_is_not_taken_off_what_may_be_spent(multifunc: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.parquet"
    for _ in range(5):  # on a busy machine a signal may come when all calls have been measured
        least_s, most_s = recorded_with_a_pause(multifunc, run, 3)
        if most_s:
            break
    else:
        pytest.fail("the signal came too late each time")
    elapsed_ns = read_run(run).header.elapsed_ns
    assert isinstance(elapsed_ns, int)
    assert elapsed_ns > 4e9  # of which it was paused for three seconds
    (said,) = (each.message for each in read_run(run).header.diagnostics if each.slug == "paused")
    told = re.match(
        r"the program was paused for (\d+\.\d\d) s; the pause is part of the elapsed time and of means ", said
    )
    assert told is not None
    assert least_s - 0.01 < float(told[1]) < most_s + 0.01
    # What others had of the processors meanwhile is not told, nor what to do against the waiting.
    observed_ns = read_run(run).header.noise.observed_ns
    assert isinstance(observed_ns, int)
    assert observed_ns < elapsed_ns - least_s * 1e9
    text = check_cli("attribute", run, "--map", multifunc)
    assert next(line for line in text.splitlines() if line.startswith("note")).startswith("note [paused]: ")
    assert "--compare-devices" not in text


@pytest.mark.long
def test_ctrl_c_leaves_a_run(multifunc: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.csv"
    with recording(multifunc, output) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert "interrupted" in err
    assert str(output) in err
    check_salvaged(output)


def check_salvaged(output: Path) -> None:
    """The run of a program that died: whole calls, warm-up marked, and it says what happened."""
    run = read_run(output)
    slugs = [item.slug for item in run.header.diagnostics]
    assert slugs[0] == "program-killed"
    assert isinstance(run.header.iterations, int)
    assert 0 < run.header.iterations < ENDLESS
    assert isinstance(run.header.elapsed_ns, int)
    rows = events(output)
    assert {row["invocation"] for row in rows if row["warmup"]} == {0, 1, 2}
    assert max(row["invocation"] for row in rows) + 1 == run.header.iterations + 3
    assert not output.with_name(output.name + ".ireeprof").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 600 KiB."""
    with disk_of("600k", tmp_path / "small") as folder:
        yield folder


@pytest.mark.long
def test_a_disk_that_fills_while_the_profile_is_written(multifunc: Path, small_disk: Path) -> None:
    """The sentence names what is left, which can be attributed, and is said to be cut."""
    options = ("--function", "encode", "--iterations", "20000", "-o", "run.csv")
    done = run_cli("record", multifunc, *options, cwd=small_disk)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "the events recorded until then are in run.csv.ireeprof" in done.stderr
    assert [path.name for path in small_disk.iterdir()] == ["run.csv.ireeprof"]
    check_said_to_be_cut(small_disk / "run.csv.ireeprof", multifunc)


@pytest.mark.long
def test_a_disk_of_temporary_files_that_is_full_is_not_the_models_fault(
    built: Built, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever meets it first, the compiler, a copy of what was given or an input that is made up."""
    bundle = built("hand_mlp")
    (small_disk / "fill").write_bytes(b"\0" * 560_000)
    monkeypatch.setenv("TMPDIR", str(small_disk))
    work = tmp_path / "work"
    work.mkdir()
    run = b"kernel,duration_ns\n" + b"mlp_dispatch_0_matmul_32x256x784_f32,5\n" * 20_000
    for words in (
        ("build", SAMPLES / "models" / "jax_mlp.mlir", "-o", "m.tracemap"),
        ("record", bundle, "-o", "run.csv"),
        ("attribute", "-", "--map", bundle),
    ):
        done = run_cli(*words, cwd=work, stdin=run)
        assert done.returncode == 2
        assert "set TMPDIR to a folder with free space [target-unwritable]" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not list(work.iterdir())
        assert [path.name for path in small_disk.iterdir()] == ["fill"]


def check_said_to_be_cut(profile: Path, bundle: Path) -> int:
    """Attribute a profile that is not whole; returns what was measured of the first metric."""
    found = json_cli("attribute", profile, "--map", bundle)
    assert "run-truncated" in [item["slug"] for item in found["diagnostics"]]
    assert "note [run-truncated]: the profile is not whole" in check_cli(
        "attribute", profile, "--map", bundle, "--notes"
    )
    assert found["metrics"][0]["measured"] > 0
    return int(found["metrics"][0]["measured"])


@pytest.mark.long
def test_profiles_that_were_cut_say_so(multifunc: Path, tmp_path: Path) -> None:
    """In the middle of a record, and between two of them: the file's own length tells."""
    options = ("--function", "encode", "--iterations", "50", "--keep-profile", "-o", "run.csv")
    check_cli("record", multifunc, *options, cwd=tmp_path)
    profile, cut = tmp_path / "run.csv.ireeprof", tmp_path / "cut.ireeprof"
    whole = json_cli("attribute", profile, "--map", multifunc)
    assert "run-truncated" not in [item["slug"] for item in whole["diagnostics"]]
    half = profile.read_bytes()[: profile.stat().st_size * 2 // 3]
    cut.write_bytes(half)
    between = whole_records(cut).end
    assert between < len(half)
    measured = check_said_to_be_cut(cut, multifunc)
    assert measured < whole["metrics"][0]["measured"]
    cut.write_bytes(half[:between])
    assert check_said_to_be_cut(cut, multifunc) == measured


def test_a_killed_tracemap_leaves_a_readable_profile(multifunc: Path, tmp_path: Path) -> None:
    with recording(multifunc, tmp_path / "run.parquet") as process:
        children = children_of(process.pid)
        process.kill()
        process.communicate()
    assert len(children) == 1
    waited_for(lambda: not alive(children[0]))
    assert not (tmp_path / "run.parquet").exists()
    run = open_run(tmp_path / "run.parquet.ireeprof", tmp_path)
    assert [item.slug for item in run.header.diagnostics] == ["run-truncated"]
    assert len(events(run.table)) > 100


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it was waited for before, or as it was read
        return False


@pytest.mark.long
def test_samples_are_rows_of_steps(built: Built, tmp_path: Path) -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    run = tmp_path / "run.csv"
    done = run_cli(
        *("record", built("hand_attention"), "--sample", "4999", "--iterations", "1500", "-o", run), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "[sampled]" in done.stderr
    steps = {
        kernel.name: {step.line for step in kernel.steps} for kernel in load(built("hand_attention")).graph.kernels
    }
    with run.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    seen = [row for row in rows if row["kind"] == "step"]
    assert len(seen) > 100
    assert {row["samples"] for row in seen} == {"1"}
    assert {row["samples"] for row in rows if row["kind"] == "dispatch"} == {""}
    inside = [row for row in seen if row["kernel"]]
    assert len(inside) > len(seen) // 2
    assert all(int(row["step"]) in steps[row["kernel"]] | {0} and int(row["address"]) > 0 for row in inside)
    known = [row for row in inside if row["submission_id"]]
    assert len(known) > len(inside) // 2
    dispatches = {(row["start_ns"], row["command_index"]): row["kernel"] for row in rows if row["kind"] == "dispatch"}
    assert all(dispatches[row["start_ns"], row["command_index"]] == row["kernel"] for row in known)
    assert all(not row["cpu_ns"] and not row["duration_ns"] for row in seen)


@pytest.mark.parametrize("rate", ["0", "99999", "often"])
def test_rates_that_are_none(rate: str, built: Built, tmp_path: Path) -> None:
    done = run_cli("record", built("hand_mlp"), f"--sample={rate}", "-o", tmp_path / "run.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "--sample" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_usual_rate_needs_no_number(built: Built, tmp_path: Path) -> None:
    if not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    done = run_cli("record", built("hand_attention"), "--sample", "-o", tmp_path / "run.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hz = default_sample_hz(5.0)
    assert f"{hz} per second and thread" in done.stderr


@pytest.mark.parametrize("name", ["block.json", "run.HTML", "run.txt", "run.csv.gz", "run.CSV"])
def test_a_run_is_not_called_like_a_file_of_another_kind(name: str, multifunc: Path, tmp_path: Path) -> None:
    done = run_cli("record", multifunc, "--function", "encode", "--iterations", "1", "-o", name, cwd=tmp_path)
    assert (done.returncode, (tmp_path / name).exists()) == (2, False)
    assert done.stderr == (
        f"tracemap: error: {name}: tables are written as Parquet or CSV, not as {Path(name).suffix}; name a .parquet "
        "or .csv file [usage-invalid]\n"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["run", "llama3.1", "run.2026-11-26"])
def test_a_run_may_be_called_without_an_ending(name: str, multifunc: Path, tmp_path: Path) -> None:
    check_cli("record", multifunc, "--function", "encode", "--iterations", "1", "-o", name, cwd=tmp_path)
    assert (tmp_path / name).read_bytes().startswith(b"PAR1")


def test_a_run_is_not_called_like_a_profile_of_the_runtime(multifunc: Path, tmp_path: Path) -> None:
    """By this name it would be read as one, and refused."""
    target = tmp_path / "run.ireeprof"
    done = run_cli("record", multifunc, "--function", "encode", "--iterations", "1", "-o", target)
    assert (done.returncode, target.exists()) == (2, False)
    assert "choose a name with .parquet or .csv" in done.stderr
    assert done.stderr.count("\n") == 1
