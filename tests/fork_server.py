"""Run the command line in forks of one process that has imported it, so that a start costs 70 ms instead of 400.

A fork is a process like any other: it has its own streams, folder, status and signals. It differs from a fresh start in
that modules are imported already, and that all forks of a server have one seed for hashes. Tests of start-up, signals,
pipes and terminals start a fresh process (`support.command_line`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_LIBRARIES: Final = ("iree.compiler.ir", "jinja2", "rich.table", "pygments.lexers.python")
"""What commands import late from elsewhere."""
_LEFT_OUT: Final = (
    "tracemap.__main__",
    "tracemap.hook.libtracemap_cuda",
    "tracemap.hook.libtracemap_hook",
    "tracemap.kernels.runner",
    "tracemap.frontends",
    "tracemap.model_explorer",
)
"""Imports frameworks or the runtime, runs, or is no Python."""
_LONGEST_REQUEST_BYTES: Final = 1 << 18


class ForkServer:
    """A process that forks for each run of the command line; ends with the process that made it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
            variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads should not fork
            self._process = subprocess.Popen(command, cwd=_ROOT, env=variables, pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], cwd: Path, stdin: bytes) -> subprocess.CompletedProcess[str]:
        """Run `tracemap ARGUMENTS`, with this process's variables; status and output as `subprocess.run` has them."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            status = self._status(arguments, cwd, (given, out, err))
            return subprocess.CompletedProcess(["tracemap", *arguments], status, _text_of(out), _text_of(err))

    def _status(self, arguments: Sequence[str], cwd: Path, streams: Sequence[IO[bytes]]) -> int:
        """Start a fork and wait for it; its exit code, or the negative number of the signal that ended it."""
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "variables": dict(os.environ)})
        answer, theirs = socket.socketpair()
        with answer:
            with theirs, self._lock:
                numbers = [*(stream.fileno() for stream in streams), theirs.fileno()]
                socket.send_fds(self._requests, [os.fsencode(request)], numbers)
            reply = answer.recv(16)
        if not reply:
            raise RuntimeError("the process that forks for tests has ended")
        return os.waitstatus_to_exitcode(int(reply))


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


@cache
def fork_server() -> ForkServer:
    """The server of this process."""
    return ForkServer()


def _serve(requests: socket.socket) -> None:
    """Fork for each request, and send each fork's status; returns in forks, with their request put in place."""
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    answers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 16)
            while answers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with answers.pop(ended[0]) as answer:
                    answer.send(b"%d" % ended[1])
        if requests.fileno() in ready:
            data, numbers, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST_BYTES, 4)
            if not data:
                os._exit(0)  # nobody asks any more
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(json.loads(data), numbers[:3])
                return
            answers[pid] = socket.socket(fileno=numbers[3])
            for number in numbers[:3]:
                os.close(number)


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Be the process that a request asks for: its streams, folder, variables and arguments, and no other files."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    arguments, variables = request["arguments"], request["variables"]
    assert isinstance(arguments, list)
    assert isinstance(variables, dict)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(str(request["cwd"]))
    sys.argv = ["tracemap", *arguments]


def _preload() -> None:
    import tracemap

    for name in _LIBRARIES:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(tracemap.__path__, "tracemap."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)


def _main() -> None:
    from tracemap.commands.main import main

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _preload()
        gc.freeze()  # forks need not look through, and so copy, what was imported
        _serve(requests)
        requests.detach()
    main()


if __name__ == "__main__":
    _main()
