"""Work in a forked process: whatever becomes of that, what it finds is the same, and nothing of it is left."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import Built, Recorded
from tests.support import Corpus
from tests.test_apart import children
from tracemap.forked import beside
from tracemap.graph.bundle import load
from tracemap.options.report import ReportOptions
from tracemap.reports.costed import CostedMap
from tracemap.reports.page import render
from tracemap.reports.page.build import Texts, page_rows
from tracemap.reports.page.model import PageRows
from tracemap.session.report import report

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
    with beside(who) as found:
        assert worker(found()) != os.getpid()
    assert children() <= before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("processors", "worth_it"), [({3}, True), ({0, 1}, False)])
def test_work_is_done_here_where_another_process_is_of_no_use(
    processors: set[int], worth_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: processors)
    with beside(who, worth_it=worth_it) as found:
        assert worker(found()) == os.getpid()


@pytest.mark.parametrize("missing", ["os.fork", "os.pipe"])
def test_work_is_done_here_where_there_can_be_no_process(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> NoReturn:
        raise OSError(errno.EAGAIN, "no more of these")

    monkeypatch.setattr(missing, refused)
    with beside(who) as found:
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

    with beside(work) as found:
        assert found() == LONG
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_with_work_is_told_here() -> None:
    def work() -> bytes:
        raise ValueError("it cannot be done")

    with pytest.raises(ValueError, match="it cannot be done"), beside(work) as found:
        found()


def test_nobody_waits_for_work_that_is_not_wanted_any_more() -> None:
    def work() -> bytes:
        time.sleep(600)
        return LONG

    before, began = children(), time.monotonic()
    with pytest.raises(ValueError, match="meanwhile"), beside(work):
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

    def seen(costed: CostedMap, texts: Texts) -> PageRows:
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
