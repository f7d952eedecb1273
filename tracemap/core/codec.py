"""JSON codec for all records that are stored or printed.

A record is a frozen struct. Its fields are the keys, in this order. UNKNOWN is null, every key is always written, and
unexpected keys are rejected. Types that JSON lacks have two class methods: `from_json(value)`, which raises ValueError
for invalid values, and `json_schema()`. Their JSON form is their text. The package's schemas are generated from the
same types, so that writer, reader and documentation cannot differ.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar

import msgspec

from tracemap.core.sanitize import json_without_controls
from tracemap.core.units import MAX_INTEGER

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""A count or an index, from 0."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
"""A count or an index, from 1."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")
_R = TypeVar("_R", bound="Record")
_D = TypeVar("_D", bound="Document")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records. A reader accepts records that lack keys with a default."""


class Document(Record, frozen=True, kw_only=True):
    """Base of top-level records of files and outputs. Subclasses define version and kind, the first two keys."""

    schema_version: int
    kind: str


class OtherVersion(ValueError):
    """A document of the right kind, but of an unsupported version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class _Stamp(msgspec.Struct, frozen=True):
    """Keys that all versions of all documents have."""

    schema_version: int
    kind: str


def encode(value: object) -> bytes:
    """JSON of a value, in one line; equal values give equal bytes."""
    try:
        return msgspec.json.encode(value, enc_hook=_to_json)
    except UnicodeEncodeError:
        # File names need not be Unicode. Python maps invalid bytes to lone surrogates, which UTF-8 cannot encode.
        text = json.dumps(msgspec.to_builtins(value, enc_hook=_to_json), ensure_ascii=False, separators=(",", ":"))
        return _SURROGATE.sub(lambda match: json.dumps(escape_surrogates(match[0]))[1:-1], text).encode()


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates replaced by their escapes, such as `\\udce9`, so that UTF-8 can store it."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def pretty_json(value: object) -> str:
    """JSON of a value for people: one line per key; equal values give equal texts."""
    return json_without_controls(msgspec.json.format(encode(value), indent=1).decode()) + "\n"


def decode(data: bytes, kind: type[_T]) -> _T:
    """Read a value; the inverse of `encode`.

    Raises:
        ValueError: the data are not JSON, or not of this kind; the message says where.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_from_json)
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def decode_document(data: bytes, kind: type[_D]) -> _D:
    """Read a document. The version is checked first, since other versions may differ in all other keys.

    Raises:
        OtherVersion: the document has another version.
        ValueError: the document is damaged, or of another kind.
    """
    stamps = defaults_of(kind)
    expected = _Stamp(**{name: stamps[name] for name in _Stamp.__struct_fields__})
    # Output of `encode` begins with the stamp, so that a large document need not be decoded twice.
    if not data.startswith(encode(expected)[:-1]):
        stamp = decode(data, _Stamp)
        if stamp.kind != expected.kind:
            raise ValueError(f"its kind is {stamp.kind!r}, not {expected.kind!r}")
        if stamp.schema_version != expected.schema_version:
            raise OtherVersion(stamp.schema_version)
    return decode(data, kind)


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The default of each field that has one. Unlike `msgspec.structs.fields`, it evaluates no annotations."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    pairs = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    return {name: default for name, default in pairs if default is not msgspec.NODEFAULT}


def record_from(kind: type[_R], source: object, **overrides: object) -> _R:
    """Build a record of another kind from the fields of `source` with the same names; `overrides` replace them."""
    names = [name for name in kind.__struct_fields__ if name not in overrides and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **overrides)


def _to_json(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} has no JSON form")
    return str(value)


def _from_json(kind: Any, value: object) -> object:  # noqa: ANN401 - any type of a record's field
    return kind.from_json(value)
