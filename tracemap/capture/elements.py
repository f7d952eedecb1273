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
# The types that a module declares for arguments and results, and numpy's names of their elements.


@dataclass(frozen=True, slots=True)
class Shaped:
    """A parsed type. `sizes` is None for a scalar, and has None for each `?`."""

    sizes: tuple[int | None, ...] | None
    element: str


SPEC: Final = re.compile(
    r"((?:\d{1,18}x)*)([su]?i\d+|bf16|f\d+(?:E\d+M\d+\w*)?|complex<\w+>|index)(?:=(.*))?", re.DOTALL
)
"""A shape and element type in IREE's syntax, with values."""
_TENSOR = re.compile(r"(?:tensor|vector|memref)<((?:(?:\?|\d{1,18})x)*)([^,>]+(?:<\w+>)?)(?:,.*)?>")
_TORCH = re.compile(r"!torch\.vtensor<\[((?:(?:\?|\d{1,18})(?:,|(?=\])))*)\],(\w+)>")
INTEGER = re.compile(r"[su]?i\d+|index")
REAL = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}
HALVES: Final = frozenset({"f16", "bf16"})
"""Floats without registers in IREE's virtual machine."""
_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
_SMALL_REAL = re.compile(r"f(?:8|6|4)E\d+M\d+\w*")


def parsed(text: str) -> Shaped | None:
    """Parse a declared type; None if it is unknown."""
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
    """The numpy (or ml_dtypes) name of a float or complex type; "" for all others."""
    if element in REAL or element in _COMPLEX:
        return (REAL | _COMPLEX)[element]
    if not _SMALL_REAL.fullmatch(element):
        return ""
    import ml_dtypes

    name = "float" + element[1].lower() + "_" + element[2:].lower()
    return name if hasattr(ml_dtypes, name) else ""


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name in numpy or ml_dtypes."""
    import ml_dtypes
    import numpy as np

    dtype: np.dtype[Any] = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
    return dtype


def passed_number(value: float, element: str) -> str:
    """A scalar argument in IREE's syntax; 16-bit floats are written as their bits."""
    if element not in HALVES:
        return str(value)
    import numpy as np

    with np.errstate(over="ignore"):  # too large numbers become infinite, as in arrays
        return f"{int(np.asarray(value).astype(dtype_of(REAL[element])).view(np.uint16)):#06x}"


def written_type(array: np.ndarray[Any, Any]) -> str:
    """The type of an array in IREE's syntax, such as `32x64xf32`."""
    names = {name: element for element, name in (REAL | _COMPLEX).items()}
    name = array.dtype.name
    element = names.get(name) or name.replace("uint", "ui").replace("int", "i").replace("bool", "i1")
    return "x".join([*map(str, array.shape), element])


# ---- numbers
#
# Check that IREE's runtime reads a number of an input as written, and neither refuses nor silently changes it.
#
# The runtime reads numbers as C does (`strtol`, `strtof`), from a short buffer, and often stores integers modulo the
# size of their type. Signless types accept numbers of both readings: 8 bits take -128 to 255.


_SMALL_REAL_ELEMENTS: Final = frozenset({"f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ", "f8E8M0FNU"})
_BYTE_WIDTHS: Final = (1, 2, 4)
"""Widths of elements that are written as the two hexadecimal digits of their byte."""
_TWO_DIGITS = re.compile(r"[0-9a-fA-F]{2}")
_WHOLE = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))(?:\.0*)?")
"""An integer in C syntax with base 16, 8 or 10. C would cut a fraction off."""
_WIDTHS: Final = (8, 16, 32, 64)
"""Widths of integers that are written as numbers."""
_WIDTH_DIGITS: Final = 4
"""No IREE type has more digits in its width."""
_WORD_BITS: Final = 32
_WORD_BUFFER: Final = 15
_BUFFER: Final = 31
"""Length of the runtime's buffer: for integers of up to 32 bits, and for all other numbers."""
_INFINITE_FROM: Final = {"f16": 65520.0, "bf16": 2.0**128 - 2.0**119, "f32": 2.0**128 - 2.0**103}
"""The least number that is rounded to infinity. For f64, Python's own infinity is used."""
_READ_AS_ZERO: Final = 2.0**-150
"""C reads smaller numbers as 0 when it reads an f32; all floats but f64 are read that way."""
_LONGEST_QUOTE: Final = 60


def is_read(element: str) -> bool:
    """Whether the number syntax of a type is known."""
    return element in REAL or element in _SMALL_REAL_ELEMENTS or INTEGER.fullmatch(element) is not None


def number_fault(text: str, element: str, *, is_scalar: bool) -> str:
    """Why a text is not a valid number of a type; "" if it is, or if only the runtime knows the type.

    Args:
        text: the number, without anything around it.
        element: its type, in IREE's syntax.
        is_scalar: True for a scalar argument, False for an element of an array.
    """
    quote = repr(start_of(text, _LONGEST_QUOTE))
    if INTEGER.fullmatch(element):
        return _integer_fault(text, quote, element, is_scalar=is_scalar)
    if is_scalar and element in HALVES:
        fault = f"a scalar {element} is passed as its bits, 0 to 0xffff, and {quote} is not"
        return "" if "." not in text and _integer(text) in range(1 << 16) else fault
    if element in REAL or element in _SMALL_REAL_ELEMENTS:
        return _real_fault(text, quote, element)
    return ""


def _integer_fault(text: str, quote: str, element: str, *, is_scalar: bool) -> str:
    sign, bits = _sign_and_bits(element)
    if bits not in _WIDTHS and not is_scalar:
        is_wrong = bits in _BYTE_WIDTHS and not _TWO_DIGITS.fullmatch(text)
        return f"{element} is written as two hexadecimal digits, and {quote} is not" if is_wrong else ""
    if not _is_number(text):
        return f"{quote} is not a number"
    if (buffer := _WORD_BUFFER if bits <= _WORD_BITS else _BUFFER) < len(text):
        return _too_long(quote, element, buffer)
    value = _integer(text)
    if value is None:
        return f"{quote} is not a whole number"
    # The runtime reads scalars as 32-bit words, whatever their width; i1 is true if any bit is set.
    low, high = _range(sign, bits if bits in _WIDTHS else _WORD_BITS, is_scalar=is_scalar)
    return "" if low <= value <= high else f"{quote} does not fit {element}, which takes {low} to {high}"


def _sign_and_bits(element: str) -> tuple[str, int]:
    if element == "index":
        return "", 64
    sign, _, bits = element.rpartition("i")
    return sign, int(bits[:_WIDTH_DIGITS])


def _integer(text: str) -> int | None:
    """The number that C reads; None if C would read only the beginning, or nothing."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, *digits = match.groups()
    read = zip(digits, (16, 8, 10), strict=True)
    value = next(int(text, base) for text, base in read if text is not None)
    return -value if sign == "-" else value


def _range(sign: str, bits: int, *, is_scalar: bool) -> tuple[int, int]:
    """Smallest and largest number of a type; signless 64-bit integers are read as signed."""
    low = 0 if sign == "u" else -(1 << bits - 1)
    is_read_as_signed = sign == "s" or (bits > _WORD_BITS and (is_scalar or not sign))
    return low, (1 << bits - 1 if is_read_as_signed else 1 << bits) - 1


def _real_fault(text: str, quote: str, element: str) -> str:
    if not _is_number(text):
        return f"{quote} is not a number"
    if len(text) > _BUFFER:
        return _too_long(quote, element, _BUFFER)
    least = 0.0 if element == "f64" else _READ_AS_ZERO
    if abs(_real(text)) <= least and _is_not_zero(text):
        return f"{quote} is too small for {element}; write 0"
    if abs(_real(text)) >= _INFINITE_FROM.get(element, math.inf) and "inf" not in text.lower():
        return f"{quote} is too large for {element}; write inf"
    return ""


def _too_long(quote: str, element: str, buffer: int) -> str:
    return f"{quote} has more than the {buffer} characters that the runtime reads of {element}"


def _is_not_zero(text: str) -> bool:
    """Whether a number that is read as 0 was written as another number."""
    lower = text.lower()
    digits = lower.partition("x")[2].partition("p")[0] if "x" in lower else lower.partition("e")[0]
    return bool(digits.strip("0.+-"))


def _is_number(text: str) -> bool:
    """Whether C reads a number from the text."""
    try:
        _real(text)
    except (ValueError, OverflowError):
        return False
    return "_" not in text and text.isascii()


def _real(text: str) -> float:
    return float.fromhex(text) if "0x" in text.lower() else float(text)


# ---- arrays
#
# Errors of numpy for files that may be damaged.


_REFUSED: Final = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError, RecursionError, TokenError),
)
"""Errors that numpy raises for a damaged file: it parses the header as Python literals."""


@contextmanager
def refused_as(kind: type[TracemapError], why: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of numpy about a file into `kind`: `why`, numpy's message, and the remedy.

    Warnings of numpy and of the parser, such as about headers of Python 2, are suppressed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _REFUSED as error:
        raise kind(f"{why} ({error}){remedy}") from error


def mapped_array(file: Path) -> np.ndarray[Any, Any]:
    """The array of a file, memory-mapped: a damaged header cannot ask for more memory than the file has bytes.

    Raises:
        errors that `refused_as` converts: the file holds no array, or one of Python objects.
    """
    import numpy as np

    values: np.ndarray[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    return values
