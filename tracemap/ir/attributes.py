"""Types, affine maps, scalars and constants of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.parsing import Module, Operation, get_indexing_maps, ir

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- types
#
# Shapes of types, parsed from their text and cached, since few are distinct.

_SHAPED = re.compile(r"(?:tensor|memref|vector)<((?:(?:\d+|\?)x)*)([^<>,]+(?:<[^<>]*>)?)")
_TORCH_TENSOR = re.compile(r"!torch\.v?tensor<\[([\d,?]*)\],([^<>]+(?:<[^<>]*>)?)>")
_BIT_WIDTH = re.compile(r"^(?:[su]?i|f|bf|tf)(\d+)|^f(\d+)E", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of a shaped type (`UNKNOWN` if dynamic), and bits per element (`UNKNOWN` for opaque elements)."""

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
"""Result of `shape_of` for types that are not shaped; it has a single element."""


def product(factors: tuple[Integer, ...]) -> Integer:
    """The product; `UNKNOWN` if a factor is; 1 without factors."""
    result = 1
    for factor in factors:
        if factor is UNKNOWN:
            return UNKNOWN
        result *= factor
    return result


@lru_cache(maxsize=8192)
def shape_of(type_text: str) -> Shape:
    """The shape of the first tensor, memref, vector or torch tensor in a type's text (dispatch tensors wrap one)."""
    # Torch types first, since the builtin pattern would match a part of them.
    match, separator = _TORCH_TENSOR.search(type_text), ","
    if match is None:
        match, separator = _SHAPED.search(type_text), "x"
    if match is None:
        return SCALAR
    extents = tuple(UNKNOWN if extent == "?" else int(extent) for extent in match.group(1).split(separator) if extent)
    return Shape(extents, element_bits(match.group(2).strip()))


def element_bits(element: str) -> Integer:
    """Bits of an element type in memory; an i1 takes a byte, a complex number two elements.

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


# ---- affine
#
# Affine maps of structured operations: they map a point of the loops to an element of an operand.


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear expression: a constant plus dimensions times factors, which are not 0."""

    constant: int = 0
    factors: dict[int, int] = field(default_factory=dict)

    @property
    def is_dimension(self) -> bool:
        """Whether the expression is a single dimension."""
        return self.constant == 0 and list(self.factors.values()) == [1]

    def plus(self, other: Linear) -> Linear:
        """The sum of two expressions."""
        factors = {
            number: self.factors.get(number, 0) + other.factors.get(number, 0)
            for number in {*self.factors, *other.factors}
        }
        return Linear(
            self.constant + other.constant, {number: factor for number, factor in sorted(factors.items()) if factor}
        )

    def times(self, factor: int) -> Linear:
        """A multiple of the expression."""
        factors = {number: old * factor for number, old in self.factors.items()} if factor else {}
        return Linear(self.constant * factor, factors)


class NotLinear(ValueError):
    """An indexing map is not linear; the message names the expression."""


def linear_maps(operation: Operation) -> list[list[Linear]]:
    """The indexing maps of an operation, one per operand, with an expression per axis of the operand.

    Raises:
        NotLinear: the operation has no maps, or a map is not linear.
    """
    if operation.name == "affine.apply":
        maps: Sequence[Any] = [operation.attributes["map"]]
    elif "indexing_maps" in operation.attributes:
        maps = list(operation.attributes["indexing_maps"])
    else:
        maps = list(get_indexing_maps(operation) or ())
    if not maps:
        raise NotLinear(f"{operation.name} has no maps")
    return [[_linear(result) for result in _map_of(attribute).results] for attribute in maps]


def _map_of(attribute: Any) -> Any:  # noqa: ANN401 - of the bindings
    return attribute if isinstance(attribute, ir.AffineMap) else ir.AffineMapAttr(attribute).value


def _linear(expression: Any) -> Linear:  # noqa: ANN401 - of the bindings
    """Convert an affine expression.

    Raises:
        NotLinear: it is not linear.
    """
    if isinstance(expression, ir.AffineConstantExpr):
        return Linear(expression.value)
    if isinstance(expression, ir.AffineDimExpr):
        return Linear(0, {expression.position: 1})
    if isinstance(expression, ir.AffineAddExpr):
        return _linear(expression.lhs).plus(_linear(expression.rhs))
    if isinstance(expression, ir.AffineMulExpr):
        left, right = _linear(expression.lhs), _linear(expression.rhs)
        if not right.factors:
            return left.times(right.constant)
        if not left.factors:
            return right.times(left.constant)
    raise NotLinear(f"an operand is indexed by {expression}")


# ---- scalars

_DIRECTION = re.compile(r"\b(EQ|NE|LT|LE|GT|GE)>$")
_OF_INTEGERS = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE"}
"""Predicates of `arith.cmpi` on signed numbers; unsigned and floating-point comparisons are not supported."""


def constant_of(operation: Operation) -> Integer:
    """The value of an integer or boolean (1, 0) constant; otherwise unknown."""
    if "value" not in operation.attributes:
        return UNKNOWN
    try:
        value = operation.attributes["value"]
    except TypeError:  # the bindings have no class for some constants, such as complex numbers
        return UNKNOWN
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        value = value.get_splat_value()
    if isinstance(value, ir.BoolAttr):
        return int(value.value)
    # The bindings reject unsigned numbers and numbers of more than 64 bits.
    if not isinstance(value, ir.IntegerAttr) or str(value.type).startswith("u"):
        return UNKNOWN
    try:
        return int(value.value)
    except ValueError:
        return UNKNOWN


_VALUES = ("value", "torch.onnx.value", "values")
"""The attributes with the elements of constants in the various dialects."""


def splat_of(operation: Operation) -> str:
    """The common value of all elements of a constant, with its type, as MLIR prints it; "" if there is none."""
    name = next((name for name in _VALUES if name in operation.attributes), "")
    try:
        value = operation.attributes[name] if name else None
        return str(value.get_splat_value()) if isinstance(value, ir.DenseElementsAttr) and value.is_splat else ""
    except (TypeError, ValueError):  # the bindings have no class for some constants, such as complex numbers
        return ""


def direction_of(operation: Operation) -> str:
    """The direction of an integer comparison: EQ, NE, LT, LE, GT or GE; "" for other operations."""
    if "comparison_direction" in operation.attributes:
        match = _DIRECTION.search(str(operation.attributes["comparison_direction"]))
        return match[1] if match else ""
    if operation.name == "arith.cmpi":
        return _OF_INTEGERS.get(operation.attributes["predicate"].value, "")
    return ""


_CONVERSIONS = frozenset(
    """
    arith.extf arith.extsi arith.extui arith.fptosi arith.fptoui arith.sitofp arith.truncf arith.trunci arith.uitofp
    """.split()
)


def is_conversion(name: str) -> bool:
    """Whether an operation only converts numbers to another type."""
    return name in _CONVERSIONS


# ---- constants

DYNAMIC: Final = -(1 << 63)
"""Placeholder in attributes and types for a number that an operand provides (`ShapedType::kDynamic`)."""


def splat_value(attribute: object) -> Any:  # noqa: ANN401 - a number
    """The common value of all elements of a constant; None if they differ, or are stored elsewhere."""
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return attribute.get_splat_value().value
    return None


def dense_elements(attribute: object) -> npt.NDArray[Any] | None:
    """The elements of a constant in its shape; None if they are stored elsewhere, or numpy lacks the type."""
    import numpy as np

    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    element = str(attribute.type.element_type)
    return None if element in ("bf16", "i1") else np.array(attribute)


# ---- resources
#
# Resource constants (`dense_resource`), which a module stores after its operations; the bindings do not expose them.

_NAME = re.compile(r"dense_resource<([^>]+)>")
_ALIGNMENT_BYTES = 4
"""The alignment precedes the data of a blob (mlir/lib/AsmParser/Parser.cpp, `parseAsBlob`)."""


class Blobs:
    """The resource blobs of a module; the module is printed on first access."""

    def __init__(self, module: Module) -> None:
        self._module = module

    @cached_property
    def _text(self) -> str:
        text: str = self._module.operation.get_asm()
        return text[text.rfind("{-#") :]

    def of(self, attribute: object) -> bytes:
        """The data of a resource constant; empty if there is none."""
        name = _NAME.match(str(attribute)[:400])
        if name is None:
            return b""
        data = re.search(rf'(?m)^\s*"?{re.escape(name[1])}"?: "0x([0-9A-Fa-f]*)"', self._text)
        return b"" if data is None else bytes.fromhex(data[1])[_ALIGNMENT_BYTES:]
