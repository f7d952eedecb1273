"""Inputs saved in a bundle are used where no others are given."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tracemap
from tests.support import check_cli, run_cli
from tracemap.capture.inputs import SavedInputs
from tracemap.commands.programs import saved_inputs_to_copy
from tracemap.commands.tune import _build_with_spec, _WorkCache
from tracemap.core.errors import BundleInvalid, BundleVersion, InputInvalid
from tracemap.map.build.build import BuildRequest, build
from tracemap.map.bundle import Bundle
from tracemap.map.bundle_documents import CallToKeep
from tracemap.options.compile import BuildOptions

SCALE = """module {
  util.global private @w = #stream.parameter.named<"model"::"w"> : tensor<4xf32>
  func.func @scale(%x: tensor<4xf32>, %small: tensor<4xbf16>, %n: tensor<i32>) -> tensor<4xf32> {
    %w = util.global.load @w : tensor<4xf32>
    %0 = stablehlo.convert %small : (tensor<4xbf16>) -> tensor<4xf32>
    %1 = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.multiply %x, %w : tensor<4xf32>
    %4 = stablehlo.add %3, %0 : tensor<4xf32>
    %5 = stablehlo.add %4, %2 : tensor<4xf32>
    return %5 : tensor<4xf32>
  }
}
"""
X, SMALL, W = (
    np.array([1, 2, 3, 4], np.float32),
    np.array([0.5, 1, 2, 4], ml_dtypes.bfloat16),
    np.full(4, 3, np.float32),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    from iree.runtime import ParameterIndex

    folder = tmp_path_factory.mktemp("kept")
    index = ParameterIndex()
    index.add_buffer("w", W)
    index.create_archive_file(str(folder / "w.irpa"))
    inputs = (("x", X), ("small['a']", SMALL), ("n", np.asarray(7, np.int32)))
    keeping = CallToKeep("scale", inputs, (("model", folder / "w.irpa"),))
    request = BuildRequest(SCALE.encode(), "scale.mlir", folder / "scale.tracemap", BuildOptions(), keeping=keeping)
    return build(request)


@pytest.mark.long
def test_kept_inputs_are_those_of_a_call(kept: Bundle) -> None:
    right = X * 3 + SMALL.astype(np.float32) + 7
    np.testing.assert_array_equal(tracemap.run(kept)[0], right)
    run = tracemap.record(kept, iterations=1, warmup=0)
    said = ("4xf32: x, kept in the bundle", "4xbf16: small['a'], kept in the bundle", "i32: n, kept in the bundle")
    assert run.header.inputs == said


def test_inputs_that_are_given_count(kept: Bundle, tmp_path: Path) -> None:
    assert tracemap.run(kept, inputs=["4xf32=0", "4xbf16=0", "i32=1"])[0].tolist() == [1, 1, 1, 1]
    from iree.runtime import ParameterIndex

    index = ParameterIndex()
    index.add_buffer("w", np.zeros(4, np.float32))
    index.create_archive_file(str(tmp_path / "zeros.irpa"))
    zeros = tracemap.run(kept, runtime_flags=[f"--parameters=model={tmp_path / 'zeros.irpa'}"])[0]
    np.testing.assert_array_equal(zeros, SMALL.astype(np.float32) + 7)


@pytest.mark.long
def test_a_size_asks_for_other_inputs_than_those_kept(tmp_path: Path) -> None:
    text = SCALE.replace("%x: tensor<4xf32>, ", "%x: tensor<4xf32>, %more: tensor<?xf32>, ")
    inputs = (("x", X), ("more", np.zeros(3, np.float32)), ("small", SMALL), ("n", np.asarray(7, np.int32)))
    text = text.replace('#stream.parameter.named<"model"::"w">', "dense<3.0>")
    request = BuildRequest(
        text.encode(), "scale.mlir", tmp_path / "scale.tracemap", BuildOptions(), keeping=CallToKeep("scale", inputs)
    )
    bundle = build(request)
    of_bundle = tracemap.record(bundle, iterations=1, warmup=0)
    of_size = tracemap.record(bundle, iterations=1, warmup=0, dim=5)
    assert [said.partition(":")[0] for said in of_bundle.header.inputs] == ["4xf32", "3xf32", "4xbf16", "i32"]
    assert [said.partition(":")[0] for said in of_size.header.inputs][:2] == ["4xf32", "5xf32"]
    assert not any("kept" in said for said in of_size.header.inputs)


def test_what_is_damaged_is_refused(kept: Bundle, tmp_path: Path) -> None:
    def with_call(name: str, old: str, new: str) -> Bundle:
        copy = tmp_path / name
        shutil.copytree(kept.path, copy)
        text = (copy / "call.json").read_text()
        assert old in text
        (copy / "call.json").write_text(text.replace(old, new))
        return tracemap.load(copy)

    for name, old, new, error, said in (
        ("outside", '"0.npy"', '"../module.vmfb"', BundleInvalid, "outside of the bundle"),
        ("missing", '"0.npy"', '"9.npy"', BundleInvalid, "inputs/9.npy is missing"),
        (
            "version",
            '"schema_version":2',
            '"schema_version":9',
            BundleVersion,
            "version 9, expected 2; build the bundle again",
        ),
        ("damaged", '"inputs"', '"outputs"', BundleInvalid, "damaged"),
    ):
        with pytest.raises(error, match=said):
            tracemap.run(with_call(name, old, new))
    broken = tmp_path / "broken"
    shutil.copytree(kept.path, broken)
    (broken / "inputs" / "0.npy").write_bytes(b"no array")
    with pytest.raises(InputInvalid, match=r"0\.npy: the array cannot be read"):
        tracemap.run(broken)


SPEC = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) -> !transform.any_op
      attributes {iree_codegen.tuning_spec_entrypoint} {
    transform.yield %variant : !transform.any_op
  }
}
"""
"""A tuning spec that changes nothing."""


def safetensors(values: np.ndarray[Any, Any]) -> bytes:
    tensor = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, values.nbytes]}
    about = json.dumps({"w": tensor}).encode()
    return struct.pack("<Q", len(about)) + about + values.tobytes()


def gguf(values: np.ndarray[Any, Any]) -> bytes:
    """Version 3: no metadata, one tensor of type 0 (float32), whose data is aligned to 32 bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    head += struct.pack("<I", values.ndim) + struct.pack(f"<{values.ndim}Q", *values.shape) + struct.pack("<IQ", 0, 0)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + values.tobytes()


@pytest.mark.long
@pytest.mark.parametrize(("name", "make"), [("w.safetensors", safetensors), ("w.gguf", gguf)])
def test_parameters_are_referred_to(name: str, make: Callable[[Any], bytes], tmp_path: Path) -> None:
    (tmp_path / "scale.mlir").write_text(SCALE)
    (tmp_path / name).write_bytes(make(W))
    check_cli("build", "scale.mlir", "--parameters", f"model={name}", cwd=tmp_path)
    bundle = tracemap.load(tmp_path / "scale.tracemap")
    assert not list(bundle.path.rglob("*.safetensors")) + list(bundle.path.rglob("*.gguf"))  # nothing is copied
    inputs = ["4xf32=1", "4xbf16=0", "i32=1"]
    assert tracemap.run(bundle, inputs=inputs)[0].tolist() == [4, 4, 4, 4]
    (tmp_path / name).write_bytes(make(2 * W))
    assert tracemap.run(bundle, inputs=inputs)[0].tolist() == [7, 7, 7, 7]
    run = tracemap.record(bundle, inputs=inputs, iterations=1)
    assert f"--parameters=model={tmp_path / name}" in run.header.command
    moved = tmp_path / f"moved-{name}"
    (tmp_path / name).rename(moved)
    with pytest.raises(InputInvalid, match=rf"{name}: this file with the bundle's parameters is missing"):
        tracemap.run(bundle, inputs=inputs)
    elsewhere = [f"--parameters=model={moved}"]
    assert tracemap.run(bundle, inputs=inputs, runtime_flags=elsewhere)[0].tolist() == [7, 7, 7, 7]


def test_a_name_that_no_file_can_have_is_not_there() -> None:
    kept = SavedInputs("mlp", parameters=(("model", Path("w" * 300)),))
    with pytest.raises(InputInvalid, match="this file with the bundle's parameters is missing"):
        kept.flags(())


@pytest.mark.long
def test_parameters_that_are_named_take_the_place_of_those_of_the_program(kept: Bundle, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(safetensors(W - 3))
    keeping = CallToKeep(
        parameters=(("model", kept.path / "parameters" / "0.irpa"), ("other", tmp_path / "w.safetensors"))
    )
    options = BuildOptions(parameters=(f"model={tmp_path / 'w.safetensors'}",))
    made = build(BuildRequest(SCALE.encode(), "scale.mlir", tmp_path / "a.tracemap", options, keeping=keeping))
    call = made.kept_call()
    assert call is not None
    assert [(each.scope, bool(each.file), bool(each.path)) for each in call.parameters] == [
        ("other", True, False),
        ("model", False, True),
    ]
    assert tracemap.run(made, inputs=["4xf32=1", "4xbf16=0", "i32=1"])[0].tolist() == [1, 1, 1, 1]


def test_parameters_that_cannot_be_read_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "scale.mlir").write_text(SCALE)
    (tmp_path / "w.bin").write_bytes(b"")
    for named, said in (("model=none.irpa", "none.irpa"), ("w.bin", "IREE does not read")):
        done = run_cli("build", "scale.mlir", "--parameters", named, cwd=tmp_path)
        assert said in done.stderr
        assert done.stderr.endswith("[input-invalid]\n")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.long
@pytest.mark.parametrize("referred", [False, True], ids=["kept", "referred"])
def test_bundles_that_are_made_of_a_bundle_keep_the_same(referred: bool, kept: Bundle, tmp_path: Path) -> None:
    """`swap` and `tune` build the program again, and record both: with the same arrays and parameters."""
    original = kept
    if referred:
        (tmp_path / "w.safetensors").write_bytes(safetensors(W))
        options = BuildOptions(parameters=(f"model={tmp_path / 'w.safetensors'}",))
        call = BuildRequest(
            SCALE.encode(), "scale.mlir", tmp_path / "a.tracemap", options, keeping=saved_inputs_to_copy(kept)
        )
        original = build(call)
    (kernel,) = {site.kernel for site in original.graph.sites}
    (tmp_path / "edited.mlir").write_text(
        check_cli("swap", original.path, kernel, "--dump", "configuration", cwd=tmp_path)
    )
    target, files = tmp_path / "new.tracemap", {kernel: tmp_path / "edited.mlir"}
    swapped = tracemap.swap(original, files, target, pairs=0, no_verify=True, verify_application=True)
    assert [output.matches for each in swapped.functions for output in each.outputs] == [True]
    for made in (tracemap.load(target), _build_with_spec(original, SPEC, _WorkCache.prepare(tmp_path / "work"))):
        assert made.kept_call() == original.kept_call()
        np.testing.assert_array_equal(tracemap.run(made)[0], tracemap.run(original)[0])


def test_a_file_of_onnx_without_what_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x08:\x00\x00")
    done = run_cli("build", file, "-o", tmp_path / "m.tracemap")
    assert done.returncode == 2
    assert "ONNX" in done.stderr
