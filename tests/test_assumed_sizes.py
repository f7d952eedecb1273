"""Sizes that the program does not know before: members compare as those of the same program with sizes of 128."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import tracemap
from tests.support import check_cli, json_cli
from tracemap.graph.bundle import load
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.units import UNKNOWN, Integer

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


def test_a_size_that_another_operand_tells_is_not_assumed(tmp_path: Path) -> None:
    (site,) = built_as(STATIC_BESIDE, tmp_path / "beside").sites
    (member,) = site.members
    assert 24 * 40 in {member.operations, member.assumed_operations}


def test_a_cost_is_split_as_that_of_the_program_with_sizes(tmp_path: Path) -> None:
    """The parts of ops that have as many rows do not depend on how many these are; what was assumed is said."""
    parts = {}
    for name, text in (("open", PRODUCT), ("static", PRODUCT.replace("?", "512").replace("empty(%m)", "empty()"))):
        (kernel,) = built_as(text, tmp_path / name).kernels
        run = tmp_path / name / "run.csv"
        run.write_text(f"kernel,cpu_ns\n{kernel.name},1000000\n", encoding="utf-8")
        result = tracemap.attribute(run, tmp_path / name / "model.tracemap")
        parts[name] = {op.op: op.metrics["cpu_ns"].attributed for op in result.ops}
        said = check_cli("attribute", run, "--map", tmp_path / name / "model.tracemap")
        assert ("as if each of these were 128" in " ".join(said.split())) is (name == "open")
        slugs = {
            each["slug"] for each in json_cli("attribute", run, "--map", run.parent / "model.tracemap")["diagnostics"]
        }
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
