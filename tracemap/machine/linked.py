"""Code that kernels call: external objects linked into a module (`hal.executable.objects`).

Such code has no lines of a kernel's text, and usually no debug information. Its cost belongs to the kernel that calls
it, on the line of the call, if there is only one such kernel. If several kernels call it, the time of a sample may tell
which one ran. The symbol table contains such functions; kernels are local and not in it.
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
"""Prefixes of branch mnemonics. A function's last call is often a jump."""


@dataclass(frozen=True, slots=True)
class Spots:
    """Code at given addresses. Shapes: (n,) each.

    `numbers`: indexes in `functions`, -1 for none; `lines`: lines of the kernel's text, `NO_LINE` if there is none or
    several; `addresses`: `NOWHERE` outside of functions, and in callees of kernels. `shared`: the kernels that
    call a function, by its name, if there are several.
    """

    functions: tuple[CodeFunction, ...]
    shared: Mapping[str, tuple[str, ...]]
    numbers: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]

    def kernels_of(self, function: CodeFunction) -> tuple[str, ...]:
        """The kernels for which a function's code may run: itself, or its callers."""
        return self.shared.get(function.name, (function.name,))


def spots_at(image: Image, addresses: npt.NDArray[np.int64]) -> Spots:
    """Kernel, line and address of code. In a kernel's callee, they are those of the call.

    Raises:
        ModuleInvalid: the image's symbol table is damaged.
    """
    import numpy as np

    functions = list(image.functions)
    numbers = np.where(addresses == NOWHERE, -1, image.functions_at(addresses))
    lines, code_addresses = image.lines_at(addresses), np.where(numbers >= 0, addresses, NOWHERE)
    number_of = {function.name: index for index, function in enumerate(functions)}
    linked = linked_functions(image)
    calls, shared = _calls(image, linked), dict[str, tuple[str, ...]]()
    for function in linked:
        indexes = np.flatnonzero((addresses >= function.low) & (addresses < function.high))
        callers = calls.get(function.low, set())
        if not (len(indexes) and callers):
            continue
        kernels, lines_of_calls = sorted({kernel for kernel, _ in callers}), {line for _, line in callers}
        name = kernels[0] if len(kernels) == 1 else function.name
        if len(kernels) > 1:
            shared[name] = tuple(kernels)
        if name not in number_of:  # shared code has its own name, since it belongs to no single kernel
            number_of[name] = len(functions)
            functions.append(function)
        numbers[indexes], code_addresses[indexes] = number_of[name], NOWHERE
        lines[indexes] = lines_of_calls.pop() if len(lines_of_calls) == 1 else NO_LINE
    return Spots(tuple(functions), shared, numbers, lines, code_addresses)


def linked_functions(image: Image) -> tuple[CodeFunction, ...]:
    """The functions of linked objects in an image, by address.

    Raises:
        ModuleInvalid: the symbol table is damaged.
    """
    functions = {
        function.low: function
        for function in function_symbols(image)
        if function.name != _QUERY and function.high > function.low
    }
    return tuple(functions[low] for low in sorted(functions))


_QUERY = "iree_hal_executable_library_query"
"""Entry point of an executable library; `iree/hal/local/executable_library.h`."""


def called_by(image: Image, kernel: CodeFunction) -> tuple[CodeFunction, ...]:
    """The linked functions that a kernel reaches, by address.

    Raises:
        ModuleInvalid: the image's tables are damaged.
    """
    linked = {function.low: function for function in linked_functions(image)}
    if not linked or kernel.low in linked:
        return ()
    leads_to = _leads_to(image, linked)
    direct_callees = [target for target, _ in _branches(image, kernel, leads_to)]
    return tuple(linked[low] for low in sorted(_reached(direct_callees, _onward(image, linked, leads_to))))


def _calls(image: Image, linked: Sequence[CodeFunction]) -> Mapping[int, set[tuple[str, int]]]:
    """The kernels that reach each linked function, with the lines of their calls, by the function's address.

    Empty if the symbol table contains kernels, too, as in libraries for the system linker.
    """
    by_low = {function.low: function for function in linked}
    kernels = [function for function in image.functions if function.low not in by_low]
    if not (linked and kernels):
        return {}
    leads_to = _leads_to(image, by_low)
    onward = _onward(image, by_low, leads_to)
    callers: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for kernel in kernels:
        for target, line in _branches(image, kernel, leads_to):
            for low in _reached([target], onward):
                callers[low].add((kernel.name, line))
    return callers


def _onward(
    image: Image, linked: Mapping[int, CodeFunction], leads_to: Mapping[int, int]
) -> Callable[[int], frozenset[int]]:
    """Return a function from a linked function's address to those of its callees. Each function is decoded once."""

    @cache
    def onward(low: int) -> frozenset[int]:
        return frozenset(target for target, _ in _branches(image, linked[low], leads_to))

    return onward


def _leads_to(image: Image, linked: Mapping[int, CodeFunction]) -> Mapping[int, int]:
    """The linked functions by call target: their own addresses, and those of their stubs."""
    return {low: low for low in linked} | {at: low for at, low in stub_targets(image).items() if low in linked}


def _reached(functions: Sequence[int], onward: Callable[[int], frozenset[int]]) -> set[int]:
    """The functions reachable from some, including these, by address."""
    waiting, seen = list(functions), set[int]()
    while waiting:
        low = waiting.pop()
        if low not in seen:
            seen.add(low)
            waiting += onward(low)
    return seen


def _branches(image: Image, function: CodeFunction, leads_to: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Calls in a function, as pairs of callee and line; empty if its code cannot be read.

    `leads_to`: the linked functions by call target.
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
    """Target of a direct branch; `NOWHERE` for other instructions, and for targets in registers."""
    match = _TARGET.match(operands) if mnemonic.startswith(_BRANCHES) else None
    return int(match[1], 16) if match else NOWHERE
