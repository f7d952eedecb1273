"""The phases dispatch-creation and flow as records: dispatch sites, kernels, functions, and assumed sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tracemap.core.locations import Location
from tracemap.core.units import ASSUMED_SIZE, UNKNOWN, Integer
from tracemap.ir.attributes import DYNAMIC, Shape, is_conversion, shape_of
from tracemap.ir.dispatch_bodies import BodyOp, has_unknown_sizes, read_body
from tracemap.ir.host_constants import HostValues
from tracemap.ir.host_program import (
    CALL,
    INITIALIZER,
    called_by_initializers,
    callee_of,
    callees,
    global_of,
    is_public,
    walk_hosts,
)
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    Value,
    entry_arguments,
    nested,
    operand_segments,
    producer_of,
    string_attribute,
    symbol_path,
    walk,
)

# ---- assumed
#
# Sizes of tensors in dispatches if every dynamic size of the program had the same assumed value.
#
# The program computes sizes from those of its arguments, which are assumed, and passes them to the dispatches. So a
# flattened dimension has the product of the assumed sizes.

_MAX_DEPTH: Final = 64
"""Maximum of operations to trace back for the size of a tensor."""

_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_TAKES_A_PART: Final = frozenset({"iree_tensor_ext.dispatch.tensor.load", "tensor.extract_slice"})
_SIZES: Final = -2
"""Index of the operand segment with the sizes; strides come last."""


class AssumedShapes:
    """The assumed shapes of values in the dispatches of a module."""

    def __init__(self, parser: MlirParser, module: Module) -> None:
        self._parser = parser
        self._module = module

    @cached_property
    def _numbers(self) -> HostValues:
        # Lazy, since it traverses the whole host program.
        return HostValues(self._module, lambda *_: ASSUMED_SIZE, unknown=ASSUMED_SIZE, first_values=False)

    def shape(self, value: Value) -> Shape:
        """The shape of a value, without unknown extents."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        static_shape = shape_of(self._parser.text_of(value.type))
        if UNKNOWN not in static_shape.extents:
            return static_shape
        sizes = self._dynamic_sizes(value, depth) if depth < _MAX_DEPTH else iter(())
        return Shape(
            tuple([next(sizes, ASSUMED_SIZE) if extent is UNKNOWN else extent for extent in static_shape.extents]),
            static_shape.element_bits,
        )

    def _dynamic_sizes(self, value: Value, depth: int) -> Iterator[int]:
        """The dynamic sizes of a value's type, in order; empty if they cannot be traced."""
        if hasattr(value, "arg_number"):
            return iter(())
        owner = value.owner.operation
        if owner.name == "tensor.empty":
            return self._numbers_of(owner.operands)
        if owner.name in _TAKES_A_PART:
            return self._numbers_of(operand_segments(owner)[_SIZES])
        if owner.name == "tensor.expand_shape":
            return self._numbers_of(list(owner.operands)[1:])
        if owner.name == "tensor.collapse_shape":
            return self._collapsed(owner, depth)
        return self._sizes_like(_same_shape_operand(value, owner), value, depth)

    def _numbers_of(self, sizes: Iterable[Value]) -> Iterator[int]:
        return (max(1, self._numbers.of(size).value) for size in sizes)

    def _collapsed(self, owner: Operation, depth: int) -> Iterator[int]:
        before = self._shape(owner.operands[0], depth + 1).extents
        for group, size in zip(owner.attributes["reassociation"], owner.results[0].type.shape, strict=True):
            if size == DYNAMIC:
                yield math.prod(_known(before[dimension.value]) for dimension in group)

    def _sizes_like(self, other: Value | None, value: Value, depth: int) -> Iterator[int]:
        extents = shape_of(self._parser.text_of(value.type)).extents
        sizes = () if other is None else self._shape(other, depth + 1).extents
        if len(sizes) != len(extents):
            return iter(())
        return (_known(size) for size, extent in zip(sizes, extents, strict=True) if extent is UNKNOWN)


def _known(size: Integer) -> int:
    """Narrow the type of an extent of an assumed shape, which is never unknown."""
    return ASSUMED_SIZE if size is UNKNOWN else size


def _same_shape_operand(value: Value, owner: Operation) -> Value | None:
    """The operand with the shape of a result; None if there is none."""
    if owner.name.startswith(_STRUCTURED):  # the last operands are the outputs, one per result
        index = len(owner.operands) - len(owner.results) + value.result_number
        return owner.operands[index] if 0 <= index < len(owner.operands) else None
    if owner.name == "tensor.cast":
        return owner.operands[0]
    return owner.operands[1] if owner.name == "tensor.insert_slice" else None


# ---- flow
#
# In dispatch-creation every dispatch site has its own body. In flow, bodies are outlined and equal ones merged, and
# dispatch sites refer to kernels by name.


@dataclass(frozen=True, slots=True)
class DispatchRegion:
    """A dispatch site with its body, in the dispatch-creation phase.

    Attributes:
        function: enclosing function; empty in initializers.
        reads: for bodies that convert numbers, the locations of the producers of each argument of the body.
        assumed: the body with dynamic sizes replaced by `ASSUMED_SIZE`; empty without dynamic sizes.
        added: the compiler added the dispatch in a later phase, for an op that its location names.
        brought: it calls a kernel that the model itself brings, so it has no body.
    """

    function: str
    location: Location
    body: tuple[BodyOp, ...]
    reads: tuple[tuple[Location, ...], ...] = ()
    assumed: tuple[BodyOp, ...] = ()
    added: bool = False
    brought: bool = False


EnclosingOps = tuple[tuple[int, int], ...]
"""Numbers of the enclosing operations, outermost first, paired with the number of the enclosing block in them."""


@dataclass(frozen=True, slots=True)
class FlowDispatch:
    """A dispatch site in the flow phase, with its kernel. `function` is empty in initializers.

    `around`: enclosing operations, including calls that are inlined later; empty if not known.
    """

    function: str
    location: Location
    kernel: str
    around: EnclosingOps = ()


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call between functions of the host program in the flow phase.

    `dispatches_before`: number of preceding dispatches in the text; `around`: enclosing operations.
    """

    function: str
    location: Location
    callee: str
    dispatches_before: int
    around: EnclosingOps = ()


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the host program: its visibility, the functions it calls, and its declared arguments.

    `arguments`: printed types of tensors and scalars; empty if the function declares none.
    """

    name: str
    public: bool
    calls: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostOp:
    """An operation of the host program in the flow phase, except dispatches. `function` is empty in initializers."""

    function: str
    name: str
    location: Location


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """The flow phase: kernels, dispatches, calls and other host operations in order, and functions.

    `called_by_initializers`: functions that run only at load time.
    """

    kernels: tuple[str, ...]
    dispatches: tuple[FlowDispatch, ...]
    calls: tuple[HostCall, ...]
    host_ops: tuple[HostOp, ...]
    functions: tuple[HostFunction, ...]
    called_by_initializers: frozenset[str]


def read_dispatch_creation(parser: MlirParser, module: Module) -> tuple[DispatchRegion, ...]:
    """The dispatch sites of phase 5, in program order."""
    regions = []
    producers = _Producers(parser, module)
    shapes = AssumedShapes(parser, module)
    for function, operation in walk_hosts(module):
        if operation.name in _DISPATCHES:
            body, brought = read_body(parser, operation), operation.name == "flow.dispatch"
            assumed = read_body(parser, operation, shapes.shape) if has_unknown_sizes(body) else ()
            converts = not brought and any(is_conversion(op.name) for op in body)
            reads = tuple(map(producers.locations, _arguments(operation))) if converts else ()
            regions.append(DispatchRegion(function, parser.location(operation), body, reads, assumed, brought=brought))
    return tuple(regions)


RESHAPES = frozenset(
    {"flow.tensor.encode", "flow.tensor.reshape", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape"}
)
"""Operations that return their first operand in another shape or layout."""
_MAX_STEPS = 16
"""Maximum of operations to trace a value back, for example through globals that depend on each other."""


class _Producers:
    """Traces values of the host program to their producers, through changes of shape, and of layout at load time."""

    def __init__(self, parser: MlirParser, module: Module) -> None:
        self._parser = parser
        initializers = (operation for operation in nested(module.operation) if operation.name == INITIALIZER)
        stores = [op for initializer in initializers for op in walk(initializer) if op.name == "util.global.store"]
        self._stored = {global_of(store): store.operands[0] for store in stores}

    def locations(self, value: Value) -> tuple[Location, ...]:
        """The locations of a value's producer and of the operations that forward it.

        If a kernel produces the value, the operations in it that produce stored values of this type are included.
        """
        producers: list[Operation] = []
        loaded = set[str]()
        while (producer := producer_of(value)) is not None and len(producers) < _MAX_STEPS:
            producers.append(producer)
            forwarded = self._forwarded(producer, loaded)
            if forwarded is None:
                producers += _inner_producers(producer, value)
                break
            value = forwarded
        return tuple(map(self._parser.location, producers))

    def _forwarded(self, producer: Operation, loaded: set[str]) -> Value | None:
        """The value that an operation forwards; None if it computes something new.

        `loaded`: the globals that were visited so far, to follow them only once.
        """
        if producer.name in RESHAPES:
            return producer.operands[0]
        if producer.name == "util.global.load" and global_of(producer) not in loaded:
            loaded.add(global_of(producer))
            return self._stored.get(global_of(producer))
        arguments = _arguments(producer) if loaded and producer.name == "flow.dispatch.workgroups" else []
        return arguments[0] if len(arguments) == 1 else None


def _inner_producers(producer: Operation, value: Value) -> list[Operation]:
    """For a kernel, the operations that may produce this result; for an import, the function; otherwise nothing."""
    if producer.name == "hal.tensor.import":
        return [producer.parent.operation]
    if producer.name != "flow.dispatch.workgroups":
        return []
    stored = (op.operands[0] for op in nested(producer) if op.name == "iree_tensor_ext.dispatch.tensor.store")
    producers = (producer_of(result) for result in stored if result.type == value.type)
    return [inner for inner in producers if inner is not None]


def _arguments(dispatch: Operation) -> list[Value]:
    _workload, arguments, *_dimensions = operand_segments(dispatch)
    return arguments


_DISPATCHES = ("flow.dispatch", "flow.dispatch.workgroups")
"""In dispatch-creation, a `flow.dispatch` comes from the model itself."""

_MAX_USERS = 64
"""Maximum of operations to collect as users of a dispatch."""


def read_result_users(parser: MlirParser, module: Module, ordinals: Iterable[int]) -> dict[int, tuple[Location, ...]]:
    """For dispatch sites of phase 5, by ordinal, the locations of all users of their results, nearest first."""
    dispatches = [operation for _, operation in walk_hosts(module) if operation.name in _DISPATCHES]
    return {ordinal: _users(parser, dispatches[ordinal]) for ordinal in ordinals}


def _users(parser: MlirParser, dispatch: Operation) -> tuple[Location, ...]:
    worklist = [dispatch]
    for operation in worklist:  # grows during the loop
        users = (use.owner.operation for result in operation.results for use in result.uses)
        worklist += [user for user in dict.fromkeys(users) if user not in worklist][: _MAX_USERS - len(worklist)]
    return tuple(parser.location(operation) for operation in worklist[1:])


_EXECUTABLES = ("flow.executable", "stream.executable")
"""In this phase, `stream.executable` comes from the model itself. A `hal.executable` is for a single device, and nests
its kernels one level deeper."""


def read_flow(parser: MlirParser, module: Module) -> FlowProgram:
    """Kernels, dispatch sites and functions of phase 6, in program order."""
    kernels: list[str] = []
    for executable in nested(module.operation):
        if executable.name in _EXECUTABLES:
            exports = (op for op in nested(executable) if op.name == f"{executable.name}.export")
            kernels += [string_attribute(export, "sym_name") for export in exports]
    # In program order, since the i-th dispatch here is the i-th region of the previous phase (`sites.pair_bodies`).
    dispatches: list[FlowDispatch] = []
    calls: list[HostCall] = []
    host_ops: list[HostOp] = []
    numbers: dict[Operation, int] = {}
    for function, operation in walk_hosts(module):
        location = parser.location(operation)
        if operation.name == "flow.dispatch":
            # There is a reference per variant, all with the same export name.
            kernel = symbol_path(operation.attributes["entry_points"])[-1]
            dispatches.append(FlowDispatch(function, location, kernel, _around(operation, numbers)))
            continue
        host_ops.append(HostOp(function, operation.name, location))
        if operation.name == CALL:
            around = _around(operation, numbers)
            calls.append(HostCall(function, location, callee_of(operation), len(dispatches), around))
    functions = [_host_function(op) for op in nested(module.operation) if op.name == "util.func"]
    return FlowProgram(
        kernels=tuple(kernels),
        dispatches=tuple(dispatches),
        calls=tuple(calls),
        host_ops=tuple(host_ops),
        functions=tuple(functions),
        called_by_initializers=called_by_initializers(module),
    )


def _around(operation: Operation, numbers: dict[Operation, int]) -> EnclosingOps:
    enclosing: list[tuple[int, int]] = []
    while operation.name not in ("util.func", INITIALIZER):
        block, operation = operation.block, operation.parent.operation
        enclosing.append((numbers.setdefault(operation, len(numbers)), numbers.setdefault(block, len(numbers))))
    return tuple(reversed(enclosing))


_DECLARED_ARGUMENT = re.compile(r"%\w+: ")


def _host_function(function: Operation) -> HostFunction:
    reflection = function.attributes.get("iree.reflection", {})
    declaration = reflection["iree.abi.declaration"].value if "iree.abi.declaration" in reflection else ""
    arguments = _declared_arguments(declaration) if declaration else _imported_arguments(function)
    return HostFunction(
        name=string_attribute(function, "sym_name"),
        public=is_public(function),
        calls=callees(function),
        arguments=arguments,
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
    """Argument types from the imports of buffer views, without the `!hal.fence` arguments of asynchronous functions."""
    types: list[str] = []
    for value in entry_arguments(function):
        if "hal.fence" in str(value.type):
            continue
        imports = [use.owner.operation for use in value.uses if use.owner.operation.name == "hal.tensor.import"]
        types.append(str(imports[0].results[0].type) if imports else str(value.type))
    return tuple(types)
