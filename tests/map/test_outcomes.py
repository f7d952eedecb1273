"""Outcomes: one per op, with a reason; small programs for each, golden counts for every sample.

`pytest tests/map/test_outcomes.py --update-gold` writes the golden files anew.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.builders import built_graph, facts_of
from tests.conftest import Built
from tests.support import ROOT, SAMPLES, Corpus
from tracemap.core.units import UNKNOWN
from tracemap.map.build.outcomes import INFERRED, REASONS
from tracemap.map.bundle import load
from tracemap.map.model import Op, Outcome, TraceGraph

GOLD = Path(__file__).parent.parent / "gold" / "outcomes"
MODELS = sorted(Corpus(SAMPLES).models())


def counts(bundle: Path) -> dict[str, int]:
    """`outcome reason name` -> how many ops."""
    found = Counter(f"{op.outcome} {op.reason.slug} {op.name}" for op in load(bundle).graph.ops)
    return dict(sorted(found.items()))


@pytest.mark.few(2)
@pytest.mark.parametrize("model", MODELS)
def test_every_op_of_every_sample_has_its_known_outcome(
    model: str, built: Built, request: pytest.FixtureRequest
) -> None:
    found = counts(built(model))
    gold = GOLD / f"{model}.json"
    if request.config.getoption("--update-gold"):
        gold.parent.mkdir(parents=True, exist_ok=True)
        gold.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(gold.read_text(encoding="utf-8"))
    assert not [key for key in found if key.startswith("unknown")]


def at_line(graph: TraceGraph, line: int) -> Op:
    return next(op for op in graph.ops if op.line == line)


PROGRAM = """\
func.func @main(%x: tensor<8x16xf32>, %i: tensor<i32>) -> (tensor<8x16xf32>, tensor<16x8xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<8x16xf32>
  %d = stablehlo.add %c, %c : tensor<8x16xf32>
  %a = stablehlo.multiply %x, %d : tensor<8x16xf32>
  %dead = stablehlo.sine %a : tensor<8x16xf32>
  %e = stablehlo.exponential %a : tensor<8x16xf32>
  %again = stablehlo.exponential %a : tensor<8x16xf32>
  %s = stablehlo.add %e, %again : tensor<8x16xf32>
  %r = stablehlo.reshape %s : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %t = call @helper(%s) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %t, %r : tensor<8x16xf32>, tensor<16x8xf32>
}
func.func private @helper(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = stablehlo.tanh %x : tensor<8x16xf32>
  return %h : tensor<8x16xf32>
}
func.func private @nobody(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %n = stablehlo.tanh %x : tensor<8x16xf32>
  return %n : tensor<8x16xf32>
}
"""


def test_each_kind_of_outcome_and_its_reason(tmp_path: Path) -> None:
    graph = built_graph(PROGRAM, tmp_path)
    found = {op.line: (op.outcome, op.reason.slug) for op in graph.ops}
    assert found == {
        1: (Outcome.STRUCTURAL, "is-structure"),
        2: (Outcome.CONSTANT, "is-constant"),
        3: (Outcome.CONSTANT, "computed-at-compile-time"),
        4: (Outcome.DISPATCHED, "in-sites"),
        5: (Outcome.REMOVED, "dead"),
        6: (Outcome.DISPATCHED, "in-sites"),
        7: (Outcome.REMOVED, "twin"),
        8: (Outcome.DISPATCHED, "in-sites"),
        9: (Outcome.FOLDED, "folded-indexing"),
        10: (Outcome.HOST, "call"),
        11: (Outcome.STRUCTURAL, "is-structure"),
        13: (Outcome.STRUCTURAL, "is-structure"),
        14: (Outcome.DISPATCHED, "in-sites"),
        15: (Outcome.STRUCTURAL, "is-structure"),
        17: (Outcome.STRUCTURAL, "is-structure"),
        18: (Outcome.REMOVED, "dead-function"),
        19: (Outcome.STRUCTURAL, "is-structure"),
    }
    assert at_line(graph, 7).reason.text == "removed: same as 6:8"
    assert at_line(graph, 9).reason.text.startswith("folded into the indexing or layout of the stablehlo.")


OWN_KERNEL = """\
flow.executable private @ex {
  flow.executable.export public @entry workgroups(%w: index) -> (index, index, index) {
    %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice(%w)
    flow.return %x, %y, %z : index, index, index
  }
  builtin.module {
    func.func @entry(%in: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128xf32>>, %out: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128xf32>>) {
      %t = iree_tensor_ext.dispatch.tensor.load %in, offsets = [0], sizes = [128], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128xf32>> -> tensor<128xf32>
      %e = tensor.empty() : tensor<128xf32>
      %x = linalg.map { math.tanh } ins(%t : tensor<128xf32>) outs(%e : tensor<128xf32>)
      iree_tensor_ext.dispatch.tensor.store %x, %out, offsets = [0], sizes = [128], strides = [1] : tensor<128xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128xf32>>
      return
    }
  }
}
func.func @main(%a: tensor<128xf32>) -> tensor<128xf32> {
  %c128 = arith.constant 128 : index
  %0 = flow.dispatch @ex::@entry[%c128](%a) : (tensor<128xf32>) -> tensor<128xf32>
  %x = stablehlo.exponential %0 : tensor<128xf32>
  %1 = flow.dispatch @ex::@entry[%c128](%x) : (tensor<128xf32>) -> tensor<128xf32>
  return %1 : tensor<128xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_calls_of_the_models_own_kernel_belong_to_the_calling_ops(tmp_path: Path) -> None:
    graph = built_graph(OWN_KERNEL, tmp_path)
    assert at_line(graph, 1).outcome == Outcome.STRUCTURAL
    calls = [at_line(graph, line).id for line in (18, 19, 20)]
    assert [[member.op for member in site.members] for site in graph.sites] == [[call] for call in calls]
    assert [site.members[0].operations is UNKNOWN for site in graph.sites] == [True, False, True]
    assert not graph.diagnostics


BRANCHES = """\
func.func @main(%x: tensor<8xf32>, %n: i1) -> tensor<8xf32> {
  cf.cond_br %n, ^bb1, ^bb2(%x : tensor<8xf32>)
^bb1:
  %e = stablehlo.exponential %x : tensor<8xf32>
  cf.br ^bb2(%e : tensor<8xf32>)
^bb2(%r: tensor<8xf32>):
  return %r : tensor<8xf32>
}
"""


def test_branches_between_blocks_decide_what_runs(tmp_path: Path) -> None:
    graph = built_graph(BRANCHES, tmp_path)
    assert [at_line(graph, line).reason.slug for line in (2, 5)] == ["control-flow", "control-flow"]


COMPOSITES = """\
func.func private @impl(%x: tensor<64x8xf32>) -> (tensor<64x8xf32>, tensor<64x8xf32>) {
  %m = stablehlo.tanh %x : tensor<64x8xf32>
  %n = stablehlo.cosine %x : tensor<64x8xf32>
  return %m, %n : tensor<64x8xf32>, tensor<64x8xf32>
}
func.func @main(%x: tensor<64x8xf32>) -> tensor<64x8xf32> {
  %g:2 = stablehlo.composite "my.act" %x {decomposition = @impl} : (tensor<64x8xf32>) -> (tensor<64x8xf32>, tensor<64x8xf32>)
  return %g#0 : tensor<64x8xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_composites_call_their_functions(tmp_path: Path) -> None:
    graph = built_graph(COMPOSITES, tmp_path)
    assert [at_line(graph, line).reason.slug for line in (2, 3, 7)] == ["in-sites", "dead", "call"]
    (site,) = graph.sites
    assert site.path == (at_line(graph, 7).id,)


GLOBALS = """\
util.global private @given = dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
util.global private mutable @stored = dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %g = util.global.load @given : tensor<4xf32>
  %e = stablehlo.exponential %g : tensor<4xf32>
  %s = util.global.load @stored : tensor<4xf32>
  %c = stablehlo.cosine %s : tensor<4xf32>
  %0 = stablehlo.add %a, %e : tensor<4xf32>
  %1 = stablehlo.multiply %a, %c : tensor<4xf32>
  util.global.store %1, @stored : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""


def test_users_of_a_constant_global_are_computed_at_compile_time(tmp_path: Path) -> None:
    graph = built_graph(GLOBALS, tmp_path)
    assert (at_line(graph, 5).outcome, at_line(graph, 5).reason.slug) == (Outcome.CONSTANT, "computed-at-compile-time")
    assert at_line(graph, 7).outcome == Outcome.DISPATCHED
    texts = sorted((tmp_path / "m.tracemap" / "kernels").glob("main*.mlir"))
    kernels = " ".join(path.read_text(encoding="utf-8") for path in texts)
    assert "math.exp" not in kernels
    assert "math.cos" in kernels


SOFTMAX = """\
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %ninf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %ninf) applies stablehlo.maximum across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %s = stablehlo.subtract %x, %mb : tensor<8x64xf32>
  %e = stablehlo.exponential %s : tensor<8x64xf32>
  %z = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %zb = stablehlo.broadcast_in_dim %z, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %r = stablehlo.divide %e, %zb : tensor<8x64xf32>
  return %r : tensor<8x64xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_a_raised_softmax_has_its_parts_and_costs_stay_whole(tmp_path: Path) -> None:
    graph = built_graph(SOFTMAX, tmp_path)
    (site,) = graph.sites
    evidence = {graph.op_by_id[member.op].line: member.evidence.value for member in site.members}
    assert evidence == {10: "located", 4: "fused", 6: "fused", 7: "fused", 8: "fused"}
    assert sum(member.operations for member in site.members if isinstance(member.operations, int)) == 8 * 64 * 17
    traffic = {graph.op_by_id[member.op].line: member.bytes for member in site.members}
    assert traffic == {10: 8 * 64 * 4, 4: 8 * 64 * 2, 6: 8 * 64 * 2, 7: 0, 8: 0}  # two read what is brought in
    assert {at_line(graph, line).outcome for line in (4, 6, 7, 8, 10)} == {Outcome.DISPATCHED}
    assert {at_line(graph, line).outcome for line in (5, 9)} == {Outcome.FOLDED}


def test_duplicates_across_calls_are_found(built: Built) -> None:
    """JAX's layer norm takes the mean twice: in the model, and in the variance that it calls."""
    ops = load(built("jax_gpt2_4l")).graph.ops
    twins = [op for op in ops if op.reason.slug == "twin" and op.name == "stablehlo.subtract"]
    assert len(twins) == 9
    assert {op.reason.text for op in twins} == {"removed: same as 561:10"}


MOVED_TWICE = """\
func.func @main() -> (tensor<64x64xf32>, tensor<8x64xf32>) {
  %i = stablehlo.iota dim = 0 : tensor<64x64xf32>
  %d = stablehlo.dot %i, %i : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = stablehlo.reshape %d : (tensor<64x64xf32>) -> tensor<4096xf32>
  %q = stablehlo.slice %r [0:512] : (tensor<4096xf32>) -> tensor<512xf32>
  %w = stablehlo.reshape %q : (tensor<512xf32>) -> tensor<8x64xf32>
  return %d, %w : tensor<64x64xf32>, tensor<8x64xf32>
}
"""


def test_moves_of_kernel_results_are_not_computed_at_compile_time(tmp_path: Path) -> None:
    graph = built_graph(MOVED_TWICE, tmp_path, "--iree-opt-const-expr-hoisting=false")
    assert at_line(graph, 3).outcome is Outcome.DISPATCHED
    assert [at_line(graph, line).outcome for line in (4, 5, 6)] == [Outcome.FOLDED, Outcome.TRANSFER, Outcome.FOLDED]


def nested_calls(depth: int) -> str:
    """A function that computes something twice, behind so many calls within one another."""
    body = "  %a = math.tanh %x : f32\n  %b = math.tanh %x : f32\n  %r = arith.addf %a, %b : f32\n"
    calls = [f"  %r = call @f{number + 1}(%x) : (f32) -> f32\n" for number in range(depth)]
    heads = ["func.func @f0", *(f"func.func private @f{number}" for number in range(1, depth + 1))]
    pairs = zip(heads, [*calls, body], strict=True)
    return "".join(f"{head}(%x: f32) -> f32 {{\n{inside}  return %r : f32\n}}\n" for head, inside in pairs)


@pytest.mark.parametrize(("depth", "twins"), [(100, 1), (500, 0)])
def test_calls_may_be_nested_deeper_than_twins_are_looked_for(depth: int, twins: int) -> None:
    assert len(facts_of(nested_calls(depth).encode()).duplicates) == twins


def test_reasons_are_sentences_and_inferred_reasons_exist() -> None:
    assert set(REASONS) >= INFERRED
    assert all(text and not text.endswith(".") for text in REASONS.values())


BACKWARDS = """\
func.func @main(%x: tensor<12x64xf32>) -> tensor<1x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<1x64xf32>
  %c12 = stablehlo.constant dense<12> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %w:2 = stablehlo.while(%k = %c0, %a = %zero) : tensor<i32>, tensor<1x64xf32>
   cond {
    %more = stablehlo.compare LT, %k, %c12 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %left = stablehlo.subtract %c12, %k : tensor<i32>
    %place = stablehlo.subtract %left, %c1 : tensor<i32>
    %row = stablehlo.dynamic_slice %x, %place, %c0, sizes = [1, 64]
      : (tensor<12x64xf32>, tensor<i32>, tensor<i32>) -> tensor<1x64xf32>
    %sum = stablehlo.add %a, %row : tensor<1x64xf32>
    %next = stablehlo.add %k, %c1 : tensor<i32>
    stablehlo.return %next, %sum : tensor<i32>, tensor<1x64xf32>
  }
  return %w#1 : tensor<1x64xf32>
}
"""


def test_index_computation_on_the_host_is_host_work(tmp_path: Path) -> None:
    """IREE makes one subtraction of the two, on the host, at the place of the second."""
    graph = built_graph(BACKWARDS, tmp_path)
    assert at_line(graph, 12).outcome == Outcome.HOST
    assert at_line(graph, 13).outcome == Outcome.DISPATCHED


BEFORE_A_RESHAPE = """\
func.func @main(%x: tensor<1x64x8x8xf32>, %w: tensor<64x8xf32>) -> (tensor<1x64x8x8xf32>, tensor<64x8xf32>) {
  %zero = arith.constant 0.0 : f32
  %like = tensor.empty() : tensor<1x64x8x8xf32>
  %positive = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x : tensor<1x64x8x8xf32>) outs(%like : tensor<1x64x8x8xf32>) {
  ^bb0(%element: f32, %unused: f32):
    %most = arith.maximumf %element, %zero : f32
    linalg.yield %most : f32
  } -> tensor<1x64x8x8xf32>
  %flat = tensor.collapse_shape %positive [[0, 1], [2, 3]] : tensor<1x64x8x8xf32> into tensor<64x64xf32>
  %into = tensor.empty() : tensor<64x64xf32>
  %turned = linalg.transpose ins(%flat : tensor<64x64xf32>) outs(%into : tensor<64x64xf32>) permutation = [1, 0]
  %sums = tensor.empty() : tensor<64x8xf32>
  %none = linalg.fill ins(%zero : f32) outs(%sums : tensor<64x8xf32>) -> tensor<64x8xf32>
  %product = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>, affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%turned, %w : tensor<64x64xf32>, tensor<64x8xf32>) outs(%none : tensor<64x8xf32>) {
  ^bb0(%left: f32, %right: f32, %sum: f32):
    %part = arith.mulf %left, %right : f32
    %more = arith.addf %sum, %part : f32
    linalg.yield %more : f32
  } -> tensor<64x8xf32>
  return %positive, %product : tensor<1x64x8x8xf32>, tensor<64x8xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_a_transpose_that_is_moved_in_front_of_a_reshape_keeps_its_kernel(tmp_path: Path) -> None:
    """The kernel is located at what is transposed, which has one of its own."""
    graph = built_graph(BEFORE_A_RESHAPE, tmp_path)
    positive, turned, product = (at_line(graph, line).id for line in (4, 11, 14))
    assert [[member.op for member in site.members] for site in graph.sites] == [[positive], [turned], [product]]
    assert "_transpose_" in graph.sites[1].kernel


UNTIL = """\
func.func @main(%kv: tensor<64x128xf32>, %n: tensor<i32>, %row: tensor<1x128xf32>) -> tensor<64x128xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c8 = stablehlo.constant dense<8> : tensor<i32>
  %e = stablehlo.exponential %kv : tensor<64x128xf32>
  %r:2 = stablehlo.while(%i = %c0, %v = %e) : tensor<i32>, tensor<64x128xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.add %i, %c1 : tensor<i32>
    %t = stablehlo.tanh %row : tensor<1x128xf32>
    %w = stablehlo.dynamic_update_slice %v, %t, %i, %c0 : (tensor<64x128xf32>, tensor<1x128xf32>, tensor<i32>, tensor<i32>) -> tensor<64x128xf32>
    stablehlo.return %j, %w : tensor<i32>, tensor<64x128xf32>
  }
  %a = stablehlo.sine %kv : tensor<64x128xf32>
  %b = stablehlo.cosine %kv : tensor<64x128xf32>
  %both = stablehlo.concatenate %a, %b, dim = 0 : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<128x128xf32>
  %held = util.optimization_barrier %both : tensor<128x128xf32>
  %d = stablehlo.dot_general %held, %held, contracting_dims = [0] x [0] : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  %f = stablehlo.slice %d [0:64, 0:128] : (tensor<128x128xf32>) -> tensor<64x128xf32>
  %g = stablehlo.add %f, %r#1 : tensor<64x128xf32>
  return %g : tensor<64x128xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.long
@pytest.mark.parametrize("bound", ["%n", "%c8"])
def test_loop_bounds_do_not_decide_in_place_outcomes(bound: str, tmp_path: Path) -> None:
    """The host copies a bound that is an input; that copy is of the function, and says nothing of other ops."""
    graph = built_graph(UNTIL.replace("LT, %i, %n", f"LT, %i, {bound}"), tmp_path)
    copies = [each for buffer in graph.command_buffers for each in buffer.commands if each.kind == "copy"]
    assert sorted(each.ops for each in copies) == [()] * (bound == "%n") + [(at_line(graph, 13).id,)]
    assert (at_line(graph, 13).outcome, at_line(graph, 13).reason.slug) == (Outcome.TRANSFER, "is-command")
    assert (at_line(graph, 18).outcome, at_line(graph, 18).reason.slug) == (Outcome.FOLDED, "in-place")


TWO_CARRIED = """\
func.func @main(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>, %k: tensor<i32>) -> tensor<64x64xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %v = %x, %u = %y) : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %d = stablehlo.dot_general %v, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %h = stablehlo.tanh %u : tensor<64x64xf32>
    %t = stablehlo.transpose %h, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %d, %t : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
  return %r#1 : tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_loop_carried_values_are_folded_into_their_producer(tmp_path: Path) -> None:
    """The product comes first among those that use what the loop carries, but it uses the other value."""
    graph = built_graph(TWO_CARRIED, tmp_path)
    assert at_line(graph, 11).reason.text == "folded into the indexing or layout of the stablehlo.tanh at 10:10"


CARRIED_IN = """\
func.func @main(%x: tensor<64x64xf32>, %k: tensor<i32>) -> tensor<64x64xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %r:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<64x64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %d = stablehlo.dot_general %v, %t, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %d : tensor<i32>, tensor<64x64xf32>
  }
  return %r#1 : tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_values_used_in_a_loop_are_folded_into_their_user_there(tmp_path: Path) -> None:
    assert "stablehlo.dot_general at 10:10" in at_line(built_graph(CARRIED_IN, tmp_path), 4).reason.text


def test_ops_in_the_models_own_kernel_are_not_on_the_host(tmp_path: Path) -> None:
    """A loop, loads and stores are the kernel's; the region that counts its workgroups is the host's."""
    graph = built_graph((ROOT / "tests" / "programs" / "written_kernel.mlir").read_text(encoding="utf-8"), tmp_path)
    assert not [op.name for op in graph.ops if op.outcome is Outcome.HOST]
    framing = {op.name for op in graph.ops if op.reason.slug == "in-kernel"}
    assert framing == {"scf.for", "iree_tensor_ext.dispatch.tensor.load", "iree_tensor_ext.dispatch.tensor.store"}
