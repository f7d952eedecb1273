"""The map against marked programs, one of each family; the marks can fail."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest
from msgspec import structs

from tests.oracle.compare import Result, all_differences
from tests.oracle.kernels import CompilerRejects
from tests.oracle.marked import MarkedProgram, compare_marks, kernel_texts, map_of, measure_marked, number_sign
from tests.oracle.mixed import marked, text_of
from tests.oracle.table import misses
from tracemap.map.model import Outcome, Reason, TraceGraph

pytestmark = pytest.mark.quick

SEEDS = (7001, 7003, 7005, 7007, 7009, 7011)
"""One of each family."""


@lru_cache(maxsize=1)
def measured() -> tuple[MarkedProgram, dict[str, str], TraceGraph]:
    program = marked(SEEDS[0])
    return program, dict(kernel_texts(program)), map_of(program)


def score(graph: TraceGraph) -> Result:
    program, texts, _ = measured()
    return compare_marks(SEEDS[0], program, texts, graph)


def test_the_seeds_are_of_every_family() -> None:
    assert {marked(seed).family for seed in SEEDS} == {
        "stablehlo",
        "stablehlo tiled",
        "torch",
        "onnx",
        "dynamic, entries, globals",
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_the_map_of_a_marked_program_is_right(seed: int) -> None:
    result = measure_marked(seed, marked(seed))
    assert misses(result) == [], "\n".join(all_differences(result))
    assert result.members["all"].right > 5
    assert result.counts["undecided"] <= result.counts["ops"] // 5


def test_programs_are_reproducible() -> None:
    assert [text_of(seed) for seed in range(20)] == [text_of(seed) for seed in range(20)]


def test_a_number_is_found_whole_and_alone() -> None:
    sign = re.compile(number_sign(1007))
    assert sign.search("arith.constant 1.007000e+03 : f32")
    assert sign.search("arith.constant 1007 : i32")
    assert not sign.search("tensor<21007x3xf32> 11007 31007.0")


def test_what_the_compiler_rejects_is_no_result() -> None:
    with pytest.raises(CompilerRejects):
        kernel_texts(MarkedProgram("none", "func.func @f() { return %nothing }", ()))


def test_a_missing_member_is_noticed() -> None:
    _, _, graph = measured()
    before = score(graph)
    sites = [structs.replace(site, members=()) if place == 0 else site for place, site in enumerate(graph.sites)]
    after = score(structs.replace(graph, sites=tuple(sites)))
    assert after.members["all"].missing > before.members["all"].missing
    assert after.counts["without owner"] == before.counts["without owner"] + 1
    assert any("without an owner" in miss for miss in misses(after))


def test_a_strange_member_is_noticed() -> None:
    _, _, graph = measured()
    one, two = graph.sites[0], graph.sites[1]
    stranger = structs.replace(one.members[0], root=False)
    sites = (one, structs.replace(two, members=(*two.members, stranger)), *graph.sites[2:])
    assert score(structs.replace(graph, sites=sites)).members["all"].wrong > 0


def test_a_wrong_outcome_is_noticed() -> None:
    _, _, graph = measured()
    ops = [
        structs.replace(op, outcome=Outcome.HOST, reason=Reason("host-work", "spoiled"))
        if op.outcome is Outcome.DISPATCHED
        else op
        for op in graph.ops
    ]
    assert score(structs.replace(graph, ops=tuple(ops))).outcomes["host"].wrong > 0
