"""The programs of these tests, and the pipelines that lower them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support import ROOT
from tracemap.core.errors import ToolMissing
from tracemap.map.build.native.tools import MlirTools

PROGRAMS: Final = ROOT / "tests" / "programs" / "native"
NAMES: Final = ("layer", "convolution", "softmax", "stencil", "sparse")

LOOPS: Final = {
    "affine": "func.func(convert-linalg-to-affine-loops,affine-loop-fusion,affine-scalrep)",
    "vector": "func.func(convert-linalg-to-affine-loops,"
    "affine-super-vectorize{virtual-vector-size=8 test-fastest-varying=0})",
    "plain": "func.func(convert-linalg-to-loops)",
}
"""Passes that make loops of linalg's operations, by the name of the pipeline."""
STRUCTURED: Final = "lower-affine,func.func(convert-vector-to-scf)"
"""The passes from there to the last stage with loops."""
LLVM: Final = (
    "func.func(convert-scf-to-cf),expand-strided-metadata,lower-affine,convert-math-to-libm,convert-vector-to-llvm,"
    "finalize-memref-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts"
)
"""The passes from there to the llvm dialect."""


def pipeline(name: str) -> str:
    """The whole pipeline of a name."""
    return f"builtin.module({LOOPS[name]},{STRUCTURED},{LLVM})"


BUFFERS: Final = (
    "one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map}"
)
"""The pass that gives tensors memory."""


def flags(name: str) -> list[str]:
    """The flags of `tracemap build` for a pipeline."""
    return ["--to", "native", "--pipeline", pipeline(name)]


@functools.cache
def why_missing() -> str:
    """Why MLIR's tools cannot be used here; "" if they can."""
    try:
        MlirTools.installed()
    except ToolMissing as error:
        return str(error)
    return ""


def needs_tools() -> None:
    """Skip the test where MLIR's tools are missing."""
    if why := why_missing():
        pytest.skip(why)


def program(name: str) -> Path:
    """The file of a program."""
    return PROGRAMS / f"{name}.mlir"


def run_all(*commands: Sequence[str | Path]) -> None:
    """Run commands one after the other; all must succeed."""
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
