"""Which of several differences cause a change: flags of two builds, the search for smallest sets, and the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Flags = Mapping[str, tuple[str, ...]]
"""Command-line words by the name of their flag, in order."""


@dataclass(frozen=True, slots=True)
class FlagDifference:
    """A flag that two builds do not share: its words before and after; empty: the flag is absent."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    def __str__(self) -> str:
        if not self.before:
            return " ".join(self.after)
        if not self.after:
            return f"without {' '.join(self.before)}"
        return f"{' '.join(self.after)} (before: {' '.join(self.before)})"


def flags_by_name(words: Sequence[str]) -> Flags:
    """Group words of a command line by flag. A word without a dash is the value of the flag before it."""
    groups: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
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


# ---- result


@dataclass(frozen=True, slots=True)
class Value:
    """The cost of a build: bytes, or its time relative to the good build; a range for times."""

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether it has no error."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Build:
    """A build with some of the differences: its bundle, its cost, and whether it counts as bad.

    `certain`: whether all of its range is on one side of the limit.
    """

    differences: tuple[FlagDifference, ...]
    bundle: Path
    value: Value
    is_bad: bool
    certain: bool


@dataclass(frozen=True)
class Bisection:
    """The result: the differences, and the sets of them that are bad on their own; empty if the bad build is not worse.

    `causes`: a build for each set, with its differences only. `builds`: those measured between the two.
    """

    good: Path
    metric: str
    good_value: Value
    bad_value: Value
    differences: tuple[FlagDifference, ...]
    causes: tuple[Build, ...] = ()
    builds: tuple[Build, ...] = ()
