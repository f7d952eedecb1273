"""The cost model of fused ops: partly read tables, loops in regions, lists of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import built_graph
from tests.built_kernels import built, in_loops, steps_of
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.map.model import Membership, Outcome, TraceGraph

NARROW = """\
func.func @main(%x: tensor<ROWSx512xf32>, %w: tensor<256x512xKIND>) -> tensor<ROWSx256xf32> {
  %c = stablehlo.convert %w : (tensor<256x512xKIND>) -> tensor<256x512xf32>
  %d = stablehlo.dot_general %x, %c, contracting_dims = [1] x [1] : (tensor<ROWSx512xf32>, tensor<256x512xf32>) -> tensor<ROWSx256xf32>
  return %d : tensor<ROWSx256xf32>
}
"""  # noqa: E501 - the text is MLIR

HELD_BACK = """\
func.func @main(%a: tensor<64x64xi8>, %x: tensor<64x64xi8>, %w: tensor<64x64xi8>) -> (tensor<64x64xi32>, tensor<64x64xf32>) {
  %f = stablehlo.convert %a : (tensor<64x64xi8>) -> tensor<64x64xf32>
  %b:2 = stablehlo.optimization_barrier %f, %w : tensor<64x64xf32>, tensor<64x64xi8>
  %d = stablehlo.dot %x, %b#1 : (tensor<64x64xi8>, tensor<64x64xi8>) -> tensor<64x64xi32>
  return %d, %b#0 : tensor<64x64xi32>, tensor<64x64xf32>
}
"""  # noqa: E501 - the text is MLIR

GATHERED = """\
func.func @main(%x: tensor<512x1xi32>, %t: tensor<50000x64xf32>, %y: tensor<512x64xf32>) -> tensor<512x64xf32> {
  %g = "stablehlo.gather"(%t, %x) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 64>} : (tensor<50000x64xf32>, tensor<512x1xi32>) -> tensor<512x64xf32>
  %e = stablehlo.exponential %y : tensor<512x64xf32>
  %a = stablehlo.add %g, %e : tensor<512x64xf32>
  return %a : tensor<512x64xf32>
}
"""  # noqa: E501 - the text is MLIR

LOOPING = """\
#i = affine_map<(a) -> (a)>
func.func @main(%x: tensor<4096xf32>) -> tensor<4096xf32> {
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c50 = arith.constant 50 : index
  %e = tensor.empty() : tensor<4096xf32>
  %a = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel"]} ins(%x : tensor<4096xf32>) outs(%e : tensor<4096xf32>) {
  ^bb0(%v: f32, %o: f32):
    %r = scf.for %k = %c0 to %c50 step %c3 iter_args(%t = %v) -> (f32) {
      %u = math.tanh %t : f32
      scf.yield %u : f32
    }
    linalg.yield %r : f32
  } -> tensor<4096xf32>
  %b = linalg.generic {indexing_maps = [#i, #i], iterator_types = ["parallel"]} ins(%a : tensor<4096xf32>) outs(%e : tensor<4096xf32>) {
  ^bb0(%v: f32, %o: f32):
    %u = math.tanh %v : f32
    linalg.yield %u : f32
  } -> tensor<4096xf32>
  return %b : tensor<4096xf32>
}
"""  # noqa: E501 - the text is MLIR

LISTED = """\
func.func @main(%x: !torch.vtensor<[4,8],f32>, %y: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[8,8],f32> {
  %int0 = torch.constant.int 0
  %a = torch.aten.tanh %x : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  %l = torch.prim.ListConstruct %a, %y : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>) -> !torch.list<vtensor>
  %c = torch.aten.cat %l, %int0 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8,8],f32>
  return %c : !torch.vtensor<[8,8],f32>
}
"""

NORMALISED = """\
func.func @main(%x: tensor<64x256xf32>, %y: tensor<256x16xf32>) -> (tensor<64x256xf32>, tensor<256x16xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.multiply %x, %x : tensor<64x256xf32>
  %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<64x256xf32>, tensor<f32>) -> tensor<64xf32>
  %q = stablehlo.rsqrt %r : tensor<64xf32>
  %b = stablehlo.broadcast_in_dim %q, dims = [0] : (tensor<64xf32>) -> tensor<64x256xf32>
  %m = stablehlo.multiply %x, %b : tensor<64x256xf32>
  %t = stablehlo.multiply %y, %y : tensor<256x16xf32>
  %u = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x16xf32>, tensor<f32>) -> tensor<16xf32>
  %v = stablehlo.rsqrt %u : tensor<16xf32>
  %w = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<16xf32>) -> tensor<256x16xf32>
  %n = stablehlo.multiply %y, %w : tensor<256x16xf32>
  return %m, %n : tensor<64x256xf32>, tensor<256x16xf32>
}
"""  # noqa: E501 - the text is MLIR

BROADCAST = """\
func.func @main(%x: tensor<64x256xf32>, %y: tensor<64xf32>, %z: tensor<256xf32>) -> tensor<64x256xf32> {
  %a = stablehlo.broadcast_in_dim %y, dims = [0] : (tensor<64xf32>) -> tensor<64x256xf32>
  %b = stablehlo.tanh %a : tensor<64x256xf32>
  %c = stablehlo.broadcast_in_dim %z, dims = [1] : (tensor<256xf32>) -> tensor<64x256xf32>
  %d = stablehlo.add %b, %c : tensor<64x256xf32>
  %e = stablehlo.multiply %d, %x : tensor<64x256xf32>
  return %e : tensor<64x256xf32>
}
"""


def member_at(graph: TraceGraph, line: int) -> Membership:
    op = next(op.id for op in graph.ops if op.line == line)
    (member,) = (member for site in graph.sites for member in site.members if member.op == op)
    return member


def test_of_a_table_only_what_is_taken_is_read(tmp_path: Path) -> None:
    graph = built_graph(GATHERED, tmp_path)
    indices, rows = 512 * 4, 512 * 64 * 4
    assert member_at(graph, 2).bytes == indices + rows
    assert member_at(graph, 3).bytes == rows


TAKEN = """\
func.func @main(%t: tensor<1000x64xf32>, %i: tensor<10xi32>) -> (tensor<10x64xf32>, tensor<125x4x8x16xf32>) {
  %e = tensor.empty() : tensor<10x64xf32>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%t, %i : tensor<1000x64xf32>, tensor<10xi32>) outs(%e : tensor<10x64xf32>) -> tensor<10x64xf32>
  %o = tensor.empty() : tensor<125x4x8x16xf32>
  %p = linalg.pack %t inner_dims_pos = [0, 1] inner_tiles = [8, 16] into %o : tensor<1000x64xf32> -> tensor<125x4x8x16xf32>
  return %g, %p : tensor<10x64xf32>, tensor<125x4x8x16xf32>
}
"""  # noqa: E501 - the text is MLIR


def test_ops_that_take_and_pack_only_move_elements(tmp_path: Path) -> None:
    graph = built_graph(TAKEN, tmp_path)
    gather, pack = member_at(graph, 3), member_at(graph, 5)
    assert (gather.operations, gather.bytes) == (0, (10 + 2 * 10 * 64) * 4)
    assert (pack.operations, pack.bytes) == (0, 2 * 1000 * 64 * 4)


def test_a_loop_in_a_region_counts_as_often_as_it_runs(tmp_path: Path) -> None:
    graph = built_graph(LOOPING, tmp_path)
    looping, plain = member_at(graph, 7).operations, member_at(graph, 15).operations
    assert isinstance(looping, int)
    assert isinstance(plain, int)
    assert looping == len(range(0, 50, 3)) * plain


@pytest.mark.long
def test_a_rotation_by_halves_is_not_the_work_of_who_uses_it(tmp_path: Path) -> None:
    model = Path(__file__).parent.with_name("programs") / "reproducers" / "rotated.mlir"
    graph = built_graph(model.read_text(encoding="utf-8"), tmp_path)
    assert member_at(graph, 8).operations == member_at(graph, 6).operations == 512 * 256
    steps = {step.op_name: step.ops for kernel in graph.kernels for step in kernel.steps}
    negate, join, multiply = (member_at(graph, line).op for line in (6, 7, 8))
    assert steps["arith.negf"] == (negate,)
    assert steps["tensor.extract"] == steps["arith.select"] == steps["arith.remsi"] == (join,)
    assert steps["arith.mulf"] == (multiply,)


@pytest.mark.long
def test_products_that_are_computed_side_by_side_cost_the_same(tmp_path: Path) -> None:
    model = Path(__file__).parent.with_name("programs") / "reproducers" / "side_by_side.mlir"
    flag = "--iree-dispatch-creation-enable-fuse-horizontal-contractions"
    graph = built_graph(model.read_text(encoding="utf-8"), tmp_path, flag)
    query, key, value = (member_at(graph, line) for line in (5, 6, 8))
    assert (query.operations, query.bytes) == (key.operations, key.bytes) == (value.operations, value.bytes)
    steps = {step.op_name: step.ops for step in graph.kernels[0].steps}
    assert steps["linalg.generic"] == (query.op, key.op, value.op)


ROWS = """\
func.func @main(%q: tensor<8x16xf32>, %p: tensor<8x16xf32>, %k: tensor<8x64x16xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
  %a = stablehlo.tanh %q : tensor<8x16xf32>
  %b = stablehlo.dot_general %a, %k, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<8x16xf32>, tensor<8x64x16xf32>) -> tensor<8x64xf32>
  %c = stablehlo.sine %p : tensor<8x16xf32>
  %d = stablehlo.dot_general %c, %k, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<8x16xf32>, tensor<8x64x16xf32>) -> tensor<8x64xf32>
  return %b, %d : tensor<8x64xf32>, tensor<8x64xf32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.long
def test_a_product_of_rows_is_not_the_work_of_who_makes_the_rows(tmp_path: Path) -> None:
    graph = built_graph(ROWS, tmp_path)
    one, other = member_at(graph, 3), member_at(graph, 5)
    assert one.operations == other.operations == 2 * 8 * 64 * 16
    (kernel,) = (kernel for kernel in graph.kernels if len(kernel.sites) == 2)
    steps = {step.op_name: step.ops for step in kernel.steps}
    assert steps["arith.mulf"] == steps["arith.addf"] == (one.op, other.op)


TURNED = """\
func.func @main(%q: !torch.vtensor<[1,64,4,32],f32>, %k: !torch.vtensor<[1,96,4,32],f32>, %v: !torch.vtensor<[1,96,4,32],f32>) -> !torch.vtensor<[1,4,64,32],f32> {
  %none = torch.constant.none
  %f0 = torch.constant.float 0.0
  %false = torch.constant.bool false
  %i1 = torch.constant.int 1
  %i2 = torch.constant.int 2
  %qt = torch.aten.transpose.int %q, %i1, %i2 : !torch.vtensor<[1,64,4,32],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4,64,32],f32>
  %kt = torch.aten.transpose.int %k, %i1, %i2 : !torch.vtensor<[1,96,4,32],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4,96,32],f32>
  %vt = torch.aten.transpose.int %v, %i1, %i2 : !torch.vtensor<[1,96,4,32],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4,96,32],f32>
  %a = torch.aten.scaled_dot_product_attention %qt, %kt, %vt, %none, %f0, %false, %none, %false : !torch.vtensor<[1,4,64,32],f32>, !torch.vtensor<[1,4,96,32],f32>, !torch.vtensor<[1,4,96,32],f32>, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> !torch.vtensor<[1,4,64,32],f32>
  return %a : !torch.vtensor<[1,4,64,32],f32>
}
"""  # noqa: E501 - the text is MLIR


@pytest.mark.long
def test_an_attention_counts_by_its_dimensions_however_its_operands_lie(tmp_path: Path) -> None:
    graph = built_graph(TURNED, tmp_path)
    scores, softmax = 4 * 64 * 96, 17
    assert member_at(graph, 10).operations == scores * (2 * (32 + 32) + softmax)


OVERWRITTEN = """\
func.func @main(%x: !torch.vtensor<[64,64],f32>, %s: !torch.vtensor<[64],f32>, %cache: !torch.tensor<[64,64],f32>) -> !torch.vtensor<[64],f32> {
  %t = torch.aten.tanh %s : !torch.vtensor<[64],f32> -> !torch.vtensor<[64],f32>
  torch.overwrite.tensor.contents %x overwrites %cache : !torch.vtensor<[64,64],f32>, !torch.tensor<[64,64],f32>
  return %t : !torch.vtensor<[64],f32>
}
"""  # noqa: E501 - the text is MLIR


def test_a_buffer_that_is_overwritten_is_no_check(tmp_path: Path) -> None:
    graph = built_graph(OVERWRITTEN, tmp_path)
    assert [command.kind for buffer in graph.command_buffers for command in buffer.commands].count("copy") == 1
    assert next(op.outcome for op in graph.ops if op.line == 3) is Outcome.TRANSFER


def test_lists_of_tensors_are_no_work_of_the_host(tmp_path: Path) -> None:
    graph = built_graph(LISTED, tmp_path)
    assert next(op.outcome for op in graph.ops if op.name == "torch.prim.ListConstruct") is Outcome.FOLDED


@pytest.mark.long
def test_what_is_the_same_for_a_row_is_computed_once_for_it(tmp_path: Path) -> None:
    """A plain compile has one square root before the loop over the row, in both kernels."""
    graph = built_graph(NORMALISED, tmp_path)
    rows, columns = member_at(graph, 5), member_at(graph, 10)
    assert (rows.operations, columns.operations) == (64 * 4, 16 * 4)
    assert member_at(graph, 7).operations == 64 * 256
    assert member_at(graph, 12).operations == 256 * 16


@pytest.mark.long
def test_what_changes_in_the_innermost_loop_is_computed_in_all_turns(tmp_path: Path) -> None:
    graph = built_graph(BROADCAST, tmp_path)
    assert member_at(graph, 5).operations == member_at(graph, 6).operations == 64 * 256


@pytest.mark.long
@pytest.mark.parametrize("rows", [3, 4, 16, 64])
@pytest.mark.parametrize(("kind", "conversion"), [("i8", "vcvtdq2ps"), ("f16", "vcvtph2ps")])
def test_a_weight_is_converted_once_for_a_tile_of_rows(tmp_path: Path, rows: int, kind: str, conversion: str) -> None:
    """As often as machine code has one beside how many multiplications with additions."""
    model = NARROW.replace("ROWS", str(rows)).replace("KIND", kind)
    bundle = built(model, tmp_path, ["--iree-llvmcpu-target-cpu=x86-64-v3"])
    names = [instruction.mnemonic for instruction in in_loops(steps_of(bundle))]
    multiplied = sum(name.startswith("vfmadd") for name in names)
    graph = load(bundle).graph
    converting, product = member_at(graph, 2), member_at(graph, 3)
    assert product.operations == 2 * rows * 512 * 256
    assert converting.operations is not UNKNOWN
    assert product.operations * names.count(conversion) == 2 * multiplied * converting.operations > 0


@pytest.mark.long
def test_what_a_barrier_holds_back_is_not_what_stands_beside_it(tmp_path: Path) -> None:
    """The product converts its own operands; what is converted before the barrier it does not read."""
    graph = built_graph(HELD_BACK, tmp_path)
    names = [[graph.op_by_id[member.op].name for member in site.members] for site in graph.sites]
    assert names == [["stablehlo.convert"], ["stablehlo.dot"]]
