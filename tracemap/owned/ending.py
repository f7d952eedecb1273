"""Signals that end a program become an exception, so that all that it made is cleared; then it dies of the signal.

Only the command line asks for this; inside of another program, the signals are that program's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked the program to end. Raised in the main thread, wherever that is."""

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


def end_on_signals() -> None:
    """From now on signals raise `Ended`, but those that whoever started the program had ignored (`nohup`, `&`)."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    _Asked.number, _Asked.answered = number, False
    if _Asked.held:
        _Asked.waiting = number
    else:
        raise Ended(number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """What stands in here is not cut short: a signal that comes meanwhile raises behind it."""
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
            raise Ended(number)


def asked_by() -> int:
    """The signal that asked the program to end; 0: none did."""
    return _Asked.number


def answer() -> None:
    """Say that what was asked for is being done: an error from here on is not one that only the signal has made."""
    _Asked.answered = True


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
