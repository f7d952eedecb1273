"""Run work in a forked process: it starts with this process's memory, and cannot change it.

The result is bytes, received through a pipe; nothing else of the child is visible, however it ends. If this process
ends first, in any way, the child is killed, and so are the child's own children.
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

from tracemap.core.process.limits import usable_processors

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LENGTH_BYTES: Final = 8
"""Length of the number before the result, which shows whether the result is complete."""
_MOST_AT_ONCE: Final = 1 << 20
_STATUS_UNKNOWN: Final = 0
_PR_SET_PDEATHSIG: Final = 1

_at_work: Final[set[int]] = set()
"""Forked processes of this one that have not been waited for."""
os.register_at_fork(after_in_child=_at_work.clear)


def end_all() -> None:
    """Kill all forked children, since this process ends. Takes no lock, since its holder may have been interrupted."""
    for pid in list(_at_work):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class ForkedWork:
    """A working child process, and the reading end of its pipe."""

    def __init__(self, pid: int, reading: FileIO) -> None:
        self.pid, self._reading = pid, reading
        self._status: int | None = None
        _at_work.add(pid)

    def told(self, most_s: float | None = None) -> bytes:
        """Wait for the result; empty if the child failed, or ended before it had sent all.

        Raises:
            TimeoutError: no data came for `most_s` seconds.
        """
        parts: list[bytes] = []
        waiting = select.poll()  # `select` cannot handle file descriptors above 1,023
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(None if most_s is None else most_s * 1000):
            part = self._reading.read(_MOST_AT_ONCE)
            if not part:
                data = b"".join(parts)
                length, result = int.from_bytes(data[:_LENGTH_BYTES], "little"), data[_LENGTH_BYTES:]
                return result if length == len(result) else b""
            parts.append(part)
        raise TimeoutError

    def poll(self) -> int | None:
        """The exit status of a child that has ended, as `subprocess.Popen.poll` returns it; None while it works."""
        if self._status is None:
            with suppress(ChildProcessError):  # this program ignores SIGCHLD, or another thread has asked
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                self._status = os.waitpid(self.pid, 0)[1]
                _at_work.discard(self.pid)
        return os.waitstatus_to_exitcode(_STATUS_UNKNOWN if self._status is None else self._status)

    def kill(self) -> None:
        """Kill the child if it still works; its result then is empty."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the child if it still works, and wait for it; returns its status as `os.waitpid` does."""
        self._reading.close()
        if self._status is None:
            self._status = _STATUS_UNKNOWN
            # If this program ignores SIGCHLD, the child cannot be waited for, and its process id may have been
            # reused.
            with suppress(ChildProcessError, ProcessLookupError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(self.pid, signal.SIGKILL)
                self._status = os.waitpid(self.pid, 0)[1]
            _at_work.discard(self.pid)
        return self._status


@contextmanager
def fork_work(work: Callable[[], bytes]) -> Iterator[ForkedWork]:
    """Start work in a child process, which ends with the block at the latest.

    `work` must not need anything that another thread of this process may hold: the child has only this thread. If it
    raises an exception, there is no result.

    Raises:
        OSError: no more processes or files are allowed.
    """
    import ctypes

    reading, writing = os.pipe()
    # Look these up here: in the child, the loader's lock may be held by a thread that does not exist there.
    prctl, this = ctypes.CDLL(None).prctl, os.getpid()

    def work_for_this_one() -> bytes:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != this:  # the parent ended before the line above
            os._exit(1)
        return work()

    with FileIO(reading) as told:
        child, before = None, signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            try:
                # This process has its own handlers for these signals, which the child must not run.
                signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
                with warnings.catch_warnings():
                    # Python 3.12 and JAX warn about forks with threads: the work needs nothing that threads may hold.
                    warnings.simplefilter("ignore")
                    pid = os.fork()
                if pid == 0:
                    told.close()  # or the child would never learn that nobody reads any more
                    _work_and_exit(work_for_this_one, writing, before)
                child = ForkedWork(pid, told)
            finally:
                os.close(writing)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield child
        finally:
            if child is not None:
                child.end()


def _work_and_exit(work: Callable[[], bytes], writing: int, mask: Collection[int]) -> NoReturn:
    """The child: nothing but its result is visible, however it ends."""
    all_told = False
    try:
        gc.disable()  # it would free objects of the parent, and may wait for the parent's threads
        faulthandler.disable()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the work would not learn how its own children end
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        result = work()
        _write_all(writing, len(result).to_bytes(_LENGTH_BYTES, "little"))
        _write_all(writing, result)
        all_told = True
    finally:
        os._exit(0 if all_told else 1)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


@contextmanager
def in_child_process(work: Callable[[], bytes], *, worth_it: bool = True) -> Iterator[Callable[[], bytes]]:
    """Start work on another CPU; yields a function that waits for the result, which is never empty.

    If that is impossible, or not worth a process, the work is done here when the result is requested. So its errors
    also appear here.
    """
    with ExitStack() as ended:
        child = None
        if worth_it and usable_processors() > 1 and not others_run():
            with suppress(OSError):
                child = ended.enter_context(fork_work(work))
        yield lambda: (child.told() if child else b"") or work()


class LockFreeThread(threading.Thread):
    """A thread that holds no lock that Python code may need: other threads may fork next to it."""


def others_run() -> bool:
    """Whether other threads run. They may hold a lock that the work needs, as caches and imports do."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    # The thread of rich only shows progress.
    return any(not isinstance(thread, LockFreeThread) and type(thread).__module__ != "rich.live" for thread in others)
