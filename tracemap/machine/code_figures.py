"""Figures of a kernel's code: instructions, loops, vector width, functions that are linked in; equality of code."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.core.errors import ModuleInvalid
from tracemap.core.units import UNKNOWN, Integer
from tracemap.machine.code import ALWAYS, OUTSIDE, Instruction, loops_by_address, loops_of
from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import NO_LINE, NOWHERE, CodeFunction, Image, function_symbols, read_images, stub_targets
from tracemap.machine.values import NO_VALUES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- linked
#
# Code that kernels call: external objects linked into a module (`hal.executable.objects`).
#
# Such code has no lines of a kernel's text, and usually no debug information. Its cost belongs to the kernel that
# calls it, on the line of the call, if there is only one such kernel. If several kernels call it, the time of a sample
# may tell which one ran. The symbol table contains such functions; kernels are local and not in it.


_TARGET = re.compile(r"#?0x([0-9a-f]+)$")
"""Operand of a direct branch."""
_BRANCHES = ("call", "j", "b")
"""Prefixes of branch mnemonics. A function's last call is often a jump."""


class CodeLocations(msgspec.Struct, frozen=True):
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


def code_locations(image: Image, addresses: npt.NDArray[np.int64]) -> CodeLocations:
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
    return CodeLocations(tuple(functions), shared, numbers, lines, code_addresses)


def linked_functions(image: Image) -> tuple[CodeFunction, ...]:
    """The functions of linked objects in an image, by address.

    Raises:
        ModuleInvalid: the symbol table is damaged.
    """
    symbols = (symbol for symbol in function_symbols(image) if symbol.name != _QUERY and symbol.high > symbol.low)
    return tuple(function for _, function in sorted({symbol.low: symbol for symbol in symbols}.items()))


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
    calls = _Calls(image, linked)
    return tuple(linked[low] for low in sorted(calls.reached(target for target, _ in calls.of(kernel))))


def _calls(image: Image, linked: Sequence[CodeFunction]) -> Mapping[int, set[tuple[str, int]]]:
    """The kernels that reach each linked function, with the lines of their calls, by the function's address.

    Empty if the symbol table contains kernels, too, as in libraries for the system linker.
    """
    by_low = {function.low: function for function in linked}
    kernels = [function for function in image.functions if function.low not in by_low]
    if not (linked and kernels):
        return {}
    calls = _Calls(image, by_low)
    callers: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for kernel in kernels:
        for target, line in calls.of(kernel):
            for low in calls.reached([target]):
                callers[low].add((kernel.name, line))
    return callers


class _Calls:
    """Calls of linked functions, which are given by address. Each linked function is decoded once."""

    def __init__(self, image: Image, linked: Mapping[int, CodeFunction]) -> None:
        self._image, self._linked = image, linked
        # By call target: their own addresses, and those of their stubs.
        stubs = {at: low for at, low in stub_targets(image).items() if low in linked}
        self._leads_to = {low: low for low in linked} | stubs
        self._callees: dict[int, set[int]] = {}

    def reached(self, functions: Iterable[int]) -> set[int]:
        """The linked functions reachable from some, including these, by address."""
        waiting, seen = list(functions), set[int]()
        while waiting:
            low = waiting.pop()
            if low not in seen:
                seen.add(low)
                if low not in self._callees:
                    self._callees[low] = {target for target, _ in self.of(self._linked[low])}
                waiting += self._callees[low]
        return seen

    def of(self, function: CodeFunction) -> Iterator[tuple[int, int]]:
        """Calls in a function, as pairs of callee and line; empty if its code cannot be read."""
        calls: dict[int, int] = {}
        try:
            for address, _, mnemonic, operands in decoded_texts(self._image, function):
                match = _TARGET.match(operands) if mnemonic.startswith(_BRANCHES) else None
                target = self._leads_to.get(int(match[1], 16), function.low) if match else function.low
                if target != function.low:
                    calls[address] = target
        except ModuleInvalid:
            return
        yield from zip(calls.values(), self._image.lines_of(list(calls)), strict=True)


# ---- code equality
#
# Compare the code of a function between images or modules, independent of addresses of code, constants and callees.


_DATA = re.compile(r"\[rip [+-] (?:0x)?[0-9a-f]+\]|#?0x[0-9a-f]+(?=\])")
_PAGES = ("adr", "adrp")
"""AArch64 instructions that compute an address from the program counter."""


def address_free_code(image: Image, function: CodeFunction) -> tuple[str, ...]:
    """The instructions of a function, without the addresses of itself, its constants and its callees.

    The functions that it reaches in linked objects follow.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    return tuple(
        f"{mnemonic} {_without_place(mnemonic, operands, callee)}"
        for callee in (function, *called_by(image, function))
        for _, _, mnemonic, operands in decoded_texts(image, callee)
    )


def _without_place(mnemonic: str, operands: str, function: CodeFunction) -> str:
    if mnemonic in _PAGES:
        return operands.partition(",")[0]
    text = _DATA.sub("[…]", operands) if "rip" in operands else operands
    if mnemonic.startswith(("j", "call", "b", "cb", "tb")):
        address = _TARGET.search(text)
        if address is not None:
            is_local = function.low <= int(address[1], 16) < function.high
            text = text[: address.start()] + (f"+{int(address[1], 16) - function.low:#x}" if is_local else "…")
    return text


def same_code(module: Path, other: Path) -> dict[str, bool]:
    """Whether the code of each common kernel of two modules is equal; empty if a module's code cannot be read."""
    first, second = (kernel_codes(path) for path in (module, other))
    return {name: first[name] == code for name, code in second.items() if name in first}


def kernel_codes(module: Path) -> dict[str, tuple[str, ...]]:
    """The code of each kernel of a module, without addresses; empty if it cannot be read."""
    try:
        return {
            function.name: address_free_code(image, function)
            for image in read_images(module)
            for function in image.functions
        }
    except ModuleInvalid:
        return {}


# ---- figures
#
# Figures come from the text of instructions, which takes a tenth of the time of full decoding: `diff` reads all changed
# kernels, and a page shows many.


class Figures(msgspec.Struct, frozen=True):
    """Numbers of instructions and of natural loops, nested loops included.

    `vector_bits`: width of the widest registers used for vector arithmetic, 0 if there is none; unknown if the
    processor decides it. `spills`: instructions that save a register on the stack to free it.
    """

    instructions: int
    loops: int
    vector_bits: Integer
    spills: int


def figures_of(image: Image, function: CodeFunction) -> Figures:
    """The figures of a function.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    code = tuple(text_instructions(image, function))
    kind = _KINDS[image.machine]
    texts = [f"{instruction.mnemonic} {instruction.operands}" for instruction in code]
    return Figures(len(code), len(loops_of(code)), kind.vector_bits(texts), kind.spills(texts))


class LoopFigures(msgspec.Struct, frozen=True):
    """Numbers of instructions in an innermost loop.

    All, arithmetic on vectors and on scalars, stack accesses, moves of single elements into and out of vectors, calls.
    """

    instructions: int
    vector: int
    scalar: int
    stack: int
    elements: int
    calls: int


def inner_loops(image: Image, function: CodeFunction) -> tuple[LoopFigures, ...]:
    """The figures of the innermost loops of a function, by address.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    code = tuple(text_instructions(image, function))
    loops, kind = loops_of(code), _KINDS[image.machine]
    loop_at = loops_by_address(code, loops)
    outer = {loop.parent for loop in loops}
    bodies: dict[int, list[str]] = defaultdict(list)
    for instruction in code:
        loop = loop_at.get(instruction.address, OUTSIDE)
        if loop != OUTSIDE and loop not in outer:
            bodies[loop].append(f"{instruction.mnemonic} {instruction.operands}")
    stack = kind.stack([f"{instruction.mnemonic} {instruction.operands}" for instruction in code])
    return tuple(kind.loop_figures(texts, stack) for _, texts in sorted(bodies.items()))


def text_instructions(image: Image, function: CodeFunction) -> Iterator[Instruction]:
    """The instructions of a function without data flow and cycles: texts, lines and control flow.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    texts = list(decoded_texts(image, function))
    kind = _KINDS[image.machine]
    lines = image.lines_of([address for address, *_ in texts])
    for (address, size, mnemonic, operands), line in zip(texts, lines, strict=True):
        address_match = _ADDRESS.search(operands) if kind.jump.match(mnemonic) else None
        target = int(address_match[1], 16) if address_match else -1
        yield Instruction(
            address=address,
            size=size,
            mnemonic=mnemonic,
            operands=operands,
            line=line,
            targets=(target,) if function.low <= target < function.high else (),
            falls_through=not kind.end.match(mnemonic) and mnemonic not in ALWAYS,
            hundredths=1,
            values=NO_VALUES,
        )


_ADDRESS: Final = re.compile(r"(?:^|[ #])0x([0-9a-f]+)$")


class _X86:
    """Text patterns of x86-64 instructions, in Intel syntax."""

    jump = re.compile(r"j|loop")
    end = re.compile(r"i?ret|int\d?$|hlt$")

    _WIDTH = re.compile(r"\b([xyz])mm\d")
    _BITS: Final = {"x": 128, "y": 256, "z": 512}
    _SCALAR = re.compile(r"(?!v?p|v?broadcast)\S*s[sdh](?:2\S*)? |v?mov[dqw] |v?cvt\S*s[sdh]2|v?cvt\S*2s[sdh] ")
    _ZERO = re.compile(r"\S*xor\S* (\w+), (?:\1, )?\1$")
    _STORED = re.compile(r"(?:v?mov|kmov|v?p?extr)\S* (?:\w+ ptr )?\[(rsp|rbp)(?: [+-] (?:0x)?[0-9a-f]+)?\], [a-z]")
    _FRAME = re.compile(r"mov rbp, rsp$|lea rbp, \[rsp")

    _ELEMENT = re.compile(r"v?(?:insertps|extractps|p(?:insr|extr)[bwdq]) |v?mov[dq] (?:r|e)\w+, xmm")
    _ARITHMETIC = re.compile(
        r"v?(?:fn?m(?:add|sub)|mul|add|sub|div|max|min|sqrt|pmul|pdp|pmadd|dp)\w*?(p[sdh]|s[sdh]|[bwdq]|dq) "
    )

    def stack(self, texts: Sequence[str]) -> re.Pattern[str]:
        """Pattern of accesses to the stack. `rbp` counts only if the code makes it a frame pointer."""
        pointers = "rsp|rbp" if any(map(self._FRAME.match, texts)) else "rsp"
        return re.compile(rf"\[(?:{pointers})(?: [+-] (?:0x)?[0-9a-f]+)?\]")

    def loop_figures(self, texts: Sequence[str], stack: re.Pattern[str]) -> LoopFigures:
        """The figures of a loop. Arithmetic on general registers does not count, since it may compute addresses."""
        kinds = [match[1] for match in map(self._ARITHMETIC.match, texts) if match]
        scalar = sum(kind in ("ss", "sd", "sh") for kind in kinds)
        return LoopFigures(
            instructions=len(texts),
            vector=len(kinds) - scalar,
            scalar=scalar,
            stack=sum(bool(stack.search(text)) for text in texts),
            elements=sum(bool(self._ELEMENT.match(text)) for text in texts),
            calls=sum(text.startswith("call") for text in texts),
        )

    def vector_bits(self, texts: Sequence[str]) -> Integer:
        """Width of the widest registers, without scalar instructions and zeroing."""
        vector_texts = (text for text in texts if not self._SCALAR.match(text) and not self._ZERO.match(text))
        return max((self._BITS[letter] for text in vector_texts for letter in self._WIDTH.findall(text)), default=0)

    def spills(self, texts: Sequence[str]) -> int:
        """Stores relative to the stack or frame pointer. `rbp` counts only if the code makes it a frame pointer."""
        pointers = {"rsp", *(["rbp"] if any(map(self._FRAME.match, texts)) else [])}
        return sum(match[1] in pointers for match in map(self._STORED.match, texts) if match)


class _AArch64:
    jump = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)$")
    end = re.compile(r"e?ret|svc$|brk$|hlt$")

    _WHOLE = re.compile(r"\bv\d+\.(?:16b|8h|4s|2d)\b|\bq\d")
    _HALF = re.compile(r"\bv\d+\.(?:8b|4h|2s|1d)\b")
    _SCALABLE = re.compile(r"\bz\d+\.")
    _STORED = re.compile(r"st(?:r|p|ur)\S* .*\[(?:sp|x29)(?:, #-?\w+)?\]!?(?:, #-?\w+)?$")
    _SAVED = re.compile(r"st\S* (?:x(?:19|2\d|30)|d(?:8|9|1[0-5])),")
    """Callee-saved registers."""

    _ELEMENT = re.compile(
        r"ins |[us]mov |mov (?:v\d+\.[bhsd]\[|\w+, v\d+\.[bhsd]\[)|fmov [wx]\d+, [hsd]\d|ldr [bhs]\d"
        r"|(?:ld|st)1 \{ ?v\d+\.[bhsd] ?\}\["
    )
    _ARITHMETIC = re.compile(r"f(?:n?m(?:add|sub)|ml[as]|mul|add|sub|div|max|min|sqrt)\w* ([a-z])")

    def stack(self, _: Sequence[str]) -> re.Pattern[str]:
        """Pattern of accesses to the stack."""
        return re.compile(r"\[sp(?:, #-?\w+)?\]")

    def loop_figures(self, texts: Sequence[str], stack: re.Pattern[str]) -> LoopFigures:
        """The figures of a loop, of arithmetic on floating-point numbers."""
        registers = [match[1] for match in map(self._ARITHMETIC.match, texts) if match]
        vector = sum(letter in "vz" for letter in registers)
        return LoopFigures(
            instructions=len(texts),
            vector=vector,
            scalar=len(registers) - vector,
            stack=sum(bool(stack.search(text)) for text in texts),
            elements=sum(bool(self._ELEMENT.match(text)) for text in texts),
            calls=sum(text.startswith(("bl ", "blr ")) for text in texts),
        )

    def vector_bits(self, texts: Sequence[str]) -> Integer:
        """Width of the widest registers; unknown with SVE, whose width the processor decides."""
        if any(map(self._SCALABLE.search, texts)):
            return UNKNOWN
        return 128 if any(map(self._WHOLE.search, texts)) else 64 if any(map(self._HALF.search, texts)) else 0

    def spills(self, texts: Sequence[str]) -> int:
        """Stores relative to stack or frame pointer, except saves of callee-saved registers before the first jump."""
        prologue_length = sum(1 for _ in takewhile(lambda text: not self.jump.match(text.split()[0]), texts))
        return sum(
            1 + text.startswith("stp")
            for index, text in enumerate(texts)
            if self._STORED.match(text) and not (index < prologue_length and self._SAVED.match(text))
        )


X86: Final = _X86()
AARCH64: Final = _AArch64()
_KINDS: Final[Mapping[str, _X86 | _AArch64]] = {"EM_X86_64": X86, "EM_AARCH64": AARCH64}
