"""Scopes, calls and origins of ops: name paths, call sites, frames and shared helpers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from tracemap.core.locations import Location, name_path, scope, split_path
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.attributes import is_conversion, shape_of
from tracemap.ir.source_model import FUNCTIONS, Definition, SourceModel, SourceOperation
from tracemap.map.build.model.kinds import REGION_TERMINATORS, chooses, is_call, is_return, loads_global, only_renames
from tracemap.map.model import OpId

# ---- calls


class Calls:
    """The call graph of the model, by symbol."""

    def __init__(self, model: SourceModel) -> None:
        self._functions = {op.symbol: op for op in model.operations if op.name in FUNCTIONS}
        self._calls_of: dict[str, list[SourceOperation]] = {}
        for operation in model.operations:
            if is_call(operation):
                self._calls_of.setdefault(operation.symbol, []).append(operation)

    def function(self, symbol: str) -> SourceOperation:
        """The function with a symbol.

        Raises:
            KeyError: there is none.
        """
        return self._functions[symbol]

    def callee(self, operation: SourceOperation) -> SourceOperation | None:
        """The function that an op calls; None for other ops and for functions outside of the model."""
        return self._functions.get(operation.symbol) if is_call(operation) else None

    def of(self, symbol: str) -> Sequence[SourceOperation]:
        """The calls of a function, in order."""
        return self._calls_of.get(symbol, ())


# ---- unused
#
# Results of branches and functions that nobody uses.
#
# Branches and functions may have several results. The compiler removes the ops for unused ones, even if the branch or
# the call is needed for others.

Operand = tuple[int, int]
"""An operation's index, and the index of one of its operands."""


def unused_outside(model: SourceModel, calls: Calls) -> frozenset[Operand]:
    """The operands of terminators whose results are unused, or used only by other such operands."""
    users = _users_of_results(model)
    passed_values = list(_terminator_operands(model, calls))
    unused: set[Operand] = set()
    previous_count = -1
    while previous_count < len(unused):  # repeat, since another terminator may pass a result on
        previous_count = len(unused)
        unused |= {
            operand
            for operand, results in passed_values
            if all(users.get(result, set()) <= unused for result in results)
        }
    return frozenset(unused)


def _users_of_results(model: SourceModel) -> Mapping[Operand, set[Operand]]:
    """For each result of a call or a branch, the operands that use it."""
    users: dict[Operand, set[Operand]] = {}
    for operation in model.operations:
        for number, value in enumerate(operation.operands):
            maker = model.operations[value.maker]
            if not value.argument and (is_call(maker) or chooses(maker)):
                users.setdefault((maker.index, value.number), set()).add((operation.index, number))
    return users


def _terminator_operands(model: SourceModel, calls: Calls) -> Iterator[tuple[Operand, Sequence[Operand]]]:
    """The operands of terminators, each with its results: one for each call of the function."""
    for operation in model.operations:
        if not operation.is_op or not operation.name.endswith(REGION_TERMINATORS) or operation.parent < 0:
            continue
        parent = model.operations[operation.parent]
        for number in range(len(operation.operands)):
            results = [(holder.index, number) for holder in _holders(parent, model, calls)]
            if results:
                yield (operation.index, number), results


def _holders(parent: SourceOperation, model: SourceModel, calls: Calls) -> Sequence[SourceOperation]:
    """The operations whose results a region's terminator defines; none if there may be unknown callers."""
    if chooses(parent):
        return (parent,)
    is_known = parent.name in FUNCTIONS and parent.symbol in model.private
    return calls.of(parent.symbol) if is_known and calls.function(parent.symbol) is parent else ()


# ---- jax names
#
# JAX's transformations in scopes, named as the user writes them: `scan`, `remat`, `vmap`.
#
# JAX uses names of its implementation: the loop of a `scan` is `while/body/closed_call`. Names of derivatives stay:
# `jvp(loss)` is the forward pass, `transpose(jvp(loss))` the backward one, and reports add both to `loss`.

_BACKWARD = re.compile(r"transpose\((jvp\(.*\))\)", re.DOTALL)


class JaxNames:
    """The transformations in a model, and scopes with their user-facing names."""

    def __init__(self, operations: Iterable[SourceOperation]) -> None:
        # A scan has an op of its own name next to its loop.
        self._scans = {
            (operation.function, scope(operation.location))
            for operation in operations
            if split_path(name_path(operation.location))[-1:] == ("scan",)
        }
        self._cache: dict[tuple[tuple[str, ...], Text], tuple[str, ...]] = {}

    def scope(self, location: Location, function: Text) -> tuple[str, ...]:
        """The scope of an op of a function, in names that the user knows."""
        jax_scope = scope(location)
        cached = self._cache.get((jax_scope, function))
        if cached is None:
            cached = self._cache[jax_scope, function] = self._user_names(jax_scope, function)
        return cached

    def _user_names(self, jax_scope: tuple[str, ...], function: Text) -> tuple[str, ...]:
        scope_names: list[str] = []
        position = 0
        while position < len(jax_scope):
            names, steps = self._next(jax_scope, position, function)
            scope_names += names
            position += steps
        return tuple(scope_names)

    def _next(self, jax_scope: tuple[str, ...], position: int, function: Text) -> tuple[list[str], int]:
        """The user's name for the next components, and how many components it covers."""
        before, name, following = jax_scope[:position], jax_scope[position], jax_scope[position + 1 : position + 2]
        if backward := _BACKWARD.fullmatch(name):
            # The path of the forward pass may be repeated after it.
            forward = (*before, backward[1])
            repeated = jax_scope[position + 1 : position + 1 + len(forward)] == forward
            return [name], 1 + (len(forward) if repeated else 0)
        if name == "while" and following in {("body",), ("cond",)} and (function, before) in self._scans:
            called = jax_scope[position + 2 : position + 3] == ("closed_call",)
            return ["scan", *(following if following == ("cond",) else ())], 3 if called else 2
        if (name, following) == ("checkpoint", ("rematted_computation",)):
            return ["remat"], 2
        return ["vmap" if name == "vmap()" else name], 1


# ---- scopes
#
# The scope of each op: from its name path, in the user's names, else from the names of its parameters.
#
# Importers of torch and ONNX programs drop the module path, but name the parameters after it: an op that multiplies by
# `encoder.layer.0.attention.query.weight` gets the scope `encoder/layer/0/attention/query`.

_PREFIXES = ("__auto.", "_params.")
_PASS_THROUGH = frozenset(
    """
    torch.aten.permute torch.aten.t torch.aten.transpose.int torch.prims.convert_element_type
    torch_c.from_builtin_tensor util.global.load
    """.split()
)
"""Ops that may come between a parameter and its user."""

_MAX_STEPS = 6


def scopes_of(model: SourceModel) -> Mapping[int, tuple[str, ...]]:
    """The scope of every op, by index; empty if unknown."""
    names = JaxNames(model.operations)
    return {
        operation.index: names.scope(operation.location, operation.function)
        or _parameter_scope(model.operations, operation)
        for operation in model.operations
        if operation.is_op
    }


def _parameter_scope(operations: Sequence[SourceOperation], operation: SourceOperation) -> tuple[str, ...]:
    """The common prefix of the module paths of an op's parameters."""
    if operation.name in _PASS_THROUGH:
        return ()
    paths = [
        path
        for operand in operation.operands
        if not operand.argument and (path := _module_path(operations, operations[operand.maker]))
    ]
    common = takewhile(lambda components: len({*components}) == 1, zip(*paths, strict=False))
    return tuple(components[0] for components in common)


def _module_path(operations: Sequence[SourceOperation], maker: SourceOperation) -> tuple[str, ...]:
    """The module path in the name of the parameter that an op passes on; empty if it passes on none.

    `__auto.m.layer.0.weight` gives `("m", "layer", "0")`: without prefix and the parameter's own name.
    """
    for _ in range(_MAX_STEPS):
        if loads_global(maker):
            name = maker.symbol
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            return tuple(component for component in name.split(".")[:-1] if component)
        if maker.name not in _PASS_THROUGH or not maker.operands or maker.operands[0].argument:
            return ()
        maker = operations[maker.operands[0].maker]
    return ()


# ---- origins
#
# The origin of a value, through moves of elements and along the calls that led to its use.


@dataclass(frozen=True, slots=True)
class Origin:
    """The definition of a value (or an argument that cannot be followed), with the calls that lead to it.

    `path`: the ids of the calls, outermost first, as in `Membership.path`.
    """

    definition: Definition
    path: tuple[OpId, ...]


class Origins:
    """Follows values back to their origins. `moves`: indices of the ops that only move or rename elements."""

    def __init__(self, model: SourceModel, calls: Calls, moves: Set[int]) -> None:
        self._operations = model.operations
        self._private = model.private
        self._calls = calls
        self._moves = moves
        self._returns = {op.parent: op for op in model.operations if op.is_op and is_return(op)}

    def maker(self, origin: Origin) -> SourceOperation | None:
        """The op that makes a value; None for arguments."""
        definition = origin.definition
        return None if definition.argument else self._operations[self._operations[definition.maker].owner]

    def operands(self, operation: SourceOperation, path: tuple[OpId, ...]) -> list[Origin]:
        """The origin of each operand of an op that these calls led to."""
        return [self.trace(Origin(definition, path))[-1] for definition in operation.operands]

    def trace(self, origin: Origin) -> list[Origin]:
        """The value, then each value that it is a move or an argument of, up to its origin."""
        visited: dict[Origin, None] = {}
        while origin not in visited:  # a step without a source returns the same origin
            visited[origin] = None
            origin = self._operand_of_call(origin) if origin.definition.argument else self._operand_of_op(origin)
        return list(visited)

    def _operand_of_op(self, origin: Origin) -> Origin:
        """The operand that an op moves, or the value that its callee returns."""
        maker, number = self._operations[origin.definition.maker], origin.definition.number
        if maker.index in self._moves and maker.operands:
            # A renaming op has a result for each operand, for example a barrier of several.
            return Origin(maker.operands[number if only_renames(maker) else 0], origin.path)
        callee = self._calls.callee(maker)
        terminator = None if callee is None else self._returns.get(callee.index)
        if terminator is None or number >= len(terminator.operands):
            return origin
        return Origin(terminator.operands[number], (*origin.path, OpId.of(maker.index)))

    def _operand_of_call(self, origin: Origin) -> Origin:
        """The operand of the last call of the path; without a path, of the only call."""
        function, number = self._operations[origin.definition.maker], origin.definition.number
        # Arguments of regions are not followed, and a public function may have unknown callers.
        is_private = function.name in FUNCTIONS and function.symbol in self._private
        calls = self._calls.of(function.symbol) if is_private else ()
        if origin.path:
            calls = [call for call in calls if OpId.of(call.index) == origin.path[-1]]
        if len(calls) != 1 or number >= len(calls[0].operands):
            return origin
        return Origin(calls[0].operands[number], origin.path[:-1])


# ---- conversions
#
# The compiler folds them into the ops that use them, without a location.

_CONVERSIONS = frozenset(
    """
    onnx.Cast onnx.CastLike stablehlo.convert torch.aten.to.dtype torch.aten.to.dtype_layout
    torch.prims.convert_element_type tosa.cast
    """.split()
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """An op that converts elements: its id, and the bits of an element on both sides."""

    op: OpId
    bits_before: Integer
    bits_after: Integer

    def is_folded_into(self, bits_read: Integer) -> bool:
        """Whether a reader of such elements converts them itself; values that loops carry have no width."""
        return self.bits_before in (bits_read, UNKNOWN) and bits_read != self.bits_after


@dataclass(frozen=True, slots=True)
class Converted:
    """An operand that a conversion makes.

    `sources`: the values that the op reads if it does the conversion itself, as indices of ops (functions for their
    arguments): the converted value, and moves of it, which the compiler may do on either side of the conversion.
    """

    number: int
    conversion: Conversion
    sources: frozenset[int]


class Conversions:
    """The conversions of a model, looked up from the ops that read their results."""

    def __init__(self, model: SourceModel, parts_of: Mapping[int, Sequence[SourceOperation]], origins: Origins) -> None:
        self._model = model
        self._origins = origins
        self._conversions = {
            op.index: Conversion(
                OpId.of(op.index),
                shape_of(model.type_of(op.operands[0])).element_bits,
                shape_of(op.results[0]).element_bits,
            )
            for op in model.operations
            if op.is_op and op.operands and _converts(op, parts_of.get(op.index, ()))
        }

    @property
    def ops(self) -> frozenset[OpId]:
        """The ops that convert."""
        return frozenset(conversion.op for conversion in self._conversions.values())

    def read_by(self, op: OpId, path: tuple[OpId, ...]) -> tuple[Converted, ...]:
        """The operands of an op that conversions make, in order, if these calls led to the op."""
        if not self._conversions:
            return ()
        operands = self._model.operations[op.number].operands
        converted = (self._converted(number, definition, path) for number, definition in enumerate(operands))
        return tuple(operand for operand in converted if operand is not None)

    def _converted(self, number: int, definition: Definition, path: tuple[OpId, ...]) -> Converted | None:
        trace = self._origins.trace(Origin(definition, path))
        maker = self._origins.maker(trace[-1])
        if maker is None or maker.index not in self._conversions:
            return None
        source_trace = self._origins.trace(Origin(maker.operands[0], trace[-1].path))
        values = (origin.definition for origin in (*trace[:-1], *source_trace))
        sources = frozenset(self._model.operations[value.maker].owner for value in values)
        return Converted(number, self._conversions[maker.index], sources)


def _converts(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    if operation.name == "linalg.generic":
        return len(parts) == 2 and is_conversion(parts[0].name)
    return operation.name in _CONVERSIONS
