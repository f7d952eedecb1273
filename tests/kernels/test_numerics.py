"""Numerics of dispatches: statistics, errors, bounds of rounding, the shadow of memory, and explanations of faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support import check_cli
from tracemap.ir.parsing import MlirParser
from tracemap.kernels.model import Verdict
from tracemap.kernels.numeric_faults import Explanation, WrongResult, explain, first_difference
from tracemap.kernels.numerics import (
    KernelSet,
    ShadowMemory,
    error_of,
    rounding_bounds,
    statistics_of,
    verdict_of_bounds,
)
from tracemap.kernels.reference.elements import Memory, View, from_memory, to_memory
from tracemap.kernels.reference.kernel import KernelFunction
from tracemap.map.bundle import load

Floats = npt.NDArray[np.float64]

MODEL = """
#id = affine_map<(i, j) -> (i, j)>
func.func @f(%a: tensor<8x16xf32>, %b: tensor<8x16xf32>, %c: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %scale = arith.constant 1.5 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %0 = linalg.generic {indexing_maps = [#id, #id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %b, %c : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
    %d = arith.subf %x, %y : f32
    %s = arith.mulf %d, %scale : f32
    %t = math.tanh %s : f32
    %larger = arith.cmpf ogt, %x, %z : f32
    %chosen = arith.select %larger, %t, %z : f32
    %r = arith.addf %chosen, %y : f32
    linalg.yield %r : f32
  } -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
func.func @sums(%a: tensor<8x1000xf32>) -> tensor<8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %0 = linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<8x1000xf32>) outs(%f : tensor<8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("numerics")
    (folder / "model.mlir").write_text(MODEL, encoding="utf-8")
    check_cli("build", folder / "model.mlir", "-o", folder / "model.tracemap")
    return str(MlirParser().parse(load(folder / "model.tracemap").configured()).operation)


def kernel(text: str, function: str) -> KernelFunction:
    (name,) = set(re.findall(rf"func\.func @({function}_dispatch_0\w*)", text))
    found = KernelSet(text.encode()).function(name, ())
    assert found is not None
    return found


def edited(text: str, pattern: str, new: str) -> str:
    changed, count = re.subn(pattern, new, text)
    assert count == 1, f"{pattern} is {count} times in the kernels"
    return changed


# ---- statistics


@pytest.mark.parametrize(("element", "smallest"), [("f32", 2.0**-126), ("f16", 2.0**-14), ("bf16", 2.0**-126)])
def test_statistics_are_those_of_numpy(element: str, smallest: float) -> None:
    """Also with numbers of every kind, where the type has other bits than numpy's."""
    usual = from_memory(to_memory(np.random.default_rng(1).normal(size=90), element), element)
    special = [np.nan, np.nan, np.inf, -np.inf, -np.inf, 0.0, -0.0, smallest / 2, -smallest / 4, smallest]
    values = np.concatenate([usual, special]).reshape(10, 10)
    found = statistics_of(View.whole(2, 0, (10, 10), element), to_memory(values, element))
    finite = values[np.isfinite(values)]
    assert (found.binding, found.type, found.elements) == (2, f"10x10x{element}", 100)
    assert (found.nans, found.infinities, found.zeros, found.subnormals) == (2, 3, 2, 2)
    assert (found.least, found.largest) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12)


def test_statistics_without_a_finite_number_are_unknown() -> None:
    found = statistics_of(View.whole(0, 0, (3,), "f32"), np.array([np.nan, np.inf, -np.inf], np.float32))
    assert (found.least, found.largest, found.mean) == (None, None, None)
    assert (found.nans, found.infinities) == (1, 2)
    empty = statistics_of(View.whole(0, 0, (0,), "f32"), np.zeros(0, np.float32))
    assert (empty.elements, empty.least, empty.zeros) == (0, None, 0)


def test_statistics_of_integers() -> None:
    found = statistics_of(View.whole(0, 0, (5,), "i32"), np.array([-3, 0, 0, 7, 2], np.int32))
    assert (found.least, found.largest, found.mean, found.zeros) == (-3, 7, 1.2, 2)
    assert (found.nans, found.subnormals) == (0, 0)


# ---- errors


@pytest.mark.parametrize("steps", [1, 3, 100])
@pytest.mark.parametrize("size", [1.0, 1.75, 3e30, 1e-30, 1e-40])
def test_ulps_are_steps_between_numbers(size: float, steps: int) -> None:
    """Of one element, since the ulps of small elements are those of their tensor's size."""
    right = np.float32(size)
    stored = np.array([np.float64(right) + steps * np.float64(np.spacing(right))], np.float32)
    found = error_of([(View.whole(0, 0, (1,), "f32"), np.array([np.float64(right)]), stored)], 1e-5)
    assert found is not None
    assert found.max_ulps == steps
    assert found.max_abs == steps * np.float64(np.spacing(right))
    assert found.tolerance == 1e-5


def test_a_result_that_is_exact_has_no_error() -> None:
    values = np.array([1.5, -2.0, np.nan, np.inf, 0.0], np.float32)
    found = error_of([(View.whole(0, 0, (5,), "f32"), values.astype(np.float64), values)], 1e-5)
    assert found is not None
    assert (found.max_ulps, found.max_abs, found.max_rel, found.rms_rel) == (0, 0, 0, 0)


def test_a_nan_in_place_of_a_number_is_as_wrong_as_can_be() -> None:
    right, stored = np.array([1.0, 2.0]), np.array([1.0, np.nan], np.float32)
    found = error_of([(View.whole(0, 0, (2,), "f32"), right, stored)], 1e-5)
    assert found is not None
    assert found.max_rel is not None
    assert found.max_rel > 1e300


@pytest.mark.parametrize(
    ("element", "right"), [("f32", [2.7e43, -1e39]), ("f16", [65520, -1e5]), ("bf16", [1e39, -1e50])]
)
def test_an_infinity_that_rounding_makes_is_no_error(element: str, right: list[float]) -> None:
    """Nor do results cancel where all of them are infinite."""
    view, exact = View.whole(0, 0, (2,), element), np.array(right)
    found = error_of([(view, exact, to_memory(np.array([np.inf, -np.inf]), element))], 1e-5)
    assert found is not None
    assert (found.max_ulps, found.max_abs, found.max_rel) == (0, 0, 0)
    swapped = error_of([(view, exact, to_memory(np.array([-np.inf, np.inf]), element))], 1e-5)
    assert swapped is not None
    assert swapped.max_abs > 1e300


def test_an_infinity_in_place_of_a_number_is_an_error() -> None:
    found = error_of([(View.whole(0, 0, (1,), "f16"), np.array([65519.0]), np.array([np.inf], np.float16))], 1e-5)
    assert found is not None
    assert found.max_abs > 1e300


def test_errors_of_what_cancels_have_no_ratio() -> None:
    found = error_of([(View.whole(0, 0, (2,), "f32"), np.zeros(2), np.array([0, 1e-9], np.float32))], 1e-5)
    assert found is not None
    assert (found.max_ulps, found.max_rel, found.rms_rel) == (None, None, None)
    assert found.max_abs == np.float64(np.float32(1e-9))


def test_integers_have_no_rounding_error() -> None:
    assert error_of([(View.whole(0, 0, (2,), "i32"), np.array([1, 2]), np.array([1, 2], np.int32))], 1e-5) is None


# ---- rounding


def one_after_another(row: npt.NDArray[np.float32]) -> np.float32:
    return np.float32(np.cumsum(row, dtype=np.float32)[-1])


def in_lanes(row: npt.NDArray[np.float32]) -> np.float32:
    return one_after_another(np.cumsum(row.reshape(-1, 8), axis=0, dtype=np.float32)[-1])


@pytest.mark.parametrize("order", [one_after_another, in_lanes, lambda row: np.sum(row, dtype=np.float32)])
@pytest.mark.parametrize(
    "make",
    [
        lambda random: random.normal(size=(8, 1000)),
        lambda _: np.full((8, 1000), 0.1),
        lambda random: random.normal(size=(8, 1000)) + 1e4 * np.tile([1, -1], 500),
    ],
    ids=["random", "constant", "cancelling"],
)
def test_bounds_have_room_for_single_precision(
    configured: str, order: Callable[[Any], np.float32], make: Callable[[np.random.Generator], Floats]
) -> None:
    """Sums in any order are within them, a sum with another term is not; nothing is verified where digits cancel."""
    function = kernel(configured, "sums")
    data = make(np.random.default_rng(2)).astype(np.float32)
    (view,) = (access.view for access in function.accesses() if access.stored)

    def memory() -> Memory:
        arrays = [np.zeros(0, np.uint8)] * 2
        for access in function.accesses():
            stored = data if access.loaded else np.zeros(8, np.float32)
            arrays[access.view.binding] = stored.reshape(-1).view(np.uint8).copy()
        return arrays

    exact = function.run(memory()).exact[-1]
    assert np.allclose(exact, data.astype(np.float64).sum(axis=1), rtol=1e-12)
    bounds = rounding_bounds(function, memory, {view: exact})
    found = verdict_of_bounds([(view, exact, np.array([order(row) for row in data]))], bounds)
    assert found is (Verdict.NOT_VERIFIED if np.abs(data).max() > 1e3 else Verdict.RIGHT)  # 1e4 - 1e4 + 1
    data[:, 0] += 1e4
    wrong = np.array([order(row) for row in data])
    assert verdict_of_bounds([(view, exact, wrong)], bounds) is Verdict.WRONG


# ---- shadow


def test_a_shadow_returns_exact_values() -> None:
    shadow, view = ShadowMemory(), View.whole(0, 64, (4, 5), "f32")
    exact = np.random.default_rng(3).normal(size=(4, 5))
    stored = exact.astype(np.float32)
    assert np.array_equal(shadow.values(4096, view, stored), stored)  # nothing is known yet
    shadow.store(4096, view, stored, exact)
    assert np.array_equal(shadow.values(4096, view, stored), exact)
    assert np.array_equal(shadow.values(8192, view, stored), stored)
    assert np.array_equal(shadow.values(4096 + 64, View.whole(0, 0, (20,), "f32"), stored.reshape(-1)), exact.ravel())


def test_a_shadow_of_a_strided_view() -> None:
    shadow, view = ShadowMemory(), View(0, 8, (3, 2), (10, 4), "f32")
    exact = np.arange(6.0).reshape(3, 2) + 1e-9
    shadow.store(4096, view, exact.astype(np.float32), exact)
    assert np.array_equal(shadow.values(4096, view, exact.astype(np.float32)), exact)
    row = View.whole(0, 8, (10,), "f32")
    stored = np.full(10, -1, np.float32)
    stored[[0, 4]] = exact[0]
    expected = stored.astype(np.float64)
    expected[[0, 4]] = exact[0]
    assert np.array_equal(shadow.values(4096, row, stored), expected)


def test_a_shadow_forgets_what_others_wrote() -> None:
    shadow, view = ShadowMemory(), View.whole(0, 0, (3,), "f32")
    exact = np.array([1, 2, 3]) + 1e-9
    shadow.store(4096, view, exact.astype(np.float32), exact)
    now = np.array([1, 5, 3], np.float32)
    assert shadow.values(4096, view, now).tolist() == [exact[0], 5.0, exact[2]]


def test_a_shadow_across_regions() -> None:
    shadow, view = ShadowMemory(), View.whole(0, 0, (8,), "f32")
    exact = np.arange(8.0) + 1e-9
    address = (1 << 28) - 16
    shadow.store(address, view, exact.astype(np.float32), exact)
    assert np.array_equal(shadow.values(address, view, exact.astype(np.float32)), exact)
    tail = View.whole(0, 16, (4,), "f32")
    assert np.array_equal(shadow.values(address, tail, exact[4:].astype(np.float32)), exact[4:])


def test_a_shadow_of_other_types_is_separate() -> None:
    shadow = ShadowMemory()
    exact = np.array([1.0, 2.0]) + 1e-4
    half, single = View.whole(0, 0, (2,), "f16"), View.whole(0, 0, (1,), "f32")
    shadow.store(4096, half, exact.astype(np.float16), exact)
    assert np.array_equal(shadow.values(4096, half, exact.astype(np.float16)), exact)
    stored = exact.astype(np.float16).view(np.float32)
    assert np.array_equal(shadow.values(4096, single, stored), stored)


# ---- faults


def explained(right: KernelFunction, wrong: KernelFunction) -> Explanation | None:
    """The explanation of the wrong kernel's results, in single precision."""
    random = np.random.default_rng(4)
    inputs = {
        access.view.binding: random.normal(size=(8, 16)).astype(np.float32)
        for access in right.accesses()
        if access.loaded
    }
    (view,) = (access.view for access in right.accesses() if access.stored)

    def memory() -> Memory:
        empty = np.zeros((8, 16), np.float32)
        count = len(inputs) + 1
        return [inputs.get(number, empty).reshape(-1).view(np.uint8).copy() for number in range(count)]

    actual = memory()
    wrong.run(actual)
    return explain(WrongResult(right, memory, [(view, view.of(actual))], 1e-5))


@pytest.mark.parametrize(
    ("pattern", "new", "name", "text"),
    [
        (r"(arith.select .*\n.*)arith\.addf (%\w+), (%\w+)", r"\1arith.maximumf \2, \2", "arith.addf", "loses"),
        (r"math\.tanh (%\w+) : f32", r"arith.maximumf \1, \1 : f32", "math.tanh", "is lost"),
        (r"arith\.subf (%\w+), (%\w+)", r"arith.subf \2, \1", "arith.subf", "swapped"),
        (r"arith\.select (%\w+), (%\w+), (%\w+)", r"arith.select \1, \3, \2", "arith.select", "swapped"),
        (r"arith\.cmpf ogt, (%\w+), (%\w+)", r"arith.cmpf ogt, \2, \1", "arith.cmpf", "swapped"),
        (r"arith\.select (%\w+), (%\w+), (%\w+)", r"arith.select \1, \3, \3", "arith.select", "always"),
        (r"arith\.constant 1\.5\S*", "arith.constant 1.75", "arith.mulf", "the constant 1.5 is 1.75"),
    ],
)  # fmt: skip
def test_a_fault_is_explained(configured: str, pattern: str, new: str, name: str, text: str) -> None:
    right, wrong = kernel(configured, "f"), kernel(edited(configured, pattern, new), "f")
    explanation = explained(right, wrong)
    assert explanation is not None
    assert text in explanation.text
    if "cmpf" not in name:  # a swapped comparison is also a swapped choice
        assert explanation.operation.name == name


def test_a_fault_of_another_kind_is_not_explained(configured: str) -> None:
    """Nothing is named where no single change has the result."""
    two = edited(configured, r"math\.tanh", "math.exp")
    assert explained(kernel(configured, "f"), kernel(two, "f")) is None


def test_the_first_difference_of_kernels(configured: str) -> None:
    right = kernel(configured, "f")
    assert first_difference(right, kernel(configured, "f")) == (None, None)
    other = kernel(edited(configured, r"math\.tanh", "math.exp"), "f")
    ours, theirs = first_difference(right, other)
    assert ours is not None
    assert theirs is not None
    assert (ours.name, theirs.name) == ("math.tanh", "math.exp")
    swapped = kernel(edited(configured, r"arith\.subf (%\w+), (%\w+)", r"arith.subf \2, \1"), "f")
    assert [side.name for side in first_difference(right, swapped) if side is not None] == ["arith.subf"] * 2


def test_a_kernel_of_another_name_is_unknown(configured: str) -> None:
    assert KernelSet(configured.encode()).function("absent", ()) is None
