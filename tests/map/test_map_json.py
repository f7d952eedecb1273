"""`map.json` as columns: round trips, repeated values stored once, damage refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import graph, op, site
from tracemap.core.units import UNKNOWN
from tracemap.map.map_json import OpTable, Reader, decode, encode
from tracemap.map.model import Membership, Op, Site

pytestmark = pytest.mark.quick

MANY = 1000
PLENTY = Reader.of(b" " * 10**6)

TEXTS = st.text(max_size=3)
OPS = st.lists(
    st.builds(
        op,
        st.integers(0, 10**18 - 1),
        st.integers(0, 2**63 - 1) | st.just(UNKNOWN),
        name=TEXTS,
        function=TEXTS | st.just(UNKNOWN),
        scope=st.lists(TEXTS, max_size=3),
        frames=st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=2),
        part_lines=st.lists(st.integers(1, 9), max_size=2),
    ),
    max_size=6,
)


@settings(max_examples=200)
@given(ops=OPS)
def test_records_come_back_as_they_were(ops: list[Op]) -> None:
    stored = json.loads(json.dumps(OpTable.holding(ops), default=lambda unknown: unknown.value))
    assert PLENTY.rows(Op, stored, "$.ops") == tuple(ops)


def test_repeated_values_are_stored_once() -> None:
    made = graph([op(number, number + 1, scope=["h0", "attn"]) for number in range(MANY)], [])
    table = json.loads(encode(made))["ops"]
    assert table["name"] == {"values": ["linalg.generic"], "at": [0] * MANY}
    assert table["scope"]["values"] == {"lengths": [2], "items": ["h0", "attn"]}
    assert table["line"] == list(range(1, MANY + 1))
    assert len(encode(made)) < 60 * MANY


def test_an_op_has_one_id_however_often_it_is_named() -> None:
    read = decode(encode(graph([op(1, 1), op(2, 2)], [site(0, 1, 2), site(1, 2, kernel="k1", path=[1])])))
    ids = {op.id: op.id for op in read.ops}
    named = [member.op for site in read.sites for member in site.members] + [
        op for site in read.sites for op in site.path
    ]
    assert all(ids[op] is op for op in named)


def example() -> dict[str, Any]:
    """The table of two sites with a member each."""
    made = graph([op(1, 1), op(2, 2)], [site(0, 1), site(1, 2, kernel="k1", path=[1])])
    return dict(json.loads(encode(made))["sites"])


def _set(*path: str | int) -> Callable[[dict[str, Any], object], None]:
    def change(table: dict[str, Any], value: object) -> None:
        *before, last = path
        at: Any = table
        for name in before:
            at = at[name]
        at[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("members",), [], r"Expected `object` - at `\$\.sites\.members`"),
        (("members", "items"), [], r"Expected `object` - at `\$\.sites\.members\.items`"),
        (("members", "lengths"), [1, 2], r"as many items as the lengths add up to - at `\$\.sites\.members`"),
        (("members", "lengths"), [1, -1], r"- at `\$\.sites\.members\.lengths\[1\]`"),
        (("members", "more"), [], r"`lengths` and one other field - at `\$\.sites\.members`"),
        (("members", "items", "op"), [1], r"columns of equal length - at `\$\.sites\.members\.items`"),
        (("members", "items", "op", 1), "op2", r"- at `\$\.sites\.members\.items\.op\[1\]`"),
        (("members", "items", "op", 1), 10**18, r"- at `\$\.sites\.members\.items\.op\[1\]`"),
        (("members", "items", "more"), [1, 2], r"unknown field `more` - at `\$\.sites\.members\.items`"),
        (
            ("members", "items", "evidence", "values"),
            ["seen"],
            r"- at `\$\.sites\.members\.items\.evidence\.values\[0\]`",
        ),
        (
            ("members", "items", "evidence", "at", 1),
            1,
            r"indices of values - at `\$\.sites\.members\.items\.evidence\.at`",
        ),
        (("members", "items", "evidence", "at", 1), -1, r"- at `\$\.sites\.members\.items\.evidence\.at\[1\]`"),
        (("ordinal", 0), 1.0, r"- at `\$\.sites\.ordinal\[0\]`"),
        (("ordinal", 0), True, r"- at `\$\.sites\.ordinal\[0\]`"),
        (("ordinal", 0), None, r"- at `\$\.sites\.ordinal\[0\]`"),
        (("ordinal",), {"values": [0], "at": [0, 0]}, r"- at `\$\.sites\.ordinal`"),
        (("command_buffer", 0), 2**63, r"- at `\$\.sites\.command_buffer\[0\]`"),
        (("initializer", 0), 0, r"- at `\$\.sites\.initializer\[0\]`"),
    ],
)
def test_damaged_tables_are_rejected_with_the_json_path(path: tuple[str | int, ...], value: object, said: str) -> None:
    table = example()
    assert PLENTY.rows(Site, table, "$.sites")
    _set(*path)(table, value)
    with pytest.raises(ValueError, match=said):
        PLENTY.rows(Site, table, "$.sites")


def test_columns_may_be_missing_where_a_record_has_a_default() -> None:
    table = example()["members"]["items"]
    del table["path"]
    assert [member.path for member in PLENTY.rows(Membership, table, "$")] == [(), ()]
    del table["op"]
    with pytest.raises(ValueError, match="missing required field `op` - at `\\$`"):
        PLENTY.rows(Membership, table, "$")


def test_repetition_of_stored_lists_is_bounded() -> None:
    made = encode(graph([op(number, 1, scope=["h0"] * 16) for number in range(MANY)], []))
    stored = json.loads(made)
    stored["ops"]["scope"]["values"] = {"lengths": [10**5], "items": ["h0"] * 10**5}
    with pytest.raises(ValueError, match=r"shorter lists for a map of this size - at `\$\.ops\.scope`"):
        decode(json.dumps(stored).encode())
