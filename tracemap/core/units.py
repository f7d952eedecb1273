"""Quantities: the value `UNKNOWN`, exact splitting of integers, and formatting of numbers for people.

All measured values are integers in the unit that their name carries (`duration_ns`, `bytes`). An unknown value is
`UNKNOWN`, never `None` and never 0. No other module formats numbers.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TYPE_CHECKING, Final


class Unknown(enum.Enum):
    """Type of `UNKNOWN`: an enum with a single value, so that type checkers narrow `value is UNKNOWN`."""

    UNKNOWN = None  # its JSON form

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN

ASSUMED_SIZE: Final = 128
"""Assumed size of a dynamic dimension (batch rows, prompt tokens) when the work of ops is compared."""

MAX_INTEGER: Final = 2**63 - 1
"""Largest integer that is stored: the maximum of SQL's BIGINT."""

if TYPE_CHECKING:
    Integer = int | Unknown
    Text = str | Unknown
else:
    # At run time, both are classes of their own, since the codec accepts no union with a type that JSON lacks.

    class _OrUnknown(type):
        """Metaclass of types whose instances are `UNKNOWN` and the instances of `known`."""

        def __instancecheck__(cls, value: object) -> bool:
            return value is UNKNOWN or isinstance(value, cls.known)

    class Integer(metaclass=_OrUnknown):
        """An integer that may be unknown. Stored integers are counts or indices, so none is negative."""

        known = int

        @classmethod
        def from_json(cls, value: object) -> int | Unknown:
            """Inverse of the codec's encoding; raises ValueError for any other value."""
            if value is None:
                return UNKNOWN
            if type(value) is not int or not 0 <= value <= MAX_INTEGER:
                raise ValueError(f"Expected `int` from 0 to {MAX_INTEGER}, or `null`")
            return value

        @classmethod
        def json_schema(cls) -> dict[str, object]:
            """JSON schema of the values that `from_json` accepts."""
            return {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_INTEGER}

    class Text(metaclass=_OrUnknown):
        """A text that may be unknown."""

        known = str

        @classmethod
        def from_json(cls, value: object) -> str | Unknown:
            """Inverse of the codec's encoding; raises ValueError for any other value."""
            if value is not None and type(value) is not str:
                raise ValueError("Expected `str` or `null`")
            return UNKNOWN if value is None else value

        @classmethod
        def json_schema(cls) -> dict[str, object]:
            """JSON schema of the values that `from_json` accepts."""
            return {"type": ["string", "null"]}


def sum_of(values: Iterable[Integer]) -> Integer:
    """Sum of values; UNKNOWN if any of them is."""
    total = 0
    for value in values:
        if value is UNKNOWN:
            return UNKNOWN
        total += value
    return total


def split_by_largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`, into integers that add up to `total` exactly (Hamilton's method).

    Every part gets the floor of its exact share. The rest goes, in units of 1, to the parts with the largest
    remainders; ties go to the earlier part. If all weights are zero, they count as equal. `total` may be negative.

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


def rounded_ratio(numerator: int, denominator: int) -> int:
    """Round a fraction to the nearest integer, half to even, like `round`; the denominator must be positive.

    Faster than `Fraction`, which reduces to lowest terms every time.

    >>> rounded_ratio(5, 2), rounded_ratio(-7, 4)
    (2, -2)
    """
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest + (below & 1) > denominator)


_NUMBERED: Final = re.compile("([^0-9]*)0*([0-9]*)")


def natural_sort_key(text: str) -> list[tuple[str, int, str]]:
    """Sort key that orders the numbers in texts by value: for every number, its prefix, its length and its digits.

    >>> sorted(["a.py:10", "a.py:9", "3.13.0", "3.9.1", "a.py"], key=natural_sort_key)
    ['3.9.1', '3.13.0', 'a.py', 'a.py:9', 'a.py:10']
    """
    return [(before, len(digits), digits) for before, digits in _NUMBERED.findall(text)]


NS_OF_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds per unit of time, by the unit names in other tools' tables."""
_TIME_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNT_STEPS = ((10**12, "T"), (10**9, "G"), (10**6, "M"))


def _scaled(value: float, steps: Sequence[tuple[int, str]], base: str) -> str:
    size, name = 1, base
    for larger, larger_name in reversed(steps):
        if round(abs(value) / size) < larger // size:  # a value that rounds to 1000 of a unit is 1 of the next unit
            break
        size, name = larger, larger_name
    return f"{_unscaled(value) if size == 1 else _three_digits(value / size)} {name}".rstrip()


def _unscaled(value: float) -> str:
    """Integers in full, other values with three digits, at most three of them decimals; small values are not 0."""
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
    """Counts for people: all digits below a million (grouped by commas), then `1.23 M`."""
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
    """A mean for people: three digits, or a quantity if the mean is an integer.

    The page's script follows the same rules (`assets/shared/amounts.js`).

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
    """`part` of `whole` in percent with one decimal: `12.5 %`. If `whole` is 0, `–`; a nonzero share is never `0.0 %`.

    The page's script follows the same rules (`assets/shared/amounts.js`).
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
    """Number format of a column: one unit and one number of decimals, so that values compare at a glance.

    `unit` is the unit's name for people, "" for plain counts.
    """

    size: int
    unit: str
    digits: int

    @classmethod
    def of(cls, values: Iterable[float], unit: str, compared: float = 0) -> Scale:
        """Choose the scale of a column in a unit of `format_quantity`, or `%`.

        The largest value gets at least three digits and the smallest nonzero one at least two, with at most three
        decimals. `compared` is the largest value of a second column, which readers compare with this one. It decides
        the unit, if the largest value of this column then has three digits and at most five before the point.

        >>> Scale.of([108333, 16], "ns")
        Scale(size=1000, unit='µs', digits=3)
        >>> [Scale.of([108333], "ns", compared).unit for compared in (900, 999_999, 1_000_000, 10**9)]
        ['µs', 'µs', 'ms', 'µs']
        >>> Scale.of([12_345_678, 16_000], "ns", 999_999)
        Scale(size=1000, unit='µs', digits=0)
        """
        sizes = sorted(abs(value) for value in values if value)
        least, own = (sizes[0], sizes[-1]) if sizes else (0, 0)
        if unit == "%":
            return cls(1, unit, 1)
        steps = _STEPS.get(unit, (*_COUNT_STEPS, (1, "")) if own >= _WHOLE_COUNTS else ((1, ""),))
        size, name = _step(steps, compared or own)
        if own and not 0.1 <= own / size < _MOST_IN_UNIT:
            size, name = _step(steps, own)
        if size == 1 and all(value == int(value) for value in sizes):
            return cls(size, name, 0)
        wanted = max(_places(own / size, 3), _places(least / size, 2))
        return cls(size, name, min(wanted, 3 if own / size < 1000 else 1))

    def text(self, value: float) -> str:
        """Format a value of the column; a nonzero value is never written as 0."""
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
    """Number of decimals that show this many significant digits."""
    return max(0, significant - 1 - math.floor(math.log10(value))) if value else 0


_SHARE: Final = Scale(1, "%", 1)


def plural(count: int, word: str, words: str = "") -> str:
    """`1 op`, `2 dispatches`; `words` is an irregular plural."""
    return f"{format_count(count)} {word if count == 1 else words or plural_of(word)}"


def plural_of(word: str) -> str:
    """`ops`, `dispatches`, `passes`."""
    return f"{word}es" if word.endswith(("ch", "s")) else f"{word}s"


MOST_LISTED: Final = 5
"""Maximum number of names in a sentence."""


def join_names(names: Sequence[str], joined: str = ", ", most: int = MOST_LISTED) -> str:
    """Join names for a sentence: the first few, and the number of others.

    >>> join_names(["site1", "site2"]), join_names([f"site{number}" for number in range(1, 42)])
    ('site1, site2', 'site1, site2, site3, site4, site5 and 36 others')
    """
    if len(names) <= most:
        return joined.join(names)
    return f"{joined.join(names[:most])} and {plural(len(names) - most, 'other')}"


_MOST_COMPARED: Final = 200
"""Most characters of a mistyped name that are compared."""
_ALIKE: Final = 0.6
"""Least similarity of names that a message suggests, from 0 to 1 (`difflib`)."""


def matching_names(what: str, names: Iterable[str]) -> list[str]:
    """The names that a text stands for, in their order: equal to it, else beginning with it, else matching its glob.

    >>> matching_names("conv_1", ["conv_1_f32", "conv_10_f32", "pool_2"]), matching_names("*_2", ["conv_1", "pool_2"])
    (['conv_1_f32'], ['pool_2'])
    """
    distinct = list(dict.fromkeys(names))
    beginning = [name for name in distinct if what and name.startswith(what)]
    whole_words = [name for name in beginning if not name[len(what) : len(what) + 1].isalnum()]
    glob = [name for name in distinct if fnmatchcase(name, what)] if any(sign in what for sign in "*?[") else []
    return [name for name in distinct if name == what] or whole_words or beginning or glob


def suggest_names(what: str, names: Iterable[str], most: int = 3) -> str:
    """A question with the names most like a mistyped one, to end a message with; "" if none is like it.

    >>> suggest_names("steps", ["step", "cell"]), suggest_names("steps", ["cell"])
    ('; did you mean step?', '')
    """
    plain = what[:_MOST_COMPARED].casefold()
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(b=plain)
    near: list[tuple[float, str]] = []
    for name in dict.fromkeys(name for name in names if name):
        other = name[:_MOST_COMPARED].casefold()
        matcher.set_seq1(other)
        contains = len(plain) > 2 and plain in other
        if contains or (matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE):
            ratio = max(matcher.ratio(), _ALIKE if contains else 0)
            near += [(-ratio, name)] if ratio >= _ALIKE else []
    nearest = [name for _, name in sorted(near, key=itemgetter(0))][:most]  # of equal ones, the first
    return f"; did you mean {' or '.join(filter(None, (', '.join(nearest[:-1]), nearest[-1])))}?" if nearest else ""
