"""Descriptions of kernels: arguments, configuration, and amount of work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from tracemap.experiments.reference.elements import SURPRISES, stored_bits
from tracemap.experiments.reference.kernel import Access, KernelFunction
from tracemap.experiments.reference.memory import View
from tracemap.experiments.reference.tensors import LOAD
from tracemap.ir.attributes import DYNAMIC, Shape, shape_of
from tracemap.ir.bodies import read_body
from tracemap.ir.parsing import MlirParser, Operation, Value, walk
from tracemap.mapping.sites.cost import CostModel
from tracemap.units import UNKNOWN, Integer

# ---- describing
#
# A kernel as text: arguments, configuration, and the operation in its name.


_OPERATION_IN_NAME = re.compile(r".*?_dispatch_\d+_(.+)", re.DOTALL)
_PIPELINE = re.compile(r"pipeline = (?:#[\w.]+pipeline<)?(\w+)")
_TILES = re.compile(r"(\w+) = (\[[\d, \[\]]*\])")


def operation_name(kernel: str) -> str:
    """The operation in a kernel's name: `matmul_64x64x64_f32` of `main_dispatch_4_matmul_64x64x64_f32`."""
    match = _OPERATION_IN_NAME.fullmatch(kernel)
    return match[1] if match else kernel


def arguments(accesses: Sequence[Access]) -> str:
    """The shapes that a kernel reads and writes: `64x64xf32, 64xf32 -> 64x64xf32`."""
    read = [_shape(access) for access in accesses if access.loaded]
    written = [_shape(access) for access in accesses if access.stored]
    return f"{', '.join(read)} -> {', '.join(written)}"


def _shape(access: Access) -> str:
    return "x".join([*map(str, access.view.extents), access.view.element])


def configuration(function: Operation) -> str:
    """A kernel's pipeline, and the tiles of its most tiled operation: `CPUDefault distribution=[64, 64, 0]`."""
    pipeline = ""
    if "translation_info" in function.attributes:
        match = _PIPELINE.search(str(function.attributes["translation_info"]))
        pipeline = match[1] if match else ""
    configs = [
        str(operation.attributes["lowering_config"])
        for operation in walk(function)
        if "lowering_config" in operation.attributes
    ]
    tiles = max((_TILES.findall(config) for config in configs), key=len, default=[])
    return " ".join([*([pipeline] if pipeline else []), *(f"{name}={sizes}" for name, sizes in tiles)])


# ---- amounts
#
# Operations and bytes of a kernel call, counted by the map's rules for kernels whose sizes the map does not know.
#
# The kernel's push constants decide the sizes of its tensors. A tensor that an unsupported operation produces has an
# unknown size.


_KERNEL: Final = ("kernel",)
_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_MAX_DEPTH: Final = 100


def amounts(function: KernelFunction, accesses: Sequence[Access], parser: MlirParser) -> tuple[Integer, Integer]:
    """Operations and bytes of a call; unknown if they depend on an unknown size."""
    moved = sum(_bytes(access.view) * (access.loaded + access.stored) for access in accesses)
    try:
        body = read_body(parser, function.operation, _Sizes(function.numbers()).shape)
    except SURPRISES:
        return UNKNOWN, moved
    # As in the map, operations that compute sizes and addresses do not count.
    counted = [replace(op, iterations=0) if op.parent < 0 and not _makes_tensors(op.results) else op for op in body]
    return CostModel(counted, lambda _: _KERNEL).operations.get(*_KERNEL, 0), moved


def _makes_tensors(results: Sequence[Shape]) -> bool:
    return any(shape.element_bits is not UNKNOWN for shape in results)


def _bytes(view: View) -> int:
    return -(-math.prod(view.extents) * stored_bits(view.element) // 8)


class _Sizes:
    """Sizes of tensors in a kernel's function; `number_of` evaluates a value to a number or a view of memory."""

    def __init__(self, number_of: Callable[[Value], Any]) -> None:
        self._number_of = number_of

    def shape(self, value: Value) -> Shape:
        """The shape of a value, with its dynamic sizes resolved as far as possible."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        static_shape = shape_of(str(value.type))
        owner = getattr(value.owner, "operation", value.owner)
        if UNKNOWN not in static_shape.extents or not hasattr(owner, "name") or depth > _MAX_DEPTH:
            return static_shape
        if owner.name == LOAD:
            return Shape(tuple(self._number_of(owner.operands[0]).extents), static_shape.element_bits)
        if owner.name == "tensor.empty":
            dynamic = iter(owner.operands)
            sizes = (self._number_of(next(dynamic)) if size == DYNAMIC else size for size in value.type.shape)
            return Shape(tuple(map(int, sizes)), static_shape.element_bits)
        if owner.name.startswith(_STRUCTURED):
            return self._shape(_output(owner, value.result_number), depth + 1)
        return static_shape


def _output(operation: Operation, number: int) -> Value:
    """The output operand of a result; outputs are the last operands."""
    return operation.operands[len(operation.operands) - len(operation.results) + number]
