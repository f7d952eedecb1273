"""Types, affine maps, scalars and constants of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from iree.compiler.dialects import linalg

from tracemap.ir.parsing import Module, Operation, ir
from tracemap.units import UNKNOWN, Integer

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- types
#
# Sizes of types, read from their printed form (there are few distinct ones; each is read once).


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


# ---- affine
#
# Affine maps of structured operations: which element of an operand a point of the loops sees.


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum: a constant, and dimensions times their factors (none of which is 0)."""

    constant: int = 0
    factors: dict[int, int] = field(default_factory=dict)

    @property
    def is_dimension(self) -> bool:
        """Whether it is one of the dimensions, and nothing else."""
        return self.constant == 0 and list(self.factors.values()) == [1]

    def plus(self, other: Linear) -> Linear:
        """The sum of two."""
        factors = {
            number: self.factors.get(number, 0) + other.factors.get(number, 0)
            for number in {*self.factors, *other.factors}
        }
        return Linear(
            self.constant + other.constant, {number: factor for number, factor in sorted(factors.items()) if factor}
        )

    def times(self, factor: int) -> Linear:
        """A multiple."""
        factors = {number: each * factor for number, each in self.factors.items()} if factor else {}
        return Linear(self.constant * factor, factors)


class NotLinear(ValueError):
    """An operand is seen through something else than sums of multiples; the message says through what."""


def linear_maps(operation: Operation) -> list[list[Linear]]:
    """The maps of an operation, one per operand: a row for each axis of the operand.

    Raises:
        NotLinear: it has none, or one is not linear.
    """
    if operation.name == "affine.apply":
        maps: Sequence[Any] = [operation.attributes["map"]]
    elif "indexing_maps" in operation.attributes:
        maps = list(operation.attributes["indexing_maps"])
    else:
        maps = list(linalg.get_indexing_maps(operation) or ())
    if not maps:
        raise NotLinear(f"{operation.name} has no maps")
    return [[_linear(result) for result in _map_of(each).results] for each in maps]


def _map_of(attribute: Any) -> Any:  # noqa: ANN401 - of the bindings
    return attribute if isinstance(attribute, ir.AffineMap) else ir.AffineMapAttr(attribute).value


def _linear(expression: Any) -> Linear:  # noqa: ANN401 - of the bindings
    """A sum of multiples of dimensions."""
    if isinstance(expression, ir.AffineConstantExpr):
        return Linear(expression.value)
    if isinstance(expression, ir.AffineDimExpr):
        return Linear(0, {expression.position: 1})
    if isinstance(expression, ir.AffineAddExpr):
        return _linear(expression.lhs).plus(_linear(expression.rhs))
    if isinstance(expression, ir.AffineMulExpr):
        one, other = _linear(expression.lhs), _linear(expression.rhs)
        if not other.factors:
            return one.times(other.constant)
        if not one.factors:
            return other.times(one.constant)
    raise NotLinear(f"an operand is seen through {expression}")


# ---- scalars
#
# What operations on single numbers are: the values of constants and switches, how they compare, what only converts.


_DIRECTION = re.compile(r"\b(EQ|NE|LT|LE|GT|GE)>$")
_OF_INTEGERS = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE"}
"""Predicates of `arith.cmpi` on signed numbers; unsigned and floating-point ones are not told."""


def constant_of(operation: Operation) -> Integer:
    """The whole number that a constant consists of; of truth values 1 and 0."""
    if "value" not in operation.attributes:
        return UNKNOWN
    try:
        value = operation.attributes["value"]
    except TypeError:  # the bindings have no class for it, as for constants of complex numbers
        return UNKNOWN
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        value = value.get_splat_value()
    if isinstance(value, ir.BoolAttr):
        return int(value.value)
    # The bindings refuse numbers that C++ holds as unsigned, and those of more than 64 bits.
    if not isinstance(value, ir.IntegerAttr) or str(value.type).startswith("u"):
        return UNKNOWN
    try:
        return int(value.value)
    except ValueError:
        return UNKNOWN


_VALUES = ("value", "torch.onnx.value", "values")
"""The attributes in which the dialects keep the elements of their constants."""


def splat_of(operation: Operation) -> str:
    """The number that all elements of a constant are, with its type, as MLIR prints it; "" where there is none."""
    name = next((name for name in _VALUES if name in operation.attributes), "")
    try:
        value = operation.attributes[name] if name else None
        return str(value.get_splat_value()) if isinstance(value, ir.DenseElementsAttr) and value.is_splat else ""
    except (TypeError, ValueError):  # the bindings have no class for it, as for constants of complex numbers
        return ""


def direction_of(operation: Operation) -> str:
    """How an operation compares whole numbers: EQ, NE, LT, LE, GT or GE; "" where it does not, or is not told."""
    if "comparison_direction" in operation.attributes:
        found = _DIRECTION.search(str(operation.attributes["comparison_direction"]))
        return found[1] if found else ""
    if operation.name == "arith.cmpi":
        return _OF_INTEGERS.get(operation.attributes["predicate"].value, "")
    return ""


_SWITCH = "scf.index_switch"


def cases_of(operation: Operation, name: str) -> tuple[int, ...]:
    """The numbers that the arms of a switch are for; none of any other operation."""
    return tuple(operation.attributes["cases"]) if name == _SWITCH else ()


_CONVERSIONS = frozenset(
    """
    arith.extf arith.extsi arith.extui arith.fptosi arith.fptoui arith.sitofp arith.truncf arith.trunci arith.uitofp
    """.split()
)


def is_conversion(name: str) -> bool:
    """Whether an operation on numbers only changes their type."""
    return name in _CONVERSIONS


# ---- constants
#
# The elements of constant tensors, and what stands in attributes for numbers that are operands.


DYNAMIC: Final[int] = ir.ShapedType.get_dynamic_size()
"""What stands in an attribute, or in a type, for a number that is an operand."""


def splat_value(attribute: object) -> Any:  # noqa: ANN401 - a number
    """The number that all elements of a constant are; None where they differ, or are not kept in it."""
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return attribute.get_splat_value().value
    return None


def dense_elements(attribute: object) -> npt.NDArray[Any] | None:
    """The elements of a constant in its shape; None where they are not kept in it, or numpy has no such type."""
    import numpy as np

    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    element = str(attribute.type.element_type)
    return None if element in ("bf16", "i1") else np.array(attribute)


# ---- resources
#
# Constants that a module keeps beside its operations, as blobs (`dense_resource`); the bindings hide them.


_NAME = re.compile(r"dense_resource<([^>]+)>")
_ALIGNMENT_BYTES = 4
"""In front of the data of a blob stands its alignment (mlir/lib/AsmParser/Parser.cpp, `parseAsBlob`)."""


class Blobs:
    """The blobs of a module, which is printed when the first one is asked for."""

    def __init__(self, module: Module) -> None:
        self._module = module

    @cached_property
    def _text(self) -> str:
        text: str = self._module.operation.get_asm()
        return text[text.rfind("{-#") :]

    def of(self, attribute: object) -> bytes:
        """The data of a constant's attribute; empty where there is none."""
        named = _NAME.match(str(attribute)[:400])
        if named is None:
            return b""
        found = re.search(rf'(?m)^\s*"?{re.escape(named[1])}"?: "0x([0-9A-Fa-f]*)"', self._text)
        return b"" if found is None else bytes.fromhex(found[1])[_ALIGNMENT_BYTES:]
