"""Ops of which no instruction is left, as one of another op does their work as well: the two share what it costs.

The other side is arithmetic: what each op reads, and what an op is that does nothing of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import check_cli, json_cli
from tracemap.attribution.steps.lines import kernel_steps
from tracemap.graph.bundle import load
from tracemap.machine.images import read_images
from tracemap.machine.lines import LineOp, OpLines, taken_in

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


def built(model: str, folder: Path, flags: Sequence[str]) -> Path:
    file, bundle = folder / "model.mlir", folder / "model.tracemap"
    file.write_text(model, encoding="utf-8")
    check_cli("build", file, "-o", bundle, "--", *flags)
    return bundle


@pytest.mark.parametrize(
    ("model", "flags"),
    [(NEGATED, BASELINE), (LARGER, BASELINE), (AND_NOT, BASELINE), (THREE, AVX512), (ONE_HOT, BASELINE)],
)
def test_an_op_without_code_shares_the_line_of_what_does_its_work(
    tmp_path: Path, model: str, flags: Sequence[str]
) -> None:
    made = load(built(model, tmp_path, flags))
    (kernel,) = made.graph.kernels
    steps = kernel_steps(made.graph, kernel, read_images(made.module_path))
    line_of = {
        made.graph.op_by_id[op].line: step.line for step in kernel.steps for op in step.ops if step.line in steps.owned
    }
    seen = {*steps.code.line_at.values()}
    assert line_of[2] not in seen
    assert steps.shared_lines(seen) == {line_of[3]: [line_of[2]]}


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


def test_an_index_from_the_end_is_of_all_that_make_it(tmp_path: Path) -> None:
    """An instruction does eight numbers at most, and the work of three ops takes two of them at least."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle, run = built(FROM_THE_END, tmp_path, BASELINE), tmp_path / "run.csv"
    check_cli("record", bundle, "--cache-sim", "--iterations", "1", "--warmup", "0", "-o", run)
    costs = {op["line"]: op["metrics"]["Ir"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}
    assert min(costs[line]["attributed"] for line in (4, 5, 6)) >= 256 * 512 // 8 * 2 // 3


def test_only_what_can_take_an_operation_in_does() -> None:
    names = [
        "arith.cmpf",
        "arith.addf",
        "arith.select",
        "arith.negf",
        "math.exp",
        "arith.addf",
        "arith.negf",
        "arith.addf",
    ]
    operations = [LineOp(line, name, 1) for line, name in enumerate(names, start=2)]
    lines = OpLines(frozenset(range(2, 10)), (*operations[:-1], LineOp(9, "arith.addf", 20)))
    assert taken_in(lines, {3, 4, 6, 7, 9}) == {2: 4, 5: 7}
    assert taken_in(lines, {2, 3, 4, 5, 6, 7, 8, 9}) == {}


def test_a_product_of_wider_numbers_is_taken_in_by_the_shift_alone() -> None:
    names = ["arith.extsi", "arith.muli", "arith.shrui", "arith.trunci", "arith.xori", "arith.trunci", "arith.muli"]
    operations = tuple(LineOp(line, name, 1) for line, name in enumerate(names, start=2))
    lines = OpLines(frozenset(range(2, 9)), operations)
    assert taken_in(lines, {4, 6}) == {2: 4, 3: 4, 5: 4}
    assert taken_in(lines, {2, 3, 4, 5, 6, 7, 8}) == {}
