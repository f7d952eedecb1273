"""What an operation computes from its operands, as a number: equal for operations that compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tracemap.ir.parsing import MlirParser, Operation, Value, walk


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
        content = (name, self._attributes(operation), results, self._regions(operation))
        return self._number_of.setdefault(content, len(self._number_of))

    def _attributes(self, operation: Operation) -> Hashable:
        attributes = operation.attributes
        try:
            return tuple([(name, attributes[name]) for name in attributes])
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
