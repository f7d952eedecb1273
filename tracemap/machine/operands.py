"""Operands of x86-64 instructions, from their text as Intel writes it: registers, places in memory, numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple


class Register(NamedTuple):
    """A general register, by the name of the widest one that it is part of, and how many of its lowest bytes are meant.

    0 bytes: the second byte alone (`ah`).
    """

    name: str
    size: int


class Memory(NamedTuple):
    """A place in memory: `size` bytes at base + scale x counter + offset; registers, "" for none."""

    base: str
    counter: str
    scale: int
    offset: int
    size: int


Operand = Register | Memory | int | None
"""None: a vector register, or anything else that no whole number goes through."""


def _registers() -> dict[str, Register]:
    found = {}
    for letter in "abcd":
        parts = {f"r{letter}x": 8, f"e{letter}x": 4, f"{letter}x": 2, f"{letter}l": 1, f"{letter}h": 0}
        found.update({part: Register(f"r{letter}x", size) for part, size in parts.items()})
    for name in ("si", "di", "bp", "sp"):
        parts = {f"r{name}": 8, f"e{name}": 4, name: 2, f"{name}l": 1}
        found.update({part: Register(f"r{name}", size) for part, size in parts.items()})
    for place in range(8, 16):
        parts = {f"r{place}": 8, f"r{place}d": 4, f"r{place}w": 2, f"r{place}b": 1}
        found.update({part: Register(f"r{place}", size) for part, size in parts.items()})
    return found


_REGISTERS: Final = _registers()
GENERAL: Final = frozenset(each.name for each in _REGISTERS.values())
"""The general registers by the names of the widest ones."""

_SIZES: Final = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:\w+:)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?)(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")


@lru_cache(maxsize=1 << 14)
def operands_of(text: str) -> tuple[Operand, ...]:
    """The operands of an instruction.

    >>> operands_of("eax, dword ptr [rcx + rsi*4 - 0x10]")
    (Register(name='rax', size=4), Memory(base='rcx', counter='rsi', scale=4, offset=-16, size=4))
    """
    return tuple(map(_operand, text.split(", "))) if text else ()


def _operand(text: str) -> Operand:
    if found := _MEMORY.search(text):
        return _memory(found[2], _SIZES.get(found[1] or "", 0))
    if text in _REGISTERS:
        return _REGISTERS[text]
    return int(text, 0) if _NUMBER.match(text) else None


def _memory(place: str, size: int) -> Memory:
    base, counter, scale, offset = "", "", 1, 0
    for sign, scaled, factor, constant, name in _TERM.findall(place.replace(" ", "")):
        if constant:
            offset += int(constant, 0) * (-1 if sign == "-" else 1)
        elif name and not base:
            base = name
        else:
            counter, scale = scaled or name, int(factor or 1)
    return Memory(base, counter, scale, offset, size)
