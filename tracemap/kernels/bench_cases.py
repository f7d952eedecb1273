"""Cases to run: one per kernel and kind of work, with the contents of its buffers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.core.process.limits import free_memory
from tracemap.core.units import format_bytes
from tracemap.ir.attributes import Blobs
from tracemap.ir.executables import Dispatch, backend_of
from tracemap.ir.parsing import Module, Operation, nested, string_attribute, walk
from tracemap.kernels.benchmark_module import function_name
from tracemap.kernels.configurations import configuration
from tracemap.kernels.reference.elements import (
    EPSILON,
    SCALE,
    SURPRISES,
    Memory,
    View,
    not_computed,
    stored_type,
    to_memory,
)
from tracemap.kernels.reference.kernel import Access, KernelFunction
from tracemap.kernels.runner_jobs import CANARY, Buffer, Call, Fill
from tracemap.map.model import Site, TraceGraph

# ---- filling
#
# Contents of a kernel's buffers before its first call: random, from a fixed seed, so the same in every process.


def used_bytes(call: Call, binding: int) -> npt.NDArray[np.uint8]:
    """The used bytes of a buffer before the first call. Shape: (end - begin,)."""
    buffer = call.buffers[binding]
    memory = np.full(buffer.end - buffer.begin, CANARY, np.uint8)
    for number, fill in enumerate(buffer.fills):
        random = np.random.default_rng((call.seed, binding, number))
        view = View(0, fill.offset - buffer.begin, fill.extents, fill.strides, fill.element)
        values = _values(random, fill.element, fill.low, fill.high, fill.extents)
        view.of([memory])[...] = values
    return memory


def whole_memory(call: Call) -> list[npt.NDArray[np.uint8]]:
    """All bytes of all buffers before the first call; unused pages are not touched."""
    memory = []
    for binding, buffer in enumerate(call.buffers):
        data = np.zeros(buffer.length, np.uint8)
        data[buffer.begin : buffer.end] = used_bytes(call, binding)
        memory.append(data)
    return memory


def memory_after(call: Call, before: Memory, folder: Path, number: int) -> Memory:
    """The memory after a call: writable buffers are read from files, which are deleted; others are unchanged."""
    memory = list(before)  # shares the buffers that are not replaced below; nobody writes into them
    for binding, buffer in enumerate(call.buffers):
        file = folder / f"{number}-{binding}.bin"
        if buffer.written:
            memory[binding] = np.zeros(buffer.length, np.uint8)  # unused pages are not touched
            memory[binding][buffer.begin : buffer.end] = np.fromfile(file, np.uint8)
            file.unlink()
    return memory


def _values(
    random: np.random.Generator, element: str, low: float, high: float, extents: tuple[int, ...]
) -> npt.NDArray[Any]:
    if element not in EPSILON:
        return random.integers(int(low), int(high), extents).astype(stored_type(element))
    values = random.random(extents, np.float32)
    values *= high - low
    values += low
    return to_memory(values, element)


def length_of_copies(buffer: Buffer, copies: int) -> int:
    """The length of a buffer that holds this number of copies of the used bytes, one after the other."""
    return buffer.length + (copies - 1) * buffer.moved


# ---- cases
#
# Dispatch sites of a kernel that differ only in the location of their data do the same work, and form one case. Sites
# with other sizes form another case.


_CPU = "llvm-cpu"
_SIZE_LIMIT = 1 << 63
_SCALES: Final = (120.0, 128.0)
"""Codes of `f8E8M0FNU`, for powers of two from 1/128 to 1."""
_ANY_BYTE: Final = (-128.0, 128.0)
"""Range of the bytes of sub-byte elements."""
_NARROW_INTEGERS = {"i8": (-128, 128), "i16": (-1000, 1000)}
_GATHERS = {"tensor.extract", "iree_linalg_ext.gather", "iree_linalg_ext.scatter"}
_DIVISIONS = {"arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi"}


@dataclass(frozen=True)
class Case:
    """A kernel with sizes: the dispatch sites with this work, and a representative dispatch.

    `obstacle`: why the kernel cannot be run alone, or "".
    """

    kernel: str
    sites: tuple[Site, ...]
    dispatch: Dispatch
    function: KernelFunction | None = None
    accesses: tuple[Access, ...] = ()
    obstacle: str = ""
    configuration: str = ""

    def call(self, number: int, positive: bool = False) -> Call:
        """The call that runs this case.

        Args:
            number: index of its function in the module.
            positive: fill buffers with positive floats.
        """
        buffers = tuple(self._buffer(binding, positive) for binding in range(len(self.dispatch.bindings)))
        return Call(function_name(number), zlib.crc32(self.kernel.encode("utf-8", "surrogatepass")), buffers)

    @property
    def used_bytes(self) -> int:
        """Size of the used data in bytes."""
        return sum(buffer.end - buffer.begin for buffer in self.call(0).buffers)

    def _buffer(self, binding: int, positive: bool) -> Buffer:
        accesses = [access for access in self.accesses if access.view.binding == binding]
        begin = min((access.view.offset for access in accesses), default=0)
        end = max((access.view.end for access in accesses), default=0)
        fills = tuple(self._fill(access, positive) for access in accesses if access.loaded)
        written = any(access.stored for access in accesses)
        return Buffer(self.dispatch.bindings[binding].length, begin, end, written, fills)

    def _fill(self, access: Access, positive: bool) -> Fill:
        view = access.view.whole_bytes
        low, high = self._range(view.element, positive)
        if access.view.element == SCALE:
            view, (low, high) = replace(view, element="i8"), _SCALES
        elif view.element != access.view.element:
            low, high = _ANY_BYTE
        return Fill(view.offset, view.extents, view.strides, view.element, low, high)

    def _range(self, element: str, positive: bool) -> tuple[float, float]:
        """Range of random elements, chosen so that indices are in bounds and no divisor is 0."""
        if element in EPSILON:
            return (0.5, 1.5) if positive else (-1.0, 1.0)
        assert self.function is not None
        names = self.function.names()
        if element == "i1" or (element == "i8" and self.function.has_truth_values):
            return 0, 2
        if names & _GATHERS and element not in _NARROW_INTEGERS:  # in bounds of all loaded tensors
            return 0, min((size for access in self.accesses for size in access.view.extents if size > 1), default=1)
        if names & _DIVISIONS:
            return 1, 100
        return _NARROW_INTEGERS.get(element, (-1000, 1000))


def find_cases(graph: TraceGraph, module: Module, dispatches: Sequence[Dispatch]) -> list[Case]:
    """The cases of all kernels, in program order.

    Args:
        graph: the map of the bundle.
        module: its configured module, parsed.
        dispatches: the dispatches of the module, in order.
    """
    return group_into_cases(module, dispatches, sites_of_dispatches(graph, dispatches))


def group_into_cases(
    module: Module, dispatches: Sequence[Dispatch], sites_of: Mapping[int, tuple[Site, ...]]
) -> list[Case]:
    """Group a module's dispatches into cases; `sites_of` has the known dispatch sites by dispatch index."""
    functions, blobs = _functions(module), Blobs(module)
    cases: dict[tuple[object, ...], Case] = {}
    for number, dispatch in enumerate(dispatches):
        case = _case(dispatch, sites_of.get(number, ()), functions, blobs)
        key = _work_key(case)
        previous = cases.get(key)
        cases[key] = case if previous is None else replace(previous, sites=(*previous.sites, *case.sites))
    return list(cases.values())


def _functions(module: Module) -> Mapping[tuple[str, str], Operation]:
    """Kernel functions by names of executable and export; the first variant if there are several."""
    functions: dict[tuple[str, str], Operation] = {}
    for executable in nested(module.operation):
        if executable.name == "hal.executable":
            name = string_attribute(executable, "sym_name")
            for operation in walk(executable):
                if operation.name == "func.func":
                    functions.setdefault((name, string_attribute(operation, "sym_name")), operation)
    return functions


def sites_of_dispatches(graph: TraceGraph, dispatches: Sequence[Dispatch]) -> Mapping[int, tuple[Site, ...]]:
    """Dispatch sites by dispatch index. Dispatches have the order of the map's commands; empty if kernels differ."""
    commands = [
        command for buffer in graph.command_buffers for command in buffer.commands if command.kind == "dispatch"
    ]
    if [command.kernel for command in commands] != [dispatch.kernel for dispatch in dispatches]:
        return {}
    return {
        number: tuple(graph.site_by_id[site] for site in (command.site, *command.merged) if isinstance(site, str))
        for number, command in enumerate(commands)
    }


def _case(
    dispatch: Dispatch, sites: tuple[Site, ...], functions: Mapping[tuple[str, str], Operation], blobs: Blobs
) -> Case:
    operation = functions.get((dispatch.target[0], dispatch.kernel))
    if operation is None:
        return Case(dispatch.kernel, sites, dispatch, obstacle="the bundle has no code for its executable")
    case = Case(dispatch.kernel, sites, dispatch, configuration=configuration(operation))
    backend = backend_of(operation)
    if backend not in ("", _CPU):
        return replace(case, obstacle=f"its code is for {backend}; only CPU code ({_CPU}) can run alone")
    function = KernelFunction(operation, dispatch.constants, blobs)
    case = replace(case, function=function)
    try:
        accesses = function.accesses()
        for access in accesses:
            _ = access.view.whole_bytes
    except SURPRISES as error:
        return replace(case, obstacle=f"its memory accesses are unknown: {not_computed(error)}")
    if any(access.view.end > dispatch.bindings[access.view.binding].length for access in accesses):
        unknown = "the size of its data is unknown without a run"
        return replace(case, obstacle=unknown if dispatch.stood_in else "its data does not fit into its buffers")
    case = replace(case, accesses=accesses)
    return replace(case, obstacle=_too_large(case))


def _too_large(case: Case) -> str:
    """Why a case is too large to run, or ""."""
    dispatch = case.dispatch
    bindings = (number for binding in dispatch.bindings for number in (binding.offset, binding.length))
    if max((*dispatch.workload, *bindings), default=0) >= _SIZE_LIMIT:
        return "its data exceeds any memory: a size has more than 64 bits"
    if case.used_bytes > (free := free_memory()):
        return f"its data takes {format_bytes(case.used_bytes)}, but only {format_bytes(free)} of memory are free"
    return ""


def _work_key(case: Case) -> tuple[object, ...]:
    """Key of a kernel's work: equal for dispatches that differ only in the location of their data."""
    views = tuple((access.view.binding, access.view.extents, access.view.element) for access in case.accesses)
    return case.kernel, case.dispatch.workload, views, case.obstacle
