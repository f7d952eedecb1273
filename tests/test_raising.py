"""What raised operations were made of, read from the phases of the compiler, and what the map makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders import built_graph
from tests.test_fates import SOFTMAX
from tests.test_from_dumps import compile_by_hand, from_dumps
from tracemap.errors import ModelInvalid
from tracemap.graph.model import TraceGraph
from tracemap.ir.parsing import MlirParser
from tracemap.ir.raising import Raised, read_raised
from tracemap.mapping.dump_reader import DumpReader

BEFORE = """\
#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
module {
  util.func public @main(%x: tensor<8x64xf32>, %other: tensor<8x64xf32>) -> tensor<8x64xf32> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<8x64xf32> loc("empty")
    %row = tensor.empty() : tensor<8xf32> loc("row")
    %in = math.exp %x : tensor<8x64xf32> loc("in")
    %p = math.exp %in : tensor<8x64xf32> loc("p")
    %start = linalg.fill ins(%zero : f32) outs(%row : tensor<8xf32>) -> tensor<8xf32> loc("sum")
    %sum = linalg.reduce ins(%p : tensor<8x64xf32>) outs(%start : tensor<8xf32>) dimensions = [1]
      (%a: f32, %b: f32) {
        %c = arith.addf %a, %b : f32
        linalg.yield %c : f32
      } loc("sum")
    %q = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]}
      ins(DIVIDEND, %sum : tensor<8x64xf32>, tensor<8xf32>) outs(%empty : tensor<8x64xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
        %d = arith.divf %a, %b : f32
        linalg.yield %d : f32
      } -> tensor<8x64xf32> loc("q")
    util.return %q : tensor<8x64xf32>
  }
}
"""
AFTER = """\
module {
  util.func public @main(%x: tensor<8x64xf32>, %other: tensor<8x64xf32>) -> tensor<8x64xf32> {
    %empty = tensor.empty() : tensor<8x64xf32>
    %in = math.exp %x : tensor<8x64xf32> loc("in")
    %q = linalg.softmax dimension(1) ins(READ : tensor<8x64xf32>) outs(%empty : tensor<8x64xf32>) -> tensor<8x64xf32> loc("q")
    util.return %q : tensor<8x64xf32>
  }
}
"""  # noqa: E501 - the text is MLIR


SHAPE_ALONE = {10: "located", 4: "absorbed", 6: "absorbed", 7: "absorbed", 8: "absorbed"}
"""What the map says of the lines of the softmax where the phases do not tell."""


def raised_of(before: str, after: str) -> Raised:
    parser = MlirParser()
    (raised,) = read_raised(parser, parser.parse(before), parser.parse(after))
    return raised


def names(raised: Raised) -> set[str]:
    return set(re.findall(r"name='(\w+)'", str(raised.made_of)))


@pytest.mark.parametrize(
    ("dividend", "read", "made_of"),
    [
        ("%p", "%in", {"p", "sum", "q", "empty", "row"}),
        ("%p", "%x", {"in", "p", "sum", "q", "empty", "row"}),
        ("%other", "%in", set()),  # another value is needed, so that it is not the whole of what was raised
        ("%other", "%x", set()),
        ("%in", "%p", set()),
    ],
)
def test_operations_on_the_way_are_found_and_no_others(dividend: str, read: str, made_of: set[str]) -> None:
    after = AFTER.replace("READ", "%in" if read == "%p" else read)
    if read == "%p":
        after = after.replace('"in"', '"p"')
    assert names(raised_of(BEFORE.replace("DIVIDEND", dividend), after)) == made_of


def test_a_phase_before_that_shows_nothing_tells_nothing() -> None:
    assert raised_of("module {}", AFTER.replace("READ", "%in")).made_of == ()


def evidence(graph: TraceGraph) -> dict[object, str]:
    return {graph.op_by_id[member.op].line: member.evidence.value for site in graph.sites for member in site.members}


def test_what_is_needed_elsewhere_too_is_fused_in_the_softmax(tmp_path: Path) -> None:
    """The exponentials are a second result: a kernel of their own makes them, and the raised one makes them again."""
    text = SOFTMAX.replace("-> tensor<8x64xf32> {", "-> (tensor<8x64xf32>, tensor<8x64xf32>) {")
    text = text.replace("return %r : tensor<8x64xf32>", "return %r, %e : tensor<8x64xf32>, tensor<8x64xf32>")
    graph = built_graph(text, tmp_path)
    (site,) = (site for site in graph.sites if "softmax" in site.kernel)
    known = {graph.op_by_id[member.op].line: member.evidence.value for member in site.members}
    assert known == {10: "located", 4: "fused", 6: "fused", 7: "fused", 8: "fused"}


def test_dumps_without_tags_tell_it_too(tmp_path: Path) -> None:
    model = tmp_path / "softmax.mlir"
    model.write_text(SOFTMAX)
    compile_by_hand(model, tmp_path)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert evidence(graph) == {10: "located", 4: "fused", 6: "fused", 7: "fused", 8: "fused"}


def test_a_phase_that_does_not_parse_leaves_the_shape_of_the_idiom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler prints need not parse again; no other phase that is read is as early."""
    refused: list[str] = []

    def module(dumps: DumpReader, phase: str) -> object:
        if phase != "preprocessing":
            return kept(dumps, phase)
        refused.append(phase)
        raise ModelInvalid("the dump of the phase preprocessing does not parse")

    kept = DumpReader.module
    monkeypatch.setattr(DumpReader, "module", module)
    assert evidence(built_graph(SOFTMAX, tmp_path)) == SHAPE_ALONE
    assert refused


def test_dumps_that_lack_the_phase_leave_the_shape_of_the_idiom(tmp_path: Path) -> None:
    model = tmp_path / "softmax.mlir"
    model.write_text(SOFTMAX)
    compile_by_hand(model, tmp_path)
    for dump in (tmp_path / "dumps").glob("*.preprocessing.mlir"):
        dump.unlink()
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert evidence(graph) == SHAPE_ALONE
