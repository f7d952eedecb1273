"""Builds models of one kernel, and takes that apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.support import check_cli
from tracemap.attribution.kernel_lines.lines import KernelSteps, kernel_steps
from tracemap.machine.code import Instruction
from tracemap.machine.images import read_images
from tracemap.map.bundle import load


def built(model: str, folder: Path, flags: Sequence[str]) -> Path:
    """The bundle of a model, compiled with flags."""
    file, bundle = folder / "model.mlir", folder / "model.tracemap"
    file.write_text(model, encoding="utf-8")
    check_cli("build", file, "-o", bundle, "--force", "--", *flags)
    return bundle


def steps_of(bundle: Path) -> KernelSteps:
    """The only kernel of a bundle."""
    made = load(bundle)
    (kernel,) = made.graph.kernels
    return kernel_steps(made.graph, kernel, partial(read_images, made.module_path))


def in_loops(steps: KernelSteps) -> list[Instruction]:
    """The instructions of a kernel that stand in loops."""
    code = steps.code
    return [each for each in code.instructions if each.address in code.loop_at]
