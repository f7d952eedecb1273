"""The phase stream of iree-compile as typed records: the kernels that it adds to those of the flow phase, and who calls
them.

Operands are brought into the layout of a tiled product (`_encoding_0_encode_…`), and what the device cannot fill by
itself is filled by a kernel (`__builtin_splat_i64`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from tracemap.ir.bodies import BodyOp, read_body
from tracemap.ir.flow import DispatchRegion, FlowDispatch
from tracemap.ir.host import walk_hosts
from tracemap.ir.parsing import SYMBOL, MlirParser, Module, nested, string_attribute, symbol_path, symbols_in, walk

_EXPORT = re.compile(rf"\bstream\.executable\.export (?:public |private )?{SYMBOL}")


def added_kernels(text: str, known: Collection[str]) -> tuple[str, ...]:
    """The kernels of a stream phase's text that are not among those known, in order."""
    return tuple(dict.fromkeys(name for name in symbols_in(text, _EXPORT) if name not in known))


_FUNCTION = re.compile(rf"^ *util\.func (?:public |private )?{SYMBOL}", re.MULTILINE)


def functions_of(text: str) -> frozenset[str]:
    """The functions of the host program that a phase's text has; none where it is printed in the generic form."""
    return frozenset(symbols_in(text, _FUNCTION))


def read_added(
    parser: MlirParser, module: Module, kernels: Collection[str]
) -> tuple[tuple[FlowDispatch, DispatchRegion], ...]:
    """Each dispatch of these kernels in phase 7, in order, with the kernel's body.

    All that stands in a body has the place of the dispatch: the compiler made it of a text of its own, or for the first
    of the dispatches that share it.
    """
    bodies = _bodies(parser, module, kernels)
    found = []
    for function, operation in walk_hosts(module):
        if operation.name == "stream.cmd.dispatch":
            kernel = symbol_path(operation.attributes["entry_points"])[-1]
            if kernel in kernels:
                location = parser.location(operation)
                body = tuple(replace(op, location=location) for op in bodies.get(kernel, ()))
                dispatch = FlowDispatch(function, location, kernel)
                found.append((dispatch, DispatchRegion(function, location, body, added=True)))
    return tuple(found)


def _bodies(parser: MlirParser, module: Module, kernels: Collection[str]) -> dict[str, tuple[BodyOp, ...]]:
    executables = [op for op in nested(module.operation) if op.name == "stream.executable"]
    functions = (op for executable in executables for op in walk(executable) if op.name == "func.func")
    named = ((string_attribute(function, "sym_name"), function) for function in functions)
    return {name: read_body(parser, function) for name, function in named if name in kernels}
