"""The one codec: what is stored or printed as JSON is made of records, and is written and read here.

A record is a frozen struct whose fields are the keys, in their order; unknown is null, every key is always written, and
no other key is read. Types that are not JSON's own bring two class methods: `from_json(value)`, which raises ValueError
for what it does not take, and `json_schema()`; their JSON form is their text. The schemas that the package brings are
made of the same types, so that what is written, what is read and what is documented cannot differ.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import fields

from tracemap.sanitize import json_without_controls
from tracemap.units import INTEGER_LIMIT

Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_LIMIT)]
"""A number or a place, from 0."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_LIMIT)]
"""A number or a place, from 1."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")
_R = TypeVar("_R", bound="Record")
_D = TypeVar("_D", bound="Document")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records. Keys with a default may be missing where a record is read."""


class Document(Record, frozen=True, kw_only=True):
    """Base of what a file or an output holds as a whole: a subclass says its version and kind, its first keys."""

    schema_version: int
    kind: str


class OtherVersion(ValueError):
    """A document of the right kind, but of a version that is not read."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class _Stamp(msgspec.Struct, frozen=True):
    """What all versions of all documents have."""

    schema_version: int
    kind: str


def encode(value: object) -> bytes:
    """The JSON of a value, in one line: the same bytes for the same value."""
    try:
        return msgspec.json.encode(value, enc_hook=_to_json)
    except UnicodeEncodeError:
        return _encode_surrogates(value)


def _encode_surrogates(value: object) -> bytes:
    # Names of files need not be Unicode: Python makes half surrogate pairs of their odd bytes, which UTF-8 cannot hold.
    text = json.dumps(msgspec.to_builtins(value, enc_hook=_to_json), ensure_ascii=False, separators=(",", ":"))
    return _SURROGATE.sub(lambda match: json.dumps(storable(match[0]))[1:-1], text).encode()


def storable(text: str) -> str:
    """A text as it is stored: of half a surrogate pair the escape is kept, `\\udce9`; others stay as they are."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def pretty(value: object) -> str:
    """The JSON of a value for standard output and for people: one line per key, the same text for the same value."""
    return json_without_controls(msgspec.json.format(encode(value), indent=1).decode()) + "\n"


def decode(data: bytes, kind: type[_T]) -> _T:
    """Read a value; the inverse of `encode`.

    Raises:
        ValueError: it is no JSON, or not of this kind; the message says where.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_from_json)
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def decode_document(data: bytes, kind: type[_D]) -> _D:
    """Read a document (its version is looked at first: others may differ in every other key).

    Raises:
        OtherVersion: it is of another version.
        ValueError: it is damaged, or something else.
    """
    expected = _Stamp(**{field.name: field.default for field in fields(kind) if field.name in _Stamp.__struct_fields__})
    # What `encode` wrote begins with the stamp, so that a large document need not be gone through twice.
    if not data.startswith(encode(expected)[:-1]):
        found = decode(data, _Stamp)
        if found.kind != expected.kind:
            raise ValueError(f"it is of the kind {found.kind!r}, not {expected.kind!r}")
        if found.schema_version != expected.schema_version:
            raise OtherVersion(found.schema_version)
    return decode(data, kind)


def view(kind: type[_R], source: object, **given: object) -> _R:
    """A record of another kind: its fields are those of `source` with the same names, but for what is given."""
    names = [name for name in kind.__struct_fields__ if name not in given and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def _to_json(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} has no JSON form")
    return str(value)


def _from_json(kind: Any, value: object) -> object:  # noqa: ANN401 - any type of a record's field
    return kind.from_json(value)
