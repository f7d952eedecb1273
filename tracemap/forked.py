"""Work in a forked process: it begins with this one's memory, and does nothing to it.

What the work finds is bytes, which come through a pipe; nothing else of the process is to be seen, whichever way it
ends. Where this process ends first, whichever way, the other one does so with it, and so does one that works for that.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from typing import Final, NoReturn

from tracemap.processors import usable_processors

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LENGTH_BYTES: Final = 8
"""Of the number before what was found, by which one sees that all of it came."""
_MOST_AT_ONCE: Final = 1 << 20
_STATUS_UNKNOWN: Final = 0
_PR_SET_PDEATHSIG: Final = 1


_at_work: Final[set[int]] = set()
"""The processes that this one has forked and not waited for yet."""
os.register_at_fork(after_in_child=_at_work.clear)


def end_all() -> None:
    """Kill those that are at work: this process ends. It takes no lock, as whoever has it may be cut short."""
    for pid in list(_at_work):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Forked:
    """A process that is at work, and the end of the pipe that it writes to."""

    def __init__(self, pid: int, reading: FileIO) -> None:
        self._pid, self._reading = pid, reading
        self._status: int | None = None
        _at_work.add(pid)

    def told(self, most_s: float | None = None) -> bytes:
        """Wait for what the work finds; empty where it failed, or ended before it had told all.

        Raises:
            TimeoutError: nothing came for so long.
        """
        parts: list[bytes] = []
        waiting = select.poll()  # `select` knows no file behind the first 1,024 of a process
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(None if most_s is None else most_s * 1000):
            part = self._reading.read(_MOST_AT_ONCE)
            if not part:
                return _whole(b"".join(parts))
            parts.append(part)
        raise TimeoutError

    def end(self) -> int:
        """End the process, which may be at work, and wait for it; its status, as `os.waitpid` has it."""
        self._reading.close()
        if self._status is None:
            self._status = _STATUS_UNKNOWN
            # Where this program ignores the end of its children, nobody can wait for them, and the number may be
            # another's by now.
            with suppress(ChildProcessError, ProcessLookupError):
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(self._pid, signal.SIGKILL)
                self._status = os.waitpid(self._pid, 0)[1]
            _at_work.discard(self._pid)
        return self._status


def _whole(told: bytes) -> bytes:
    length, found = told[:_LENGTH_BYTES], told[_LENGTH_BYTES:]
    return found if int.from_bytes(length, "little") == len(found) else b""


@contextmanager
def forked(work: Callable[[], bytes]) -> Iterator[Forked]:
    """Begin work in a process of its own, which ends with the block at the latest.

    `work` must need nothing that another thread of this process may hold: the other process has only this thread. Where
    it raises an exception, nothing is told.

    Raises:
        OSError: there can be no more processes, or files.
    """
    import ctypes

    reading, writing = os.pipe()
    # Looked up here: in the other process the loader's lock may be held by a thread that is not there.
    prctl, this = ctypes.CDLL(None).prctl, os.getpid()

    def work_for_this_one() -> bytes:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != this:  # it ended before the line above
            os._exit(1)
        return work()

    with FileIO(reading) as told:
        child, before = None, signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            try:
                # This process answers these in its own way, which the other one is not to do.
                signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
                pid = _fork()
                if pid == 0:
                    told.close()  # or it would never learn that nobody reads any more
                    _work_and_exit(work_for_this_one, writing, before)
                child = Forked(pid, told)
            finally:
                os.close(writing)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield child
        finally:
            if child is not None:
                child.end()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 and JAX warn of a fork beside threads: the work needs nothing that these may hold.
        warnings.simplefilter("ignore")
        return os.fork()


def _work_and_exit(work: Callable[[], bytes], writing: int, mask: Collection[int]) -> NoReturn:
    """The child: nothing of it but what it writes is to be seen, whichever way it ends."""
    all_told = False
    try:
        gc.disable()  # what it would free is the parent's, and may wait for the parent's threads
        faulthandler.disable()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        found = work()
        _write_all(writing, len(found).to_bytes(_LENGTH_BYTES, "little"))
        _write_all(writing, found)
        all_told = True
    finally:
        os._exit(0 if all_told else 1)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


@contextmanager
def elsewhere(work: Callable[[], bytes], *, worth_it: bool = True) -> Iterator[Callable[[], bytes]]:
    """Begin work on another processor; what is yielded waits for what it finds, which is never empty.

    Where it cannot be done there, or is not worth a process, it is done here, when it is asked for. So whatever is
    wrong with it is told here, too.
    """
    with ExitStack() as ended:
        child = None
        if worth_it and usable_processors() > 1 and not _others_run():
            with suppress(OSError):
                child = ended.enter_context(forked(work))
        yield lambda: (child.told() if child else b"") or work()


class Unlocked(threading.Thread):
    """A thread that takes no lock which Python code may need: others may be forked beside it."""


def _others_run() -> bool:
    """Whether other threads run, which may hold a lock that the work needs, as caches and imports have them."""
    others = (each for each in threading.enumerate() if each is not threading.current_thread())
    # rich's only shows that something goes on.
    return any(not isinstance(each, Unlocked) and type(each).__module__ != "rich.live" for each in others)
