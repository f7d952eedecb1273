"""Work in forked processes: same results whatever happens to the process, and nothing left behind."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console
from rich.progress import Progress

from tests.commands.test_record import alive, waited_for
from tests.conftest import Built, Recorded
from tests.ir.test_parse_in_subprocess import children
from tests.support import Corpus
from tracemap.commands.report import report
from tracemap.core.process.forked import LockFreeThread, end_all, fork_work, in_child_process
from tracemap.map.bundle import load
from tracemap.options.reports import ReportOptions
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.page import render
from tracemap.reports.page.model import PageRows
from tracemap.reports.page.render import page_rows
from tracemap.reports.page.table_tabs import Texts

HERE = os.getpid()
LONG = bytes(range(256)) * 10_000
"""More than a pipe has room for."""


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def who() -> bytes:
    """The process that works, behind much else."""
    if os.getpid() != HERE:
        os.write(1, b"nobody is to see this")
    return LONG + b"%d" % os.getpid()


def worker(found: bytes) -> int:
    assert found.startswith(LONG)
    return int(found[len(LONG) :])


def test_work_is_done_by_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    before = children()
    with in_child_process(who) as found:
        assert worker(found()) != os.getpid()
    assert children() <= before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("processors", "worth_it"), [({3}, True), ({0, 1}, False)])
def test_work_is_done_here_where_another_process_is_of_no_use(
    processors: set[int], worth_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: processors)
    with in_child_process(who, worth_it=worth_it) as found:
        assert worker(found()) == os.getpid()


@pytest.mark.parametrize("missing", ["os.fork", "os.pipe"])
def test_work_is_done_here_where_there_can_be_no_process(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> NoReturn:
        raise OSError(errno.EAGAIN, "no more of these")

    monkeypatch.setattr(missing, refused)
    with in_child_process(who) as found:
        assert worker(found()) == os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("there")


@pytest.mark.parametrize("ending", [die, fail, sys.exit])
def test_work_that_ends_early_is_done_again(ending: Callable[[], object], capfd: pytest.CaptureFixture[str]) -> None:
    here = os.getpid()

    def work() -> bytes:
        if os.getpid() != here:
            ending()
        return LONG

    with in_child_process(work) as found:
        assert found() == LONG
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_with_work_is_told_here() -> None:
    def work() -> bytes:
        raise ValueError("it cannot be done")

    with pytest.raises(ValueError, match="it cannot be done"), in_child_process(work) as found:
        found()


@pytest.mark.parametrize("told", [0, 5, 1 << 20])
def test_what_is_told_in_part_is_not_taken_for_all(told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here, write = os.getpid(), os.write

    def written(file: int, data: memoryview) -> int:
        nonlocal told
        if os.getpid() == here or file < 3:
            return write(file, data)
        if not told:
            die()
        count = write(file, data[:told])
        told -= count
        return count

    monkeypatch.setattr("os.write", written)
    with in_child_process(who) as found:
        assert worker(found()) == here


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_does_not_outlive_the_one_that_it_works_for(number: signal.Signals) -> None:
    reading, writing = os.pipe()

    def work() -> bytes:
        os.write(writing, b"%d" % os.getpid())
        return LONG

    parent = os.fork()
    if parent == 0:
        try:
            with in_child_process(work):
                time.sleep(600)
        finally:
            os._exit(0)
    os.close(writing)  # so that of a child that is gone the end of the file is read
    child = int(os.read(reading, 20))
    os.kill(parent, number)
    os.waitpid(parent, 0)
    waited_for(lambda: not alive(child))
    os.close(reading)


def test_what_works_for_a_process_that_is_ended_ends_too() -> None:
    """As a parse that may crash does, in a process that matches models meanwhile."""
    reading, writing = os.pipe()

    def inner() -> bytes:
        os.write(writing, b"%d" % os.getpid())
        time.sleep(600)
        return LONG

    def outer() -> bytes:
        with fork_work(inner) as child:
            return child.told()

    with fork_work(outer):
        os.close(writing)
        innermost = int(os.read(reading, 20))
    os.close(reading)
    waited_for(lambda: not alive(innermost))


def test_all_that_is_at_work_ends_with_the_program() -> None:
    def work() -> bytes:
        time.sleep(600)
        return LONG

    began = time.monotonic()
    with fork_work(work) as child:
        end_all()
        assert child.told() == b""
    assert time.monotonic() - began < 300


def test_work_is_done_here_beside_other_threads() -> None:
    """Who is forked while another thread holds a lock, such as those of `cached_property`, would wait for ever."""
    lock = threading.Lock()

    def holder() -> None:
        with lock:
            pass

    def work() -> bytes:
        with lock:
            return who()

    with lock:
        other = threading.Thread(target=holder)
        other.start()
        made = in_child_process(work)
        found = made.__enter__()
    assert worker(found()) == os.getpid()
    made.__exit__(None, None, None)
    other.join()


def test_a_display_is_no_reason_to_work_here() -> None:
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as shown:
        shown.add_task("something goes on")
        assert threading.active_count() > 1
        with in_child_process(who) as found:
            assert worker(found()) != os.getpid()


def test_threads_without_locks_are_no_reason_to_work_here() -> None:
    going_on = threading.Event()
    other = LockFreeThread(target=going_on.wait)
    other.start()
    with in_child_process(who) as found:
        assert worker(found()) != os.getpid()
    going_on.set()
    other.join()


def test_who_ignores_the_end_of_children_has_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with in_child_process(who) as found:
            worker(found())
            time.sleep(0.2)
        with in_child_process(who):
            pass
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("answer", [signal.SIG_IGN, signal.SIG_DFL])
def test_signals_that_are_ignored_here_are_ignored_there(answer: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, answer)

    def work() -> bytes:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGHUP)
        return who()

    here = os.getpid()
    try:
        with in_child_process(work) as found:
            assert (worker(found()) == here) == (answer is signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nobody_waits_for_work_that_is_not_wanted_any_more() -> None:
    def work() -> bytes:
        time.sleep(600)
        return LONG

    before, began = children(), time.monotonic()
    with pytest.raises(ValueError, match="meanwhile"), in_child_process(work):
        raise ValueError("meanwhile")
    assert time.monotonic() - began < 300
    assert children() <= before


@pytest.mark.parametrize("flags", ["jax_gpt2_4l", ""])
def test_a_page_is_the_same_whoever_makes_its_rows(
    flags: str, built: Built, recorded: Recorded, samples: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load(built(samples.model_of(flags) if flags else "hand_mlp"))
    runs = [recorded(flags)] if flags else []
    made, here = [], []

    def seen(costed: MapCosts, texts: Texts) -> PageRows:
        here.append(least)
        return page_rows(costed, texts)

    monkeypatch.setattr(render, "page_rows", seen)
    for least in (0, sys.maxsize):
        monkeypatch.setattr(render, "_WORTH_A_PROCESS", least)
        page = tmp_path / f"{least}.html"
        report(bundle, runs, ReportOptions(page))
        made.append(page.read_bytes())
    assert here == [sys.maxsize]  # what is done elsewhere is not seen
    assert made[0] == made[1]
