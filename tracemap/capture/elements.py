"""Element types and numbers of inputs, and files of arrays."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import TracemapError, start_of

if TYPE_CHECKING:
    import numpy as np


# ---- elements
#
# The types that a module declares for arguments and results, and what numpy calls their elements.


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


# ---- numbers
#
# Numbers of inputs as IREE's runtime reads them: what it refuses, and what it would silently make another number of.
#
# It reads them as C does (`strtol`, `strtof`), out of a short buffer, and stores whole numbers modulo their type's
# size where nothing keeps it from that. Types without a sign take numbers of either reading: -128 to 255 are 8 bits.


_SMALL_REAL_ELEMENTS: Final = frozenset({"f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ", "f8E8M0FNU"})
_OF_A_BYTE: Final = (1, 2, 4)
"""Widths of elements that are read as the two hexadecimal digits of their byte."""
_TWO_DIGITS = re.compile(r"[0-9a-fA-F]{2}")
_WHOLE = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))(?:\.0*)?")
"""As C reads it: by 16, 8 or 10; it would cut a fraction off."""
_WIDTHS: Final = (8, 16, 32, 64)
"""Of whole numbers that are written as such."""
_DIGITS_OF_WIDTH: Final = 4
"""More there are in no type of IREE's, and in no number that a sentence is made of."""
_WORD_BITS: Final = 32
_MOST_OF_WORD: Final = 15
_MOST: Final = 31
"""Characters that the runtime has room for, of whole numbers of up to 32 bits and of all others."""
_INFINITE_FROM: Final = {"f16": 65520.0, "bf16": 2.0**128 - 2.0**119, "f32": 2.0**128 - 2.0**103}
"""The least number that is rounded to infinity; what is infinite in f64 is so in Python."""
_HALF_THE_LEAST: Final = 2.0**-150
"""What C makes 0 of as it reads an f32, by which all floats but f64 are read."""
_LONGEST_SAID: Final = 60


def is_read(element: str) -> bool:
    """Whether it is known how numbers of a type are read."""
    return element in REAL or element in _SMALL_REAL_ELEMENTS or INTEGER.fullmatch(element) is not None


def number_fault(text: str, element: str, *, is_scalar: bool) -> str:
    """Why a text cannot be a number of a type; "": it can, or the type is one of which only the runtime knows.

    Args:
        text: the number, without anything around it.
        element: its type, as IREE writes it.
        is_scalar: whether it is an argument of its own, and not an element of an array.
    """
    said = repr(start_of(text, _LONGEST_SAID))
    if INTEGER.fullmatch(element):
        return _whole_fault(text, said, element, is_scalar=is_scalar)
    if is_scalar and element in HALVES:
        fault = f"{said} is not its bits, 0 to 0xffff, as which {element} is passed that stands alone"
        return "" if "." not in text and _whole(text) in range(1 << 16) else fault
    if element in REAL or element in _SMALL_REAL_ELEMENTS:
        return _real_fault(text, said, element)
    return ""


def _whole_fault(text: str, said: str, element: str, *, is_scalar: bool) -> str:
    sign, bits = _sign_and_bits(element)
    if bits not in _WIDTHS and not is_scalar:
        is_wrong = bits in _OF_A_BYTE and not _TWO_DIGITS.fullmatch(text)
        return f"{said} is not two hexadecimal digits, as which {element} is read" if is_wrong else ""
    if not _is_number(text):
        return f"{said} is not a number"
    if (most := _MOST_OF_WORD if bits <= _WORD_BITS else _MOST) < len(text):
        return _too_long(said, element, most)
    value = _whole(text)
    if value is None:
        return f"{said} is not a whole number"
    # Scalars are words, whatever their width: one of a bit is true where any is set.
    low, high = _range(sign, bits if bits in _WIDTHS else _WORD_BITS, is_scalar=is_scalar)
    return "" if low <= value <= high else f"{said} does not fit {element}, which takes {low} to {high}"


def _sign_and_bits(element: str) -> tuple[str, int]:
    if element == "index":
        return "", 64
    sign, _, bits = element.rpartition("i")
    return sign, int(bits[:_DIGITS_OF_WIDTH])


def _whole(text: str) -> int | None:
    """What C reads; None: it would read the beginning only, or nothing."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, *digits = match.groups()
    read = zip(digits, (16, 8, 10), strict=True)
    value = next(int(found, base) for found, base in read if found is not None)
    return -value if sign == "-" else value


def _range(sign: str, bits: int, *, is_scalar: bool) -> tuple[int, int]:
    """The least and the greatest number that a type takes; 64 bits without a sign are read as those with one are."""
    low = 0 if sign == "u" else -(1 << bits - 1)
    is_read_as_signed = sign == "s" or (bits > _WORD_BITS and (is_scalar or not sign))
    return low, (1 << bits - 1 if is_read_as_signed else 1 << bits) - 1


def _real_fault(text: str, said: str, element: str) -> str:
    if not _is_number(text):
        return f"{said} is not a number"
    if len(text) > _MOST:
        return _too_long(said, element, _MOST)
    least = 0.0 if element == "f64" else _HALF_THE_LEAST
    if abs(_real(text)) <= least and _is_not_zero(text):
        return f"{said} is too small for {element}; write 0"
    if abs(_real(text)) >= _INFINITE_FROM.get(element, math.inf) and "inf" not in text.lower():
        return f"{said} is too large for {element}; write inf"
    return ""


def _too_long(said: str, element: str, most: int) -> str:
    return f"{said} has more than the {most} characters that the runtime reads of {element}"


def _is_not_zero(text: str) -> bool:
    """Whether a number that is read as 0 was written as another one."""
    lower = text.lower()
    digits = lower.partition("x")[2].partition("p")[0] if "x" in lower else lower.partition("e")[0]
    return bool(digits.strip("0.+-"))


def _is_number(text: str) -> bool:
    """Whether C reads a number of it."""
    try:
        _real(text)
    except (ValueError, OverflowError):
        return False
    return "_" not in text and text.isascii()


def _real(text: str) -> float:
    return float.fromhex(text) if "0x" in text.lower() else float(text)


# ---- arrays
#
# What numpy makes of a file that may be damaged, as an error of ours.


_REFUSED: Final = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError, RecursionError, TokenError),
)
"""What numpy raises of a file that is no array, or a damaged one: it parses the head as Python's literals."""


@contextmanager
def refused_as(kind: type[TracemapError], why: str, remedy: str = "") -> Iterator[None]:
    """Raise an error of a kind where numpy refuses a file: `why`, numpy's words, and the remedy.

    What numpy and the parser warn of on the way, such as heads that only Python 2 writes, helps nobody here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _REFUSED as error:
        raise kind(f"{why} ({error}){remedy}") from error


def mapped_array(file: Path) -> np.ndarray[Any, Any]:
    """The array of a file, mapped, so that a damaged head asks for no more memory than the file has bytes.

    Raises:
        what `refused_as` makes an error of ours: there is no array, or one of Python's objects.
    """
    import numpy as np

    values: np.ndarray[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    return values
