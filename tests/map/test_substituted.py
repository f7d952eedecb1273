"""Kernels that the compiler takes from files, and its warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders import built_graph
from tests.support import SAMPLES, check_cli, json_cli
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.map.build.build import COMPILER_WARNED
from tracemap.map.build.compiler.failure_messages import warnings_in
from tracemap.map.build.tagging import unused_prefix
from tracemap.map.bundle import load

MAIN = """func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %product = stablehlo.dot %x, %x : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %bent = stablehlo.tanh %product : tensor<64x64xf32>
  return %bent : tensor<64x64xf32>
}
"""
BEFORE = """func.func @before(%x: tensor<f32>) -> tensor<f32> {
  %a = stablehlo.add %x, %x : tensor<f32>
  %b = stablehlo.multiply %a, %x : tensor<f32>
  return %b : tensor<f32>
}
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["source", "configuration"])
def test_dumps_of_another_model_name_no_ops_of_this_one(kind: str, tmp_path: Path) -> None:
    """A dump has the tags of the model that it was made of, which count the ops of that one."""
    dumps = tmp_path / "dumps"
    first = built_graph(MAIN, tmp_path, f"--iree-hal-dump-executable-{kind}s-to={dumps}")
    (kernel,) = first.kernels
    (dumped,) = dumps.glob("*main_dispatch_0.mlir")
    substituted = f"--iree-hal-substitute-executable-{kind}=main_dispatch_0={dumped}"
    again = built_graph(MAIN, tmp_path, substituted)
    owned = [step.ops for step in kernel.steps]
    assert any(owned)
    assert [step.ops for step in again.kernels[0].steps] == owned  # of the same model, tags are the same
    moved = built_graph(BEFORE + MAIN, tmp_path, substituted)
    (kernel,) = (each for each in moved.kernels if each.name == kernel.name)
    assert kernel.steps
    assert not any(step.ops for step in kernel.steps)
    assert "steps-unknown" in {each.slug for each in moved.diagnostics}


def test_each_model_has_tags_of_its_own() -> None:
    one, other = (unused_prefix(model.encode()) for model in (MAIN, BEFORE))
    assert one != other
    assert re.fullmatch(r"tm\.[0-9a-f]{8}\.op\.", one)
    assert unused_prefix(MAIN.encode()) == one


def test_compiler_warnings_are_diagnostics(tmp_path: Path) -> None:
    """It goes on without what it does not find."""
    dumps = tmp_path / "dumps"
    graph = built_graph(MAIN, tmp_path, f"--iree-hal-dump-executable-sources-to={dumps}")
    assert not graph.diagnostics
    (dumped,) = dumps.glob("*main_dispatch_0.mlir")
    graph = built_graph(MAIN, tmp_path, f"--iree-hal-substitute-executable-source=main_dispatch_7={dumped}")
    (warned,) = graph.diagnostics
    assert warned.slug == COMPILER_WARNED
    assert "`main_dispatch_7` was not found in the module" in warned.message


def test_warnings_are_a_line_each() -> None:
    said = (
        "m.mlir:4:1: warning: while creating it: \nthis is slow.\n\nExamples:\n  a: warning\nmodule {\n^\n"
        "WARNING: nothing was done\nm.mlir:9:1: warning: while creating it: \nthis is slow.\nm.mlir:3:2: note: here\n"
    )
    assert warnings_in(said) == ("while creating it: this is slow.", "nothing was done")
    assert warnings_in("") == ()


@pytest.mark.long
@pytest.mark.parametrize("alignment", [16, 32, 64])
def test_bytecode_with_blobs_of_any_alignment_is_read(alignment: int, tmp_path: Path) -> None:
    """A blob of 64 KiB, whose place in the file is as it wants: Python's own bytes begin anywhere."""
    data = (alignment.to_bytes(4, "little") + bytes(range(256)) * 256).hex().upper()
    text = f"""module {{
  func.func @main(%x: tensor<16384xf32>) -> tensor<16384xf32> {{
    %blob = stablehlo.constant dense_resource<blob> : tensor<16384xf32>
    %sum = stablehlo.add %x, %blob : tensor<16384xf32>
    return %sum : tensor<16384xf32>
  }}
}}
{{-#
  dialect_resources: {{ builtin: {{ blob: "0x{data}" }} }}
#-}}
"""
    (tmp_path / "m.mlir").write_text(text)
    run_tool([find_tool("iree-opt"), tmp_path / "m.mlir", "--emit-bytecode", "-o", tmp_path / "m.mlirbc"])
    check_cli("build", tmp_path / "m.mlirbc", "-o", tmp_path / "m.tracemap")
    assert len(load(tmp_path / "m.tracemap").graph.sites) == 1


@pytest.mark.long
def test_a_kernel_alone_runs_once_where_its_bundle_repeats_it(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "hand_mlp.mlir"
    for count in (1, 8):
        flag = f"--iree-hal-benchmark-dispatch-repeat-count={count}"
        check_cli("build", model, "-o", tmp_path / f"{count}.tracemap", "--", flag)
    times = {}
    for count in (1, 8):
        made = json_cli("bench", tmp_path / f"{count}.tracemap", "--repetitions", "3", "--kernel", "*_0_*")
        (times[count],) = (kernel["time_ns"]["median"] for kernel in made["kernels"])
    assert times[8] < 4 * times[1]
