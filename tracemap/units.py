"""Quantities: the value `UNKNOWN`, exact splitting of integers, and the only place that formats numbers for people.

Everything measured is an integer in the unit that its name carries (`duration_ns`, `bytes`). What is not known is the
value `UNKNOWN`, never `None` and never 0.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final


class Unknown(enum.Enum):
    """The type of `UNKNOWN`. An enum with one member, so that type checkers narrow `value is UNKNOWN`."""

    UNKNOWN = None  # its JSON form

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN

ASSUMED_SIZE: Final = 128
"""What is taken for a dimension that is not known before (rows of a batch, tokens of a prompt) where works compare."""

INTEGER_LIMIT: Final = 2**63 - 1
"""The largest integer that is stored: SQL's BIGINT holds no larger one."""

if TYPE_CHECKING:
    Integer = int | Unknown
    Text = str | Unknown
else:
    # At run time each is one type of its own: the codec takes no unions with a type that JSON does not have.

    class _OrUnknown(type):
        """The type of a type whose instances are those of `known`, and `UNKNOWN`."""

        def __instancecheck__(cls, value: object) -> bool:
            return value is UNKNOWN or isinstance(value, cls.known)

    class Integer(metaclass=_OrUnknown):
        """An integer that may be unknown. Those that are stored count something or name a place: none is negative."""

        known = int

        @classmethod
        def from_json(cls, value: object) -> int | Unknown:
            """The inverse of the codec's encoding; ValueError for what is no such integer."""
            if value is None:
                return UNKNOWN
            if type(value) is not int or not 0 <= value <= INTEGER_LIMIT:
                raise ValueError(f"Expected `int` from 0 to {INTEGER_LIMIT}, or `null`")
            return value

        @classmethod
        def json_schema(cls) -> dict[str, object]:
            """What `from_json` takes."""
            return {"type": ["integer", "null"], "minimum": 0, "maximum": INTEGER_LIMIT}

    class Text(metaclass=_OrUnknown):
        """A text that may be unknown."""

        known = str

        @classmethod
        def from_json(cls, value: object) -> str | Unknown:
            """The inverse of the codec's encoding; ValueError for what is no text."""
            if value is not None and type(value) is not str:
                raise ValueError("Expected `str` or `null`")
            return UNKNOWN if value is None else value

        @classmethod
        def json_schema(cls) -> dict[str, object]:
            """What `from_json` takes."""
            return {"type": ["string", "null"]}


def sum_of(values: Iterable[Integer]) -> Integer:
    """The sum of values; unknown as soon as one of them is."""
    total = 0
    for value in values:
        if value is UNKNOWN:
            return UNKNOWN
        total += value
    return total


def split_by_largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`, in integers that add up to `total` exactly.

    Every part gets the floor of its exact share; what is left goes, one each, to the largest remainders, ties to the
    earlier part (Hamilton's method). Weights that are all zero count as equal. `total` may be negative.

    Raises:
        ValueError: there are no weights, or one is negative.

    >>> split_by_largest_remainder(10, [1, 1, 1])
    [4, 3, 3]
    """
    if not weights or min(weights) < 0:
        raise ValueError(f"cannot split {total} over the weights {list(weights)}")
    if len(weights) == 1:
        return [total]
    weight_sum = sum(weights)
    if weight_sum == 0:
        weights = [1] * len(weights)
        weight_sum = len(weights)
    shares = [total * weight // weight_sum for weight in weights]
    left_over = total - sum(shares)
    if left_over:
        rests = [total * weight % weight_sum for weight in weights]
        for index in sorted(range(len(rests)), key=rests.__getitem__, reverse=True)[:left_over]:
            shares[index] += 1
    return shares


def rounded(numerator: int, denominator: int) -> int:
    """The nearest integer to a fraction, the even one of two, as `round` has it; the denominator is positive.

    Many are made of what each op has: fractions would be reduced to lowest terms each time.

    >>> rounded(5, 2), rounded(-7, 4)
    (2, -2)
    """
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest + (below & 1) > denominator)


_NUMBERED: Final = re.compile("([^0-9]*)0*([0-9]*)")


def in_parts(text: str) -> list[tuple[str, int, str]]:
    """By what texts are ordered whose numbers go by their value: what stands before each, its length and its digits.

    >>> sorted(["a.py:10", "a.py:9", "3.13.0", "3.9.1", "a.py"], key=in_parts)
    ['3.9.1', '3.13.0', 'a.py', 'a.py:9', 'a.py:10']
    """
    return [(before, len(digits), digits) for before, digits in _NUMBERED.findall(text)]


NS_OF_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds in the units of time that tables of tools have, as they write them."""
_TIME_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNT_STEPS = ((10**12, "T"), (10**9, "G"), (10**6, "M"))


def _scaled(value: float, steps: Sequence[tuple[int, str]], base: str) -> str:
    size, name = 1, base
    for larger, larger_name in reversed(steps):
        if round(abs(value) / size) < larger // size:  # what is rounded up to 1000 of a unit is 1 of the next
            break
        size, name = larger, larger_name
    return f"{_unscaled(value) if size == 1 else _three_digits(value / size)} {name}".rstrip()


def _unscaled(value: float) -> str:
    """What is not whole has three digits, as many of them behind the point as there can be; none is written as 0."""
    if isinstance(value, int):
        return f"{value}"
    if abs(value) < 0.0005:
        return "<0.001" if value > 0 else ">-0.001"
    if abs(value) < 0.9995:
        return f"{value:.3f}"
    return _three_digits(value) if abs(value) < 999.5 else f"{value:,.0f}"


def _three_digits(value: float) -> str:
    places = next(places for places in (2, 1, 0) if not places or round(abs(value), places) < 10 ** (3 - places))
    return f"{value:.{places}f}"


def format_ns(value: Integer) -> str:
    """Nanoseconds for people: `1234` is `1.23 µs`."""
    return "unknown" if isinstance(value, Unknown) else _scaled(value, _TIME_STEPS, "ns")


def format_bytes(value: Integer) -> str:
    """Bytes for people, in binary units: `2048` is `2.00 KiB`."""
    return "unknown" if isinstance(value, Unknown) else _scaled(value, _BYTE_STEPS, "B")


def format_count(value: Integer) -> str:
    """Counts for people: whole below a million (with thin grouping), then `1.23 M`."""
    if isinstance(value, Unknown):
        return "unknown"
    return f"{value:,}" if abs(value) < 10**6 else _scaled(value, _COUNT_STEPS, "")


def format_average(value: float) -> str:
    """A mean of counts for people: three digits below a thousand, then as a count."""
    return f"{value:.3g}" if abs(value) < 999.5 else format_count(round(value))


def format_quantity(value: Integer, unit: str) -> str:
    """A value in the given unit (`ns`, `bytes`, anything else is a count) for people."""
    return {"ns": format_ns, "bytes": format_bytes}.get(unit, format_count)(value)


def format_mean(total: int, count: int, unit: str) -> str:
    """A mean for people: in three digits, or as a quantity where it is whole.

    The page's script writes means by the same rules (`assets/shared/amounts.js`).

    >>> format_mean(4_009_734_919, 338, "ns")
    '11.9 ms'
    >>> format_mean(1, 338, "count")
    '0.003'
    """
    if total % count == 0:
        return format_quantity(total // count, unit)
    steps, base = {"ns": (_TIME_STEPS, "ns"), "bytes": (_BYTE_STEPS, "B")}.get(unit, (_COUNT_STEPS, ""))
    return _scaled(total / count, steps, base)


def format_share(part: int, whole: int) -> str:
    """`part` of `whole` in percent, one decimal: `12.5 %`. A part of nothing is `–`; what is not 0 is not written so.

    The page's script writes shares by the same rules (`assets/shared/amounts.js`).
    """
    if whole == 0:
        return "–"
    return f"{_SHARE.text(100 * part / whole) if part else '0.0'} %"


_STEPS = {"ns": (*_TIME_STEPS, (1, "ns")), "bytes": (*_BYTE_STEPS, (1, "B"))}
_MOST_IN_UNIT = 10**5
_WHOLE_COUNTS = 10**8
"""Columns of smaller counts show all their digits."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How all numbers of a column are written, so that they compare at a glance: one unit, as many digits each.

    `unit` is its name for people, empty for plain counts.
    """

    size: int
    unit: str
    digits: int

    @classmethod
    def of(cls, values: Iterable[float], unit: str, beside: float = 0) -> Scale:
        """The scale of a column in the given unit (as of `format_quantity`, or `%`).

        The largest value has at least three digits, the smallest that is not 0 has two, up to three behind the point.
        `beside` is the largest value of the column that this one is compared with: it decides the unit, where the
        largest value here has three digits in that, and not more than five before the point.

        >>> Scale.of([108333, 16], "ns")
        Scale(size=1000, unit='µs', digits=3)
        >>> [Scale.of([108333], "ns", beside).unit for beside in (900, 999_999, 1_000_000, 10**9)]
        ['µs', 'µs', 'ms', 'µs']
        >>> Scale.of([12_345_678, 16_000], "ns", 999_999)
        Scale(size=1000, unit='µs', digits=0)
        """
        sizes = sorted(abs(value) for value in values if value)
        least, own = (sizes[0], sizes[-1]) if sizes else (0, 0)
        if unit == "%":
            return cls(1, unit, 1)
        steps = _STEPS.get(unit, (*_COUNT_STEPS, (1, "")) if own >= _WHOLE_COUNTS else ((1, ""),))
        size, name = _step(steps, beside or own)
        if own and not 0.1 <= own / size < _MOST_IN_UNIT:
            size, name = _step(steps, own)
        if size == 1 and all(value == int(value) for value in sizes):
            return cls(size, name, 0)
        wanted = max(_places(own / size, 3), _places(least / size, 2))
        return cls(size, name, min(wanted, 3 if own / size < 1000 else 1))

    def text(self, value: float) -> str:
        """A value of the column; one that is not 0 is never written as 0."""
        if not value:
            return "0"
        least = 10**-self.digits
        small = abs(value) / self.size < least / 2
        return (
            f"{'<' if value > 0 else '>-'}{least:.{self.digits}f}" if small else f"{value / self.size:,.{self.digits}f}"
        )


def _step(steps: Sequence[tuple[int, str]], value: float) -> tuple[int, str]:
    return next(((size, name) for size, name in steps if value >= size), steps[-1])


def _places(value: float, significant: int) -> int:
    """How many digits behind the point show so many significant ones."""
    return max(0, significant - 1 - math.floor(math.log10(value))) if value else 0


_SHARE: Final = Scale(1, "%", 1)


def plural(count: int, word: str, words: str = "") -> str:
    """`1 site`, `2 sites`; `words` where adding an s will not do."""
    return f"{format_count(count)} {word if count == 1 else words or word + 's'}"


MOST_LISTED: Final = 5
"""Names in a sentence that lists some of many."""


def listed(names: Sequence[str], joined: str = ", ", most: int = MOST_LISTED) -> str:
    """Names in a sentence; of many the first few, and how many others there are.

    >>> listed(["site1", "site2"]), listed([f"site{number}" for number in range(1, 42)])
    ('site1, site2', 'site1, site2, site3, site4, site5 and 36 others')
    """
    if len(names) <= most:
        return joined.join(names)
    return f"{joined.join(names[:most])} and {plural(len(names) - most, 'other')}"
