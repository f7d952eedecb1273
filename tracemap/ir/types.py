"""Sizes of types, read from their printed form (there are few distinct ones; each is read once)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tracemap.units import UNKNOWN, Integer

_SHAPED = re.compile(r"(?:tensor|memref|vector)<((?:(?:\d+|\?)x)*)([^<>,]+(?:<[^<>]*>)?)")
_TORCH_TENSOR = re.compile(r"!torch\.v?tensor<\[([\d,?]*)\],([^<>]+(?:<[^<>]*>)?)>")
_BIT_WIDTH = re.compile(r"^(?:[su]?i|f|bf|tf)(\d+)|^f(\d+)E", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shape:
    """A shaped type's extents (`UNKNOWN` where dynamic) and the bits of one element (`UNKNOWN` for opaque elements)."""

    extents: tuple[Integer, ...]
    element_bits: Integer

    @property
    def elements(self) -> Integer:
        """The number of elements."""
        return product(self.extents)

    @property
    def bytes(self) -> Integer:
        """The size in memory, packed, rounded up to a whole byte."""
        bits = product((self.elements, self.element_bits))
        return UNKNOWN if bits is UNKNOWN else (bits + 7) // 8


SCALAR = Shape((), UNKNOWN)
"""What `shape_of` answers for types that are not shaped; it has one element."""


def product(factors: tuple[Integer, ...]) -> Integer:
    """The product, `UNKNOWN` as soon as one factor is; 1 of none."""
    result = 1
    for factor in factors:
        if factor is UNKNOWN:
            return UNKNOWN
        result *= factor
    return result


def add(left: Integer, right: Integer) -> Integer:
    """The sum, `UNKNOWN` as soon as one of the two is."""
    return UNKNOWN if left is UNKNOWN or right is UNKNOWN else left + right


@lru_cache(maxsize=8192)
def shape_of(type_text: str) -> Shape:
    """The shape of the first tensor, memref, vector or torch tensor in a type's text (dispatch tensors wrap one)."""
    # Torch's first: what follows its bracket looks like the element of a tensor without extents.
    match, separator = _TORCH_TENSOR.search(type_text), ","
    if match is None:
        match, separator = _SHAPED.search(type_text), "x"
    if match is None:
        return SCALAR
    extents = tuple(UNKNOWN if extent == "?" else int(extent) for extent in match.group(1).split(separator) if extent)
    return Shape(extents, element_bits(match.group(2).strip()))


def element_bits(element: str) -> Integer:
    """Bits of an element type in memory: an i1 takes a byte, complex numbers take two elements.

    >>> element_bits("bf16"), element_bits("complex<f32>"), element_bits("i1")
    (16, 64, 8)
    """
    if element.startswith("complex<"):
        return product((2, element_bits(element[len("complex<") : -1])))
    if element == "index":
        return 64
    match = _BIT_WIDTH.match(element)
    if match is None:
        return UNKNOWN
    width = int(match.group(1) or match.group(2))
    return 8 if width == 1 else width
