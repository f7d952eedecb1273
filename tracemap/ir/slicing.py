"""Slices of a model: a function with some of its ops, whose missing operands are arguments.

Calls are inlined virtually: an op of a called function is a unit of its own for every path of calls, and its operands
are looked up through the calls. So a slice can hold ops of several functions without a change of the model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracemap.core.errors import ModelInvalid
from tracemap.ir.model_reader import parse_model
from tracemap.ir.parsing import (
    MlirParser,
    Module,
    Operation,
    Value,
    ir,
    nested,
    string_attribute,
    symbols_in,
    walk,
)
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS

_CALLS: Final = frozenset({"func.call", "util.call"})
_TERMINATORS: Final = frozenset(
    {"func.return", "util.return", "return", "stablehlo.return", "scf.yield", "scf.condition", "tosa.yield"}
    | {"cf.br", "cf.cond_br", "cf.switch", "torch.prim.If.yield", "torch.prim.Loop.condition", "ml_program.return"}
)
_PASSABLE: Final = re.compile(r"(ranked )?tensor<|[su]?i\d+$|f\d+|bf16|index$|!torch\.vtensor<|complex<")
"""Types that a function of IREE can take and return."""
_NEW: Final = -1
"""The source of operations that the model does not have."""


def is_terminator(name: str) -> bool:
    """Whether an operation of this name ends a function or a region of control flow."""
    return name in _TERMINATORS


def count_ops(module: Module) -> int:
    """The number of ops in a module, without its functions and terminators. Parts of ops do not count."""
    worklist, count = [module.operation], 0
    for operation in worklist:  # grows during the loop
        is_outer = operation.name in CONTROL_FLOW or operation.name in FUNCTIONS
        if operation.name not in FUNCTIONS and operation != module.operation and not is_terminator(operation.name):
            count += 1
        if is_outer:
            worklist += nested(operation)
    return count


@dataclass(frozen=True, slots=True)
class ValueId:
    """A value of the model in a chain of calls.

    `unit`: the unit that defines it; -1: the function itself, whose argument it is. `block`: the number of the block
    whose argument it is; -1: it is a result. `number`: the index of the result or argument.
    """

    unit: int
    number: int
    block: int = -1


@dataclass(eq=False, slots=True)
class _Frame:
    """A function, and the call that entered it; none for the outermost one."""

    function: Operation
    call: Operation | None = None
    caller: _Frame | None = None

    @property
    def depth(self) -> int:
        return 0 if self.caller is None else self.caller.depth + 1


@dataclass(frozen=True, slots=True)
class Unit:
    """An op of the function or of a function that it calls.

    `op`: its pre-order index in the model; `path`: those of the calls that lead to it, outermost first; `parent`: the
    unit of control flow around it, -1 if there is none; `makers`: the values that it takes from outside.
    """

    index: int
    op: int
    name: str
    path: tuple[int, ...]
    parent: int
    takes: tuple[ValueId, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """A module with one public function.

    Attributes:
        module: the module.
        sources: the pre-order index in the model, by the pre-order index in this module; only for copied operations.
        arguments: the value of the model that each argument stands for.
        results: the value of the model that each result is.
        units: the units that it holds, without those inside other ones.
    """

    module: Module
    function: str
    sources: Mapping[int, int]
    arguments: tuple[ValueId, ...]
    results: tuple[ValueId, ...]
    units: frozenset[int]

    @property
    def text(self) -> str:
        """The module's text, without locations."""
        text = str(self.module.operation.get_asm(enable_debug_info=False))
        return text if text.endswith("\n") else text + "\n"

    def positions_of(self, op: int) -> tuple[int, ...]:
        """The pre-order indices of the copies of an op of the model."""
        return tuple(position for position, source in self.sources.items() if source == op)


class Slicer:
    """Makes slices of a model.

    Args:
        data: the model.
        function: the name of the function to slice.
        inline: whether ops of called functions are units; otherwise the calls are.

    Raises:
        ModelInvalid: the model does not parse, or has no such function.
    """

    def __init__(self, data: bytes, function: str, *, inline: bool = True) -> None:
        self._parser = MlirParser()
        self.module = parse_model(self._parser, data).module
        self._index_of = {operation: index for index, operation in enumerate(walk(self.module.operation))}
        self._symbols = {
            string_attribute(top, "sym_name"): top
            for top in nested(self.module.operation)
            if "sym_name" in top.attributes
        }
        root = self._symbols.get(function)
        if root is None or root.name not in FUNCTIONS or not entry_block(root):
            raise ModelInvalid(f"the model has no function {function}")
        self.function = function
        self._inline = inline
        self._root = _Frame(root)
        self._operations: list[Operation] = []
        self._frames: list[_Frame] = []
        self._unit_of: dict[tuple[Operation, _Frame], int] = {}
        self._entered: dict[tuple[Operation, _Frame], _Frame] = {}
        self._value_of: dict[ValueId, tuple[Value, _Frame]] = {}
        self._parents: list[int] = []
        self._paths: list[tuple[int, ...]] = []
        self._enter(self._root, -1, ())
        self.units = tuple(self._describe())
        self._users = self._find_users()

    @property
    def count(self) -> int:
        """The number of ops in the model."""
        return count_ops(self.module)

    # ---- units

    def _enter(self, frame: _Frame, parent: int, path: tuple[int, ...]) -> None:
        """Number the ops of a function, and of the functions that it calls."""
        for block in frame.function.regions[0].blocks:
            self._add(block, frame, parent, path)

    def _add(self, block: ir.Block, frame: _Frame, parent: int, path: tuple[int, ...]) -> None:
        for child in block.operations:
            operation = child.operation
            if is_terminator(operation.name):
                continue
            callee = self._callee(operation, frame) if self._inline else None
            if callee is not None:
                inner = self._entered[operation, frame] = _Frame(callee, operation, frame)
                self._enter(inner, parent, (*path, self._index_of[operation]))
                continue
            index = len(self._operations)
            self._operations.append(operation)
            self._frames.append(frame)
            self._parents.append(parent)
            self._paths.append(path)
            self._unit_of[operation, frame] = index
            if operation.name in CONTROL_FLOW:
                for region in operation.regions:
                    for inside in region.blocks:
                        self._add(inside, frame, index, path)

    def _callee(self, operation: Operation, frame: _Frame) -> Operation | None:
        """The called function if it can be inlined: it has one block and is not being entered already."""
        if operation.name not in _CALLS:
            return None
        callee = self._symbols.get(string_attribute(operation, "callee").removeprefix("@").strip('"'))
        if callee is None or len(callee.regions) != 1 or len(callee.regions[0].blocks) != 1:
            return None
        around: _Frame | None = frame
        while around is not None:
            if around.function == callee:
                return None
            around = around.caller
        return callee

    def _describe(self) -> Iterator[Unit]:
        for index, (operation, frame) in enumerate(zip(self._operations, self._frames, strict=True)):
            takes = tuple(dict.fromkeys(self._id(value, frame) for value in _captures(operation)))
            op, parent = self._index_of[operation], self._parents[index]
            yield Unit(index, op, operation.name, self._paths[index], parent, takes)

    def _id(self, value: Value, frame: _Frame) -> ValueId:
        """The definition of a value, looked up through calls."""
        found, where = self._resolved(value, frame)
        identity = self._identity(found, where)
        self._value_of.setdefault(identity, (found, where))
        return identity

    def _resolved(self, value: Value, frame: _Frame) -> tuple[Value, _Frame]:
        while True:
            if hasattr(value, "arg_number"):
                if frame.call is None or value.owner.owner.operation != frame.function:
                    return value, frame
                assert frame.caller is not None
                value, frame = frame.call.operands[value.arg_number], frame.caller
                continue
            inner = self._entered.get((value.owner.operation, frame))
            if inner is None:
                return value, frame
            value, frame = _returned(inner.function)[value.result_number], inner

    def _identity(self, value: Value, frame: _Frame) -> ValueId:
        if not hasattr(value, "arg_number"):
            return ValueId(self._unit_of[value.owner.operation, frame], value.result_number)
        owner = value.owner.owner.operation
        blocks = [block for region in owner.regions for block in region.blocks]
        unit = self._unit_of.get((owner, frame), -1)
        return ValueId(unit, value.arg_number, blocks.index(value.owner))

    def _find_users(self) -> Mapping[ValueId, frozenset[int]]:
        """The units that use each value; -1 for the ends of functions and regions."""
        users: dict[ValueId, set[int]] = {}
        for unit in self.units:
            operation, frame = self._operations[unit.index], self._frames[unit.index]
            direct = {self._id(value, frame) for value in operation.operands}
            for value in unit.takes if operation.name not in CONTROL_FLOW else direct:
                users.setdefault(value, set()).add(unit.index)
            if operation.name in CONTROL_FLOW:
                for region in operation.regions:
                    for block in region.blocks:
                        self._add_ends(block, frame, users)
        for block in self._root.function.regions[0].blocks:
            self._add_ends(block, self._root, users)
        return {value: frozenset(found) for value, found in users.items()}

    def _add_ends(self, block: ir.Block, frame: _Frame, users: dict[ValueId, set[int]]) -> None:
        for child in block.operations:
            if is_terminator(child.operation.name):
                for value in child.operation.operands:
                    users.setdefault(self._id(value, frame), set()).add(-1)

    # ---- slices

    def results_of(self, unit: int) -> tuple[ValueId, ...]:
        """The results of a unit that a function can return."""
        values = [ValueId(unit, number) for number in range(len(self._operations[unit].results))]
        for value, result in zip(values, self._operations[unit].results, strict=True):
            self._value_of.setdefault(value, (result, self._frames[unit]))
        return tuple(value for value in values if _is_passable(self._value_of[value][0]))

    def units_of(self, ops: Collection[int]) -> frozenset[int]:
        """The units of ops of the model, by their pre-order index, in all functions that call them."""
        return frozenset(unit.index for unit in self.units if unit.op in ops)

    def neighbours(self, units: Iterable[int]) -> frozenset[int]:
        """The units next to these in the data flow, and these."""
        own = frozenset(units)
        makers = {value.unit for index in own for value in self.units[index].takes if value.unit >= 0}
        users = {
            user
            for index in own
            for number in range(len(self._operations[index].results))
            for user in self._users.get(ValueId(index, number), ())
            if user >= 0
        }
        return own | makers | users

    def ancestors(self, values: Iterable[ValueId]) -> frozenset[int]:
        """The units that values depend on."""
        worklist = [value.unit for value in values if value.unit >= 0]
        found = set(worklist)
        for index in worklist:  # grows during the loop
            around = self.units[index].parent
            takes = [value.unit for value in self.units[index].takes if value.unit >= 0]
            more = {unit for unit in (*takes, around) if unit >= 0 and unit not in found}
            found |= more
            worklist += more
        return frozenset(found)

    def closure(self, units: Iterable[int]) -> frozenset[int]:
        """Units with those that make operands which no function can take, without units inside other ones.

        Raises:
            ModelInvalid: an operand of such a type is an argument.
        """
        kept = set(units)
        worklist = list(kept)
        for index in worklist:  # grows during the loop
            for value in self.units[index].takes:
                if value.unit in kept or _is_passable(self._value_of[value][0]):
                    continue
                if value.unit < 0 or value.block >= 0:
                    raise ModelInvalid("an operand cannot be an argument of a function")
                kept.add(value.unit)
                worklist.append(value.unit)
        return frozenset(index for index in kept if not self._is_inside(index, kept))

    def _is_inside(self, index: int, units: Collection[int]) -> bool:
        around = self.units[index].parent
        while around >= 0:
            if around in units:
                return True
            around = self.units[around].parent
        return False

    def arguments(self) -> tuple[ValueId, ...]:
        """The function's own arguments."""
        values = []
        for number, value in enumerate(self._root.function.regions[0].blocks[0].arguments):
            values.append(ValueId(-1, number, 0))
            self._value_of.setdefault(values[-1], (value, self._root))
        return tuple(values)

    def types_of(self, values: Iterable[ValueId]) -> list[str]:
        """The types of values."""
        return [str(self._value_of[value][0].type) for value in values]

    def can_return(self, value: ValueId) -> bool:
        """Whether the function can return a value: it is outside of control flow, and of a type that is passed."""
        is_outside = value.unit < 0 or (value.block < 0 and self.units[value.unit].parent < 0)
        return is_outside and _is_passable(self._value_of[value][0])

    def cut(self, units: Iterable[int], *, results: Sequence[ValueId] = (), arguments: Sequence[ValueId] = ()) -> Slice:
        """The slice with these units.

        Args:
            units: indices of units.
            results: the values to return; empty: those that other ops use.
            arguments: the first arguments, even if no unit takes them.

        Raises:
            ModelInvalid: its operands cannot be arguments of a function, or it has no results.
        """
        kept = self.closure(units)
        order = sorted(kept)
        taken = list(dict.fromkeys([*arguments, *self._arguments(order)]))
        returned = list(results) or list(self._escaping(order))
        if not returned:
            raise ModelInvalid("nothing is left that a function can return")
        if any(value not in taken and (value.block >= 0 or value.unit not in kept) for value in returned):
            raise ModelInvalid("a result is a value inside control flow, which is kept as a whole")
        return _Writer(self, order, taken, returned, self.function).slice()

    def _arguments(self, order: Sequence[int]) -> Iterator[ValueId]:
        done: set[int] = set()
        for index in order:
            for value in self.units[index].takes:
                if value.block >= 0 or value.unit not in done:
                    yield value
            done.add(index)

    def _escaping(self, order: Sequence[int]) -> Iterator[ValueId]:
        kept = frozenset(order)
        for index in order:
            for number, result in enumerate(self._operations[index].results):
                value = ValueId(index, number)
                users = self._users.get(value, frozenset({-1}))
                is_kept = [user in kept or (user >= 0 and self._is_inside(user, kept)) for user in users]
                # A constant is no result worth to return.
                inside = all(is_kept) if self.units[index].takes else any(is_kept)
                if not inside and _is_passable(result):
                    self._value_of.setdefault(value, (result, self._frames[index]))
                    yield value


@dataclass
class _Writer:
    """Writes one slice.

    Operations of the new module are never keys: the bindings hash the content of an operation, which changes here.
    """

    slicer: Slicer
    order: Sequence[int]
    arguments: Sequence[ValueId]
    returned: Sequence[ValueId]
    name: str
    _sources: list[int] = field(default_factory=lambda: [_NEW])
    """The pre-order index in the model of each operation written so far; the module is first."""

    def slice(self) -> Slice:
        slicer = self.slicer
        with slicer._parser.context, ir.Location.unknown():
            module = ir.Module.create()
            _copy_attributes(slicer.module.operation, module.operation)
            for symbol in self._used_symbols():
                symbol.clone(ir.InsertionPoint(module.body))
                self._sources += [slicer._index_of[part] for part in walk(symbol)]
            self._write_function(module)
            try:
                module.operation.verify()
            except ir.MLIRError as error:
                raise ModelInvalid(f"the slice is not valid: {error}") from error
        sources = {position: source for position, source in enumerate(self._sources) if source != _NEW}
        return Slice(module, self.name, sources, tuple(self.arguments), tuple(self.returned), frozenset(self.order))

    def _write_function(self, module: Module) -> None:
        slicer, root = self.slicer, self.slicer._root.function
        types = [slicer._value_of[value][0].type for value in self.arguments]
        results = [slicer._value_of[value][0].type for value in self.returned]
        attributes = {
            "sym_name": ir.StringAttr.get(self.name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, results)),
        }
        function = ir.Operation.create(
            root.name, attributes=attributes, regions=1, ip=ir.InsertionPoint(module.body)
        ).operation
        self._sources.append(_NEW)
        _copy_attributes(root, function)
        block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
        values: dict[ValueId, Value] = dict(zip(self.arguments, block.arguments, strict=True))
        point = ir.InsertionPoint(block)
        for index in self.order:
            operation, frame = slicer._operations[index], slicer._frames[index]
            copy, inside = operation.clone(point), set(walk(operation))
            for part, copied in zip(walk(operation), list(walk(copy.operation)), strict=True):
                self._sources.append(slicer._index_of[part])
                for number, operand in enumerate(part.operands):
                    if not _is_defined_in(operand, inside):
                        copied.operands[number] = values[slicer._id(operand, frame)]
            values |= {ValueId(index, number): result for number, result in enumerate(copy.operation.results)}
        end = _last(list(root.regions[0].blocks)[-1])
        ir.Operation.create(end.name, operands=[values[value] for value in self.returned], ip=point)

    def _used_symbols(self) -> Sequence[Operation]:
        """The functions and globals that the units use, in the order of the model."""
        slicer = self.slicer
        worklist = [slicer._operations[index] for index in self.order]
        found: dict[str, Operation] = {}
        for operation in worklist:  # grows during the loop
            for name in _references(operation):
                symbol = slicer._symbols.get(name)
                if symbol is not None and name not in found:
                    found[name] = symbol
                    worklist.append(symbol)
        return [symbol for name, symbol in slicer._symbols.items() if name in found]


def _copy_attributes(source: Operation, target: Operation) -> None:
    """Copy the attributes of other dialects, such as the version of ONNX's operators."""
    for name in source.attributes:
        if "." in name:
            target.attributes[name] = source.attributes[name]


def _captures(operation: Operation) -> Iterator[Value]:
    """The values that an operation and its regions take from outside."""
    inside = set(walk(operation))
    for part in inside if len(inside) == 1 else walk(operation):
        for operand in part.operands:
            if not _is_defined_in(operand, inside):
                yield operand


def _is_defined_in(value: Value, inside: Collection[Operation]) -> bool:
    owner = value.owner.owner.operation if hasattr(value, "arg_number") else value.owner.operation
    return owner in inside


def _is_passable(value: Value) -> bool:
    return _PASSABLE.match(str(value.type)) is not None


def _returned(function: Operation) -> Sequence[Value]:
    return list(_last(function.regions[0].blocks[0]).operands)


def _last(block: ir.Block) -> Operation:
    *_, last = block.operations
    return last.operation


def _references(operation: Operation) -> Iterator[str]:
    for part in walk(operation):
        for name in part.attributes:
            attribute = part.attributes[name]
            if name != "sym_name" and not isinstance(attribute, (ir.DenseElementsAttr, ir.StringAttr)):
                text = str(attribute)
                if "@" in text:
                    yield from symbols_in(text)


def entry_block(function: Operation) -> bool:
    """Whether a function has a body."""
    return len(function.regions) == 1 and len(function.regions[0].blocks) > 0


def public_functions(data: bytes) -> tuple[str, ...]:
    """The names of a model's public functions with a body.

    Raises:
        ModelInvalid: the model does not parse.
    """
    module = parse_model(MlirParser(), data).module
    return tuple(
        string_attribute(top, "sym_name")
        for top in nested(module.operation)
        if top.name in FUNCTIONS and entry_block(top) and string_attribute(top, "sym_visibility") != "private"
    )
