"""Elements of tensors in memory and in the reference, small floats too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- small floats
#
# Floats of eight bits: all values of OCP's 8-bit and microscaling formats, and of AMD's FNUZ types.
#
# A type has a sign, some bits of exponent and some of mantissa. `fn` types have no infinity, and of `fnuz` types the
# only NaN is what would be the negative zero.


@dataclass(frozen=True, slots=True)
class _Format:
    """`bias`: of the exponent; `special`: the codes, without a sign, from which on there is no finite number."""

    mantissa: int
    bias: int
    special: int
    unsigned_zero: bool = False


_FORMATS: Final = {
    "f8E4M3FN": _Format(3, 7, 0x7F),
    "f8E5M2": _Format(2, 15, 0x7C),
    "f8E4M3FNUZ": _Format(3, 8, 0x80, unsigned_zero=True),
    "f8E5M2FNUZ": _Format(2, 16, 0x80, unsigned_zero=True),
}
SCALE: Final = "f8E8M0FNU"
"""A power of two, without sign or mantissa."""
_SCALE_BIAS, _NAN_SCALE = 127, 255

SMALL_EPSILON: Final = {**{name: 2.0**-each.mantissa for name, each in _FORMATS.items()}, SCALE: 1.0}
"""The distance of 1 to the next larger number, by type."""


@cache
def values_of(element: str) -> npt.NDArray[np.float64]:
    """The number of each of the 256 codes of a type. Shape: (256,)."""
    import numpy as np

    codes = np.arange(256)
    if element == SCALE:
        return np.where(codes == _NAN_SCALE, np.nan, 2.0 ** (codes - _SCALE_BIAS))
    kind = _FORMATS[element]
    sign, size = np.where(codes & 0x80, -1.0, 1.0), codes & 0x7F
    exponent, mantissa = size >> kind.mantissa, (size & ((1 << kind.mantissa) - 1)) / 2.0**kind.mantissa
    normal = (1 + mantissa) * 2.0 ** (exponent - kind.bias)
    values = sign * np.where(exponent, normal, mantissa * 2.0 ** (1 - kind.bias))
    values[size >= kind.special] = np.nan
    if element == "f8E5M2":
        values[[0x7C, 0xFC]] = np.inf, -np.inf
    if kind.unsigned_zero:
        values[0x80] = np.nan
    return values


def nearest_codes(values: Any, element: str) -> npt.NDArray[np.uint8]:  # noqa: ANN401 - a numpy array or a number
    """The codes of the nearest numbers of a type, to even where two are as near.

    Raises:
        OverflowError: a number is larger than all of the type, for which not all programs have the same result; or the
            type has no sign, and the number is none of its own.
    """
    import numpy as np

    wanted, table = np.asarray(values, np.float64), values_of(element)
    codes = np.flatnonzero(np.isfinite(table) & (np.arange(256) < 0x80 if element != SCALE else True))
    sizes, finite = table[codes], np.nan_to_num(np.abs(wanted))
    above = np.clip(np.searchsorted(sizes, finite), 1, len(sizes) - 1)
    lower, upper = sizes[above - 1], sizes[above]
    is_upper = (finite - lower > upper - finite) | ((finite - lower == upper - finite) & (codes[above] % 2 == 0))
    found = np.where(is_upper, codes[above], codes[above - 1])
    if np.any(finite > sizes[-1]) or (element == SCALE and np.any(table[found] != wanted)):
        raise OverflowError(f"a number that {element} does not have")
    if element == SCALE:
        return found.astype(np.uint8)
    is_negative = np.signbit(wanted) & ~((found == 0) & _FORMATS[element].unsigned_zero)
    nan = 0x80 if _FORMATS[element].unsigned_zero else 0x7F
    return np.where(np.isnan(wanted), nan, found | np.where(is_negative, 0x80, 0)).astype(np.uint8)


# ---- elements
#
# Elements of tensors: how they lie in memory, and what they are while a reference is computed.
#
# Floats are computed in double precision, whatever their type, so that a reference has no rounding of its own worth
# speaking of; they are rounded where the kernel's IR rounds (`arith.truncf`) and where they are stored. Integers are
# computed in their own width and wrap around as the kernel's do.


Array = Any
"""A numpy array, or a number that broadcasts like one."""


class NotEvaluated(ValueError):
    """Part of a kernel that has no reference here; the message says what it is."""


UNDEFINED: Final = "undefined: "
"""Begins the message of a `NotEvaluated` that says that made-up numbers lead to no one result, whoever computes it."""
OWN_CODE: Final = "it calls code of the model's own: "
"""Begins the message of one that says that a part of the kernel is no IR: it is the same however that is compiled."""

SURPRISES: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError)
"""How a reference can end that meets what nobody thought of; it costs this kernel's verification, no other's."""


def not_computed(error: Exception) -> str:
    """Why a kernel has no reference, one of `SURPRISES`."""
    if isinstance(error, NotEvaluated):
        return str(error)
    return f"its reference cannot be computed: {type(error).__name__}: {error}"


_STORED: Final = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "i1": "uint8"}
_STORED_INTEGER = re.compile(r"i(8|16|32|64)")
EPSILON: Final = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, **SMALL_EPSILON}
"""The distance of 1 to the next larger number, by type (IEEE 754-2019, table 3.5; bfloat16 keeps 8 bits)."""

_PACKED: Final = {"i2": 2, "i4": 4, "f4E2M1FN": 4}
"""Elements of which several lie in a byte, and their bits; odd widths have a byte each."""


def stored_bits(element: str) -> int:
    """How many bits of memory an element takes.

    Raises:
        NotEvaluated: that is not known here.
    """
    return _PACKED.get(element) or 8 * stored_type(element).itemsize


def stored_type(element: str) -> np.dtype[Any]:
    """How an element lies in memory; of bfloat16 the bits.

    Raises:
        NotEvaluated: elements of this type are not computed with.
    """
    import numpy as np

    integer = _STORED_INTEGER.fullmatch(element)
    name = f"int{integer[1]}" if integer else "uint8" if element in SMALL_EPSILON else _STORED.get(element)
    if name is None:
        raise NotEvaluated(f"elements of type {element} have no reference")
    return np.dtype(name)


def computed_type(element: str) -> np.dtype[Any]:
    """What an element is while it is computed with."""
    import numpy as np

    if element in EPSILON:
        return np.dtype(np.float64)
    if element == "i1":
        return np.dtype(np.bool_)
    return np.dtype(np.int64) if element == "index" else stored_type(element)


def from_memory(stored: npt.NDArray[Any], element: str) -> npt.NDArray[Any]:
    """A copy of elements in memory, to compute with."""
    import numpy as np

    if element in SMALL_EPSILON:
        small: npt.NDArray[Any] = values_of(element)[stored]
        return small
    if element == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.array(stored & 1 if element == "i1" else stored, dtype=computed_type(element))


def to_memory(values: Array, element: str) -> npt.NDArray[Any]:
    """Elements as they lie in memory, rounded to the nearest."""
    import numpy as np

    if element in SMALL_EPSILON:
        return _small_codes(values, element)
    if element == "bf16":
        return _bfloat_bits(values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(stored_type(element))


def rounded(values: Array, element: str) -> Array:
    """Floats rounded to a narrower type, still to compute with."""
    import numpy as np

    if element in SMALL_EPSILON:
        return from_memory(_small_codes(values, element), element)
    if element == "bf16":
        return from_memory(_bfloat_bits(values), element)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(stored_type(element)).astype(np.float64)


def _small_codes(values: Array, element: str) -> npt.NDArray[Any]:
    try:
        return nearest_codes(values, element)
    except OverflowError as error:
        raise NotEvaluated(f"{error} has no reference") from error


def _bfloat_bits(values: Array) -> npt.NDArray[Any]:
    """The upper half of a float32, rounded to nearest, ties to even; a NaN stays one."""
    import numpy as np

    with np.errstate(all="ignore"):
        single = np.asarray(values).astype(np.float32)
    bits = single.view(np.uint32)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), upper)
