"""Runs a job in a process of its own, and goes on behind a call that ends it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from tracemap.codec import decode, encode
from tracemap.experiments.job import Answer, Job
from tracemap.owned.children import Child, end, ended_within, start
from tracemap.toolchain import check_runtime, ended_by

_PROGRAM: Final = "tracemap.experiments.runner"
_LAST_WORDS = 400
_NO_MEMORY: Final = ("MemoryError", "RESOURCE_EXHAUSTED")
"""In the last words of a process that could not have as much memory as it asked for, of numpy or of the runtime."""
_GRACE_S = 2.0
"""For a process that has answered all, or is about to end by itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that did not come to its end, and how it ended; `for_memory`: there was none for it, which is no fault."""

    call: int
    text: str
    for_memory: bool = False


def run_job(job: Job, folder: Path, limit_s: float, tell: Callable[[int], None]) -> Iterator[Answer | Ended]:
    """Do a job; what its calls answer, in their order.

    Args:
        job: what to run.
        folder: for what is written on the way.
        limit_s: a call that takes longer is ended.
        tell: told the number of each call before it begins.

    Raises:
        ToolMissing: the runtime is not installed.
    """
    check_runtime()
    first = 0
    while first < len(job.calls):
        file = folder / "job.json"
        file.write_bytes(encode(structs.replace(job, calls=job.calls[first:])))
        process = _Process(file, folder / "said.txt", limit_s)
        try:
            done = 0
            for number in range(first, len(job.calls)):
                tell(number)
                line = process.line()
                if not line:
                    break
                answer = decode(line, Answer)
                yield structs.replace(answer, call=first + answer.call)
                done += 1
        finally:
            process.end()
        first += done
        if first < len(job.calls):
            yield process.ending(first)
            first += 1


class _Process:
    """The process that does a job."""

    def __init__(self, file: Path, said: Path, limit_s: float) -> None:
        self._said, self._limit_s, self._late = said, limit_s, False
        with said.open("wb") as stderr:
            arguments = [sys.executable, "-m", _PROGRAM, str(file)]
            self._child: Child = start(arguments, stdout=subprocess.PIPE, stderr=stderr)
        self._rest = b""

    def line(self) -> bytes:
        """The next line; nothing where the process has ended, or is ended for it takes too long."""
        until = time.monotonic() + self._limit_s
        stdout = self._child.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._late = True
                    return b""
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    return b""
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """End it where it still runs."""
        if not self._late:
            ended_within(self._child, _GRACE_S)
        end(self._child)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def ending(self, call: int) -> Ended:
        """How it ended, of the call that was running."""
        if self._late:
            return Ended(call, f"it did not end within {self._limit_s:g} s")
        status = self._child.returncode
        if status == -signal.SIGKILL:
            return Ended(call, f"it {ended_by(-status)}, as it is where memory is short", for_memory=True)
        if status < 0:
            return Ended(call, f"it {ended_by(-status)}")
        said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if said and any(word in said[-1] for word in _NO_MEMORY):
            return Ended(call, "there is not enough memory for its data", for_memory=True)
        return Ended(call, f"it failed: {said[-1][:_LAST_WORDS] if said else f'status {status}'}")
