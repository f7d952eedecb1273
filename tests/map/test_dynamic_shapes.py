"""Dynamic shapes: fused ops compare as in the same program with sizes of 128."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import tracemap
from tests.support import check_cli, json_cli
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.bundle import load
from tracemap.map.model import OpId, TraceGraph

ELEMENTWISE = """
func.func @f(%x: tensor<?x64xf32>, %y: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %0 = stablehlo.tanh %x : tensor<?x64xf32>
  %1 = stablehlo.add %0, %0 : tensor<?x64xf32>
  %2 = stablehlo.exponential %1 : tensor<?x64xf32>
  return %2 : tensor<?x64xf32>
}
"""
PRODUCT = """
func.func @f(%x: tensor<?x64xf32>, %w: tensor<64x32xf32>, %b: tensor<32xf32>) -> tensor<?x32xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x64xf32>
  %e = tensor.empty(%m) : tensor<?x32xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x32xf32>) -> tensor<?x32xf32>
  %mm = linalg.matmul ins(%x, %w : tensor<?x64xf32>, tensor<64x32xf32>) outs(%f : tensor<?x32xf32>) -> tensor<?x32xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%mm, %b : tensor<?x32xf32>, tensor<32xf32>) outs(%e : tensor<?x32xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    %t = math.tanh %s : f32
    linalg.yield %t : f32
  } -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}
"""
FLATTENED = """
func.func @f(%x: tensor<?x12x16xf32>, %w: tensor<16x8xf32>) -> tensor<?x8xf32> {
  %c0 = arith.constant 0 : index
  %c12 = arith.constant 12 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x12x16xf32>
  %m = arith.muli %n, %c12 : index
  %t = tensor.collapse_shape %x [[0, 1], [2]] : tensor<?x12x16xf32> into tensor<?x16xf32>
  %e = tensor.empty(%m) : tensor<?x8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %mm = linalg.matmul ins(%t, %w : tensor<?x16xf32>, tensor<16x8xf32>) outs(%f : tensor<?x8xf32>) -> tensor<?x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel", "parallel"]} ins(%mm : tensor<?x8xf32>) outs(%e : tensor<?x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}
"""
STATIC_BESIDE = """
func.func @f(%x: tensor<?x?xf32>, %y: tensor<24x40xf32>) -> tensor<24x40xf32> {
  %e = tensor.empty() : tensor<24x40xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %y : tensor<?x?xf32>, tensor<24x40xf32>)
      outs(%e : tensor<24x40xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<24x40xf32>
  return %r : tensor<24x40xf32>
}
"""


def built_as(text: str, folder: Path) -> TraceGraph:
    folder.mkdir(exist_ok=True)
    (folder / "model.mlir").write_text(text, encoding="utf-8")
    check_cli("build", "model.mlir", "-o", "model.tracemap", cwd=folder)
    return load(folder / "model.tracemap").graph


def amounts(graph: TraceGraph, *, assumed: bool) -> Mapping[tuple[OpId, ...], list[tuple[Integer, Integer]]]:
    """By the members of each site what they cost; the sites of a program are told apart by these."""
    return {
        tuple(member.op for member in site.members): [
            (member.assumed_operations, member.assumed_bytes) if assumed else (member.operations, member.bytes)
            for member in site.members
        ]
        for site in graph.sites
    }


@pytest.mark.long
@pytest.mark.parametrize("text", [ELEMENTWISE, PRODUCT, FLATTENED], ids=["elementwise", "product", "flattened"])
def test_amounts_are_those_of_the_program_with_sizes_of_128(text: str, tmp_path: Path) -> None:
    found = built_as(text, tmp_path / "open")
    static = text.replace("into tensor<?", f"into tensor<{128 * 12}").replace("tensor<?x12x", "tensor<128x12x")
    if text is FLATTENED:
        static = static.replace("tensor<?", f"tensor<{128 * 12}").replace("empty(%m)", "empty()")
    static = static.replace("?", "128").replace("empty(%m)", "empty()")
    wanted = built_as(static, tmp_path / "static")
    assert amounts(found, assumed=True) == amounts(wanted, assumed=False)
    assert {each for several in amounts(found, assumed=False).values() for each in several} == {(UNKNOWN, UNKNOWN)}
    assert {each for several in amounts(wanted, assumed=True).values() for each in several} == {(UNKNOWN, UNKNOWN)}


@pytest.mark.long
def test_a_size_that_another_operand_tells_is_not_assumed(tmp_path: Path) -> None:
    (site,) = built_as(STATIC_BESIDE, tmp_path / "beside").sites
    (member,) = site.members
    assert 24 * 40 in {member.operations, member.assumed_operations}


@pytest.mark.long
def test_a_cost_is_split_as_that_of_the_program_with_sizes(tmp_path: Path) -> None:
    """The parts of ops that have as many rows do not depend on how many these are; what was assumed is said."""
    parts = {}
    for name, text in (("open", PRODUCT), ("static", PRODUCT.replace("?", "512").replace("empty(%m)", "empty()"))):
        (kernel,) = built_as(text, tmp_path / name).kernels
        run = tmp_path / name / "run.csv"
        run.write_text(f"kernel,cpu_ns\n{kernel.name},1000000\n", encoding="utf-8")
        result = tracemap.attribute(run, tmp_path / name / "model.tracemap", rule="model")
        parts[name] = {op.op: op.metrics["cpu_ns"].attributed for op in result.ops}
        asked = ("attribute", run, "--map", tmp_path / name / "model.tracemap", "--rule", "model")
        said = check_cli(*asked)
        assert ("as if dynamic sizes were 128" in " ".join(said.split())) is (name == "open")
        slugs = {each["slug"] for each in json_cli(*asked)["diagnostics"]}
        assert ("assumed-sizes" in slugs) is (name == "open")
        assert "equal-members" not in slugs
    assert parts["open"].keys() == parts["static"].keys()
    assert len(parts["open"]) > 1
    for op, part in parts["open"].items():
        assert part == pytest.approx(parts["static"][op], rel=0.02)


SHIFTED = """
func.func @f(%x: tensor<?x64xf32>, %s: index) -> tensor<?x64xf32> {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %x, %c0 : tensor<?x64xf32>
  %a = arith.shli %d, %s : index
  %b = arith.shli %a, %a : index
  %c = arith.shli %b, %a : index
  %z = arith.subi %d, %d : index
  %n = arith.subi %z, %d : index
  %q = arith.addi %c, %z : index
  %m = arith.muli %n, %q : index
  %e = tensor.empty(%m) : tensor<?x64xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) {
  ^bb0(%p: f32, %o: f32):
    %t = math.exp %p : f32
    linalg.yield %t : f32
  } -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}
"""


def test_sizes_that_no_tensor_has_take_no_memory(tmp_path: Path) -> None:
    """Shifted by what was shifted before, a number would have more digits than there is room for."""
    (site,) = built_as(SHIFTED, tmp_path / "shifted").sites
    (member,) = site.members
    assert member.operations is UNKNOWN
    assert isinstance(member.assumed_operations, int)


EXPONENTIALS_OF_SIZE_N = """
    %s = tensor.extract_slice %x[0] [%n] [1] : tensor<64xf32> to tensor<?xf32>
    %e = tensor.empty(%n) : tensor<?xf32>
    %r = linalg.generic {
        indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]}
        ins(%s : tensor<?xf32>) outs(%e : tensor<?xf32>) {
    ^bb0(%p: f32, %o: f32):
      %t = math.exp %p : f32
      linalg.yield %t : f32
    } -> tensor<?xf32>
"""
FUNCTION_OF_SIZE_N = """
  func.func @f(%x: tensor<64xf32>, %q: index, %b: i1) -> tensor<?xf32> {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    {size}
    {body}
    return %r : tensor<?xf32>
  }}
"""
NEVER_INLINED = "attributes {inlining_policy = #util.inline.never}"
SIZES = {
    "global that changes": (
        "util.global private mutable @g = 0 : index",
        """%l = util.global.load @g : index
        %n = arith.muli %l, %c1 : index
        %w = arith.addi %n, %c1 : index
        util.global.store %w, @g : index""",
    ),
    "wider global": (
        "util.global public mutable @g = 7 : i64 util.func public @set(%a: i64) "
        "{ util.global.store %a, @g : i64 util.return }",
        "%l = util.global.load @g : i64 %n = arith.index_cast %l : i64 to index",
    ),
    "address of a global": (
        "util.global private mutable @g = 7 : index util.func public @set(%a: index) "
        "{ %p = util.global.address @g : !util.ptr<index> "
        "util.global.store.indirect %a, %p : index -> !util.ptr<index> util.return }",
        "%n = util.global.load @g : index",
    ),
    "initializer": (
        "util.global private @g : index util.initializer { %l = util.call @h() : () -> index "
        f"util.global.store %l, @g : index util.return }} util.func private @h() -> index {NEVER_INLINED} "
        "{ %c5 = arith.constant 5 : index %o = util.optimization_barrier %c5 : index util.return %o : index }",
        "%n = util.global.load @g : index",
    ),
    "call": (
        f"util.func private @h(%a: index) -> index {NEVER_INLINED} "
        "{ %d = arith.muli %a, %a : index util.return %d : index }",
        "%n = util.call @h(%q) : (index) -> index",
    ),
    "extent of a global": (
        "util.global private mutable @kv : tensor<?xf32> util.func public @set(%a: tensor<?xf32>) "
        "{ util.global.store %a, @kv : tensor<?xf32> util.return }",
        "%l = util.global.load @kv : tensor<?xf32> %n = tensor.dim %l, %c0 : tensor<?xf32>",
    ),
    "branch": ("", "%n = scf.if %b -> index { scf.yield %q : index } else { scf.yield %c1 : index }"),
    "selection": ("", "%n = arith.select %b, %q, %c1 : index"),
    "loop": (
        "",
        "%n = scf.for %j = %c0 to %q step %c1 iter_args(%a = %c1) -> index "
        "{ %d = arith.addi %a, %c1 : index scf.yield %d : index }",
    ),
    "argument of a block": (
        "util.global private mutable @g = 7 : index",
        "%l = util.global.load @g : index util.global.store %c1, @g : index "
        "cf.cond_br %b, ^a(%l : index), ^a(%q : index)\n  ^a(%n: index):",
    ),
    "element": ("", "%l = tensor.extract %x[%c0] : tensor<64xf32> %w = arith.fptosi %l : f32 to i32 "
                "%n = arith.index_cast %w : i32 to index"),
}  # fmt: skip
"""Where the host program may have a size from, which only a run tells."""
OPERATIONS_OF_EXP = 10


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
def test_a_size_may_come_from_anywhere(name: str, tmp_path: Path) -> None:
    globals_, size = SIZES[name]
    function = FUNCTION_OF_SIZE_N.format(size=size, body=EXPONENTIALS_OF_SIZE_N)
    (site,) = built_as(f"module {{ {globals_} {function} }}", tmp_path / "sized").sites
    exponentials = site.members[-1]
    assert exponentials.operations is UNKNOWN
    assert exponentials.assumed_operations == 128 * OPERATIONS_OF_EXP
