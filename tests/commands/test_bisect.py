"""`tracemap bisect`: flags that make a build larger or slower are found; equal builds have none."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.support import SAMPLES, check_cli, run_cli

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
    return [line.strip() for line in printed.splitlines() if line.startswith("  ") and "tracemap" not in line]


def test_smallest_sets_of_flags_that_make_a_module_larger(tmp_path: Path) -> None:
    """The truth is the size of all modules that are built with some of four flags."""
    flags = (PAIR[0], HARMLESS[0], PAIR[1], HARMLESS[1])
    sets = [chosen for size in range(5) for chosen in combinations(flags, size)]
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
    check_cli("diff", *printed.splitlines()[-1].split()[2:])
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("builds/*/module.vmfb")}
    assert 2 < len(stamps) <= 4 * 2 + 4
    assert check_cli("bisect", *words, "-o", tmp_path / "builds") == printed
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("builds/*/module.vmfb")} == stamps
    backwards = check_cli("bisect", words[1], words[0], *words[2:], "-o", tmp_path / "builds")
    assert "No cause" in backwards


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
    good = build(tmp_path, "good")
    for other, message in (
        (good, "with the same flags"),
        (build(tmp_path, "other", HARMLESS[0], model=SAMPLES / "models" / "hand_attention.mlir"), "different models"),
    ):
        done = run_cli("bisect", good, other, "-o", tmp_path / "builds")
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
