"""What operations on single numbers are: the values of constants and switches, how they compare, what only converts."""

from __future__ import annotations

import re

from tracemap.ir.bindings import ir
from tracemap.ir.parsing import Operation
from tracemap.units import UNKNOWN, Integer

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
