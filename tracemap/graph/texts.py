"""Texts of a map: long literals kept once, and a limit for their letters."""

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

# ---- letters
#
# A limit for the letters of a map when every text stands wherever a record names it.
#
# A map keeps each text once, and tables, pages and exports write it for every record that shares it. A small file
# could therefore ask for gigabytes of output. This check refuses such a map when a bundle is opened.


LETTERS_PER_BYTE: Final = 64
"""The most letters for each byte of `map.json`; maps of real models have up to 30."""
LETTERS_ALWAYS: Final = 16_000_000
"""This many letters are never too many, however small the map is."""

_ID: Final = attrgetter("id")
_TABLES: Final = ("ops", "sites", "kernels", "command_buffers", "transfers")


def check_letters(graph: TraceGraph, size: int) -> None:
    """Refuse a map whose records share so much text that no command could write it.

    Args:
        graph: the map; what it names and lacks counts nothing.
        size: bytes of its `map.json`.

    Raises:
        ValueError: there are more letters than the limit; the message names the field with the most.
    """
    limit = max(LETTERS_ALWAYS, LETTERS_PER_BYTE * size)
    of_ops: Counter[OpId] = Counter()
    letters: Counter[str] = Counter()
    for field, count in chain(_in_fields(graph, of_ops), _in_mentions(graph, of_ops)):
        letters[field] += count
    if sum(letters.values()) > limit:
        field, _ = letters.most_common(1)[0]
        raise ValueError(
            f"the texts of `{field}`, written out for every record that shares them, have {letters[field]} letters; "
            f"a map of {size} bytes may have {limit} in all"
        )


def _in_fields(graph: TraceGraph, of_ops: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """The letters of each field that holds texts; adds those of each op up."""
    for table in _TABLES:
        rows: tuple[Record, ...] = getattr(graph, table)
        for name, kind in field_types(type(rows[0])).items() if rows else ():
            if _holds_text(kind):
                letters = _letters(list(map(attrgetter(name), rows)))
                yield f"$.{table}.{name}", sum(letters)
                if table == "ops":
                    of_ops.update(dict(zip(map(_ID, rows), letters, strict=True)))


def _in_mentions(graph: TraceGraph, of_ops: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """The letters of ops and sites where other records name them by their id."""
    names = Counter({op.id: len(op.name) for op in graph.ops})
    members = [member for site in graph.sites for member in site.members]
    commands = [command for buffer in graph.command_buffers for command in buffer.commands]
    yield "$.sites.members.op", _total(of_ops, (member.op for member in members))
    yield "$.sites.members.path", _total(of_ops, _calls(graph.sites, members))
    yield "$.sites.id", sum(len(site.id) * len(site.members) for site in graph.sites)
    yield (
        "$.kernels.steps.ops",
        _total(names, chain.from_iterable(step.ops for each in graph.kernels for step in each.steps)),
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
    """Whether values of a type have texts of any length: ids of ops and names of outcomes have not."""
    if isinstance(kind, type) and issubclass(kind, Record):
        return any(map(_holds_text, field_types(kind).values()))
    return kind in (str, Text) or any(map(_holds_text, get_args(kind)))


def _letters(values: Iterable[object]) -> list[int]:
    """The letters of each value; a record or list that many share is looked at once."""
    known: dict[int, int] = {}  # by id: `values` keeps the objects alive

    def of(value: Any) -> int:  # noqa: ANN401 - as above
        if isinstance(value, str):
            return len(value)
        number = id(value)
        if number not in known:
            known[number] = sum(map(of, value)) if isinstance(value, tuple) else sum(map(of, _texts_of(value)))
        return known[number]

    return list(map(of, values))


def _texts_of(value: object) -> Iterator[object]:
    """The parts of a record that hold texts; nothing of what is no record."""
    if isinstance(value, Record):
        for name, kind in field_types(type(value)).items():
            if _holds_text(kind):
                yield getattr(value, name)


# ---- literals
#
# Long literals of a bundle's texts: their content is kept once, and named where it stood.
#
# A model may hold its weights as text, megabytes in a line, which nobody reads and which a bundle would keep several
# times. Each lies below `literals/` under the SHA-256 of its content, as bytes where it is hexadecimal; in a text
# there is its beginning and that name. What is put back is what was there, character for character.


LITERALS_FOLDER: Final = "literals"
LONGEST: Final = 1024
"""Letters of a literal that stays where it is."""

# A string (also one in which hexadecimal numbers stand), or the list in `dense<[…]>`.
_LITERAL = re.compile(r'"((?:[^"\\\n]++|\\.)*+)"|(?<=dense<)(\[[^>"]*+)')
_MARK = " in literals/"
_NAMED = re.compile(rf"(.{{2}}).{{14}}…[0-9,]+ (?:bytes|letters){_MARK}([0-9a-f]{{64}}\.(?:bin|txt))\n*", re.DOTALL)


def taken_out(text: str, last_columns: Mapping[int, int]) -> tuple[str, dict[str, bytes]]:
    """The text with names in place of its long literals, and their content by name.

    A literal stays where an op begins behind it on its line, so that all ops keep their places. `last_columns`: of each
    line with an op where the last one begins, both from 1.
    """
    found: dict[str, bytes] = {}
    if max(map(len, text.split("\n"))) <= LONGEST or _MARK in text:
        return text, found
    pieces, done = [], 0
    for start, end in _long_literals(text, last_columns):
        name, content = _content(literal := text[start:end])
        found[name] = content
        beginning = literal[:16].replace("\n", " ")
        counted = f"{len(content):,} {'bytes' if name.endswith('.bin') else 'letters'}"
        # As many line ends as before: the lines below keep their numbers.
        pieces += [text[done:start], f"{beginning}…{counted}{_MARK}{name}", "\n" * literal.count("\n")]
        done = end
    return "".join([*pieces, text[done:]]), found


def _long_literals(text: str, last_columns: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Where long literals lie that no op stands behind.

    A resource (`name: "0x04000000…"`) begins with its alignment, which stays: what follows may stand elsewhere, too.
    """
    line, counted = 1, 0
    for match in _LITERAL.finditer(text):
        start, end = match.span(match.lastindex or 0)
        if text.startswith(': "0x', start - 3):
            start += len("0x04000000")
        if end - start <= LONGEST:
            continue
        line += text.count("\n", counted, end)
        counted = end
        first, column = line - text.count("\n", start, end), start - text.rfind("\n", 0, start)
        if last_columns.get(line, 0) <= (column if first == line else 0):
            yield start, end


def _content(literal: str) -> tuple[str, bytes]:
    """The name and the content of a literal."""
    content, kind = _hexadecimal(literal), "bin"
    if not content:
        content, kind = literal.encode(errors="surrogatepass"), "txt"
    return f"{hashlib.sha256(content).hexdigest()}.{kind}", content


def _hexadecimal(literal: str) -> bytes:
    """The bytes that a literal stands for; none where they would not give it back as it is."""
    digits = literal.removeprefix("0x")
    try:
        content = bytes.fromhex(digits)
    except ValueError:
        return b""
    return content if content.hex().upper() == digits else b""


def put_back(text: str, content_of: Callable[[str], bytes]) -> str:
    """The text with its literals again; `content_of` reads one by its name."""

    def literal(match: re.Match[str]) -> str:
        beginning, name = match.groups()
        content = content_of(name)
        if name.endswith(".txt"):
            return content.decode(errors="surrogatepass")
        return ("0x" if beginning == "0x" else "") + content.hex().upper()

    return _NAMED.sub(literal, text) if _MARK in text else text
