"""Debug lines of a native library or program, by the file that they name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count, groupby, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.core.errors import ModuleInvalid
from tracemap.machine.images import NO_LINE, CodeFunction, Dwarf, Image, elf_of, function_symbols, read_image

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LinesOfFile(msgspec.Struct, frozen=True):
    """The code of a text: sorted addresses, and the line of the code from each up to the next.

    Shapes: (n,) and (n,); `NO_LINE` for code of other files, and after the end of a sequence.
    """

    starts: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]

    def at(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The line of the code at each address; `NO_LINE` for none. Shapes: (n,) to (n,)."""
        import numpy as np

        if not len(self.starts):
            return np.full(len(addresses), NO_LINE, dtype=np.int64)
        place = np.searchsorted(self.starts, addresses, side="right") - 1
        return np.where(place >= 0, self.lines[place], NO_LINE)


def _rows(image: Image, files: Collection[str], others: Counter[str]) -> Iterator[tuple[int, int, str]]:
    """Address, line and file name without folders of each row; line 0 and no name at the end of a sequence.

    Of large programs, most units name none of `files`. Their rows are left out, and their files are added to `others`.
    """
    elf = elf_of(image)
    if not elf.has_dwarf_info():
        return
    dwarf = elf.get_dwarf_info()
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        names = _file_names(program)
        if not set(names.values()) & set(files):
            others.update(set(names.values()))
            continue
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            if state.end_sequence:
                yield int(state.address), NO_LINE, ""
            else:
                yield int(state.address), int(state.line), names.get(int(state.file), "")


def _file_names(program: Dwarf) -> dict[int, str]:
    """The names in a line program; they count from 1 before DWARF 5 (section 6.2.4)."""
    entries = program.header["file_entry"]
    first = 0 if program.header["version"] >= _SINCE_ZERO else 1
    return {
        number: PurePosixPath(entry.name.decode(errors="replace")).name for number, entry in enumerate(entries, first)
    }


_SINCE_ZERO = 5


def _all_rows(
    image: Image, files: Collection[str], name: str, others: Counter[str] | None = None
) -> list[tuple[int, int, str]]:
    from elftools.common.exceptions import ELFCompressionError

    try:
        return list(_rows(image, files, Counter() if others is None else others))
    except ELFCompressionError as error:
        raise ModuleInvalid(
            f"{name}: the debug lines of its code are compressed in a way that cannot be read; decompress them with "
            "objcopy --decompress-debug-sections"
        ) from error
    except Exception as error:  # the library checks little, so damage may raise any error
        raise ModuleInvalid(f"{name}: the debug lines of its code are damaged ({error!r})") from error


def is_shared_object(file: Path) -> bool:
    """Whether a file is there and is a shared object, or a program that is position-independent."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        head = opened.read(_HEAD_BYTES)
    return head.startswith(b"\x7fELF") and head[_TYPE_AT:] == _ET_DYN


_HEAD_BYTES: Final = 18
_TYPE_AT: Final = 16
_ET_DYN: Final = b"\x03\x00"
"""The type of a shared object, in little-endian order."""


def is_program(image: Image) -> bool:
    """Whether code is of a program, position-independent or not, whose functions no other program can call."""
    elf = elf_of(image)
    if elf["e_type"] != "ET_DYN":
        return True
    dynamic = elf.get_section_by_name(".dynamic")
    return dynamic is not None and any(tag.entry.d_val & _DF_1_PIE for tag in dynamic.iter_tags("DT_FLAGS_1"))


_DF_1_PIE: Final = 0x08000000
"""Mark of position-independent programs (elf.h)."""


def files_with_lines(library: Path, files: Collection[str]) -> tuple[Counter[str], Counter[str]]:
    """The numbers of debug lines of some files, and the other files that debug lines of a library name.

    Args:
        library: the library.
        files: names without folders.

    Raises:
        ModuleInvalid: the file cannot be read, is no ELF file, or its debug information is damaged.
    """
    others: Counter[str] = Counter()
    rows = _all_rows(read_image(library, debug=False), files, str(library), others)
    lines = Counter(file for _, line, file in rows if line != NO_LINE and file)
    known = Counter({file: number for file, number in lines.items() if file in files})
    return known, others + (lines - known)


def lines_of_file(image: Image, file: str, name: str) -> LinesOfFile:
    """The code of one file.

    Args:
        image: the library.
        file: the file's name without folders.
        name: the library's name in messages.

    Raises:
        ModuleInvalid: the debug information is damaged.
    """
    import numpy as np

    line_at: dict[int, int] = {}
    for address, line, own in _all_rows(image, (file,), name):
        if line == NO_LINE and not own:
            line_at.setdefault(address, NO_LINE)
        else:
            line_at[address] = line if own == file else NO_LINE
    starts = np.array(sorted(line_at), dtype=np.int64)
    return LinesOfFile(starts, np.array([line_at[int(start)] for start in starts], dtype=np.int64))


# ---- parts of functions

_PIECE: Final = re.compile(r" \(\d+\)$")


def part_of_piece(name: str, parts: Collection[str]) -> str:
    """The part that a piece of code belongs to, by the piece's name; a part's own name may end like a piece's.

    >>> part_of_piece("main/loop0 (2)", ["main/loop0"]), part_of_piece("f (2)", ["f (2)"])
    ('main/loop0', 'f (2)')
    """
    return name if name in parts else _PIECE.sub("", name)


def with_parts(image: Image, table: LinesOfFile, part_of_line: Mapping[int, str]) -> Image:
    """The library with parts of its code, such as outermost loops, in place of functions.

    A part is the code between two other parts. The largest piece of each has its name; further pieces are numbered.
    Code without a line belongs to the part before it, and code outside of all functions of the symbol table to none.

    Args:
        image: the library.
        table: the lines of its code.
        part_of_line: the name of the part at each line.
    """
    pieces: dict[str, list[tuple[int, int]]] = {}
    for function in function_symbols(image):
        for name, low, high in _pieces(function, table, part_of_line):
            pieces.setdefault(name, []).append((low, high))
    parts = []
    taken = set(part_of_line.values())
    for name, ranges in pieces.items():
        further = (f"{name} ({number})" for number in count(2) if f"{name} ({number})" not in taken)
        largest_first = sorted(ranges, key=lambda ends: (ends[0] - ends[1], ends))
        parts += [
            CodeFunction(piece, low, high)
            for piece, (low, high) in zip(chain([name], further), largest_first, strict=False)
        ]
    rows = tuple(zip(table.starts.tolist(), table.lines.tolist(), strict=True))
    return replace(image, functions=tuple(sorted(parts, key=lambda part: part.low)), rows=rows)


def _pieces(
    function: CodeFunction, table: LinesOfFile, part_of_line: Mapping[int, str]
) -> Iterator[tuple[str, int, int]]:
    """The parts of a function's code, by address."""
    import numpy as np

    first, last = np.searchsorted(table.starts, [function.low, function.high])
    ends = [*table.starts[first:last].tolist(), function.high]
    names: list[str] = []
    for line in table.lines[first:last].tolist():
        names.append(part_of_line.get(line, names[-1] if names else ""))
    rows = zip(names, pairwise(ends), strict=True)
    for name, group in groupby(rows, key=lambda row: row[0]):
        spans = [span for _, span in group]
        if name and spans[-1][1] > spans[0][0]:
            yield name, spans[0][0], spans[-1][1]


class CodeParts(msgspec.Struct, frozen=True):
    """The parts of a library's code, by address.

    `names`: of the parts; `image`: the library with its parts in place of functions.
    """

    names: tuple[str, ...]
    image: Image
    _table: LinesOfFile
    _number_of_line: npt.NDArray[np.int64]
    _number_of_piece: npt.NDArray[np.int64]

    def at(self, addresses: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Index of the part (-1: none) and line (0: none) of the code at each address; shapes (n,) to (n,), (n,).

        Code without a line, such as a copy between registers, belongs to the part that it lies in.
        """
        import numpy as np

        lines = self._table.at(addresses)
        by_line = self._number_of_line[np.minimum(lines, len(self._number_of_line) - 1)]
        by_piece = self._number_of_piece[self.image.functions_at(addresses)]
        return np.where(by_line >= 0, by_line, by_piece), lines


def parts_of_code(library: Path, file: str, part_of_line: Mapping[int, str]) -> CodeParts:
    """The parts of a library's code.

    Args:
        library: the library.
        file: the text that the debug lines name, without folders.
        part_of_line: the name of the part at each line of it.

    Raises:
        ModuleInvalid: the library is no ELF file, or its debug information is damaged.
    """
    import numpy as np

    image = read_image(library, debug=False)
    table = lines_of_file(image, file, str(library))
    split = with_parts(image, table, part_of_line)
    names = tuple(dict.fromkeys(part_of_line.values()))
    number_of = {name: number for number, name in enumerate(names)}
    by_line = np.full(max(part_of_line, default=0) + 2, -1, dtype=np.int64)
    for line, name in part_of_line.items():
        by_line[line] = number_of[name]
    by_piece = np.array(
        [*(number_of[part_of_piece(piece.name, number_of)] for piece in split.functions), -1], dtype=np.int64
    )
    return CodeParts(names, split, table, by_line, by_piece)
