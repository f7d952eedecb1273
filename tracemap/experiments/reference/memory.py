"""Memory of a kernel: the bytes of its bindings, and typed views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracemap.experiments.reference.elements import NotEvaluated, stored_bits, stored_type

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
        import numpy as np

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
