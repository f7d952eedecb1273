"""What lies in a kernel's buffers before its first call: made up from a seed, the same in every process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.experiments.job import CANARY, Buffer, Call
from tracemap.experiments.reference.elements import EPSILON, stored_type, to_memory
from tracemap.experiments.reference.memory import View

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracemap.experiments.reference.memory import Memory


def used_bytes(call: Call, binding: int) -> npt.NDArray[np.uint8]:
    """The bytes of a buffer that are used, as they are before the first call. Shape: (end - begin,)."""
    import numpy as np

    buffer = call.buffers[binding]
    memory = np.full(buffer.end - buffer.begin, CANARY, np.uint8)
    for number, fill in enumerate(buffer.fills):
        random = np.random.default_rng((call.seed, binding, number))
        view = View(0, fill.offset - buffer.begin, fill.extents, fill.strides, fill.element)
        values = _values(random, fill.element, fill.low, fill.high, fill.extents)
        view.of([memory])[...] = values
    return memory


def whole_memory(call: Call) -> list[npt.NDArray[np.uint8]]:
    """All bytes of all buffers; pages that are not used are not touched."""
    import numpy as np

    memory = []
    for binding, buffer in enumerate(call.buffers):
        data = np.zeros(buffer.length, np.uint8)
        data[buffer.begin : buffer.end] = used_bytes(call, binding)
        memory.append(data)
    return memory


def left_behind(call: Call, before: Memory, folder: Path, number: int) -> Memory:
    """The memory behind a call: what may have been changed is in files, which are taken away; the rest is as it was."""
    import numpy as np

    memory = list(before)  # nobody writes into any but those that are replaced below
    for binding, buffer in enumerate(call.buffers):
        file = folder / f"{number}-{binding}.bin"
        if buffer.written:
            memory[binding] = np.zeros(buffer.length, np.uint8)  # pages that are not used are not touched
            memory[binding][buffer.begin : buffer.end] = np.fromfile(file, np.uint8)
            file.unlink()
    return memory


def _values(
    random: np.random.Generator, element: str, low: float, high: float, extents: tuple[int, ...]
) -> npt.NDArray[Any]:
    import numpy as np

    if element not in EPSILON:
        return random.integers(int(low), int(high), extents).astype(stored_type(element))
    values = random.random(extents, np.float32)
    values *= high - low
    values += low
    return to_memory(values, element)


def copied(buffer: Buffer, copies: int) -> int:
    """The length of a buffer that holds copies, each moved behind the one before."""
    return buffer.length + (copies - 1) * buffer.moved
