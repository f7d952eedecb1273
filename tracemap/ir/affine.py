"""Affine maps of structured operations: which element of an operand a point of the loops sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from iree.compiler.dialects import linalg

from tracemap.ir.bindings import ir
from tracemap.ir.parsing import Operation


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
