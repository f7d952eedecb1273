"""Archives of parameters as IREE's runtime reads them, filled with seeded random numbers piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np

from benchmarks.measure import output_of
from benchmarks.models.program import NUMPY, Array, Parameter

_PIECE: Final = 1 << 22
"""How many numbers are made at a time: what this takes does not grow with the archive."""


def write_archive(path: Path, parameters: Iterable[Parameter], seed: int) -> None:
    """Write an archive; weights are such that values neither vanish nor grow from layer to layer."""
    made = list(parameters)
    flags = path.with_suffix(".flags")
    flags.write_text("".join(f"--data={each.name}={each.bytes}xi8\n" for each in made), encoding="utf-8")
    tool = Path(sys.executable).with_name("iree-create-parameters")
    output_of([tool, f"--flagfile={flags}", "--quiet", f"--output={path}"])
    generator = np.random.default_rng(seed)
    for each, array in zip(made, _arrays(path, made, "r+").values(), strict=True):
        _fill(array, each, generator)


def mapped(path: Path, parameters: Iterable[Parameter]) -> Mapping[str, Array]:
    """The parameters of an archive, read where they are used."""
    return _arrays(path, list(parameters), "r")


def _arrays(path: Path, parameters: list[Parameter], mode: Literal["r", "r+"]) -> dict[str, Array]:
    from iree.runtime import ParameterIndex

    index = ParameterIndex()
    index.load(str(path))
    places = {entry.key: entry.file_storage[1] for _, entry in index.items()}
    return {each.name: np.memmap(path, NUMPY[each.kind], mode, places[each.name], each.shape) for each in parameters}


def _fill(array: Array, parameter: Parameter, generator: np.random.Generator) -> None:
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _PIECE):
        piece = flat[begin : begin + _PIECE]
        if array.dtype == np.int8:
            piece[:] = generator.integers(-127, 128, piece.size, np.int8)
        else:
            piece[:] = parameter.mean + parameter.deviation * generator.standard_normal(piece.size, np.float32)
