"""Signals that end a program have it clear all that it made; then it dies of the signal.

Where somebody waits who can be interrupted, a signal becomes an exception; elsewhere it does not, since libraries
that one cuts short may abort. Only the command line asks for all this; elsewhere signals are the host program's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


class Ended(BaseException):
    """A signal asked the program to end, while somebody waited who can be interrupted."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
        self.number = number


class _Asked:
    """What signals have asked for; they come at any time, but only to the main thread."""

    number = 0
    """The last one; 0: none."""
    answered = False
    """Whoever was interrupted goes on to an end of its own, such as a run of what was recorded."""
    held = 0
    """How many parts of the program that must not be cut short are running."""
    waiting = 0
    """A signal that came meanwhile."""
    effective = False
    """A signal has taken effect: whoever sends another one gives up what the first one left to be done."""
    putting_off = 0
    """How many parts of the program are running that come to an end of their own after Ctrl-C."""
    put_off = 0
    """The Ctrl-C that came meanwhile, which nobody has answered yet."""
    interruptible = 0
    """How many wait for what a signal may interrupt."""
    end: Callable[[int], object] = os._exit
    """Clears all, and dies of the signal."""


_last_words: list[Callable[[], str]] = []


def end_on_signals(end: Callable[[int], object]) -> None:
    """From now on signals call this, but those that whoever started the program had ignored (`nohup`, `&`)."""
    _Asked.end = staticmethod(end)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some parents leave it, no child's status is to be had
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    _Asked.number, _Asked.answered = number, False
    if _Asked.held:
        _Asked.waiting = number
        return
    is_first, _Asked.effective = not _Asked.effective, True
    if _Asked.interruptible:
        raise Ended(number)
    if _Asked.putting_off and number == signal.SIGINT and is_first:
        _Asked.put_off = number
    else:
        _Asked.end(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals that come in here raise `Ended`, as does a Ctrl-C that was put off before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _Asked.put_off:
        number, _Asked.put_off = _Asked.put_off, 0
        raise Ended(number)
    _Asked.interruptible += 1
    try:
        yield
    finally:
        _Asked.interruptible -= 1


@contextmanager
def putting_off() -> Iterator[None]:
    """The first Ctrl-C that comes in here, where nothing is interruptible, ends nothing by itself.

    Whoever works in here asks by `asked_by` whether there was one, does what is left to be done, and answers. Behind it
    one that was not answered takes effect; a second one, and signals of other kinds, do so at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is raised here anyway
        return
    _Asked.putting_off += 1
    try:
        yield
    finally:
        _Asked.putting_off -= 1
    if _Asked.put_off and not _Asked.putting_off:  # an error, which is behind us, ends the program anyway
        _Asked.end(_Asked.put_off)


@contextmanager
def last_words(words: Callable[[], str]) -> Iterator[None]:
    """What is to be done, and said ("": nothing), where a signal ends the program in here."""
    _last_words.append(words)
    try:
        yield
    finally:
        _last_words.remove(words)


def said_at_the_end() -> list[str]:
    """What those say that still have something to do."""
    return [said for words in reversed(_last_words) if (said := words())]


@contextmanager
def undisturbed() -> Iterator[None]:
    """What stands in here is not cut short: a signal that comes meanwhile takes effect behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is raised here anyway
        return
    _Asked.held += 1
    try:
        yield
    finally:
        _Asked.held -= 1
        if _Asked.waiting and not _Asked.held:
            number, _Asked.waiting = _Asked.waiting, 0
            _end(number, None)


def asked_by() -> int:
    """The signal that asked the program to end; 0: none did."""
    return _Asked.number


def answer() -> None:
    """Say that what was asked for is being done: an error from here on is not one that only the signal has made."""
    _Asked.answered, _Asked.put_off = True, 0


def is_answered() -> bool:
    """Whether nobody asked the program to end, or somebody said that this is being done."""
    return not _Asked.number or _Asked.answered


def hold_signals() -> None:
    """From now on no signal cuts anything short: the program clears what it made, and is about to end."""
    _Asked.held += 1


def die_of(number: int) -> None:
    """End as the signal ends programs, so that whoever started this one sees what ended it; buffers are not written."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
