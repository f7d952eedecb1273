"""Models whose functions consist of basic blocks with branches (`cf`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import built_graph
from tests.map.test_outcomes import at_line
from tracemap.map.model import Outcome

F32, F16 = "tensor<64x64xf32>", "tensor<64x64xf16>"
DOT = f"contracting_dims = [1] x [0] : ({F32}, {F32}) -> {F32}"

LOOP = f"""\
func.func @main(%x: {F32}) -> {F32} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  cf.br ^head(%c0, %x : index, {F32})
^head(%i: index, %v: {F32}):
  %p = arith.cmpi slt, %i, %c4 : index
  cf.cond_br %p, ^body, ^end
^body:
  %e = stablehlo.tanh %v : {F32}
  %d = stablehlo.dot_general %e, %x, {DOT}
  %j = arith.addi %i, %c1 : index
  cf.br ^head(%j, %d : index, {F32})
^end:
  %h = stablehlo.convert %v : ({F32}) -> {F16}
  %w = stablehlo.convert %h : ({F16}) -> {F32}
  return %w : {F32}
}}
"""


def test_a_block_may_have_more_arguments_than_its_function(tmp_path: Path) -> None:
    """The second argument of the loop's block is converted; the function has one."""
    graph = built_graph(LOOP, tmp_path)
    assert [at_line(graph, line).outcome for line in (10, 11, 15, 16)] == [Outcome.DISPATCHED] * 4
    assert [at_line(graph, line).outcome for line in (7, 12)] == [Outcome.HOST] * 2


JOINED = f"""\
func.func @main(%x: {F32}, %p: i1) -> ({F32}, {F32}) {{
  %t = stablehlo.transpose %x, dims = [1, 0] : ({F32}) -> {F32}
  cf.cond_br %p, ^a, ^b
^a:
  %e = stablehlo.exponential %x : {F32}
  cf.br ^c(%e : {F32})
^b:
  %s = stablehlo.sine %x : {F32}
  cf.br ^c(%s : {F32})
^c(%o: {F32}):
  %u = stablehlo.transpose %o, dims = [1, 0] : ({F32}) -> {F32}
  %d = stablehlo.dot_general %x, %u, {DOT}
  return %d, %t : {F32}, {F32}
}}
"""


def test_the_argument_of_a_block_is_another_value_than_that_of_its_function(tmp_path: Path) -> None:
    """Both are the first ones; what is transposed in the last block is no second transpose of the function's."""
    folded = at_line(built_graph(JOINED, tmp_path), 11)
    assert folded.outcome == Outcome.FOLDED
    assert folded.reason.text.endswith("of the stablehlo.dot_general at 12:8")


APART = f"""\
func.func @main(%x: {F32}, %p: i1) -> {F32} {{
  cf.cond_br %p, ^a, ^b
^a:
  %t = stablehlo.transpose %x, dims = [1, 0] : ({F32}) -> {F32}
  cf.br ^c(%t : {F32})
^b:
  %u = stablehlo.transpose %x, dims = [1, 0] : ({F32}) -> {F32}
  %d = stablehlo.dot_general %x, %u, {DOT}
  cf.br ^c(%d : {F32})
^c(%o: {F32}):
  return %o : {F32}
}}
"""


@pytest.mark.long
def test_what_one_of_two_blocks_computes_is_not_there_in_the_other(tmp_path: Path) -> None:
    """Each has its transpose: that of the first is a kernel, that of the second the way in which a product reads."""
    graph = built_graph(APART, tmp_path)
    assert (at_line(graph, 4).outcome, at_line(graph, 7).outcome) == (Outcome.DISPATCHED, Outcome.FOLDED)
    assert at_line(graph, 7).reason.text.endswith("of the stablehlo.dot_general at 8:8")


BEFORE_BLOCKS = f"""\
func.func private @first(%x: {F32}) -> {F32} {{
  %e = stablehlo.exponential %x : {F32}
  return %e : {F32}
}}
func.func @main(%x: {F32}, %p: i1) -> {F32} {{
  %f = call @first(%x) : ({F32}) -> {F32}
  %s = stablehlo.sine %x : {F32}
  cf.cond_br %p, ^a, ^c(%s : {F32})
^a:
  %g = stablehlo.exponential %x : {F32}
  %h = stablehlo.add %g, %f : {F32}
  cf.br ^c(%h : {F32})
^c(%o: {F32}):
  %r = stablehlo.add %o, %f : {F32}
  return %r : {F32}
}}
"""


def test_what_the_first_block_computes_is_there_in_all_others(tmp_path: Path) -> None:
    """Be it computed in a function that is called there."""
    assert at_line(built_graph(BEFORE_BLOCKS, tmp_path), 10).reason.text == "removed: same as 2:8"


LATE = f"""\
func.func @main(%x: {F32}) -> {F32} {{
  cf.br ^first(%x : {F32})
^last:
  %t = stablehlo.transpose %e, dims = [1, 0] : ({F32}) -> {F32}
  %s = stablehlo.transpose %e, dims = [1, 0] : ({F32}) -> {F32}
  %c = stablehlo.convert %v : ({F32}) -> {F16}
  %b = stablehlo.convert %c : ({F16}) -> {F32}
  %d = stablehlo.dot_general %t, %b, {DOT}
  %r = stablehlo.dot_general %d, %s, {DOT}
  return %r : {F32}
^first(%v: {F32}):
  %e = stablehlo.exponential %x : {F32}
  cf.br ^last
}}
"""


@pytest.mark.long
def test_blocks_may_stand_in_any_order(tmp_path: Path) -> None:
    """A block that stands first in the text uses what is made in one that runs before it."""
    graph = built_graph(LATE, tmp_path)
    assert [at_line(graph, line).outcome for line in (8, 9, 12)] == [Outcome.DISPATCHED] * 3
    (members,) = [
        {m.op for m in site.members} for site in graph.sites if at_line(graph, 12).id in {m.op for m in site.members}
    ]
    assert at_line(graph, 8).id not in members
