"""Inputs and parameters saved in a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap.capture.elements import dtype_of, mapped_array, number_type, parsed, refused_as
from tracemap.capture.inputs import Input, array_inputs
from tracemap.errors import InputInvalid
from tracemap.functions import Function
from tracemap.inputs import names_file

if TYPE_CHECKING:
    import numpy as np


_PARAMETERS: Final = "--parameters="


@dataclass(frozen=True, slots=True)
class Kept:
    """Saved arguments of a function: an array file per argument, and parameter files by scope.

    `names`: the names of the arguments in the program.
    """

    function: str = ""
    names: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()

    def is_for(self, entry: Function) -> bool:
        """Whether inputs of a function are saved."""
        return bool(self.inputs) and self.function == entry.name

    def flags(self, given: Sequence[str]) -> list[str]:
        """Runtime flags for the parameters; none if the given flags set parameters themselves.

        Raises:
            InputInvalid: a parameter file that the bundle refers to is missing.
        """
        if any(flag.startswith(_PARAMETERS) for flag in given):
            return []
        for scope, path in self.parameters:
            if not names_file(path):
                raise InputInvalid(
                    f"{path}: this file with the bundle's parameters is missing; pass its new path after `--`: "
                    f"{_PARAMETERS}{f'{scope}=' if scope else ''}FILE, or build the bundle again"
                )
        return [f"{_PARAMETERS}{scope}={path}" if scope else f"{_PARAMETERS}{path}" for scope, path in self.parameters]


NOTHING_KEPT: Final = Kept()


def saved_inputs(entry: Function, kept: Kept, folder: Path) -> list[Input]:
    """The saved arrays as inputs, one per argument, with files in `folder` for IREE.

    Raises:
        InputInvalid: there are too many or too few, or one has the wrong type or is no array.
    """
    loaded = [loaded_array(file) for file in kept.inputs]
    types = [argument.type for argument in entry.arguments]
    values = [_as_declared(array, kind) for array, kind in zip(loaded, types, strict=False)]
    inputs = array_inputs(entry, [*values, *loaded[len(values) :]], folder)
    shapes = [saved_input.said.partition(":")[0] for saved_input in inputs]
    return [
        replace(saved_input, said=f"{shape}: {name}, kept in the bundle")
        for saved_input, shape, name in zip(inputs, shapes, kept.names, strict=True)
    ]


def loaded_array(file: Path) -> np.ndarray[Any, Any]:
    """A saved array.

    Raises:
        InputInvalid: the file holds no array.
    """
    with refused_as(InputInvalid, f"{file}: the array cannot be read", "; build the bundle again"):
        return mapped_array(file)


def _as_declared(values: np.ndarray[Any, Any], declared: str) -> np.ndarray[Any, Any]:
    """Convert values to the declared type.

    Numpy's files do not name small floats, and the compiler may demote 64-bit arguments to 32 bits.
    """
    shaped = parsed(declared)
    name = number_type(shaped.element) if shaped is not None else ""
    if not name:
        return values
    kind = dtype_of(name)
    if values.dtype.kind == "V" and values.dtype.itemsize == kind.itemsize:
        return values.view(kind)
    return values.astype(kind) if values.dtype.kind == kind.kind and values.dtype != kind else values
