"""The search for causes, against sets that are known, and the difference of command lines."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tracemap.compare.bisection import FlagDifference, find_causes, flag_differences, flags_with


@pytest.mark.quick
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("count", [2, 3, 8, 14, 18])
def test_every_set_is_found_within_the_bound(count: int, size: int) -> None:
    for causes in itertools.combinations(range(count), size):
        tested: list[frozenset[int]] = []

        def is_bad(
            chosen: frozenset[int], causes: tuple[int, ...] = causes, tested: list[frozenset[int]] = tested
        ) -> bool:
            tested.append(chosen)
            return set(causes) <= chosen

        assert find_causes(count, is_bad) == (causes,)
        assert len(tested) == len(set(tested))
        assert len(tested) + 2 <= 4 * math.log2(count) + 4  # with the two builds to compare


@pytest.mark.quick
def test_causes_that_act_alone_are_sets_of_their_own() -> None:
    chance = random.Random(7)
    for _ in range(300):
        count = chance.randint(2, 18)
        first, second = sorted(chance.sample(range(count), 2))
        either = frozenset({first, second})
        found = find_causes(count, lambda chosen: not either.isdisjoint(chosen))  # noqa: B023 - called here only
        assert sorted(found) == [(first,), (second,)]


@pytest.mark.quick
def test_sets_of_any_predicate_that_grows_are_minimal() -> None:
    chance = random.Random(11)
    for _ in range(300):
        count = chance.randint(1, 12)
        bad_sets = [frozenset(chance.sample(range(count), chance.randint(1, min(3, count)))) for _ in range(3)]

        def is_bad(chosen: frozenset[int], bad_sets: list[frozenset[int]] = bad_sets) -> bool:
            return any(each <= chosen for each in bad_sets)

        found = find_causes(count, is_bad)
        assert found
        for causes in found:
            assert is_bad(frozenset(causes))
            assert not any(is_bad(frozenset(causes) - {cause}) for cause in causes)
        rest = frozenset(range(count)) - {cause for causes in found for cause in causes}
        assert not is_bad(rest)


@pytest.mark.quick
def test_flags_that_differ() -> None:
    before = ["--iree-opt-level=O2", "--target", "local", "--iree-x", "--repeated=a", "--repeated=b"]
    after = ["--target", "other", "--iree-opt-level=O3", "--repeated=a", "--repeated=c", "--iree-y"]
    found = flag_differences(before, after)
    assert [each.name for each in found] == ["target", "iree-opt-level", "repeated", "iree-y", "iree-x"]
    assert found[0] == FlagDifference("target", ("--target", "local"), ("--target", "other"))
    assert [str(each) for each in found[1:]] == [
        "--iree-opt-level=O3 (before: --iree-opt-level=O2)",
        "--repeated=a --repeated=c (before: --repeated=a --repeated=b)",
        "--iree-y",
        "without --iree-x",
    ]
    assert flag_differences(before, before) == ()
    assert flags_with(before, ()) == tuple(before)
    assert flag_differences(flags_with(before, found), after) == ()
    assert flag_differences(flags_with(before, found[:2]), after) == found[2:]
