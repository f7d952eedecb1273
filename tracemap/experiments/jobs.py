"""Jobs for the process that runs kernels alone."""

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

from tracemap.codec import Count, Positive, Record, decode, encode
from tracemap.owned.children import Child, end, ended_within, start
from tracemap.toolchain import check_runtime, ended_by

# ---- job
#
# What is handed to the process that runs kernels alone, and what it answers: one line of JSON per call.
#
# Kernels run in a process of their own, since one that is wrong may end it.


def written_path(path: Path) -> str:
    """A path as JSON can hold it, whose texts are UTF-8: each byte of its name is a character."""
    return os.fsencode(path).decode("latin-1")


def read_path(written: str) -> Path:
    """The inverse of `written_path`."""
    return Path(os.fsdecode(written.encode("latin-1")))


class Fill(Record, frozen=True):
    """Elements of a buffer that are made up before the first call: whole numbers or floats from `low` to below `high`.

    Places as of `reference.memory.View`: `offset` in bytes, `strides` in elements.
    """

    offset: Count
    extents: tuple[Count, ...]
    strides: tuple[int, ...]
    element: str
    low: float
    high: float


class Buffer(Record, frozen=True):
    """The memory of one binding: how long it is, which bytes of it are used, what lies in it before the first call.

    `written`: the kernel may change it, and it is kept for a look at what became of it.
    """

    length: Count
    begin: Count
    end: Count
    written: bool
    fills: tuple[Fill, ...]

    @property
    def moved(self) -> int:
        """How far a copy lies behind the one before it, so that none share what is used, in whole cache lines."""
        return -(-max(self.end - self.begin, 1) // LINE_BYTES) * LINE_BYTES


class Call(Record, frozen=True):
    """A function of a module that records calls of a kernel; `seed` decides what is made up.

    `module` is the place of the module among those of the job.
    """

    function: str
    seed: Count
    buffers: tuple[Buffer, ...]
    module: Count = 0


class Job(Record, frozen=True):
    """What to run: functions of modules on a device, in their order.

    `modules` and `outputs` are as `written_path` has them. `outputs`: a folder for what calls left in buffers that are
    written, empty where it is not wanted. `least_ns`: a measurement takes so long at least; `cold_bytes`: calls are
    measured with so much memory used between two looks at the same, 0: they are not.
    """

    modules: tuple[str, ...]
    device: str
    calls: tuple[Call, ...]
    outputs: str
    repetitions: Count
    least_ns: Positive
    cold_bytes: Count


class Timed(Record, frozen=True):
    """Measurements: how many calls each was of, in how many copies of the buffers in turn, and the time of a call."""

    batch: Count
    copies: Count
    call_ns: tuple[float, ...]


class Place(Record, frozen=True):
    """A byte of a binding."""

    binding: Count
    byte: Count


class Answer(Record, frozen=True):
    """What one call took; `overhead_ns` is the time of a batch of none. `cold` has no times where none were wanted.

    `spoiled`: a byte that the first call changed although it lies where the kernel only reads, or beside what is used.
    """

    call: Count
    overhead_ns: float
    warm: Timed
    cold: Timed
    spoiled: Place | None = None


LINE_BYTES = 64
"""Of a cache; buffers' copies are aligned to it, as IREE aligns bindings."""
GUARD_BYTES = 1 << 20
"""So many bytes before and behind what is used of a buffer are looked at: a wrong bound seldom leads farther."""
CANARY = 0xFF
"""What every byte is that is not made up: floats of it are no numbers, so that whoever reads them shows it."""
EXECUTE = "execute"
"""The function of a module that executes a command buffer so often as it is told."""


# ---- running
#
# Runs a job in a process of its own, and goes on behind a call that ends it.


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
