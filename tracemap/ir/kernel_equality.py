"""Kernels that are equal except for the places of their operands in memory.

A program packs its buffers, so that an operand of a kernel may begin at an offset, which the program passes at run time
if several dispatches share the kernel. A smaller program has other offsets and the same kernel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable
from typing import Final

from tracemap.ir.parsing import MlirParser, Operation, Value, walk

_BINDING: Final = "hal.interface.binding.subspan"
_CONSTANT: Final = "arith.constant"
_LAYOUT: Final = re.compile(r", strided<\[[^\]]*\](?:, offset: [^>]*)?>")
"""The part of a buffer's type that says where its elements are."""
_DATA: Final = re.compile(r'dense(?:_resource<[^>]*>|<(?:\[.*\]|"[^"]*")>)')
"""Elements of a constant that are not all equal; they take the same time whatever they are."""
_NAMES: Final = frozenset({"sym_name", "function_type"})


def kernel_digest(parser: MlirParser, text: str) -> str:
    """A digest of a kernel's final IR, without its name and the offsets of its operands.

    Raises:
        ModelInvalid: the text does not parse.
    """
    root = parser.parse(text, printed=True).operation
    operations = list(walk(root))
    addresses = _addresses(operations)
    names: dict[Value, Hashable] = {}
    content: list[object] = []
    count = 0
    for operation in operations:
        if operation in addresses:
            continue
        if operation.name == _CONSTANT:  # constants are in any order
            names[operation.results[0]] = _DATA.sub("dense<…>", parser.text_of(operation.attributes["value"]))
            continue
        is_binding = operation.name == _BINDING
        operands = [] if is_binding else [names.get(operand, "") for operand in operation.operands]
        attributes = [] if is_binding else sorted(_attributes(parser, operation))
        results = [_LAYOUT.sub("", parser.text_of(result.type)) for result in operation.results]
        content.append((operation.name, operands, attributes, results, _depth(operation)))
        for value in (*operation.results, *_arguments(operation)):
            names[value] = count
            count += 1
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _depth(operation: Operation) -> int:
    depth, around = 0, operation.parent
    while around is not None:
        depth, around = depth + 1, around.operation.parent
    return depth


def _arguments(operation: Operation) -> list[Value]:
    return [value for region in operation.regions for block in region.blocks for value in block.arguments]


def _attributes(parser: MlirParser, operation: Operation) -> list[str]:
    names = [name for name in operation.attributes if name not in _NAMES]
    return [f"{name} = {_LAYOUT.sub('', parser.text_of(operation.attributes[name]))}" for name in names]


def _addresses(operations: list[Operation]) -> set[Operation]:
    """The operations that only compute offsets of operands."""
    found: set[Operation] = set()
    for operation in reversed(operations):
        uses = [use.owner.operation for result in operation.results for use in result.uses]
        if uses and all(user.name == _BINDING or user in found for user in uses) and operation.name != _BINDING:
            found.add(operation)
    return found
