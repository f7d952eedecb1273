"""Elements of tensors and the memory that kernels read and write."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# ---- small floats
#
# 8-bit floats: OCP's 8-bit and microscaling formats, and AMD's FNUZ types.
#
# A type has a sign bit, exponent bits and mantissa bits. `fn` types have no infinity. The only NaN of `fnuz` types has
# the code of negative zero.


@dataclass(frozen=True, slots=True)
class _Format:
    """`mantissa`: mantissa bits; `bias`: exponent bias; `special`: first code without sign that is not finite."""

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

SMALL_EPSILON: Final = {**{name: 2.0**-layout.mantissa for name, layout in _FORMATS.items()}, SCALE: 1.0}
"""Distance of 1 to the next larger number, by type."""


@cache
def values_of(element: str) -> npt.NDArray[np.float64]:
    """The values of all 256 codes of a type. Shape: (256,)."""
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
    """The codes of the nearest numbers of a type; ties to even.

    Raises:
        OverflowError: a number exceeds the range of the type, so that results differ between implementations; or a
            number is not representable as `SCALE`.
    """
    numbers, table = np.asarray(values, np.float64), values_of(element)
    codes = np.flatnonzero(np.isfinite(table) & (np.arange(256) < 0x80 if element != SCALE else True))
    sizes, finite = table[codes], np.nan_to_num(np.abs(numbers))
    above = np.clip(np.searchsorted(sizes, finite), 1, len(sizes) - 1)
    lower, upper = sizes[above - 1], sizes[above]
    is_upper = (finite - lower > upper - finite) | ((finite - lower == upper - finite) & (codes[above] % 2 == 0))
    nearest = np.where(is_upper, codes[above], codes[above - 1])
    if np.any(finite > sizes[-1]) or (element == SCALE and np.any(table[nearest] != numbers)):
        raise OverflowError(f"a number that {element} cannot represent")
    if element == SCALE:
        return nearest.astype(np.uint8)
    is_negative = np.signbit(numbers) & ~((nearest == 0) & _FORMATS[element].unsigned_zero)
    nan = 0x80 if _FORMATS[element].unsigned_zero else 0x7F
    return np.where(np.isnan(numbers), nan, nearest | np.where(is_negative, 0x80, 0)).astype(np.uint8)


# ---- elements
#
# Storage of elements in memory, and their representation during the evaluation of a reference.
#
# Floats of all types are computed in double precision, so the reference's own rounding is negligible. They are rounded
# where the kernel's IR rounds (`arith.truncf`) and where they are stored. Integers are computed in their own width and
# wrap around as in the kernel.


Array = Any
"""A numpy array, or a number that broadcasts like one."""


class NotEvaluated(ValueError):
    """Part of a kernel without a reference; the message names it."""


UNDEFINED: Final = "undefined: "
"""Prefix of `NotEvaluated` messages for random inputs on which the kernel has no unique result."""
OWN_CODE: Final = "it calls code of the model's own: "
"""Prefix of `NotEvaluated` messages for kernels that call external code, which every compilation shares."""

SURPRISES: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError)
"""Errors of a reference on unforeseen input. They prevent the verification of one kernel only."""


def not_computed(error: Exception) -> str:
    """Why a kernel has no reference, as text; `error` is one of `SURPRISES`."""
    if isinstance(error, NotEvaluated):
        return str(error)
    return f"its reference cannot be computed: {type(error).__name__}: {error}"


_STORED: Final = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "i1": "uint8"}
_STORED_INTEGER = re.compile(r"i(8|16|32|64)")
EPSILON: Final = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, **SMALL_EPSILON}
"""Distance of 1 to the next larger number, by type (IEEE 754-2019, table 3.5; bfloat16 keeps 8 bits)."""

_PACKED: Final = {"i2": 2, "i4": 4, "f4E2M1FN": 4}
"""Sub-byte types and their bits; odd widths take a whole byte."""


def stored_bits(element: str) -> int:
    """Bits of memory per element.

    Raises:
        NotEvaluated: the type is not supported.
    """
    return _PACKED.get(element) or 8 * stored_type(element).itemsize


def stored_type(element: str) -> np.dtype[Any]:
    """Type of an element in memory; unsigned integers for bfloat16 and small floats.

    Raises:
        NotEvaluated: the type is not supported.
    """
    integer = _STORED_INTEGER.fullmatch(element)
    name = f"int{integer[1]}" if integer else "uint8" if element in SMALL_EPSILON else _STORED.get(element)
    if name is None:
        raise NotEvaluated(f"elements of type {element} have no reference")
    return np.dtype(name)


def computed_type(element: str) -> np.dtype[Any]:
    """Type of an element during evaluation."""
    if element in EPSILON:
        return np.dtype(np.float64)
    if element == "i1":
        return np.dtype(np.bool_)
    return np.dtype(np.int64) if element == "index" else stored_type(element)


def from_memory(stored: npt.NDArray[Any], element: str) -> npt.NDArray[Any]:
    """Convert stored elements to their type during evaluation; returns a copy."""
    if element in SMALL_EPSILON:
        small: npt.NDArray[Any] = values_of(element)[stored]
        return small
    if element == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.array(stored & 1 if element == "i1" else stored, dtype=computed_type(element))


def to_memory(values: Array, element: str) -> npt.NDArray[Any]:
    """Convert elements to their type in memory, rounded to nearest."""
    if element in SMALL_EPSILON:
        try:
            return nearest_codes(values, element)
        except OverflowError as error:
            raise NotEvaluated(f"{error} has no reference") from error
    if element == "bf16":
        return _bfloat_bits(values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(stored_type(element))


def rounded(values: Array, element: str) -> Array:
    """Round floats to a narrower type; the result has the type of evaluation."""
    return from_memory(to_memory(values, element), element)


def _bfloat_bits(values: Array) -> npt.NDArray[Any]:
    """The upper half of a float32, rounded to nearest, ties to even; NaN stays NaN."""
    with np.errstate(all="ignore"):
        single = np.asarray(values).astype(np.float32)
    bits = single.view(np.uint32)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), upper)


# ---- memory


Memory = Sequence["npt.NDArray[np.uint8]"]
"""The bytes of the bindings."""
_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class View:
    """A strided array in a binding: `offset` of the first element in bytes, `strides` per axis in elements."""

    binding: int
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    element: str

    @classmethod
    def whole(cls, binding: int, offset: int, extents: Sequence[int], element: str) -> View:
        """A dense row-major view."""
        strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
        return cls(binding, offset, tuple(extents), tuple(strides), element)

    @property
    def type(self) -> str:
        """Extents and element type: `64x64xf32`."""
        return "x".join(map(str, (*self.extents, self.element)))

    @property
    def end(self) -> int:
        """The first byte after the view."""
        if 0 in self.extents:
            return self.offset
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents, self.strides, strict=True))
        return self.offset - (-(last + 1) * stored_bits(self.element) // _BYTE)

    def of(self, memory: Memory) -> npt.NDArray[Any]:
        """The elements in a memory, as a writable array.

        Raises:
            NotEvaluated: the view is out of bounds of its binding.
        """
        kind = stored_type(self.element)
        data = memory[self.binding]
        if self.offset < 0 or self.end > data.size:
            raise NotEvaluated(f"binding {self.binding} is accessed out of bounds ({data.size:,} bytes)")
        if 0 in self.extents:
            return np.empty(self.extents, kind)
        steps = [stride * kind.itemsize for stride in self.strides]
        return np.ndarray(self.extents, kind, data.data, self.offset, tuple(steps))

    @property
    def whole_bytes(self) -> View:
        """The bytes of a view with sub-byte elements; other views are returned unchanged.

        Raises:
            NotEvaluated: the view has gaps between sub-byte elements.
        """
        if stored_bits(self.element) >= _BYTE:
            return self
        dense = View.whole(self.binding, self.offset, self.extents, self.element)
        if dense != self:
            raise NotEvaluated(f"elements of type {self.element} with gaps have no reference")
        return View.whole(self.binding, self.offset, (self.end - self.offset,), "i8")

    def part(self, offsets: Sequence[int], extents: Sequence[int], steps: Sequence[int], axes: Sequence[int]) -> View:
        """A slice of the view, reduced to the given axes.

        Raises:
            NotEvaluated: the slice begins inside a byte.
        """
        first = sum(offset * stride for offset, stride in zip(offsets, self.strides, strict=True))
        begin = first * stored_bits(self.element)
        if begin % _BYTE:
            raise NotEvaluated(f"a slice of {self.element} that begins inside a byte has no reference")
        return View(
            self.binding,
            self.offset + begin // _BYTE,
            tuple(extents[axis] for axis in axes),
            tuple(self.strides[axis] * steps[axis] for axis in axes),
            self.element,
        )
