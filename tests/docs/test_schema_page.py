"""The JSON reference documents every field of each schema."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.documents import DOCS, is_current
from tests.schema_page import WORDS, Schema, meaning, schema_page, type_of
from tests.schemas import DOCUMENTS, stored_schema

pytestmark = pytest.mark.quick


def fields() -> Iterator[tuple[str, str, str]]:
    """Of each document and record the name, a field, and what it means."""
    records: dict[str, Schema] = {
        name: made for each in DOCUMENTS for name, made in stored_schema(each)["$defs"].items()
    }
    for name, made in [*records.items(), *((name, stored_schema(name)) for name in DOCUMENTS)]:
        for field in made.get("properties", {}):
            yield name, field, meaning(name, field, made, records)


def test_the_page_is_what_the_schemas_say() -> None:
    assert is_current("schemas"), "run python -m tests.documents"


def test_every_field_has_a_meaning() -> None:
    found = list(fields())
    assert len(found) > 400
    unsaid = [f"{name}.{field}" for name, field, words in found if not words]
    assert unsaid == [], "say in the docstring of the record, or in WORDS, what they are"
    page = (DOCS / "schemas.md").read_text(encoding="utf-8")
    for name, field, _ in found:
        section = re.split(rf"^###? {name}$", page, flags=re.MULTILINE)[1].split("\n#")[0]
        assert f"| `{field}` |" in section


def test_every_word_is_of_a_field() -> None:
    there = {name for record, field, _ in fields() for name in (field, f"{record}.{field}")}
    assert sorted(WORDS.keys() - there) == []


def test_a_record_of_one_name_is_the_same_in_all_documents() -> None:
    seen: dict[str, Schema] = {}
    for each in DOCUMENTS:
        for name, made in stored_schema(each)["$defs"].items():
            assert seen.setdefault(name, made) == made, f"{each}: {name}"


def test_types_are_plain_words() -> None:
    assert type_of({"type": "integer", "minimum": 0}, "elapsed_ns") == "integer, ns"
    assert type_of({"anyOf": [{"$ref": "#/$defs/Op"}, {"type": "null"}]}) == "[Op](#op) or null"
    assert type_of({"type": "array", "items": {"enum": ["a", None]}}) == "list of `a`, null"
    assert type_of({"type": "object", "additionalProperties": {"type": "number"}}, "ratio") == "object: by name number"
    assert schema_page() == schema_page()
