"""ELF files with other debug information for the unchanged code of an image.

A *debug file* has sections without content in place of the code and data, as `objcopy --only-keep-debug` writes it. A
*code file* has all that the loader reads of the image, byte for byte, so it may be loaded in its place. Only the place
of the table of sections in the ELF header differs, which loaders do not read.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracemap.core.errors import ModuleInvalid
from tracemap.machine.dwarf_writer import DebugFunction, DebugSections, bytes_of
from tracemap.machine.images import Dwarf, Image, elf_of

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SEGMENTS_OFFSET: Final = slice(32, 40)
_SECTIONS_OFFSET: Final = slice(40, 48)
_SEGMENTS_COUNT: Final = slice(54, 58)
"""Size and number of the segments, in the header."""
_SECTIONS_COUNT: Final = slice(58, 64)
"""Size, number and table of names of the sections, in the header."""
_PROGBITS, _SYMTAB, _STRTAB, _NOTE, _NOBITS = 1, 2, 3, 7, 8
_ALLOC: Final = 2
_LOAD: Final = 1
_WRITABLE: Final = 2
_GLOBAL_FUNCTION: Final = 0x12
_BUILD_ID: Final = ".note.gnu.build-id"
_FRAMES: Final = ".eh_frame"


@dataclass(frozen=True, slots=True)
class MovableFile:
    """A debug file, and the offsets of the addresses in it, which all move by the address where the code is loaded."""

    data: bytes
    addresses: tuple[int, ...]


@dataclass
class DebugFiles:
    """The files for an image.

    Args:
        image: the image, with little-endian addresses of 64 bits.
        functions: its functions.
        debug: their debug information.
    """

    image: Image
    functions: Sequence[DebugFunction]
    debug: DebugSections
    _elf: ELFFile = field(init=False)

    def __post_init__(self) -> None:
        self._elf = elf_of(self.image)

    @cached_property
    def build_id(self) -> str:
        """The image's build-id in hexadecimal; if it has none, a SHA-1 of what the loader reads and of what is new.

        perf keeps a copy of each file by its build-id, and would show old lines otherwise.
        """
        if own := own_build_id(self.image):
            return own
        parts = (self._loaded_bytes, *self.debug.content.values())
        return hashlib.sha1(b"".join(parts), usedforsecurity=False).hexdigest()

    @cached_property
    def _loaded_bytes(self) -> bytes:
        """The beginning of the image, up to the end of its last segment, without the offsets of sections."""
        ends = [int(segment["p_offset"]) + int(segment["p_filesz"]) for segment in self._elf.iter_segments()]
        data = bytearray(self.image.data[: max(ends, default=_HEADER.size)])
        data[_SECTIONS_OFFSET] = bytes(8)
        data[_SECTIONS_COUNT] = bytes(6)
        return bytes(data)

    def code_file(self) -> bytes:
        """The image with the new debug information; what the loader reads is unchanged."""
        return self._write(self._loaded_bytes, keeps_content=True, keeps_frames=True).data

    def debug_file(self) -> bytes:
        """The debug information without code and data."""
        return self._write(self._headers, keeps_content=False, keeps_frames=False).data

    def movable_file(self) -> MovableFile:
        """The debug file for a debugger of the running program: with call frames, to be moved to its address.

        It has no segments, whose addresses would have to move as well.
        """
        header = bytearray(self._headers[: _HEADER.size])
        header[_SEGMENTS_OFFSET] = bytes(8)
        header[_SEGMENTS_COUNT] = bytes(4)
        return self._write(bytes(header), keeps_content=False, keeps_frames=True)

    @cached_property
    def _headers(self) -> bytes:
        """ELF header and segments; the segments have no content."""
        data = bytearray(self._loaded_bytes[: _HEADER.size])
        for segment in self._elf.iter_segments():
            fields = segment.header
            # The table of segments is no longer in a segment.
            kind = 0 if fields.p_type == "PT_PHDR" else _number_of_segment(fields.p_type)
            data += _SEGMENT.pack(
                *(kind, fields.p_flags, fields.p_offset, fields.p_vaddr, fields.p_paddr),
                *(0, fields.p_memsz, fields.p_align),
            )
        data[_SEGMENTS_OFFSET] = _HEADER.size.to_bytes(8, "little")
        return bytes(data)

    def _write(self, begin: bytes, *, keeps_content: bool, keeps_frames: bool) -> MovableFile:
        loaded = [
            (index, section)
            for index, section in enumerate(self._elf.iter_sections())
            if int(section["sh_flags"]) & _ALLOC
        ]
        writer = _Writer(bytearray(begin), {old: new for new, (old, _) in enumerate(loaded, 1)})
        for _, section in loaded:
            is_kept = (section.name == _FRAMES and keeps_frames) or section["sh_type"] == "SHT_NOTE"
            writer.add_loaded(section, keeps_content=keeps_content, copies=is_kept)
        if not own_build_id(self.image):
            identity = bytes.fromhex(self.build_id)
            writer.add(_BUILD_ID, _NOTE, struct.pack("<III4s", 4, len(identity), 3, b"GNU\0") + identity, align=4)
        for name, content in self.debug.content.items():
            writer.add(name, _PROGBITS, content, addresses=self.debug.addresses.get(name, ()))
        writer.add_symbols(self.functions)
        return writer.end()

    def identity(self) -> int:
        """A number by which the running program finds the files: checksum and size of the read-only segments.

        The ELF header is left out, since it differs between the image and the code file.
        """
        checksum = size = 0
        for segment in self._elf.iter_segments("PT_LOAD"):
            if not int(segment["p_flags"]) & _WRITABLE:
                begin, end = int(segment["p_offset"]), int(segment["p_offset"]) + int(segment["p_filesz"])
                content = self.image.data[max(begin, _HEADER.size) : end]
                checksum = zlib.crc32(content, checksum)
                size += len(content)
        return checksum << 32 | size & 0xFFFFFFFF


def check_supported(image: Image) -> None:
    """Raise `ModuleInvalid` for an image that the files cannot describe."""
    elf = elf_of(image)
    if elf.elfclass != 64 or not elf.little_endian:
        raise ModuleInvalid("its addresses do not have 64 bits, or the most significant byte comes first")
    if not any(int(section["sh_flags"]) & _ALLOC for section in elf.iter_sections()):
        raise ModuleInvalid("its table of sections is missing")


def own_build_id(image: Image) -> str:
    """The build-id of an image in hexadecimal; "" if it has none."""
    try:
        section = elf_of(image).get_section_by_name(_BUILD_ID)
        notes = list(section.iter_notes()) if section is not None else []
    except Exception:  # damage may raise any error in the library
        return ""
    return next((str(note["n_desc"]) for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"), "")


def _number_of_segment(kind: int | str) -> int:
    from elftools.elf.enums import ENUM_P_TYPE_BASE

    return kind if isinstance(kind, int) else int(ENUM_P_TYPE_BASE[kind])


def _number_of_section(kind: int | str) -> int:
    from elftools.elf.enums import ENUM_SH_TYPE_BASE

    return kind if isinstance(kind, int) else int(ENUM_SH_TYPE_BASE[kind])


@dataclass
class _Header:
    """A row of the table of sections."""

    name: str
    kind: int
    flags: int = 0
    address: int = 0
    offset: int = 0
    size: int = 0
    link: int = 0
    info: int = 0
    align: int = 1
    entry: int = 0


@dataclass
class _Writer:
    """`index_of`: new index of each section that the loader reads, by its old one."""

    data: bytearray
    index_of: Mapping[int, int]
    headers: list[_Header] = field(default_factory=lambda: [_Header("", 0, align=0)])
    addresses: list[int] = field(default_factory=list)

    def add_loaded(self, section: Dwarf, *, keeps_content: bool, copies: bool) -> None:
        """Add a section that the loader reads: in place, else as a copy or without content."""
        fields = section.header
        kind, offset = _number_of_section(fields.sh_type), int(fields.sh_offset)
        if not keeps_content:
            self._align(int(fields.sh_addralign))
            offset = len(self.data)
            if copies:
                self.data += section.data()
            else:
                kind = _NOBITS
        self.headers.append(
            _Header(
                *(section.name, kind, int(fields.sh_flags), int(fields.sh_addr), offset, int(fields.sh_size)),
                link=self.index_of.get(int(fields.sh_link), 0) if keeps_content else 0,
                info=int(fields.sh_info) if keeps_content else 0,
                align=int(fields.sh_addralign),
                entry=int(fields.sh_entsize),
            )
        )

    def _align(self, align: int) -> None:
        self.data += bytes(-len(self.data) % max(1, min(align, 64)))

    def add(
        self, name: str, kind: int, content: bytes, *, align: int = 1, addresses: Sequence[int] = (), link: int = 0
    ) -> _Header:
        """Add a section that is not loaded."""
        self._align(align)
        self.addresses += [len(self.data) + offset for offset in addresses]
        header = _Header(name, kind, offset=len(self.data), size=len(content), align=align, link=link)
        self.headers.append(header)
        self.data += content
        return header

    def add_symbols(self, functions: Sequence[DebugFunction]) -> None:
        """Add each function by the name of its symbol, and by its name for people."""
        names, table, addresses = bytearray(1), bytearray(_SYMBOL.size), []
        for function in functions:
            index = self._section_at(function.low)
            for name in dict.fromkeys((function.symbol, function.name)):
                addresses.append(len(table) + 8)
                table += _SYMBOL.pack(
                    len(names), _GLOBAL_FUNCTION, 0, index, function.low, function.high - function.low
                )
                names += bytes_of(name) + b"\0"
        symbols = self.add(".symtab", _SYMTAB, bytes(table), align=8, addresses=addresses, link=len(self.headers) + 1)
        symbols.info, symbols.entry = 1, _SYMBOL.size
        self.add(".strtab", _STRTAB, bytes(names))

    def _section_at(self, address: int) -> int:
        return next(
            (
                index
                for index, header in enumerate(self.headers)
                if header.flags & _ALLOC and header.address <= address < header.address + header.size
            ),
            0,
        )

    def end(self) -> MovableFile:
        """Add the names and the table of sections."""
        names = bytearray(1)
        places = [0]
        for header in (*self.headers[1:], _Header(".shstrtab", _STRTAB)):
            places.append(len(names))
            names += bytes_of(header.name) + b"\0"
        self.add(".shstrtab", _STRTAB, bytes(names))
        self._align(8)
        table = len(self.data)
        for place, header in zip(places, self.headers, strict=True):
            if header.flags & _ALLOC:
                self.addresses.append(len(self.data) + 16)
            self.data += _SECTION.pack(
                *(place, header.kind, header.flags, header.address, header.offset, header.size),
                *(header.link, header.info, header.align, header.entry),
            )
        self.data[_SECTIONS_OFFSET] = table.to_bytes(8, "little")
        count = len(self.headers)
        self.data[_SECTIONS_COUNT] = struct.pack("<HHH", _SECTION.size, count, count - 1)
        return MovableFile(bytes(self.data), tuple(self.addresses))
