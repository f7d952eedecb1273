"""Signals that end the program: first clean up, then die of the signal.

A signal raises an exception only inside code that can be interrupted, since some libraries abort otherwise. Only the
command line installs these handlers; as a library, tracemap leaves signals to the host program.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


class EndedBySignal(BaseException):
    """A signal that ends the program arrived in interruptible code."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
        self.number = number


class _Signals:
    """State of signals. They arrive at any time, but only in the main thread."""

    number = 0
    """The last signal; 0: none."""
    confirmed = False
    """Interrupted code goes on to an end of its own, such as writing a run of the recorded events."""
    held = 0
    """Number of active sections that must not be interrupted."""
    waiting = 0
    """A signal that arrived in such a section."""
    effective = False
    """A signal has taken effect; another one gives up the work that the first one left to do."""
    deferring = 0
    """Number of active sections that end by themselves after Ctrl-C."""
    deferred_interrupt = 0
    """A Ctrl-C that arrived in such a section and has not been handled."""
    interruptible = 0
    """Number of active sections that a signal may interrupt."""
    end: Callable[[int], object] = os._exit
    """Cleans up, and dies of the signal."""


_exit_handlers: list[Callable[[], str]] = []


def end_on_signals(end: Callable[[int], object]) -> None:
    """Let signals call `end` from now on, except for signals that the parent has ignored (`nohup`, `&`)."""
    _Signals.end = staticmethod(end)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some parents leave it ignored, and then children have no status
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    _Signals.number, _Signals.confirmed = number, False
    if _Signals.held:
        _Signals.waiting = number
        return
    is_first, _Signals.effective = not _Signals.effective, True
    if _Signals.interruptible:
        raise EndedBySignal(number)
    if _Signals.deferring and number == signal.SIGINT and is_first:
        _Signals.deferred_interrupt = number
    else:
        _Signals.end(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals inside this block raise `EndedBySignal`, and so does a Ctrl-C that was deferred before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _Signals.deferred_interrupt:
        number, _Signals.deferred_interrupt = _Signals.deferred_interrupt, 0
        raise EndedBySignal(number)
    _Signals.interruptible += 1
    try:
        yield
    finally:
        _Signals.interruptible -= 1


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer the first Ctrl-C inside this block, except in interruptible code.

    Code inside the block checks `pending_signal`, finishes its work, and calls `confirm_signal`. A Ctrl-C that is not
    confirmed takes effect after the block. A second Ctrl-C and other signals take effect at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is raised here anyway
        return
    _Signals.deferring += 1
    try:
        yield
    finally:
        _Signals.deferring -= 1
    if _Signals.deferred_interrupt and not _Signals.deferring:  # an error skips this and ends the program
        _Signals.end(_Signals.deferred_interrupt)


@contextmanager
def exit_handler(handler: Callable[[], str]) -> Iterator[None]:
    """Register work, and a message ("": none), for the case that a signal ends the program inside this block."""
    _exit_handlers.append(handler)
    try:
        yield
    finally:
        _exit_handlers.remove(handler)


def run_exit_handlers() -> list[str]:
    """Do the registered work, and return its messages."""
    return [message for handler in reversed(_exit_handlers) if (message := handler())]


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signals until the end of this block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is raised here anyway
        return
    _Signals.held += 1
    try:
        yield
    finally:
        _Signals.held -= 1
        if _Signals.waiting and not _Signals.held:
            number, _Signals.waiting = _Signals.waiting, 0
            _end(number, None)


def pending_signal() -> int:
    """The signal that asked the program to end; 0: none."""
    return _Signals.number


def confirm_signal() -> None:
    """Confirm that the program handles the signal: later errors are not merely its consequence."""
    _Signals.confirmed, _Signals.deferred_interrupt = True, 0


def is_signal_confirmed() -> bool:
    """Whether no signal asked the program to end, or the program handles it."""
    return not _Signals.number or _Signals.confirmed


def hold_signals() -> None:
    """Ignore signals from now on: the program cleans up and is about to end."""
    _Signals.held += 1


def die_of_signal(number: int) -> None:
    """Die of the signal, so that the parent sees the cause. Buffers are not flushed."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
