"""Code that a module's kernels call: objects of its own that a model brings (`hal.executable.objects`).

Such code has no lines of a kernel's text, and no debug information as a rule. What it costs is of the kernel that calls
it, on the line of the call, where only one kernel does; of what several call, the time of a sample may tell. The table
of symbols says where such code lies; kernels do not stand in it, for they are local.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracemap.errors import ModuleInvalid
from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import NO_LINE, CodeFunction, Image
from tracemap.machine.symbols import NOWHERE, function_symbols, stub_targets

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


def _calls(image: Image, linked: Sequence[CodeFunction]) -> Mapping[int, set[tuple[str, int]]]:
    """The kernels that reach each linked function, by its address, with the lines of the calls in them.

    None where kernels stand in the table of symbols too, as those of libraries for the system's own linker do.
    """
    lows = {function.low for function in linked}
    kernels = [function for function in image.functions if function.low not in lows]
    if not (linked and kernels):
        return {}
    leads_to = {low: low for low in lows} | {at: low for at, low in stub_targets(image).items() if low in lows}
    onward = {function.low: {target for target, _ in _branches(image, function, leads_to)} for function in linked}
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for kernel in kernels:
        for target, line in _branches(image, kernel, leads_to):
            waiting, seen = [target], set[int]()
            while waiting:
                low = waiting.pop()
                if low not in seen:
                    seen.add(low)
                    found[low].add((kernel.name, line))
                    waiting += onward[low]
    return found


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
