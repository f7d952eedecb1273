"""MLIR locations: the origin of an operation.

A location has one of five forms (MLIR `BuiltinLocationAttributes.td`): unknown, file range, name, call site, or fused.
`parse_location` reads the printed form. The other functions return whether a location is informative, its frames in the
program above the MLIR, and its scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from tracemap.core.errors import LocationInvalid, start_of


class UnknownLocation(msgspec.Struct, frozen=True):
    """`unknown`."""


class FileRange(msgspec.Struct, frozen=True):
    """`"file":line:column`, optionally `to end_line:end_column`; 1-based, 0 if the frontend gives none."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


class Name(msgspec.Struct, frozen=True):
    """`"name"` or `"name"(child)`."""

    name: str
    child: Location


class CallSite(msgspec.Struct, frozen=True):
    """`callsite(callee at caller)`."""

    callee: Location
    caller: Location


class Fused(msgspec.Struct, frozen=True):
    """`fused[…]` or `fused<metadata>[…]`; the metadata is kept as text."""

    locations: tuple[Location, ...]
    metadata: str


Location = UnknownLocation | FileRange | Name | CallSite | Fused

UNKNOWN_LOCATION = UnknownLocation()

STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
"""Pattern of a string in MLIR text, without backtracking. Backtracking over an unterminated string would take a hundred
bytes of memory per character.
"""

# A token: a string, a word, a number, or one character, separated by white space.
_TOKEN = re.compile(STRING + r"|[A-Za-z_#!][\w.$#!]*|-?\d+|->|\S", re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {b"n": b"\n", b"t": b"\t", b"\\": b"\\", b'"': b'"'}
_MAX_DIGITS = 18
MOST_NESTED: Final = 400
"""Nesting limit, deeper than compilers generate. Locations below it are replaced by unknown ones."""


def unescape(quoted: str) -> str:
    r"""Text of an MLIR string literal: `"\C3\A8"` is `è`, `"\22"` a quote; invalid UTF-8 is replaced."""

    def replace(match: re.Match[bytes]) -> bytes:
        escaped = match.group(1)
        return bytes([int(escaped, 16)]) if len(escaped) == 2 else _SIMPLE_ESCAPES.get(escaped, escaped)

    body = quoted[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(replace, body.encode(errors="surrogatepass")).decode(errors="replace")


def parse_location(text: str) -> Location:
    """Parse the printed form of a location, with or without the enclosing `loc(…)`; aliases must be expanded.

    Raises:
        LocationInvalid: the text is not a location.
    """
    return read_location(text)[0]


def read_location(text: str) -> tuple[Location, bool]:
    """Like `parse_location`; also return whether parts below the nesting limit were cut off.

    Raises:
        LocationInvalid: the text is not a location.
    """
    tokens = _TOKEN.findall(text)
    if tokens[:2] == ["loc", "("] and tokens[-1:] == [")"]:
        tokens = tokens[2:-1]
    parser = _Parser(tokens, text)
    location = parser.location(0)
    if parser.next < len(tokens):
        raise parser.error(f"unexpected {_shown(tokens[parser.next])} after it")
    return location, parser.has_cut


class _Parser:
    """Recursive descent over the tokens of one location."""

    def __init__(self, tokens: list[str], text: str) -> None:
        self._tokens = [*tokens, ""]  # end marker, so that looking ahead needs no check for the end
        self._text = text
        self.next = 0
        self.has_cut = False

    def location(self, depth: int) -> Location:
        if depth > MOST_NESTED:
            return self._cut()
        token = self._take()
        if token[:1] == '"':
            return self._named(unescape(token), depth)
        if token == "unknown":
            return UNKNOWN_LOCATION
        if token == "callsite":
            self._expect("(")
            callee = self.location(depth + 1)
            self._expect("at")
            caller = self.location(depth + 1)
            self._expect(")")
            return CallSite(callee, caller)
        if token == "fused":
            return self._fused(depth)
        if token.startswith(("#", "!")):
            self._skip_parameters()
            return UNKNOWN_LOCATION  # tracemap reads no positions from a dialect's own location attributes
        raise self.error(f"unexpected {_shown(token)}")

    def _named(self, text: str, depth: int) -> Location:
        if self._peek() == ":":
            return self._file(text)
        if not self._skips("("):
            return Name(text, UNKNOWN_LOCATION)
        child = self.location(depth + 1)
        self._expect(")")
        return Name(text, child)

    def _file(self, file: str) -> FileRange:
        self._expect(":")
        line, column = self._number(), 0
        if self._skips(":"):
            column = self._number()
        if not self._skips("to"):
            return FileRange(file, line, column, line, column)
        end_line = line if self._peek() == ":" else self._number()
        self._expect(":")
        return FileRange(file, line, column, end_line, self._number())

    def _fused(self, depth: int) -> Fused:
        metadata = self._skip_parameters()
        self._expect("[")
        locations = []
        while self._peek() not in ("]", ""):
            locations.append(self.location(depth + 1))
            self._skips(",")
        self._expect("]")
        return Fused(tuple(locations), metadata)

    def _cut(self) -> Location:
        """Skip one location, up to the token that closes or continues the enclosing one."""
        self.has_cut, depth = True, 0
        while (token := self._peek()) and (depth or token not in (")", "]", ",", "at")):
            depth += (token in "([<") - (token in ")]>")
            self.next += 1
        return UNKNOWN_LOCATION

    def _skip_parameters(self) -> str:
        """Skip `<…>`, which may contain any attribute, and return its text."""
        if self._peek() != "<":
            return ""
        begin = self.next
        depth = 0
        while token := self._take():
            depth += (token == "<") - (token == ">")
            if depth == 0:
                return " ".join(self._tokens[begin + 1 : self.next - 1])
        raise self.error("a < without its >")

    def _number(self) -> int:
        token = self._take()
        if not token.isascii() or not token.isdigit() or len(token) > _MAX_DIGITS:
            raise self.error(f"a number expected, not {_shown(token)}")
        return int(token)

    def _peek(self) -> str:
        return self._tokens[self.next]

    def _take(self) -> str:
        token = self._tokens[self.next]
        self.next += token != ""
        return token

    def _skips(self, token: str) -> bool:
        """Skip this token if it is the next one, and return whether it is."""
        if self._tokens[self.next] != token:
            return False
        self.next += 1
        return True

    def _expect(self, token: str) -> None:
        if self._tokens[self.next] != token:
            raise self.error(f"{token!r} expected")
        self.next += 1

    def error(self, what: str) -> LocationInvalid:
        return LocationInvalid(f"not a location ({what}): {start_of(self._text, 200)}")


def _shown(token: str) -> str:
    return repr(start_of(token, 40))


class CodeFrame(msgspec.Struct, frozen=True):
    """A position in the program above the MLIR: a file range and the enclosing function ("": unknown)."""

    place: FileRange
    function: str


def frames(location: Location) -> tuple[CodeFrame, ...]:
    """Call stack of a location, innermost frame first. For fused locations, the first one that has frames counts.

    `"f"("a.py":3:1)` inside a call stack or a name is a frame in the function `f`; JAX prints its frames in this form.
    Locations with line 0 or an empty file name are left out. Equal frames in a row count once.
    """
    return tuple(frame for frame, _ in groupby(_walk_frames(location, function="")))


def _walk_frames(location: Location, function: str) -> Iterator[CodeFrame]:
    match location:
        case FileRange():
            if location.line > 0 and location.file:
                yield CodeFrame(location, function)
        case Name():
            yield from _walk_frames(location.child, location.name)
        case CallSite():
            yield from _walk_frames(location.callee, "")
            yield from _walk_frames(location.caller, "")
        case Fused():
            for part in location.locations:
                first = list(_walk_frames(part, ""))
                if first:
                    yield from first
                    return
        case UnknownLocation():
            return


def name_path(location: Location) -> str:
    """Outermost name of a location, such as `jit(f)/h0/attn/add`, or "" without one.

    A call site has the callee's name, and a fused location the first name in it. A name directly around a file range,
    inside another location, is a function's name and not a path; such names are never outermost.
    """
    match location:
        case Name():
            return location.name
        case CallSite():
            return name_path(location.callee) if not isinstance(location.callee, Name) else ""
        case Fused():
            return next((path for path in map(name_path, location.locations) if path), "")
        case FileRange() | UnknownLocation():
            return ""


def split_path(path: str) -> tuple[str, ...]:
    """Split a name path at `/` outside of parentheses, and drop empty components.

    >>> split_path("jit(f)/transpose(jvp(a/b))/add")
    ('jit(f)', 'transpose(jvp(a/b))', 'add')
    """
    if "(" not in path and ")" not in path:
        return tuple([component for component in path.split("/") if component])
    components: list[str] = []
    current = ""
    depth = 0
    for character in path:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            components.append(current)
            current = ""
            depth = 0
        else:
            current += character
    components.append(current)
    if depth > 0:  # unbalanced parentheses are ignored
        components = path.split("/")
    return tuple(component for component in components if component)


_JIT = re.compile(r"^(jit|pjit)(\(.*\)|:)$", re.DOTALL)
_TRANSFORMED_JIT = re.compile(r"^((?:\w+\()+)p?jit\([^()]*\)(\)+)$")


def scope(location: Location) -> tuple[str, ...]:
    """The name path without the op's own name and without `jit(…)`.

    `jit(<lambda>)/h0/attn/add` is `("h0", "attn")`. A call of a jitted function may have its transformations in the
    op's own name: `jit(f)/jvp(jit(g))` is `("jvp()",)`.
    """
    *components, own = split_path(name_path(location)) or ("",)
    if _TRANSFORMED_JIT.match(own):
        components.append(own)
    plain = (_TRANSFORMED_JIT.sub(r"\1\2", component) for component in components)
    return tuple(component for component in plain if not _JIT.match(component))


def is_informative(location: Location) -> bool:
    """Whether a location contains a file position or a name, at any depth."""
    match location:
        case FileRange(file=file, line=line):
            return bool(file) and line > 0
        case Name(name=name, child=child):
            return bool(name) or is_informative(child)
        case CallSite(callee=callee, caller=caller):
            return is_informative(callee) or is_informative(caller)
        case Fused(locations=locations):
            return any(is_informative(part) for part in locations)
        case UnknownLocation():
            return False
