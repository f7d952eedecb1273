"""Ops whose instructions also do another op's work: both share the cost.

The other side is arithmetic: what each op reads, and what an op is that does nothing of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.built_kernels import built, steps_of
from tests.support import check_cli, json_cli
from tracemap.machine.debug_lines import LineOp, OpLines, lines_sharing_work
from tracemap.map.bundle import load

BASELINE = ("--iree-llvmcpu-target-cpu=x86-64-v3",)
AVX512 = ("--iree-llvmcpu-target-cpu=x86-64-v4",)
F32, I32, I1 = (f"tensor<256x512x{kind}>" for kind in ("f32", "i32", "i1"))

NEGATED = f"""func.func @main(%x: {F32}, %y: {F32}) -> {F32} {{
  %f = stablehlo.negate %x : {F32}
  %g = stablehlo.subtract %y, %f : {F32}
  return %g : {F32}
}}
"""
LARGER = f"""func.func @main(%x: {F32}, %y: {F32}) -> {F32} {{
  %f = stablehlo.compare GT, %x, %y : ({F32}, {F32}) -> {I1}
  %g = stablehlo.select %f, %x, %y : {I1}, {F32}
  return %g : {F32}
}}
"""
AND_NOT = f"""func.func @main(%x: {I32}, %y: {I32}) -> {I32} {{
  %f = stablehlo.not %x : {I32}
  %g = stablehlo.and %f, %y : {I32}
  return %g : {I32}
}}
"""
THREE = f"""func.func @main(%x: {I32}, %y: {I32}, %z: {I32}) -> {I32} {{
  %f = stablehlo.and %x, %y : {I32}
  %g = stablehlo.or %f, %z : {I32}
  return %g : {I32}
}}
"""

WIDENED = f"""func.func @main(%x: tensor<256x512xi8>, %y: tensor<256x512xi8>, %z: {I32}) -> {I32} {{
  %a = stablehlo.convert %x : (tensor<256x512xi8>) -> {I32}
  %b = stablehlo.convert %y : (tensor<256x512xi8>) -> {I32}
  %product = stablehlo.multiply %a, %b : {I32}
  %sum = stablehlo.add %product, %z : {I32}
  return %sum : {I32}
}}
"""
ROTATED = f"""func.func @main(%x: {I32}, %y: {I32}) -> {I32} {{
  %left = stablehlo.constant dense<13> : {I32}
  %right = stablehlo.constant dense<19> : {I32}
  %high = stablehlo.shift_left %x, %left : {I32}
  %low = stablehlo.shift_right_logical %x, %right : {I32}
  %both = stablehlo.or %high, %low : {I32}
  %g = stablehlo.xor %both, %y : {I32}
  return %g : {I32}
}}
"""
ONE_HOT = f"""func.func @main(%x: {I32}, %y: {I32}) -> {F32} {{
  %f = stablehlo.compare EQ, %x, %y : ({I32}, {I32}) -> {I1}
  %g = stablehlo.convert %f : ({I1}) -> {F32}
  return %g : {F32}
}}
"""
FROM_THE_END = f"""func.func @main(%x: {I32}) -> {I32} {{
  %zero = stablehlo.constant dense<0> : {I32}
  %size = stablehlo.constant dense<64> : {I32}
  %before = stablehlo.compare LT, %x, %zero : ({I32}, {I32}) -> {I1}
  %later = stablehlo.add %x, %size : {I32}
  %index = stablehlo.select %before, %later, %x : {I1}, {I32}
  return %index : {I32}
}}
"""
I64 = "tensor<256x512xi64>"
UPPER_HALF = f"""func.func @main(%x: {I32}, %y: {I32}) -> {I32} {{
  %factor = stablehlo.constant dense<1640531527> : {I64}
  %half = stablehlo.constant dense<32> : {I64}
  %wide = stablehlo.convert %x : ({I32}) -> {I64}
  %product = stablehlo.multiply %wide, %factor : {I64}
  %upper = stablehlo.shift_right_logical %product, %half : {I64}
  %narrow = stablehlo.convert %upper : ({I64}) -> {I32}
  %mixed = stablehlo.xor %narrow, %y : {I32}
  return %mixed : {I32}
}}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "flags", "lost", "user"),
    [
        (NEGATED, BASELINE, {2}, 3),
        (LARGER, BASELINE, {2}, 3),
        (AND_NOT, BASELINE, {2}, 3),
        (THREE, AVX512, {2}, 3),
        (WIDENED, BASELINE, {2, 3}, 4),
        (ROTATED, BASELINE, {4, 5}, 6),
        (ONE_HOT, BASELINE, {2}, 3),
    ],
)
def test_an_op_without_code_shares_the_line_of_what_does_its_work(
    tmp_path: Path, model: str, flags: Sequence[str], lost: set[int], user: int
) -> None:
    bundle = built(model, tmp_path, flags)
    steps, graph = steps_of(bundle), load(bundle).graph
    own = [step for step in steps.kernel.steps if step.line in steps.frames.owned]
    line_of = {graph.op_by_id[op].line: step.line for step in own for op in step.ops}
    seen = {*steps.code.line_at.values()}
    assert {line for line, at in line_of.items() if at not in seen} == lost
    ((place, others),) = steps.shared_lines(seen).items()
    assert place == line_of[user]
    assert {*others} == {line_of[line] for line in lost}


@pytest.mark.long
@pytest.mark.parametrize(("model", "kind"), [(NEGATED, "f32"), (LARGER, "f32"), (AND_NOT, "i32")])
def test_what_one_instruction_reads_for_two_ops_is_of_both(tmp_path: Path, model: str, kind: str) -> None:
    """Of two arrays each op reads one, or each reads both."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle, run = built(model, tmp_path, BASELINE), tmp_path / "run.csv"
    given = [word for _ in range(2) for word in ("--input", f"256x512x{kind}=1")]
    check_cli("record", bundle, "--cache-sim", *given, "--iterations", "1", "--warmup", "0", "-o", run)
    result = json_cli("attribute", run, "--map", bundle)
    misses = {op["line"]: op["metrics"]["D1mr"]["attributed"] for op in result["ops"]}
    assert misses[2] + misses[3] == pytest.approx(2 * 256 * 512 * 4 // 64, rel=0.05)
    assert misses[2] == pytest.approx(misses[3], abs=1)


def test_work_without_code_is_of_the_nearest_that_has_some() -> None:
    """Of those that take its result, be it by way of others without code; where nobody takes it, of what made it."""
    made_of = {2: (), 3: (2,), 4: (3,), 5: (2, 4), 6: (5,), 7: (6,)}
    lines = OpLines(frozenset(made_of), tuple(LineOp(line, "arith.negf", 1, takes) for line, takes in made_of.items()))
    assert lines_sharing_work(lines, {4, 6}) == {2: {4, 6}, 3: {4}, 5: {6}, 7: {6}}
    assert lines_sharing_work(lines, {2, 3, 4, 5, 6, 7}) == {}
    assert lines_sharing_work(lines, set()) == {}


def test_what_reads_or_takes_long_does_not_share() -> None:
    """A position that is worked out for a read, and a sign before an exponential, are no half of these."""
    names = {2: "arith.addi", 3: "tensor.extract", 4: "arith.negf", 5: "math.exp", 6: "arith.extsi", 7: "arith.muli"}
    lines = OpLines(
        frozenset(names), tuple(LineOp(line, name, 1, (line - 1,) * (line % 2)) for line, name in names.items())
    )
    assert lines_sharing_work(lines, {3, 5, 7}) == {6: {7}}


@pytest.mark.long
def test_the_upper_half_of_a_product_is_of_all_that_make_it(tmp_path: Path) -> None:
    """An instruction multiplies eight numbers at most, and of two arrays the product and what follows read one each."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle, run = built(UPPER_HALF, tmp_path, BASELINE), tmp_path / "run.csv"
    given = [word for _ in range(2) for word in ("--input", "256x512xi32=1")]
    check_cli("record", bundle, "--cache-sim", *given, "--iterations", "1", "--warmup", "0", "-o", run)
    costs = {op["line"]: op["metrics"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}
    assert min(costs[line]["Ir"]["attributed"] for line in (4, 5, 6, 7, 8)) >= 256 * 512 // 8
    misses = [sum(costs[line]["D1mr"]["attributed"] for line in lines) for lines in ((4, 5, 6, 7), (8,))]
    assert misses == pytest.approx([256 * 512 * 4 // 64] * 2, rel=0.05)


@pytest.mark.long
def test_an_index_from_the_end_is_of_all_that_make_it(tmp_path: Path) -> None:
    """An instruction does eight numbers at most, and the work of three ops takes two of them at least."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle, run = built(FROM_THE_END, tmp_path, BASELINE), tmp_path / "run.csv"
    check_cli("record", bundle, "--cache-sim", "--iterations", "1", "--warmup", "0", "-o", run)
    costs = {op["line"]: op["metrics"]["Ir"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}
    assert min(costs[line]["attributed"] for line in (4, 5, 6)) >= 256 * 512 // 8 * 2 // 3
