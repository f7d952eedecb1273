"""Programs that are measured run ahead of others where the system allows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.oracle.busy import spinning
from tests.recording import request, sample
from tests.support import command_line
from tracemap.capture.benchmark import run_program
from tracemap.capture.niceness import AHEAD, may_run_at
from tracemap.capture.record import record
from tracemap.errors import UsageInvalid
from tracemap.measurements.runfile import read_run

_GROUP = Path("/proc/self/autogroup")
_OWN = os.getpriority(os.PRIO_PROCESS, 0)
NEEDS_PRIVILEGE = pytest.mark.skipif(not may_run_at(AHEAD), reason="this user may not run programs ahead of others")
NEEDS_USUAL = pytest.mark.skipif(_OWN != 0, reason="the tests run at a niceness of their own")

# Without the capability, which root has: PR_CAPBSET_DROP, CAP_SYS_NICE (linux/prctl.h, linux/capability.h).
_WITHOUT_CAPABILITY = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, 23)
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
os.execv(sys.argv[1], sys.argv[1:])
"""


def without_capability(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", _WITHOUT_CAPABILITY, *command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("niceness", [7, 19])
def test_a_program_runs_at_the_niceness_that_is_asked_for(niceness: int, made: Path, tmp_path: Path) -> None:
    """As it says itself, and as the run's command does; what runs it keeps its own."""
    asks = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
    assert int(run_program(asks, niceness=niceness).printed) == niceness
    assert int(run_program(asks).printed) == _OWN
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=3, nice=niceness))
    assert recorded.header.command[:3] == ("nice", "-n", str(niceness))
    assert os.getpriority(os.PRIO_PROCESS, 0) == _OWN
    with pytest.raises(UsageInvalid, match="nice is 20; it must be at least -20 and at most 19"):
        record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", nice=20))


@pytest.mark.skipif(not _GROUP.exists(), reason="this kernel does not group programs by session")
def test_so_does_its_session_where_the_kernel_groups_by_these() -> None:
    said = "import os; print(os.getsid(0) == os.getpid(), open('/proc/self/autogroup').read().split()[-1])"
    before = _GROUP.read_text().split()[-1]
    assert run_program([sys.executable, "-c", said], niceness=7).printed.split() == ["True", "7"]
    assert run_program([sys.executable, "-c", said]).printed.split() == ["False", before]
    assert _GROUP.read_text().split()[-1] == before


@NEEDS_PRIVILEGE
def test_it_gets_the_processor_before_programs_of_other_sessions() -> None:
    """Of half a second of work, beside more of them than there are processors."""
    works = "import time; a = time.time()\nwhile time.process_time() < 0.5: pass\nprint(0.5 / (time.time() - a))"
    with spinning(3 * (os.cpu_count() or 1)):
        ahead = float(run_program([sys.executable, "-c", works], niceness=AHEAD).printed)
        beside = float(run_program([sys.executable, "-c", works], niceness=0).printed)
    assert beside < 0.6
    assert ahead > 0.8


@NEEDS_PRIVILEGE
@NEEDS_USUAL
def test_a_recorded_program_runs_ahead_of_others(made: Path, tmp_path: Path) -> None:
    recorded = record(request(sample(made, "hand_mlp"), tmp_path / "run.csv", iterations=3))
    assert recorded.header.command[:3] == ("nice", "-n", "-20")


def test_it_runs_as_we_do_where_the_system_does_not_grant_more(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    command = command_line("record", built("hand_mlp"), "--iterations", "3", "-o", run)
    done = without_capability(command)
    assert done.returncode == 0, done.stderr
    assert "nice" not in read_run(run).header.command


def test_a_niceness_that_the_system_does_not_grant_is_refused(built: Built, tmp_path: Path) -> None:
    done = without_capability(command_line("record", built("hand_mlp"), "--nice", "-5", "-o", tmp_path / "run.csv"))
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: --nice -5: this user may not run programs at that niceness, which ")
    assert list(tmp_path.iterdir()) == []


def test_whoever_starts_us_at_a_niceness_has_decided(built: Built, tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    command = command_line("record", built("hand_mlp"), "--iterations", "3", "-o", run)
    subprocess.run(["nice", "-n", "3", *command], check=True, capture_output=True)
    assert "nice" not in read_run(run).header.command
