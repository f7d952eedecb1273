"""How large the tensors of dispatches would be if every size that the program does not know before were the same.

Sizes are numbers of the program: computed of those of its arguments, which are assumed, and handed to the dispatches.
So what several dimensions are flattened to is as large as these together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from tracemap.ir.constants import DYNAMIC
from tracemap.ir.numbers import HostValues
from tracemap.ir.parsing import MlirParser, Module, Operation, Value, operand_parts
from tracemap.ir.types import Shape, shape_of
from tracemap.units import ASSUMED_SIZE, UNKNOWN, Integer

_DEEPEST: Final = 64
"""How many operations behind a tensor are looked at for its size."""

_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_TAKES_A_PART: Final = frozenset({"iree_tensor_ext.dispatch.tensor.load", "tensor.extract_slice"})
_SIZES: Final = -2
"""Of the parts of their operands that with the sizes; strides come last."""


class AssumedShapes:
    """The shapes of values in the dispatches of a module."""

    def __init__(self, parser: MlirParser, module: Module) -> None:
        self._parser = parser
        self._module = module

    @cached_property
    def _numbers(self) -> HostValues:
        # Only where a shape asks: the whole host program is gone through for it.
        return HostValues(self._module, lambda *_: ASSUMED_SIZE, unknown=ASSUMED_SIZE, first_values=False)

    def shape(self, value: Value) -> Shape:
        """The shape of a value, of which no extent is unknown."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        typed = shape_of(self._parser.text_of(value.type))
        if UNKNOWN not in typed.extents:
            return typed
        found = self._open_sizes(value, depth) if depth < _DEEPEST else iter(())
        return Shape(
            tuple([next(found, ASSUMED_SIZE) if extent is UNKNOWN else extent for extent in typed.extents]),
            typed.element_bits,
        )

    def _open_sizes(self, value: Value, depth: int) -> Iterator[int]:
        """Of a value the sizes that its type leaves open, in order; none where nothing tells them."""
        if hasattr(value, "arg_number"):
            return iter(())
        owner = value.owner.operation
        if owner.name == "tensor.empty":
            return self._numbers_of(owner.operands)
        if owner.name in _TAKES_A_PART:
            return self._numbers_of(operand_parts(owner)[_SIZES])
        if owner.name == "tensor.expand_shape":
            return self._numbers_of(list(owner.operands)[1:])
        if owner.name == "tensor.collapse_shape":
            return self._collapsed(owner, depth)
        return self._as_large_as(_alike(value, owner), value, depth)

    def _numbers_of(self, sizes: Iterable[Value]) -> Iterator[int]:
        return (max(1, self._numbers.of(size).value) for size in sizes)

    def _collapsed(self, owner: Operation, depth: int) -> Iterator[int]:
        before = self._shape(owner.operands[0], depth + 1).extents
        for group, size in zip(owner.attributes["reassociation"], owner.results[0].type.shape, strict=True):
            if size == DYNAMIC:
                yield math.prod(_known(before[dimension.value]) for dimension in group)

    def _as_large_as(self, other: Value | None, value: Value, depth: int) -> Iterator[int]:
        extents = shape_of(self._parser.text_of(value.type)).extents
        sizes = () if other is None else self._shape(other, depth + 1).extents
        if len(sizes) != len(extents):
            return iter(())
        return (_known(size) for size, extent in zip(sizes, extents, strict=True) if extent is UNKNOWN)


def _known(size: Integer) -> int:
    """An extent of a shape that was assumed; the type says that it may be unknown."""
    return ASSUMED_SIZE if size is UNKNOWN else size


def _alike(value: Value, owner: Operation) -> Value | None:
    """The operand that is as large as a result; None where none is known to be."""
    if owner.name.startswith(_STRUCTURED):  # the last operands are what the results are made in
        place = len(owner.operands) - len(owner.results) + value.result_number
        return owner.operands[place] if 0 <= place < len(owner.operands) else None
    if owner.name == "tensor.cast":
        return owner.operands[0]
    return owner.operands[1] if owner.name == "tensor.insert_slice" else None
