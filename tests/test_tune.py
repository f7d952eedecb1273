"""`tracemap tune`: a badly tiled kernel is brought back; a plain iree-compile takes the spec; noise is no gain."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import PLAIN_FLAGS, SAMPLES, Json, check_cli, json_cli, run_cli
from tracemap.experiments.configuring import levels_of, written
from tracemap.experiments.tuning import candidates_of, interval_of
from tracemap.toolchain import find_tool

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
KERNEL = "mlp_dispatch_0_matmul_32x256x784_f32"
BAD = (
    "#iree_cpu.lowering_config<cache_parallel = [1, 2, 0], distribution = [1, 2, 0], "
    "vector_common_parallel = [1, 1, 0], vector_reduction = [0, 0, 1]>"
)
SPEC = f"""
module attributes {{transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint}} {{
  transform.named_sequence @apply(%op: !transform.any_op {{transform.readonly}},
      %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }}
  transform.named_sequence @match(%op: !transform.any_op {{transform.readonly}})
      -> (!transform.any_op, !transform.any_param) {{
    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {{
    ^bb0(%a: tensor<32x784xf32>, %b: tensor<784x256xf32>, %c: tensor<32x256xf32>):
      %0 = linalg.matmul ins(%a, %b : tensor<32x784xf32>, tensor<784x256xf32>)
          outs(%c : tensor<32x256xf32>) -> tensor<32x256xf32>
    }} : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    %config = transform.param.constant #iree_codegen.compilation_info<lowering_config = {BAD},
        translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }}
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {{transform.consumed}}) -> !transform.any_op
      attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %result = transform.foreach_match in %variant @match -> @apply : (!transform.any_op) -> !transform.any_op
    transform.yield %result : !transform.any_op
  }}
}}
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A folder with a bundle whose dearest kernel has bad tiles, and what was found for it."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "bad.mlir").write_text(SPEC, encoding="utf-8")
    flag = f"--iree-codegen-tuning-spec-path={folder / 'bad.mlir'}"
    check_cli("build", MODEL, "-o", folder / "bad.tracemap", "--", flag)
    options = ("--kernel", KERNEL, "--candidates", "16", "--pairs", "2", "--seconds", "0.3", "--serial")
    return folder, json_cli("tune", folder / "bad.tracemap", *options, "-o", folder / "good.mlir", cwd=folder)


def test_a_badly_tiled_kernel_is_brought_back(tuned: tuple[Path, Json]) -> None:
    _, found = tuned
    (kernel,) = found["kernels"]
    assert kernel["kernel"] == KERNEL
    assert kernel["tried"] == 16
    assert kernel["best"]["ratio"]["high"] < 0.6
    assert found["diagnostics"] == []
    first = found["ops"][0]
    assert (first["name"], first["line"]) == ("linalg.matmul", 11)
    assert first["ratio"]["high"] < 0.8


def test_a_plain_compile_takes_the_spec(tuned: tuple[Path, Json]) -> None:
    folder, found = tuned
    target = folder / "configured.mlir"
    flags = (f"--iree-codegen-tuning-spec-path={folder / 'good.mlir'}", "--compile-to=executable-configurations")
    command: list[str | Path] = [find_tool("iree-compile"), MODEL, *PLAIN_FLAGS, *flags, "-o", target]
    subprocess.run(command, check=True, capture_output=True)
    wanted = found["kernels"][0]["best"]["configuration"]
    texts = re.findall(r"linalg\.matmul \{lowering_config = (#iree_cpu\.lowering_config<[^>]*>)", target.read_text())
    assert [levels_of(text) == levels_of(wanted) for text in texts] == [True, False, False]


def test_the_spec_is_not_replaced_without_being_asked(tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    before = (folder / "good.mlir").read_bytes()
    done = run_cli("tune", folder / "bad.tracemap", "--kernel", KERNEL, "-o", folder / "good.mlir")
    assert (done.returncode, done.stdout) == (2, "")
    assert (folder / "good.mlir").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name what to tune"),
        (["--kernel", "nothing"], "no kernel of the bundle is called so"),
        (["--op", "op999"], "no such op"),
        (["--top", "0"], "top"),
    ],
)
def test_what_cannot_be_tuned_is_said(options: list[str], words: str, tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    done = run_cli("tune", folder / "bad.tracemap", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_kernel_without_tiles_says_so(tuned: tuple[Path, Json]) -> None:
    folder, _ = tuned
    found = json_cli(
        "tune", folder / "bad.tracemap", "--kernel", "*softmax*", "--candidates", "2", "--pairs", "0", cwd=folder
    )
    (kernel,) = found["kernels"]
    assert kernel["tried"] == 0 or kernel["best"] is None or kernel["best"]["ratio"]["high"] < 1


def test_a_kernel_that_cannot_be_verified_is_not_tuned(tmp_path: Path) -> None:
    kind = "tensor<4096xi32>"
    text = f"func.func @f(%a: {kind}) -> {kind} {{\n  %0 = math.ctpop %a : {kind}\n  return %0 : {kind}\n}}\n"
    (tmp_path / "model.mlir").write_text(text, encoding="utf-8")
    check_cli("build", tmp_path / "model.mlir", "-o", tmp_path / "model.tracemap")
    (kernel,) = json_cli("tune", tmp_path / "model.tracemap", "--top", "1", cwd=tmp_path)["kernels"]
    assert (kernel["tried"], kernel["best"]) == (0, None)
    assert "cannot be verified: math.ctpop has no reference" in kernel["obstacle"]


LEVELS = levels_of(
    "#iree_cpu.lowering_config<cache_parallel = [8, 64, 0], distribution = [8, 64, 0], "
    "vector_common_parallel = [8, 8, 0], vector_reduction = [0, 0, 8]>"
)


def test_candidates_differ_from_the_default_and_from_each_other() -> None:
    found = [written(each) for each in candidates_of(LEVELS, 100)]
    assert len(found) == len(set(found)) == 100
    assert written(LEVELS) not in found
    assert all(written(levels_of(each)) == each for each in found)


def test_the_nearest_candidates_come_first() -> None:
    first = next(candidates_of(LEVELS, 1))
    changed = [name for name in LEVELS if first[name] != LEVELS[name] and name != "cache_parallel"]
    assert len(changed) == 1
    assert all(0 not in sizes for sizes in ([size for size in first["distribution"] if size],))


def test_loops_that_are_not_tiled_stay_so() -> None:
    for each in candidates_of(LEVELS, 300):
        assert each["distribution"][2] == each["vector_common_parallel"][2] == 0
        assert each["vector_reduction"][:2] == (0, 0)
        assert each["cache_parallel"] == each["distribution"]


def test_the_interval_of_a_median_holds_it_in_nineteen_of_twenty() -> None:
    """Of 15 values the 4th from either end bound the median with 96 % (a table of order statistics)."""
    ordered = [float(number) for number in range(15)]
    found = interval_of(ordered)
    assert found is not None
    assert (found.median, found.low, found.high) == (7.0, 3.0, 11.0)
    assert interval_of(ordered[:5]) is None
    chance = random.Random(3)
    held = 0
    for _ in range(2000):
        found = interval_of([chance.lognormvariate(0, 0.2) for _ in range(15)])
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert held / 2000 >= 0.95
