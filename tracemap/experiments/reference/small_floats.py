"""Floats of eight bits: all values of OCP's 8-bit and microscaling formats, and of AMD's FNUZ types.

A type has a sign, some bits of exponent and some of mantissa. `fn` types have no infinity, and of `fnuz` types the only
NaN is what would be the negative zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
