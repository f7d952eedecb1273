"""The memory that a kernel is given: one series of bytes per binding, and typed views of it."""

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
"""The bytes of each binding."""
_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class View:
    """Elements in a binding: where the first lies, in bytes, and how far the next is along each axis, in elements."""

    binding: int
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    element: str

    @classmethod
    def whole(cls, binding: int, offset: int, extents: Sequence[int], element: str) -> View:
        """Elements that lie without gaps, the last axis fastest."""
        strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
        return cls(binding, offset, tuple(extents), tuple(strides), element)

    @property
    def end(self) -> int:
        """The first byte behind it."""
        if 0 in self.extents:
            return self.offset
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents, self.strides, strict=True))
        return self.offset - (-(last + 1) * stored_bits(self.element) // _BYTE)

    def of(self, memory: Memory) -> npt.NDArray[Any]:
        """The elements in a memory, which can be changed through it.

        Raises:
            NotEvaluated: it does not lie inside of its binding.
        """
        import numpy as np

        kind = stored_type(self.element)
        data = memory[self.binding]
        if self.offset < 0 or self.end > data.size:
            raise NotEvaluated(f"binding {self.binding} is read or written outside of its {data.size:,} bytes")
        if 0 in self.extents:
            return np.empty(self.extents, kind)
        steps = [stride * kind.itemsize for stride in self.strides]
        return np.ndarray(self.extents, kind, data.data, self.offset, tuple(steps))

    @property
    def whole_bytes(self) -> View:
        """The bytes that elements lie in, of which several lie in one and without gaps; others are as they are.

        Raises:
            NotEvaluated: there are gaps.
        """
        if stored_bits(self.element) >= _BYTE:
            return self
        dense = View.whole(self.binding, self.offset, self.extents, self.element)
        if dense != self:
            raise NotEvaluated(f"elements of type {self.element} with gaps have no reference")
        return View.whole(self.binding, self.offset, (self.end - self.offset,), "i8")

    def part(self, offsets: Sequence[int], extents: Sequence[int], steps: Sequence[int], kept: Sequence[int]) -> View:
        """A part of it, with only those axes that are `kept`."""
        moved = sum(offset * stride for offset, stride in zip(offsets, self.strides, strict=True))
        begin = moved * stored_bits(self.element)
        if begin % _BYTE:
            raise NotEvaluated(f"elements of type {self.element} that begin inside of a byte have no reference")
        return View(
            self.binding,
            self.offset + begin // _BYTE,
            tuple(extents[axis] for axis in kept),
            tuple(self.strides[axis] * steps[axis] for axis in kept),
            self.element,
        )
