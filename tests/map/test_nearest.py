"""The nearest op that does work, for all ops at once, compared with a search for each."""

from __future__ import annotations

from collections.abc import Set

import pytest

from tests.builders import facts_of
from tests.support import SAMPLES, Corpus
from tracemap.ir.source_model import CONTROL_FLOW
from tracemap.map.build.model.dataflow import Dataflow, Node
from tracemap.map.build.model.model_facts import ModelFacts

pytestmark = pytest.mark.quick

BRANCHING = """\
func.func @main(%x: tensor<8x8xf32>, %n: tensor<i32>, %p: tensor<i1>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %a = stablehlo.tanh %x : tensor<8x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, tensor<8x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %w = "stablehlo.if"(%p) ({
      %s = stablehlo.sine %v : tensor<8x8xf32>
      stablehlo.return %s : tensor<8x8xf32>
    }, {
      %t = stablehlo.transpose %v, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
      stablehlo.return %t : tensor<8x8xf32>
    }) : (tensor<i1>) -> tensor<8x8xf32>
    stablehlo.return %j, %w : tensor<i32>, tensor<8x8xf32>
  }
  %b = func.call @f(%r#1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}
func.func private @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %r = stablehlo.reverse %x, dims = [0] : tensor<8x8xf32>
  %e = stablehlo.exponential %r : tensor<8x8xf32>
  return %e : tensor<8x8xf32>
}
"""
MODELS = {
    "branching": BRANCHING.encode(),
    **{n: p.read_bytes() for n, p in sorted(Corpus(SAMPLES).models().items())[:2]},
}


def found_alone(flow: Dataflow, facts: ModelFacts, start: int, wanted: Set[int], *, downwards: bool, past: bool) -> int:
    """The nearest wanted op of one, -1 where there is none, by looking at everything that is one step farther."""
    level: set[Node] = {start}
    seen: set[Node] = set()
    while level:
        seen |= level
        if downwards:
            level = {user for node in level for user in flow.unordered_users(node)} - seen
        else:
            level = {maker for node in level for maker in flow.unordered_makers(node)} - seen
        hits = [node for node in level if isinstance(node, int) and node in wanted]
        if hits:
            return min(hits)
        if not past:
            level -= {op.index for op in facts.ops if op.name in CONTROL_FLOW}
    return -1


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("downwards", [True, False])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_all_nearest_equals_nearest_of_each_node(model: bytes, downwards: bool, past: bool) -> None:
    facts = facts_of(model)
    flow = facts.dataflow
    for wanted in ({op.index for op in facts.ops[number::5]} for number in range(5)):
        found = flow.all_nearest(wanted, downwards=downwards, past_control=past)
        others = [op.index for op in facts.ops if op.index not in wanted]
        expected = {op: found_alone(flow, facts, op, wanted, downwards=downwards, past=past) for op in others}
        assert {op: found.get(op, -1) for op in others} == expected
