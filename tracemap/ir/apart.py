"""Whether the parser survives a text: tried in a process of its own.

Parsers and verifiers are written for texts that are right. On some that were edited or cut they use what is not theirs:
the count region of `flow.dispatch.workgroups`, for one, compares its results with as many types as it should have
(`zip_equal`, compiler/src/iree/compiler/Dialect/Flow/IR/FlowOps.cpp); where the text of a `linalg.generic` fails behind
its region, that is freed before what around it still points there (`GenericOp::parse`,
mlir/lib/Dialect/Linalg/IR/LinalgOps.cpp). That crashes, or spoils the heap, so that something else crashes later, or
never ends, and no exception tells of it. So a text from somebody else is parsed in a forked process first, and here
only where it was parsed well there.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from tracemap.errors import ModelInvalid

_WELL: Final = b"+"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_parses_apart(parse: Callable[[], object], most_s: float) -> None:
    """Try a parse in a process of its own.

    Args:
        parse: the parse; it must do without threads that exist already, which the other process does not have.
        most_s: how long it may take.

    Raises:
        ModelInvalid: the text does not parse, with the parser's message; or the parser crashes, or does not end.
    """
    reading, writing = os.pipe()
    pid, before = 0, signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        try:
            pid = _forked()
            if pid == 0:
                _parse_and_exit(parse, writing, most_s)
        finally:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        told = _told(reading, most_s)
    finally:
        os.close(reading)
        status = _ended(pid) if pid else 0
    if told != _WELL:
        raise ModelInvalid(told.decode(errors="replace") or _without_a_word(status))


def _ended(pid: int) -> int:
    """The status of a child, which may be at work."""
    os.kill(pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
    return os.waitpid(pid, 0)[1]


def _forked() -> int:
    """Fork with the signals held that this process answers in its own way: the child is not to do so."""
    with warnings.catch_warnings():
        # Python 3.12 and JAX warn of a fork beside threads: the child uses nothing that these may hold. Those of MLIR's
        # contexts are idle, and it makes its own.
        warnings.simplefilter("ignore")
        return os.fork()


def _parse_and_exit(parse: Callable[[], object], writing: int, most_s: float) -> NoReturn:
    """The child: nothing of it but what it writes is to be seen, whichever way it ends."""
    told = b""
    try:
        gc.disable()  # what it would free are contexts of the parent, which wait for their threads
        faulthandler.disable()
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        _limit_cpu_time(math.ceil(most_s))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        parse()
        told = _WELL
    except ModelInvalid as error:
        told = str(error).encode(errors="surrogatepass")
    finally:
        with suppress(OSError):
            _write_all(writing, told)
        os._exit(not told)


def _limit_cpu_time(most_s: int) -> None:
    """Whoever is to end a parse that does not end may itself be ended before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY or most_s < soft:
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, hard))


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _told(reading: int, most_s: float) -> bytes:
    """What the child wrote until it ended; nothing where that takes too long."""
    parts: list[bytes] = []
    waiting = select.poll()  # `select` knows no file behind the first 1,024 of a process
    waiting.register(reading, select.POLLIN)
    while waiting.poll(most_s * 1000):
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return _TOO_LONG


_TOO_LONG: Final = b"the parser of IREE's compiler does not come to an end on it"


def _without_a_word(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    how = signal.Signals(-number).name if number < 0 else f"status {number}"
    return f"the parser of IREE's compiler crashes on it ({how})"
