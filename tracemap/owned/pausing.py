"""Programs that pause while we do, and for how long that was."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class _Pauses:
    """Those of this process."""

    ns = 0


def paused_ns() -> int:
    """How long this process was paused by Ctrl-Z while it ran programs."""
    return _Pauses.ns


@contextmanager
def pausing_with_us(pid: int) -> Iterator[None]:
    """Ctrl-Z in a terminal, which reaches no other session, pauses that program too: nobody would watch it.

    Where somebody else has decided what Ctrl-Z does, or in a thread, nothing is changed.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return

    def pause(number: int, _: FrameType | None) -> None:
        _send(pid, signal.SIGSTOP)
        begun_ns = time.monotonic_ns()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # here it pauses, until it is told to go on
        signal.signal(number, pause)
        _Pauses.ns += time.monotonic_ns() - begun_ns
        _send(pid, signal.SIGCONT)

    signal.signal(signal.SIGTSTP, pause)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
