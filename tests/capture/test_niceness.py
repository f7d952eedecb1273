"""Measured programs run ahead of others where the system allows it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.capture.test_noise import known
from tests.conftest import Built
from tests.oracle.busy import spinning
from tests.recording import request, sample
from tests.support import SAMPLES, check_cli, command_line, json_cli
from tracemap.capture.benchmark import run_program
from tracemap.capture.exec_with_parent import groups_by_session
from tracemap.capture.noise import AHEAD, may_run_at, own_niceness, real_time_priority
from tracemap.capture.record import record
from tracemap.core.errors import UsageInvalid
from tracemap.runs.runfile import read_run

_GROUP = Path("/proc/self/autogroup")
_OWN = os.getpriority(os.PRIO_PROCESS, 0)
NEEDS_PRIVILEGE = pytest.mark.skipif(not may_run_at(AHEAD), reason="this user may not run programs ahead of others")
GROUPS_BY_SESSION = pytest.mark.skipif(not groups_by_session(), reason="this kernel does not group programs by session")
NEEDS_USUAL = pytest.mark.skipif(_OWN != 0, reason="the tests run at a niceness of their own")

# Without a capability, which root has: PR_CAPBSET_DROP (linux/prctl.h, linux/capability.h).
_WITHOUT = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
os.execv(sys.argv[2], sys.argv[2:])
"""
_SYS_ADMIN, _SYS_NICE = 21, 23


def without(capability: int, *command: str) -> list[str]:
    """The command line of a program that lacks a capability, and so does what it starts."""
    return [sys.executable, "-c", _WITHOUT, str(capability), *command]


@pytest.mark.long
@pytest.mark.parametrize("niceness", [7, 19])
def test_a_program_runs_at_the_niceness_that_is_asked_for(niceness: int, made: Path, tmp_path: Path) -> None:
    """As it says itself, and as the run's command does; what runs it keeps its own."""
    asks = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
    assert int(run_program(asks, niceness=niceness).stdout) == niceness
    assert int(run_program(asks).stdout) == _OWN
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=3, nice=niceness))
    assert recorded.header.command[:3] == ("nice", "-n", str(niceness))
    assert os.getpriority(os.PRIO_PROCESS, 0) == _OWN
    with pytest.raises(UsageInvalid, match="nice is -21; it must be at least -20 and at most 19"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", nice=-21))


@GROUPS_BY_SESSION
def test_so_does_its_session_where_the_kernel_groups_by_these() -> None:
    """Where nobody has begun a session since the system started, a process has no group: its file is empty."""
    said = "import os; print(os.getsid(0) == os.getpid(), *open('/proc/self/autogroup').read().split()[-1:])"
    before = _GROUP.read_text()
    assert run_program([sys.executable, "-c", said], niceness=7).stdout.split() == ["True", "7"]
    assert run_program([sys.executable, "-c", said]).stdout.split() == ["False", *before.split()[-1:]]
    assert _GROUP.read_text() == before


@pytest.mark.long
@NEEDS_PRIVILEGE
def test_it_gets_the_processor_before_programs_of_other_sessions() -> None:
    """Of half a second of work, beside more of them than there are processors."""
    works = "import time; a = time.time()\nwhile time.process_time() < 0.5: pass\nprint(0.5 / (time.time() - a))"
    with spinning(3 * (os.cpu_count() or 1)):
        ahead = float(run_program([sys.executable, "-c", works], niceness=AHEAD).stdout)
        beside = float(run_program([sys.executable, "-c", works], niceness=0).stdout)
    assert beside < 0.5
    assert ahead > 0.65


@NEEDS_PRIVILEGE
@NEEDS_USUAL
def test_a_recorded_program_runs_ahead_of_others(made: Path, tmp_path: Path) -> None:
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=3))
    assert recorded.header.command[:3] == ("nice", "-n", "-20")


def test_it_runs_as_we_do_where_the_system_does_not_grant_more(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    command = command_line("record", built("hand_mlp"), "--iterations", "3", "-o", run)
    done = subprocess.run(without(_SYS_NICE, *command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nice" not in read_run(run).header.command


@pytest.mark.long
def test_a_niceness_that_the_system_does_not_grant_is_refused(built: Built, tmp_path: Path) -> None:
    command = command_line("record", built("hand_mlp"), "--nice", "-5", "-o", tmp_path / "run.csv")
    done = subprocess.run(without(_SYS_NICE, *command), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "tracemap: error: --nice -5: this user may not run programs at that niceness. It takes root"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_whoever_starts_us_at_a_niceness_has_decided(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    command = command_line("record", built("hand_mlp"), "--iterations", "3", "-o", run)
    subprocess.run(["nice", "-n", "3", *command], check=True, capture_output=True)
    assert read_run(run).header.command[:3] == ("nice", "-n", str(_OWN + 3))


@GROUPS_BY_SESSION
def test_it_is_not_ahead_where_its_session_cannot_be() -> None:
    """As in containers whose /proc is read-only."""
    asks = f"from tracemap.capture.noise import may_run_at; print(may_run_at({AHEAD}), may_run_at(7))"
    script = f"mount -o remount,ro,bind /proc && exec {sys.executable} -c '{asks}'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"/proc cannot be made read-only: {done.stderr}")
    assert done.stdout == "False False\n"


@pytest.mark.long
@GROUPS_BY_SESSION
def test_sessions_that_begin_at_the_same_time_all_get_their_niceness() -> None:
    """Without CAP_SYS_ADMIN the kernel allows one change in a tenth of a second, on the whole system."""
    asks = (
        "import sys; from tracemap.capture.benchmark import run_program; print(run_program([sys.executable, '-c', "
        "'print(open(\"/proc/self/autogroup\").read().split()[-1])'], niceness=7).stdout.strip())"
    )
    command = without(_SYS_ADMIN, sys.executable, "-c", asks)
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [each.communicate()[0] for each in running] == ["7\n"] * 6


@pytest.mark.long
def test_who_watches_it_gets_its_part_of_a_single_processor(built: Built, tmp_path: Path) -> None:
    """Beside a program that never waits, which would go on for minutes if nobody saw that it was enough."""
    run = tmp_path / "run.parquet"
    more = ("--seconds", "2", "--precision", "1e-6", "--launches", "1", "-o", run, "--", "--device=local-sync")
    processor = min(os.sched_getaffinity(0))
    begun = time.monotonic()
    subprocess.run(
        command_line(
            "record", built("hand_attention"), "--flagfile", SAMPLES / "flags" / "hand_attention.flags", *more
        ),
        check=True,
        capture_output=True,
        timeout=60,
        preexec_fn=lambda: os.sched_setaffinity(0, {processor}),
    )
    header = read_run(run).header
    assert 1.5e9 < known(header.elapsed_ns) < 1e9 * (time.monotonic() - begun)


@NEEDS_PRIVILEGE
def test_it_is_watched_by_one_that_comes_first_and_what_that_starts_does_not() -> None:
    asks = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)"]
    seen = []

    def watch(_: int) -> bool:
        seen.append(os.sched_getscheduler(0))
        return True

    done = run_program([sys.executable, "-c", "import time; time.sleep(0.5)"], {}, watch, 0.01, AHEAD)
    assert done.status == 0
    assert set(seen) == {os.SCHED_RR | os.SCHED_RESET_ON_FORK}
    assert run_program(asks, niceness=AHEAD).stdout == "True\n"
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@NEEDS_PRIVILEGE
def test_who_may_not_take_the_reset_at_forks_back_still_stops_being_first() -> None:
    """As users whom a limit (RLIMIT_RTPRIO) allows to be first, and no capability to take that back."""
    asks = "import os; from tracemap.capture import noise as n; n._leave_real_time(); print(os.sched_getscheduler(0))"
    first = "import os, sys; os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1)); "
    command = without(_SYS_NICE, sys.executable, "-c", asks)
    script = f"{first}os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_OTHER | os.SCHED_RESET_ON_FORK


def test_where_an_error_comes_we_run_as_before() -> None:
    with pytest.raises(ZeroDivisionError), real_time_priority(AHEAD):
        _ = 1 // 0
    assert (own_niceness(), os.sched_getscheduler(0)) == (_OWN, os.SCHED_OTHER)


@pytest.mark.long
def test_runs_of_other_niceness_are_not_alike(built: Built, tmp_path: Path) -> None:
    runs = tmp_path / "one.csv", tmp_path / "two.csv"
    for run, niceness in zip(runs, ("3", "4"), strict=True):
        check_cli("record", built("hand_mlp"), "--iterations", "3", "--nice", niceness, "-o", run)
    notes = json_cli("diff", *runs, "--map-a", built("hand_mlp"), "--map-b", built("hand_mlp"))["diagnostics"]
    assert "the runs differ in niceness: 3 before, 4 after" in [note["message"] for note in notes]
