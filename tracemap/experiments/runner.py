"""The process that runs kernels alone: `python -m tracemap.experiments.runner JOB`; answers a line of JSON per call.

It calls the functions of a module through IREE's runtime. A batch of calls is a command buffer, executed once or more
often, so that what is measured is the kernel, and once per execution what it costs to submit it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree_runtime
import numpy as np

from tracemap.codec import decode, encode
from tracemap.experiments.cases import copied, used_bytes
from tracemap.experiments.jobs import CANARY, EXECUTE, GUARD_BYTES, Answer, Buffer, Call, Job, Place, Timed, read_path

_MOST_BATCH = 1 << 22
_MOST_RECORDED = 1 << 10
"""Calls in a command buffer, which is read from the caches too; with more copies of the buffers: their number.

It has whole turns of the copies: what comes after its last call begins with the first copy again, which a turn that is
cut off would have used a moment before.
"""
_MOST_COPIED_BYTES = 1 << 30
_OVERHEAD_SHARE = 100
"""A batch takes so many times as long as a batch of none: the clock and the submission are below one percent."""
_LOOKS_AT_OVERHEAD = 5

Run = Callable[[int], int]
"""Runs a batch of so many calls; returns how long that took, in ns."""


def _mapped(instance: Any, module: Path) -> Any:  # noqa: ANN401 - IREE's objects have no type
    """A module of a file; the bindings take names in UTF-8 alone, and that of an open file always is."""
    with module.open("rb") as file:
        return iree_runtime.VmModule.mmap(instance, f"/proc/self/fd/{file.fileno()}")


class _Device:
    """A device with the modules loaded."""

    def __init__(self, job: Job) -> None:
        # Flags are looked at when the first driver is made.
        config = iree_runtime.Config(job.device)
        self._device: Any = config.device
        instance = config.vm_instance
        self._modules = [_mapped(instance, read_path(module)) for module in job.modules]
        hal = iree_runtime.create_hal_module(instance, self._device)
        self._contexts = [iree_runtime.VmContext(instance, [hal, module]) for module in self._modules]

    def recorded(self, call: Call, batch: int, copies: int, buffers: Sequence[tuple[Any, int]]) -> Any:  # noqa: ANN401 - IREE's object has no type
        """Calls in a command buffer."""
        arguments = iree_runtime.VmVariantList(2 + 2 * len(buffers))
        arguments.push_int(batch)
        arguments.push_int(copies)
        for view, moved in buffers:
            arguments.push_ref(view)
            arguments.push_int(moved)
        results = iree_runtime.VmVariantList(1)
        function = self._modules[call.module].lookup_function(call.function)
        self._contexts[call.module].invoke(function, arguments, results)
        return results.get_as_ref(0)

    def execute(self, module: int, commands: Any, times: int) -> int:  # noqa: ANN401 - IREE's object has no type
        """Execute a command buffer; returns the processor's time that it took, in ns.

        `local-sync` does all work on the thread that calls; what that waits for other programs is no work.
        """
        arguments = iree_runtime.VmVariantList(2)
        arguments.push_ref(commands)
        arguments.push_int(times)
        results = iree_runtime.VmVariantList(0)
        function, context = self._modules[module].lookup_function(EXECUTE), self._contexts[module]
        begin = time.thread_time_ns()
        context.invoke(function, arguments, results)
        return time.thread_time_ns() - begin

    def buffer(self, length: int) -> tuple[Any, Any]:
        """Memory of the device: a view of it, and its bytes, which may be changed."""
        memory = iree_runtime.MemoryType
        kind = int(memory.DEVICE_LOCAL | memory.HOST_VISIBLE)
        usage = int(iree_runtime.BufferUsage.DEFAULT | iree_runtime.BufferUsage.MAPPING)
        allocated = self._device.allocator.allocate_buffer(kind, usage, max(length, 1))
        view = allocated.create_view(iree_runtime.Shape([max(length, 1)]), 1)
        return view, allocated.map().asarray([max(length, 1)], np.dtype(np.uint8))


class _Prepared:
    """A call with its buffers, in so many copies."""

    def __init__(self, device: _Device, call: Call, copies: int) -> None:
        self._device, self.call, self.copies = device, call, copies
        self._buffers: list[tuple[Any, int]] = []
        self._bytes: list[Any] = []
        self._commands: tuple[int, Any] = (-1, None)
        for binding, buffer in enumerate(call.buffers):
            view, data = device.buffer(copied(buffer, copies))
            used = used_bytes(call, binding)
            for copy in range(copies):
                begin = buffer.begin + copy * buffer.moved
                data[begin : begin + used.size] = used
            self._buffers.append((view, buffer.moved))
            self._bytes.append(data)

    def run(self, batch: int) -> int:
        """Run a batch; returns its time in ns.

        One of more calls than are recorded at once is so many times what is.
        """
        recorded = _recorded(batch, self.copies)
        if self._commands[0] != recorded:
            self._commands = recorded, self._device.recorded(self.call, recorded, self.copies, self._buffers)
        return self._device.execute(self.call.module, self._commands[1], batch // recorded if recorded else 1)

    def guard(self) -> None:
        """Mark what lies beside the used bytes; of a single copy."""
        for buffer, data in zip(self.call.buffers, self._bytes, strict=True):
            for part in _beside(buffer):
                data[part] = CANARY

    def spoiled(self) -> Place | None:
        """The first byte that was changed beside what is used, or where the kernel only reads."""
        for binding, (buffer, data) in enumerate(zip(self.call.buffers, self._bytes, strict=True)):
            for part in _beside(buffer):
                changed = data[part] != CANARY
                if changed.any():
                    return Place(binding, part.start + int(changed.argmax()))
            if not buffer.written:
                changed = data[buffer.begin : buffer.end] != used_bytes(self.call, binding)
                if changed.any():
                    return Place(binding, buffer.begin + int(changed.argmax()))
        return None

    def keep(self, folder: Path, number: int) -> None:
        """Write what is used of the buffers that may have changed."""
        for binding, (buffer, data) in enumerate(zip(self.call.buffers, self._bytes, strict=True)):
            if buffer.written:
                data[buffer.begin : buffer.end].tofile(folder / f"{number}-{binding}.bin")


def _beside(buffer: Buffer) -> tuple[slice, slice]:
    """The bytes before and behind what is used of a buffer that are looked at."""
    before = slice(max(0, buffer.begin - GUARD_BYTES), buffer.begin)
    return before, slice(buffer.end, min(buffer.length, buffer.end + GUARD_BYTES))


def _measured(run: Run, overhead_ns: float, job: Job, copies: int, least_batch: int) -> Timed:
    """Batches of the same size, large enough that nothing but calls counts."""
    wanted_ns = max(job.least_ns, _OVERHEAD_SHARE * overhead_ns)
    batch = least_batch
    took = run(batch)
    while took < wanted_ns and batch < _MOST_BATCH:
        more = max(2 * batch, round(1.2 * batch * wanted_ns / max(took, 1))) if took > overhead_ns else 8 * batch
        batch = _whole(min(_MOST_BATCH, more), copies)
        took = run(batch)
    times = tuple(round(run(batch) / batch, 3) for _ in range(job.repetitions))
    return Timed(batch, copies, times)


def _whole(batch: int, copies: int) -> int:
    """A batch of whole executions, and these of whole turns."""
    turns = -(-batch // copies) * copies
    recorded = _recorded(turns, copies)
    return -(-turns // recorded) * recorded


def _recorded(batch: int, copies: int) -> int:
    """How many calls of a batch are in one command buffer: whole turns where the batch is of such."""
    return min(batch, max(_MOST_RECORDED // copies, 1) * copies)


def _answer(device: _Device, job: Job, number: int) -> Answer:
    call = job.calls[number]
    prepared = _Prepared(device, call, 1)
    if job.outputs:
        prepared.guard()
    prepared.run(1)
    spoiled = None
    if job.outputs:
        prepared.keep(read_path(job.outputs), number)
        spoiled = prepared.spoiled()
    nothing = Timed(0, 0, ())
    if not job.repetitions:
        return Answer(number, 0.0, nothing, nothing, spoiled)
    overhead = sorted(prepared.run(0) for _ in range(_LOOKS_AT_OVERHEAD))[_LOOKS_AT_OVERHEAD // 2]
    warm = _measured(prepared.run, overhead, job, 1, 1)
    cold = _cold(device, job, call, overhead) if job.cold_bytes else nothing
    return Answer(number, overhead, warm, cold, spoiled)


def _cold(device: _Device, job: Job, call: Call, overhead: float) -> Timed:
    """Calls on one copy of the buffers after the other, until so much was used that the first is in no cache."""
    used = sum(buffer.moved for buffer in call.buffers)
    copies = max(1, min(-(-job.cold_bytes // used), _MOST_COPIED_BYTES // used))
    prepared = _Prepared(device, call, copies)
    prepared.run(copies)  # the first use of a page costs what no later one does
    return _measured(prepared.run, overhead, job, copies, copies)


def main(path: str) -> None:
    """Do a job; one line of standard output per call, as soon as it is done."""
    job = decode(Path(path).read_bytes(), Job)
    device = _Device(job)
    for number in range(len(job.calls)):
        sys.stdout.buffer.write(encode(_answer(device, job, number)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
