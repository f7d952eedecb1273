"""ELF images of a module: functions, debug lines and symbols."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.errors import ModuleInvalid
from tracemap.inputs import stored_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from elftools.elf.elffile import ELFFile


# ---- images
#
# The ELF images in a module, and which kernel and which line of its text an address belongs to.
#
# A module (`.vmfb`) holds its executables for CPUs as ELF files, as they are; `build` has given each kernel debug
# lines that are lines of the kernel's own text. Other targets have no machine code that could be read here.


Dwarf = Any
"""A part of debug information as `elftools` hands it out; the library has no type hints."""

_MAGIC = b"\x7fELF"
_SMALLEST_ENTRY_BYTES = 32
"""Of a table of sections or segments: a segment's of 32 bits (System V ABI, chapter 5)."""
_LARGEST = (1 << 63) - 1
NO_LINE = 0
"""The line of machine code that has none (DWARF 5, section 6.2.2)."""


@dataclass(frozen=True, slots=True)
class CodeFunction:
    """A function of an image: a kernel's, or one that the compiler made besides. Addresses as the image counts them."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Image:
    """An ELF image of a module.

    `machine` is the architecture's name as ELF has it (`EM_X86_64`); `functions` are those with debug information, by
    address; `rows` are the runs of code with one line: address and line, by address, each up to the next one.
    """

    offset: int
    """Of its first byte in the module's file."""
    data: bytes = field(repr=False)
    machine: str
    functions: tuple[CodeFunction, ...]
    rows: tuple[tuple[int, int], ...] = field(repr=False)

    @cached_property
    def function_by_name(self) -> dict[str, CodeFunction]:
        """Functions by name."""
        return {function.name: function for function in self.functions}

    # What begins at addresses, by address, and behind it what is of all that lies before the first of them.

    @cached_property
    def _lows_and_highs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        import numpy as np

        lows, highs = [each.low for each in self.functions], [each.high for each in self.functions]
        return np.array(lows, dtype=np.int64), np.array([*highs, -_LARGEST], dtype=np.int64)

    @cached_property
    def _starts_and_lines(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        import numpy as np

        starts, lines = [address for address, _ in self.rows], [line for _, line in self.rows]
        return np.array(starts, dtype=np.int64), np.array([*lines, NO_LINE], dtype=np.int64)

    def functions_at(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the function that each address lies in; -1 for none. Shapes: (n,) to (n,)."""
        import numpy as np

        lows, highs = self._lows_and_highs
        found = np.searchsorted(lows, addresses, side="right") - 1
        return np.where(addresses < highs[found], found, -1)

    def lines_at(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The line of the code at each address, `NO_LINE` where it has none. Shapes: (n,) to (n,)."""
        import numpy as np

        starts, lines = self._starts_and_lines
        return lines[np.searchsorted(starts, addresses, side="right") - 1]


def read_images(module: Path) -> tuple[Image, ...]:
    """The images of a compiled module, in the order in which they lie in it.

    Raises:
        ModuleInvalid: the file cannot be read, or an image in it is damaged.
    """
    return tuple(_images(stored_bytes(module, ModuleInvalid), str(module)))


def read_image(file: Path) -> Image:
    """The image of a shared object that stands alone.

    Raises:
        ModuleInvalid: it cannot be read, or is no ELF file.
    """
    found = read_images(file)
    if not found or found[0].offset:
        raise ModuleInvalid(f"{file}: is no ELF file")
    return found[0]


def _images(data: bytes, name: str) -> Iterator[Image]:
    from elftools.elf.elffile import ELFFile

    offset = data.find(_MAGIC)
    while offset >= 0:
        try:
            elf = ELFFile(io.BytesIO(data[offset:]))
            size = _size(elf)
        except Exception:  # the library checks little: what damage does to its assumptions ends in any kind of error
            offset = data.find(_MAGIC, offset + 1)  # constants may hold these bytes too
            continue
        try:
            functions, rows = _debug_information(elf)
        except Exception as error:  # as above
            raise ModuleInvalid(f"{name}: the debug information of its code is damaged ({error!r})") from error
        yield Image(offset, data[offset : offset + size], str(elf["e_machine"]), functions, rows)
        offset = data.find(_MAGIC, offset + size)


def _size(elf: ELFFile) -> int:
    """How many bytes the image takes: up to the end of its last section, segment or table.

    Raises:
        ValueError: these are not all in the file.
    """
    end_of_file = elf.stream.seek(0, io.SEEK_END)
    ends = [len(_MAGIC)]
    for count, width, offset in (
        (elf.num_sections(), elf["e_shentsize"], elf["e_shoff"]),
        (elf.num_segments(), elf["e_phentsize"], elf["e_phoff"]),
    ):
        # Before the tables are walked: entries without a width would lie in any file, however many they are.
        if count and (width < _SMALLEST_ENTRY_BYTES or offset + count * width > end_of_file):
            raise ValueError("cut off")
        ends.append(offset + count * width)
    ends += [int(s["sh_offset"]) + int(s["sh_size"]) for s in elf.iter_sections() if s["sh_type"] != "SHT_NOBITS"]
    ends += [int(segment["p_offset"]) + int(segment["p_filesz"]) for segment in elf.iter_segments()]
    if max(ends) > end_of_file:
        raise ValueError("cut off")
    return max(ends)


def _debug_information(elf: ELFFile) -> tuple[tuple[CodeFunction, ...], tuple[tuple[int, int], ...]]:
    if not elf.has_dwarf_info():
        return (), ()
    dwarf = elf.get_dwarf_info()
    functions: dict[tuple[int, int], CodeFunction] = {}
    rows: dict[int, int] = {}
    for unit in dwarf.iter_CUs():
        for function in _functions(unit):
            functions[function.low, function.high] = function
        _add_rows(dwarf.line_program_for_CU(unit), rows)
    # Addresses and lines are kept in arrays of 64 bits with a sign, which hold all that an image can have.
    numbers = [*(end for ends in functions for end in ends), *rows.keys(), *rows.values()]
    if numbers and not -_LARGEST <= min(numbers) <= max(numbers) <= _LARGEST:
        raise ValueError("an address or a line of more than 63 bits")
    return tuple(functions[ends] for ends in sorted(functions)), tuple(sorted(rows.items()))


def _functions(unit: Dwarf) -> Iterator[CodeFunction]:
    for entry in unit.get_top_DIE().iter_children():
        found = entry.attributes
        if entry.tag != "DW_TAG_subprogram" or "DW_AT_low_pc" not in found or "DW_AT_high_pc" not in found:
            continue
        low, high = int(found["DW_AT_low_pc"].value), int(found["DW_AT_high_pc"].value)
        if found["DW_AT_high_pc"].form != "DW_FORM_addr":
            high += low  # a size
        named = found.get("DW_AT_linkage_name", found.get("DW_AT_name"))
        if named is not None and high > low:
            yield CodeFunction(named.value.decode("utf-8", errors="replace"), low, high)


def _add_rows(program: Dwarf, rows: dict[int, int]) -> None:
    """Add where lines begin. Of several rows at one address the last one counts; a sequence's end has no line."""
    if program is None:
        return
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if state.end_sequence:
            rows.setdefault(int(state.address), NO_LINE)
        else:
            rows[int(state.address)] = int(state.line)


def kernel_images(images: Sequence[Image], kernel: str) -> list[tuple[Image, CodeFunction]]:
    """The images that have a function of this name, and the function."""
    return [(image, image.function_by_name[kernel]) for image in images if kernel in image.function_by_name]


# ---- symbols
#
# Where the symbols of an image lie in its file, and which address a place in the file has when it is loaded.
#
# Profilers that look at mapped files count in places of the file. What they call a symbol is whatever begins before a
# place, be it an empty table at the end of another section: only the place that follows from both is sure.


NOWHERE = -1
"""The address of a place that is not loaded as code."""


def symbol_places(image: Image) -> dict[str, int]:
    """Where each symbol of code and data begins in the file, by name; a name that several have is left out.

    Raises:
        ModuleInvalid: the table of symbols is damaged.
    """
    with _damage_named("symbols"):
        found = set(_symbols(_elf(image)))
    places: dict[str, int] = {}
    several = {name for name, place in found if places.setdefault(name, place) != place}
    return {name: place for name, place in places.items() if name not in several}


def function_symbols(image: Image) -> list[CodeFunction]:
    """The functions that the table of symbols names, as the image counts addresses; local ones need not be in it.

    Raises:
        ModuleInvalid: the table is damaged.
    """
    with _damage_named("symbols"):
        symbols = _table_of_symbols(_elf(image))
        found = [each for each in symbols if each["st_info"]["type"] == "STT_FUNC" and each["st_shndx"] != "SHN_UNDEF"]
        ends = [(each.name, int(each["st_value"]), int(each["st_value"]) + int(each["st_size"])) for each in found]
    return [CodeFunction(name, low, high) for name, low, high in ends if high < _MOST]


_MOST = 1 << 63


def stub_targets(image: Image) -> dict[int, int]:
    """Where the stubs lead through which code calls what is visible outside of its image: address by address.

    A stub is 16 bytes long and as many of them as there are relocations stand behind a head, in the same order (System
    V ABI for x86-64, figure 5.3; for AArch64 as lld lays them out).

    Raises:
        ModuleInvalid: the tables are damaged.
    """
    with _damage_named("calls"):
        elf = _elf(image)
        table, stubs = elf.get_section_by_name(".rela.plt"), elf.get_section_by_name(".plt")
        if table is None or stubs is None:
            return {}
        named = elf.get_section(table["sh_link"])
        values = [int(named.get_symbol(each["r_info_sym"])["st_value"]) for each in table.iter_relocations()]
        first = int(stubs["sh_addr"]) + int(stubs["sh_size"]) - _STUB_BYTES * len(values)
    return {first + _STUB_BYTES * number: value for number, value in enumerate(values) if value}


_STUB_BYTES = 16


def addresses_at(image: Image, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The address of the code at each place in the file, as the image counts them; `NOWHERE`: there is none.

    Shapes: (n,) to (n,).
    """
    import numpy as np

    found = np.full(len(places), NOWHERE, dtype=np.int64)
    for segment in _elf(image).iter_segments("PT_LOAD"):
        begin, size = int(segment["p_offset"]), int(segment["p_filesz"])
        if int(segment["p_flags"]) & _EXECUTABLE:
            inside = (places >= begin) & (places - begin < size)
            found[inside] = places[inside] - begin + int(segment["p_vaddr"])
    return found


_EXECUTABLE = 1
"""A segment's flag (System V ABI, chapter 5)."""


def _elf(image: Image) -> ELFFile:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(image.data))


@contextmanager
def _damage_named(table: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # what damage does to the library's assumptions ends in any kind of error
        raise ModuleInvalid(f"the table of {table} of its code is damaged ({error!r})") from error


def _table_of_symbols(elf: ELFFile) -> Iterator[Any]:
    table: Any = elf.get_section_by_name(".symtab")
    return table.iter_symbols() if table is not None else iter(())


def _symbols(elf: ELFFile) -> list[tuple[str, int]]:
    found = []
    for symbol in _table_of_symbols(elf):
        number = symbol["st_shndx"]
        if isinstance(number, int) and symbol.name:
            section = elf.get_section(number)
            found.append((symbol.name, int(symbol["st_value"]) - int(section["sh_addr"]) + int(section["sh_offset"])))
    return found
