"""Work in a forked process: it begins with this one's memory, and does nothing to it.

What the work finds is bytes, which come through a pipe; nothing else of the process is to be seen, whichever way it
ends.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from typing import Final, NoReturn

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_AT_ONCE: Final = 1 << 20


class Forked:
    """A process that is at work, and the end of the pipe that it writes to."""

    def __init__(self, pid: int, reading: FileIO) -> None:
        self._pid, self._reading = pid, reading
        self._status: int | None = None

    def told(self, most_s: float | None = None) -> bytes | None:
        """What the work found, nothing where it failed: waits for that. None where it takes longer than this."""
        parts: list[bytes] = []
        waiting = select.poll()  # `select` knows no file behind the first 1,024 of a process
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(None if most_s is None else most_s * 1000):
            part = self._reading.read(_MOST_AT_ONCE)
            if not part:
                return b"".join(parts)
            parts.append(part)
        return None

    def end(self) -> int:
        """End the process, which may be at work, and wait for it; its status, as `os.waitpid` has it."""
        self._reading.close()
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
            self._status = os.waitpid(self._pid, 0)[1]
        return self._status


@contextmanager
def forked(work: Callable[[], bytes]) -> Iterator[Forked]:
    """Begin work in a process of its own, which ends with the block at the latest.

    `work` must do without threads that exist already, which the other process does not have, and without what these
    may hold. An exception ends it.

    Raises:
        OSError: there can be no more processes, or files.
    """
    reading, writing = os.pipe()
    with FileIO(reading) as told:
        child, before = None, signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            try:
                pid = _forked()
                if pid == 0:
                    _work_and_exit(work, writing)
                child = Forked(pid, told)
            finally:
                os.close(writing)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield child
        finally:
            if child is not None:
                child.end()


def _forked() -> int:
    """Fork with the signals held that this process answers in its own way: the child is not to do so."""
    with warnings.catch_warnings():
        # Python 3.12 and JAX warn of a fork beside threads: the child uses nothing that these may hold.
        warnings.simplefilter("ignore")
        return os.fork()


def _work_and_exit(work: Callable[[], bytes], writing: int) -> NoReturn:
    """The child: nothing of it but what it writes is to be seen, whichever way it ends."""
    found = b""
    try:
        gc.disable()  # what it would free is the parent's, and may wait for the parent's threads
        faulthandler.disable()
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        found = work()
    finally:
        with suppress(OSError):
            _write_all(writing, memoryview(found))
        os._exit(not found)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def usable_processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def beside(work: Callable[[], bytes], *, worth_it: bool = True) -> Iterator[Callable[[], bytes]]:
    """Begin work on another processor; what is yielded waits for what it finds.

    Where it cannot be done there, or is not worth a process, it is done here, when it is asked for. So whatever is
    wrong with it is told here, too.
    """
    with ExitStack() as ended:
        child = None
        if worth_it and usable_processors() > 1:
            with suppress(OSError):
                child = ended.enter_context(forked(work))
        yield lambda: (child.told() if child else b"") or work()
