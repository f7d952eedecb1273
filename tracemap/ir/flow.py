"""The phases dispatch-creation and flow of iree-compile as typed records: call sites, their bodies, their kernels.

In dispatch-creation each call site still has a body of its own: its operations, what feeds them, and how often each
runs. In flow bodies are outlined and equal ones merged, so that sites name kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree.compiler import ir

from tracemap.ir.host import called_by_initializers, callees, is_public, walk_hosts
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    Region,
    Value,
    nested,
    string_attribute,
    symbol_path,
)
from tracemap.ir.types import Shape, product, shape_of
from tracemap.locations import Location
from tracemap.units import UNKNOWN, Integer


@dataclass(frozen=True, slots=True)
class DispatchRegion:
    """A call site with its body, in the dispatch-creation phase. `function` is empty in initializers."""

    function: str
    location: Location
    body: tuple[BodyOp, ...]


@dataclass(frozen=True, slots=True)
class FlowDispatch:
    """A call site in the flow phase: the kernel that it calls. `function` is empty in initializers."""

    function: str
    location: Location
    kernel: str


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the host program: whether it is public, whom it calls, and its declared arguments.

    `arguments` are printed types of tensors and scalars; empty where the function does not say.
    """

    name: str
    public: bool
    calls: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostOp:
    """An operation of the host program in the flow phase that is no dispatch. `function` is empty in initializers."""

    function: str
    name: str
    location: Location


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """The flow phase: kernels, call sites and other host operations in order, functions, and what initializers call."""

    kernels: tuple[str, ...]
    dispatches: tuple[FlowDispatch, ...]
    host_ops: tuple[HostOp, ...]
    functions: tuple[HostFunction, ...]
    called_by_initializers: frozenset[str]


def read_dispatch_creation(parser: MlirParser, module: Module) -> tuple[DispatchRegion, ...]:
    """Call sites of phase 5, in order."""
    return tuple(
        DispatchRegion(function, parser.location(operation), read_body(parser, operation))
        for function, operation in walk_hosts(module)
        if operation.name == "flow.dispatch.workgroups"
    )


def read_flow(parser: MlirParser, module: Module) -> FlowProgram:
    """Kernels, call sites and functions of phase 6, in order."""
    kernels: list[str] = []
    for executable in nested(module.operation):
        if executable.name == "flow.executable":
            exports = (op for op in nested(executable) if op.name == "flow.executable.export")
            kernels += [string_attribute(export, "sym_name") for export in exports]
    # In the order of the text: the i-th dispatch here is the i-th region of the phase before (`sites.pair_bodies`).
    dispatches: list[FlowDispatch] = []
    host_ops: list[HostOp] = []
    for function, operation in walk_hosts(module):
        location = parser.location(operation)
        if operation.name == "flow.dispatch":
            # One reference per variant, all of the same export name.
            kernel = symbol_path(operation.attributes["entry_points"])[-1]
            dispatches.append(FlowDispatch(function, location, kernel))
        else:
            host_ops.append(HostOp(function, operation.name, location))
    functions = [_host_function(op) for op in nested(module.operation) if op.name == "util.func"]
    return FlowProgram(
        tuple(kernels), tuple(dispatches), tuple(host_ops), tuple(functions), called_by_initializers(module)
    )


_DECLARED_ARGUMENT = re.compile(r"%\w+: ")


def _host_function(function: Operation) -> HostFunction:
    declaration = ""
    if "iree.reflection" in function.attributes:
        reflection = function.attributes["iree.reflection"]
        if "iree.abi.declaration" in reflection:
            declaration = reflection["iree.abi.declaration"].value
    return HostFunction(
        name=string_attribute(function, "sym_name"),
        public=is_public(function),
        calls=callees(function),
        arguments=_declared_arguments(declaration) if declaration else _imported_arguments(function),
    )


def _declared_arguments(declaration: str) -> tuple[str, ...]:
    """Argument types of `sync func @f(%input0: tensor<2xf32>, %input1: i32) -> (…)`."""
    begin = declaration.find("(")
    end = declaration.rfind(") -> ")
    inside = declaration[begin + 1 : end if end > 0 else declaration.rfind(")")]
    starts = list(_DECLARED_ARGUMENT.finditer(inside))
    ends = [*(match.start() for match in starts[1:]), len(inside)][: len(starts)]
    return tuple(
        inside[match.end() : stop].split(" {", 1)[0].rstrip(" ,") for match, stop in zip(starts, ends, strict=True)
    )


def _imported_arguments(function: Operation) -> tuple[str, ...]:
    """Argument types as the function imports its buffer views; fences (of asynchronous functions) are left out."""
    types: list[str] = []
    if not len(function.regions) or not len(function.regions[0].blocks):
        return ()
    for value in function.regions[0].blocks[0].arguments:
        if "hal.fence" in str(value.type):
            continue
        imports = [use.owner.operation for use in value.uses if use.owner.operation.name == "hal.tensor.import"]
        types.append(str(imports[0].results[0].type) if imports else str(value.type))
    return tuple(types)


@dataclass(frozen=True, slots=True)
class BodyOperand:
    """An operand: the body operation that made it and as which result, or the number of the block argument it is.

    What does not apply is -1.
    """

    producer: int
    result: int
    argument: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class BodyOp:
    """An operation in a dispatch body, ops nested in regions included, in pre-order.

    `index`: its own, in pre-order; `parent`: the index of the operation whose region it is in (-1: the body itself);
    `iterations`: of a structured (linalg) op, how often its region runs; of others the elements of its results.
    """

    index: int
    parent: int
    name: str
    location: Location
    operands: tuple[BodyOperand, ...]
    results: tuple[Shape, ...]
    iterations: Integer


def read_body(parser: MlirParser, dispatch: Operation) -> tuple[BodyOp, ...]:
    """The operations in the first region of a `flow.dispatch.workgroups`, in pre-order.

    The second region computes the workgroup count on the host and is no work of the dispatch.
    """
    reader = _BodyReader(parser)
    if len(dispatch.regions):
        reader.read_region(dispatch.regions[0], -1)
    return tuple(reader.found)


class _BodyReader:
    def __init__(self, parser: MlirParser) -> None:
        self._parser = parser
        self._index_of: dict[Operation, int] = {}
        self.found: list[BodyOp] = []

    def read_region(self, region: Region, parent: int) -> None:
        for block in region.blocks:
            for child in block.operations:
                self._read(child.operation, parent)

    def _read(self, operation: Operation, parent: int) -> None:
        index = len(self.found)
        self._index_of[operation] = index
        operands = tuple(self._operand(operand) for operand in operation.operands)
        results = tuple(shape_of(str(result.type)) for result in operation.results)
        name = operation.name
        self.found.append(
            BodyOp(
                index=index,
                parent=parent,
                name=name,
                location=self._parser.location(operation),
                operands=operands,
                results=results,
                iterations=_iterations(operation, name, operands, results),
            )
        )
        for region in operation.regions:
            self.read_region(region, index)

    def _operand(self, operand: Value) -> BodyOperand:
        shape = shape_of(str(operand.type))
        owner = operand.owner
        producer = self._index_of.get(getattr(owner, "operation", owner), -1)
        result = getattr(operand, "result_number", -1)
        argument = getattr(operand, "arg_number", -1)
        return BodyOperand(producer, result, argument, shape)


def _iterations(
    operation: Operation, name: str, operands: tuple[BodyOperand, ...], results: tuple[Shape, ...]
) -> Integer:
    if name.startswith("linalg."):
        volume = _loop_volume(operation, [operand.shape for operand in operands])
        if volume is not None:
            return volume
    shapes = [*results, *(operand.shape for operand in operands)] if name.startswith("iree_linalg_ext.") else results
    sizes = [shape.elements for shape in shapes]
    known = [size for size in sizes if size is not UNKNOWN]
    if len(known) < len(sizes):
        return UNKNOWN
    return max(known, default=1)


# Affine maps of the compiler are shared between operations; the positions of each are worked out once per context.
_NO_DIMENSION = -1


def _loop_volume(operation: Operation, shapes: list[Shape]) -> Integer | None:
    """The product of a linalg op's loop ranges, from its indexing maps and operand shapes; None without maps."""
    maps = _indexing_maps(operation)
    if maps is None:
        return None
    extents: dict[int, Integer] = {}
    for dimensions, shape in zip(maps[1], shapes, strict=False):
        for dimension, extent in zip(dimensions, shape.extents, strict=False):
            # A loop that one operand leaves open may be given by another's static shape.
            if dimension != _NO_DIMENSION and extents.get(dimension, UNKNOWN) is UNKNOWN:
                extents[dimension] = extent
    return product(tuple(extents.get(dimension, UNKNOWN) for dimension in range(maps[0])))


_MAPS: dict[str, tuple[int, tuple[tuple[int, ...], ...]]] = {}


def _indexing_maps(operation: Operation) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """The number of loops, and for each operand the loop that each of its dimensions runs over (-1: a computed one)."""
    # Imported late: the module takes a tenth of a second, which is better spent while the compiler runs.
    from iree.compiler.dialects import linalg

    attribute = linalg.get_indexing_maps(operation)
    if attribute is None:
        return None
    text = str(attribute)
    if text not in _MAPS:
        maps = [element.value for element in attribute]
        positions = tuple(
            tuple(int(e.position) if isinstance(e, ir.AffineDimExpr) else _NO_DIMENSION for e in each.results)
            for each in maps
        )
        _MAPS[text] = (maps[0].n_dims if maps else 0, positions)
    return _MAPS[text]
