"""The CUDA library in a program, driven by the stand-ins: what is recorded however the program ends, and refusals."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.standins import StandIns, build, recorded_kernels
from tracemap.runs.cuda.launches import in_submission_order
from tracemap.runs.cuda.recording import CALL, KERNEL, CudaProcess, process_files, read_activity, read_process

KERNELS = ("first", "second$async_0", "first", "third")
ROUNDS = 100


def only_process(folder: Path) -> CudaProcess:
    (path,) = process_files(folder)
    return read_process(path)


def names(process: CudaProcess) -> list[str]:
    return [process.names[int(number)] for number in in_submission_order(read_activity(process))["name"]]


@pytest.mark.parametrize(
    ("then", "status", "ends"),
    [
        *(("exit", 0, True), ("fork", 0, True), ("term", -signal.SIGTERM, True), ("kill", -signal.SIGKILL, False)),
        *(("vfork", 0, True), ("unload", 0, True)),
    ],
)
def test_every_launch_is_there_however_the_program_ends(
    standins: StandIns, tmp_path: Path, then: str, status: int, *, ends: bool
) -> None:
    done = standins.host(KERNELS, standins.injected(tmp_path), rounds=ROUNDS, then=then)
    assert done.returncode == status, done.stderr
    process = only_process(tmp_path)  # the forked child wrote nothing
    activity = read_activity(process)
    assert process.ended is ends
    assert names(process) == [*KERNELS] * ROUNDS
    assert (activity.dropped, activity.unfinished) == (0, 0)
    # Each launch has the call that submitted it, earlier, on the same clock.
    work = in_submission_order(activity)
    calls = {int(call["correlation"]): int(call["start_ns"]) for call in activity.calls}
    assert len(activity.calls) == len(work)
    assert all(calls[int(row["correlation"])] <= int(row["start_ns"]) for row in work)
    assert isinstance(activity.width_ns, int)
    assert activity.width_ns < 1_000_000


def test_program_that_closes_all_descriptors_keeps_its_files_and_its_time(standins: StandIns, tmp_path: Path) -> None:
    done = standins.host(KERNELS, standins.injected(tmp_path), then="descriptors")
    assert done.returncode == -signal.SIGTERM
    assert int(done.stdout.split()[1]) < 250  # of 500 ms
    (own,) = standins.folder.glob("*.list.own")
    assert own.read_bytes() == b""
    own.unlink()


@pytest.mark.parametrize("version", [18, 20, 21, 22, 28, 130000, 130101, 130202, 130301, 130500])
def test_records_of_each_known_version_are_read(standins: StandIns, tmp_path: Path, version: int) -> None:
    done = standins.host(KERNELS, standins.injected(tmp_path, cupti=version), rounds=3)
    process = only_process(tmp_path)
    assert (done.returncode, process.cupti, process.driver, process.refusal) == (0, version, 13000, None)
    assert names(process) == [*KERNELS] * 3
    device = process.devices[0]
    assert (device.name, device.multiprocessors, device.bytes_per_second) == ("stand-in", 132, 3_352_320_000_000)
    work = read_activity(process).work
    assert {tuple(int(row[f"grid_{axis}"]) for axis in "xyz") for row in work} == {(16, 1, 1)}


@pytest.mark.parametrize(
    ("faults", "slug", "text"),
    [
        ({"cupti": 29}, "cupti-unknown", "version 29 is not known"),
        ({"cupti": 130600}, "cupti-unknown", "version 130600 is not known"),
        ({"cupti": 140000}, "cupti-unknown", "version 140000 is not known"),
        ({"driver": 12080}, "cupti-newer-than-driver", "needs a newer driver than this one, of CUDA 12.8"),
        ({"forbid": 1}, "no-permission", "NVreg_RestrictProfilingToAdminUsers=0"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_the_program_runs(
    standins: StandIns, tmp_path: Path, faults: dict[str, int], slug: str, text: str
) -> None:
    done = standins.host(KERNELS, standins.injected(tmp_path, {}, **faults))
    refusal = only_process(tmp_path).refusal
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert refusal is not None
    assert (refusal.slug, text in refusal.text, refusal.text in done.stderr) == (slug, True, True)


def test_missing_cupti_is_named_with_its_package(standins: StandIns, tmp_path: Path) -> None:
    variables = standins.injected(tmp_path, {"TRACEMAP_CUDA_CUPTI": "/nowhere/libcupti.so.13:/nowhere/libcupti.so.12"})
    assert standins.host(KERNELS, variables).returncode == 0
    refusal = only_process(tmp_path).refusal
    assert refusal is not None
    assert (refusal.slug, "tracemap[cuda]" in refusal.text) == ("cupti-missing", True)


def test_work_of_two_devices_is_told_apart(standins: StandIns, tmp_path: Path) -> None:
    standins.host(KERNELS, standins.injected(tmp_path, devices=2), rounds=5)
    process = only_process(tmp_path)
    work = read_activity(process).work
    assert sorted(process.devices) == [0, 1]
    assert process.losses == []  # migrations of both, too
    for device in (0, 1):
        assert np.count_nonzero(work["device"] == device) == 5 * len(KERNELS)
    assert len(np.unique(work["stream"])) == 2


def test_dropped_records_are_counted(standins: StandIns, tmp_path: Path) -> None:
    standins.host(KERNELS, standins.injected(tmp_path, drop=10), rounds=ROUNDS)
    activity = read_activity(only_process(tmp_path))
    submitted = 2 * ROUNDS * len(KERNELS)  # a call and a kernel each
    found = len(activity.work) + len(activity.calls)
    assert activity.dropped > 0
    assert submitted <= found + activity.dropped <= submitted + 1  # the device's record may be dropped, too


def test_program_may_change_its_folder(standins: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables = standins.injected(tmp_path, {"TRACEMAP_CUDA_OUTPUT": ".", "TRACEMAP_CUDA_MB": "8"})
    assert standins.host(KERNELS, variables, rounds=2000, then="elsewhere").returncode == 0
    assert names(only_process(tmp_path)) == [*KERNELS] * 2000
    assert len(only_process(tmp_path).activity_files()) > 1


def test_recording_stays_readable_if_a_line_does_not_fit(standins: StandIns, tmp_path: Path) -> None:
    """As on a full disk: the line with a kernel's name is cut, and records with this name are not written."""
    kernels = [f"kernel{number}" + "x" * 3000 for number in range(20)]
    done = standins.host(kernels, standins.injected(tmp_path), rounds=2, limit_bytes=40 * 1024)
    assert done.returncode == 0
    assert "activity is not recorded any more: File too large" in done.stderr
    process = only_process(tmp_path)
    assert 0 < len(process.names) < len(kernels)
    assert not process.ended
    read_activity(process)


@pytest.mark.parametrize("value", ["-1", "4294967296", "18446744073709551616", "two"])
def test_impossible_settings_are_named_and_ignored(standins: StandIns, tmp_path: Path, value: str) -> None:
    done = standins.host(KERNELS, standins.injected(tmp_path, {"TRACEMAP_CUDA_SECONDS": value}))
    assert f"TRACEMAP_CUDA_SECONDS={value} is not a whole number" in done.stderr
    assert names(only_process(tmp_path)) == [*KERNELS]


@pytest.mark.parametrize("keep", ["oldest", "newest"])
def test_size_limit_keeps_the_oldest_or_newest_records(standins: StandIns, tmp_path: Path, keep: str) -> None:
    settings = {"TRACEMAP_CUDA_MB": "8", "TRACEMAP_CUDA_KEEP": keep}
    kernels = [f"kernel{number}" for number in range(1000)]
    standins.host(kernels, standins.injected(tmp_path, settings), rounds=60)
    process = only_process(tmp_path)
    work = in_submission_order(read_activity(process))
    assert 7 << 20 < sum(path.stat().st_size for path in process.activity_files()) < 9 << 20
    first, last = (int(work["correlation"][place]) for place in (0, -1))
    assert process.begins_late is (keep == "newest")
    if keep == "oldest":
        assert (first, process.left_out > 0) == (1, True)
    else:
        assert (last, first > 1) == (60_000, True)


def test_window_leaves_out_what_is_earlier_and_later(standins: StandIns, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder, settings in ((whole, {}), (part, {"TRACEMAP_CUDA_SKIP_MS": "20"})):
        folder.mkdir()
        times = tmp_path / "times"
        times.write_text("1000000 slow\n", encoding="utf-8")
        standins.host(["slow"], {**standins.injected(folder, settings), "STANDIN_TIMES": str(times)}, rounds=50)
    counts = [
        int(np.count_nonzero(read_activity(only_process(folder)).work["kind"] == KERNEL)) for folder in (whole, part)
    ]
    assert counts[0] == 50
    assert 20 <= counts[1] <= 40
    assert only_process(part).begins_late


@pytest.mark.long
def test_window_ends_after_its_seconds(standins: StandIns, tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("100000000 slow\n", encoding="utf-8")
    variables = standins.injected(tmp_path, {"TRACEMAP_CUDA_SECONDS": "1"}) | {"STANDIN_TIMES": str(times)}
    standins.host(["slow"], variables, rounds=15)
    assert 8 <= np.count_nonzero(read_activity(only_process(tmp_path)).work["kind"] == KERNEL) <= 11


def test_launches_recorded_on_a_gpu_are_replayed_with_their_times(standins: StandIns, tmp_path: Path) -> None:
    launched = recorded_kernels("jax_gpt2_4l")
    times = tmp_path / "times"
    times.write_text("".join(f"{kernel.ns} {kernel.name}\n" for kernel in launched), encoding="utf-8")
    folder = tmp_path / "recorded"
    folder.mkdir()
    standins.host([kernel.name for kernel in launched], {**standins.injected(folder), "STANDIN_TIMES": str(times)})
    process = only_process(folder)
    work = in_submission_order(read_activity(process))
    durations = (work["end_ns"] - work["start_ns"]).tolist()
    assert [*zip(names(process), durations, strict=True)] == [(kernel.name, kernel.ns) for kernel in launched]


def test_calls_are_recorded_with_older_versions_that_enable_all_of_them(standins: StandIns, tmp_path: Path) -> None:
    standins.host(KERNELS, standins.injected(tmp_path, cupti=22), rounds=2)
    activity = read_activity(only_process(tmp_path))
    assert set(activity.calls["kind"].tolist()) == {CALL}
    assert len(activity.calls) == 2 * len(KERNELS)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("then", ["exit", "term", "fork"])
def test_sanitizers_find_nothing(made: Path, tmp_path: Path, sanitizer: str, then: str) -> None:
    standins = build(made, sanitizer)
    settings = {"TRACEMAP_CUDA_MB": "8", "TRACEMAP_CUDA_KEEP": "newest", "ASAN_OPTIONS": "detect_leaks=0"}
    kernels = [f"kernel{number}" for number in range(1500)]
    done = standins.host(kernels, standins.injected(tmp_path, settings, devices=2), rounds=20, then=then)
    assert done.returncode == (-signal.SIGTERM if then == "term" else 0), done.stderr
    assert done.stderr == ""
    assert only_process(tmp_path).ended
