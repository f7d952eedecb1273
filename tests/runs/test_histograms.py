"""Histograms: every value is in one bin, and bins suit the values."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracemap.reports.stats_page import BASE, WIDTH, plot
from tracemap.runs.statistics import MOST_BINS, Histogram, histogram

pytestmark = pytest.mark.quick

REALS = st.floats(width=32, allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**24)
DURATIONS = st.floats(2**-10, 2**20, width=32)


def counted(values: list[float] | list[int]) -> Histogram:
    return histogram(np.array(values, dtype=np.float32))


def single(values: list[float]) -> npt.NDArray[np.float64]:
    """In single precision, as measured values are."""
    return np.array(values, dtype=np.float32).astype(np.float64)


@given(st.one_of(*(st.lists(values, min_size=1, max_size=80) for values in (REALS, COUNTS, DURATIONS))))
def test_each_value_is_in_the_bin_whose_edges_hold_it(values: list[float]) -> None:
    found = counted(values)
    assert len(found.counts) == len(found.edges) - 1 <= MOST_BINS
    assert found.total == len(values)
    rest = single(values)
    rest = rest[rest != 0] if found.zeros else rest
    assert len(rest) == len(values) - found.zeros
    for place, count in enumerate(found.counts):
        low, high = found.edges[place : place + 2]
        last = place == len(found.counts) - 1
        assert count == ((rest >= low) & ((rest <= high) if last else (rest < high))).sum()


@given(st.one_of(*(st.lists(values, min_size=1, max_size=80) for values in (REALS, COUNTS, DURATIONS))))
def test_the_picture_keeps_within_its_frame(values: list[float]) -> None:
    found = counted(values)
    numbers = single(values)
    shown = plot(found, float(numbers.mean()), [math.nan, *numbers.tolist()], str)
    assert sum(bar.count for bar in shown.bars) == len(values)
    assert all(0 <= bar.x <= bar.x + bar.width <= WIDTH and 0 < bar.y <= BASE for bar in shown.bars)
    assert all((bar.height > 0) == (bar.count > 0) for bar in shown.bars)
    assert all(0 <= x <= WIDTH for x in (*shown.mean, *shown.quantiles, *(tick.x for tick in shown.ticks)))
    assert shown.ticks


def test_few_whole_numbers_have_a_bin_each() -> None:
    found = counted([0, 0, 3, 1, 1, 1])
    assert (found.edges, found.counts) == ((0, 1, 2, 3, 4), (2, 3, 0, 1))
    assert [bar.span for bar in plot(found, 1, (), str).bars] == ["0.0", "1.0", "2.0", "3.0"]
    assert not found.logarithmic


def test_durations_over_decades_have_bins_equal_in_the_logarithm() -> None:
    found = counted([0.1, 1, 10, 100.5])
    assert found.logarithmic
    ratios = [high / low for low, high in zip(found.edges, found.edges[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * MOST_BINS)
    places = {tick.text: tick.x for tick in plot(found, 1, (), str).ticks}
    assert list(places) == ["1.0", "10.0", "100.0"]  # 0.1 in single precision is a little more
    assert places["10.0"] - places["1.0"] == pytest.approx(places["100.0"] - places["10.0"], abs=0.2)


def test_zeros_of_a_logarithmic_axis_have_a_bar_of_their_own() -> None:
    found = counted([0, 0, 0, 1, 50, 4000])
    assert (found.logarithmic, found.whole, found.zeros) == (True, True, 3)
    assert all(edge == round(edge) for edge in found.edges)
    first, second, *_ = plot(found, 675.2, (), str).bars
    assert (first.count, first.span, first.share) == (3, "0", "50.0 %")
    assert first.x + first.width < second.x


def test_durations_within_a_decade_have_equal_bins() -> None:
    found = counted([2.5, 3.25, 9.5])
    assert not found.logarithmic
    assert np.diff(found.edges) == pytest.approx([7 / MOST_BINS] * MOST_BINS)


def test_a_constant_is_one_bar() -> None:
    for value in (0, 5, 2.5, -7.25):
        assert [bar.count for bar in plot(counted([value] * 9), value, (value,), str).bars] == [9]
