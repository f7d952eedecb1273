"""Descriptions of kernels: what they compute, move and take."""

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
# What a kernel is, in words: what it takes and gives, how it is configured, what it is called after.


_CALLED_AFTER = re.compile(r".*?_dispatch_\d+_(.+)", re.DOTALL)
_PIPELINE = re.compile(r"pipeline = (?:#[\w.]+pipeline<)?(\w+)")
_TILES = re.compile(r"(\w+) = (\[[\d, \[\]]*\])")


def operation_name(kernel: str) -> str:
    """What a kernel's name says that it does: `matmul_64x64x64_f32` of `main_dispatch_4_matmul_64x64x64_f32`."""
    found = _CALLED_AFTER.fullmatch(kernel)
    return found[1] if found else kernel


def arguments(accesses: Sequence[Access]) -> str:
    """What is read, and behind an arrow what is written: `64x64xf32, 64xf32 -> 64x64xf32`."""
    read = [_shape(access) for access in accesses if access.loaded]
    written = [_shape(access) for access in accesses if access.stored]
    return f"{', '.join(read)} -> {', '.join(written)}"


def _shape(access: Access) -> str:
    return "x".join([*map(str, access.view.extents), access.view.element])


def configuration(function: Operation) -> str:
    """A kernel's pipeline, and the tiles of the operation that has the most: `CPUDefault distribution=[64, 64, 0]`."""
    pipeline = ""
    if "translation_info" in function.attributes:
        found = _PIPELINE.search(str(function.attributes["translation_info"]))
        pipeline = found[1] if found else ""
    configs = [
        str(operation.attributes["lowering_config"])
        for operation in walk(function)
        if "lowering_config" in operation.attributes
    ]
    tiles = max((_TILES.findall(config) for config in configs), key=len, default=[])
    return " ".join([*([pipeline] if pipeline else []), *(f"{name}={sizes}" for name, sizes in tiles)])


# ---- amounts
#
# What a call of a kernel computes and moves, counted by the map's rules where the map itself knows no sizes.
#
# The numbers that the program hands the kernel tell how large what it loads and makes is. Where something is made by
# an operation that is not followed here, its size stays unknown.


_KERNEL: Final = ("kernel",)
_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_DEEPEST: Final = 100


def amounts(function: KernelFunction, accesses: Sequence[Access], parser: MlirParser) -> tuple[Integer, Integer]:
    """Operations and bytes of a call; each unknown where a size of it is."""
    moved = sum(_bytes(access.view) * (access.loaded + access.stored) for access in accesses)
    try:
        body = read_body(parser, function.operation, _Sizes(function.numbers()).shape)
    except SURPRISES:
        return UNKNOWN, moved
    # Bodies in the map lack what computes sizes and places.
    counted = [replace(op, iterations=0) if op.parent < 0 and not _makes_tensors(op.results) else op for op in body]
    return CostModel(counted, lambda _: _KERNEL).operations.get(*_KERNEL, 0), moved


def _makes_tensors(results: Sequence[Shape]) -> bool:
    return any(each.element_bits is not UNKNOWN for each in results)


def _bytes(view: View) -> int:
    return -(-math.prod(view.extents) * stored_bits(view.element) // 8)


class _Sizes:
    """The sizes of tensors in a kernel's function; `number_of` tells what is a number, or a view of memory."""

    def __init__(self, number_of: Callable[[Value], Any]) -> None:
        self._number_of = number_of

    def shape(self, value: Value) -> Shape:
        """The shape of a value, with the sizes that its type leaves open as far as they are known."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        typed = shape_of(str(value.type))
        owner = getattr(value.owner, "operation", value.owner)
        if UNKNOWN not in typed.extents or not hasattr(owner, "name") or depth > _DEEPEST:
            return typed
        if owner.name == LOAD:
            return Shape(tuple(self._number_of(owner.operands[0]).extents), typed.element_bits)
        if owner.name == "tensor.empty":
            given = iter(owner.operands)
            sizes = (self._number_of(next(given)) if size == DYNAMIC else size for size in value.type.shape)
            return Shape(tuple(map(int, sizes)), typed.element_bits)
        if owner.name.startswith(_STRUCTURED):
            return self._shape(_output(owner, value.result_number), depth + 1)
        return typed


def _output(operation: Operation, number: int) -> Value:
    """The operand that a result takes the place of: the last operands are the outputs."""
    return operation.operands[len(operation.operands) - len(operation.results) + number]
