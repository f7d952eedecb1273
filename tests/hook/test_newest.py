"""A hook that keeps the newest calls, for servers: which ones, their memory, their numbers."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import duckdb
import pytest

from tests.hook import support
from tests.hook.test_host import host, kernels, library, output, sanitized_host  # noqa: F401 - fixtures
from tests.support import json_cli, run_cli
from tracemap.runs.hook.calls import load_calls
from tracemap.runs.hook.process import read_head, read_records
from tracemap.runs.hook.recording import KIND_OF_CALLS, HookRecording, read_recording

ROOM = 3 << 20
HEAD = 1 << 16
CALLS = 200_000


def newest(library: Path, output: Path) -> dict[str, str]:  # noqa: F811 - fixtures
    return support.hooked(library, output, thread_bytes=ROOM, keep="newest")


def room_of(folder: Path) -> int:
    """What the largest file of calls takes of the disk, whatever its size is called."""
    return max(path.stat().st_blocks * 512 for path in folder.glob("*.calls"))


def told(recording: HookRecording) -> dict[str, str]:
    return {item.slug: item.message for item in recording.diagnostics}


def check_newest(recording: HookRecording, threads: int) -> None:
    """Of the host's calls, whose workgroups count up, each thread has the last ones, all of them."""
    (process,) = recording.processes
    assert len(process.threads) == threads
    for thread in process.threads:
        kept = thread.calls["workgroup_x"].tolist()
        assert kept == list(range(thread.dropped, CALLS))
        assert ROOM // 2 < len(kept) * thread.calls.dtype.itemsize <= ROOM
        assert thread.lost == 0
    dropped = sum(thread.dropped for thread in process.threads)
    assert f"{dropped:,} older ones were dropped" in told(recording)["calls-dropped"]


def test_the_newest_calls_are_kept_in_bounded_room(
    library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    support.run([host, kernels, "threads", "2", str(CALLS)], newest(library, output))
    check_newest(read_recording(output), 2)
    assert room_of(output) <= ROOM + 2 * HEAD
    stats = json_cli("stats", output)
    assert all(0 < thread["calls"] < CALLS for thread in stats["threads"])
    assert "[calls-dropped]" in run_cli("stats", output).stderr


def test_the_oldest_calls_are_kept_by_default(library: Path, host: Path, kernels: Path, output: Path) -> None:  # noqa: F811
    variables = {**os.environ, **support.hooked(library, output, thread_bytes=ROOM)}
    subprocess.run([host, kernels, "threads", "1", str(CALLS)], env=variables, check=True, capture_output=True)
    (thread,) = read_recording(output).processes[0].threads
    assert thread.calls["workgroup_x"].tolist() == list(range(len(thread.calls)))
    assert (thread.dropped, thread.lost) == (0, CALLS - len(thread.calls))


@pytest.mark.long
def test_sanitizers_find_nothing_where_calls_are_given_up(
    sanitized_host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    variables = support.hooked(Path("unused"), output, thread_bytes=ROOM, keep="newest")
    variables.pop("LD_PRELOAD")
    support.run([sanitized_host, kernels, "threads", "4", str(CALLS)], variables)
    check_newest(read_recording(output), 4)


def test_a_thread_of_which_nothing_is_kept_ends_no_reading(
    library: Path, host: Path, kernels: Path, output: Path  # noqa: F811
) -> None:  # fmt: skip
    """As of a file that was cut, or that was read while all that was read before was given up."""
    support.run([host, kernels, "threads", "2", str(CALLS)], newest(library, output))
    emptied = min(output.glob("*.calls"))
    head = read_head(emptied, KIND_OF_CALLS)
    assert head is not None
    assert len(read_records(emptied, head, skip=1 << 63)) == 0  # what a damaged head may say was given up
    os.truncate(emptied, head.data_offset + head.header["dropped"] * head.header["record_bytes"])
    recording = read_recording(output)
    assert sorted(len(thread.calls) > 0 for thread in recording.processes[0].threads) == [False, True]
    assert "calls-lost" in told(recording)
    with duckdb.connect() as connection:
        rows = load_calls(recording, connection).aggregate("count(*), count(call)").fetchall()
    assert rows == [(recording.call_count, recording.call_count)]


# ---- on the real runtime: executions of several workgroups, on several threads


@pytest.fixture(scope="session")
def server(made: Path) -> list[str]:
    """A program that calls a model again and again, without end."""
    support.need_compiler()
    vmfb = support.module(made, "embedded")
    command = support.tool_command("iree-benchmark-module", vmfb, "local-task", "--task_topology_group_count=2")
    return [word.replace("=3x", "=1000000000x") for word in command]


def check_executions(recording: HookRecording, *, may_lack_some: bool) -> None:
    """Each execution but a kernel's first has every workgroup once, and lies behind the one before it."""
    with duckdb.connect() as connection:
        rows = (
            load_calls(recording, connection)
            .project(
                "kernel, workgroups_x * workgroups_y * workgroups_z, call, workgroup_x, workgroup_y, workgroup_z, "
                "start_ns, start_ns + duration_ns"
            )
            .fetchall()
        )
    executions = defaultdict(list)
    unknown = {kernel for kernel, _, call, *_ in rows if call is None}
    assert len(unknown) <= (2 if may_lack_some else 0)
    for kernel, tiles, call, *workgroup_and_times in rows:
        if call is not None:
            executions[kernel, tiles].append((call, tuple(workgroup_and_times[:3]), *workgroup_and_times[3:]))
    assert executions
    for (kernel, tiles), calls in executions.items():
        of_call = defaultdict(list)
        for call, *rest in calls:
            of_call[call].append(rest)
        numbers = sorted(of_call)
        assert numbers == list(range(len(numbers))), kernel
        assert len(numbers) > 100
        ended_ns = 0
        for number in numbers:
            workgroups = [workgroup for workgroup, *_ in of_call[number]]
            assert len(set(workgroups)) == len(workgroups)
            assert len(workgroups) == tiles if number else len(workgroups) <= tiles
            assert min(start for _, start, _ in of_call[number]) >= ended_ns - 2_000  # clocks of two cores
            ended_ns = max(end for _, _, end in of_call[number])


@pytest.mark.long
def test_executions_of_a_killed_server_are_numbered(server: list[str], library: Path, output: Path) -> None:  # noqa: F811
    """It is killed when it has called for much longer than there is room."""
    variables = {**os.environ, **newest(library, output)}
    with subprocess.Popen(server, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        deadline = time.monotonic() + 60
        while max((path.stat().st_size for path in output.glob("*.calls")), default=0) < 4 * ROOM:
            assert time.monotonic() < deadline
            assert program.poll() is None
            time.sleep(0.05)
        read_recording(output)  # also while it runs
        program.kill()
    recording = read_recording(output)
    assert {"calls-dropped", "program-killed"} <= set(told(recording))
    assert room_of(output) <= ROOM + 2 * HEAD
    check_executions(recording, may_lack_some=True)


@pytest.mark.long
def test_executions_of_a_program_that_ends_are_numbered(server: list[str], library: Path, output: Path) -> None:  # noqa: F811
    ending = [word.replace("1000000000x", "6000x") for word in server]
    support.run(ending, newest(library, output))
    recording = read_recording(output)
    assert "calls-dropped" in told(recording)
    assert "program-killed" not in told(recording)
    check_executions(recording, may_lack_some=False)
