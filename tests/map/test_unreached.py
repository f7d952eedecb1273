"""Code that never runs: arms under conditions known at compile time, or almost.

The truth is what the compiler left of each program: an arm has a kernel or it has none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import built_graph
from tracemap.map.model import Op, Outcome, TraceGraph

PRODUCT = """\
    %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot %t, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    scf.yield %d : tensor<8x8xf32>
"""
"""An arm with an op that moves elements, and the one with a kernel that it is folded into."""
OTHER = """\
    %t = stablehlo.reverse %x, dims = [0] : tensor<8x8xf32>
    %e = stablehlo.tanh %t : tensor<8x8xf32>
    scf.yield %e : tensor<8x8xf32>
"""


def branch(arm: str, other: str) -> str:
    """The rest of a function with a condition `%c` and an argument `%x`."""
    results = "tensor<8x8xf32>"
    return f"  %r = scf.if %c -> {results} {{\n{arm}  }} else {{\n{other}  }}\n  return %r : {results}\n}}\n"


ARMS = branch(PRODUCT, OTHER)
HEAD = "func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"


def ops_by_name(graph: TraceGraph) -> dict[str, Op]:
    return {op.name: op for op in graph.ops}


def check_arms(graph: TraceGraph, *, taken: bool | None) -> None:
    """Each arm has its kernel and never stands where nothing runs, or neither; None: both may run."""
    ops = ops_by_name(graph)
    arms = {True: ("stablehlo.transpose", "stablehlo.dot"), False: ("stablehlo.reverse", "stablehlo.tanh")}
    for arm, (move, work) in arms.items():
        runs = taken is None or arm is taken
        assert (ops[work].outcome is Outcome.DISPATCHED) is runs, work  # by the compiler
        assert (ops[move].reason.slug == "never-runs") is not runs, ops[move]
        assert runs or ops[work].reason.slug == "never-runs", ops[work]
    assert (ops["scf.if"].reason.slug == "decided") is (taken is not None)


UNTOLD = {
    "held back": """\
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %no = stablehlo.constant dense<false> : tensor<i1>
  %b = stablehlo.optimization_barrier %no : tensor<i1>
  %c = tensor.extract %b[] : tensor<i1>
""",
    "held back beside another": """\
func.func @main(%p: tensor<i1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %no = stablehlo.constant dense<false> : tensor<i1>
  %b:2 = stablehlo.optimization_barrier %no, %p : tensor<i1>, tensor<i1>
  %c = tensor.extract %b#1[] : tensor<i1>
""",
    "one of several elements": """\
func.func @main(%p: i32, %i: index, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = arith.constant 0 : i32
  %both = tensor.from_elements %zero, %p : tensor<2xi32>
  %one = tensor.extract %both[%i] : tensor<2xi32>
  %c = arith.cmpi ne, %one, %zero : i32
""",
}


@pytest.mark.long
@pytest.mark.parametrize("head", UNTOLD.values(), ids=UNTOLD)
def test_what_the_compiler_does_not_know_decides_nothing(tmp_path: Path, head: str) -> None:
    check_arms(built_graph(head + ARMS, tmp_path), taken=None)


ONE_ELEMENT_DECIDES = """\
func.func @main(%p: tensor<2xi1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %outer = tensor.extract %p[%c0] : tensor<2xi1>
  %all = scf.if %outer -> tensor<8x8xf32> {
    %c = tensor.extract %p[%c1] : tensor<2xi1>
    %r = scf.if %c -> tensor<8x8xf32> {
      %d = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      scf.yield %d : tensor<8x8xf32>
    } else {
      %t = stablehlo.reverse %x, dims = [0] : tensor<8x8xf32>
      %e = stablehlo.tanh %t : tensor<8x8xf32>
      scf.yield %e : tensor<8x8xf32>
    }
    scf.yield %r : tensor<8x8xf32>
  } else {
    scf.yield %x : tensor<8x8xf32>
  }
  return %all : tensor<8x8xf32>
}
"""


def test_what_holds_of_one_element_need_not_hold_of_the_next(tmp_path: Path) -> None:
    graph = built_graph(ONE_ELEMENT_DECIDES, tmp_path)
    ops = ops_by_name(graph)
    assert ops["stablehlo.tanh"].outcome is Outcome.DISPATCHED
    assert ops["stablehlo.reverse"].reason.slug != "never-runs"
    assert [op.reason.slug for op in graph.ops if op.name == "scf.if"] == ["control-flow", "control-flow"]


OF_A_WIDTH = {
    "two truth values added": """\
  %yes = arith.constant true
  %c = arith.addi %yes, %yes : i1
""",
    "a sum that does not fit": """\
  %most = arith.constant 127 : i8
  %one = arith.constant 1 : i8
  %sum = arith.addi %most, %one : i8
  %c = arith.cmpi sgt, %sum, %one : i8
""",
    "truth values compared": """\
  %yes = arith.constant true
  %no = arith.constant false
  %c = arith.cmpi sgt, %yes, %no : i1
""",
    "a truth value as a position": """\
  %yes = arith.constant true
  %zero = arith.constant 0 : index
  %at = arith.index_cast %yes : i1 to index
  %c = arith.cmpi sgt, %at, %zero : index
""",
    "the complement of a number": """\
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %not = stablehlo.not %zero : tensor<i32>
  %ge = stablehlo.compare GE, %not, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %c = tensor.extract %ge[] : tensor<i1>
""",
}
"""Conditions that are false, as numbers are computed in so many bits."""
EXTENDED = """\
  %minus = arith.constant -1 : i32
  %zero = arith.constant 0 : i64
  %large = arith.extui %minus : i32 to i64
  %c = arith.cmpi sgt, %large, %zero : i64
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("condition", OF_A_WIDTH.values(), ids=OF_A_WIDTH)
def test_numbers_are_computed_in_the_width_of_their_type(tmp_path: Path, condition: str) -> None:
    ops = ops_by_name(built_graph(HEAD + condition + branch(OTHER, PRODUCT), tmp_path))
    assert ops["stablehlo.dot"].outcome is Outcome.DISPATCHED
    assert ops["stablehlo.transpose"].reason.slug != "never-runs"


def test_a_number_without_a_sign_is_as_large_as_its_bits_say(tmp_path: Path) -> None:
    ops = ops_by_name(built_graph(HEAD + EXTENDED + ARMS, tmp_path))
    assert ops["stablehlo.dot"].outcome is Outcome.DISPATCHED
    assert ops["stablehlo.transpose"].reason.slug != "never-runs"


CASE = """\
  %r = "stablehlo.case"(%i) ({
    %d = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %d : tensor<8x8xf32>
  }, {
    %e = stablehlo.tanh %x : tensor<8x8xf32>
    stablehlo.return %e : tensor<8x8xf32>
  }, {
    %e = stablehlo.exponential %x : tensor<8x8xf32>
    stablehlo.return %e : tensor<8x8xf32>
  }) : (tensor<i32>) -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}
"""
SWITCH = """\
  %r = scf.index_switch %i -> tensor<8x8xf32>
  case 4 {
    %d = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    scf.yield %d : tensor<8x8xf32>
  }
  case 2 {
    %e = stablehlo.tanh %x : tensor<8x8xf32>
    scf.yield %e : tensor<8x8xf32>
  }
  default {
    %e = stablehlo.exponential %x : tensor<8x8xf32>
    scf.yield %e : tensor<8x8xf32>
  }
  return %r : tensor<8x8xf32>
}
"""
ARM_NAMES = ("stablehlo.dot", "stablehlo.tanh", "stablehlo.exponential")


@pytest.mark.long
@pytest.mark.parametrize(
    ("index", "rest", "arm"),
    [
        *((f"%i = stablehlo.constant dense<{i}> : tensor<i32>", CASE, a) for i, a in ((1, 1), (7, 2), (-1, 2))),
        *((f"%i = arith.constant {i} : index", SWITCH, a) for i, a in ((4, 0), (2, 1), (0, 2))),
    ],
)
def test_of_the_arms_of_a_known_number_the_others_never_run(tmp_path: Path, index: str, rest: str, arm: int) -> None:
    graph = built_graph(f"{HEAD}  {index}\n{rest}", tmp_path)
    ops = ops_by_name(graph)
    assert {name for name in ARM_NAMES if ops[name].outcome is Outcome.DISPATCHED} == {
        ARM_NAMES[arm]
    }  # by the compiler
    assert {name for name in ARM_NAMES if ops[name].reason.slug == "never-runs"} == {*ARM_NAMES} - {ARM_NAMES[arm]}
    choice = next(op for op in graph.ops if op.name in ("stablehlo.case", "scf.index_switch"))
    assert choice.reason.slug == "decided"


HANDED_OVER = """\
func.func private @inner(%p: tensor<i1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c = tensor.extract %p[] : tensor<i1>
ARMSfunc.func private @outer(%p: tensor<i1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = call @inner(%p, %x) : (tensor<i1>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @main(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %one = stablehlo.constant dense<ONE> : tensor<i1>
  %other = stablehlo.constant dense<TWO> : tensor<i1>
  %0 = call @inner(%one, %x) : (tensor<i1>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = call @outer(%other, %y) : (tensor<i1>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
"""


@pytest.mark.long
@pytest.mark.parametrize("taken", [True, False, None])
def test_what_all_calls_hand_over_decides_in_a_function(tmp_path: Path, taken: bool | None) -> None:
    two = str(taken is True).lower()
    one = "true" if taken is None else two
    text = HANDED_OVER.replace("ARMS", ARMS).replace("ONE", one).replace("TWO", two)
    check_arms(built_graph(text, tmp_path), taken=taken)


BLOCKS = """\
  cf.cond_br %c, ^one, ^other
^one:
  %d = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  cf.br ^end(%d : tensor<8x8xf32>)
^other:
  cf.br ^behind
^end(%r: tensor<8x8xf32>):
  return %r : tensor<8x8xf32>
^behind:
  %e = stablehlo.tanh %x : tensor<8x8xf32>
  cf.br ^end(%e : tensor<8x8xf32>)
}
"""


@pytest.mark.parametrize("taken", [True, False, None])
def test_blocks_that_no_branch_leads_to_never_run(tmp_path: Path, taken: bool | None) -> None:
    condition = f"  %c = arith.constant {str(taken).lower()}\n"
    head = HEAD + condition if taken is not None else HEAD.replace("(", "(%c: i1, ", 1)
    ops = ops_by_name(built_graph(head + BLOCKS, tmp_path))
    for arm, name in ((True, "stablehlo.dot"), (False, "stablehlo.tanh")):
        runs = taken is None or arm is taken
        assert (ops[name].outcome is Outcome.DISPATCHED) is runs, name  # by the compiler
        assert (ops[name].reason.slug == "never-runs") is not runs, ops[name]
    assert (ops["cf.cond_br"].reason.slug == "decided") is (taken is not None)
