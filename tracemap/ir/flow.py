"""The phases dispatch-creation and flow as records: call sites, dispatches, and assumed sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tracemap.ir.attributes import DYNAMIC, Shape, is_conversion, shape_of
from tracemap.ir.bodies import BodyOp, has_open_sizes, read_body
from tracemap.ir.host import (
    CALL,
    INITIALIZER,
    called_by_initializers,
    callee_of,
    callees,
    global_of,
    is_public,
    walk_hosts,
)
from tracemap.ir.numbers import HostValues
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    Value,
    maker_of,
    nested,
    operand_parts,
    string_attribute,
    symbol_path,
    walk,
)
from tracemap.locations import Location
from tracemap.units import ASSUMED_SIZE, UNKNOWN, Integer

# ---- assumed
#
# How large the tensors of dispatches would be if every size that the program does not know before were the same.
#
# Sizes are numbers of the program: computed of those of its arguments, which are assumed, and handed to the
# dispatches. So what several dimensions are flattened to is as large as these together.


_DEEPEST: Final = 64
"""How many operations behind a tensor are looked at for its size."""

_STRUCTURED: Final = ("linalg.", "iree_linalg_ext.")
_TAKES_A_PART: Final = frozenset({"iree_tensor_ext.dispatch.tensor.load", "tensor.extract_slice"})
_SIZES: Final = -2
"""Of the parts of their operands that with the sizes; strides come last."""


class AssumedShapes:
    """The shapes of values in the dispatches of a module."""

    def __init__(self, parser: MlirParser, module: Module) -> None:
        self._parser = parser
        self._module = module

    @cached_property
    def _numbers(self) -> HostValues:
        # Only where a shape asks: the whole host program is gone through for it.
        return HostValues(self._module, lambda *_: ASSUMED_SIZE, unknown=ASSUMED_SIZE, first_values=False)

    def shape(self, value: Value) -> Shape:
        """The shape of a value, of which no extent is unknown."""
        return self._shape(value, 0)

    def _shape(self, value: Value, depth: int) -> Shape:
        typed = shape_of(self._parser.text_of(value.type))
        if UNKNOWN not in typed.extents:
            return typed
        found = self._open_sizes(value, depth) if depth < _DEEPEST else iter(())
        return Shape(
            tuple([next(found, ASSUMED_SIZE) if extent is UNKNOWN else extent for extent in typed.extents]),
            typed.element_bits,
        )

    def _open_sizes(self, value: Value, depth: int) -> Iterator[int]:
        """Of a value the sizes that its type leaves open, in order; none where nothing tells them."""
        if hasattr(value, "arg_number"):
            return iter(())
        owner = value.owner.operation
        if owner.name == "tensor.empty":
            return self._numbers_of(owner.operands)
        if owner.name in _TAKES_A_PART:
            return self._numbers_of(operand_parts(owner)[_SIZES])
        if owner.name == "tensor.expand_shape":
            return self._numbers_of(list(owner.operands)[1:])
        if owner.name == "tensor.collapse_shape":
            return self._collapsed(owner, depth)
        return self._as_large_as(_alike(value, owner), value, depth)

    def _numbers_of(self, sizes: Iterable[Value]) -> Iterator[int]:
        return (max(1, self._numbers.of(size).value) for size in sizes)

    def _collapsed(self, owner: Operation, depth: int) -> Iterator[int]:
        before = self._shape(owner.operands[0], depth + 1).extents
        for group, size in zip(owner.attributes["reassociation"], owner.results[0].type.shape, strict=True):
            if size == DYNAMIC:
                yield math.prod(_known(before[dimension.value]) for dimension in group)

    def _as_large_as(self, other: Value | None, value: Value, depth: int) -> Iterator[int]:
        extents = shape_of(self._parser.text_of(value.type)).extents
        sizes = () if other is None else self._shape(other, depth + 1).extents
        if len(sizes) != len(extents):
            return iter(())
        return (_known(size) for size, extent in zip(sizes, extents, strict=True) if extent is UNKNOWN)


def _known(size: Integer) -> int:
    """An extent of a shape that was assumed; the type says that it may be unknown."""
    return ASSUMED_SIZE if size is UNKNOWN else size


def _alike(value: Value, owner: Operation) -> Value | None:
    """The operand that is as large as a result; None where none is known to be."""
    if owner.name.startswith(_STRUCTURED):  # the last operands are what the results are made in
        place = len(owner.operands) - len(owner.results) + value.result_number
        return owner.operands[place] if 0 <= place < len(owner.operands) else None
    if owner.name == "tensor.cast":
        return owner.operands[0]
    return owner.operands[1] if owner.name == "tensor.insert_slice" else None


# ---- flow
#
# The phases dispatch-creation and flow of iree-compile as typed records: call sites, their bodies, their kernels.
#
# In dispatch-creation each call site still has a body of its own; in flow bodies are outlined and equal ones merged,
# so that sites name kernels.


@dataclass(frozen=True, slots=True)
class DispatchRegion:
    """A call site with its body, in the dispatch-creation phase. `function` is empty in initializers.

    `reads`: where something converts numbers, the locations of what makes each argument of the body;
    `assumed`: the body again with sizes that are not known before taken as `ASSUMED_SIZE`, where there are any;
    `added`: the compiler made it in a later phase, for one of the ops that its location names; `brought`: it calls a
    kernel that the model itself brings, and has no body of its own.
    """

    function: str
    location: Location
    body: tuple[BodyOp, ...]
    reads: tuple[tuple[Location, ...], ...] = ()
    assumed: tuple[BodyOp, ...] = ()
    added: bool = False
    brought: bool = False


Around = tuple[tuple[int, int], ...]
"""Numbers of the operations around one, from its function on, each with that of its block that leads to the one."""


@dataclass(frozen=True, slots=True)
class FlowDispatch:
    """A call site in the flow phase: the kernel that it calls. `function` is empty in initializers.

    `around`: what it stands in, calls that are inlined later included; empty where that is not known.
    """

    function: str
    location: Location
    kernel: str
    around: Around = ()


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call between functions of the host program in the flow phase; `behind`: how many dispatches stand before it.

    `around`: as of dispatches.
    """

    function: str
    location: Location
    callee: str
    behind: int
    around: Around = ()


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
    calls: tuple[HostCall, ...]
    host_ops: tuple[HostOp, ...]
    functions: tuple[HostFunction, ...]
    called_by_initializers: frozenset[str]


def read_dispatch_creation(parser: MlirParser, module: Module) -> tuple[DispatchRegion, ...]:
    """Call sites of phase 5, in order."""
    found = []
    makers = _Makers(parser, module)
    shapes = AssumedShapes(parser, module)
    for function, operation in walk_hosts(module):
        if operation.name in _DISPATCHES:
            body, brought = read_body(parser, operation), operation.name == "flow.dispatch"
            assumed = read_body(parser, operation, shapes.shape) if has_open_sizes(body) else ()
            converts = not brought and any(is_conversion(op.name) for op in body)
            reads = tuple(map(makers.places, _arguments(operation))) if converts else ()
            found.append(DispatchRegion(function, parser.location(operation), body, reads, assumed, brought=brought))
    return tuple(found)


RESHAPES = frozenset(
    {"flow.tensor.encode", "flow.tensor.reshape", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape"}
)
"""Operations that hand their first operand on in another shape or layout."""
_MOST_STEPS = 16
"""How far back a value is followed: through a global that is made of another, say."""


class _Makers:
    """Where values of the host program are made, behind changes of shape, and of layout at load time."""

    def __init__(self, parser: MlirParser, module: Module) -> None:
        self._parser = parser
        initializers = (operation for operation in nested(module.operation) if operation.name == INITIALIZER)
        stores = [op for initializer in initializers for op in walk(initializer) if op.name == "util.global.store"]
        self._stored = {global_of(store): store.operands[0] for store in stores}

    def places(self, value: Value) -> tuple[Location, ...]:
        """The locations of what makes a value and hands it on; of a kernel's also of what it stores of this type."""
        found: list[Operation] = []
        loaded = set[str]()
        while (maker := maker_of(value)) is not None and len(found) < _MOST_STEPS:
            found.append(maker)
            behind = self._behind(maker, loaded)
            if behind is None:
                found += _makers_of_result(maker, value)
                break
            value = behind
        return tuple(map(self._parser.location, found))

    def _behind(self, maker: Operation, loaded: set[str]) -> Value | None:
        """What an operation hands on; None where it makes something else of it, or of several.

        `loaded`: the globals that were come to so far, each of which is followed once.
        """
        if maker.name in RESHAPES:
            return maker.operands[0]
        if maker.name == "util.global.load" and global_of(maker) not in loaded:
            loaded.add(global_of(maker))
            return self._stored.get(global_of(maker))
        arguments = _arguments(maker) if loaded and maker.name == "flow.dispatch.workgroups" else []
        return arguments[0] if len(arguments) == 1 else None


def _makers_of_result(maker: Operation, value: Value) -> list[Operation]:
    """Of a kernel what may make this result, of an import the function whose argument it is; nothing of others."""
    if maker.name == "hal.tensor.import":
        return [maker.parent.operation]
    if maker.name != "flow.dispatch.workgroups":
        return []
    stored = (op.operands[0] for op in nested(maker) if op.name == "iree_tensor_ext.dispatch.tensor.store")
    makers = (maker_of(each) for each in stored if each.type == value.type)
    return [each for each in makers if each is not None]


def _arguments(dispatch: Operation) -> list[Value]:
    _workload, arguments, *_dimensions = operand_parts(dispatch)
    return arguments


_DISPATCHES = ("flow.dispatch", "flow.dispatch.workgroups")
"""In dispatch-creation the first are of the model itself."""


_MOST_USES = 64
"""How many operations behind a dispatch are looked at for what it serves."""


def read_served(parser: MlirParser, module: Module, ordinals: Iterable[int]) -> dict[int, tuple[Location, ...]]:
    """For call sites of phase 5, by their ordinals, the locations of what uses their results, nearest first."""
    dispatches = [operation for _, operation in walk_hosts(module) if operation.name in _DISPATCHES]
    return {ordinal: _users(parser, dispatches[ordinal]) for ordinal in ordinals}


def _users(parser: MlirParser, dispatch: Operation) -> tuple[Location, ...]:
    found = [dispatch]
    for operation in found:  # which grows meanwhile
        users = (use.owner.operation for result in operation.results for use in result.uses)
        found += [user for user in dict.fromkeys(users) if user not in found][: _MOST_USES - len(found)]
    return tuple(parser.location(operation) for operation in found[1:])


_EXECUTABLES = ("flow.executable", "stream.executable")
"""Those of later phases are the model's own; `hal.executable` is for single devices, and has its kernels one deeper."""


def read_flow(parser: MlirParser, module: Module) -> FlowProgram:
    """Kernels, call sites and functions of phase 6, in order."""
    kernels: list[str] = []
    for executable in nested(module.operation):
        if executable.name in _EXECUTABLES:
            exports = (op for op in nested(executable) if op.name == f"{executable.name}.export")
            kernels += [string_attribute(export, "sym_name") for export in exports]
    # In the order of the text: the i-th dispatch here is the i-th region of the phase before (`sites.pair_bodies`).
    dispatches: list[FlowDispatch] = []
    calls: list[HostCall] = []
    host_ops: list[HostOp] = []
    numbers: dict[Operation, int] = {}
    for function, operation in walk_hosts(module):
        location = parser.location(operation)
        if operation.name == "flow.dispatch":
            # One reference per variant, all of the same export name.
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


def _around(operation: Operation, numbers: dict[Operation, int]) -> Around:
    found: list[tuple[int, int]] = []
    while operation.name not in ("util.func", INITIALIZER):
        block, operation = operation.block, operation.parent.operation
        found.append((numbers.setdefault(operation, len(numbers)), numbers.setdefault(block, len(numbers))))
    return tuple(reversed(found))


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
