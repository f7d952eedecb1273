"""Which of several differences cause a change: differences of two builds, the search for smallest sets, the result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap.core.codec import Count, Document, Record
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import OpId

# ---- differences

_NUMBER: Final = re.compile(r"-[\d.]")
Flags = Mapping[str, tuple[str, ...]]
"""Command-line words by the name of their flag, in order."""


@dataclass(frozen=True, slots=True)
class FlagDifference:
    """A flag that two builds do not share: its words before and after; empty: the flag is absent."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    kind: Final = "flag"

    def __str__(self) -> str:
        if not self.before:
            return " ".join(self.after)
        if not self.after:
            return f"without {' '.join(self.before)}"
        return f"{' '.join(self.after)} (before: {' '.join(self.before)})"


@dataclass(frozen=True, slots=True)
class ReleaseDifference:
    """The releases of IREE that two builds were made with."""

    before: str
    after: str
    kind: Final = "release"

    def __str__(self) -> str:
        return f"IREE {self.after} (before: {self.before})"


@dataclass(frozen=True, slots=True)
class EditDifference:
    """An edit of the model: its number among the edits, its ops in the second model, and a text."""

    number: int
    ops: tuple[OpId, ...]
    text: str
    kind: Final = "edit"

    def __str__(self) -> str:
        return self.text


Difference = FlagDifference | ReleaseDifference | EditDifference


def flags_by_name(words: Sequence[str]) -> Flags:
    """Group words of a command line by flag. A number or a word without a dash is the value of the flag before it.

    >>> flags_by_name(["--size", "-1", "--level=2", "--size", "3"])
    {'size': ('--size', '-1', '--size', '3'), 'level': ('--level=2',)}
    """
    groups: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name = word.partition("=")[0].lstrip("-")
        groups[name] = (*groups.get(name, ()), word)
    return groups


def flag_differences(before: Sequence[str], after: Sequence[str]) -> tuple[FlagDifference, ...]:
    """The flags that differ, in the order of `after`, then those that only `before` has."""
    old, new = flags_by_name(before), flags_by_name(after)
    names = [*new, *(name for name in old if name not in new)]
    found = (FlagDifference(name, old.get(name, ()), new.get(name, ())) for name in names)
    return tuple(each for each in found if each.before != each.after)


def flags_with(before: Sequence[str], chosen: Sequence[FlagDifference]) -> tuple[str, ...]:
    """The flags of `before` with the chosen differences."""
    groups = {**flags_by_name(before), **{each.name: each.after for each in chosen}}
    return tuple(word for words in groups.values() for word in words)


def find_causes(count: int, is_bad: Callable[[frozenset[int]], bool]) -> tuple[tuple[int, ...], ...]:
    """Smallest sets of differences that are bad on their own, disjoint, in the order in which they were found.

    Each set is found by binary search: the end of the shortest bad prefix is a cause, which stays, and the search goes
    on before it until the causes alone are bad. A set of k causes takes k (log2 n + 1) tests. If the rest without them
    is still bad, it has another set. Each set is minimal if adding differences never turns bad into good.

    Args:
        count: number of differences; all of them together are known to be bad, none of them to be good.
        is_bad: whether the differences with these indexes are bad; called at most once per set.
    """
    known = {frozenset(): False, frozenset(range(count)): True}

    def test(chosen: frozenset[int]) -> bool:
        if chosen not in known:
            known[chosen] = is_bad(chosen)
        return known[chosen]

    found: list[tuple[int, ...]] = []
    rest = list(range(count))
    while test(frozenset(rest)):
        causes = _smallest_bad(rest, test)
        found.append(tuple(sorted(causes)))
        rest = [index for index in rest if index not in causes]
    return tuple(found)


def _smallest_bad(candidates: Sequence[int], test: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """A smallest bad set of candidates, which are bad together."""
    causes: frozenset[int] = frozenset()
    prefix = list(candidates)
    while not test(causes):
        good, bad = 0, len(prefix)
        while bad - good > 1:
            middle = (good + bad) // 2
            if test(causes | frozenset(prefix[:middle])):
                bad = middle
            else:
                good = middle
        causes |= {prefix[bad - 1]}
        prefix = prefix[: bad - 1]
    return causes


def first_bad(count: int, is_bad: Callable[[int], bool]) -> int:
    """The first bad one of an ordered series whose last is bad, by binary search; takes log2 n tests.

    If more than one turn from good to bad, one of them is found.
    """
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if is_bad(middle):
            high = middle
        else:
            low = middle + 1
    return low


# ---- result


Metric = Literal["time", "compile_time", "module_bytes", "live_bytes_at_peak", "outputs", "crash"]
RATIOS: Final = frozenset({"time", "compile_time"})
"""Metrics whose values are relative to the good build."""


class Value(Record, frozen=True):
    """The cost of a build, with its 95 % interval.

    `value`: bytes; 1 for a failure or other outputs, else 0; or a time relative to the good build.
    """

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether it has no error."""
        return self.low == self.high


class Change(Record, frozen=True):
    """A difference between two builds; `text`: a flag, a release of IREE, or the lines and ops of an edit."""

    kind: Literal["flag", "release", "edit"]
    text: str


class HitOp(Record, frozen=True):
    """An op that a cause makes worse; `python`: the file and line of the user's own Python, "" if unknown."""

    op: Annotated[Text, Meta(description="Id in the second model; null: it lacks the op.")]
    name: str
    line: Annotated[Integer, Meta(description="Line of the second model.")]
    python: str = ""
    change: Annotated[
        Integer, Meta(description="Nanoseconds of an invocation or of the compiler, or bytes, by the metric.")
    ] = UNKNOWN


class Cause(Record, frozen=True):
    """Differences that make a build bad, and do not if one of them is missing.

    `bundle`: a build with these differences only; `certain`: whether its whole interval is beyond the limit; `ops`:
    those that get worse, the worst first, edited ops first; `diff`: the command that shows what changes; `reproduce`:
    the command that builds it.
    """

    differences: tuple[Change, ...]
    bundle: Text
    value: Value
    certain: bool
    ops: tuple[HitOp, ...]
    diff: tuple[str, ...]
    reproduce: tuple[str, ...]
    message: Annotated[str, Meta(description="The compiler's error, for crashes.")] = ""


class Bisection(Document, frozen=True, kw_only=True):
    """The differences of two builds that make the second one worse; no causes: it is not worse.

    `good`, `bad`: the paths of both. `op`: the op whose time was compared; null: the whole program. `good_value`,
    `bad_value`: of builds with none and with all of the differences. `builds`: number of builds, with these two.
    `failed`: how many of them could not be compiled, and count as good, except for crashes.
    """

    schema_version: Literal[1] = 1
    kind: Literal["bisect"] = "bisect"
    good: str
    bad: str
    metric: Metric
    op: Text
    good_value: Value
    bad_value: Value
    differences: tuple[Change, ...]
    causes: tuple[Cause, ...]
    builds: Count
    failed: Count
