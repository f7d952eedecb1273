"""The constants that a compiled program keeps in its read-only buffers, and where they are in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracemap.core.locations import CallSite, Fused, Location, Name
from tracemap.core.units import Unknown
from tracemap.ir.attributes import shape_of
from tracemap.ir.parsing import MlirParser, Module, Operation, nested, walk


@dataclass(frozen=True, slots=True)
class ConstantBuffer:
    """A read-only buffer of the host program.

    `parts`: bytes of each constant in order, with the names of its location; () for padding, and for constants whose
    locations cannot be distinguished.
    """

    bytes: int
    parts: tuple[tuple[int, tuple[str, ...]], ...]


_BUFFER: Final = "util.buffer.constant"
_COMPOSITE = re.compile(r"#util\.composite<(\d+)xi8, \[(.*)\]>", re.DOTALL)
_PART = re.compile(r" : (tensor|vector)(<[^\n]*>),?$", re.MULTILINE)
_MOST_PRINTED: Final = 4
"""Elements up to which a constant is printed; its type is enough here."""


def read_constant_buffers(parser: MlirParser, data: bytes) -> list[ConstantBuffer]:
    """The buffers of a module ahead of code generation, in order. Those with texts are left out.

    Raises:
        ModelInvalid: the module does not parse.
    """
    module = parser.parse(data)
    return [buffer for operation in _buffers(module) for buffer in _buffer(parser, operation)]


def _buffers(module: Module) -> Iterator[Operation]:
    for top in nested(module.operation):
        if not top.name.startswith("hal.executable"):
            yield from (operation for operation in walk(top) if operation.name == _BUFFER)


def _buffer(parser: MlirParser, operation: Operation) -> Iterator[ConstantBuffer]:
    text = operation.get_asm(
        use_local_scope=True,
        enable_debug_info=False,
        large_elements_limit=_MOST_PRINTED,
        large_resource_limit=_MOST_PRINTED,
    )
    composite = _COMPOSITE.search(text)
    types = _PART.findall(composite[2] if composite else text)
    sizes = [(kind, size) for kind, shape in types if not isinstance(size := shape_of(kind + shape).bytes, Unknown)]
    total = sum(size for _, size in sizes)
    if not sizes or (composite and int(composite[1]) != total):
        return
    locations = _parts_of(parser.location(operation))
    # The compiler fuses the constants' locations in their order. Padding is a vector and has none.
    is_constant = [kind == "tensor" or not composite for kind, _ in sizes]
    if sum(is_constant) == 1:
        locations = [tuple(dict.fromkeys(name for names in locations for name in names))]
    elif len(locations) != sum(is_constant):
        locations = [()] * sum(is_constant)
    names = iter(locations)
    parts = [(size, next(names) if constant else ()) for (_, size), constant in zip(sizes, is_constant, strict=True)]
    yield ConstantBuffer(total, tuple(parts))


def _parts_of(location: Location) -> list[tuple[str, ...]]:
    """The names of each part of a fused location that has any."""
    parts = location.locations if isinstance(location, Fused) else (location,)
    return [names for part in parts if (names := tuple(dict.fromkeys(_names(part))))]


def _names(location: Location) -> Iterator[str]:
    """The names in a location: of a call site those of its callee, if it has any."""
    match location:
        case Name(name, child):
            yield name
            yield from _names(child)
        case Fused(locations):
            for part in locations:
                yield from _names(part)
        case CallSite(callee, caller):
            yield from tuple(_names(callee)) or _names(caller)
        case _:
            return
