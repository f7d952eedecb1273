"""Advice by rules: each cause in a program of its own next to a twin without it.

The compiler and its kernels are real. Times are given, so that a busy machine changes no test.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.builders import attribution, built_graph
from tests.reports.test_page import GRAPH, TOTALS
from tests.support import check_cli, json_cli, long_where
from tracemap.attribution.advice.advise import advise
from tracemap.attribution.advice.kernel_facts import Evidence
from tracemap.attribution.model import (
    Advice,
    AdviceRule,
    Attribution,
    Overhead,
    OverheadPlace,
    UnattributedReason,
    UnattributedRow,
)
from tracemap.commands.runs import BundleAttribution, with_advice
from tracemap.core.diagnostics import NOISY, PAUSED, TRANSFERS_UNTIMED, Diagnostic
from tracemap.core.functions import Argument, Function
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import Bundle, load
from tracemap.map.model import OpId, Schedule, Submission
from tracemap.runs.model import BY_STOPS, CacheSpeed, DeviceTime, ElapsedParts, Peaks

# ---- kernels

_SPILLS = """compilation_info = #iree_codegen.compilation_info<
    lowering_config = #iree_cpu.lowering_config<distribution = [64, 64, 0], vector_common_parallel = [16, 64, 0],
    vector_reduction = [0, 0, 1]>, translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"""

_DOT = "stablehlo.dot_general %w, {}, contracting_dims = [1] x [0]"


def _loop(name: str, operand: str, carried: str, product: str = _DOT) -> str:
    """A loop whose product a tensor that it carries may change."""
    return f"""
func.func @{name}(%a: tensor<256x256xf32>, %x: tensor<256x256xf32>) -> tensor<256x256xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<8> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %w = %a, %y = %x) : tensor<i32>, tensor<256x256xf32>, tensor<256x256xf32>
  cond {{
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    %z = {product.format(operand)} : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
    %s = stablehlo.add %y, %z : tensor<256x256xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, {carried}, %s : tensor<i32>, tensor<256x256xf32>, tensor<256x256xf32>
  }}
  return %r#2 : tensor<256x256xf32>
}}
"""


MODEL = (
    """
func.func @straight(%a: tensor<1024x512xf32>, %b: tensor<1024x512xf32>) -> tensor<1024x512xf32> {
  %0 = stablehlo.add %a, %b : tensor<1024x512xf32>
  return %0 : tensor<1024x512xf32>
}
func.func @transposed(%a: tensor<1024x512xf32>, %b: tensor<512x1024xf32>) -> tensor<1024x512xf32> {
  %t = stablehlo.transpose %b, dims = [1, 0] : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
  %0 = stablehlo.add %a, %t : tensor<1024x512xf32>
  return %0 : tensor<1024x512xf32>
}
func.func @every_sixteenth(%a: tensor<512x8192xf32>) -> tensor<512x512xf32> {
  %0 = stablehlo.slice %a [0:512, 0:8192:16] : (tensor<512x8192xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.negate %0 : tensor<512x512xf32>
  return %1 : tensor<512x512xf32>
}
func.func @columns(%a: tensor<2048x512xf32>) -> tensor<512xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<2048x512xf32>, tensor<f32>) -> tensor<512xf32>
  return %r : tensor<512xf32>
}
func.func @apart(%a: tensor<1024x512xf32>) -> tensor<1024x512xf32> {
  %0 = stablehlo.negate %a : tensor<1024x512xf32>
  %1 = stablehlo.optimization_barrier %0 : tensor<1024x512xf32>
  %2 = stablehlo.abs %1 : tensor<1024x512xf32>
  return %2 : tensor<1024x512xf32>
}
func.func @fused(%a: tensor<1024x512xf32>) -> tensor<1024x512xf32> {
  %0 = stablehlo.negate %a : tensor<1024x512xf32>
  %2 = stablehlo.abs %0 : tensor<1024x512xf32>
  return %2 : tensor<1024x512xf32>
}
func.func @copied(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %t = stablehlo.transpose %b, dims = [1, 0] : (tensor<512x512xf32>) -> tensor<512x512xf32>
  %u = stablehlo.optimization_barrier %t : tensor<512x512xf32>
  %0 = stablehlo.dot_general %a, %u, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %0 : tensor<512x512xf32>
}
func.func @product(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %0 : tensor<512x512xf32>
}
func.func @twice(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.tanh %0 : tensor<512x512xf32>
  %c = stablehlo.optimization_barrier %a : tensor<512x512xf32>
  %2 = stablehlo.dot_general %c, %b, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %3 = stablehlo.exponential %2 : tensor<512x512xf32>
  return %1, %3 : tensor<512x512xf32>, tensor<512x512xf32>
}
func.func @different(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.tanh %0 : tensor<512x512xf32>
  %c = stablehlo.optimization_barrier %a : tensor<512x512xf32>
  %2 = stablehlo.dot_general %b, %c, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %3 = stablehlo.exponential %2 : tensor<512x512xf32>
  return %1, %3 : tensor<512x512xf32>, tensor<512x512xf32>
}
func.func @one_row(%x: tensor<1x1024xf32>, %w: tensor<1024x1024xf32>) -> tensor<1x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<1x1024xf32>, tensor<1024x1024xf32>) -> tensor<1x1024xf32>
  return %0 : tensor<1x1024xf32>
}
func.func @many_rows(%x: tensor<64x1024xf32>, %w: tensor<1024x1024xf32>) -> tensor<64x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x1024xf32>) -> tensor<64x1024xf32>
  return %0 : tensor<64x1024xf32>
}
"""
    + "".join(
        f"""
func.func @{name}(%a: tensor<262144xf32>) -> tensor<262144xf32> {{
  %e = tensor.empty() : tensor<262144xf32>
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %many = arith.constant 16 : index
  %limit = arith.constant 1.0 : f32
  %r = linalg.generic {{indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]}}
      ins(%a : tensor<262144xf32>) outs(%e : tensor<262144xf32>) {{
  ^bb0(%x: f32, %o: f32):
{body}
    linalg.yield %y : f32
  }} -> tensor<262144xf32>
  return %r : tensor<262144xf32>
}}
"""
        for name, body in (
            (
                "scalar",
                """    %y = scf.for %k = %zero to %many step %one iter_args(%s = %x) -> f32 {
      %q = arith.mulf %s, %x : f32
      scf.yield %q : f32
    }""",
            ),
            (
                "branches",
                """    %c = arith.cmpf ogt, %x, %limit : f32
    %y = scf.if %c -> f32 {
      %q = math.exp %x : f32
      scf.yield %q : f32
    } else {
      %q = math.sin %x : f32
      scf.yield %q : f32
    }""",
            ),
            ("vector", "    %y = arith.mulf %x, %x : f32"),
        )
    )
    + "".join(
        f"""
func.func @{name}(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512x512xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<512x512xf32>) -> tensor<512x512xf32>
  %0 = linalg.matmul {options} ins(%a, %b : tensor<512x512xf32>, tensor<512x512xf32>)
    outs(%f : tensor<512x512xf32>) -> tensor<512x512xf32>
  return %0 : tensor<512x512xf32>
}}
"""
        for name, options in (("spills", f"{{{_SPILLS}}}"), ("spills_not", ""))
    )
    + _loop("same_each_time", "%w", "%w")
)

RARE = (
    """
func.func @remainder(%a: tensor<262144xf32>, %b: tensor<262144xf32>) -> tensor<262144xf32> {
  %0 = stablehlo.remainder %a, %b : tensor<262144xf32>
  return %0 : tensor<262144xf32>
}
func.func @remainder_of_tanh(%a: tensor<512x512xbf16>, %b: tensor<512x512xbf16>) -> tensor<512x512xbf16> {
  %0 = stablehlo.tanh %a : tensor<512x512xbf16>
  %1 = stablehlo.remainder %0, %b : tensor<512x512xbf16>
  return %1 : tensor<512x512xbf16>
}
func.func @reversed(%a: tensor<262144xf32>, %b: tensor<262144xf32>) -> tensor<262144xf32> {
  %0 = stablehlo.reverse %a, dims = [0] : tensor<262144xf32>
  %1 = stablehlo.add %0, %b : tensor<262144xf32>
  return %1 : tensor<262144xf32>
}
func.func @embedding(%a: tensor<1024xi32>, %table: tensor<5000x256xf32>) -> tensor<1024x256xf32> {
  %i = stablehlo.reshape %a : (tensor<1024xi32>) -> tensor<1024x1xi32>
  %0 = "stablehlo.gather"(%table, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 256>}
    : (tensor<5000x256xf32>, tensor<1024x1xi32>) -> tensor<1024x256xf32>
  %1 = stablehlo.negate %0 : tensor<1024x256xf32>
  return %1 : tensor<1024x256xf32>
}
func.func @wide(%a: tensor<262144xi32>, %b: tensor<262144xi32>) -> tensor<262144xi32> {
  %0 = stablehlo.remainder %a, %b : tensor<262144xi32>
  return %0 : tensor<262144xi32>
}
"""
    + "".join(
        f"""
func.func @{name}(%codes: tensor<262144x{kind}>, %table: tensor<{size}xf32>) -> tensor<262144xf32> {{
  %e = tensor.empty() : tensor<262144xf32>
  %some = arith.constant {step} : index
  %r = linalg.generic {{indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]}}
      ins(%codes : tensor<262144x{kind}>) outs(%e : tensor<262144xf32>) {{
  ^bb0(%x: {kind}, %o: f32):
    %i = linalg.index 0 : index
    %c = arith.index_cast %x : {kind} to index
    %s = {index}
    %t = tensor.extract %table[%s] : tensor<{size}xf32>
    linalg.yield %t : f32
  }} -> tensor<262144xf32>
  return %r : tensor<262144xf32>
}}
"""
        for name, kind, size, step, index in (
            ("small_table", "i8", 256, 128, "arith.addi %c, %some : index"),
            ("large_table", "i32", 1 << 22, 128, "arith.addi %c, %some : index"),
            ("every_sixteenth_index", "i32", 1 << 22, 16, "arith.muli %i, %some : index"),
        )
    )
    + "".join(
        f"""
func.func @{name}(%a: tensor<{whole}xf32>, %b: tensor<65536x4xf32>) -> tensor<65536x4xf32> {{
  %0 = stablehlo.slice %a [{limits}] : (tensor<{whole}xf32>) -> tensor<{part}xf32>
  %1 = stablehlo.reshape %0 : (tensor<{part}xf32>) -> tensor<65536x4xf32>
  %2 = stablehlo.multiply %1, %b : tensor<65536x4xf32>
  return %2 : tensor<65536x4xf32>
}}
"""
        for name, whole, limits, part in (
            ("interleaved", "65536x16x4", "0:65536, 3:4, 0:4", "65536x1x4"),
            ("apart_by_rows", "16x65536x4", "3:4, 0:65536, 0:4", "1x65536x4"),
            ("first_columns", "65536x12", "0:65536, 4:8", "65536x4"),
        )
    )
    + """
func.func @both_halves(%a: tensor<262144x2xf32>) -> tensor<262144xf32> {
  %0 = stablehlo.slice %a [0:262144, 0:1] : (tensor<262144x2xf32>) -> tensor<262144x1xf32>
  %1 = stablehlo.slice %a [0:262144, 1:2] : (tensor<262144x2xf32>) -> tensor<262144x1xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<262144x1xf32>
  %3 = stablehlo.reshape %2 : (tensor<262144x1xf32>) -> tensor<262144xf32>
  return %3 : tensor<262144xf32>
}
"""
    + _loop("with_the_state", "%y", "%w")
    + _loop("with_new_weights", "%w", "%z")
    + _loop("same_in_callee", "%w", "%w", "func.call @square(%w)").replace(
        "func.call @square(%w) : (tensor<256x256xf32>, ", "func.call @square(%w) : ("
    )
    + """
func.func private @square(%w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %z = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %z : tensor<256x256xf32>
}
func.func @same_for_outer_loop(%x: tensor<48x48xf32>, %w: tensor<48x48xf32>, %n: index) -> tensor<48x48xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x48xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<48x48xf32>) {
    %q = scf.for %k = %c0 to %n step %c1 iter_args(%g = %h) -> (tensor<48x48xf32>) {
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<48x48xf32>) -> tensor<48x48xf32>
      %m = linalg.matmul ins(%h, %w : tensor<48x48xf32>, tensor<48x48xf32>)
        outs(%f : tensor<48x48xf32>) -> tensor<48x48xf32>
      %s = linalg.elementwise <add> ins(%m, %g : tensor<48x48xf32>, tensor<48x48xf32>)
        outs(%e : tensor<48x48xf32>) -> tensor<48x48xf32>
      scf.yield %s : tensor<48x48xf32>
    }
    scf.yield %q : tensor<48x48xf32>
  }
  return %r : tensor<48x48xf32>
}
"""
)
"""Functions that only `make thorough` looks at, in a bundle of their own: the compiler takes its time for each."""

PEAKS = Peaks(
    90_000_000_000,
    70_000_000_000,
    "measured",
    (CacheSpeed(32 << 10, 80_000_000_000), CacheSpeed(1 << 20, 60_000_000_000), CacheSpeed(32 << 20, 25_000_000_000)),
)
MS = 1_000_000
CALLS = 2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("advice")
    built_graph(MODEL, folder)
    return load(folder / "m.tracemap")


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("rare")
    built_graph(RARE, folder)
    return load(folder / "m.tracemap")


Holding = Callable[[str], Bundle]
"""Function -> the bundle that has it."""


@pytest.fixture
def holding(request: pytest.FixtureRequest) -> Holding:
    def bundle_of(function: str) -> Bundle:
        found: Bundle = request.getfixturevalue("bundle" if f"@{function}(" in MODEL else "rare")
        return found

    return bundle_of


def found(bundle: Bundle, function: str, *wall_ns: int, workers: int = 1, overhead_ns: int = 1000) -> Attribution:
    """The advice on a run in which the dispatches of a function take these times, per call."""
    sites = [site.id for site in bundle.graph.sites if site.function == function]
    totals = {
        metric: {site: CALLS * ns for site, ns in zip(sites, wall_ns, strict=True)}
        for metric in ("duration_ns", "cpu_ns")
    }
    kernels_ns = CALLS * sum(wall_ns)
    result = attribution(bundle.graph, totals, calls=CALLS, elapsed_ns=kernels_ns + CALLS * overhead_ns)
    elapsed = ElapsedParts(kernels_ns, 0, 0, CALLS * overhead_ns, 0, 0, BY_STOPS)
    time_ns = sum(wall_ns) + overhead_ns
    invocation = structs.replace(result.run.invocation, median_ns=time_ns, low_ns=time_ns, high_ns=time_ns)
    run = structs.replace(result.run, peaks=PEAKS, elapsed=elapsed, workers=workers, invocation=invocation)
    return with_advice(BundleAttribution(bundle, replace(result, run=run))).attribution


CAUSES: Mapping[AdviceRule, tuple[str, tuple[int, ...], str, tuple[int, ...], str]] = {
    AdviceRule.STRIDED_READS: (
        "transposed",
        (MS,),
        "straight",
        (MS // 10,),
        "m.mlir:8 reads with a stride, at 6.3 GB/s",
    ),
    AdviceRule.MISSED_FUSION: ("apart", (MS // 10, MS // 10), "fused", (MS // 10,), "4.00 MiB are written and read"),
    AdviceRule.LAYOUT_COPY: (
        "copied",
        (MS // 2, 3 * MS),
        "product",
        (3 * MS,),
        "copies 2.00 MiB: m.mlir:34 only moves",
    ),
    AdviceRule.REPEATED_WORK: (
        "twice",
        (3 * MS, 3 * MS),
        "different",
        (3 * MS, 3 * MS),
        "m.mlir:50 computes what m.mlir",
    ),
    AdviceRule.COLD_WEIGHTS: ("one_row", (MS // 5,), "many_rows", (2 * MS,), "reads 4.00 MiB of weights at 21.0 GB/s"),
    AdviceRule.NOT_VECTORIZED: ("scalar", (MS,), "vector", (MS // 20,), "computes one element at a time"),
    AdviceRule.SPILLING: ("spills", (8 * MS,), "spills_not", (3 * MS,), "of the instructions in its loop access the"),
    AdviceRule.BELOW_ROOFLINE: ("product", (12 * MS,), "product", (4 * MS,), "runs at 25 % of its roofline"),
}
"""The function with the cause, times of its dispatches, the twin, its times, and a part of the sentence."""


@pytest.mark.parametrize("rule", CAUSES, ids=str)
def test_cause_is_named_and_its_twin_has_no_advice(bundle: Bundle, rule: AdviceRule) -> None:
    planted, times, clean, clean_times, part = CAUSES[rule]
    result = found(bundle, planted, *times)
    assert result.advice[0].rule is rule, result.advice
    (advice, *_) = result.advice
    assert part in advice.text
    assert 0 < advice.low_ns < advice.gain_ns < advice.high_ns < sum(times) + 1000
    assert set(advice.ops) <= {op.id for op in bundle.graph.ops if op.function == planted}
    assert found(bundle, clean, *clean_times).advice == ()


@pytest.mark.parametrize(
    ("function", "time_ns", "rule"),
    long_where(
        [
            ("every_sixteenth", 2 * MS, AdviceRule.STRIDED_READS),
            ("columns", MS, AdviceRule.STRIDED_READS),
            ("every_sixteenth_index", 3 * MS, AdviceRule.STRIDED_READS),
            ("large_table", 3 * MS, AdviceRule.STRIDED_READS),
            ("interleaved", MS // 4, AdviceRule.STRIDED_READS),
            ("first_columns", MS // 4, AdviceRule.STRIDED_READS),
            ("branches", 2 * MS, AdviceRule.NOT_VECTORIZED),
            ("remainder", 2 * MS, AdviceRule.NOT_VECTORIZED),
            ("remainder_of_tanh", 2 * MS, AdviceRule.NOT_VECTORIZED),
            ("reversed", MS // 8, AdviceRule.NOT_VECTORIZED),
            ("small_table", MS // 8, AdviceRule.NOT_VECTORIZED),
        ],
        lambda _, case: case[0] not in ("every_sixteenth", "branches"),
    ),
)
def test_other_forms_of_a_cause(holding: Holding, function: str, time_ns: int, rule: AdviceRule) -> None:
    (advice,) = found(holding(function), function, time_ns).advice
    assert advice.rule is rule


@pytest.mark.parametrize(
    "function",
    long_where(
        ["wide", "straight", "embedding", "apart_by_rows", "both_halves"], lambda _, function: function != "straight"
    ),
)
def test_elementwise_work_in_vectors_has_no_advice(holding: Holding, function: str) -> None:
    assert found(holding(function), function, MS // 4).advice == ()


@pytest.mark.long
def test_remedy_for_scalar_code_depends_on_its_cause(holding: Holding) -> None:
    for function, part in (
        ("branches", "Write its body without control flow"),
        ("remainder", "calls a function for each element. Replace the function by arithmetic"),
        ("small_table", "reads one element at a time. Replace computed indices"),
    ):
        assert part in found(holding(function), function, 2 * MS).advice[0].text


@pytest.mark.parametrize(
    ("function", "gain"),
    long_where(
        [
            ("same_each_time", 7 / 8),
            ("same_in_callee", 7 / 8),
            ("same_for_outer_loop", 1 / 2),
            ("with_the_state", 0),
            ("with_new_weights", 0),
        ],
        lambda number, _: number > 0,
    ),
)
def test_work_that_a_loop_does_not_change(holding: Holding, function: str, gain: float) -> None:
    """Of an inner loop, nobody knows how often it begins. Half of the time is another op's in the same kernel."""
    bundle = holding(function)
    sites = [site for site in bundle.graph.sites if site.function == function]
    result = found(bundle, function, *[2 * MS] * len(sites))
    rows = tuple(structs.replace(site, calls=8 * CALLS) if site.calls else site for site in result.sites)
    advised = with_advice(BundleAttribution(bundle, replace(result, sites=rows))).attribution.advice
    repeated = [advice for advice in advised if advice.rule is AdviceRule.REPEATED_WORK]
    assert len(repeated) == (gain > 0)
    for advice in repeated:
        assert " computes the same " in advice.text
        assert 0.6 * gain * MS <= advice.gain_ns <= gain * MS
        assert advice.low_ns < advice.gain_ns < advice.high_ns < 2 * MS
        product = next(op for op in bundle.graph.ops if op.id == advice.ops[0])
        assert product.name in ("stablehlo.dot_general", "linalg.matmul")


def test_largest_gain_comes_first_and_a_dispatch_has_one_cause(bundle: Bundle) -> None:
    rules = [advice.rule for advice in found(bundle, "copied", 4 * MS, 20 * MS).advice]
    assert rules == [AdviceRule.BELOW_ROOFLINE, AdviceRule.LAYOUT_COPY]  # not strided reads, too
    rules = [advice.rule for advice in found(bundle, "copied", 8 * MS, 4 * MS).advice]
    assert rules == [AdviceRule.LAYOUT_COPY]


def test_gains_below_one_percent_or_the_noise_are_not_named(bundle: Bundle) -> None:
    assert found(bundle, "copied", MS // 100, 4 * MS).advice == ()
    result = found(bundle, "copied", MS // 8, 3 * MS)
    (advice,) = result.advice
    noisy = structs.replace(result.run.invocation, low_ns=int(2.8 * MS), high_ns=int(3.6 * MS))
    again = with_advice(BundleAttribution(bundle, replace(result, run=structs.replace(result.run, invocation=noisy))))
    assert advice.gain_ns < 0.4 * MS
    assert again.attribution.advice == ()


def test_without_measured_peaks_no_kernel_is_slow(bundle: Bundle) -> None:
    result = found(bundle, "product", 12 * MS)
    assumed = structs.replace(result.run, peaks=structs.replace(PEAKS, source="assumed"))
    assert with_advice(BundleAttribution(bundle, replace(result, run=assumed))).attribution.advice == ()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("tiles", "workers", "percent", "is_named"),
    [
        (1, 2, 180, True),
        (3, 2, 180, True),
        (64, 2, 180, False),
        (3, 2, 128, True),
        (4, 2, 128, False),
        (7, 2, 128, False),
        (5, 4, 128, False),
        (9, 8, 140, True),
        (3, 2, 110, False),
    ],
)
def test_few_workgroups_leave_workers_idle(
    bundle: Bundle, tiles: int, workers: int, percent: int, is_named: bool
) -> None:
    """With many workgroups, other programs made the worker wait. Three take two rounds on two workers."""
    result = found(bundle, "product", 4 * MS, workers=workers)
    sites = tuple(
        structs.replace(site, tiles=tiles * CALLS, imbalance_percent=percent) if site.calls else site
        for site in result.sites
    )
    advised = with_advice(BundleAttribution(bundle, replace(result, sites=sites))).attribution.advice
    assert [advice.rule for advice in advised] == [AdviceRule.IMBALANCE] * is_named
    if is_named:
        assert advised[0].command.endswith("m.tracemap --by site")
        assert f"has {tiles} workgroup{'s' if tiles > 1 else ''} for {workers} workers" in advised[0].text


def test_damaged_files_of_a_bundle_do_no_harm(bundle: Bundle, tmp_path: Path) -> None:
    gone = replace(bundle, path=tmp_path / "gone.tracemap")
    result = replace(found(bundle, "twice", 3 * MS, 3 * MS), advice=())
    assert with_advice(BundleAttribution(gone, result)).attribution.advice == ()


def test_commands_quote_hostile_names(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "a b;$(c).tracemap"
    path.symlink_to(bundle.path)
    (advice,) = found(replace(bundle, path=path), "product", 12 * MS).advice
    assert shlex.split(advice.command)[:3] == ["tracemap", "tune", str(path)]


# ---- time between kernels

SYNC, TASK = DeviceTime("local-sync", 200, 190, 210, 20, 1), DeviceTime("local-task", 900, 890, 950, 20, 1)


def divided(queue_ns: int, host_ns: int, *devices: DeviceTime) -> Attribution:
    """A run with one invocation of a microsecond, of which kernels have what queue and host leave."""
    result = attribution(GRAPH, TOTALS, elapsed_ns=1000)
    parts = ElapsedParts(1000 - queue_ns - host_ns, 0, queue_ns, host_ns, 0, 0, BY_STOPS)
    return replace(result, run=structs.replace(result.run, elapsed=parts, devices=devices, iterations=1))


def advice_on(result: Attribution) -> tuple[Advice, ...]:
    return advise(Evidence(GRAPH, result, Path("m.tracemap")))


def text_of(result: Attribution) -> str:
    return "".join(f"{advice.text}: {advice.command}" for advice in advice_on(result))


def test_a_busy_machine_may_be_what_is_waited_for() -> None:
    idle = divided(600, 310)
    busy = replace(idle, diagnostics=(Diagnostic(NOISY, "the run was delayed"),))
    assert "waiting for a CPU" not in text_of(idle)
    assert "; the overhead may include waiting for a CPU (noisy run). Compare devices: tracemap record " in text_of(
        busy
    )


@pytest.mark.parametrize(("submitted_ns", "is_told"), [(90, False), (91, True)])
def test_copies_may_be_a_part_where_submissions_without_kernels_are(submitted_ns: int, is_told: bool) -> None:
    """Queue and host have 910 ns; copies take no more of it than what was submitted takes while no kernel runs."""
    said = Diagnostic(TRANSFERS_UNTIMED, "the runtime does not time a copy")
    rest = UnattributedRow(UnattributedReason.QUEUE, 1, {"duration_ns": submitted_ns})
    result = replace(divided(600, 310), diagnostics=(said,), unattributed=(rest,), metrics=())
    assert ("; the overhead may include untimed copies and fills. Compare devices" in text_of(result)) == is_told


def test_measured_devices_are_named_with_their_gain() -> None:
    (advice,) = advice_on(divided(600, 310, SYNC, TASK))
    assert advice.rule is AdviceRule.OVERHEAD_BOUND
    assert advice.text.startswith("91.0 % of the time is runtime overhead (queue and host); a kernel call takes ")
    assert advice.text.endswith(". local-sync is faster: 200 ns instead of 900 ns on local-task")
    assert advice.command == "tracemap record m.tracemap -- --device=local-sync"
    assert (advice.low_ns, advice.gain_ns, advice.high_ns) == (680, 700, 760)


def test_a_pause_is_no_waiting() -> None:
    assert advice_on(replace(divided(600, 310), diagnostics=(Diagnostic(PAUSED, "the program was paused"),))) == ()


def test_advice_to_measure_where_nobody_has() -> None:
    assert text_of(divided(600, 310)).endswith(
        ". Compare devices: tracemap record m.tracemap --compare-devices local-sync,local-task"
    )


def test_no_advice_where_nothing_calls_for_it() -> None:
    assert advice_on(divided(200, 200, SYNC, TASK)) == ()  # kernels take more than half
    assert advice_on(divided(0, 1000)) == ()  # nothing was done on a device
    assert advice_on(divided(600, 310, SYNC, structs.replace(TASK, low_ns=205))) == ()  # by chance
    assert advice_on(divided(600, 310, SYNC, structs.replace(TASK, low_ns=UNKNOWN, high_ns=UNKNOWN))) == ()
    assert advice_on(divided(600, 310, SYNC)) == ()  # its own was not measured
    assert advice_on(attribution(GRAPH, TOTALS, elapsed_ns=UNKNOWN)) == ()


def test_a_loop_with_overhead_is_to_be_unrolled() -> None:
    loop = Overhead(OverheadPlace.LOOP, (OpId("op1"),), 9, queue_ns=600)
    rest = Overhead(OverheadPlace.CALL, (), 2, host_ns=200)
    (advice,) = advice_on(replace(divided(600, 200), overhead=(loop, rest)))
    assert advice.rule is AdviceRule.OVERHEAD_BOUND
    assert advice.text.startswith("60.0 % of the time is loop overhead at model.mlir:")
    assert advice.text.endswith("Unroll the loop: 8 iterations a trip")
    assert advice.ops == ("op1",)
    assert advice.low_ns < advice.gain_ns <= 600 * 7 / 8 < advice.high_ns


def test_loops_are_apart_and_another_device_saves_their_overhead_too() -> None:
    """Gains of an advice are those of its command: no advice promises what another one does."""
    loops = [Overhead(OverheadPlace.LOOP, (OpId(op),), 9, queue_ns=time) for op, time in (("op1", 300), ("op2", 200))]
    result = replace(divided(500, 400), overhead=(*loops, Overhead(OverheadPlace.CALL, (), 2, host_ns=400)))
    first, second = advice_on(result)
    assert (first.ops, second.ops) == (("op1",), ("op2",))
    assert first.gain_ns < 300
    assert second.gain_ns < 200
    short = replace(result, overhead=(loops[1], Overhead(OverheadPlace.CALL, (), 2, host_ns=700)))
    (device,) = advice_on(short)
    without = Overhead(OverheadPlace.CALL, (), 2, host_ns=900)
    assert (device,) == advice_on(replace(result, overhead=(without,)))
    assert "Compare devices" in device.text


def test_inner_loop_is_unrolled_at_most_by_its_own_trips() -> None:
    """The outer loop has four trips, the inner one three in each: twelve in all."""
    outer, inner = OpId("op1"), OpId("op2")
    places = Submission((0,), UNKNOWN, (1,), False, (outer,)), Submission((1,), UNKNOWN, (0, 1), True, (outer, inner))
    sites = tuple(structs.replace(site, command_buffer=int(site.id == "site1")) for site in GRAPH.sites)
    map_ = structs.replace(GRAPH, sites=sites, schedules=(Schedule("main", (0,), places),))
    loops = [Overhead(OverheadPlace.LOOP, (op,), gaps, time) for op, gaps, time in ((inner, 12, 500), (outer, 3, 20))]
    trips = {"site0": 4, "site1": 12}
    result = divided(520, 200)
    sites_run = tuple(structs.replace(site, calls=trips.get(site.site, site.calls)) for site in result.sites)
    rest = Overhead(OverheadPlace.CALL, (), 2, host_ns=200)
    result = replace(result, overhead=(*loops, rest), sites=sites_run)
    (advice,) = advise(Evidence(map_, result, Path("m.tracemap")))
    assert "(12 trips × " in advice.text
    assert advice.text.endswith("Unroll the loop: jax.lax.scan(..., unroll=3)")
    assert advice.command.endswith("--overhead op2 --faster 3x")


def test_copies_take_as_long_on_another_device() -> None:
    call, copies = Overhead(OverheadPlace.CALL, (), 2, host_ns=800), Overhead(OverheadPlace.TRANSFER, (), 1, 100)
    (advice,) = advice_on(replace(divided(500, 400), overhead=(call, copies)))
    (without,) = advice_on(divided(500, 400))
    assert without.gain_ns - advice.gain_ns == 65
    assert without.low_ns - advice.low_ns == 35
    assert (advice.text, advice.high_ns) == (without.text, without.high_ns)


_MADE_UP = ("4xf32: random in [0, 0.1), seed 0 (made up)", "i32: 0 (made up)")


@pytest.mark.parametrize(
    ("functions", "inputs", "options"),
    [
        (1, ("4xf32: random in [0, 0.1), seed 0 (made up)", "i32: 0 (made up)"), ""),
        (
            2,
            ("4xf32: random in [0, 0.1), seed 0 (made up)", "i32: 0 (made up)"),
            "--function main --input=x=4xf32=0.05",
        ),
        (1, ("@a b.npy", "7"), "'--input=@a b.npy' --input=7"),
        (1, ("4xf32: given as an array", "7"), "--input=4xf32=0.05 --input=7"),
        (2, ("4xf32: x, kept in the bundle", "i32: n, kept in the bundle"), "--function main"),
        (2, (), "--function main"),
    ],
)
def test_commands_record_the_function_and_inputs_of_the_run(
    functions: int, inputs: tuple[str, ...], options: str
) -> None:
    """Where `record` would generate the same inputs, they are left out; it cannot choose the size of a `?`."""
    result = divided(600, 310, SYNC, TASK)
    size = "?" if "--input" in options else "4"
    arguments = Argument("x", f"tensor<{size}xf32>", False), Argument("n", "i32", False)
    map_ = structs.replace(GRAPH, functions=(Function("main", arguments), Function("other", ()))[:functions])
    result = replace(result, run=structs.replace(result.run, inputs=inputs))
    (advice,) = advise(Evidence(map_, result, Path("m.tracemap")))
    assert advice.command == " ".join(f"tracemap record m.tracemap {options} -- --device=local-sync".split())


def test_small_overhead_of_a_loop_is_left() -> None:
    loop = Overhead(OverheadPlace.LOOP, (OpId("op1"),), 9, queue_ns=40)
    rest = Overhead(OverheadPlace.CALL, (), 2, host_ns=160)
    assert advice_on(replace(divided(40, 160), overhead=(loop, rest))) == ()


# ---- reports


@pytest.mark.long
def test_advice_of_a_real_run_is_in_every_report(tmp_path: Path) -> None:
    model = tmp_path / "loop.mlir"
    model.write_text(_LOOP, encoding="utf-8")
    page = tmp_path / "loop.html"
    summary = check_cli("profile", model, "--seconds", "0.3", "-o", page, cwd=tmp_path)
    (line,) = (line for line in summary.splitlines() if line.startswith("advice: "))
    run = "loop.tracemap/runs/run-001.parquet"
    (advice,) = json_cli("attribute", run, "--map", "loop.tracemap", cwd=tmp_path)["advice"]
    assert advice["rule"] == "overhead-bound"
    assert " of the time is loop overhead at loop.mlir:6 (40 trips × " in advice["text"]
    assert line.startswith(f"advice: {advice['text']}; gain ")
    assert line.endswith(advice["command"])
    assert "loop overhead at loop.mlir:6" in page.read_text(encoding="utf-8")
    done = check_cli(*shlex.split(advice["command"])[1:], cwd=tmp_path)  # it works as printed
    assert done.startswith("overhead of op5 8x faster: ")


_LOOP = """
func.func @main(%a: tensor<64x64xf32>, %x: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<40> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4x64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %z = stablehlo.dot_general %y, %a, contracting_dims = [1] x [0]
      : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
    %t = stablehlo.tanh %z : tensor<4x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %t : tensor<i32>, tensor<4x64xf32>
  }
  return %r#1 : tensor<4x64xf32>
}
"""
