"""Child processes: recorded for cleanup, paused, and ended with this process."""

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

from tracemap.core.errors import SystemLimit, ToolMissing, TracemapError, UsageInvalid, limit_reached
from tracemap.core.process import temporary_files as home
from tracemap.core.process.forked import end_all
from tracemap.core.process.signals import EndedBySignal, signals_deferred
from tracemap.core.process.temporary_files import child_note

# ---- pausing
#
# Pause child programs together with this process, and measure how long.


class _Pauses:
    ns = 0


def paused_ns() -> int:
    """Total time that Ctrl-Z paused this process while it ran programs."""
    return _Pauses.ns


@contextmanager
def pausing_with_us(pid: int) -> Iterator[None]:
    """Forward Ctrl-Z to a program in another session, where the terminal does not reach it.

    Nothing changes if someone else handles Ctrl-Z, or outside of the main thread.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return

    def pause(number: int, _: FrameType | None) -> None:
        _send(pid, signal.SIGSTOP)
        begun_ns = time.monotonic_ns()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here until SIGCONT
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
# Programs that this process starts are recorded, and end with it.
#
# A program gets its own process group, which is killed as a whole, unless it shares the terminal's Ctrl-C. Its
# temporary files go to this process's folder.


Stream = int | IO[bytes] | None

Child = subprocess.Popen[bytes]

_LOG = logging.getLogger("tracemap")
_LEAST_DELAY_S, _MOST_DELAY_S = 0.0005, 0.05


class _Children:
    """Children that have not been ended, with their folder and whether they lead a process group."""

    children: ClassVar[dict[Child, tuple[home.Home | None, bool]]] = {}
    starting = threading.Lock()
    """Held while a child starts, so that it is recorded before this process ends."""
    closed = False
    """This process is ending: nothing more starts."""


def _forget() -> None:  # after a fork, the child process has no children yet
    _Children.children.clear()
    _Children.starting = threading.Lock()


os.register_at_fork(after_in_child=_forget)

_SAFE_STARTS = "./_"
"""Punctuation that may begin a file name. Programs may misread other first characters, except letters and digits."""


def path_argument(path: Path) -> str:
    """A path that no program misreads as an option or a flag file (`@`), or strips of a leading space."""
    text = str(path)
    return text if text[:1].isalnum() or text[:1] in _SAFE_STARTS else f"./{text}"


def log_command(command: Sequence[str | Path]) -> None:
    """Log a command line as a shell would take it, for `--verbose`."""
    _LOG.debug("$ %s", shlex.join(map(str, command)))


def start(
    arguments: Sequence[str | Path],
    *,
    apart: bool = True,
    variables: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
) -> Child:
    """Start a program. Always call `end` for it, even after it has ended by itself.

    Args:
        arguments: the program and its arguments.
        apart: give it its own process group.
        variables: additional environment variables.
        stdin: as for `subprocess.Popen`, like the other streams; /dev/null by default.
        stdout: likewise.
        stderr: likewise.

    Raises:
        ToolMissing: it cannot be started.
        SystemLimit: a limit of the system on processes, memory or arguments is reached.
        UsageInvalid: an argument contains a zero byte, for example from a flag file or a damaged map.
    """
    command = [path_argument(argument) if isinstance(argument, Path) else argument for argument in arguments]
    if broken := next((argument for argument in command if "\0" in argument), ""):
        raise UsageInvalid(f"{broken!r} contains a zero byte, which no program can receive as an argument; remove it")
    log_command(command)
    with signals_deferred(), _Children.starting:
        if _Children.closed:
            raise EndedBySignal(signal.SIGTERM)
        folder = None
        with suppress(OSError):  # programs work without it
            folder = home.enter()
        environment = {**os.environ, **({} if folder is None else {"TMPDIR": str(folder.path)}), **(variables or {})}
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=0 if apart else None,
            )
        except OSError as error:
            if folder is not None:
                home.leave(folder)
            raise _start_error(command[0], error) from error
        _Children.children[child] = folder, apart
        with suppress(OSError):
            if folder is not None:
                folder.note(*child_note(child.pid, group=apart))
        return child


def _start_error(program: str, error: OSError) -> TracemapError:
    if error.errno == errno.E2BIG:
        return SystemLimit(
            f"{program} cannot be started: its arguments and environment variables are longer than the system "
            "allows; give long values in files, such as --input=@file.npy"
        )
    limit = limit_reached(error)
    if limit:
        return SystemLimit(f"{program} cannot be started: {limit}")
    return ToolMissing(f"{program}: cannot be started: {error.strerror}")


def ended_within(child: Child, seconds: float) -> bool:
    """Wait `seconds` for a program's end. A signal may interrupt this: unlike `Popen.wait`, it takes no lock."""
    until, delay = time.monotonic() + seconds, _LEAST_DELAY_S
    while child.returncode is None and os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        delay = min(2 * delay, _MOST_DELAY_S)
        time.sleep(delay)
    return True


def end(child: Child) -> None:
    """Kill a program if it still runs, and wait for it."""
    with signals_deferred():
        folder, apart = _Children.children.pop(child, (None, False))
        if child.poll() is None:
            _kill(child, group=apart)
        child.wait()
        if folder is not None:
            home.leave(folder)


def _kill(child: Child, *, group: bool) -> None:
    with suppress(OSError):
        if group:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            os.kill(child.pid, signal.SIGKILL)


def clear_all() -> None:
    """Kill all running programs and remove all temporary files, since this process ends.

    A program's lock may be held by whoever waits for it, even by this thread. So this does not wait by it; the ledger
    checks by itself that recorded programs are gone.
    """
    end_all()
    with _Children.starting:
        _Children.closed = True
    for child, (_, apart) in list(_Children.children.items()):
        if child.returncode is None:
            _kill(child, group=apart)
    home.clear_home()
