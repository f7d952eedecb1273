"""Fused multiply-adds: which op their instructions belong to.

The other side is the disassembler's text: what multiplies, what adds, what loads.
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

BASELINE = ("--iree-llvmcpu-target-cpu=x86-64-v3",)
AARCH64 = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")

SQUARES = """func.func @main(%x: tensor<512x256xf32>) -> tensor<SIZExf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %square = stablehlo.multiply %x, %x : tensor<512x256xf32>
  %sum = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [AXIS]
    : (tensor<512x256xf32>, tensor<f32>) -> tensor<SIZExf32>
  return %sum : tensor<SIZExf32>
}
"""
DISTANCES = """func.func @main(%x: tensor<512x256xf32>, %y: tensor<512x256xf32>) -> tensor<512xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %apart = stablehlo.subtract %x, %y : tensor<512x256xf32>
  %square = stablehlo.multiply %apart, %apart : tensor<512x256xf32>
  %sum = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<512x256xf32>, tensor<f32>) -> tensor<512xf32>
  return %sum : tensor<512xf32>
}
"""
CHAIN = """func.func @main(
  %w: tensor<512x256xf32>, %x: tensor<512x256xf32>, %y: tensor<512x256xf32>
) -> tensor<512x256xf32> {
  %product = stablehlo.multiply %w, %x : tensor<512x256xf32>
  %sum = stablehlo.add %product, %y : tensor<512x256xf32>
  return %sum : tensor<512x256xf32>
}
"""


def work(steps: KernelSteps, pattern: str) -> Counter[str]:
    """Of the instructions in loops whose text fits a pattern, how many are of each operation of the kernel's text."""
    name_of = {step.line: step.op_name for step in steps.kernel.steps}
    fitting = (each for each in in_loops(steps) if re.match(pattern, f"{each.mnemonic} {each.operands}"))
    return Counter(name_of[steps.code.line_at[each.address]] for each in fitting)


MULTIPLIES, ADDS = r"v?mul|fmul", r"v?add[ps][sd]|fadd"
DOES_BOTH = r"vfmadd|fmla|fmadd"


@pytest.mark.long
@pytest.mark.parametrize("flags", [BASELINE, AARCH64])
@pytest.mark.parametrize(("axis", "size"), [(1, 512), (0, 256)])
def test_what_multiplies_for_a_sum_is_the_multiplication(
    tmp_path: Path, axis: int, size: int, flags: Sequence[str]
) -> None:
    steps = steps_of(built(SQUARES.replace("AXIS", str(axis)).replace("SIZE", str(size)), tmp_path, flags))
    multiplying, both = work(steps, MULTIPLIES), work(steps, DOES_BOTH)
    assert multiplying.keys() <= {"arith.mulf"}
    assert work(steps, ADDS).keys() <= {"arith.addf"}
    assert multiplying or both
    assert 0 <= both["arith.addf"] - both["arith.mulf"] <= 1


def loads_of(steps: KernelSteps) -> list[Instruction]:
    """Those in loops, by the disassembler's text."""
    is_load = re.compile(r"v?movup|v?movap|ld[rp] [qsd]")
    found = (each for each in in_loops(steps) if is_load.match(f"{each.mnemonic} {each.operands}"))
    return [each for each in found if re.search(r", (\[|.*ptr \[)(?!rip|rsp|sp)", each.operands)]


@pytest.mark.long
@pytest.mark.parametrize("flags", [BASELINE, AARCH64])
def test_what_is_loaded_for_a_product_is_of_the_multiplication(tmp_path: Path, flags: Sequence[str]) -> None:
    steps = steps_of(built(SQUARES.replace("AXIS", "1").replace("SIZE", "512"), tmp_path, flags))
    (product,) = (step.line for step in steps.kernel.steps if step.op_name == "arith.mulf")
    found = [each for each in loads_of(steps) if each.values.loads]
    assert found
    assert {steps.code.line_at[each.address] for each in found} == {product}


def test_what_is_multiplied_may_be_computed_before(tmp_path: Path) -> None:
    steps = steps_of(built(DISTANCES, tmp_path, BASELINE))
    assert work(steps, r"v?sub[ps]s").keys() == {"arith.subf"}
    assert work(steps, MULTIPLIES).keys() == {"arith.mulf"}
    assert work(steps, ADDS).keys() == {"arith.addf"}


@pytest.mark.long
@pytest.mark.parametrize("flags", [BASELINE, AARCH64])
def test_a_product_and_an_addition_in_one_instruction_read_what_each_reads(
    tmp_path: Path, flags: Sequence[str]
) -> None:
    """The factors are loaded for the product, the third array is for the sum, which is what is stored."""
    steps = steps_of(built(CHAIN, tmp_path, flags))
    lines = {step.op_name: step.line for step in steps.kernel.steps}
    code, body = steps.code, in_loops(steps)
    both = [each for each in body if re.match(DOES_BOTH, each.mnemonic)]
    assert both, "this processor has an instruction that does both"
    found = Counter(code.line_at[each.address] for each in body if each.values.loads)
    assert found.keys() == {lines["arith.mulf"], lines["arith.addf"]}
    assert found[lines["arith.mulf"]] == 2 * found[lines["arith.addf"]]
    stores = {code.line_at[each.address] for each in body if each.values.stores}
    assert stores == {lines["arith.addf"]}


@pytest.mark.long
def test_where_both_have_code_nothing_is_moved(tmp_path: Path) -> None:
    """Without instructions that do both, each op has its own."""
    steps = steps_of(built(CHAIN, tmp_path, ["--iree-llvmcpu-target-cpu=x86-64"]))
    assert not steps.code.contracted.products
    assert work(steps, MULTIPLIES).keys() == {"arith.mulf"}
    assert work(steps, ADDS).keys() == {"arith.addf"}


@pytest.mark.long
@pytest.mark.parametrize(("model", "inputs", "parts"), [(SQUARES, 1, (1, 0)), (CHAIN, 3, (2, 1))])
def test_simulated_misses_are_of_those_who_read(
    tmp_path: Path, model: str, inputs: int, parts: tuple[int, int]
) -> None:
    """Arrays of one size miss as often as one another: as many as the op reads of them."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed; install it (Debian, Ubuntu: apt-get install valgrind)")
    bundle = built(model.replace("AXIS", "1").replace("SIZE", "512"), tmp_path, BASELINE)
    run = tmp_path / "run.csv"
    given = [word for _ in range(inputs) for word in ("--input", "512x256xf32=1")]
    check_cli("record", bundle, "--cache-sim", *given, "--iterations", "1", "--warmup", "0", "-o", run)
    ops = {op["name"]: op["metrics"]["D1mr"]["attributed"] for op in json_cli("attribute", run, "--map", bundle)["ops"]}
    added = ops.get("stablehlo.add", 0) + ops.get("stablehlo.reduce", 0)
    product = ops["stablehlo.multiply"]
    lines_of_memory = 512 * 256 * 4 // 64
    assert product + added == pytest.approx(sum(parts) * lines_of_memory, rel=0.05)
    assert product / (product + added) == pytest.approx(parts[0] / sum(parts), abs=0.03)
