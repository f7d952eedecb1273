"""Write debug information: lines, functions and inlined operations, as DWARF 4.

It knows nothing of models. The caller chooses the files, lines and names (`DebugFunction`).

All addresses are 8 bytes. Their offsets are listed, so that the sections can be moved to another address. Other values
are relative to the first address of the code. Source: DWARF Debugging Information Format, version 4; section numbers
below are those of this document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tracemap.machine.images import NO_LINE

_VERSION: Final = 4
"""Every version of gdb, perf, valgrind and VTune in use reads it."""


class SourceLine(NamedTuple):
    """A place in a text. `file`: its index in the files given to `write_dwarf`, from 0; `line`: 0 is no line."""

    file: int
    line: int
    column: int = 0


NO_SOURCE_LINE: Final = SourceLine(0, NO_LINE)


class LineRow(NamedTuple):
    """The line of the code from an address to the next row."""

    address: int
    source: SourceLine


@dataclass(frozen=True, slots=True)
class InlinedCode:
    """Code of an operation inside a function: its name, its line, and its address ranges (high exclusive)."""

    name: str
    source: SourceLine
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DebugFunction:
    """A function: the name for people, that of its symbol, its line, and its code by address.

    `rows` are sorted by address and begin at `low`; code before the first row has no line.
    """

    name: str
    symbol: str
    low: int
    high: int
    source: SourceLine = NO_SOURCE_LINE
    rows: tuple[LineRow, ...] = ()
    inlined: tuple[InlinedCode, ...] = ()


@dataclass(frozen=True, slots=True)
class DebugSections:
    """The sections by name, and the offsets of absolute addresses in them."""

    content: dict[str, bytes]
    addresses: dict[str, tuple[int, ...]]


def write_dwarf(functions: Sequence[DebugFunction], files: Sequence[str], name: str, producer: str) -> DebugSections:
    """Write one compilation unit with all functions of an image.

    Args:
        functions: functions, by address.
        files: absolute paths of the texts.
        name: name of the unit.
        producer: the program that wrote it.
    """
    strings = _Strings()
    lines = _line_program(functions, files)
    entries = _Entries(strings, functions)
    entries.write(name, producer)
    return DebugSections(
        {
            ".debug_abbrev": _abbreviations(),
            ".debug_info": entries.unit(),
            ".debug_line": bytes(lines.data),
            ".debug_ranges": bytes(entries.ranges.data),
            ".debug_str": bytes(strings.data),
        },
        {".debug_info": tuple(entries.info.addresses), ".debug_line": tuple(lines.addresses)},
    )


# ---- values


@dataclass
class _Section:
    """A section under construction."""

    data: bytearray = field(default_factory=bytearray)
    addresses: list[int] = field(default_factory=list)

    def number(self, value: int, size: int) -> None:
        self.data += value.to_bytes(size, "little")

    def unsigned(self, value: int) -> None:
        """LEB128 (7.6)."""
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def signed(self, value: int) -> None:
        """LEB128 with a sign (7.6)."""
        while not -0x40 <= value < 0x40:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value & 0x7F)

    def address(self, value: int) -> None:
        self.addresses.append(len(self.data))
        self.number(value, 8)

    def text(self, text: str) -> None:
        self.data += bytes_of(text) + b"\0"


def bytes_of(text: str) -> bytes:
    """A text, or a path with any bytes, without zero bytes, which would end it."""
    try:
        data = text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", errors="replace")
    return data.replace(b"\0", b"?")


class _Strings(_Section):
    """The table of texts, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._offsets: dict[str, int] = {}

    def offset(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.text(text)
        return self._offsets[text]


# ---- entries (2.1 and 7.5)

_UNIT, _FUNCTION, _FUNCTION_WITH_CODE, _ABSTRACT, _INLINED, _INLINED_IN_PARTS = range(1, 7)

_NAME, _STATEMENTS, _LOW, _HIGH, _LANGUAGE, _DIRECTORY = 0x03, 0x10, 0x11, 0x12, 0x13, 0x1B
_INLINE, _PRODUCER, _ORIGIN, _FILE, _LINE, _EXTERNAL = 0x20, 0x25, 0x31, 0x3A, 0x3B, 0x3F
_RANGES, _CALL_FILE, _CALL_LINE, _LINKAGE_NAME = 0x55, 0x58, 0x59, 0x6E
_AS_ADDRESS, _AS_8, _AS_2, _AS_1, _AS_STRING, _AS_UNSIGNED, _AS_ENTRY, _AS_OFFSET, _AS_PRESENT = (
    *(0x01, 0x07, 0x05, 0x0B, 0x0E, 0x0F, 0x13, 0x17, 0x19),
)
_SOURCE: Final = ((_FILE, _AS_UNSIGNED), (_LINE, _AS_UNSIGNED))
_CALL: Final = ((_CALL_FILE, _AS_UNSIGNED), (_CALL_LINE, _AS_UNSIGNED))
_CODE: Final = ((_LOW, _AS_ADDRESS), (_HIGH, _AS_8))
_SUBPROGRAM: Final = ((_NAME, _AS_STRING), (_LINKAGE_NAME, _AS_STRING), (_EXTERNAL, _AS_PRESENT), *_SOURCE, *_CODE)

_ABBREVIATIONS: Final = {
    _UNIT: (
        *(0x11, True),
        (
            *((_PRODUCER, _AS_STRING), (_LANGUAGE, _AS_2), (_NAME, _AS_STRING), (_DIRECTORY, _AS_STRING)),
            *((_STATEMENTS, _AS_OFFSET), (_LOW, _AS_ADDRESS), (_RANGES, _AS_OFFSET)),
        ),
    ),
    _FUNCTION: (0x2E, False, _SUBPROGRAM),
    _FUNCTION_WITH_CODE: (0x2E, True, _SUBPROGRAM),
    _ABSTRACT: (0x2E, False, ((_NAME, _AS_STRING), *_SOURCE, (_INLINE, _AS_1))),
    _INLINED: (0x1D, False, ((_ORIGIN, _AS_ENTRY), *_CODE, *_CALL)),
    _INLINED_IN_PARTS: (0x1D, False, ((_ORIGIN, _AS_ENTRY), (_RANGES, _AS_OFFSET), *_CALL)),
}
"""Tag (compile unit, subprogram, inlined subroutine), whether it has children, and its attributes with their forms."""
_C99: Final = 0x0C
"""Debuggers need a language that they know; in C, they take names as they are."""
_INLINED_BY_COMPILER: Final = 1


def _abbreviations() -> bytes:
    section = _Section()
    for code, (tag, has_children, attributes) in _ABBREVIATIONS.items():
        section.unsigned(code)
        section.unsigned(tag)
        section.number(int(has_children), 1)
        for attribute, form in (*attributes, (0, 0)):
            section.unsigned(attribute)
            section.unsigned(form)
    section.unsigned(0)
    return bytes(section.data)


_HEADER_BYTES: Final = 11
"""Size of a compilation unit's header (7.5.1.1): length, version, offset of the abbreviations, size of an address."""


@dataclass
class _Entries:
    """The compilation unit, whose offsets count from its header."""

    strings: _Strings
    functions: Sequence[DebugFunction]
    info: _Section = field(default_factory=_Section)
    ranges: _Section = field(default_factory=_Section)

    def __post_init__(self) -> None:
        self.base = min((function.low for function in self.functions), default=0)
        self.info.data += bytes(_HEADER_BYTES)

    def write(self, name: str, producer: str) -> None:
        """Write the unit's entry, then the operations that are inlined anywhere, then the functions."""
        self.info.unsigned(_UNIT)
        self.info.number(self.strings.offset(producer), 4)
        self.info.number(_C99, 2)
        self.info.number(self.strings.offset(name), 4)
        self.info.number(self.strings.offset("/"), 4)
        self.info.number(0, 4)
        self.info.address(self.base)
        self._ranges([(function.low, function.high) for function in self.functions])
        origins: dict[tuple[str, SourceLine], int] = {}
        for function in self.functions:
            for inlined in function.inlined:
                if (inlined.name, inlined.source) not in origins:
                    origins[inlined.name, inlined.source] = len(self.info.data)
                    self._abstract(inlined)
        for function in self.functions:
            self._function(function, origins)
        self.info.unsigned(0)

    def unit(self) -> bytes:
        """The section with its header."""
        header = _Section()
        header.number(len(self.info.data) - 4, 4)
        header.number(_VERSION, 2)
        header.number(0, 4)
        header.number(8, 1)
        return bytes(header.data) + bytes(self.info.data[_HEADER_BYTES:])

    def _source(self, source: SourceLine) -> None:
        self.info.unsigned(source.file + 1)
        self.info.unsigned(source.line)

    def _code(self, low: int, high: int) -> None:
        self.info.address(low)
        self.info.number(high - low, 8)

    def _abstract(self, inlined: InlinedCode) -> None:
        self.info.unsigned(_ABSTRACT)
        self.info.number(self.strings.offset(inlined.name), 4)
        self._source(inlined.source)
        self.info.number(_INLINED_BY_COMPILER, 1)

    def _function(self, function: DebugFunction, origins: dict[tuple[str, SourceLine], int]) -> None:
        self.info.unsigned(_FUNCTION_WITH_CODE if function.inlined else _FUNCTION)
        self.info.number(self.strings.offset(function.name), 4)
        self.info.number(self.strings.offset(function.symbol), 4)
        self._source(function.source)
        self._code(function.low, function.high)
        for inlined in function.inlined:
            in_parts = len(inlined.ranges) > 1
            self.info.unsigned(_INLINED_IN_PARTS if in_parts else _INLINED)
            self.info.number(origins[inlined.name, inlined.source], 4)
            if in_parts:
                self._ranges(inlined.ranges)
            else:
                self._code(*inlined.ranges[0])
            self._source(function.source)
        if function.inlined:
            self.info.unsigned(0)

    def _ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Write the offset of a list of ranges (2.17.3), which are relative to the unit's first address."""
        self.info.number(len(self.ranges.data), 4)
        for low, high in ranges:
            self.ranges.number(low - self.base, 8)
            self.ranges.number(high - self.base, 8)
        self.ranges.data += bytes(16)


# ---- lines (6.2)

_LINE_BASE, _LINE_RANGE, _OPCODE_BASE = -5, 14, 13
_OPERANDS: Final = (0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1)
"""Number of operands of each standard opcode."""
_COPY, _ADVANCE_ADDRESS, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN = 1, 2, 3, 4, 5
_END_SEQUENCE, _SET_ADDRESS = b"\0\1\1", b"\0\x09\2"
_MOST_BYTES_OF_ROW: Final = 2048
"""valgrind ignores the lines of more than 4,095 bytes (`MAX_LOC_SIZE`); an instruction has at most 15."""
_MOST_COLUMNS: Final = (1 << 15) - 1
"""Readers keep columns in 16 bits."""


def _line_program(functions: Sequence[DebugFunction], files: Sequence[str]) -> _Section:
    header = _Section()
    for value in (1, 1, 1, _LINE_BASE & 0xFF, _LINE_RANGE, _OPCODE_BASE, *_OPERANDS):
        header.number(value, 1)
    paths = [file.rpartition("/") for file in files or ("unknown",)]
    folders = list(dict.fromkeys(folder for folder, _, _ in paths if folder))
    for folder in folders:
        header.text(folder)
    header.number(0, 1)
    for folder, _, file in paths:
        header.text(file or "unknown")
        header.unsigned(folders.index(folder) + 1 if folder else 0)
        header.data += bytes(2)  # no time or size
    header.number(0, 1)
    section = _Section()
    section.data += bytes(4)
    section.number(_VERSION, 2)
    section.number(len(header.data), 4)
    section.data += header.data
    for function in functions:
        _add_sequences(section, function)
    section.data[:4] = (len(section.data) - 4).to_bytes(4, "little")
    return section


def _add_sequences(section: _Section, function: DebugFunction) -> None:
    """Write a sequence for each stretch of code with lines; between them there is no line.

    Rows of line 0 would say the same, but gdb ignores them.
    """
    state = None
    for row, after in pairwise([*changed_rows(function), LineRow(function.high, NO_SOURCE_LINE)]):
        if row.source.line == NO_LINE:
            continue
        if state is None:
            section.data += _SET_ADDRESS
            section.address(row.address)
            state = LineRow(row.address, SourceLine(0, 1))
        _add_row(section, state, row)
        state = row
        if after.source.line == NO_LINE:
            section.number(_ADVANCE_ADDRESS, 1)
            section.unsigned(after.address - row.address)
            section.data += _END_SEQUENCE
            state = None


def changed_rows(function: DebugFunction) -> list[LineRow]:
    """The rows of a function that change the line, and one of each long stretch; the first begins the function."""
    rows = [LineRow(function.low, NO_SOURCE_LINE)]
    for row in function.rows:
        if row.address == function.low:
            rows = [row]
        elif row.source != rows[-1].source or row.address - rows[-1].address >= _MOST_BYTES_OF_ROW:
            rows.append(row)
    return rows


def _add_row(section: _Section, state: LineRow, row: LineRow) -> None:
    """Write the changes to the state machine, and the row (6.2.5.1)."""
    if row.source.file != state.source.file:
        section.number(_SET_FILE, 1)
        section.unsigned(row.source.file + 1)
    if row.source.column != state.source.column:
        section.number(_SET_COLUMN, 1)
        section.unsigned(min(row.source.column, _MOST_COLUMNS))
    lines, bytes_ = row.source.line - state.source.line, row.address - state.address
    special = lines - _LINE_BASE + _LINE_RANGE * bytes_ + _OPCODE_BASE
    if _LINE_BASE <= lines < _LINE_BASE + _LINE_RANGE and special <= 0xFF:
        section.number(special, 1)
        return
    if lines:
        section.number(_ADVANCE_LINE, 1)
        section.signed(lines)
    if bytes_:
        section.number(_ADVANCE_ADDRESS, 1)
        section.unsigned(bytes_)
    section.number(_COPY, 1)
