"""The codec: unknown is null, records round-trip, and damage is refused with its place."""

from __future__ import annotations

from typing import Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas import DOCUMENTS, FOLDER, schema, schema_text
from tracemap.core.codec import (
    Count,
    Document,
    OtherVersion,
    Record,
    decode,
    decode_document,
    encode,
    pretty_json,
    record_from,
)
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text

pytestmark = pytest.mark.quick


class Part(Record, frozen=True):
    """A part."""

    line: Integer
    name: Text
    places: tuple[Count, ...] = ()


class Whole(Document, frozen=True, kw_only=True):
    """The whole."""

    schema_version: Literal[3] = 3
    kind: Literal["whole"] = "whole"
    parts: tuple[Part, ...]


class Line(Record, frozen=True):
    """Less of a part, and more."""

    line: Integer
    text: str


WHOLE = Whole(parts=(Part(UNKNOWN, "é\x00\u2028", (1, 2)), Part(3, UNKNOWN)))
COUNTS = st.integers(0, MAX_INTEGER)
PARTS = st.builds(
    Part,
    line=COUNTS | st.just(UNKNOWN),
    name=st.text(st.characters(exclude_categories=["Cs"])) | st.just(UNKNOWN),
    places=st.lists(COUNTS).map(tuple),
)


@given(st.lists(PARTS).map(lambda parts: Whole(parts=tuple(parts))))
def test_what_is_written_is_read_again(whole: Whole) -> None:
    assert decode_document(encode(whole), Whole) == whole
    assert decode_document(pretty_json(whole).encode(), Whole) == whole


def test_unknown_is_null_and_every_key_is_written() -> None:
    assert encode(Part(UNKNOWN, UNKNOWN)) == b'{"line":null,"name":null,"places":[]}'
    assert pretty_json(Part(1, "a")) == '{\n "line": 1,\n "name": "a",\n "places": []\n}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"line":1}', "name"),
        ('{"line":1,"name":"a","more":2}', "more"),
        ('{"line":true,"name":"a"}', r"\$\.line"),
        ('{"line":1.0,"name":"a"}', r"\$\.line"),
        ('{"line":-1,"name":"a"}', r"\$\.line"),
        ('{"line":9223372036854775808,"name":"a"}', r"\$\.line"),
        (f'{{"line":{"9" * 10_000},"name":"a"}}', r"\$\.line"),
        ('{"line":1e400,"name":"a"}', r"\$\.line"),
        ('{"line":1,"name":7}', r"\$\.name"),
        ('{"line":1,"name":"a","places":[1,-2]}', r"\$\.places\[1\]"),
        ('{"line":1,"name":"a","places":[true]}', r"\$\.places\[0\]"),
        ('{"line":1,"name":"\\ud800"}', "not JSON"),
        ('{"line":NaN,"name":"a"}', "not JSON"),
        ("[" * 100_000, "object"),
        (f'{{"line":{"[" * 100_000}', "not JSON"),
        ("", "not JSON"),
    ],
)
def test_damaged_documents_are_rejected_with_the_json_path(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(text.encode(), Part)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        decode(b'{"line":1,"name":"\xff"}', Part)


def test_documents_of_other_versions_and_kinds_are_told_from_damaged_ones() -> None:
    with pytest.raises(OtherVersion, match="4"):
        decode_document(b'{"schema_version":4,"kind":"whole","wholly":"other"}', Whole)
    for text in (
        b'{"schema_version":3,"kind":"part","parts":[]}',
        b'{"parts":[]}',
        b'{"schema_version":3,"kind":"whole"}',
    ):
        with pytest.raises(ValueError, match=r"kind|schema_version|parts") as caught:
            decode_document(text, Whole)
        assert not isinstance(caught.value, OtherVersion)


def test_odd_bytes_of_file_names_are_kept_as_escapes() -> None:
    name = b"caf\xe9 \xf0\x9f\x98\x80".decode(errors="surrogateescape")
    assert decode(encode(Part(1, name)), Part) == Part(1, "caf\\udce9 😀")


def test_a_view_takes_what_it_is_not_given() -> None:
    assert record_from(Line, Part(3, "a"), text="b") == Line(3, "b")


def test_schemas_take_what_is_written_and_nothing_else() -> None:
    made = schema(Whole, "whole", "A whole")
    jsonschema.Draft202012Validator.check_schema(made)
    check = jsonschema.Draft202012Validator(made)
    assert made["$id"] == "urn:tracemap:whole:3"
    assert check.is_valid(decode(encode(WHOLE), dict))
    wrong: list[dict[str, object]] = [
        {"line": 1, "name": None},
        {"line": -1, "name": None, "places": []},
        {"line": 1, "name": 2, "places": []},
    ]
    for part in wrong:
        assert not check.is_valid({"schema_version": 3, "kind": "whole", "parts": [part]})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schemas_of_the_package_are_current(name: str) -> None:
    assert (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == schema_text(name), "run make schemas"
