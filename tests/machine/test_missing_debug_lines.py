"""Ops whose instructions have no debug line: hoisted code, code made element by element.

The other side is the disassembler's text, and arithmetic: an instruction does eight elements at most.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.built_kernels import built, in_loops, steps_of
from tests.support import check_cli, json_cli
from tracemap.attribution.kernel_lines.lines import KernelSteps
from tracemap.machine.code import Instruction
from tracemap.machine.debug_lines import Contracted, LineOp, OpLines, assign_missing_lines
from tracemap.machine.values import NO_VALUES

BASELINE = ("--iree-llvmcpu-target-cpu=x86-64-v3",)
AARCH64 = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")
_LANES = 8

BEFORE, AFTER = "tensor<2x256x4x8xf32>", "tensor<2x256x8x4xf32>"
PER_ROW = """func.func @main(%x: tensor<64x32xf32>, %d: tensor<64xf32>) -> tensor<64x32xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<64xf32>
  %most = stablehlo.maximum %d, %one : tensor<64xf32>
  %rows = stablehlo.broadcast_in_dim %most, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
  %mean = stablehlo.divide %x, %rows : tensor<64x32xf32>
  return %mean : tensor<64x32xf32>
}
"""
ELEMENTWISE = f"""func.func @main(%x: {BEFORE}) -> {AFTER} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : {BEFORE}
  %most = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [1, 3]
    : ({BEFORE}, tensor<f32>) -> tensor<2x4xf32>
  %all = stablehlo.broadcast_in_dim %most, dims = [0, 2] : (tensor<2x4xf32>) -> {BEFORE}
  %apart = stablehlo.subtract %x, %all : {BEFORE}
  %less = stablehlo.negate %apart : {BEFORE}
  %power = stablehlo.exponential %less : {BEFORE}
  %sum = stablehlo.add %one, %power : {BEFORE}
  %gate = stablehlo.divide %one, %sum : {BEFORE}
  %silu = stablehlo.multiply %apart, %gate : {BEFORE}
  %turned = stablehlo.transpose %silu, dims = [0, 1, 3, 2] : ({BEFORE}) -> {AFTER}
  return %turned : {AFTER}
}}
"""


def work(steps: KernelSteps, pattern: str) -> Counter[str]:
    """Of the instructions in loops whose name fits a pattern, how many are of each operation of the kernel's text."""
    name_of = {step.line: step.op_name for step in steps.kernel.steps}
    fitting = (each for each in in_loops(steps) if re.match(pattern, each.mnemonic))
    return Counter(name_of[steps.code.line_at[each.address]] for each in fitting)


@pytest.mark.long
@pytest.mark.parametrize("flags", [BASELINE, AARCH64])
def test_what_is_moved_out_of_a_loop_is_of_its_op(tmp_path: Path, flags: Sequence[str]) -> None:
    steps = steps_of(built(PER_ROW, tmp_path, flags))
    assert {*work(steps, r"v?max[ps]s|fmax")} == {"arith.maximumf"}
    assert {*work(steps, r"v?div[ps]s|fdiv")} == {"arith.divf"}


def test_what_is_done_element_by_element_is_of_its_op(tmp_path: Path) -> None:
    steps = steps_of(built(ELEMENTWISE, tmp_path, BASELINE))
    assert {*work(steps, r"vdiv[ps]s")} == {"arith.divf"}
    assert {*work(steps, r"vmulss")} == {"arith.mulf"}


def test_only_ops_without_code_of_their_own_get_what_does_the_same() -> None:
    def instruction(address: int, mnemonic: str, line: int) -> Instruction:
        return Instruction(address, 4, mnemonic, "", line, (), True, 50, NO_VALUES)

    text = [
        LineOp(2, "arith.mulf", 1),
        LineOp(3, "arith.addf", 1),
        LineOp(4, "arith.mulf", 1),
        LineOp(6, "arith.divf", 5),
    ]
    lines = OpLines(frozenset({2, 3, 4, 6}), tuple(text))
    given = [("vmulps", 2), ("vmulps", 1), ("vaddps", 0), ("vaddps", 1), ("vdivps", 1), ("vpaddd", 1), ("vmulss", 0)]
    code = [instruction(16 * place, *each) for place, each in enumerate(given)]
    found = assign_missing_lines(Contracted(code, lines))
    assert [each.line for each in found.instructions] == [2, 4, 3, 3, 1, 1, 4]
    moved = {one.address: one.line for one, two in zip(code, found.instructions, strict=True) if one != two}
    assert moved == {16: 1, 32: 0, 48: 1, 96: 0}
    whole = Contracted([*code, *(instruction(256, "nop", line) for line in (3, 4, 6))], lines)
    assert assign_missing_lines(whole) == whole
    assert assign_missing_lines(found) == found


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "ops"), [(PER_ROW, {3: 64, 5: 64 * 32}), (ELEMENTWISE, dict.fromkeys(range(7, 13), 2 * 256 * 32))]
)
def test_ops_run_an_instruction_for_each_vector_at_least(tmp_path: Path, model: str, ops: dict[int, int]) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle, run = built(model, tmp_path, BASELINE), tmp_path / "run.csv"
    check_cli("record", bundle, "--cache-sim", "--iterations", "1", "--warmup", "0", "-o", run)
    result = json_cli("attribute", run, "--map", bundle)
    costs = {op["line"]: op["metrics"]["Ir"]["attributed"] for op in result["ops"]}
    assert {line: costs[line] for line, elements in ops.items() if costs[line] < elements // _LANES} == {}
