"""Child processes: noted, paused, and ended with this one."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, ClassVar

from tracemap.errors import SystemLimit, ToolMissing, TracemapError, UsageInvalid, limit_reached
from tracemap.forked import end_all
from tracemap.owned import home
from tracemap.owned.ending import Ended, undisturbed
from tracemap.owned.home import child_note

# ---- pausing
#
# Programs that pause while we do, and for how long that was.


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


# ---- children
#
# The programs that this process starts: noted, and ended with it.
#
# A program gets a group of its own, which is ended as a whole, unless it is to share the terminal's Ctrl-C. Its
# temporary files go to this process's folder.


Stream = int | IO[bytes] | None

Child = subprocess.Popen[bytes]

_LOG = logging.getLogger("tracemap")
_LEAST_DELAY_S, _MOST_DELAY_S = 0.0005, 0.05


class _State:
    """The children that nobody has ended yet, each with the folder that it uses and whether it leads a group."""

    children: ClassVar[dict[Child, tuple[home.Home | None, bool]]] = {}
    starting = threading.Lock()
    """Held while one is started, so that it is known when the process ends."""
    closed = False
    """The process ends: nothing more is started."""


def _forget() -> None:
    """A forked process has started nothing yet."""
    _State.children.clear()
    _State.starting = threading.Lock()


os.register_at_fork(after_in_child=_forget)


_STARTS = "./_"
"""What the name of a file may begin with besides letters and digits and still be a name to every program."""


def path_word(path: Path) -> str:
    """A path as programs take it for one: not as an option, a file of flags (`@`) or with its first space cut off."""
    text = str(path)
    return text if text[:1].isalnum() or text[:1] in _STARTS else f"./{text}"


def _word(word: str | Path) -> str:
    """An argument."""
    return path_word(word) if isinstance(word, Path) else word


def start(
    arguments: Sequence[str | Path],
    *,
    apart: bool = True,
    variables: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
) -> Child:
    """Start a program, which is to be ended by `end`, also where it came to its own end.

    Args:
        arguments: the program and its arguments.
        apart: in a group of its own.
        variables: what is added to the environment.
        stdin: as `subprocess.Popen` has it, as are the other streams; by default there are none.
        stdout: likewise.
        stderr: likewise.

    Raises:
        ToolMissing: it cannot be started.
        SystemLimit: there is no room for it, or for its arguments.
        UsageInvalid: an argument holds a zero byte, as a file of flags or a damaged map may.
    """
    words = [_word(word) for word in arguments]
    if broken := next((word for word in words if "\0" in word), ""):
        raise UsageInvalid(f"{broken!r}: holds a zero byte, which no program can be given; leave it out")
    _LOG.debug("$ %s", shlex.join(words))
    with undisturbed(), _State.starting:
        if _State.closed:
            raise Ended(signal.SIGTERM)
        own = _entered()
        surroundings = {**os.environ, **({} if own is None else {"TMPDIR": str(own.path)}), **(variables or {})}
        try:
            child = subprocess.Popen(
                words,
                env=surroundings,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=0 if apart else None,
            )
        except OSError as error:
            _left(own)
            raise _not_started(words[0], error) from error
        _State.children[child] = own, apart
        with suppress(OSError):
            if own is not None:
                own.note(*child_note(child.pid, group=apart))
        return child


def _not_started(program: str, error: OSError) -> TracemapError:
    if error.errno == errno.E2BIG:
        return SystemLimit(
            f"{program} cannot be started: its arguments and the variables of the environment are longer than the "
            "system takes; give long values in files, such as --input=@file.npy"
        )
    limit = limit_reached(error)
    if limit:
        return SystemLimit(f"{program} cannot be started: {limit}")
    return ToolMissing(f"{program}: cannot be started: {error.strerror}")


def ended_within(child: Child, seconds: float) -> bool:
    """Wait so long for a program's end. A signal may cut this short: unlike the child's own, it takes no lock."""
    until, delay = time.monotonic() + seconds, _LEAST_DELAY_S
    while child.returncode is None and os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        delay = min(2 * delay, _MOST_DELAY_S)
        time.sleep(delay)
    return True


def end(child: Child) -> None:
    """Kill a program where it still runs, and wait for it."""
    with undisturbed():
        own, apart = _State.children.pop(child, (None, False))
        if child.poll() is None:
            _kill(child, group=apart)
        child.wait()
        _left(own)


def _kill(child: Child, *, group: bool) -> None:
    with suppress(OSError):
        if group:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            os.kill(child.pid, signal.SIGKILL)


def clear_all() -> None:
    """End all programs that still run, and remove all that this process has made besides results: it ends.

    Whoever waits for a program may hold its lock, this thread too, so that nobody else is to wait by it: that the noted
    ones are gone, the ledger sees by itself.
    """
    end_all()
    with _State.starting:
        _State.closed = True
    for child, (_, apart) in list(_State.children.items()):
        if child.returncode is None:
            _kill(child, group=apart)
    home.clear_home()


def _entered() -> home.Home | None:
    """The folder of this process; None where there is no room for one: a program does without."""
    try:
        return home.enter()
    except OSError:
        return None


def _left(own: home.Home | None) -> None:
    if own is not None:
        home.leave(own)
