"""Ctrl-C at any moment of a recording keeps what is complete, and the run says what is missing.

The moments are those at which a function of ours is called, by which the program sends itself the signal.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.recording import events
from tests.support import SAMPLES
from tracemap.runs.model import RunHeader
from tracemap.runs.runfile import read_run

_INTERRUPTED_AT = """
import importlib, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a user has it, also where tests run in the background of a shell
where, number, send = sys.argv[1], int(sys.argv[2]), sys.argv[3]
module, _, name = where.rpartition(".")
module = importlib.import_module(module)
function, called = getattr(module, name), 0

def interrupted(*given, **named):
    global called
    called += 1
    if called == number:
        for _ in range(2 if send == "twice" else 1):
            (os.killpg if send == "group" else os.kill)(os.getpgrp() if send == "group" else os.getpid(), signal.SIGINT)
    return function(*given, **named)

setattr(module, name, interrupted)
sys.argv = ["tracemap", *sys.argv[4:]]
from tracemap.commands.main import main
main()
"""
_READ, _REST, _START = "execution.load_profile", "launches._next_goal", "benchmark.start"
_LAUNCHES = ("--seconds", "8", "--precision", "50", "--launches", "3")

Interrupted = Callable[..., str]


@pytest.fixture
def interrupted(built: Built, tmp_path: Path) -> Interrupted:
    """A recording to `run.parquet` with a Ctrl-C at the nth call of a function; returns what it said of it."""

    def run(where: str, number: int, *options: str, send: str = "once") -> str:
        command = [
            *(sys.executable, "-c", _INTERRUPTED_AT, f"tracemap.capture.{where}", str(number), send),
            *("record", str(built("hand_mlp")), "--flagfile", str(SAMPLES / "flags" / "hand_mlp.flags")),
            *(*options, "-o", str(tmp_path / "run.parquet")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, process_group=0)
        assert done.returncode == -signal.SIGINT, done.stderr
        assert done.stdout == ""
        return done.stderr

    return run


def header_of_only(folder: Path) -> RunHeader:
    """Of the run, beside which nothing was left."""
    assert [path.name for path in folder.iterdir()] == ["run.parquet"]
    assert events(folder / "run.parquet")
    return read_run(folder / "run.parquet").header


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "number", "kept"),
    [(_READ, 1, 1), (_REST, 1, 1), (_START, 2, 1), (_READ, 2, 3), (_REST, 2, 2), ("launches.join_profiles", 1, 3)],
)
def test_launches_that_were_whole_are_kept(
    where: str, number: int, kept: int, interrupted: Interrupted, tmp_path: Path
) -> None:
    """While a profile is read, between two launches, and as the next one is started."""
    said = interrupted(where, number, *_LAUNCHES)
    header = header_of_only(tmp_path)
    assert header.launches == kept
    if kept == 3:  # nothing is missing
        assert said == f"tracemap: error: the recording of mlp was interrupted; {in_run('the timings', tmp_path)}"
        return
    behind = f"was interrupted after {kept} whole launch{'es' if kept > 1 else ''}"
    assert f"{behind}; {in_run('the events recorded until then', tmp_path)}" in said
    (told,) = (each.message for each in header.diagnostics if each.slug == "program-killed")
    assert told.endswith(behind)


def in_run(what: str, folder: Path) -> str:
    return f"{what} are in {folder / 'run.parquet'} [program-failed]\n"


@pytest.mark.long
def test_a_later_launch_that_a_terminal_interrupts_is_dropped(interrupted: Interrupted, tmp_path: Path) -> None:
    """The program in it gets the signal too."""
    said = interrupted("benchmark._watch", 2, *_LAUNCHES, send="group")
    assert "was interrupted after 1 whole launch; " in said
    assert header_of_only(tmp_path).launches == 1


@pytest.mark.long
def test_calls_of_a_number_that_were_all_made_are_kept(interrupted: Interrupted, tmp_path: Path) -> None:
    assert "was interrupted after 1 whole launch; " in interrupted(_READ, 1, "--iterations", "5")
    assert header_of_only(tmp_path).iterations == 5


@pytest.mark.long
@pytest.mark.parametrize("where", ["record.measure_peaks", "record.write_run"])
def test_a_run_that_is_being_written_is_written(where: str, interrupted: Interrupted, tmp_path: Path) -> None:
    said = interrupted(where, 1, "--iterations", "5")
    assert said == f"tracemap: error: the recording of mlp was interrupted; {in_run('the timings', tmp_path)}"
    assert not {"interrupted", "program-killed"} & {each.slug for each in header_of_only(tmp_path).diagnostics}


def test_nothing_is_written_before_anything_was_recorded(interrupted: Interrupted, tmp_path: Path) -> None:
    said = interrupted(_START, 1)
    assert said == (
        "tracemap: error: iree-benchmark-module did not finish mlp: interrupted; nothing was recorded"
        " [program-failed]\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_second_one_gives_up(interrupted: Interrupted, tmp_path: Path) -> None:
    said = interrupted(_READ, 1, *_LAUNCHES, send="twice")
    profile = tmp_path / "run.parquet.ireeprof"
    assert said.startswith(f"tracemap: interrupted; the events recorded until then are in {profile}, which ")
    assert list(tmp_path.iterdir()) == [profile]


# ---- what is measured besides times


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "options", "without"),
    [
        (2, ("--counters", "page-faults"), "counts of events"),
        (3, ("--counters", "page-faults,context-switches", "--counters-per-pass", "1"), "some of the counts of events"),
        (2, ("--compare-devices", "local-sync,local-task"), "times of other devices"),
        (
            *(2, ("--counters", "page-faults", "--compare-devices", "local-sync")),
            "counts of events and times of other devices",
        ),
    ],
)  # fmt: skip
def test_what_was_timed_is_kept(
    number: int, options: tuple[str, ...], without: str, interrupted: Interrupted, tmp_path: Path
) -> None:
    said = interrupted(_START, number, "--iterations", "5", *options)
    header = header_of_only(tmp_path)
    assert said.endswith(f"; the timings are in {tmp_path / 'run.parquet'}, without {without} [program-failed]\n")
    (told,) = (each.message for each in header.diagnostics if each.slug == "interrupted")
    assert told.endswith(f"the run has no {without}")
    assert header.iterations == 5
    assert header.devices == ()
    (row, *_) = (row for row in events(tmp_path / "run.parquet") if row["kind"] == "dispatch")
    assert ("page-faults" in row or "page_faults" in row) == without.startswith("some")
