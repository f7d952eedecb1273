"""Parts of models: they are valid, calls are inlined, and nothing of the original is left in an anonymous one."""

from __future__ import annotations

import random

import pytest

from tests.support import SAMPLES
from tracemap.core.errors import ModelInvalid
from tracemap.ir.anonymous import anonymous_text, items_of, names_in, names_left
from tracemap.ir.kernel_equality import kernel_digest
from tracemap.ir.parsing import MlirParser, walk
from tracemap.ir.slicing import Slicer, count_ops, public_functions

MODELS = (
    "jax_mlp_train",
    "jax_gpt2_4l_scan",
    "onnx_mlp_named",
    "torch_mlp",
    "hand_convnet",
    "hand_loop",
    "hand_multifunc",
)


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_models_are_valid(name: str) -> None:
    """Every part parses again, and each of its operations is a copy of the operation that it states."""
    data = (SAMPLES / "models" / f"{name}.mlir").read_bytes()
    draw = random.Random(name)
    for function in public_functions(data):
        slicer = Slicer(data, function)
        names = [operation.name for operation in walk(slicer.module.operation)]
        everything = range(len(slicer.units))
        chosen = [draw.sample(everything, min(len(everything), size)) for size in (1, 2, 5, 20) if everything]
        valid = 0
        for units in (*chosen, everything):
            try:
                part = slicer.cut(units)
            except ModelInvalid:
                continue
            again = list(walk(MlirParser().parse(part.text).operation))
            assert all(again[position].name == names[source] for position, source in part.sources.items())
            assert part.units <= set(everything)
            valid += 1
        assert valid or not everything


CALLS = """
module @secret_module attributes {acme.owner = "alice"} {
  func.func private @secret_layer(%x: tensor<4xf32> {acme.argument}, %w: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %w {acme.note = {layer = "attention"}, plain_note = 3 : i32} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func public @secret_main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %w = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    %0 = func.call @secret_layer(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %1 = func.call @secret_layer(%0, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
"""


def test_ops_of_called_functions_are_units_of_each_call() -> None:
    slicer = Slicer(CALLS.encode(), "secret_main")
    assert [unit.name for unit in slicer.units] == [
        *("stablehlo.constant", "stablehlo.add", "stablehlo.add", "stablehlo.multiply")
    ]
    first, second = slicer.units[1:3]
    assert first.op == second.op
    assert first.path != second.path
    part = slicer.cut([2, 3])
    assert [value.unit for value in part.arguments] == [1, 0]
    assert [value.unit for value in part.results] == [3]
    assert count_ops(part.module) == 2
    assert slicer.neighbours([2]) == {0, 1, 2, 3}
    assert [unit.name for unit in Slicer(CALLS.encode(), "secret_main", inline=False).units][1] == "func.call"


def test_a_part_returns_no_value_inside_control_flow_that_it_keeps() -> None:
    model = (SAMPLES / "models" / "hand_loop.mlir").read_bytes()
    slicer = Slicer(model, public_functions(model)[0])
    inside = next(unit for unit in slicer.units if unit.parent >= 0 and slicer.results_of(unit.index))
    results = slicer.results_of(inside.index)
    assert slicer.cut([inside.index], results=results).results == results
    with pytest.raises(ModelInvalid, match="inside control flow"):
        slicer.cut([inside.parent, inside.index], results=results)


def test_anonymous_models_have_no_name_of_the_original() -> None:
    names = names_in(CALLS.encode())
    secrets = {"secret_layer", "secret_main", "secret_module", "alice", "attention", "layer", "acme.note", "acme.owner"}
    secrets |= {"acme.argument", "plain_note"}
    assert secrets <= names
    text = Slicer(CALLS.encode(), "secret_main", inline=False).cut([0, 1, 2, 3]).text
    assert names_left(text, names)
    anonymous = anonymous_text(text, "secret_main", names)
    assert names_left(anonymous, names) == ()
    assert not any(secret in anonymous for secret in secrets)
    assert "[1.0" not in anonymous
    assert "@f(" in anonymous
    (data,) = (index for index, item in enumerate(items_of(text)) if "constant" in item)
    assert "2.0" in anonymous_text(text, "secret_main", names, keep=[data])


KERNEL = """
#layout = #hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>
func.func @NAME() {
  %zero = arith.constant 0.0 : f32
  %at = arith.constant OFFSET : index
  %0 = hal.interface.binding.subspan layout(#layout) binding(0) alignment(64) offset(%at) : memref<8xf32>
  %one = arith.constant VALUE : f32
  %i = arith.constant 0 : index
  %1 = memref.load %0[%i] : memref<8xf32>
  %2 = arith.addf %1, %one : f32
  memref.store %2, %0[%i] : memref<8xf32>
  return
}
"""


def test_kernels_are_equal_whatever_the_places_of_their_operands() -> None:
    def digest(name: str, offset: int, value: str) -> str:
        text = KERNEL.replace("NAME", name).replace("OFFSET", str(offset)).replace("VALUE", value)
        return kernel_digest(MlirParser(), text)

    assert digest("a", 0, "1.0") == digest("b", 4096, "1.0")
    assert digest("a", 0, "1.0") != digest("a", 0, "2.0")
