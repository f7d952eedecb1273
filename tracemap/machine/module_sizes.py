"""Bytes of a module's file: a partition of the whole file into code, data, bytecode, constants and the rest.

A module (`.vmfb`) is a FlatBuffer, by default inside an uncompressed ZIP file, followed by large read-only segments.
CPU executables are ELF files in such segments. Only offsets and lengths are read here, so every byte of the file is in
exactly one part. IREE's schema is `iree/schemas/bytecode_module_def.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tracemap.core.errors import ModuleInvalid
from tracemap.core.files import read_stored_file
from tracemap.machine.images import Image, elf_of, read_images


class PartKind(Enum):
    """The kind of bytes of a part; the value is its name in tables and JSON."""

    CODE = "machine code"
    LIBRARY = "library functions"
    """Machine code that the compiler adds to every executable, such as `expf` and `memcpy`."""
    DATA = "read-only data"
    """Data of executables next to their code."""
    DEBUG = "debug information"
    TABLES = "executable structure"
    """Headers, symbols and padding of executables."""
    OTHER_EXECUTABLE = "other executables"
    """Executables whose machine code tracemap does not read."""
    BYTECODE = "VM bytecode"
    CONSTANTS = "constants"
    STRUCTURE = "file structure"
    """Names, types, locations, padding and directories of the module's file."""


@dataclass(frozen=True, slots=True)
class ModulePart:
    """Bytes of one kind: of a kernel's machine code, or of all else.

    `name`: the function of the machine code, otherwise "".
    """

    kind: PartKind
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """The parts of a module's file, which add up to `total_bytes`; `images`: its CPU executables."""

    total_bytes: int
    parts: tuple[ModulePart, ...]
    images: tuple[Image, ...]


def read_module_sizes(module: Path, kernels: frozenset[str]) -> ModuleSizes:
    """Divide a module's file into parts.

    Args:
        module: the file.
        kernels: names of the functions that are kernels; other functions are the library's.

    Raises:
        ModuleInvalid: the file cannot be read, or is damaged.
    """
    data = read_stored_file(module, ModuleInvalid)
    images = read_images(module)
    try:
        parts = [*_parts_of_executables(images, kernels), *_parts_of_program(data, images)]
    except (struct.error, ValueError, IndexError, UnicodeDecodeError) as error:
        raise ModuleInvalid(f"{module}: its structure is damaged ({error}); build the bundle again") from error
    rest = len(data) - sum(part.bytes for part in parts)
    if rest < 0:
        raise ModuleInvalid(f"{module}: its structure is damaged (parts overlap); build the bundle again")
    return ModuleSizes(len(data), (*parts, ModulePart(PartKind.STRUCTURE, "", rest)), images)


# ---- executables

_ALLOCATED, _EXECUTABLE = 2, 4
"""Section flags (System V ABI, chapter 4)."""


def _parts_of_executables(images: Sequence[Image], kernels: frozenset[str]) -> Iterator[ModulePart]:
    sizes = dict.fromkeys((PartKind.LIBRARY, PartKind.DATA, PartKind.DEBUG, PartKind.TABLES), 0)
    for image in images:
        own = [function for function in image.functions if function.name in kernels]
        code = data = debug = 0
        for section in elf_of(image).iter_sections():
            if section["sh_type"] == "SHT_NOBITS":
                continue
            size, flags = int(section["sh_size"]), int(section["sh_flags"])
            code += size if flags & _EXECUTABLE else 0
            debug += size if section.name.startswith(".debug") else 0
            is_data = flags & _ALLOCATED and not flags & _EXECUTABLE and section["sh_type"] == "SHT_PROGBITS"
            data += size if is_data else 0
        for function in own:
            yield ModulePart(PartKind.CODE, function.name, function.high - function.low)
        library = code - sum(function.high - function.low for function in own)
        tables = len(image.data) - code - data - debug
        if library < 0 or tables < 0:
            raise ValueError("sections of an executable overlap")
        for kind, size in zip(sizes, (library, data, debug, tables), strict=True):
            sizes[kind] += size
    yield from (ModulePart(kind, "", size) for kind, size in sizes.items())


# ---- program

_RODATA_SEGMENTS, _FUNCTION_DESCRIPTORS = 9, 12
"""Fields of the module's table."""
_EMBEDDED, _OFFSET, _LENGTH = 2, 3, 4
"""Fields of a read-only segment; the type of the compression takes index 0."""
_DESCRIPTOR_BYTES: Final = 20
_ALIGNMENT: Final = 64
_ZIP_MAGIC: Final = b"PK\x03\x04"
_MAGICS: Final = (b"AMDG", b"CDA1", b"CUDB", b"HIPK", b"MTLE", b"SPV1", b"SPVE", b"VMFB", b"WGSL", b"\x7fELF")
"""First bytes, or identifiers at offset 4 of a FlatBuffer, of executables for devices."""


def _parts_of_program(data: bytes, images: Sequence[Image]) -> Iterator[ModulePart]:
    start = _flatbuffer_start(data)
    (size,) = struct.unpack_from("<I", data, start)
    if not data[start + 8 : start + 12] == b"IREE":
        raise ValueError("it is not a module of IREE")
    table = _Table(data, _reference(data, start + 4))
    external = -(-(start + 4 + size) // _ALIGNMENT) * _ALIGNMENT
    yield ModulePart(PartKind.BYTECODE, "", sum(_bytecode_lengths(table)))
    constants = executables = 0
    for segment in table.tables(_RODATA_SEGMENTS):
        begin, length = segment.extent(external)
        if begin < 0 or length < 0 or begin + length > len(data):
            raise ValueError("a read-only segment is out of bounds")
        inside = sum(len(image.data) for image in images if begin <= image.offset < begin + length)
        magic = data[begin : begin + 12]
        is_executable = bool(inside) or any(identifier in magic for identifier in _MAGICS)
        executables += length - inside if is_executable else 0
        constants += 0 if is_executable else length
    yield ModulePart(PartKind.OTHER_EXECUTABLE, "", executables)
    yield ModulePart(PartKind.CONSTANTS, "", constants)


def _flatbuffer_start(data: bytes) -> int:
    """The offset of the module's FlatBuffer with its size, which may be the first entry of a ZIP file."""
    if not data.startswith(_ZIP_MAGIC):
        return 0
    name_bytes, extra_bytes = struct.unpack_from("<HH", data, 26)
    return 30 + int(name_bytes) + int(extra_bytes)


def _bytecode_lengths(table: _Table) -> list[int]:
    """The lengths of the functions' bytecode; functions that share it count once."""
    at, count = table.vector(_FUNCTION_DESCRIPTORS)
    ranges = {struct.unpack_from("<ii", table.data, at + _DESCRIPTOR_BYTES * index) for index in range(count)}
    if any(length < 0 for _, length in ranges):
        raise ValueError("a function has a negative length")
    return [int(length) for _, length in ranges]


def _reference(data: bytes, at: int) -> int:
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a FlatBuffer at an offset."""

    data: bytes
    at: int

    def field(self, index: int) -> int:
        """The offset of a field, 0 if it has its default."""
        (back,) = struct.unpack_from("<i", self.data, self.at)
        layout = self.at - int(back)
        (layout_bytes,) = struct.unpack_from("<H", self.data, layout)
        if 4 + 2 * index >= layout_bytes:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, layout + 4 + 2 * index)
        return self.at + int(offset) if offset else 0

    def number(self, index: int) -> int:
        """A field of 64 bits."""
        at = self.field(index)
        return int(struct.unpack_from("<Q", self.data, at)[0]) if at else 0

    def vector(self, index: int) -> tuple[int, int]:
        """Offset and number of a vector's elements."""
        at = self.field(index)
        if not at:
            return 0, 0
        begin = _reference(self.data, at)
        (count,) = struct.unpack_from("<I", self.data, begin)
        if count > len(self.data):
            raise ValueError("a vector is longer than the file")
        return begin + 4, int(count)

    def tables(self, index: int) -> list[_Table]:
        """The tables of a vector."""
        at, count = self.vector(index)
        return [_Table(self.data, _reference(self.data, at + 4 * number)) for number in range(count)]

    def extent(self, external: int) -> tuple[int, int]:
        """Offset and length of a read-only segment; external ones begin at `external`."""
        if self.field(_EMBEDDED):
            return self.vector(_EMBEDDED)
        return external + self.number(_OFFSET), self.number(_LENGTH)
