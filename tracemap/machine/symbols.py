"""Where the symbols of an image lie in its file, and which address a place in the file has when it is loaded.

Profilers that look at mapped files count in places of the file. What they call a symbol is whatever begins before a
place, be it an empty table at the end of another section: only the place that follows from both is sure.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tracemap.errors import ModuleInvalid
from tracemap.machine.images import Image

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
    try:
        found = set(_symbols(_elf(image)))
    except Exception as error:  # what damage does to the library's assumptions ends in any kind of error
        raise ModuleInvalid(f"the table of symbols of its code is damaged ({error!r})") from error
    places: dict[str, int] = {}
    several = {name for name, place in found if places.setdefault(name, place) != place}
    return {name: place for name, place in places.items() if name not in several}


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


def _symbols(elf: ELFFile) -> list[tuple[str, int]]:
    table: Any = elf.get_section_by_name(".symtab")
    found = []
    for symbol in table.iter_symbols() if table is not None else ():
        number = symbol["st_shndx"]
        if isinstance(number, int) and symbol.name:
            section = elf.get_section(number)
            found.append((symbol.name, int(symbol["st_value"]) - int(section["sh_addr"]) + int(section["sh_offset"])))
    return found
