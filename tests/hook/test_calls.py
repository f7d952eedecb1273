"""The hook on the stock runtime: every way in, both kinds of executables, both CPU drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.hook import support
from tests.recording import sample
from tests.support import SAMPLES
from tracemap.core.errors import RunEmpty
from tracemap.core.toolchain import find_tool
from tracemap.runs.hook.calls import load_calls
from tracemap.runs.hook.recording import read_recording

ELFS = ("embedded", "system")
DRIVERS = ("local-task", "local-sync")
TOOLS = ("iree-run-module", "iree-benchmark-module")


@pytest.fixture(scope="session")
def library(made: Path) -> Path:
    support.need_compiler()
    return support.built_library(made)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "hook"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("elf", ELFS)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("way", ["preload", "plugin"])
def test_tools_record_as_many_calls_as_the_profile_has_tiles(
    way: str, tool: str, driver: str, elf: str, library: Path, made: Path, output: Path
) -> None:
    vmfb = support.module(made, elf)
    profile = output.parent / "run.ireeprof"
    flags = [support.PROFILING, f"--device_profiling_output={profile}"]
    if way == "plugin":
        printed = support.run(
            [*support.tool_command(tool, vmfb, driver, *flags), f"--executable_plugin={library}"],
            support.hooked_by_plugin(output),
        )
    else:
        printed = support.run(support.tool_command(tool, vmfb, driver, *flags), support.hooked(library, output))
    tiles = support.tiles_of_profile(profile)
    assert len(tiles) == 4
    assert support.recorded_calls(output) == tiles
    if tool == "iree-run-module":
        assert printed == support.run(support.tool_command(tool, vmfb, driver))


@pytest.mark.long
@pytest.mark.parametrize("elf", ELFS)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("way", ["preload", "attach"])
def test_python_records_as_many_calls_as_the_profile_has_tiles(
    way: str, driver: str, elf: str, library: Path, made: Path, output: Path
) -> None:
    vmfb = support.module(made, elf)
    if way == "preload":
        printed = support.run(support.python_command(vmfb, driver), support.hooked(library, output))
    else:
        printed = support.run(support.python_command(vmfb, driver, f"attach={output}={library}"))
    profile = output.parent / "run.ireeprof"
    flags = [support.PROFILING, f"--device_profiling_output={profile}"]
    support.run(support.tool_command("iree-run-module", vmfb, driver, *flags))
    once = support.tiles_of_profile(profile)
    assert support.recorded_calls(output) == Counter({kernel: 3 * tiles for kernel, tiles in once.items()})
    assert printed == support.run(support.python_command(vmfb, driver))


@pytest.mark.long
def test_every_workgroup_of_every_dispatch_is_recorded_once(library: Path, made: Path, output: Path) -> None:
    vmfb = sample(made, "jax_gpt2_4l")
    flagfile = SAMPLES / "flags" / "jax_gpt2_4l.flags"
    command: list[str | Path] = [find_tool("iree-benchmark-module"), f"--module={vmfb}", f"--flagfile={flagfile}"]
    support.run([*command, "--benchmark_min_time=5x"], support.hooked(library, output))
    with duckdb.connect() as connection:
        load_calls(read_recording(output), connection)
        groups = connection.execute(
            "SELECT kernel, call, count(*), count(DISTINCT (workgroup_x, workgroup_y, workgroup_z)), "
            "min(workgroups_x * workgroups_y * workgroups_z), max(workgroups_x * workgroups_y * workgroups_z), "
            "max(workgroup_x) FROM hook_calls GROUP BY kernel, call, workgroups_x, workgroups_y, workgroups_z",
        ).fetchall()
        negative = connection.execute("SELECT count(*) FROM hook_calls WHERE duration_ns < 0").fetchall()
    assert len({kernel for kernel, *_ in groups}) == 15
    assert all(count == distinct == fewest == most for _, _, count, distinct, fewest, most, _ in groups)
    assert negative == [(0,)]


def test_calls_lie_on_the_profiles_clock(library: Path, made: Path, output: Path) -> None:
    """Both clocks are CLOCK_MONOTONIC, though the hook reads a counter of the processor."""
    profile = output.parent / "run.ireeprof"
    flags = [support.PROFILING, f"--device_profiling_output={profile}"]
    vmfb = support.module(made, "embedded")
    before = time.monotonic_ns()
    support.run(
        support.tool_command("iree-benchmark-module", vmfb, "local-sync", *flags), support.hooked(library, output)
    )
    after = time.monotonic_ns()
    with duckdb.connect() as connection:
        load_calls(read_recording(output), connection)
        ((first, last),) = connection.execute(
            "SELECT min(start_ns), max(start_ns + duration_ns) FROM hook_calls"
        ).fetchall()
        support.tiles_of_profile(profile)
        ((begin, end),) = connection.execute(
            f"SELECT min(start_host_time_ns), max(end_host_time_ns) FROM read_json('{profile.with_suffix('.jsonl')}') "
            "WHERE op = 'dispatch' AND tile_count > 0"
        ).fetchall()
    assert before < begin - 20_000 < first < last < end + 20_000 < after


@pytest.mark.long
def test_executables_can_be_loaded_and_unloaded_without_end(library: Path, made: Path, output: Path) -> None:
    for elf in ELFS:
        vmfb = support.module(made, elf)
        command = support.python_command(vmfb, "local-sync", loads=1000, calls=1)
        folder = output / elf
        folder.mkdir()
        support.run(command, support.hooked(library, folder))
        recording = read_recording(folder)
        assert recording.call_count == 36 * 1000
        (process,) = recording.processes
        assert len(process.kernels) == 4 * 1000
        text = (folder / f"hook-{process.stamp}.jsonl").read_text(encoding="utf-8")
        assert text.count('"kind":"unload"') == 1000


@pytest.mark.long
@pytest.mark.parametrize("options", [("keep",), ("reserve",), ("keep", "reserve")], ids="-".join)
def test_executables_that_stay_are_all_seen(options: tuple[str, ...], library: Path, made: Path, output: Path) -> None:
    """Each of IREE's own loader is told by the memory that it reserves; there is a place for each that has a slot."""
    command = support.python_command(support.module(made, "embedded"), "local-sync", *options, loads=1100, calls=1)
    support.run(command, support.hooked(library, output))
    assert read_recording(output).call_count == 36 * 1100


def test_a_killed_program_leaves_its_calls(library: Path, made: Path, output: Path) -> None:
    command = support.python_command(support.module(made, "embedded"), "local-task", calls=10**9)
    child = subprocess.Popen(command, env={**os.environ, **support.hooked(library, output)}, stdout=subprocess.DEVNULL)
    try:
        wait_for_calls(output, 2000)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    recording = read_recording(output)
    assert "program-killed" in [item.slug for item in recording.diagnostics]
    threads = [thread for process in recording.processes for thread in process.threads]
    for thread in threads:
        assert thread.lost == 0
        assert thread.header["passed_over"] == 0
        assert np.all(np.diff(thread.calls["start_ticks"].astype(np.int64)) > 0)
    assert recording.call_count >= 2000
    assert not any(thread.header["closed"] for thread in threads)


def wait_for_calls(output: Path, wanted: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if read_recording(output).call_count >= wanted:
                return
        except RunEmpty:
            pass
        time.sleep(0.05)
    pytest.fail("the program recorded nothing")
