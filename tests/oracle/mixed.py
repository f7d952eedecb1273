"""Programs of all kinds by seed: every other one is marked, of one family after the other."""

from __future__ import annotations

from random import Random

from tests.oracle.blocks import Dynamic, Wide
from tests.oracle.compare import Result, measure
from tests.oracle.frontends import Onnx, Torch
from tests.oracle.generate import generate
from tests.oracle.marked import MarkedProgram, measure_marked

_FAMILIES = (
    Wide,
    Torch,
    lambda random: Wide(random, tiled=True),
    Onnx,
    Wide,
    Dynamic,
)


def marked(seed: int) -> MarkedProgram:
    """The marked program of a seed."""
    return _FAMILIES[seed // 2 % len(_FAMILIES)](Random(seed)).write()


def text_of(seed: int) -> str:
    """The text of the program of a seed."""
    return marked(seed).text if seed % 2 else generate(seed).text


def measure_any(seed: int) -> Result:
    """Compare the map of the program of a seed with its truth.

    Raises:
        CompilerRejects: iree-compile does not get through with the program.
        TwinDiffers: the program's twin became other kernels.
    """
    return measure_marked(seed, marked(seed)) if seed % 2 else measure(seed)
