"""The elements of constant tensors, and what stands in attributes for numbers that are operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracemap.ir.bindings import ir

if TYPE_CHECKING:
    import numpy.typing as npt

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
