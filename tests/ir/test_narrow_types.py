"""Products that convert narrow operands themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import built_graph
from tracemap.core.locations import Location, Name
from tracemap.ir import flow
from tracemap.ir.flow import read_dispatch_creation
from tracemap.ir.parsing import MlirParser, Value
from tracemap.map.model import TraceGraph

PRODUCT = """\
func.func @main(%x: tensor<ROWSx96xf32>, %w: tensor<96x160xNARROW>) -> tensor<ROWSx160xf32> {
  %c = stablehlo.convert %w : (tensor<96x160xNARROW>) -> tensor<96x160xf32>
  %r = stablehlo.dot_general %x, %c, contracting_dims = [1] x [0] : (tensor<ROWSx96xf32>, tensor<96x160xf32>) -> tensor<ROWSx160xf32>
  return %r : tensor<ROWSx160xf32>
}
"""  # noqa: E501 - the text is MLIR
KEPT = """\
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<96x160xNARROW>
func.func @main(%x: tensor<ROWSx96xf32>) -> tensor<ROWSx160xf32> {
  %w = util.global.load @w : tensor<96x160xNARROW>
"""


def text(rows: int, narrow: str, *, kept: bool = False) -> str:
    lines = PRODUCT.splitlines(keepends=True)
    whole = KEPT + "".join(lines[1:]) if kept else PRODUCT
    return whole.replace("ROWS", str(rows)).replace("NARROW", narrow)


def converts(graph: TraceGraph) -> set[str]:
    """How conversions are known to be done in kernels that have a product."""
    found = set()
    for site in graph.sites:
        names = {graph.op_by_id[member.op].name: member.evidence.value for member in site.members}
        if "stablehlo.dot_general" in names:
            found.add(names.get("stablehlo.convert", "not there"))
    return found


@pytest.mark.long
@pytest.mark.parametrize("narrow", ["i8", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kept", [False, True], ids=["given", "kept"])
def test_a_product_that_reads_what_is_converted_does_the_conversion(
    rows: int, narrow: str, kept: bool, tmp_path: Path
) -> None:
    """Weights that are kept are laid out anew for a single row, once, when the module is loaded."""
    assert converts(built_graph(text(rows, narrow, kept=kept), tmp_path)) == {"fused"}


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_laid_out_in_tiles_is_what_is_read(rows: int, tmp_path: Path) -> None:
    tiled = ("--iree-opt-data-tiling", "--iree-opt-level=O2")
    # Those that only lay operands out are of the product, too, and convert nothing.
    assert converts(built_graph(text(rows, "i8"), tmp_path, *tiled)) == {"fused", "not there"}


TORCH = """\
func.func @main(%a: !torch.vtensor<[3,96],f32>, %w: !torch.vtensor<[96,160],f16>) -> !torch.vtensor<[3,160],f32> {
  %int6 = torch.constant.int 6
  %int1 = torch.constant.int 1
  %no = torch.constant.bool false
  %none = torch.constant.none
  %c = torch.aten.to.dtype %w, %int6, %no, %no, %none : !torch.vtensor<[96,160],f16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[96,160],f32>
  %r = torch.aten.mm %a, %c : !torch.vtensor<[3,96],f32>, !torch.vtensor<[96,160],f32> -> !torch.vtensor<[3,160],f32>
  return %r : !torch.vtensor<[3,160],f32>
}
"""  # noqa: E501 - the text is MLIR


def test_products_of_torch_do_conversions_too(tmp_path: Path) -> None:
    (site,) = built_graph(TORCH, tmp_path).sites
    assert [(member.evidence.value, member.operations) for member in site.members] == [
        ("located", 2 * 3 * 96 * 160),
        ("fused", 96 * 160),
    ]


def test_what_a_loop_carries_is_converted_in_it(tmp_path: Path) -> None:
    """Nobody tells the type of an argument of a region."""
    body = text(96, "f16").replace("160", "96").replace("%x", "%y").replace("%w", "%v").splitlines()[1:3]
    lines = [
        "func.func @main(%x: tensor<96x96xf32>, %w: tensor<96x96xf16>) -> tensor<96x96xf32> {",
        "%first = stablehlo.constant dense<0> : tensor<i32>",
        "%one = stablehlo.constant dense<1> : tensor<i32>",
        "%many = stablehlo.constant dense<3> : tensor<i32>",
        "%all:3 = stablehlo.while(%k = %first, %y = %x, %v = %w) : tensor<i32>, tensor<96x96xf32>, tensor<96x96xf16>",
        "cond { %more = stablehlo.compare LT, %k, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        "stablehlo.return %more : tensor<i1> } do {",
        *body,
        "%next = stablehlo.add %k, %one : tensor<i32>",
        "stablehlo.return %next, %r, %v : tensor<i32>, tensor<96x96xf32>, tensor<96x96xf16> }",
        "return %all#1 : tensor<96x96xf32>",
        "}",
    ]
    assert converts(built_graph("\n".join(lines), tmp_path)) <= {"fused", "absorbed"}


def test_what_another_kernel_makes_is_told_by_what_that_stores(tmp_path: Path) -> None:
    lines = text(3, "f16").splitlines()
    lines[1] = (
        "  %n = stablehlo.tanh %w : tensor<96x160xf16> %m = stablehlo.multiply %n, %n : tensor<96x160xf16>\n"
        + lines[1].replace("%w", "%m")
    )
    graph = built_graph("\n".join(lines), tmp_path)
    assert len(graph.sites) == 2
    assert converts(graph) == {"fused"}


def test_where_nobody_tells_what_is_read_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locations(_producers: object, _value: Value) -> tuple[Location, ...]:
        return ()

    monkeypatch.setattr(flow._Producers, "locations", locations)
    assert converts(built_graph(text(3, "i8"), tmp_path)) == {"absorbed"}


STORED = """\
module {
  util.global private mutable @kept : tensor<4xf16>
  util.initializer {
    %0 = util.global.load @kept : tensor<4xf16> loc("first")
    util.global.store %0, @kept : tensor<4xf16>
    util.return
  }
  util.func public @main() -> tensor<4xf32> {
    %0 = util.global.load @kept : tensor<4xf16> loc("again")
    %1 = flow.dispatch.workgroups(%0) : (tensor<4xf16>) -> tensor<4xf32> =
        (%in: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf16>>,
         %out: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4xf32>>) {
      %2 = iree_tensor_ext.dispatch.tensor.load %in, offsets = [0], sizes = [4], strides = [1]
        : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf16>> -> tensor<4xf16>
      %3 = arith.extf %2 : tensor<4xf16> to tensor<4xf32>
      iree_tensor_ext.dispatch.tensor.store %3, %out, offsets = [0], sizes = [4], strides = [1]
        : tensor<4xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4xf32>>
      flow.return
    }
    util.return %1 : tensor<4xf32>
  }
}
"""


def test_a_global_that_is_made_of_itself_is_followed_once() -> None:
    parser = MlirParser()
    (region,) = read_dispatch_creation(parser, parser.parse(STORED))
    ((again, first),) = region.reads
    assert isinstance(again, Name)
    assert isinstance(first, Name)
    assert (again.name, first.name) == ("again", "first")
