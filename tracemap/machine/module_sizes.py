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
    """Data of executables next to their code: numbers, tables for unwinding, and the table of kernels."""
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
    """Bytes of one kind.

    `name`: the function of machine code or bytecode, or the only kernel of an executable that is not read; else "".
    """

    kind: PartKind
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LocatedBytecode:
    """Bytecode of an instruction of the VM up to the next one.

    `function`: the function that it is in; `names`: the names in its location, inside of calls, in order.
    """

    function: str
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """The parts of a module's file, which add up to `total_bytes`.

    `images`: its CPU executables; `located`: the bytecode of functions with a source map, a part of the bytecode;
    `constants`: each read-only segment with constants, in order.
    """

    total_bytes: int
    parts: tuple[ModulePart, ...]
    images: tuple[Image, ...]
    located: tuple[LocatedBytecode, ...]
    constants: tuple[bytes, ...]


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
        program = _Program(data)
        constants, executables = _segments(program, images, kernels)
        located, bytecode = _bytecode(program)
        parts = [*_parts_of_executables(images, kernels), *executables, *bytecode]
    except (struct.error, ValueError, IndexError, UnicodeDecodeError) as error:
        raise ModuleInvalid(f"{module}: its structure is damaged ({error}); build the bundle again") from error
    parts.append(ModulePart(PartKind.CONSTANTS, "", sum(map(len, constants))))
    rest = len(data) - sum(part.bytes for part in parts)
    if rest < 0:
        raise ModuleInvalid(f"{module}: its structure is damaged (parts overlap); build the bundle again")
    parts.append(ModulePart(PartKind.STRUCTURE, "", rest))
    return ModuleSizes(len(data), tuple(parts), images, located, constants)


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

_EXPORTS, _SEGMENTS, _FUNCTIONS, _BYTECODE, _SOURCE_MAPS = 7, 9, 12, 14, 15
"""Fields of the module's table: exports, read-only segments, functions, their bytecode, their source maps."""
_EXPORT_NAME, _EXPORT_FUNCTION = 0, 1
_EMBEDDED, _OFFSET, _LENGTH = 2, 3, 4
"""Fields of a read-only segment; the type of the compression takes index 0."""
_DESCRIPTOR_BYTES: Final = 20
_ALIGNMENT: Final = 64
_ZIP_MAGIC: Final = b"PK\x03\x04"
_PROGRAM_MAGIC: Final = b"IREE"
_MAGICS: Final = (b"AMDG", b"CDA1", b"CUDB", b"HIPK", b"MTLE", b"SPV1", b"SPVE", b"VKE1", b"VMFB", b"WGSL", b"\x7fELF")
"""First bytes, or identifiers at offset 4 of a FlatBuffer, of executables for devices."""
_HEADER_BYTES: Final = 64
"""The header of an executable in a FlatBuffer, which begins with its identifier (IREE, `iree/schemas/`)."""


class _Program:
    """The module's table, and where its external segments begin."""

    def __init__(self, data: bytes) -> None:
        start = _flatbuffer_start(data)
        (size,) = struct.unpack_from("<I", data, start)
        if data[start + 8 : start + 12] != _PROGRAM_MAGIC:
            raise ValueError("it is not a module of IREE")
        self.data = data
        self.table = _Table(data, _reference(data, start + 4))
        self.external = -(-(start + 4 + size) // _ALIGNMENT) * _ALIGNMENT


def _segments(
    program: _Program, images: Sequence[Image], kernels: frozenset[str]
) -> tuple[tuple[bytes, ...], list[ModulePart]]:
    """The segments with constants, and the executables that are not read."""
    data = program.data
    constants, executables, shared = [], [], 0
    for segment in program.table.tables(_SEGMENTS):
        begin, length = segment.extent(program.external)
        if begin < 0 or length < 0 or begin + length > len(data):
            raise ValueError("a read-only segment is out of bounds")
        inside = sum(len(image.data) for image in images if begin <= image.offset < begin + length)
        if inside:
            shared += length - inside
        elif not _is_executable(data[begin : begin + length]):
            constants.append(data[begin : begin + length])
        elif len(named := _named_kernels(data[begin : begin + length], kernels)) == 1:
            executables.append(ModulePart(PartKind.OTHER_EXECUTABLE, named[0], length))
        else:
            shared += length
    return tuple(constants), [*executables, ModulePart(PartKind.OTHER_EXECUTABLE, "", shared)]


def _is_executable(segment: bytes) -> bool:
    """Whether a segment is an executable for a device, or a program of the VM."""
    if segment.startswith(_ZIP_MAGIC):
        start = _flatbuffer_start(segment)
        return segment[start + 8 : start + 12] == _PROGRAM_MAGIC
    is_flatbuffer = len(segment) > _HEADER_BYTES and segment[:4] == segment[_HEADER_BYTES + 4 : _HEADER_BYTES + 8]
    return (is_flatbuffer and segment[:4].isalnum()) or any(magic in segment[:12] for magic in _MAGICS)


def _named_kernels(executable: bytes, kernels: frozenset[str]) -> list[str]:
    """The kernels whose names are texts of an executable."""
    return sorted(kernel for kernel in kernels if kernel.encode() + b"\0" in executable)


def _flatbuffer_start(data: bytes) -> int:
    """The offset of the module's FlatBuffer with its size, which may be the first entry of a ZIP file."""
    if not data.startswith(_ZIP_MAGIC):
        return 0
    name_bytes, extra_bytes = struct.unpack_from("<HH", data, 26)
    return 30 + int(name_bytes) + int(extra_bytes)


def _bytecode(program: _Program) -> tuple[tuple[LocatedBytecode, ...], list[ModulePart]]:
    """The located instructions, and the bytes of each function. Functions that share bytecode count once."""
    table, data = program.table, program.data
    at, count = table.vector(_FUNCTIONS)
    ranges = [struct.unpack_from("<ii", data, at + _DESCRIPTOR_BYTES * index) for index in range(count)]
    _, length = table.vector(_BYTECODE)
    if any(offset < 0 or size < 0 or offset + size > length for offset, size in ranges):
        raise ValueError("a function's bytecode is out of bounds")
    exports = _exports(table)
    names = [exports.get(index, f"internal function {index}") for index in range(count)]
    first = {extent: index for index, extent in reversed(list(enumerate(ranges)))}
    parts = [ModulePart(PartKind.BYTECODE, names[index], size) for (_, size), index in first.items() if size]
    located = []
    for name, mapped in _source_maps(table):
        index = names.index(name) if name in names else -1
        if index < 0 or first[ranges[index]] != index or not mapped:
            continue
        _, size = ranges[index]
        entries = [(0, ()), *mapped] if mapped[0][0] > 0 else mapped  # the marker of the first block
        ends = [*(low for low, _ in entries[1:]), size]
        if any(low >= high for (low, _), high in zip(entries, ends, strict=True)) or entries[0][0] < 0:
            continue  # it is of other bytecode
        located += [
            LocatedBytecode(name, location, high - low) for (low, location), high in zip(entries, ends, strict=True)
        ]
    return tuple(located), parts


def _exports(table: _Table) -> dict[int, str]:
    """The names of exported functions by index, the first of each."""
    names: dict[int, str] = {}
    for export in table.tables(_EXPORTS):
        at = export.field(_EXPORT_FUNCTION)
        index = int(struct.unpack_from("<i", table.data, at)[0]) if at else 0
        names.setdefault(index, export.text(_EXPORT_NAME))
    return names


# ---- source maps

_LOCATION_KINDS, _LOCATIONS, _MAPS = 0, 1, 2
"""Fields of the table of source maps."""
_CALL_SITE, _FUSED, _NAME = 1, 3, 4
"""Kinds of locations; the others have no name."""
_MOST_NAMES: Final = 1 << 16
"""The most names of a location, far more than compilers generate."""


def _source_maps(table: _Table) -> Iterator[tuple[str, list[tuple[int, tuple[str, ...]]]]]:
    """The functions with a source map: offset in the bytecode and names of the location of each instruction."""
    at = table.field(_SOURCE_MAPS)
    if not at:
        return
    maps = _Table(table.data, _reference(table.data, at))
    names = _location_names(maps)
    for function in maps.tables(_MAPS):
        begin, count = function.vector(1)
        entries = [struct.unpack_from("<ii", table.data, begin + 8 * index) for index in range(count)]
        yield function.text(0), [(int(offset), names[location]) for offset, location in entries]


def _location_names(maps: _Table) -> list[tuple[str, ...]]:
    """The names in each location: of a call site those of its callee, if it has any."""
    kinds_at, _ = maps.vector(_LOCATION_KINDS)
    at, count = maps.vector(_LOCATIONS)
    names: list[tuple[str, ...]] = []
    for index in range(count):
        kind = maps.data[kinds_at + index]
        if kind not in (_CALL_SITE, _FUSED, _NAME):
            names.append(())
            continue
        table = _Table(maps.data, _reference(maps.data, at + 4 * index))
        # Parts of a location precede it, which rules out circles.
        if kind == _CALL_SITE:
            callee, caller = (_earlier(names, table.integer(field)) for field in (0, 1))
            names.append(callee or caller)
        elif kind == _NAME:
            names.append((table.text(0), *_earlier(names, table.integer(1))))
        else:
            begin, parts = table.vector(1)
            children = (struct.unpack_from("<i", maps.data, begin + 4 * part)[0] for part in range(parts))
            names.append(tuple(dict.fromkeys(name for child in children for name in _earlier(names, int(child)))))
        if len(names[-1]) > _MOST_NAMES:
            raise ValueError("a location has too many names")
    return names


def _earlier(names: Sequence[tuple[str, ...]], index: int) -> tuple[str, ...]:
    if not 0 <= index < len(names):
        raise ValueError("a location is out of order")
    return names[index]


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

    def integer(self, index: int) -> int:
        """A field of 32 bits."""
        at = self.field(index)
        return int(struct.unpack_from("<i", self.data, at)[0]) if at else 0

    def text(self, index: int) -> str:
        """A field with text."""
        at, count = self.vector(index)
        return self.data[at : at + count].decode(errors="replace")

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
