"""The numpy reference computes what IREE's machine code computes: operations, types, reductions.

Each program below is compiled by IREE and run; the two share nothing but the IR. What numpy does not compute is
compared with a plain compilation.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT, Json, check_cli, json_cli, run_cli
from tracemap.kernels.reference.elements import nearest_codes, values_of

FLOATS = {
    "f32": [
        *("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", "arith.minimumf"),
        *("arith.maxnumf", "arith.minnumf"),
        *("arith.negf", "math.absf", "math.exp", "math.tanh", "math.erf", "math.sin", "math.cos", "math.floor"),
        *("math.ceil", "math.roundeven", "math.exp2", "math.expm1", "math.atan"),
    ],
    "f16": ["arith.addf", "arith.mulf", "arith.maximumf", "math.absf"],
    "f64": ["arith.addf", "arith.divf", "arith.negf"],
}
INTEGERS = {
    "i32": [
        *("arith.addi", "arith.subi", "arith.muli", "arith.andi", "arith.ori", "arith.xori", "arith.maxsi"),
        *("arith.minsi", "arith.maxui", "arith.minui"),
    ],
    "i8": ["arith.addi", "arith.muli", "arith.maxsi", "arith.minui"],
    "i64": ["arith.addi", "arith.muli", "arith.minsi"],
}
DIVISIONS = {"i32": ["arith.divsi", "arith.remsi", "arith.divui", "arith.remui"]}
UNARY = ("math.", "arith.negf")


def elementwise(function: str, element: str, names: list[str]) -> str:
    """A function with a loop for each operation, all of which the compiler may fuse."""
    kind = f"tensor<67x{element}>"
    lines = [f"func.func @{function}(%a: {kind}, %b: {kind}) -> ({', '.join([kind] * len(names))}) {{"]
    lines.append(f"  %e = tensor.empty() : {kind}")
    maps = "[affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>]"
    for number, name in enumerate(names):
        operands = "%x" if name.startswith(UNARY) else "%x, %y"
        lines += [
            f'  %{number} = linalg.generic {{indexing_maps = {maps}, iterator_types = ["parallel"]}}',
            f"    ins(%a, %b : {kind}, {kind}) outs(%e : {kind}) {{",
            f"  ^bb0(%x: {element}, %y: {element}, %o: {element}):",
            f"    %r = {name} {operands} : {element}",
            f"    linalg.yield %r : {element}",
            f"  }} -> {kind}",
        ]
    results = ", ".join(f"%{number}" for number in range(len(names)))
    return "\n".join([*lines, f"  return {results} : {', '.join([kind] * len(names))}", "}"])


GATHER = """
func.func @gather(%table: tensor<50x16xf32>, %rows: tensor<9xi64>) -> tensor<9x16xf32> {
  %e = tensor.empty() : tensor<9x16xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%rows : tensor<9xi64>) outs(%e : tensor<9x16xf32>) {
  ^bb0(%row: i64, %o: f32):
    %i = arith.index_cast %row : i64 to index
    %j = linalg.index 1 : index
    %x = tensor.extract %table[%i, %j] : tensor<50x16xf32>
    linalg.yield %x : f32
  } -> tensor<9x16xf32>
  return %0 : tensor<9x16xf32>
}
"""
ARGMAX = """
func.func @argmax(%a: tensor<13x37xf32>) -> (tensor<13xf32>, tensor<13xi32>) {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %ef = tensor.empty() : tensor<13xf32>
  %ei = tensor.empty() : tensor<13xi32>
  %f = linalg.fill ins(%low : f32) outs(%ef : tensor<13xf32>) -> tensor<13xf32>
  %i = linalg.fill ins(%zero : i32) outs(%ei : tensor<13xi32>) -> tensor<13xi32>
  %0:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<13x37xf32>) outs(%f, %i : tensor<13xf32>, tensor<13xi32>) {
  ^bb0(%x: f32, %m: f32, %k: i32):
    %j = linalg.index 1 : index
    %n = arith.index_cast %j : index to i32
    %larger = arith.cmpf ogt, %x, %m : f32
    %best = arith.select %larger, %x, %m : f32
    %place = arith.select %larger, %n, %k : i32
    linalg.yield %best, %place : f32, i32
  } -> (tensor<13xf32>, tensor<13xi32>)
  return %0#0, %0#1 : tensor<13xf32>, tensor<13xi32>
}
"""
QUANTIZED = """
func.func @quantized(%a: tensor<8x24xi8>, %b: tensor<24x16xi8>) -> tensor<8x16xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<8x16xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<8x16xi32>) -> tensor<8x16xi32>
  %0 = linalg.matmul ins(%a, %b : tensor<8x24xi8>, tensor<24x16xi8>) outs(%f : tensor<8x16xi32>) -> tensor<8x16xi32>
  return %0 : tensor<8x16xi32>
}
"""
POOL = """
func.func @pool(%a: tensor<1x11x11x8xf32>) -> tensor<1x5x5x8xf32> {
  %low = arith.constant 0xFF800000 : f32
  %w = tensor.empty() : tensor<3x3xf32>
  %e = tensor.empty() : tensor<1x5x5x8xf32>
  %f = linalg.fill ins(%low : f32) outs(%e : tensor<1x5x5x8xf32>) -> tensor<1x5x5x8xf32>
  %0 = linalg.pooling_nhwc_max {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%a, %w : tensor<1x11x11x8xf32>, tensor<3x3xf32>) outs(%f : tensor<1x5x5x8xf32>) -> tensor<1x5x5x8xf32>
  return %0 : tensor<1x5x5x8xf32>
}
"""
CONVERSIONS = """
func.func @conversions(%a: tensor<31xf32>, %b: tensor<31xi8>) -> (tensor<31xi32>, tensor<31xf16>, tensor<31xi32>,
    tensor<31xi32>, tensor<31xf32>) {
  %ei = tensor.empty() : tensor<31xi32>
  %eh = tensor.empty() : tensor<31xf16>
  %ef = tensor.empty() : tensor<31xf32>
  %0:5 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
      affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
      affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<31xf32>, tensor<31xi8>)
      outs(%ei, %eh, %ei, %ei, %ef : tensor<31xi32>, tensor<31xf16>, tensor<31xi32>, tensor<31xi32>, tensor<31xf32>) {
  ^bb0(%x: f32, %n: i8, %o0: i32, %o1: f16, %o2: i32, %o3: i32, %o4: f32):
    %c = arith.constant 100.0 : f32
    %y = arith.mulf %x, %c : f32
    %0 = arith.fptosi %y : f32 to i32
    %1 = arith.truncf %y : f32 to f16
    %2 = arith.extsi %n : i8 to i32
    %3 = arith.extui %n : i8 to i32
    %4 = arith.sitofp %n : i8 to f32
    linalg.yield %0, %1, %2, %3, %4 : i32, f16, i32, i32, f32
  } -> (tensor<31xi32>, tensor<31xf16>, tensor<31xi32>, tensor<31xi32>, tensor<31xf32>)
  return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<31xi32>, tensor<31xf16>, tensor<31xi32>, tensor<31xi32>, tensor<31xf32>
}
"""
_SERIES = {"floats": FLOATS, "integers": INTEGERS, "divisions": DIVISIONS}
BYTES = """
func.func @NAME(%a: tensor<8x24xi8>, %b: tensor<24x16xf32>) -> tensor<8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
      affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<8x24xi8>, tensor<24x16xf32>) outs(%f : tensor<8x16xf32>) {
  ^bb0(%x: i8, %y: f32, %o: f32):
    %u = arith.CONVERSION %x : i8 to f32
    %m = arith.mulf %u, %y : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""
TRUTH = ("addi", "subi", "muli", "maxsi", "minsi", "maxui", "minui", "xori", "cmpi slt,", "cmpi sge,", "cmpi ult,")


def truth_values() -> str:
    """A function of numbers of one bit, whose results are widened to what a buffer can hold."""
    kind, count = "tensor<67xi32>", len(TRUTH)
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (2 + count))
    outs = f"{', '.join(['%e'] * count)} : {', '.join([kind] * count)}"
    lines = [
        f"func.func @truth_values(%a: {kind}, %b: {kind}) -> ({', '.join([kind] * count)}) {{",
        f"  %e = tensor.empty() : {kind}",
        f'  %0:{count} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}',
        f"      ins(%a, %b : {kind}, {kind}) outs({outs}) {{",
        f"  ^bb0(%x: i32, %y: i32, {', '.join(f'%o{number}: i32' for number in range(count))}):",
        "    %p = arith.trunci %x : i32 to i1",
        "    %q = arith.trunci %y : i32 to i1",
    ]
    for number, name in enumerate(TRUTH):
        lines.append(f"    %t{number} = arith.{name} %p, %q : i1")
        lines.append(f"    %r{number} = arith.ext{'us'[number % 2]}i %t{number} : i1 to i32")
    values = ", ".join(f"%r{number}" for number in range(count))
    lines.append(f"    linalg.yield {values} : {', '.join(['i32'] * count)}")
    lines.append(f"  }} -> ({', '.join([kind] * count)})")
    results = ", ".join(f"%0#{number}" for number in range(count))
    return "\n".join([*lines, f"  return {results} : {', '.join([kind] * count)}", "}"])


SCANNED = """
func.func @scanned(%a: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %i = tensor.empty() : tensor<8x64xf32>
  %z = tensor.empty() : tensor<8xf32>
  %c = arith.constant 0.0 : f32
  %zz = linalg.fill ins(%c : f32) outs(%z : tensor<8xf32>) -> tensor<8xf32>
  %0:2 = iree_linalg_ext.scan dimension(1) inclusive(true) ins(%a : tensor<8x64xf32>)
      outs(%i, %zz : tensor<8x64xf32>, tensor<8xf32>) {
  ^bb0(%x: f32, %y: f32):
    %s = arith.addf %x, %y : f32
    iree_linalg_ext.yield %s : f32
  } -> tensor<8x64xf32>, tensor<8xf32>
  return %0#0 : tensor<8x64xf32>
}
"""

SORTED = """
func.func @sorted(%a: tensor<64x33xf32>) -> tensor<64x33xf32> {
  %0 = "stablehlo.sort"(%a) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %c = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<64x33xf32>) -> tensor<64x33xf32>
  return %0 : tensor<64x33xf32>
}
"""

CHOSEN = """
func.func @chosen(%a: tensor<4x100xf32>) -> (tensor<4x5xf32>, tensor<4x5xi32>) {
  %v, %i = chlo.top_k(%a, k = 5) : tensor<4x100xf32> -> (tensor<4x5xf32>, tensor<4x5xi32>)
  return %v, %i : tensor<4x5xf32>, tensor<4x5xi32>
}
"""

SCATTERED = """
func.func @scattered(%a: tensor<40x16xf32>, %i: tensor<8x1xi32>, %u: tensor<8x16xf32>) -> tensor<40x16xf32> {
  %0 = "stablehlo.scatter"(%a, %i, %u) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false,
      unique_indices = false} : (tensor<40x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<40x16xf32>
  return %0 : tensor<40x16xf32>
}
"""

TRANSFORMED = """
func.func @transformed(%a: tensor<8x64xf32>) -> (tensor<8x33xf32>, tensor<8x33xf32>) {
  %0 = stablehlo.fft %a, type = RFFT, length = [64] : (tensor<8x64xf32>) -> tensor<8x33xcomplex<f32>>
  %r = stablehlo.real %0 : (tensor<8x33xcomplex<f32>>) -> tensor<8x33xf32>
  %i = stablehlo.imag %0 : (tensor<8x33xcomplex<f32>>) -> tensor<8x33xf32>
  return %r, %i : tensor<8x33xf32>, tensor<8x33xf32>
}
"""


def converted(function: str, source: str, target: str, convert: str) -> str:
    """A function that only converts elements."""
    return f"""
func.func @{function}(%x: tensor<64x64x{source}>) -> tensor<64x64x{target}> {{
  %e = tensor.empty() : tensor<64x64x{target}>
  %r = linalg.generic {{
      indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a, b)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<64x64x{source}>) outs(%e : tensor<64x64x{target}>) {{
  ^bb0(%p: {source}, %o: {target}):
    %c = {convert} %p : {source} to {target}
    linalg.yield %c : {target}
  }} -> tensor<64x64x{target}>
  return %r : tensor<64x64x{target}>
}}
"""


NARROW = {
    **{
        f"read_{element}": converted(f"read_{element}", element, "f32", "arith.extf")
        for element in ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E8M0FNU")
    },
    **{
        f"wrote_{element}": converted(f"wrote_{element}", "f32", element, "arith.truncf")
        for element in ("f8E4M3FN", "f8E4M3FNUZ")
    },
    **{f"read_{element}": converted(f"read_{element}", element, "i32", "arith.extsi") for element in ("i2", "i4")},
    "wrote_i4": converted("wrote_i4", "i32", "i4", "arith.trunci"),
}
"""Of elements of less than a byte, or floats of one."""


PROGRAMS = {
    **NARROW,
    **{
        f"{kind}_{element}": elementwise(f"{kind}_{element}", element, names)
        for kind, series in _SERIES.items()
        for element, names in series.items()
    },
    "gather": GATHER,
    "sorted": SORTED,
    "scanned": SCANNED,
    "chosen": CHOSEN,
    "scattered": SCATTERED,
    "transformed": TRANSFORMED,
    "argmax": ARGMAX,
    "quantized": QUANTIZED,
    "pool": POOL,
    "conversions": CONVERSIONS,
    "truth_values": truth_values(),
    "bytes_with_sign": BYTES.replace("CONVERSION", "sitofp").replace("NAME", "bytes_with_sign"),
    "bytes_without_sign": BYTES.replace("CONVERSION", "uitofp").replace("NAME", "bytes_without_sign"),
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """The kernels of all programs, compiled at once and run alone."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "model.mlir").write_text("\n".join(PROGRAMS.values()), encoding="utf-8")
    flags = ("--iree-opt-const-eval=false", "--iree-input-demote-f64-to-f32=false")
    check_cli("build", folder / "model.mlir", "-o", folder / "model.tracemap", "--", *flags)
    options = ("--repetitions", "1", "--min-time", "0.1", "--format", "json")
    done = run_cli("bench", folder / "model.tracemap", *options)  # ends with status 1 where a kernel is wrong
    found: list[Json] = json.loads(done.stdout)["kernels"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_numpy_and_machine_code_agree(name: str, verified: list[Json]) -> None:
    kernels = [kernel for kernel in verified if kernel["kernel"].startswith(f"{name}_dispatch_")]
    assert kernels, "nothing is left to run"
    for kernel in kernels:
        assert kernel["verification"]["status"] == "SUCCESS", kernel["verification"]


@pytest.mark.long
def test_what_numpy_does_not_compute_is_compared_with_a_plain_compilation(verified: list[Json], tmp_path: Path) -> None:
    """A running sum; as a running product it is wrong."""
    (kernel,) = [each for each in verified if each["kernel"].startswith("scanned_dispatch_")]
    assert kernel["verification"]["reference"] == "iree-compile without tiles and vectors"
    (tmp_path / "model.mlir").write_text(SCANNED, encoding="utf-8")
    check_cli("build", "model.mlir", cwd=tmp_path)
    name = kernel["kernel"]
    text = check_cli("swap", "model.tracemap", name, "--dump", "configuration", cwd=tmp_path)
    assert text.count("arith.addf") == 1
    (tmp_path / "wrong.mlir").write_text(text.replace("arith.addf", "arith.mulf"), encoding="utf-8")
    options = ("-o", "wrong.tracemap", "--pairs", "0", "--format", "json")
    done = run_cli("swap", "model.tracemap", f"{name}=wrong.mlir", *options, cwd=tmp_path)
    (changed,) = json.loads(done.stdout)["kernels"]
    assert (done.returncode, changed["verification"]["status"]) == (1, "FAILED")
    assert "8x64xf32 in binding" in changed["verification"]["reason"]


@pytest.mark.long
def test_kernels_of_data_tiling_are_verified(tmp_path: Path) -> None:
    """They unpack the tiles of one product, and pack those of the next."""
    program = ROOT / "tests" / "programs" / "data_tiled.mlir"
    flags = ("--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all")
    check_cli("build", program, "-o", tmp_path / "m.tracemap", "--", *flags)
    kernels = json_cli("bench", tmp_path / "m.tracemap", "--repetitions", "1", "--min-time", "0.1")["kernels"]
    assert len(kernels) == 5
    for kernel in kernels:
        assert kernel["verification"]["status"] == "SUCCESS", kernel["verification"]
        assert kernel["verification"]["reference"] == "numpy"


def test_small_floats_have_the_values_of_their_formats() -> None:
    """The largest number, the least and the NaN of each (OCP OFP8 and MX, tables 1 and 7; LLVM APFloat for FNUZ)."""
    for element, largest, least, nan in [
        ("f8E4M3FN", 448.0, 2.0**-9, 0x7F),
        ("f8E5M2", 57344.0, 2.0**-16, 0x7D),
        ("f8E4M3FNUZ", 240.0, 2.0**-10, 0x80),
        ("f8E5M2FNUZ", 57344.0, 2.0**-17, 0x80),
        ("f8E8M0FNU", 2.0**127, 2.0**-127, 0xFF),
    ]:
        values = values_of(element)
        finite = values[np.isfinite(values)]
        assert (finite.max(), finite[finite > 0].min()) == (largest, least)
        assert np.isnan(values[nan])
        assert np.array_equal(values_of(element)[nearest_codes(finite, element)], finite)
        with pytest.raises(OverflowError, match=element):
            nearest_codes([largest * 2], element)
    ties = nearest_codes([1.0625, 1.1875, -0.0, np.nan], "f8E4M3FN")
    assert [*values_of("f8E4M3FN")[ties][:2]] == [1.0, 1.25]
    assert [*ties[2:]] == [0x80, 0x7F]
