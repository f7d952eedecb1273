"""Edits between two versions of a model: all of them make the second one, none the first, and any set a valid model."""

from __future__ import annotations

import random

import pytest

from tests.oracle.edits import edited
from tracemap.compare.matching import match_flows
from tracemap.ir.model_edits import ModelEdits
from tracemap.map.build.model.dataflow import FlowBuilder


def pairs_of(before: bytes, after: bytes) -> dict[int, tuple[int, bool]]:
    flows = FlowBuilder()
    matches = match_flows(flows.of(before), flows.of(after))
    return {match.after.number: (match.before.number, match.edited) for match in matches}


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two models have the same ops with the same operands, by the matching of whole models."""
    flows = FlowBuilder()
    sides = flows.of(one), flows.of(other)
    matches = match_flows(*sides)
    computing = [node for node in sides[0] if not node.is_argument and node.reads and not node.passes_on]
    matched = {match.before for match in matches}
    return (
        len(sides[0]) == len(sides[1])
        and not any(match.edited for match in matches)
        and matched >= {node.op for node in computing}
    )


@pytest.mark.quick
@pytest.mark.parametrize("seed", [0, 1, 2, 6, 19, 24, 29, 43])
def test_mixtures_of_generated_edits(seed: int) -> None:
    """The seeds have changed shapes, signatures, inlined functions, reordered and renamed ops, and new constants."""
    program, chance = edited(seed), random.Random(seed)
    before, after = program.before.encode(), program.after.encode()
    edits = ModelEdits(before, after, pairs_of(before, after))
    numbers = range(len(edits.edits))
    assert numbers
    assert is_same(edits.model_with(numbers).content, after)
    assert is_same(edits.model_with(()).content, before)
    for _ in range(5):
        mixed = edits.model_with([number for number in numbers if chance.random() < 0.5])
        flow = FlowBuilder().of(mixed.content)
        places = [(origin.is_after, origin.place) for origin in mixed.origins]
        assert len(set(places)) == len(places)
        assert all(node.is_argument or node.op for node in flow)


@pytest.mark.quick
def test_pairs_that_cross_are_not_mixed_into_a_cycle() -> None:
    """The first op before is paired with the second after, and the other way round; each reads the one before it."""
    body = "\n".join(
        ("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{", "{}", "{}", "return %b : tensor<4xf32>", "}}")
    )
    tanh, sine = (f"%{{}} = stablehlo.{op} %{{}} : tensor<4xf32>" for op in ("tanh", "sine"))
    before = body.format(tanh.format("a", "x"), sine.format("b", "a")).encode()
    after = body.format(sine.format("a", "x"), tanh.format("b", "a")).encode()
    edits = ModelEdits(before, after, {2: (3, False), 3: (2, False)})
    for chosen in ([], [0], list(range(len(edits.edits)))):
        edits.model_with(chosen)
    assert is_same(edits.model_with(range(len(edits.edits))).content, after)
