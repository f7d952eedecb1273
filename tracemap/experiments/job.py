"""What is handed to the process that runs kernels alone, and what it answers: one line of JSON per call.

Kernels run in a process of their own, since one that is wrong may end it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tracemap.codec import Count, Positive, Record


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
