"""Inputs that a bundle keeps."""

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
    """What is kept for the calls of a function: an array's file for each argument, and parameters by their scopes.

    `names` are what the program calls the arguments.
    """

    function: str = ""
    names: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()

    def is_for(self, entry: Function) -> bool:
        """Whether the inputs of a function are kept."""
        return bool(self.inputs) and self.function == entry.name

    def flags(self, given: Sequence[str]) -> list[str]:
        """Flags of the runtime for the parameters; none where the flags that are given name parameters themselves.

        Raises:
            InputInvalid: a file to which the bundle refers is not there any more.
        """
        if any(flag.startswith(_PARAMETERS) for flag in given):
            return []
        for scope, path in self.parameters:
            if not names_file(path):
                raise InputInvalid(
                    f"{path}: the bundle refers to this file for its parameters, and it is not there; name where it is "
                    f"behind the `--`: {_PARAMETERS}{f'{scope}=' if scope else ''}FILE, or build the bundle again"
                )
        return [f"{_PARAMETERS}{scope}={path}" if scope else f"{_PARAMETERS}{path}" for scope, path in self.parameters]


NOTHING_KEPT: Final = Kept()


def kept_inputs(entry: Function, kept: Kept, folder: Path) -> list[Input]:
    """The arrays that are kept, one per argument; those that IREE takes go to `folder`.

    Raises:
        InputInvalid: there are more or fewer than the function takes, one is not of its argument's type, or no array.
    """
    loaded = [loaded_array(file) for file in kept.inputs]
    types = [argument.type for argument in entry.arguments]
    values = [_as_declared(array, kind) for array, kind in zip(loaded, types, strict=False)]
    given = array_inputs(entry, [*values, *loaded[len(values) :]], folder)
    shapes = [one.said.partition(":")[0] for one in given]
    return [
        replace(one, said=f"{shape}: {name}, kept in the bundle")
        for one, shape, name in zip(given, shapes, kept.names, strict=True)
    ]


def loaded_array(file: Path) -> np.ndarray[Any, Any]:
    """An array as it is kept.

    Raises:
        InputInvalid: the file holds none.
    """
    with refused_as(InputInvalid, f"{file}: the array cannot be read", "; build the bundle again"):
        return mapped_array(file)


def _as_declared(values: np.ndarray[Any, Any], declared: str) -> np.ndarray[Any, Any]:
    """Values as the type that is declared.

    Numpy's files do not name small floats; and where the compiler makes 32 bits of 64, it does so of arguments, too.
    """
    shaped = parsed(declared)
    name = number_type(shaped.element) if shaped is not None else ""
    if not name:
        return values
    kind = dtype_of(name)
    if values.dtype.kind == "V" and values.dtype.itemsize == kind.itemsize:
        return values.view(kind)
    return values.astype(kind) if values.dtype.kind == kind.kind and values.dtype != kind else values
