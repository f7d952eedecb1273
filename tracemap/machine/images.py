"""ELF images of a module: functions, debug lines and symbols."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tracemap.core.errors import ModuleInvalid
from tracemap.core.files import read_stored_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from elftools.elf.elffile import ELFFile


# ---- images
#
# Read the ELF images in a module, and map addresses to kernels and lines of their text.
#
# A module (`.vmfb`) contains its CPU executables as plain ELF files. `build` gives each kernel debug lines that refer
# to the kernel's own text. Executables for other targets contain no readable machine code.


Dwarf = Any
"""A part of the debug information from `elftools`, which has no type hints."""

_MAGIC = b"\x7fELF"
_SMALLEST_ENTRY_BYTES = 32
"""Smallest entry of a table of sections or segments: a 32-bit segment (System V ABI, chapter 5)."""
_LARGEST = (1 << 63) - 1
NO_LINE = 0
"""The line of code without a line (DWARF 5, section 6.2.2)."""


class CodeFunction(msgspec.Struct, frozen=True):
    """A function of an image: a kernel, or a function added by the compiler. Addresses are those of the image."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Image:
    """An ELF image of a module.

    `machine`: the ELF name of the architecture (`EM_X86_64`); `functions`: functions with debug information, by
    address; `rows`: address and line of code ranges, by address; each range ends at the next.
    """

    offset: int
    """Offset of its first byte in the module's file."""
    data: bytes = field(repr=False)
    machine: str
    functions: tuple[CodeFunction, ...]
    rows: tuple[tuple[int, int], ...] = field(repr=False)

    @cached_property
    def function_by_name(self) -> dict[str, CodeFunction]:
        """Functions by name."""
        return {function.name: function for function in self.functions}

    # Sorted starts, and the values after them. A last element serves addresses before the first start.

    @cached_property
    def _lows_and_highs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        import numpy as np

        lows, highs = [function.low for function in self.functions], [function.high for function in self.functions]
        return np.array(lows, dtype=np.int64), np.array([*highs, -_LARGEST], dtype=np.int64)

    @cached_property
    def _starts_and_lines(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        import numpy as np

        starts, lines = [address for address, _ in self.rows], [line for _, line in self.rows]
        return np.array(starts, dtype=np.int64), np.array([*lines, NO_LINE], dtype=np.int64)

    def functions_at(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the function at each address; -1 for none. Shapes: (n,) to (n,)."""
        import numpy as np

        lows, highs = self._lows_and_highs
        indexes = np.searchsorted(lows, addresses, side="right") - 1
        return np.where(addresses < highs[indexes], indexes, -1)

    def lines_at(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Line of the code at each address; `NO_LINE` for none. Shapes: (n,) to (n,)."""
        import numpy as np

        starts, lines = self._starts_and_lines
        return lines[np.searchsorted(starts, addresses, side="right") - 1]

    def lines_of(self, addresses: Sequence[int]) -> list[int]:
        """As `lines_at`, for lists."""
        import numpy as np

        lines: list[int] = self.lines_at(np.array(addresses, dtype=np.int64)).tolist()
        return lines


def read_images(module: Path) -> tuple[Image, ...]:
    """Read the images of a compiled module, in file order.

    Raises:
        ModuleInvalid: the file cannot be read, or an image in it is damaged.
    """
    return tuple(_images(read_stored_file(module, ModuleInvalid), str(module)))


def read_image(file: Path, *, debug: bool = True) -> Image:
    """Read a shared object or program.

    Args:
        file: the file.
        debug: read its debug information, which may be much; without, the image has no functions and no rows.

    Raises:
        ModuleInvalid: the file cannot be read, or is not an ELF file.
    """
    image = next(_images(read_stored_file(file, ModuleInvalid), str(file), debug), None)
    if image is None or image.offset:
        raise ModuleInvalid(f"{file}: is not an ELF file")
    return image


def _images(data: bytes, name: str, debug: bool = True) -> Iterator[Image]:
    from elftools.elf.elffile import ELFFile

    offset = data.find(_MAGIC)
    while offset >= 0:
        try:
            elf = ELFFile(io.BytesIO(data[offset:]))
            size = _size(elf)
        except Exception:  # the library checks little, so damage may raise any error
            offset = data.find(_MAGIC, offset + 1)  # constants may contain these bytes, too
            continue
        try:
            functions, rows = _debug_information(elf) if debug else ((), ())
        except Exception as error:  # as above
            raise ModuleInvalid(f"{name}: the debug information of its code is damaged ({error!r})") from error
        yield Image(offset, data[offset : offset + size], str(elf["e_machine"]), functions, rows)
        offset = data.find(_MAGIC, offset + size)


def _size(elf: ELFFile) -> int:
    """Size in bytes: the end of its last section, segment or table. Raises `ValueError` if the file is truncated."""
    end_of_file = elf.stream.seek(0, io.SEEK_END)
    ends = [len(_MAGIC)]
    for count, width, offset in (
        (elf.num_sections(), elf["e_shentsize"], elf["e_shoff"]),
        (elf.num_segments(), elf["e_phentsize"], elf["e_phoff"]),
    ):
        # Check the tables before reading them: any number of entries of width 0 would fit into a file.
        if count and (width < _SMALLEST_ENTRY_BYTES or offset + count * width > end_of_file):
            raise ValueError("truncated")
        ends.append(offset + count * width)
    ends += [int(s["sh_offset"]) + int(s["sh_size"]) for s in elf.iter_sections() if s["sh_type"] != "SHT_NOBITS"]
    ends += [int(segment["p_offset"]) + int(segment["p_filesz"]) for segment in elf.iter_segments()]
    if max(ends) > end_of_file:
        raise ValueError("truncated")
    return max(ends)


def _debug_information(elf: ELFFile) -> tuple[tuple[CodeFunction, ...], tuple[tuple[int, int], ...]]:
    if not elf.has_dwarf_info():
        return (), ()
    # A linker has applied relocations already; only object files have any to apply. Searching for them takes long.
    dwarf = elf.get_dwarf_info(relocate_dwarf_sections=elf["e_type"] == "ET_REL")
    functions: dict[tuple[int, int], CodeFunction] = {}
    rows: dict[int, int] = {}
    for unit in dwarf.iter_CUs():
        for function in _functions(unit):
            functions[function.low, function.high] = function
        _add_rows(dwarf.line_program_for_CU(unit), rows)
    # Addresses and lines go to arrays of signed 64-bit integers.
    numbers = [*(end for ends in functions for end in ends), *rows.keys(), *rows.values()]
    if numbers and not -_LARGEST <= min(numbers) <= max(numbers) <= _LARGEST:
        raise ValueError("an address or line exceeds 63 bits")
    return tuple(functions[ends] for ends in sorted(functions)), tuple(sorted(rows.items()))


def _functions(unit: Dwarf) -> Iterator[CodeFunction]:
    for entry in unit.get_top_DIE().iter_children():
        attributes = entry.attributes
        if entry.tag != "DW_TAG_subprogram" or "DW_AT_low_pc" not in attributes or "DW_AT_high_pc" not in attributes:
            continue
        low, high = int(attributes["DW_AT_low_pc"].value), int(attributes["DW_AT_high_pc"].value)
        if attributes["DW_AT_high_pc"].form != "DW_FORM_addr":
            high += low  # `high` is a size
        name = attributes.get("DW_AT_linkage_name", attributes.get("DW_AT_name"))
        if name is not None and high > low:
            yield CodeFunction(name.value.decode("utf-8", errors="replace"), low, high)


def _add_rows(program: Dwarf, rows: dict[int, int]) -> None:
    """Add the start of each line. Of rows at one address the last counts. The end of a sequence has no line."""
    if program is None:
        return
    for state in (entry.state for entry in program.get_entries() if entry.state is not None):
        if state.end_sequence:
            rows.setdefault(int(state.address), NO_LINE)
        else:
            rows[int(state.address)] = int(state.line)


def kernel_images(images: Sequence[Image], kernel: str) -> list[tuple[Image, CodeFunction]]:
    """The images that contain a function of this name, with the function."""
    return [(image, image.function_by_name[kernel]) for image in images if kernel in image.function_by_name]


# ---- symbols
#
# Map symbols to file offsets, and file offsets to loaded addresses.
#
# Profilers of mapped files report file offsets. They name the last symbol before an offset, even an empty table at the
# end of another section. Only the offset, which follows from both, is reliable.


NOWHERE = -1
"""The address of a file offset that is not loaded as code."""


def symbol_offsets(image: Image) -> dict[str, int]:
    """File offset of each symbol and of each function with debug information, by name. Ambiguous names are left out.

    Raises:
        ModuleInvalid: the symbol table is damaged.
    """
    with _damage_reported("symbols"):
        elf = elf_of(image)
        pairs = set[tuple[str, int]]()
        for symbol in _table_of_symbols(elf):
            if isinstance(symbol["st_shndx"], int) and symbol.name:
                section = elf.get_section(symbol["st_shndx"])
                offset = int(symbol["st_value"]) - int(section["sh_addr"]) + int(section["sh_offset"])
                pairs.add((symbol.name, offset))
        for segment in elf.iter_segments("PT_LOAD"):
            begin, size = int(segment["p_vaddr"]), int(segment["p_filesz"])
            for function in image.functions:
                if begin <= function.low < begin + size:
                    pairs.add((function.name, function.low - begin + int(segment["p_offset"])))
    offsets: dict[str, int] = {}
    ambiguous = {name for name, offset in pairs if offsets.setdefault(name, offset) != offset}
    return {name: offset for name, offset in offsets.items() if name not in ambiguous}


def function_symbols(image: Image) -> list[CodeFunction]:
    """The functions in the symbol table, with addresses of the image. Local functions may be missing.

    Raises:
        ModuleInvalid: the symbol table is damaged.
    """
    with _damage_reported("symbols"):
        functions = [
            CodeFunction(symbol.name, int(symbol["st_value"]), int(symbol["st_value"]) + int(symbol["st_size"]))
            for symbol in _table_of_symbols(elf_of(image))
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
        ]
    return [function for function in functions if function.high <= _LARGEST]


def stub_targets(image: Image) -> dict[int, int]:
    """Targets of the PLT stubs, through which code calls exported symbols: stub address to target address.

    A stub has 16 bytes. There is one for each relocation, in the same order, after a header (System V ABI for x86-64,
    figure 5.3; for AArch64, lld's layout).

    Raises:
        ModuleInvalid: the tables are damaged.
    """
    with _damage_reported("calls"):
        elf = elf_of(image)
        table, stubs = elf.get_section_by_name(".rela.plt"), elf.get_section_by_name(".plt")
        if table is None or stubs is None:
            return {}
        symbol_table = elf.get_section(table["sh_link"])
        values = [
            int(symbol_table.get_symbol(relocation["r_info_sym"])["st_value"])
            for relocation in table.iter_relocations()
        ]
        first = int(stubs["sh_addr"]) + int(stubs["sh_size"]) - _STUB_BYTES * len(values)
    return {first + _STUB_BYTES * index: value for index, value in enumerate(values) if value}


_STUB_BYTES = 16


def addresses_at(image: Image, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Address of the code at each file offset; `NOWHERE` for none.

    Shapes: (n,) to (n,).
    """
    import numpy as np

    addresses = np.full(len(offsets), NOWHERE, dtype=np.int64)
    for segment in elf_of(image).iter_segments("PT_LOAD"):
        begin, size = int(segment["p_offset"]), int(segment["p_filesz"])
        if int(segment["p_flags"]) & _EXECUTABLE:
            inside = (offsets >= begin) & (offsets - begin < size)
            addresses[inside] = offsets[inside] - begin + int(segment["p_vaddr"])
    return addresses


_EXECUTABLE = 1
"""Segment flag (System V ABI, chapter 5)."""


def elf_of(image: Image) -> ELFFile:
    """The ELF file of an image."""
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(image.data))


@contextmanager
def _damage_reported(table: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # damage may raise any error in the library
        raise ModuleInvalid(f"the table of {table} of its code is damaged ({error!r})") from error


def _table_of_symbols(elf: ELFFile) -> Iterator[Any]:
    table: Any = elf.get_section_by_name(".symtab")
    return table.iter_symbols() if table is not None else iter(())
