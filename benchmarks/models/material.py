"""What a network is called with, and what numpy says it should yield: files, as IREE's programs take them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.models.parameters import mapped, write_archive
from benchmarks.models.program import NUMPY, Array, Function, Module

SCOPE: Final = "model"
"""In which the module looks for its parameters."""
_SEED: Final = 20240229


@dataclass(frozen=True, slots=True)
class Material:
    """A network in files: its text, its parameters, and of each function a flag file and its outputs."""

    module: Module
    model: Path
    archive: Path
    flags: dict[str, Path]
    expected: dict[str, tuple[Path, ...]]


def material(module: Module, folder: Path) -> Material:
    """Write the files of a network.

    A function takes, in place of the arguments that have the types of the results of the one before, these: what was
    put into a cache is there.
    """
    model, archive = folder / f"{module.name}.mlir", folder / f"{module.name}.irpa"
    model.write_text(module.text, encoding="utf-8")
    write_archive(archive, module.parameters.values(), _SEED)
    parameters = mapped(archive, module.parameters.values())
    made = Material(module, model, archive, {}, {})
    generator = np.random.default_rng(_SEED + 1)
    before: list[Array] = []
    for name, function in module.functions.items():
        arrays = _inputs(function, before, generator)
        inputs = _saved(folder / f"{name}-in", arrays)
        made.flags[name] = folder / f"{name}.flags"
        lines = [f"--function={name}", *(f"--input=@{path}" for path in inputs), f"--parameters={SCOPE}={archive}"]
        made.flags[name].write_text("\n".join(lines) + "\n", encoding="utf-8")
        before = function.evaluated(arrays, parameters)
        assert all(np.isfinite(each).all() for each in before), f"{module.name}, {name}: values grow beyond all bounds"
        made.expected[name] = _saved(folder / f"{name}-out", before)
    return made


def _inputs(function: Function, before: list[Array], generator: np.random.Generator) -> list[Array]:
    """Random, or results of the call before, the first of a type first."""
    made, left = [], list(before)
    for value, below in zip(function.arguments, function.below, strict=True):
        kind = np.dtype(NUMPY[value.kind])
        at = next((at for at, each in enumerate(left) if (each.shape, each.dtype) == (value.shape, kind)), None)
        if at is not None:
            made.append(left.pop(at))
        elif below:
            # A place in the middle of a cache is one that the call before has not filled.
            made.append(np.asarray(generator.integers(below // 2, below, value.shape), kind))
        else:
            made.append(generator.standard_normal(value.shape, np.float32).astype(kind))
    return made


def _saved(prefix: Path, arrays: list[Array]) -> tuple[Path, ...]:
    paths = tuple(prefix.with_name(f"{prefix.name}{number}.npy") for number in range(len(arrays)))
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths
