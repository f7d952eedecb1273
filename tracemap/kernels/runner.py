"""Process that runs kernels alone: `python -m tracemap.kernels.runner JOB` prints one line of JSON per call.

It calls the functions of a module through IREE's runtime. A batch of calls is a command buffer that is executed one or
more times. So the measured time is the kernel's, plus one submission per execution.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree_runtime
import numpy as np

from tracemap.core.codec import decode, encode
from tracemap.kernels.bench_cases import length_of_copies, used_bytes
from tracemap.kernels.runner_jobs import (
    CANARY,
    EXECUTE,
    GUARD_BYTES,
    Buffer,
    BufferByte,
    Call,
    CallResult,
    Job,
    Timing,
    read_path,
)

_MAX_BATCH = 1 << 22
_MAX_RECORDED = 1 << 10
"""Maximum of calls in a command buffer, which occupies caches, too; the number of copies if that is larger.

A command buffer goes through all copies a whole number of times. Its next execution begins with the first copy, so an
incomplete turn would reuse copies that are still in the cache.
"""
_MAX_COPIED_BYTES = 1 << 30
_OVERHEAD_FACTOR = 100
"""Least time of a batch over the time of an empty batch: keeps clock and submission below one percent."""
_OVERHEAD_REPETITIONS = 5

Run = Callable[[int], int]
"""Run a batch with this number of calls; returns its time in ns."""


def _load_module(instance: Any, module: Path) -> Any:  # noqa: ANN401 - IREE's objects have no type
    """Map a module file. The bindings accept only UTF-8 names, so the name of the open file descriptor is passed."""
    with module.open("rb") as file:
        return iree_runtime.VmModule.mmap(instance, f"/proc/self/fd/{file.fileno()}")


def _arguments(*values: Any) -> Any:  # noqa: ANN401 - IREE's objects have no type
    arguments = iree_runtime.VmVariantList(len(values))
    for value in values:
        (arguments.push_int if isinstance(value, int) else arguments.push_ref)(value)
    return arguments


class _Device:
    def __init__(self, job: Job) -> None:
        # IREE reads its flags when the first driver is created.
        config = iree_runtime.Config(job.device)
        self._device: Any = config.device
        instance = config.vm_instance
        self._modules = [_load_module(instance, read_path(module)) for module in job.modules]
        hal = iree_runtime.create_hal_module(instance, self._device)
        self._contexts = [iree_runtime.VmContext(instance, [hal, module]) for module in self._modules]

    def record(self, call: Call, batch: int, copies: int, buffers: Sequence[tuple[Any, int]]) -> Any:  # noqa: ANN401 - IREE's object has no type
        """Record calls into a command buffer."""
        arguments = _arguments(batch, copies, *itertools.chain.from_iterable(buffers))
        results = iree_runtime.VmVariantList(1)
        function = self._modules[call.module].lookup_function(call.function)
        self._contexts[call.module].invoke(function, arguments, results)
        return results.get_as_ref(0)

    def execute(self, module: int, commands: Any, times: int) -> int:  # noqa: ANN401 - IREE's object has no type
        """Execute a command buffer; returns its CPU time in ns.

        `local-sync` does all work on the calling thread. CPU time excludes waiting for other programs.
        """
        arguments, results = _arguments(commands, times), iree_runtime.VmVariantList(0)
        function, context = self._modules[module].lookup_function(EXECUTE), self._contexts[module]
        begin = time.thread_time_ns()
        context.invoke(function, arguments, results)
        return time.thread_time_ns() - begin

    def buffer(self, length: int) -> tuple[Any, Any]:
        """Allocate device memory: returns a buffer view and its writable bytes."""
        memory = iree_runtime.MemoryType
        kind = int(memory.DEVICE_LOCAL | memory.HOST_VISIBLE)
        usage = int(iree_runtime.BufferUsage.DEFAULT | iree_runtime.BufferUsage.MAPPING)
        allocated = self._device.allocator.allocate_buffer(kind, usage, max(length, 1))
        view = allocated.create_view(iree_runtime.Shape([max(length, 1)]), 1)
        return view, allocated.map().asarray([max(length, 1)], np.dtype(np.uint8))


class _PreparedCall:
    """A call with one or more copies of its buffers."""

    def __init__(self, device: _Device, call: Call, copies: int) -> None:
        self._device, self.call, self.copies = device, call, copies
        self._buffers: list[tuple[Any, int]] = []
        self._bytes: list[Any] = []
        self._commands: tuple[int, Any] = (-1, None)
        for binding, buffer in enumerate(call.buffers):
            view, data = device.buffer(length_of_copies(buffer, copies))
            used = used_bytes(call, binding)
            for copy in range(copies):
                begin = buffer.begin + copy * buffer.moved
                data[begin : begin + used.size] = used
            self._buffers.append((view, buffer.moved))
            self._bytes.append(data)

    def run(self, batch: int) -> int:
        """Run a batch; returns its time in ns.

        If the batch is larger than a command buffer, the command buffer is executed several times.
        """
        recorded = _calls_per_command_buffer(batch, self.copies)
        if self._commands[0] != recorded:
            self._commands = recorded, self._device.record(self.call, recorded, self.copies, self._buffers)
        return self._device.execute(self.call.module, self._commands[1], batch // recorded if recorded else 1)

    def guard(self) -> None:
        """Fill the bytes around the used ones with the canary; for a single copy."""
        for buffer, data in zip(self.call.buffers, self._bytes, strict=True):
            for part in _guard_zones(buffer):
                data[part] = CANARY

    def spoiled(self) -> BufferByte | None:
        """The first changed byte outside the used ones, or in a buffer that the kernel only reads."""
        for binding, (buffer, data) in enumerate(zip(self.call.buffers, self._bytes, strict=True)):
            changes = [(part.start, data[part] != CANARY) for part in _guard_zones(buffer)]
            if not buffer.written:
                changes.append((buffer.begin, data[buffer.begin : buffer.end] != used_bytes(self.call, binding)))
            for begin, changed in changes:
                if changed.any():
                    return BufferByte(binding, begin + int(changed.argmax()))
        return None

    def keep(self, folder: Path, number: int) -> None:
        """Write the used bytes of the writable buffers to files."""
        for binding, (buffer, data) in enumerate(zip(self.call.buffers, self._bytes, strict=True)):
            if buffer.written:
                data[buffer.begin : buffer.end].tofile(folder / f"{number}-{binding}.bin")


def _guard_zones(buffer: Buffer) -> tuple[slice, slice]:
    """The checked bytes before and after the used part of a buffer."""
    before = slice(max(0, buffer.begin - GUARD_BYTES), buffer.begin)
    return before, slice(buffer.end, min(buffer.length, buffer.end + GUARD_BYTES))


def _measure(run: Run, overhead_ns: float, job: Job, copies: int, least_batch: int) -> Timing:
    """Time batches of equal size, large enough that the submission overhead is negligible."""
    least_ns = max(job.least_ns, _OVERHEAD_FACTOR * overhead_ns)
    batch = least_batch
    batch_ns = run(batch)
    while batch_ns < least_ns and batch < _MAX_BATCH:
        more = max(2 * batch, round(1.2 * batch * least_ns / max(batch_ns, 1))) if batch_ns > overhead_ns else 8 * batch
        batch = _round_batch_up(min(_MAX_BATCH, more), copies)
        batch_ns = run(batch)
    times = tuple(round(run(batch) / batch, 3) for _ in range(job.repetitions))
    return Timing(batch, copies, times)


def _round_batch_up(batch: int, copies: int) -> int:
    """Round a batch up to whole executions of a command buffer, which goes through all copies."""
    turns = -(-batch // copies) * copies
    recorded = _calls_per_command_buffer(turns, copies)
    return -(-turns // recorded) * recorded


def _calls_per_command_buffer(batch: int, copies: int) -> int:
    """The calls of a batch per command buffer; a multiple of the copies if the batch is."""
    return min(batch, max(_MAX_RECORDED // copies, 1) * copies)


def _run_call(device: _Device, job: Job, number: int) -> CallResult:
    call = job.calls[number]
    prepared = _PreparedCall(device, call, 1)
    if job.outputs:
        prepared.guard()
    prepared.run(1)
    spoiled = None
    if job.outputs:
        prepared.keep(read_path(job.outputs), number)
        spoiled = prepared.spoiled()
    if not job.repetitions:
        return CallResult(number, spoiled=spoiled)
    overhead = sorted(prepared.run(0) for _ in range(_OVERHEAD_REPETITIONS))[_OVERHEAD_REPETITIONS // 2]
    warm = _measure(prepared.run, overhead, job, 1, 1)
    cold = _measure_cold(device, job, call, overhead) if job.cold_bytes else Timing()
    return CallResult(number, overhead, warm, cold, spoiled)


def _measure_cold(device: _Device, job: Job, call: Call, overhead: float) -> Timing:
    """Time calls with cold caches: cycle through enough copies of the buffers to evict each one before its reuse."""
    used = sum(buffer.moved for buffer in call.buffers)
    copies = max(1, min(-(-job.cold_bytes // used), _MAX_COPIED_BYTES // used))
    prepared = _PreparedCall(device, call, copies)
    prepared.run(copies)  # touch all pages first: page faults occur only once
    return _measure(prepared.run, overhead, job, copies, copies)


def main(path: str) -> None:
    """Run a job; print one line per call as soon as it is done."""
    job = decode(Path(path).read_bytes(), Job)
    device = _Device(job)
    for number in range(len(job.calls)):
        sys.stdout.buffer.write(encode(_run_call(device, job, number)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
