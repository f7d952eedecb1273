"""What a bundle keeps to be called with is what its module is called with, where nothing else is given."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tracemap
from tests.support import run_cli
from tracemap.errors import BundleInvalid, BundleVersion, InputInvalid
from tracemap.graph.bundle import Bundle
from tracemap.graph.kept import Keeping
from tracemap.mapping.build import build
from tracemap.mapping.request import BuildRequest
from tracemap.options.build import BuildOptions

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
    keeping = Keeping("scale", inputs, (("model", folder / "w.irpa"),))
    request = BuildRequest(SCALE.encode(), "scale.mlir", folder / "scale.tracemap", BuildOptions(), keeping=keeping)
    return build(request)


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
        ("version", '"schema_version":1', '"schema_version":9', BundleVersion, "version 9"),
        ("damaged", '"inputs"', '"outputs"', BundleInvalid, "damaged"),
    ):
        with pytest.raises(error, match=said):
            tracemap.run(with_call(name, old, new))
    broken = tmp_path / "broken"
    shutil.copytree(kept.path, broken)
    (broken / "inputs" / "0.npy").write_bytes(b"no array")
    with pytest.raises(InputInvalid, match=r"0\.npy: the array cannot be read"):
        tracemap.run(broken)


def test_a_file_of_onnx_without_what_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x08:\x00\x00")
    done = run_cli("build", file, "-o", tmp_path / "m.tracemap")
    assert done.returncode == 2
    assert "ONNX" in done.stderr
