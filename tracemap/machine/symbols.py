"""Where the symbols of an image lie in its file, and which address a place in the file has when it is loaded.

Profilers that look at mapped files count in places of the file. What they call a symbol is whatever begins before a
place, be it an empty table at the end of another section: only the place that follows from both is sure.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracemap.errors import ModuleInvalid
from tracemap.machine.images import CodeFunction, Image

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from elftools.elf.elffile import ELFFile

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
