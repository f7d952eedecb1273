"""The types that a module declares for arguments and results, and what numpy calls their elements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Shaped:
    """A type that is understood; `sizes` is None for scalars, and has None for each `?`."""

    sizes: tuple[int | None, ...] | None
    element: str


SPEC: Final = re.compile(
    r"((?:\d{1,18}x)*)([su]?i\d+|bf16|f\d+(?:E\d+M\d+\w*)?|complex<\w+>|index)(?:=(.*))?", re.DOTALL
)
"""A shape and element type as IREE writes them, and values."""
_TENSOR = re.compile(r"(?:tensor|vector|memref)<((?:(?:\?|\d{1,18})x)*)([^,>]+(?:<\w+>)?)(?:,.*)?>")
_TORCH = re.compile(r"!torch\.vtensor<\[((?:(?:\?|\d{1,18})(?:,|(?=\])))*)\],(\w+)>")
INTEGER = re.compile(r"[su]?i\d+|index")
REAL = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}
HALVES: Final = frozenset({"f16", "bf16"})
"""Floats that IREE's virtual machine has no registers for."""
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
_SMALL_REAL = re.compile(r"f(?:8|6|4)E\d+M\d+\w*")


def parsed(text: str) -> Shaped | None:
    """What a declared type is; None where it is not understood."""
    text = text.strip()
    if match := _TENSOR.fullmatch(text):
        marks, element = match[1].split("x")[:-1], match[2].strip()
    elif match := _TORCH.fullmatch(text):
        marks, element = [mark for mark in match[1].split(",") if mark], match[2]
    else:
        return Shaped(None, text) if INTEGER.fullmatch(text) or text in REAL else None
    if not (INTEGER.fullmatch(element) or number_type(element)):
        return None
    return Shaped(tuple(None if mark == "?" else int(mark) for mark in marks), element)


def number_type(element: str) -> str:
    """The name of numpy's (or ml_dtypes') type for floats and complex numbers; "" for all else."""
    if element in REAL or element in _COMPLEX:
        return (REAL | _COMPLEX)[element]
    if not _SMALL_REAL.fullmatch(element):
        return ""
    import ml_dtypes

    name = "float" + element[1].lower() + "_" + element[2:].lower()
    return name if hasattr(ml_dtypes, name) else ""


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of elements that numpy or ml_dtypes has by a name."""
    import ml_dtypes
    import numpy as np

    found: np.dtype[Any] = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
    return found


def passed_number(value: float, element: str) -> str:
    """A number as IREE's tools take it for an argument that has no sizes: of 16-bit floats they pass the bits."""
    if element not in HALVES:
        return str(value)
    import numpy as np

    with np.errstate(over="ignore"):  # what is too large is infinite, as in arrays
        return f"{int(np.asarray(value).astype(dtype_of(REAL[element])).view(np.uint16)):#06x}"


def written_type(array: np.ndarray[Any, Any]) -> str:
    """The type of an array as IREE writes it, such as `32x64xf32`."""
    names = {name: element for element, name in (REAL | _COMPLEX).items()}
    name = array.dtype.name
    element = names.get(name) or name.replace("uint", "ui").replace("int", "i").replace("bool", "i1")
    return "x".join([*map(str, array.shape), element])
