"""Figures of a kernel's code: instructions, loops, vector width; and whether two functions are equal."""

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

# ---- sameness
#
# Whether two images or modules have the same code for a function, wherever the linker put it and what it refers to.


_DATA = re.compile(r"\[rip [+-] (?:0x)?[0-9a-f]+\]|#?0x[0-9a-f]+(?=\])")
_PLACE = re.compile(r"#?0x([0-9a-f]+)$")
_PAGES = ("adr", "adrp")
"""Instructions of AArch64 that make an address of the program counter."""


def placeless(image: Image, function: CodeFunction) -> tuple[str, ...]:
    """The instructions of a function, without where it lies and where its constants and callees do.

    Behind them those of the functions that it reaches in objects which the image was linked with.

    Raises:
        ModuleInvalid: as `machine.code.instructions_of`.
    """
    return tuple(text for each in (function, *called_by(image, function)) for text in _own(image, each))


def _own(image: Image, function: CodeFunction) -> Iterator[str]:
    for _, _, mnemonic, operands in decoded_texts(image, function):
        yield f"{mnemonic} {_without_place(mnemonic, operands, function)}"


def _without_place(mnemonic: str, operands: str, function: CodeFunction) -> str:
    if mnemonic in _PAGES:
        return operands.partition(",")[0]
    text = _DATA.sub("[…]", operands) if "rip" in operands else operands
    if mnemonic.startswith(("j", "call", "b", "cb", "tb")):
        place = _PLACE.search(text)
        if place is not None:
            inside = function.low <= int(place[1], 16) < function.high
            text = text[: place.start()] + (f"+{int(place[1], 16) - function.low:#x}" if inside else "…")
    return text


def same_code(module: Path, other: Path) -> dict[str, bool]:
    """Of each kernel that two modules have whether its code is the same; none of modules whose code cannot be read."""
    one, two = (_code(path) for path in (module, other))
    return {name: one[name] == code for name, code in two.items() if name in one}


def _code(module: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {each.name: placeless(image, each) for image in read_images(module) for each in image.functions}
    except ModuleInvalid:
        return {}


# ---- figures
#
# What a kernel's code amounts to: instructions, loops, the width of its vectors, what it puts on the stack.
#
# Read from the text of the instructions alone, which takes a tenth of the time of reading what each of them does:
# `diff` looks at all kernels that changed, and a page shows the code of many.


@dataclass(frozen=True, slots=True)
class Figures:
    """How many instructions and natural loops code has, nested ones too.

    `vector_bits`: of the widest registers whose elements are computed with together, 0 where there are none; unknown
    where the processor decides. `spills`: instructions that put a register's value on the stack to free the register.
    """

    instructions: int
    loops: int
    vector_bits: Integer
    spills: int


def figures_of(image: Image, function: CodeFunction) -> Figures:
    """The figures of a function.

    Raises:
        ModuleInvalid: as `machine.code.instructions_of`.
    """
    code = tuple(outline_of(image, function))
    kind = _KINDS[image.machine]
    texts = [f"{each.mnemonic} {each.operands}" for each in code]
    return Figures(len(code), len(loops_of(code)), kind.vector_bits(texts), kind.spills(texts))


def outline_of(image: Image, function: CodeFunction) -> Iterator[Instruction]:
    """The instructions of a function without values and cycles: their texts and lines, and where control goes.

    Raises:
        ModuleInvalid: as `machine.code.instructions_of`.
    """
    import numpy as np

    found = list(decoded_texts(image, function))
    kind = _KINDS[image.machine]
    lines = image.lines_at(np.array([address for address, *_ in found], dtype=np.int64)).tolist()
    for (address, size, mnemonic, operands), line in zip(found, lines, strict=True):
        told = _ADDRESS.search(operands) if kind.jump.match(mnemonic) else None
        target = int(told[1], 16) if told else -1
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
    """The texts of x86-64's instructions, as Intel writes them."""

    jump = re.compile(r"j|loop")
    end = re.compile(r"i?ret|int\d?$|hlt$")

    _WIDTH = re.compile(r"\b([xyz])mm\d")
    _BITS: Final = {"x": 128, "y": 256, "z": 512}
    _SCALAR = re.compile(r"(?!v?p|v?broadcast)\S*s[sdh](?:2\S*)? |v?mov[dqw] |v?cvt\S*s[sdh]2|v?cvt\S*2s[sdh] ")
    _ZERO = re.compile(r"\S*xor\S* (\w+), (?:\1, )?\1$")
    _STORED = re.compile(r"(?:v?mov|kmov|v?p?extr)\S* (?:\w+ ptr )?\[(rsp|rbp)(?: [+-] (?:0x)?[0-9a-f]+)?\], [a-z]")
    _FRAME = re.compile(r"mov rbp, rsp$|lea rbp, \[rsp")

    def vector_bits(self, texts: Sequence[str]) -> Integer:
        """Of the widest registers, without those that hold one number or are set to nothing."""
        whole = (text for text in texts if not self._SCALAR.match(text) and not self._ZERO.match(text))
        return max((self._BITS[letter] for text in whole for letter in self._WIDTH.findall(text)), default=0)

    def spills(self, texts: Sequence[str]) -> int:
        """What is put beside the pointers of the stack; the second is one only where the code makes it one."""
        pointers = {"rsp", *(["rbp"] if any(map(self._FRAME.match, texts)) else [])}
        return sum(found[1] in pointers for found in map(self._STORED.match, texts) if found)


class _AArch64:
    """The texts of AArch64's instructions."""

    jump = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)$")
    end = re.compile(r"e?ret|svc$|brk$|hlt$")

    _WHOLE = re.compile(r"\bv\d+\.(?:16b|8h|4s|2d)\b|\bq\d")
    _HALF = re.compile(r"\bv\d+\.(?:8b|4h|2s|1d)\b")
    _SCALABLE = re.compile(r"\bz\d+\.")
    _STORED = re.compile(r"st(?:r|p|ur)\S* .*\[(?:sp|x29)(?:, #-?\w+)?\]!?(?:, #-?\w+)?$")
    _SAVED = re.compile(r"st\S* (?:x(?:19|2\d|30)|d(?:8|9|1[0-5])),")
    """Registers that a function must give back as it found them."""

    def vector_bits(self, texts: Sequence[str]) -> Integer:
        """Of the widest registers; those of SVE are as wide as the processor makes them."""
        if any(map(self._SCALABLE.search, texts)):
            return UNKNOWN
        return 128 if any(map(self._WHOLE.search, texts)) else 64 if any(map(self._HALF.search, texts)) else 0

    def spills(self, texts: Sequence[str]) -> int:
        """What is put beside the pointers of the stack; in front of all jumps not what the caller wants back."""
        first = sum(1 for _ in takewhile(lambda text: not self.jump.match(text.split()[0]), texts))
        return sum(
            1 + text.startswith("stp")
            for number, text in enumerate(texts)
            if self._STORED.match(text) and not (number < first and self._SAVED.match(text))
        )


X86: Final = _X86()
AARCH64: Final = _AArch64()
_KINDS: Final[Mapping[str, _X86 | _AArch64]] = {"EM_X86_64": X86, "EM_AARCH64": AARCH64}
