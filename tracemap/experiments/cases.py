"""Cases to run: each kernel once for each kind of work, and the contents of its buffers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.descriptions import configuration
from tracemap.experiments.jobs import CANARY, Buffer, Call, Fill
from tracemap.experiments.reference.elements import EPSILON, SCALE, SURPRISES, not_computed, stored_type, to_memory
from tracemap.experiments.reference.kernel import Access, KernelFunction
from tracemap.experiments.reference.memory import View
from tracemap.experiments.wrapping import function_name
from tracemap.graph.model import Site, TraceGraph
from tracemap.ir.attributes import Blobs
from tracemap.ir.executables import Dispatch, backend_of
from tracemap.ir.parsing import Module, Operation, nested, string_attribute, walk
from tracemap.memory import free_memory
from tracemap.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracemap.experiments.reference.memory import Memory


# ---- filling
#
# What lies in a kernel's buffers before its first call: made up from a seed, the same in every process.


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


# ---- cases
#
# What there is to be run: each kernel once for each kind of work that its sites give it.
#
# Sites of a kernel that differ only in where their data lies give it the same work, and are one case; those with other
# sizes are another.


_CPU = "llvm-cpu"
_MOST_NUMBER = 1 << 63
_SCALES: Final = (120.0, 128.0)
"""Codes of `f8E8M0FNU`, for powers of two from 1/128 to 1."""
_ANY_BYTE: Final = (-128.0, 128.0)
"""Of elements of which several lie in a byte."""
_NARROW_INTEGERS = {"i8": (-128, 128), "i16": (-1000, 1000)}
_GATHERS = {"tensor.extract", "iree_linalg_ext.gather", "iree_linalg_ext.scatter"}
_DIVISIONS = {"arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi"}


@dataclass(frozen=True)
class Case:
    """A kernel with sizes: the sites that give it this work, and the dispatch that stands for all of theirs.

    `obstacle`: why it cannot be run alone, "" where it can.
    """

    kernel: str
    sites: tuple[Site, ...]
    dispatch: Dispatch
    function: KernelFunction | None
    accesses: tuple[Access, ...]
    obstacle: str
    configuration: str = ""

    def call(self, number: int, positive: bool = False) -> Call:
        """How it is run: `number` is that of its function in the module; `positive`: floats that are made up are."""
        buffers = tuple(self._buffer(binding, positive) for binding in range(len(self.dispatch.bindings)))
        return Call(function_name(number), zlib.crc32(self.kernel.encode("utf-8", "surrogatepass")), buffers)

    @property
    def used_bytes(self) -> int:
        """How large its data is."""
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
        """Between which numbers elements are made up: such that what is looked up is there, and none divides by 0."""
        if element in EPSILON:
            return (0.5, 1.5) if positive else (-1.0, 1.0)
        assert self.function is not None
        names = self.function.names()
        if element == "i1" or (element == "i8" and self.function.has_truth_values):
            return 0, 2
        if names & _GATHERS and element not in _NARROW_INTEGERS:
            return 0, self._least_extent()
        if names & _DIVISIONS:
            return 1, 100
        return _NARROW_INTEGERS.get(element, (-1000, 1000))

    def _least_extent(self) -> int:
        """An index below this is in bounds of everything that is loaded."""
        extents = [extent for access in self.accesses for extent in access.view.extents if extent > 1]
        return min(extents, default=1)


def find_cases(graph: TraceGraph, module: Module, dispatches: Sequence[Dispatch]) -> list[Case]:
    """The cases of all kernels, in the order of the program.

    Args:
        graph: the map of the bundle.
        module: its configured module, parsed.
        dispatches: those of the module, in order.
    """
    return dispatched(module, dispatches, sites_of_dispatches(graph, dispatches))


def dispatched(module: Module, dispatches: Sequence[Dispatch], sites_of: Mapping[int, tuple[Site, ...]]) -> list[Case]:
    """The cases of a module's dispatches, of which some have sites, by their number."""
    functions, blobs = _functions(module), Blobs(module)
    found: dict[tuple[object, ...], Case] = {}
    for number, dispatch in enumerate(dispatches):
        case = _case(dispatch, sites_of.get(number, ()), functions, blobs)
        key = _work(case)
        known = found.get(key)
        found[key] = case if known is None else replace(known, sites=(*known.sites, *case.sites))
    return list(found.values())


def _functions(module: Module) -> Mapping[tuple[str, str], Operation]:
    """The functions of kernels by the names of executable and export; of several variants the first."""
    found: dict[tuple[str, str], Operation] = {}
    for executable in nested(module.operation):
        if executable.name == "hal.executable":
            name = string_attribute(executable, "sym_name")
            for operation in walk(executable):
                if operation.name == "func.func":
                    found.setdefault((name, string_attribute(operation, "sym_name")), operation)
    return found


def sites_of_dispatches(graph: TraceGraph, dispatches: Sequence[Dispatch]) -> Mapping[int, tuple[Site, ...]]:
    """Of each dispatch the sites: its place among the dispatches is that of its command among the commands."""
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
    case = Case(dispatch.kernel, sites, dispatch, None, (), "")
    if operation is None:
        return replace(case, obstacle="its executable has no code of its own in the bundle")
    case = replace(case, configuration=configuration(operation))
    backend = backend_of(operation)
    if backend not in ("", _CPU):
        return replace(case, obstacle=f"its code is for {backend}; only code for CPUs ({_CPU}) is run alone")
    function = KernelFunction(operation, dispatch.constants, blobs)
    try:
        accesses = function.accesses()
        for access in accesses:
            _ = access.view.whole_bytes
    except SURPRISES as error:
        return replace(case, function=function, obstacle=f"what it reads and writes is not told: {not_computed(error)}")
    if any(access.view.end > dispatch.bindings[access.view.binding].length for access in accesses):
        return replace(case, function=function, obstacle=_TOO_SMALL if dispatch.stood_in else _NO_ROOM)
    case = replace(case, function=function, accesses=accesses)
    return replace(case, obstacle=_too_large(case))


def _too_large(case: Case) -> str:
    """Why a case is too large to be run, "" where it is not."""
    dispatch = case.dispatch
    numbers = (*dispatch.workload, *(number for each in dispatch.bindings for number in (each.offset, each.length)))
    if max(numbers, default=0) >= _MOST_NUMBER:
        return "its data is larger than any memory: a size has more than 64 bits"
    if case.used_bytes > (free := free_memory()):
        return f"its data takes {format_bytes(case.used_bytes)}, and {format_bytes(free)} of memory are free"
    return ""


_TOO_SMALL = "how large its data is only a run tells"
_NO_ROOM = "what it reads or writes does not fit into its buffers"


def _work(case: Case) -> tuple[object, ...]:
    """What two dispatches have in common that give a kernel the same work: all but where the data lies."""
    views = tuple((access.view.binding, access.view.extents, access.view.element) for access in case.accesses)
    return case.kernel, case.dispatch.workload, views, case.obstacle
