"""The invocations that the events of `resolved` belong to: how many there are, and how many have which events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracemap.attribution.model import PerInvocation
from tracemap.attribution.scan.connection import Tables
from tracemap.measurements.medians import FEWEST, median_ranks
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt

_WIDEST = 16
"""Numbers of invocations for each event, up to which these are marked in a string of bits."""

_KNOWN = """
SELECT min(invocation), max(invocation), count(*), count(*) FILTER (target >= 0 AND invocation IS NULL),
       min(target) FILTER (target >= 0)
FROM resolved
"""


@dataclass(frozen=True, slots=True)
class Invocations:
    """How many invocations were measured, and the aggregate that counts those of some events.

    `count` is unknown where an event of a place does not tell its invocation, and so are the numbers of the `first` and
    the `last` one. `idle`: how many of them have no events at all, as those of a loop without trips.
    """

    count: Integer
    distinct: str
    first: Integer = UNKNOWN
    last: Integer = UNKNOWN
    idle: int = 0

    @property
    def interval(self) -> tuple[float, ...]:
        """Fractions of all invocations at which the bounds of the median's 95 % interval lie; none with too few."""
        if self.count is UNKNOWN or self.count < FEWEST:
            return ()
        # In the middle of a rank, so that no rounding leads to the next one.
        return tuple((rank - 0.5) / self.count for rank in median_ranks(self.count))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, from 1, of what `spread` takes of the values of all invocations, whose number is known."""
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
    """The distribution of the values at `Invocations.ranks`."""
    p10, median, p90, largest, *ends = values
    low, high = ends or (UNKNOWN, UNKNOWN)
    return PerInvocation(median=median, median_low=low, median_high=high, p10=p10, p90=p90, max=largest)


def invocations(tables: Tables, idle: int = 0) -> Invocations:
    """Look at the table `resolved`; `idle`: so many more are known to have no events."""
    ((first, last, events, untold, target),) = tables.query(_KNOWN)
    if untold or first is None:
        return Invocations(UNKNOWN, "0")
    # One bit for each invocation is counted many times faster than a set of numbers.
    narrow = last - first < _WIDEST * (events + 1)
    bits = f"coalesce(bit_count(bitstring_agg(invocation, {first}, {last})), 0)"
    distinct = bits if narrow else "count(DISTINCT invocation)"
    # Most programs call each place in every invocation: the events of one tell then, in a third of the time.
    of_one = "NULL" if target is None else f"SELECT {distinct} FROM resolved WHERE target = {target}"
    ((count,),) = tables.query(f"SELECT ({of_one})")
    if count != last - first + 1:
        ((count,),) = tables.query(f"SELECT {distinct} FROM resolved")
    return Invocations(int(count) + idle, distinct, int(first), int(last), idle)


PlaceOf = Callable[["npt.NDArray[Any]"], "npt.NDArray[Any]"]
_WIDEST_TABLE = 16
"""Numbers for each invocation, up to which their places are in a table."""


def place_of(tables: Tables, of_all: Invocations) -> PlaceOf:
    """What gives the place of invocations, whose number is known, among all of them, by their numbers; idle ones are
    behind all others.
    """
    import numpy as np

    first, last, count = of_all.first, of_all.last, of_all.count
    assert first is not UNKNOWN
    assert last is not UNKNOWN
    assert count is not UNKNOWN
    if last - first + 1 == count - of_all.idle:  # as nearly always: the numbers have no gaps
        return lambda invocations: np.asarray(invocations - first)
    query = "SELECT DISTINCT invocation FROM resolved WHERE invocation IS NOT NULL ORDER BY invocation"
    numbers = tables.columns(query)["invocation"]
    if last - first >= _WIDEST_TABLE * count:
        return lambda invocations: np.asarray(np.searchsorted(numbers, invocations))
    places = np.zeros(last - first + 1, dtype=np.int64)
    places[numbers - first] = np.arange(len(numbers))
    return lambda invocations: np.asarray(places[invocations - first])
