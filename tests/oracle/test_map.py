"""The map against the oracle on a few seeds; the oracle itself can fail."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest
from msgspec import structs

from tests.oracle.compare import Result, Score, TwinDiffers, all_differences, compare, map_of, truth_of
from tests.oracle.generate import generate
from tests.oracle.kernels import CompilerRejects, compile_plainly
from tests.oracle.program import Program
from tests.oracle.table import contradicted, misses, table
from tests.oracle.truth import Truth, find_truth
from tracemap.map.model import Evidence, Membership, Outcome, Reason, TraceGraph

pytestmark = pytest.mark.quick

SEEDS = (12, 17, 18, 25, 44, 48, 49)
"""Between them: both dialects, equal layers, calls, loops, branches, conversions, repeated and leaking softmaxes,
dynamic shapes, twins, what is computed at compile time."""

Measured = tuple[Program, Truth, TraceGraph]


@lru_cache(maxsize=len(SEEDS))
def measured(seed: int) -> Measured:
    program = generate(seed)
    return program, truth_of(seed, program), map_of(program)


def score(seed: int, graph: TraceGraph) -> Result:
    program, truth, _ = measured(seed)
    return compare(seed, program, truth, graph)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_the_map_is_as_right_as_is_promised(seed: int) -> None:
    result = score(seed, measured(seed)[2])
    assert misses(result) == [], "\n".join(all_differences(result))
    assert result.members["all"].right > 10
    assert result.counts["undecided"] <= result.members["all"].right // 50


@pytest.mark.long
def test_the_seeds_show_the_hard_things() -> None:
    features = frozenset().union(*(generate(seed).features for seed in SEEDS))
    assert features >= {"linalg", "stablehlo", "dynamic", "equal_layers", "calls", "loop", "branching", "converted"}
    total = Result()
    for seed in SEEDS:
        total.add(score(seed, measured(seed)[2]))
    assert total.counts["hard ops"] >= 0.2 * total.counts["ops"]
    assert total.members["beyond locations"].right > 0


def test_at_least_a_fifth_of_all_generated_ops_are_hard() -> None:
    computing = [op for seed in range(60) for op in generate(seed).ops if op.pattern is not None]
    assert sum(op.hard for op in computing) >= 0.2 * len(computing)


def test_programs_are_reproducible_and_numbers_unique() -> None:
    for seed in range(20):
        program = generate(seed, equal=False)
        assert program.text == generate(seed, equal=False).text
        constants = Counter(op.constant for op in program.ops if op.constant is not None and op.twin < 0)
        assert set(constants.values()) <= {1}


def test_a_twin_program_has_the_same_ops_on_the_same_lines() -> None:
    with_layers = [seed for seed in range(40) if "equal_layers" in generate(seed).features]
    assert with_layers
    for seed in with_layers:
        program, twin = generate(seed), generate(seed, equal=False)
        assert program.lines == twin.lines
        assert [op.name for op in program.ops] == [op.name for op in twin.ops]
        assert program.text != twin.text


# Written by hand, so that what the oracle reads off the kernels is known beforehand: two kernels (the product does not
# fuse with what its left operand is made of), the exponential in the second.
KNOWN = """func.func @main(%a: tensor<7x13xf32>, %w: tensor<13x17xf32>) -> tensor<7x17xf32> {
  %c = stablehlo.constant dense<0.5001220703125> : tensor<7x13xf32>
  %0 = stablehlo.multiply %a, %c : tensor<7x13xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
     : (tensor<7x13xf32>, tensor<13x17xf32>) -> tensor<7x17xf32>
  %2 = stablehlo.exponential %1 : tensor<7x17xf32>
  return %2 : tensor<7x17xf32>
}
"""


def test_kernels_are_read_as_what_they_compute() -> None:
    compiled = compile_plainly(KNOWN)
    first, second = (compiled.kernels[site.kernel] for site in compiled.sites)
    assert [(node.scalar, node.constants) for node in first.nodes] == [("arith.mulf", (0.5001220703125,))]
    assert [(node.scalar, node.reducing) for node in second.nodes] == [
        ("arith.mulf", False),
        ("arith.addf", True),
        ("math.exp", False),
    ]
    assert (second.nodes[1].loops.parallel, second.nodes[1].loops.reducing) == (7 * 17, 13)
    assert second.nodes[2].operands == (1,)
    assert second.stores == {(7, 17)}


def test_what_the_compiler_rejects_is_no_result() -> None:
    with pytest.raises(CompilerRejects):
        compile_plainly("func.func @f() { return %nothing }")


@pytest.mark.long
def test_the_truth_does_not_come_from_locations() -> None:
    """Locations that lie change nothing."""
    seed = SEEDS[0]
    program = generate(seed, equal=False)
    lies = "\n".join(
        f'{line} loc("lie.py":{place}:1)' if line.startswith("%v") and not line.endswith("{") else line
        for place, line in enumerate(program.text.splitlines())
    )
    plain, lying = (find_truth(program, compile_plainly(text)) for text in (program.text, lies))
    assert plain == lying


def with_members(graph: TraceGraph, site: int, members: tuple[Membership, ...]) -> TraceGraph:
    sites = list(graph.sites)
    sites[site] = structs.replace(sites[site], members=members)
    return structs.replace(graph, sites=tuple(sites))


def busiest(graph: TraceGraph) -> int:
    return max(range(len(graph.sites)), key=lambda place: len(graph.sites[place].members))


def all_members(seed: int, graph: TraceGraph) -> Score:
    return score(seed, graph).members["all"]


def test_a_dropped_member_costs_recall() -> None:
    seed = SEEDS[0]
    graph = measured(seed)[2]
    place = busiest(graph)
    spoiled = with_members(graph, place, graph.sites[place].members[:-1])
    before, after = all_members(seed, graph), all_members(seed, spoiled)
    assert after.missing == before.missing + 1
    assert after.recall < before.recall
    assert f"site{place}" in "\n".join(all_differences(score(seed, spoiled)))


def test_a_made_up_member_costs_precision_and_contradicts() -> None:
    seed = SEEDS[0]
    graph = measured(seed)[2]
    place = busiest(graph)
    members = graph.sites[place].members
    stranger = next(m for site in graph.sites for m in site.members if m.op not in {each.op for each in members})
    made_up = structs.replace(stranger, evidence=Evidence.LOCATED, root=False)
    spoiled = with_members(graph, place, (*members, made_up))
    result = score(seed, spoiled)
    assert result.members["all"].wrong == all_members(seed, graph).wrong + 1
    assert contradicted(result) == 1
    assert any("contradict" in miss for miss in misses(result))


def test_sites_that_changed_places_cost_both() -> None:
    seed = SEEDS[0]
    graph = measured(seed)[2]
    place = busiest(graph)
    other = 0 if place else 1
    swapped = with_members(graph, place, graph.sites[other].members)
    swapped = with_members(swapped, other, graph.sites[place].members)
    after = all_members(seed, swapped)
    assert after.wrong > 1
    assert after.missing > 1


def test_a_wrong_outcome_costs_precision_of_outcomes() -> None:
    seed = SEEDS[0]
    graph = measured(seed)[2]
    ops = list(graph.ops)
    place = next(place for place, op in enumerate(ops) if op.outcome is Outcome.DISPATCHED)
    ops[place] = structs.replace(ops[place], outcome=Outcome.FOLDED, reason=Reason("simplified", "spoiled"))
    after = score(seed, structs.replace(graph, ops=tuple(ops))).outcomes["all"]
    assert after.wrong == score(seed, graph).outcomes["all"].wrong + 1


@pytest.mark.long
def test_a_twin_that_was_cut_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(40) if "equal_layers" in generate(seed).features)
    other = next(seed for seed in range(40) if "equal_layers" not in generate(seed).features)
    program = generate(seed)
    monkeypatch.setattr("tests.oracle.compare.generate", lambda _seed, equal: generate(other, equal=equal))
    with pytest.raises(TwinDiffers):
        truth_of(seed, program)


def test_the_table_cuts_and_does_not_round() -> None:
    result = Result(members={"all": Score(right=99_999, wrong=1)}, outcomes={"all": Score(right=1)})
    assert "| 99,999 | 1 | 0 | 0.9999 (≥ 0.995) |" in table(result, "no seeds")
