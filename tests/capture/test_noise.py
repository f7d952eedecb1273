"""Noise of the machine: compared with the account that disturbing programs keep of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from tests.oracle.busy import spinning
from tests.recording import request, sample
from tracemap.capture import noise
from tracemap.capture.noise import noise_diagnostic, observed_noise, take_snapshot, unknown_noise_diagnostic
from tracemap.capture.record import record
from tracemap.core.units import UNKNOWN, Integer, format_ns
from tracemap.runs.model import UNKNOWN_NOISE, Noise

# Says what it has done, sleeps, touches memory and spins in two threads, and says it again; lives until told to end.
WORKING = """
import json, mmap, resource, sys, threading, time
def say():
    used = resource.getrusage(resource.RUSAGE_SELF)
    switches = used.ru_nvcsw, used.ru_nivcsw
    print(json.dumps([*switches, used.ru_minflt, used.ru_majflt, time.process_time_ns()]), flush=True)
    sys.stdin.readline()
def spin():
    end = time.thread_time() + 0.3
    while time.thread_time() < end: pass
other = threading.Thread(target=lambda: (go.wait(), spin(), done.set(), leave.wait()), daemon=True)
go, done, leave = threading.Event(), threading.Event(), threading.Event()
other.start()
say()
for _ in range(200): time.sleep(0.0005)
memory = mmap.mmap(-1, 4096 * 3000)
for page in range(3000): memory[4096 * page] = 1
go.set(); spin(); done.wait()
say()
leave.set()
"""


def told(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    numbers: list[int] = json.loads(process.stdout.readline())
    return numbers


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_program_is_seen_as_it_sees_itself() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        before = told(process)
        first = take_snapshot(process.pid)
        go_on(process)
        after = told(process)
        last = take_snapshot(process.pid)
        go_on(process)
    found = observed_noise([first, last], first.time_ns, last.time_ns)
    voluntary, involuntary, minor, major, cpu_ns = (end - begin for begin, end in zip(before, after, strict=True))
    assert voluntary >= 200
    # Between its account and the look the program does no more than write a line and wait.
    assert abs(known(found.voluntary_switches) - voluntary) <= 20
    assert abs(known(found.involuntary_switches) - involuntary) <= 20 + involuntary // 10
    assert minor >= 3000
    assert abs(known(found.minor_faults) - minor) <= 100
    assert abs(known(found.major_faults) - major) <= 20
    assert cpu_ns >= 600_000_000
    assert abs(known(found.running_ns) - cpu_ns) <= cpu_ns // 10
    assert found.observed_ns == last.time_ns - first.time_ns >= 300_000_000
    assert known(found.waiting_ns) >= 0
    assert known(found.busy_ns) >= 0.9 * cpu_ns - 50_000_000  # the machine counts in ticks
    assert 0 <= known(found.stolen_ns) <= found.observed_ns * (os.cpu_count() or 1)


def known(value: object) -> int:
    assert isinstance(value, int)
    return value


CHURNING = """
import threading
print("begun", flush=True)
while True:
    threads = [threading.Thread(target=int) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
"""


def test_threads_that_end_while_they_are_looked_at_make_nothing_unknown() -> None:
    with subprocess.Popen([sys.executable, "-c", CHURNING], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        snapshots = [take_snapshot(program.pid) for _ in range(300)]
        program.kill()
    assert len({name for each in snapshots for name in each.threads}) > 1
    for last in snapshots[1:]:
        found = observed_noise((snapshots[0], last), snapshots[0].time_ns, last.time_ns)
        assert UNKNOWN not in (found.running_ns, found.waiting_ns, found.involuntary_switches)


def test_only_what_was_seen_while_calls_were_measured() -> None:
    snapshots = [look_at(time_ns) for time_ns in (10, 20, 30, 40)]
    found = observed_noise(snapshots, 15, 35)
    assert (found.observed_ns, found.minor_faults, found.voluntary_switches) == (10, 10, 100)
    assert found.load_percent == 20
    for begin, end in ((15, 25), (35, 99), (15, UNKNOWN), (UNKNOWN, 35)):
        assert observed_noise(snapshots, begin, end) == UNKNOWN_NOISE
    assert observed_noise([], 0, 99) == UNKNOWN_NOISE


def look_at(time_ns: int) -> noise.Look:
    """A look at a time at which as much had happened as the time says; one thread is new at 30."""
    threads = {"1": {"voluntary_switches": 9 * time_ns}, **({"2": {"voluntary_switches": 10}} if time_ns >= 30 else {})}
    return noise.Look(time_ns, {"minor_faults": time_ns}, threads, UNKNOWN, time_ns)


def test_what_linux_does_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without these files, and a program that is gone."""
    monkeypatch.setattr(noise, "_PROC", tmp_path)
    monkeypatch.setattr(noise, "_CPUS", tmp_path)
    seen = [take_snapshot(1), take_snapshot(1)]
    assert observed_noise(seen, 0, seen[-1].time_ns) == structs.replace(
        UNKNOWN_NOISE, observed_ns=seen[1].time_ns - seen[0].time_ns
    )
    for name, hz in (("cpu0", "1000000"), ("cpu1", "3000000")):
        (tmp_path / name / "cpufreq").mkdir(parents=True)
        (tmp_path / name / "cpufreq" / "scaling_cur_freq").write_text(hz)
    (tmp_path / "loadavg").write_text("2.50 1.00 1.00 1/99 9\n")
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 80 9 10\ncpu0 1\n")
    found = take_snapshot(1)
    assert (found.frequency_hz, found.load_percent) == (2_000_000_000, 250)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert found.counts == {"busy_ns": (1 + 2 + 3 + 6 + 7) * tick_ns, "stolen_ns": 80 * tick_ns}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"running_ns": 91, "waiting_ns": 9}, ""),
        ({"running_ns": 90, "waiting_ns": 10}, "threads waited for a CPU 10.0 % of the time"),
        ({"running_ns": 90, "waiting_ns": 10, "busy_ns": 99}, ""),
        ({"running_ns": 90, "waiting_ns": 10, "busy_ns": 100}, "and other programs used 10.0 % of the CPU time"),
        ({"running_ns": 0, "waiting_ns": 0}, ""),
        ({"observed_ns": 10**9, "stolen_ns": 10**9 * (os.cpu_count() or 1)}, "the hypervisor took "),
        ({"observed_ns": 10**9, "stolen_ns": 10**7}, ""),
    ],
)
def test_from_when_on_a_run_is_disturbed(changes: dict[str, int], said: str) -> None:
    found = noise_diagnostic(structs.replace(UNKNOWN_NOISE, **changes))
    assert (found is not None) == bool(said)
    assert found is None or said in found.message
    told = "" if found is None else found.message.partition("(unknown involuntary switches)")[2]
    assert told.endswith(" ahead of others") == ("waiting_ns" in changes and bool(said))


_STOP = "; stop other jobs"


@pytest.mark.parametrize(
    ("own", "niceness", "advice"),
    [
        (0, UNKNOWN, f"{_STOP}, or record as root or with the capability CAP_SYS_NICE to run ahead of others"),
        (5, UNKNOWN, f"{_STOP}, or record with --nice -20 to run ahead of others"),
        (0, 0, f"{_STOP}, or drop --nice to run ahead of others"),
        (5, 10, f"{_STOP}, or record with --nice -20 to run ahead of others"),
        (0, -20, ""),
    ],
)
def test_what_would_help_is_said_where_something_would(
    own: int, niceness: Integer, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "own_niceness", lambda: own)
    found = noise_diagnostic(structs.replace(UNKNOWN_NOISE, running_ns=1, waiting_ns=1), niceness)
    assert found is not None
    assert found.message.partition("(unknown involuntary switches)")[2] == advice


@pytest.mark.long
def test_a_busy_machine_is_told_of(made: Path, tmp_path: Path) -> None:
    with spinning(2 * (os.cpu_count() or 1)):
        asked = request(sample(made, "hand_attention"), tmp_path / "run.csv", precision=1e-6, seconds=2.0, nice=0)
        recorded = record(asked)
    found = recorded.header.noise
    assert isinstance(found, Noise)
    assert known(found.involuntary_switches) > 0
    assert known(found.observed_ns) <= known(recorded.header.elapsed_ns)
    (told_of,) = (item.message for item in recorded.header.diagnostics if item.slug == "noisy")
    assert told_of.startswith("noisy machine: the program's threads waited for a CPU ")


def test_nobody_has_seen_a_run_that_is_short(made: Path, tmp_path: Path) -> None:
    for attempt in range(3):  # one that the system lets stand still is seen
        recorded = record(request(sample(made, "hand_mlp"), tmp_path / f"{attempt}.csv", iterations=1, warmup=0))
        if recorded.header.noise.observed_ns is UNKNOWN:
            break
        assert "noise-unknown" not in {item.slug for item in recorded.header.diagnostics}
    assert recorded.header.noise == UNKNOWN_NOISE
    (told,) = (item.message for item in recorded.header.diagnostics if item.slug == "noise-unknown")
    measured = format_ns(recorded.header.elapsed_ns)
    assert told == f"noise unknown: the measured calls took only {measured}"


def test_it_says_how_little_was_looked_at() -> None:
    seen = structs.replace(UNKNOWN_NOISE, observed_ns=231_000_000, running_ns=1, waiting_ns=1)
    for elapsed_ns, said in ((1_800_000_000, "; observed for 231 ms of 1.80 s"), (400_000_000, ""), (UNKNOWN, "")):
        found = noise_diagnostic(seen, -20, elapsed_ns)
        assert found is not None
        assert found.message.endswith(f"(unknown involuntary switches{said})")
    found = unknown_noise_diagnostic(UNKNOWN_NOISE, 900_000_000, 10)
    assert found is not None
    assert found.message.endswith(": the measured calls took only 900 ms in 10 launches, each too short")


def test_of_a_run_that_was_seen_nothing_is_unknown() -> None:
    assert unknown_noise_diagnostic(UNKNOWN_NOISE, 1_500_000) is not None
    assert unknown_noise_diagnostic(structs.replace(UNKNOWN_NOISE, observed_ns=1), 1_500_000) is None
    assert unknown_noise_diagnostic(UNKNOWN_NOISE, UNKNOWN) is None
    assert unknown_noise_diagnostic(UNKNOWN_NOISE, 5_000_000_000) is None  # no event tells when its calls were
