"""Read-only data of executables, by the code that reads it: numbers that instructions load from fixed addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tracemap.machine.decoding import decoded_texts
from tracemap.machine.images import Image, elf_of

_SIZES: Final = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_LOAD = re.compile(rf"({'|'.join(_SIZES)}) ptr \[rip ([+-]) (0x[0-9a-f]+|\d+)\]")
_DATA: Final = ".rodata"
_MACHINE: Final = "EM_X86_64"


@dataclass(frozen=True, slots=True)
class Reader:
    """A line of a function that loads data; functions of the library have lines, too."""

    function: str
    line: int


def read_data_readers(image: Image) -> Mapping[tuple[Reader, ...], int]:
    """Bytes of an image's numbers by their readers, in the order of addresses.

    Only data that is loaded from a fixed address counts, since the extent of a table is unknown. Code for other
    architectures than x86-64 has no readers.

    Raises:
        ModuleInvalid: the code lies outside the image.
    """
    if image.machine != _MACHINE:
        return {}
    readers: dict[int, dict[Reader, None]] = {}
    ranges = _data_ranges(image)
    for reader, low, high in _loads(image):
        if any(begin <= low and high <= end for begin, end in ranges):
            for address in range(low, high):
                readers.setdefault(address, {})[reader] = None
    return Counter(tuple(readers[address]) for address in sorted(readers))


def _data_ranges(image: Image) -> list[tuple[int, int]]:
    sections = (section for section in elf_of(image).iter_sections() if section.name.startswith(_DATA))
    return [(int(section["sh_addr"]), int(section["sh_addr"]) + int(section["sh_size"])) for section in sections]


def _loads(image: Image) -> Iterator[tuple[Reader, int, int]]:
    """The lines that load from fixed addresses, and begin and end of what they load."""
    for function in image.functions:
        loads = [
            (address, address + size + _displacement(found), _SIZES[found[1]])
            for address, size, _, operands in decoded_texts(image, function)
            if (found := _LOAD.search(operands))
        ]
        lines = image.lines_of([address for address, _, _ in loads])
        for (_, target, size), line in zip(loads, lines, strict=True):
            yield Reader(function.name, line), target, target + size


def _displacement(found: re.Match[str]) -> int:
    distance = int(found[3], 0)
    return distance if found[2] == "+" else -distance
