"""The invocations in the table `resolved`: their number, and counts of the invocations of given events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.connection import Tables
from tracemap.core.units import UNKNOWN, Integer
from tracemap.runs.statistics import FEWEST_VALUES, median_ranks

if TYPE_CHECKING:
    import numpy.typing as npt

_WIDEST = 16
"""Widest range of invocation numbers per event for which a bit string marks them."""

_KNOWN = """
SELECT min(invocation), max(invocation), count(*), count(*) FILTER (target >= 0 AND invocation IS NULL),
       min(target) FILTER (target >= 0)
FROM resolved
"""


class Invocations(msgspec.Struct, frozen=True):
    """The number of measured invocations, and the SQL aggregate that counts the invocations of some events.

    `count`, `first` and `last` (invocation numbers) are unknown if an event of a place has no invocation. `idle`: the
    number of invocations without any events, such as those of a loop without trips.
    """

    count: Integer
    distinct: str
    first: Integer = UNKNOWN
    last: Integer = UNKNOWN
    idle: int = 0

    @property
    def interval(self) -> tuple[float, ...]:
        """Fractions of all invocations at the bounds of the median's 95 % interval; empty for too few invocations."""
        if self.count is UNKNOWN or self.count < FEWEST_VALUES:
            return ()
        # In the middle of a rank, so that rounding cannot lead to the next one.
        return tuple((rank - 0.5) / self.count for rank in median_ranks(self.count))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, from 1, of the values that `spread` takes; the number of invocations must be known."""
        count = self.count
        assert count is not UNKNOWN
        return (
            -(-count // 10),
            -(-count // 2),
            -(-count * 9 // 10),
            count,
            *(median_ranks(count) if self.interval else ()),
        )


def spread(values: Iterable[int]) -> PerInvocation:
    """A distribution from the values at `Invocations.ranks`."""
    p10, median, p90, largest, *ends = values
    low, high = ends or (UNKNOWN, UNKNOWN)
    return PerInvocation(median=median, median_low=low, median_high=high, p10=p10, p90=p90, max=largest)


def invocations(tables: Tables, idle: int = 0) -> Invocations:
    """Count the invocations in the table `resolved`, and add `idle` ones without events."""
    ((first, last, events, events_without, target),) = tables.query(_KNOWN)
    if events_without or first is None:
        return Invocations(UNKNOWN, "0")
    # Counting bits is many times faster than counting distinct numbers.
    narrow = last - first < _WIDEST * (events + 1)
    bits = f"coalesce(bit_count(bitstring_agg(invocation, {first}, {last})), 0)"
    distinct = bits if narrow else "count(DISTINCT invocation)"
    # Most programs call each place in every invocation. Then the events of one place suffice, in a third of the time.
    of_one = "NULL" if target is None else f"SELECT {distinct} FROM resolved WHERE target = {target}"
    ((count,),) = tables.query(f"SELECT ({of_one})")
    if count != last - first + 1:
        ((count,),) = tables.query(f"SELECT {distinct} FROM resolved")
    return Invocations(int(count) + idle, distinct, int(first), int(last), idle)


PlaceOf = Callable[["npt.NDArray[Any]"], "npt.NDArray[Any]"]
_WIDEST_TABLE = 16
"""Widest range of invocation numbers per invocation for which a table maps numbers to positions."""


def place_of(tables: Tables, invocations: Invocations) -> PlaceOf:
    """A function from invocation numbers to positions among all invocations, idle ones last.

    The number of invocations must be known.
    """
    import numpy as np

    first, last, count = invocations.first, invocations.last, invocations.count
    assert first is not UNKNOWN
    assert last is not UNKNOWN
    assert count is not UNKNOWN
    if last - first + 1 == count - invocations.idle:  # nearly always: the numbers have no gaps
        return lambda column: np.asarray(column - first)
    query = "SELECT DISTINCT invocation FROM resolved WHERE invocation IS NOT NULL ORDER BY invocation"
    numbers = tables.columns(query)["invocation"]
    if last - first >= _WIDEST_TABLE * count:
        return lambda column: np.asarray(np.searchsorted(numbers, column))
    places = np.zeros(last - first + 1, dtype=np.int64)
    places[numbers - first] = np.arange(len(numbers))
    return lambda column: np.asarray(places[column - first])
