"""The oracle of shares inside kernels: its programs and truths; it can fail."""

from __future__ import annotations

import functools

import pytest
from iree.compiler import ir

import tests.oracle.drawn_sums  # noqa: F401 - enters its classes
from tests.oracle.drawn import CLASSES, Asked, Case, draw
from tests.oracle.judging import RULES, Judged, Outcome, failures, table
from tests.oracle.read_patterns import SIZES, lines_of, patterns
from tests.oracle.sketch import Model, Sketch
from tests.oracle.truths import Range, ranges, text_hash

pytestmark = pytest.mark.quick


def cases() -> list[Case]:
    return [draw(kind, 3, number) for kind in CLASSES for number in (0, 1)]


@functools.cache
def context() -> ir.Context:
    return ir.Context()


def names_by_line(model: Model) -> dict[int, list[str]]:
    """The ops of a model by the line on which they begin; fails where the model is not valid."""
    operation = ir.Module.parse(model.text, context()).operation
    assert operation.verify()
    found: dict[int, list[str]] = {}
    waiting = [operation]
    while waiting:
        current = waiting.pop()
        location = str(current.location)
        if location.startswith('loc("-":'):
            found.setdefault(int(location.split(":")[1]), []).append(current.name)
        waiting += [
            each.operation for region in current.regions for block in region.blocks for each in block.operations
        ]
    return found


def test_there_are_twenty_classes_in_both_dialects() -> None:
    assert len(CLASSES) >= 20
    assert {case.dialect for case in cases()} == {"stablehlo", "linalg"}


@pytest.mark.parametrize("kind", CLASSES)
def test_models_are_valid_without_with_and_with_repeated_parts(kind: str) -> None:
    for number in (0, 1):
        case = draw(kind, 3, number)
        ops = names_by_line(case.model())
        for asked in case.asked:
            lines = [line for part in asked.parts for line in case.model().lines[part]]
            assert lines
            assert all(line in ops for line in lines)
            without = case.model(dict.fromkeys(asked.parts, 0))
            assert not any(without.lines.get(part) for part in asked.parts)
            names_by_line(without)
            if asked.copies:
                often = case.model(dict.fromkeys(asked.parts, 3))
                assert all(len(often.lines[part]) == 3 * len(case.model().lines[part]) for part in asked.parts)
                names_by_line(often)


def test_the_same_seed_draws_the_same_models() -> None:
    assert [text_hash(case.model()) for case in cases()] == [text_hash(case.model()) for case in cases()]
    assert len({draw("chain", seed, 0).name for seed in range(20)}) > 10


def times(kernel: float, base: float, parts: dict[str, tuple[float, float, float]]) -> dict[str, float]:
    """Times by the costs of each part: without it, alone, and one more time."""
    found = {"all": kernel, "none": base}
    for name, (without, alone, more) in parts.items():
        found |= {
            f"without {name}": kernel - without,
            f"alone {name}": base + alone,
            f"repeated {name}": kernel + 2 * more,
        }
    return found


def test_costs_that_add_up_are_the_truth() -> None:
    asked = Asked(("a",)), Asked(("b",))
    found = ranges(asked, times(100, 0, {"a": (70, 70, 70), "b": (30, 30, 30)}))
    assert (found["a"].low, found["a"].high) == pytest.approx((0.69, 0.71))
    assert found["b"].error(0.30) == 0
    assert found["b"].error(0.41) == pytest.approx(0.10)


def test_loading_counts_for_the_part_that_loads_in_part() -> None:
    asked = Asked(("a",), reads=True), Asked(("b",), stores=True)
    found = ranges(asked, times(100, 20, {"a": (40, 40, 40), "b": (40, 40, 40)}))
    assert (found["a"].low, found["a"].high) == pytest.approx((0.44, 0.56))


def test_a_part_that_hides_behind_another_has_no_sure_truth() -> None:
    found = ranges((Asked(("a",)), Asked(("b",))), times(100, 0, {"a": (40, 100, 100), "b": (0, 60, 40)}))
    assert not found["b"].sure
    assert Range(0.1, 0.3).sure


def judged(rule: str, error: float, *, holds: bool = False) -> Judged:
    within = error <= RULES[rule].error
    return Judged("chain", "a kernel", "0", "a", rule, rule, "", "", error, within, holds)


def test_what_is_promised_can_be_missed() -> None:
    good = [judged("default", 0.0)] * 19
    assert failures(Outcome([*good, judged("default", 0.16)], [], []), ["default"]) == []
    assert len(failures(Outcome([*good, judged("default", 0.31)], [], []), ["default"])) == 1
    assert failures(Outcome([*good, judged("default", 0.31, holds=True)], [], []), ["default"]) == []
    assert len(failures(Outcome([*good[:9], judged("default", 0.16)], [], []), ["default"])) == 1
    assert "| chain | 20 | 19 | 16 |" in table(Outcome([*good, judged("default", 0.16)], [], []), ["default"])


def test_lines_of_memory_are_counted_by_hand() -> None:
    assert lines_of((4, 16), "f32") == 4
    assert lines_of((4, 16), "i4") == 1
    assert lines_of((4, 64), "f32", slice(None, None, 2)) == 8
    assert lines_of((4, 64), "f32", slice(None), slice(None, None, 32)) == 8
    assert lines_of((2, 8), "f32") == 1


def test_patterns_are_valid_and_name_who_reads() -> None:
    assert len(patterns()) >= 24
    for pattern in patterns():
        sketch = Sketch("stablehlo")
        model = sketch.model(pattern.write(sketch, SIZES[0]))
        names_by_line(model)
        assert pattern.lines(SIZES[0]).keys() <= model.lines.keys()
