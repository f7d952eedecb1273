"""What an operation computes from its operands, as a number: equal for operations that compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tracemap.ir.parsing import MlirParser, Operation, Value, walk
from tracemap.ir.types import shape_of

_PRODUCT, _PLAIN_PRODUCT = "stablehlo.dot_general", "stablehlo.dot"
_DIMENSIONS = "dot_dimension_numbers"
_PLAIN_NAMES = {"torch.aten.mm": "torch.aten.matmul"}
"""Ops that are a special case of another one, which computes the same from the same operands."""


class Signatures:
    """Numbers the operations of one model, in pre-order.

    `index_of`: the operations met so far, each with its place in pre-order; whoever walks the model lets it grow.
    """

    def __init__(self, parser: MlirParser, index_of: Mapping[Operation, int]) -> None:
        self._parser = parser
        self._index_of = index_of
        self._number_of: dict[Hashable, int] = {}

    def of(self, operation: Operation, name: str, results: tuple[str, ...]) -> int:
        """The number of an operation by its name, attributes, types of results, and what stands in its regions."""
        written = _PLAIN_NAMES.get(name, name)
        attributes = self._attributes(operation)
        if name == _PRODUCT and _is_plain(operation):
            written, attributes = _PLAIN_PRODUCT, self._attributes(operation, without=_DIMENSIONS)
        content = (written, attributes, results, self._regions(operation))
        return self._number_of.setdefault(content, len(self._number_of))

    def _attributes(self, operation: Operation, without: str = "") -> Hashable:
        attributes = operation.attributes
        try:
            return tuple([(name, attributes[name]) for name in attributes if name != without])
        except TypeError:  # the bindings cannot hand out attributes that are locations: like no other
            return len(self._index_of)

    def _regions(self, operation: Operation) -> Hashable:
        """What stands in an operation's regions: names, attributes, types, and where values come from within it."""
        if not len(operation.regions):
            return ()
        # Values defined inside go by their number there, so that equal regions at two places are equal.
        _, *inside = walk(operation)
        number_of = {each: number for number, each in enumerate(inside)}

        def defined(value: Value) -> Hashable:
            if hasattr(value, "arg_number"):
                return ("argument", value.arg_number, number_of.get(value.owner.owner.operation, -1))
            owner = value.owner.operation
            if owner in number_of:
                return (number_of[owner], value.result_number)
            return ("outside", self._index_of.get(owner, -1), value.result_number)

        return tuple(
            (
                each.name,
                self._attributes(each),
                tuple(map(defined, each.operands)),
                tuple([self._parser.text_of(result.type) for result in each.results]),
            )
            for each in inside
        )


def _is_plain(product: Operation) -> bool:
    """Whether a product of StableHLO sums over the last dimension of one operand and the first of the other.

    Then it is the product that StableHLO has an op of its own for.
    """
    last = len(shape_of(str(product.operands[0].type)).extents) - 1
    dimensions = str(product.attributes[_DIMENSIONS])
    return dimensions == f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>"
