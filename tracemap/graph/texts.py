"""Texts of a map: long literals stored once, and a limit for the size of texts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, get_args

from tracemap.codec import Record
from tracemap.graph.map_json import field_types
from tracemap.graph.model import Membership, OpId, Site, TraceGraph
from tracemap.units import Text

# ---- size of texts
#
# A limit for the number of characters once each text is written for every record that uses it.
#
# A map stores each text once, while tables, pages and exports repeat it for every record that uses it. A small file
# could therefore ask for gigabytes of output. This check rejects such a map when a bundle is opened.


LETTERS_PER_BYTE: Final = 64
"""The most characters for each byte of `map.json`; maps of real models have up to 30."""
LETTERS_ALWAYS: Final = 16_000_000
"""A map may always have this many characters, however small its file is."""

_ID: Final = attrgetter("id")
_TABLES: Final = ("ops", "sites", "kernels", "command_buffers", "transfers")


def check_letters(graph: TraceGraph, size: int) -> None:
    """Reject a map whose records share so much text that no command could print it.

    Args:
        graph: the map; names that are missing in it count as empty.
        size: bytes of its `map.json`.

    Raises:
        ValueError: there are more characters than the limit; the message names the field with the most.
    """
    limit = max(LETTERS_ALWAYS, LETTERS_PER_BYTE * size)
    letters_by_op: Counter[OpId] = Counter()
    letters: Counter[str] = Counter()
    for field, count in chain(_in_fields(graph, letters_by_op), _in_mentions(graph, letters_by_op)):
        letters[field] += count
    if sum(letters.values()) > limit:
        field, _ = letters.most_common(1)[0]
        raise ValueError(
            f"the texts of `{field}`, repeated for every record that uses them, have {letters[field]} characters; "
            f"a map of {size} bytes may have {limit} in total"
        )


def _in_fields(graph: TraceGraph, letters_by_op: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """Count the characters of each field that holds texts; also adds up those of each op."""
    for table in _TABLES:
        rows: tuple[Record, ...] = getattr(graph, table)
        for name, kind in field_types(type(rows[0])).items() if rows else ():
            if _holds_text(kind):
                letters = _letters(list(map(attrgetter(name), rows)))
                yield f"$.{table}.{name}", sum(letters)
                if table == "ops":
                    letters_by_op.update(dict(zip(map(_ID, rows), letters, strict=True)))


def _in_mentions(graph: TraceGraph, letters_by_op: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """Count the characters of ops and sites in records that name them by id."""
    names = Counter({op.id: len(op.name) for op in graph.ops})
    members = [member for site in graph.sites for member in site.members]
    commands = [command for buffer in graph.command_buffers for command in buffer.commands]
    yield "$.sites.members.op", _total(letters_by_op, (member.op for member in members))
    yield "$.sites.members.path", _total(letters_by_op, _calls(graph.sites, members))
    yield "$.sites.id", sum(len(site.id) * len(site.members) for site in graph.sites)
    yield (
        "$.kernels.steps.ops",
        _total(names, chain.from_iterable(step.ops for kernel in graph.kernels for step in kernel.steps)),
    )
    yield "$.command_buffers.commands.ops", _total(names, chain.from_iterable(command.ops for command in commands))
    yield "$.transfers.ops", _total(names, chain.from_iterable(transfer.ops for transfer in graph.transfers))


def _calls(sites: Iterable[Site], members: Iterable[Membership]) -> Iterator[OpId]:
    for site in sites:
        yield from site.path
    for member in members:
        for path in member.paths:
            yield from path


def _total(letters: Counter[OpId], ops: Iterable[OpId]) -> int:
    return sum(map(letters.__getitem__, ops))


@cache
def _holds_text(kind: Any) -> bool:  # noqa: ANN401 - any type of a record's field
    """Whether values of a type contain texts of any length; ids of ops and names of outcomes do not."""
    if isinstance(kind, type) and issubclass(kind, Record):
        return any(map(_holds_text, field_types(kind).values()))
    return kind in (str, Text) or any(map(_holds_text, get_args(kind)))


def _letters(values: Iterable[object]) -> list[int]:
    """The number of characters in each value; records and lists that are shared are counted only once."""
    letters_by_id: dict[int, int] = {}  # by id(): `values` keeps the objects alive

    def count_letters(value: Any) -> int:  # noqa: ANN401 - as above
        if isinstance(value, str):
            return len(value)
        key = id(value)
        if key not in letters_by_id:
            letters_by_id[key] = (
                sum(map(count_letters, value))
                if isinstance(value, tuple)
                else sum(map(count_letters, _texts_of(value)))
            )
        return letters_by_id[key]

    return list(map(count_letters, values))


def _texts_of(value: object) -> Iterator[object]:
    """The fields of a record that hold texts; nothing for other values."""
    if isinstance(value, Record):
        for name, kind in field_types(type(value)).items():
            if _holds_text(kind):
                yield getattr(value, name)


# ---- literals
#
# Long literals in a bundle's texts: stored once, with their name in the text.
#
# A model may hold its weights as text, in lines of megabytes that nobody reads and that a bundle would store several
# times. Each literal is a file in `literals/`, named by the SHA-256 of its content and stored as bytes if it is
# hexadecimal. The text keeps its beginning and that name. Restoring gives the same text, character for character.


LITERALS_FOLDER: Final = "literals"
LONGEST: Final = 1024
"""The most characters of a literal that stays in the text."""

# A string (also with hexadecimal numbers in it), or the list in `dense<[…]>`.
_LITERAL = re.compile(r'"((?:[^"\\\n]++|\\.)*+)"|(?<=dense<)(\[[^>"]*+)')
_MARK = " in literals/"
_NAMED = re.compile(rf"(.{{2}}).{{14}}…[0-9,]+ (?:bytes|letters){_MARK}([0-9a-f]{{64}}\.(?:bin|txt))\n*", re.DOTALL)


def taken_out(text: str, last_columns: Mapping[int, int]) -> tuple[str, dict[str, bytes]]:
    """Replace the long literals of a text by names; returns the text and the literals' content by name.

    A literal stays if an op begins after it on its line, so that all ops keep their positions. `last_columns`: for each
    line with ops, the column of the last one, both from 1.
    """
    contents: dict[str, bytes] = {}
    if max(map(len, text.split("\n"))) <= LONGEST or _MARK in text:
        return text, contents
    pieces, position = [], 0
    for start, end in _long_literals(text, last_columns):
        name, content = _content(literal := text[start:end])
        contents[name] = content
        beginning = literal[:16].replace("\n", " ")
        size = f"{len(content):,} {'bytes' if name.endswith('.bin') else 'letters'}"
        # Keep the number of line ends, so that the lines below keep their line numbers.
        pieces += [text[position:start], f"{beginning}…{size}{_MARK}{name}", "\n" * literal.count("\n")]
        position = end
    return "".join([*pieces, text[position:]]), contents


def _long_literals(text: str, last_columns: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """The start and end of each long literal without an op after it on its line.

    A resource (`name: "0x04000000…"`) begins with its alignment, which stays, since the rest may occur elsewhere, too.
    """
    line, counted_to = 1, 0
    for match in _LITERAL.finditer(text):
        start, end = match.span(match.lastindex or 0)
        if text.startswith(': "0x', start - 3):
            start += len("0x04000000")
        if end - start <= LONGEST:
            continue
        line += text.count("\n", counted_to, end)
        counted_to = end
        first_line, column = line - text.count("\n", start, end), start - text.rfind("\n", 0, start)
        if last_columns.get(line, 0) <= (column if first_line == line else 0):
            yield start, end


def _content(literal: str) -> tuple[str, bytes]:
    """The name and the content of a literal."""
    content, suffix = _hexadecimal(literal), "bin"
    if not content:
        content, suffix = literal.encode(errors="surrogatepass"), "txt"
    return f"{hashlib.sha256(content).hexdigest()}.{suffix}", content


def _hexadecimal(literal: str) -> bytes:
    """The bytes of a hexadecimal literal; none if they would not give the same text again."""
    digits = literal.removeprefix("0x")
    try:
        content = bytes.fromhex(digits)
    except ValueError:
        return b""
    return content if content.hex().upper() == digits else b""


def put_back(text: str, content_of: Callable[[str], bytes]) -> str:
    """The text with its literals again; `content_of` reads a literal by its name."""

    def restore(match: re.Match[str]) -> str:
        prefix, name = match.groups()
        content = content_of(name)
        if name.endswith(".txt"):
            return content.decode(errors="surrogatepass")
        return ("0x" if prefix == "0x" else "") + content.hex().upper()

    return _NAMED.sub(restore, text) if _MARK in text else text
