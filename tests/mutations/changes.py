"""Changes at random to bytes, JSON, tables and lines. The same dice make the same change."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Change = Callable[[bytes, random.Random], bytes]

_DEPTH = 100_000
_NUMBERS = (
    *("0", "-1", "1", "2", "1.5", "-0.0", "1e400", "-1e400", "1e308", "NaN", "Infinity", "-Infinity"),
    *(str(2**bits + more) for bits in (31, 32, 53, 63, 64) for more in (-1, 0)),
    *(str(-(2**63)), str(-(2**63) - 1), "1" + "0" * 5000, "-1" + "0" * 5000),
)
_TEXTS = (
    *("", "x", "op0", "op999999", "op-1", "op" + "9" * 5000, "site0", "site999", "main", "null"),
    *("../../../etc/passwd", "/etc/passwd", "a/../b", ".", "\0", "a\0b", "\n", "\x1b[31m", "</script>", "é\u202e"),
    *("a" * 100_000, "'; DROP TABLE events; --", "{{ 7 * 7 }}", "[bold]", "%s", "*", "\U0001f600"),
)
# What a JSON value may be replaced by, as it stands in the file; the last ones are no JSON, or no text.
_LONGEST = 1 << 20
"""Of a text that was made longer: again and again by a thousand it would be as long as no file is."""

_VALUES: tuple[bytes, ...] = (
    *(number.encode() for number in _NUMBERS),
    *(json.dumps(text).encode() for text in _TEXTS),
    *(b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[null]", b"[{}]", b'{"":0}'),
    *(rb'"\ud800"', rb'"a\udfffb"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b"", b"nonsense", b'"open'),
    *(b"[" * _DEPTH + b"]" * _DEPTH, b'{"a":' * _DEPTH + b"0" + b"}" * _DEPTH, b"[" * _DEPTH),
)
_WORDS = (*_NUMBERS, *_TEXTS, *("true", "false", "0x10", "1_000", "½", "\ud800", '"', "--", "=", "#"))


def changed_bytes(data: bytes, dice: random.Random) -> bytes:
    """One to five changes that know nothing of the format."""
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        data = dice.choice(_BYTE_CHANGES)(data, dice)
    return data


def _range_of(data: bytes, dice: random.Random, most: int = 256) -> tuple[int, int]:
    begin = dice.randrange(len(data) + 1)
    return begin, min(len(data), begin + dice.randint(1, dice.choice((4, most))))


def _flip(data: bytes, dice: random.Random) -> bytes:
    begin, end = _range_of(data, dice, 1)
    return data[:begin] + bytes(byte ^ (1 << dice.randrange(8)) for byte in data[begin:end]) + data[end:]


def _overwrite(data: bytes, dice: random.Random) -> bytes:
    begin, end = _range_of(data, dice)
    return data[:begin] + dice.randbytes(end - begin) + data[end:]


def _number(data: bytes, dice: random.Random) -> bytes:
    """A number of the kind that lengths and offsets are, in place of what is there."""
    value = dice.choice((0, 1, 0x7F, 0xFF, len(data), len(data) - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
    size, form = dice.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    begin = dice.randrange(len(data) + 1)
    return data[:begin] + struct.pack(form, value % (1 << 8 * size)) + data[begin + size :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    begin, end = _range_of(data, dice)
    return data[:begin] + dice.choice((b"\0" * (end - begin), dice.randbytes(end - begin))) + data[begin:]


def _delete(data: bytes, dice: random.Random) -> bytes:
    begin, end = _range_of(data, dice)
    return data[:begin] + data[end:]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    begin, end = _range_of(data, dice)
    return data[:end] + data[begin:end] * dice.choice((1, 1, 50)) + data[end:]


def _splice(data: bytes, dice: random.Random) -> bytes:
    """A piece of the file where another one was."""
    begin, end = _range_of(data, dice, 4096)
    place = dice.randrange(len(data) + 1)
    return data[:place] + data[begin:end] + data[place + dice.choice((0, end - begin)) :]


def _truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


_BYTE_CHANGES: tuple[Change, ...] = (
    _flip,
    _flip,
    _overwrite,
    _number,
    _number,
    _insert,
    _delete,
    _repeat,
    _splice,
    _truncate,
)


# ---- JSON


@dataclass(frozen=True, slots=True)
class _Raw:
    """A value as it is to stand in the file, whether that is JSON or not."""

    text: bytes


class _Object(list[Any]):
    """An object as a list of lists of key and value, so that a key may be there twice."""


def changed_json(data: bytes, dice: random.Random) -> bytes:
    """One to four changes to the values and keys of a JSON text; now and then to its bytes."""
    if dice.random() < 0.2:
        return changed_bytes(data, dice)
    root = [json.loads(data, object_pairs_hook=lambda pairs: _Object(map(list, pairs)))]
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        by_shape: dict[str, list[tuple[list[Any], int]]] = {}
        for shape, holder, place in _places(root, ""):
            by_shape.setdefault(shape, []).append((holder, place))
        if not by_shape:
            break
        # A rare field is as likely as one that each of a thousand ops has.
        holder, place = dice.choice(by_shape[dice.choice(sorted(by_shape))])
        dice.choice(_JSON_CHANGES)(holder, place, dice)
    return _written(root[0]) if root else b""


def changed_json_lines(data: bytes, dice: random.Random) -> bytes:
    """Changes to one line, or to which lines there are."""
    lines = data.splitlines(keepends=True)
    place = dice.randrange(len(lines))
    if dice.random() < 0.7 and lines[place].strip():
        lines[place] = changed_json(lines[place], dice) + dice.choice((b"\n", b"\n", b"\n", b""))
        return b"".join(lines)
    return changed_lines(data, dice)


def _places(holder: list[Any], shape: str) -> Iterator[tuple[str, list[Any], int]]:
    """Each value with the names that lead to it, and where it stands: `holder[place]`."""
    for place, item in enumerate(holder):
        if isinstance(holder, _Object):
            here, value = f"{shape}.{item[0]}", item[1]
            yield here, holder, place
        else:
            here, value = f"{shape}[]", item
            yield here, holder, place
        if isinstance(value, list):
            yield from _places(value, here)


def _get(holder: list[Any], place: int) -> Any:  # noqa: ANN401 - JSON may be anything
    return holder[place][1] if isinstance(holder, _Object) else holder[place]


def _set(holder: list[Any], place: int, value: object) -> None:
    if isinstance(holder, _Object):
        holder[place] = [holder[place][0], value]
    else:
        holder[place] = value


def _replace(holder: list[Any], place: int, dice: random.Random) -> None:
    _set(holder, place, _Raw(dice.choice(_VALUES)))


def _nudge(holder: list[Any], place: int, dice: random.Random) -> None:
    """A value of the same type that is nearly right."""
    value = _get(holder, place)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int | float):
        value = dice.choice((value + 1, -value, value * 2, float(value), str(value), [value]))
    elif isinstance(value, str):
        longer = (value * 1000)[:_LONGEST] if len(value) < _LONGEST else value  # made whether it is chosen or not
        value = dice.choice((value + "x", value[:-1], value.upper(), dice.choice(_TEXTS), longer))
    elif isinstance(value, list):
        value = type(value)(value[::-1] if dice.random() < 0.5 else [*value, *value])
    _set(holder, place, value)


def _drop(holder: list[Any], place: int, _dice: random.Random) -> None:
    del holder[place]


def _double(holder: list[Any], place: int, dice: random.Random) -> None:
    """A key twice, or an element; the second may have another value."""
    item = holder[place]
    holder.insert(dice.randrange(len(holder) + 1), list(item) if isinstance(holder, _Object) else item)


def _rename(holder: list[Any], place: int, dice: random.Random) -> None:
    if isinstance(holder, _Object):
        holder[place] = [dice.choice((*_TEXTS, str(holder[place][0]) + "_", dice.choice(holder)[0])), holder[place][1]]
    else:
        _replace(holder, place, dice)


def _add(holder: list[Any], place: int, dice: random.Random) -> None:
    """A key or an element that is not known."""
    new = _Raw(dice.choice(_VALUES))
    holder.insert(place, ["unheard_of", new] if isinstance(holder, _Object) else new)


def _exchange(holder: list[Any], place: int, dice: random.Random) -> None:
    other = dice.randrange(len(holder))
    mine, theirs = _get(holder, place), _get(holder, other)
    _set(holder, place, theirs)
    _set(holder, other, mine)


_JSON_CHANGES = (_replace, _replace, _replace, _nudge, _nudge, _drop, _double, _rename, _add, _exchange)


def _written(value: object) -> bytes:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, _Object):
        return b"{" + b",".join(_key(key) + b":" + _written(inner) for key, inner in value) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_written, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


def _key(key: object) -> bytes:
    return json.dumps(key).encode()


# ---- tables and lines


def changed_csv(data: bytes, dice: random.Random) -> bytes:
    """Changes to cells, columns and rows; now and then to bytes."""
    if dice.random() < 0.2:
        return changed_bytes(data, dice)
    rows = [line.split(",") for line in data.decode("utf-8").splitlines()]
    for _ in range(dice.choice((1, 1, 2, 5))):
        row = rows[dice.choice((0, dice.randrange(len(rows))))]
        place = dice.randrange(len(row)) if row else 0
        _change_row(row, place, dice)
    mark = dice.choice((",",) * 8 + (";", "\t"))
    text = dice.choice(("\n",) * 8 + ("\r\n", "\r")).join(mark.join(row) for row in rows)
    return text.encode("utf-8", errors="surrogatepass")


def _change_row(row: list[str], place: int, dice: random.Random) -> None:
    kind = dice.randrange(6)
    if kind == 0 and row:
        del row[place]
    elif kind == 1:
        row.insert(place, dice.choice(row or [""]))
    elif row:
        row[place] = dice.choice((dice.choice(_WORDS), dice.choice(row), row[place] + dice.choice(_WORDS)))


def changed_lines(data: bytes, dice: random.Random) -> bytes:
    """Changes to words and lines of a text; now and then to bytes."""
    if dice.random() < 0.2:
        return changed_bytes(data, dice)
    lines = data.splitlines(keepends=True)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = dice.randrange(len(lines) + 1)
        kind = dice.randrange(4)
        if kind == 0:
            del lines[place : place + dice.choice((1, 1, 10))]
        elif kind == 1:
            lines[place:place] = dice.choices(lines or [b"x\n"], k=dice.choice((1, 1, 1000)))
        elif place < len(lines):
            lines[place] = _changed_line(lines[place], dice)
    return b"".join(lines)


def _changed_line(line: bytes, dice: random.Random) -> bytes:
    separator = dice.choice((b" ", b"=", b",", b":"))
    words = line.rstrip(b"\n").split(separator)
    words[dice.randrange(len(words))] = dice.choice(_WORDS).encode("utf-8", errors="surrogatepass")
    return separator.join(words) + b"\n"


def changed_words(data: bytes, dice: random.Random) -> bytes:
    """Changes to what a text is made of, whatever parts it: words, numbers and signs; now and then to bytes."""
    if dice.random() < 0.2:
        return changed_bytes(data, dice)
    parts = _PART.findall(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place, kind = dice.randrange(len(parts) + 1), dice.randrange(4)
        if kind == 0:
            del parts[place : place + dice.choice((1, 1, 5))]
        elif kind == 1:
            parts[place:place] = dice.choices(parts or [b"("], k=1) * dice.choice((1, 1, 2, 1000))
        elif kind == 2 and parts:
            parts[place : place + 1] = [dice.choice(parts)]
        else:
            parts[place : place + 1] = [dice.choice(_WORDS).encode("utf-8", errors="surrogatepass")]
    return b"".join(parts)


_PART = re.compile(rb"\w+|\s+|.", re.DOTALL)


def changed_names(data: bytes, dice: random.Random) -> bytes:
    """Changes to a program that may well leave it one: names and numbers in place of others, operations done again."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        data = dice.choice((_renamed, _done_again, _done_again))(data, dice)
    return data


def _renamed(data: bytes, dice: random.Random) -> bytes:
    """A value, an operation, a function or a number in place of another."""
    found = list(dice.choice(_NAMES).finditer(data))
    if not found:
        return data
    place, other = dice.choice(found), dice.choice(found)
    return data[: place.start()] + other[0] + data[place.end() :]


_NAMES = tuple(map(re.compile, (rb"%\w+", rb"\b[a-z_]\w*\.[\w.]+", rb"@\w+", rb"\b\d+", rb"\b[a-z]+\d+\b")))


def _done_again(data: bytes, dice: random.Random) -> bytes:
    """An operation of one line done again, whose result may be used in place of the first one's further down."""
    found = list(_OPERATION.finditer(data))
    if not found:
        return data
    line = dice.choice(found)
    name = b"%%again%d" % dice.randrange(10**6)
    again, rest = line[0].replace(line[1], name, 1), data[line.end() :]
    uses = list(re.finditer(re.escape(line[1]) + rb"\b", rest))
    if uses and dice.random() < 0.7:
        use = dice.choice(uses)
        rest = rest[: use.start()] + name + rest[use.end() :]
    return data[: line.end()] + b"\n" + again + rest


_OPERATION = re.compile(rb"^ *(%\w+) = [^\n]*[^{\n]$", re.MULTILINE)
