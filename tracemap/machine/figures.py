"""Figures of a kernel's code (instructions, loops, vector width, spills), and equality of two functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from tracemap.errors import ModuleInvalid
from tracemap.machine.code import ALWAYS, Instruction, loops_of
from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import CodeFunction, Image, read_images
from tracemap.machine.linked import called_by
from tracemap.machine.values import NO_VALUES
from tracemap.units import UNKNOWN, Integer

# ---- code equality
#
# Compare the code of a function between images or modules, independent of addresses of code, constants and callees.


_DATA = re.compile(r"\[rip [+-] (?:0x)?[0-9a-f]+\]|#?0x[0-9a-f]+(?=\])")
_PLACE = re.compile(r"#?0x([0-9a-f]+)$")
_PAGES = ("adr", "adrp")
"""AArch64 instructions that compute an address from the program counter."""


def placeless(image: Image, function: CodeFunction) -> tuple[str, ...]:
    """The instructions of a function, without the addresses of itself, its constants and its callees.

    The functions that it reaches in linked objects follow.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    return tuple(text for callee in (function, *called_by(image, function)) for text in _texts(image, callee))


def _texts(image: Image, function: CodeFunction) -> Iterator[str]:
    for _, _, mnemonic, operands in decoded_texts(image, function):
        yield f"{mnemonic} {_without_place(mnemonic, operands, function)}"


def _without_place(mnemonic: str, operands: str, function: CodeFunction) -> str:
    if mnemonic in _PAGES:
        return operands.partition(",")[0]
    text = _DATA.sub("[…]", operands) if "rip" in operands else operands
    if mnemonic.startswith(("j", "call", "b", "cb", "tb")):
        address = _PLACE.search(text)
        if address is not None:
            is_local = function.low <= int(address[1], 16) < function.high
            text = text[: address.start()] + (f"+{int(address[1], 16) - function.low:#x}" if is_local else "…")
    return text


def same_code(module: Path, other: Path) -> dict[str, bool]:
    """Whether the code of each common kernel of two modules is equal; empty if a module's code cannot be read."""
    first, second = (_code(path) for path in (module, other))
    return {name: first[name] == code for name, code in second.items() if name in first}


def _code(module: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {
            function.name: placeless(image, function) for image in read_images(module) for function in image.functions
        }
    except ModuleInvalid:
        return {}


# ---- figures
#
# Figures of a kernel's code: instructions, loops, vector width, spills.
#
# They come from the text of instructions, which takes a tenth of the time of full decoding: `diff` reads all changed
# kernels, and a page shows many.


@dataclass(frozen=True, slots=True)
class Figures:
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
    code = tuple(outline_of(image, function))
    kind = _KINDS[image.machine]
    texts = [f"{instruction.mnemonic} {instruction.operands}" for instruction in code]
    return Figures(len(code), len(loops_of(code)), kind.vector_bits(texts), kind.spills(texts))


def outline_of(image: Image, function: CodeFunction) -> Iterator[Instruction]:
    """The instructions of a function without data flow and cycles: texts, lines and control flow.

    Raises:
        ModuleInvalid: see `machine.code.instructions_of`.
    """
    import numpy as np

    texts = list(decoded_texts(image, function))
    kind = _KINDS[image.machine]
    lines = image.lines_at(np.array([address for address, *_ in texts], dtype=np.int64)).tolist()
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

    def vector_bits(self, texts: Sequence[str]) -> Integer:
        """Width of the widest registers, without scalar instructions and zeroing."""
        vector_texts = (text for text in texts if not self._SCALAR.match(text) and not self._ZERO.match(text))
        return max((self._BITS[letter] for text in vector_texts for letter in self._WIDTH.findall(text)), default=0)

    def spills(self, texts: Sequence[str]) -> int:
        """Stores relative to the stack or frame pointer. `rbp` counts only if the code makes it a frame pointer."""
        pointers = {"rsp", *(["rbp"] if any(map(self._FRAME.match, texts)) else [])}
        return sum(match[1] in pointers for match in map(self._STORED.match, texts) if match)


class _AArch64:
    """Text patterns of AArch64 instructions."""

    jump = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)$")
    end = re.compile(r"e?ret|svc$|brk$|hlt$")

    _WHOLE = re.compile(r"\bv\d+\.(?:16b|8h|4s|2d)\b|\bq\d")
    _HALF = re.compile(r"\bv\d+\.(?:8b|4h|2s|1d)\b")
    _SCALABLE = re.compile(r"\bz\d+\.")
    _STORED = re.compile(r"st(?:r|p|ur)\S* .*\[(?:sp|x29)(?:, #-?\w+)?\]!?(?:, #-?\w+)?$")
    _SAVED = re.compile(r"st\S* (?:x(?:19|2\d|30)|d(?:8|9|1[0-5])),")
    """Callee-saved registers."""

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
