"""`tracemap bisect`: flags that make a build larger or slower are found; equal builds have none."""

from __future__ import annotations

import json
import math
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Built
from tests.support import SAMPLES, check_cli, json_cli, run_cli
from tracemap.commands.versions import Version, Versions
from tracemap.core.toolchain import no_progress
from tracemap.map.bundle import load
from tracemap.map.bundle_documents import CallToKeep

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
PAIR = ("--iree-llvmcpu-loop-vectorization=true", "--iree-llvmcpu-loop-unrolling=true")
"""Flags of LLVM that change the code of this model, some versions of it only together."""
HARMLESS = ("--iree-vm-target-index-bits=64", "--iree-opt-const-eval=true", "--iree-llvmcpu-link-embedded=true")
"""Flags that say what holds without them."""
SLOW = "--iree-llvmcpu-target-cpu=generic"


def build(folder: Path, name: str, *flags: str, model: Path = MODEL) -> Path:
    bundle = folder / f"{name}.tracemap"
    check_cli("build", model, "-o", bundle, "--", *flags)
    return bundle


def causes_in(printed: str) -> list[str]:
    """The differences of all causes: what is indented by two, except for titles and commands."""
    lines = [line[2:] for line in printed.splitlines() if line.startswith("  ")]
    return [line for line in lines if not line.startswith((" ", "Ops:", "tracemap"))]


@pytest.mark.long
def test_smallest_sets_of_flags_that_make_a_module_larger(tmp_path: Path) -> None:
    """The truth is the size of all modules that are built with some of three flags."""
    flags = (PAIR[0], HARMLESS[0], PAIR[1])
    sets = [chosen for size in range(4) for chosen in combinations(flags, size)]
    sizes = {}
    for chosen in sets:
        sizes[frozenset(chosen)] = (build(tmp_path, "some", *chosen) / "module.vmfb").stat().st_size
    limit = sizes[frozenset()] + 2 / 3 * (sizes[frozenset(flags)] - sizes[frozenset()])
    large = [chosen for chosen, size in sizes.items() if size >= limit]
    smallest = [chosen for chosen in large if not any(other < chosen for other in large)]
    assert smallest
    assert all(chosen <= set(PAIR) for chosen in smallest)

    words = (build(tmp_path, "good"), build(tmp_path, "bad", *flags), "--metric", "module_bytes")
    printed = check_cli("bisect", *words, "-o", tmp_path / "builds")
    found = frozenset(causes_in(printed))
    assert found in smallest if len(smallest) == 1 else found <= set(PAIR)
    assert ("only together" in printed) == (smallest == [frozenset(PAIR)])
    assert 2 < len(list(tmp_path.glob("builds/*.tracemap"))) <= 4 * math.log2(3) + 4
    backwards = check_cli("bisect", words[1], words[0], *words[2:], "-o", tmp_path / "builds")
    assert "No cause" in backwards


def test_the_flag_that_makes_a_module_larger(tmp_path: Path) -> None:
    """The commands of a cause work, and a second search builds nothing."""
    (tmp_path / "model.mlir").write_text(CHAIN, encoding="utf-8")
    model, tiling = tmp_path / "model.mlir", "--iree-opt-data-tiling=true"
    sides = build(tmp_path, "good", model=model), build(tmp_path, "bad", HARMLESS[0], tiling, model=model)
    words = ("bisect", *sides, "--metric", "module_bytes", "-o", tmp_path / "builds")
    printed = check_cli(*words)
    assert causes_in(printed) == [tiling]
    diff, again = printed.splitlines()[-2:]
    check_cli("diff", *diff.split()[2:])
    check_cli(*again.replace("NEW.tracemap", str(tmp_path / "again.tracemap")).split()[1:])
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("builds/*/module.vmfb")}
    cause = json_cli(*words)["causes"][0]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("builds/*/module.vmfb")} == stamps
    size = (tmp_path / "again.tracemap" / "module.vmfb").stat().st_size
    assert abs(size - cause["value"]["value"]) < 100  # the module has the name of the model's file


CHAIN = """\
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %a = stablehlo.dot %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %b = stablehlo.tanh %a : tensor<4x8xf32>
  return %b : tensor<4x8xf32>
}
"""


def test_the_edit_that_changes_outputs(tmp_path: Path) -> None:
    """Of three edits, one takes another function; lines are those of the second model."""
    (tmp_path / "before.mlir").write_text(CHAIN, encoding="utf-8")
    edited = CHAIN.replace("  %b", "  %n = stablehlo.negate %x : tensor<4x8xf32>\n  %b").replace("tanh %a", "cosine %a")
    edited = edited.replace("dot %x", "dot %m").replace(
        "  %a", "  %m = stablehlo.maximum %x, %x : tensor<4x8xf32>\n  %a"
    )
    (tmp_path / "after.mlir").write_text(edited, encoding="utf-8")
    good = build(tmp_path, "good", model=tmp_path / "before.mlir")
    found = json_cli("bisect", good, tmp_path / "after.mlir", "--metric", "outputs", "-o", tmp_path / "builds")
    (cause,) = found["causes"]
    assert len(found["differences"]) == 3
    assert cause["differences"][0]["text"] == "removed stablehlo.tanh at line 3; added stablehlo.cosine at line 5"
    assert [each["kind"] for each in cause["differences"]] == ["edit"]
    assert [(op["name"], op["line"]) for op in cause["ops"]][:1] == [("stablehlo.cosine", 5)]


def test_builds_with_other_inputs_are_not_used_again(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "model.tracemap"
    shutil.copytree(built("hand_mlp"), bundle)
    version = Version(b"module {}", "model.mlir", (), "3.13.0")
    targets = set[Path]()
    for value in (0.0, 1.0, 1.0):
        for folder in ("inputs", "parameters"):
            shutil.rmtree(bundle / folder, ignore_errors=True)
        CallToKeep("main", (("x", np.full(4, value)),)).store(bundle)
        targets.add(Versions(tmp_path, load(bundle), no_progress).path(version))
    assert len(targets) == 2


def test_the_edit_on_which_the_compiler_crashes(tmp_path: Path) -> None:
    (tmp_path / "before.mlir").write_text(CHAIN, encoding="utf-8")
    empty = """\
  %p = stablehlo.slice %a [0:4, 0:0] : (tensor<4x8xf32>) -> tensor<4x0xf32>
  %q = stablehlo.slice %w [0:0, 0:8] : (tensor<8x8xf32>) -> tensor<0x8xf32>
  %r = stablehlo.dot %p, %q : (tensor<4x0xf32>, tensor<0x8xf32>) -> tensor<4x8xf32>
  %n = stablehlo.negate %r : tensor<4x8xf32>
  %b"""
    edited = CHAIN.replace("  %b", empty, 1).replace("tanh %a", "tanh %n")
    (tmp_path / "after.mlir").write_text(edited, encoding="utf-8")
    good = build(tmp_path, "good", model=tmp_path / "before.mlir")
    options = ("--metric", "crash", "-o", tmp_path / "builds", "--format", "json")
    words = ("bisect", good, tmp_path / "after.mlir", *options, "--", HARMLESS[0])
    found = json.loads(check_cli(*words))
    (cause,) = found["causes"]
    assert "SIGFPE" in cause["message"]
    assert {op["line"] for op in cause["ops"]} <= set(range(3, 8))
    assert cause["bundle"] is None
    next((tmp_path / "builds").glob("*.failed")).write_bytes(b"\xff")  # damaged
    assert json.loads(check_cli(*words)) == found


@pytest.mark.long
def test_the_flag_that_makes_a_program_slower(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "jax_gpt2_4l.mlir"
    good = build(tmp_path, "good", model=model)
    bad = build(tmp_path, "bad", *HARMLESS[:2], SLOW, *HARMLESS[2:], model=model)
    printed = check_cli("bisect", good, bad, "-o", tmp_path / "builds", "--seconds", "0.3")
    (cause,) = causes_in(printed)
    assert cause.startswith(SLOW)


@pytest.mark.long
def test_equal_code_has_no_cause(tmp_path: Path) -> None:
    good = build(tmp_path, "good")
    bad = build(tmp_path, "bad", *HARMLESS)
    assert "No cause" in check_cli("bisect", good, bad, "-o", tmp_path / "builds", "--seconds", "0.2")


def test_what_cannot_be_bisected(tmp_path: Path) -> None:
    (tmp_path / "before.mlir").write_text(CHAIN, encoding="utf-8")
    good = build(tmp_path, "-good", model=tmp_path / "before.mlir")
    other = tmp_path / "after.mlir"
    other.write_text(CHAIN.replace("main(", "main(%n: tensor<2xf32>, "), encoding="utf-8")
    outputs = ("--metric", "outputs")
    for words, message in (
        ((good,), "have the same model, flags and release of IREE"),
        ((tmp_path / "none.mlir",), "No such file"),
        ((other, "--releases", "3.12.0"), "are of the same release of IREE"),
        ((other, *outputs), "but takes tensor<2xf32>, tensor<4x8xf32>, tensor<8x8xf32> in"),
    ):
        done = run_cli("bisect", good, *words, "-o", tmp_path / "builds")
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert (tmp_path / "builds").exists() == (words[1:] == outputs)
    other.write_text(CHAIN.replace("tanh", "cosine"), encoding="utf-8")
    printed = check_cli("bisect", "./-good.tracemap", "after.mlir", *outputs, cwd=tmp_path)
    assert "1 edit differs" in printed
    diff, again = printed.splitlines()[-2:]
    check_cli(*diff.split()[1:], cwd=tmp_path)
    assert " ./-good.bisect/" in again
