"""Exact splitting and the formatting of numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracemap.core.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_mean,
    format_ns,
    format_quantity,
    format_share,
    plural,
    split_by_largest_remainder,
)

pytestmark = pytest.mark.quick

WEIGHTS = st.lists(st.integers(min_value=0, max_value=10**18), min_size=1, max_size=40)
TOTALS = st.integers(min_value=-(10**18), max_value=10**18)


@given(TOTALS, WEIGHTS)
def test_parts_add_up_exactly(total: int, weights: list[int]) -> None:
    assert sum(split_by_largest_remainder(total, weights)) == total


@given(TOTALS, WEIGHTS)
def test_each_part_is_less_than_one_from_its_exact_share(total: int, weights: list[int]) -> None:
    exact = weights if sum(weights) else [1] * len(weights)
    for part, weight in zip(split_by_largest_remainder(total, weights), exact, strict=True):
        # |part - total * weight / sum| < 1, without leaving the integers
        assert abs(part * sum(exact) - total * weight) < sum(exact)


@given(TOTALS, WEIGHTS)
def test_same_question_same_answer(total: int, weights: list[int]) -> None:
    assert split_by_largest_remainder(total, weights) == split_by_largest_remainder(total, list(weights))


@given(st.integers(min_value=0, max_value=10**18), WEIGHTS)
def test_heavier_gets_no_less(total: int, weights: list[int]) -> None:
    parts = split_by_largest_remainder(total, weights)
    ranked = sorted(zip(weights, parts, strict=True))
    for (lighter, less), (heavier, more) in itertools.pairwise(ranked):
        assert lighter == heavier or less <= more


@given(st.integers(min_value=0, max_value=10**18), WEIGHTS)
def test_no_weight_no_part_unless_nothing_weighs(total: int, weights: list[int]) -> None:
    if sum(weights):
        parts = split_by_largest_remainder(total, weights)
        assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if weight == 0)


def test_ties_go_to_the_earlier_part() -> None:
    assert split_by_largest_remainder(10, [1, 1, 1]) == [4, 3, 3]
    assert split_by_largest_remainder(11, [1, 1, 1]) == [4, 4, 3]


def test_all_zero_weights_are_equal() -> None:
    assert split_by_largest_remainder(5, [0, 0]) == [3, 2]


@pytest.mark.parametrize("weights", [[], [1, -1]])
def test_senseless_weights_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot split 5"):
        split_by_largest_remainder(5, weights)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (1_234, "1.23 µs"),
        (12_345, "12.3 µs"),
        (123_456, "123 µs"),
        (9_999, "10.0 µs"),
        (99_960, "100 µs"),
        (999_999, "1.00 ms"),
        (999_999_999, "1.00 s"),
        (4_020_000, "4.02 ms"),
        (2_500_000_000, "2.50 s"),
        (-1_234, "-1.23 µs"),
    ],
)
def test_times_for_people(value: int, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512 B"), (2048, "2.00 KiB"), ((1 << 20) - 1, "1.00 MiB"), (5 << 30, "5.00 GiB")]
)
def test_bytes_for_people(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (12_345, "12,345"), (1_230_000, "1.23 M"), (999_999_999, "1.00 G")]
)
def test_counts_for_people(value: int, text: str) -> None:
    assert format_count(value) == text


def test_unit_decides_the_format() -> None:
    assert [format_quantity(2048, unit) for unit in ("ns", "bytes", "count")] == ["2.05 µs", "2.00 KiB", "2,048"]


def test_share_of_nothing_is_a_dash() -> None:
    assert format_share(0, 0) == "–"
    assert format_share(1, 8) == "12.5 %"
    assert [format_share(part, 10_000) for part in (0, 4, 5, -4)] == ["0.0 %", "<0.1 %", "0.1 %", ">-0.1 %"]


def test_unknown_is_shown_as_unknown() -> None:
    assert [form(UNKNOWN) for form in (format_ns, format_bytes, format_count)] == ["unknown"] * 3


def test_plurals() -> None:
    assert [plural(1, "site"), plural(0, "site"), plural(2, "entry", "entries")] == ["1 site", "0 sites", "2 entries"]


@pytest.mark.parametrize(
    ("total", "count", "unit", "text"),
    [
        (4_009_734_919, 338, "ns", "11.9 ms"),
        (676, 338, "ns", "2 ns"),
        (1000, 3, "ns", "333 ns"),
        (9996, 10, "ns", "1.00 µs"),
        (100, 3, "bytes", "33.3 B"),
        (1, 3, "count", "0.333"),
        (1, 338, "count", "0.003"),
        (1, 100_000, "count", "<0.001"),
        (-1, 100_000, "count", ">-0.001"),
        (12345678, 1000, "count", "12,346"),
        (12345678, 5, "count", "2.47 M"),
        (5, 2, "samples", "2.50"),
    ],
)
def test_means_have_three_digits_and_are_never_nothing(total: int, count: int, unit: str, text: str) -> None:
    assert format_mean(total, count, unit) == text
