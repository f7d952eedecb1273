"""What raised operations were made of, according to the compiler's phases."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.builders import built_graph
from tests.map.test_from_dumps import compile_by_hand, from_dumps
from tests.map.test_outcomes import SOFTMAX
from tracemap.core.errors import ModelInvalid
from tracemap.ir.dispatch_bodies import read_raised
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.assembly import DumpReader
from tracemap.map.model import Outcome, TraceGraph

BEFORE = """\
#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
module {
  util.global private @kept = dense<1.0> : tensor<8x64xf32>
  util.func public @main(%x: tensor<8x64xf32>, %view: !hal.buffer_view) -> tensor<8x64xf32> {
    %zero = arith.constant 0.0 : f32
    %constant = arith.constant dense<2.0> : tensor<8x64xf32> loc("constant")
    %global = util.global.load @kept : tensor<8x64xf32> loc("global")
    %argument = hal.tensor.import %view : !hal.buffer_view -> tensor<8x64xf32> loc("argument")
    %empty = tensor.empty() : tensor<8x64xf32> loc("in")
    %row = tensor.empty() : tensor<8xf32> loc("row")
    %in = math.exp %x : tensor<8x64xf32> loc("in")
    %p = math.exp %in : tensor<8x64xf32> loc("p")
    %start = linalg.fill ins(%zero : f32) outs(%row : tensor<8xf32>) -> tensor<8xf32> loc("elsewhere")
    %sum = linalg.reduce ins(%p : tensor<8x64xf32>) outs(%start : tensor<8xf32>) dimensions = [1]
      (%a: f32, %b: f32) {
        %c = arith.addf %a, %b : f32
        linalg.yield %c : f32
      } loc("sum")
    %q = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]}
      ins(DIVIDEND, %sum : tensor<8x64xf32>, tensor<8xf32>) outs(%empty : tensor<8x64xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
        INSIDE
        %d = arith.divf %a, %b : f32
        linalg.yield %d : f32
      } -> tensor<8x64xf32> loc("q")
    util.return %q : tensor<8x64xf32>
  }
}
"""
AFTER = """\
module {
  util.func public @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
    %empty = tensor.empty() : tensor<8x64xf32>
    %in = math.exp %x : tensor<8x64xf32> loc(MADE_AT)
    %q = linalg.softmax dimension(1) ins(READ : tensor<8x64xf32>) outs(%empty : tensor<8x64xf32>) -> tensor<8x64xf32> loc("q")
    AGAIN
    util.return %q : tensor<8x64xf32>
  }
}
"""  # noqa: E501 - the text is MLIR
ELSEWHERE = "%at = arith.constant 0 : index\n%e = tensor.extract GIVEN[%at, %at] : tensor<8x64xf32>"
"""An element of another tensor, read in a region."""


SHAPE_ALONE = {10: "located", 4: "absorbed", 6: "absorbed", 7: "absorbed", 8: "absorbed"}
"""What the map says of the lines of the softmax where the phases do not tell."""


def names(before: str, after: str) -> set[str]:
    """The names of the locations of what the softmax at q was made of."""
    parser = MlirParser()
    found = read_raised(parser, parser.parse(before), parser.parse(after))
    at_q = [raised.made_of for raised in found if "name='q'" in str(raised.location)]
    return set(re.findall(r"name='(\w+)'", str(at_q)))


def before(dividend: str = "%p", inside: str = "") -> str:
    return BEFORE.replace("DIVIDEND", dividend).replace("INSIDE", inside)


def after(read: str = "%in", made_at: str = "in", again: str = "") -> str:
    return AFTER.replace("READ", read).replace("MADE_AT", f'"{made_at}"').replace("AGAIN", again)


def test_operations_on_the_way_are_found_and_no_others() -> None:
    """The destination stands where the input is made, and the sum's beginning elsewhere: both are shared."""
    assert names(before(), after()) == {"p", "sum", "q"}
    assert names(before(), after("%x")) == {"in", "p", "sum", "q"}
    assert names(before(inside=ELSEWHERE.replace("GIVEN", "%in")), after()) == {"p", "sum", "q"}
    assert names(before(inside=ELSEWHERE.replace("GIVEN", "%constant")), after()) == {"p", "sum", "q"}


@pytest.mark.parametrize("other", ["%global", "%argument", "%x"])
def test_a_chain_with_another_input_is_no_idiom(other: str) -> None:
    assert names(before(dividend=other), after()) == set()
    assert names(before(inside=ELSEWHERE.replace("GIVEN", other)), after()) == set()


def test_producers_of_the_input_are_no_part_of_the_idiom() -> None:
    assert names(before(), after(made_at="p")) == {"sum", "q"}
    assert names(before(dividend="%in"), after(made_at="p")) == set()
    assert names(before(), after(made_at="sum")) == set()


def test_two_ops_in_one_location_are_no_idiom() -> None:
    destination = "ins(%x : tensor<8x64xf32>) outs(%empty : tensor<8x64xf32>) -> tensor<8x64xf32>"
    other = f"%r = linalg.softmax dimension(1) {destination}"
    assert names(before(), after(again=f'{other} loc("r")')) == {"p", "sum", "q"}
    assert names(before(), after(again=f'{other} loc("q")')) == set()


@pytest.mark.parametrize(("length", "told"), [(8, True), (80, False)])
def test_a_long_chain_is_no_idiom(length: int, told: bool) -> None:
    powers = ["%p", *(f"%p{number}" for number in range(length))]
    chain = [f"{new} = math.exp {old} : tensor<8x64xf32>" for old, new in pairwise(powers)]
    text = before(powers[-1]).replace("    %start =", "\n".join(chain) + "\n    %start =")
    assert bool(names(text, after())) == told


def test_a_phase_without_the_ops_gives_no_parts() -> None:
    assert names("module {}", after()) == set()


def evidence(graph: TraceGraph) -> dict[object, str]:
    return {graph.op_by_id[member.op].line: member.evidence.value for site in graph.sites for member in site.members}


TOLD = {10: "located", 4: "fused", 6: "fused", 7: "fused", 8: "fused"}
"""Where the phases tell what the softmax was raised from."""
INPUTS = {
    "argument": "%q = stablehlo.reshape %x : (tensor<8x64xf32>) -> tensor<8x64xf32>",
    "computed in its shape": "%q = stablehlo.tanh %x : tensor<8x64xf32>",
    "constant": "%q = stablehlo.constant dense<CONSTANT> : tensor<8x64xf32>",
    "counted": "%q = stablehlo.iota dim = 1 : tensor<8x64xf32>",
    "transposed": "%t = stablehlo.reshape %x : (tensor<8x64xf32>) -> tensor<64x8xf32> "
    "%q = stablehlo.transpose %t, dims = [1, 0] : (tensor<64x8xf32>) -> tensor<8x64xf32>",
    "joined": "%q = stablehlo.concatenate %x, %x, dim = 1 : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x128xf32>",
}


@pytest.mark.long
@pytest.mark.parametrize("given", INPUTS)
def test_parts_are_found_for_any_input(given: str, tmp_path: Path) -> None:
    elements = [[(row * 7 + column * 3) % 11 / 4 for column in range(64)] for row in range(8)]
    made = INPUTS[given].replace("CONSTANT", str(elements))
    head, body = SOFTMAX.split("\n", 1)
    shape = made.rsplit("tensor<", 1)[1].split(">")[0]
    body = body.replace("%x", "%q").replace("8x64xf32", shape)
    text = f"{head.replace('-> tensor<8x64xf32>', f'-> tensor<{shape}>')} {made}\n{body}"
    graph = built_graph(text, tmp_path)
    known = {line: told for line, told in evidence(graph).items() if line != 1}
    assert known == TOLD
    assert {op.outcome for op in graph.ops if op.line in TOLD} <= {Outcome.DISPATCHED, Outcome.LOAD_TIME}


def test_a_softmax_of_one_row_has_its_parts(tmp_path: Path) -> None:
    """Its sums are single numbers, as what they begin with is."""
    text = SOFTMAX.replace("8x64xf32", "64xf32").replace("tensor<8xf32>", "tensor<f32>")
    text = text.replace("dimensions = [1]", "dimensions = [0]").replace("dims = [0]", "dims = []")
    graph = built_graph(text, tmp_path)
    assert evidence(graph) == TOLD
    (site,) = graph.sites
    assert [member.operations for member in site.members if isinstance(member.operations, int)].count(64) == 3


@pytest.mark.long
def test_an_input_that_is_made_twice_is_one(tmp_path: Path) -> None:
    """The compiler makes one of the two negations, which the model tells apart."""
    made = "%q = stablehlo.negate %x : tensor<8x64xf32> %r2 = stablehlo.negate %x : tensor<8x64xf32>"
    head, body = SOFTMAX.split("\n", 1)
    body = body.replace("reduce(%x", "reduce(%q").replace("subtract %x", "subtract %r2")
    graph = built_graph(f"{head} {made}\n{body}", tmp_path)
    assert {line: told for line, told in evidence(graph).items() if line != 1} == TOLD


def test_parts_with_other_users_are_fused_in_the_softmax(tmp_path: Path) -> None:
    """The exponentials are a second result: a kernel of their own makes them, and the raised one makes them again."""
    text = SOFTMAX.replace("-> tensor<8x64xf32> {", "-> (tensor<8x64xf32>, tensor<8x64xf32>) {")
    text = text.replace("return %r : tensor<8x64xf32>", "return %r, %e : tensor<8x64xf32>, tensor<8x64xf32>")
    graph = built_graph(text, tmp_path)
    (site,) = (site for site in graph.sites if "softmax" in site.kernel)
    assert {graph.op_by_id[member.op].line: member.evidence.value for member in site.members} == TOLD


LOOP = """\
func.func @main(%x0: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %many = stablehlo.constant dense<3> : tensor<i32>
CONSTANTS
  %all:2 = stablehlo.while(%k = %first, %x = %x0) : tensor<i32>, tensor<8x64xf32>
  cond {
    %more = stablehlo.compare LT, %k, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
SOFTMAX
    %next = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<8x64xf32>
  }
  return %all#1 : tensor<8x64xf32>
}
"""


@pytest.mark.long
def test_a_softmax_of_what_a_loop_carries_costs_what_any_does(tmp_path: Path) -> None:
    """Nobody tells how large an argument of a region is; its parts are, as each works on as many elements."""
    lines = SOFTMAX.splitlines()
    text = LOOP.replace("CONSTANTS", "\n".join(lines[1:3])).replace("SOFTMAX", "\n".join(lines[3:10]))
    graph, alone = built_graph(text, tmp_path), built_graph(SOFTMAX, tmp_path)
    (site,) = [site for site in graph.sites if "softmax" in site.kernel]
    (other,) = alone.sites
    assert [member.operations for member in site.members] == [member.operations for member in other.members]
    assert {member.evidence.value for member in site.members} == {"located", "fused"}


def test_parts_are_found_in_dumps_without_tags(tmp_path: Path) -> None:
    model = tmp_path / "softmax.mlir"
    model.write_text(SOFTMAX)
    compile_by_hand(model, tmp_path)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert evidence(graph) == TOLD


@pytest.mark.long
@pytest.mark.parametrize("swapped", [False, True])
def test_two_softmaxes_at_one_location_are_not_mixed_up(swapped: bool, tmp_path: Path) -> None:
    """Without tags, where two divides share a location, the phases do not tell which parts are whose: unknown."""
    lines = SOFTMAX.splitlines()
    first = "\n".join(lines[3:10])
    second = re.sub(r"%([msezr]b?)\b", r"%\1_", first).replace("%x", "%y")
    bodies = [f'{body} loc("d")' for body in ((second, first) if swapped else (first, second))]
    model = tmp_path / "softmax.mlir"
    model.write_text(
        "func.func @main(%x: tensor<8x64xf32>, %y: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {\n"
        + "\n".join([*lines[1:3], *bodies])
        + "\n  return %r, %r_ : tensor<8x64xf32>, tensor<8x64xf32>\n}\n"
    )
    compile_by_hand(model, tmp_path)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert "fused" not in evidence(graph).values()  # nor is anything else known of what shares a location


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


@pytest.mark.long
def test_dumps_that_lack_the_phase_leave_the_shape_of_the_idiom(tmp_path: Path) -> None:
    model = tmp_path / "softmax.mlir"
    model.write_text(SOFTMAX)
    compile_by_hand(model, tmp_path)
    for dump in (tmp_path / "dumps").glob("*.preprocessing.mlir"):
        dump.unlink()
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert evidence(graph) == SHAPE_ALONE
