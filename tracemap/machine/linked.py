"""Code that a module's kernels call: objects of its own that a model brings (`hal.executable.objects`).

Such code has no lines of a kernel's text, and no debug information as a rule. What it costs is of the kernel that calls
it, on the line of the call, where only one kernel does; of what several call, the time of a sample may tell. The table
of symbols says where such code lies; kernels do not stand in it, for they are local.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tracemap.errors import ModuleInvalid
from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import NO_LINE, NOWHERE, CodeFunction, Image, function_symbols, stub_targets

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_TARGET = re.compile(r"#?0x([0-9a-f]+)$")
_BRANCHES = ("call", "j", "b")
"""Beginnings of instructions that go on elsewhere; a function's last call is often a jump."""


@dataclass(frozen=True, slots=True)
class Spots:
    """What lies at addresses of code. Shapes: (n,) each.

    `numbers` are those of `functions`, -1: none; `lines` are of the kernel's text, `NO_LINE` where there is none, or
    several; `addresses` are `NOWHERE` outside of functions, and in what a kernel calls. `shared`: the kernels that call
    a function which is several kernels', by its name.
    """

    functions: tuple[CodeFunction, ...]
    shared: Mapping[str, tuple[str, ...]]
    numbers: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]

    def kernels_of(self, function: CodeFunction) -> tuple[str, ...]:
        """The kernels that a function's code may run for: itself, or those that call it."""
        return self.shared.get(function.name, (function.name,))


def spots_at(image: Image, addresses: npt.NDArray[np.int64]) -> Spots:
    """Kernel, line and address of the code at addresses of an image; those of the call in what a kernel calls.

    Raises:
        ModuleInvalid: the image's table of symbols is damaged.
    """
    import numpy as np

    functions = list(image.functions)
    numbers = np.where(addresses == NOWHERE, -1, image.functions_at(addresses))
    lines, places = image.lines_at(addresses), np.where(numbers >= 0, addresses, NOWHERE)
    number_of = {function.name: number for number, function in enumerate(functions)}
    linked = linked_functions(image)
    calls, shared = _calls(image, linked), dict[str, tuple[str, ...]]()
    for function in linked:
        inside = np.flatnonzero((addresses >= function.low) & (addresses < function.high))
        callers = calls.get(function.low, set())
        if not (len(inside) and callers):
            continue
        kernels, at = sorted({kernel for kernel, _ in callers}), {line for _, line in callers}
        name = kernels[0] if len(kernels) == 1 else function.name
        if len(kernels) > 1:
            shared[name] = tuple(kernels)
        if name not in number_of:  # code of several kernels counts by its own name, as that of none of them
            number_of[name] = len(functions)
            functions.append(function)
        numbers[inside], places[inside] = number_of[name], NOWHERE
        lines[inside] = at.pop() if len(at) == 1 else NO_LINE
    return Spots(tuple(functions), shared, numbers, lines, places)


def linked_functions(image: Image) -> tuple[CodeFunction, ...]:
    """The functions of an image that are of objects which it was linked with, by address.

    Raises:
        ModuleInvalid: the table of symbols is damaged.
    """
    found = {each.low: each for each in function_symbols(image) if each.name != _QUERY and each.high > each.low}
    return tuple(found[low] for low in sorted(found))


_QUERY = "iree_hal_executable_library_query"
"""What a library is asked by; `iree/hal/local/executable_library.h`."""


def called_by(image: Image, kernel: CodeFunction) -> tuple[CodeFunction, ...]:
    """The linked functions that a kernel reaches, by address.

    Raises:
        ModuleInvalid: the image's tables are damaged.
    """
    linked = {function.low: function for function in linked_functions(image)}
    if not linked or kernel.low in linked:
        return ()
    leads_to = _leads_to(image, linked)
    first = [target for target, _ in _branches(image, kernel, leads_to)]
    return tuple(linked[low] for low in sorted(_reached(first, _onward(image, linked, leads_to))))


def _calls(image: Image, linked: Sequence[CodeFunction]) -> Mapping[int, set[tuple[str, int]]]:
    """The kernels that reach each linked function, by its address, with the lines of the calls in them.

    None where kernels stand in the table of symbols too, as those of libraries for the system's own linker do.
    """
    by_low = {function.low: function for function in linked}
    kernels = [function for function in image.functions if function.low not in by_low]
    if not (linked and kernels):
        return {}
    leads_to = _leads_to(image, by_low)
    onward = _onward(image, by_low, leads_to)
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for kernel in kernels:
        for target, line in _branches(image, kernel, leads_to):
            for low in _reached([target], onward):
                found[low].add((kernel.name, line))
    return found


def _onward(
    image: Image, linked: Mapping[int, CodeFunction], leads_to: Mapping[int, int]
) -> Callable[[int], frozenset[int]]:
    """What tells where a linked function leads, by their addresses; the code of each is read once."""

    @cache
    def onward(low: int) -> frozenset[int]:
        return frozenset(target for target, _ in _branches(image, linked[low], leads_to))

    return onward


def _leads_to(image: Image, linked: Mapping[int, CodeFunction]) -> Mapping[int, int]:
    """The linked functions by the addresses that are called: their own, and those of their stubs."""
    return {low: low for low in linked} | {at: low for at, low in stub_targets(image).items() if low in linked}


def _reached(first: Sequence[int], onward: Callable[[int], frozenset[int]]) -> set[int]:
    """The functions that are reached from some, and these, by their addresses."""
    waiting, seen = list(first), set[int]()
    while waiting:
        low = waiting.pop()
        if low not in seen:
            seen.add(low)
            waiting += onward(low)
    return seen


def _branches(image: Image, function: CodeFunction, leads_to: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Where a function calls others, and the lines on which it does; none where its code cannot be read.

    `leads_to`: the others by the addresses that are called.
    """
    import numpy as np

    try:
        code = list(decoded_texts(image, function))
    except ModuleInvalid:
        return
    targets = [(address, leads_to.get(_target(mnemonic, text), NOWHERE)) for address, _, mnemonic, text in code]
    calls = [(address, target) for address, target in targets if target not in (NOWHERE, function.low)]
    lines = image.lines_at(np.array([address for address, _ in calls], dtype=np.int64))
    yield from zip((target for _, target in calls), lines.tolist(), strict=True)


def _target(mnemonic: str, operands: str) -> int:
    """Where an instruction goes on; `NOWHERE` of those that do not, or that read it from a register."""
    found = _TARGET.match(operands) if mnemonic.startswith(_BRANCHES) else None
    return int(found[1], 16) if found else NOWHERE
