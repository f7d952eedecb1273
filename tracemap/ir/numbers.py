"""The numbers that values of the host program are, as far as it computes them from what is known or assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tracemap.ir.host import global_of
from tracemap.ir.parsing import Module, Operation, Value, ir, nested, operand_parts, string_attribute, symbol_path, walk

Extent = Callable[[str, int, int], int]
"""The extent of an argument: of which public function, which argument, which dimension."""

_DEEPEST = 200
"""Values that depend on others through more steps are not followed."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the host program; where only a run tells it, one that stands in for it."""

    value: int
    told: bool


def _unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


_WIDEST = 64
"""Bits of a number: what is shifted farther is 0, and would take all memory."""
_HALF = 1 << (_WIDEST - 1)

_BINARY: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.divsi": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "arith.ceildivui": lambda a, b: -(-a // b),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.floordivsi": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.remsi": lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "arith.minui": min,
    "arith.minsi": min,
    "arith.maxui": max,
    "arith.maxsi": max,
    "arith.shli": lambda a, b: a << b if 0 <= b < _WIDEST else 0,
    "arith.shrui": lambda a, b: a >> b if 0 <= b < _WIDEST else 0,
    "arith.shrsi": lambda a, b: a >> b if 0 <= b < _WIDEST else 0,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "util.align": lambda a, b: -(-a // b) * b if b else a,
}
"""On numbers that are not negative, which sizes are; a result is cut to the width of its type."""
_SAME = {"arith.index_cast", "arith.index_castui", "arith.extui", "arith.extsi", "arith.trunci", "util.assume.int"}
_SAME |= {"util.optimization_barrier"}
_SAME |= {"iree_tensor_ext.dispatch.workload.ordinal"}
_COMPUTED = {*_BINARY, *_SAME, "affine.apply", "arith.select", "arith.cmpi"}
_COMPARE: tuple[Callable[[int, int], bool], ...] = (
    *(lambda a, b: a == b, lambda a, b: a != b),
    *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
    *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
)
"""Predicates of `arith.cmpi`, by number: eq, ne, then the signed and the unsigned ones."""


class HostValues:
    """The numbers that values of the host program are, each found once, and those of the bodies of its dispatches.

    `unknown` stands in for a number that nothing tells; truth values are true then. For one that changes while the
    program runs, a loop's counter say, its first value stands in, or `unknown` too unless `first_values`.
    """

    def __init__(self, module: Module, extent: Extent, unknown: int = 0, *, first_values: bool = True) -> None:
        self._extent = extent
        self._unknown = unknown
        self._first_values = first_values
        self._known: dict[Value, Number] = {}
        self._calls: dict[str, list[Operation]] = {}
        self._stored: dict[str, list[Value]] = {}
        self._globals: dict[str, Operation] = {}
        self._addressed: set[str] = set()
        for top in nested(module.operation):
            if top.name == "util.global":
                self._globals[string_attribute(top, "sym_name")] = top
            for operation in walk(top) if top.name != "hal.executable" else ():
                if operation.name == "util.call":
                    self._calls.setdefault(symbol_path(operation.attributes["callee"])[0], []).append(operation)
                elif operation.name == "util.global.store":
                    self._stored.setdefault(global_of(operation), []).append(operation.operands[0])
                elif operation.name == "util.global.address":
                    self._addressed.add(global_of(operation))

    def of(self, value: Value) -> Number:
        """The number that a value is."""
        return self._of(value, 0)

    def _of(self, value: Value, depth: int) -> Number:
        if value not in self._known:
            # What depends on itself, as in a loop, is not told.
            self._known[value] = unknown = Number(1 if str(value.type) == "i1" else self._unknown, told=False)
            self._known[value] = self._found(value, depth + 1) or unknown if depth < _DEEPEST else unknown
        return self._known[value]

    def _found(self, value: Value, depth: int) -> Number | None:
        """The number; None where nothing tells it, be it of a first trip."""
        owner = getattr(value.owner, "operation", value.owner)
        if not hasattr(owner, "name"):  # a block's argument
            given = self._given(owner, value.arg_number)
            return self._one_of([self._of(each, depth) for each in given if each != value])
        if owner.name == "arith.constant":
            return _attribute_number(owner.attributes["value"])
        if owner.name == "hal.buffer_view.dim":
            return self._argument_extent(owner)
        if owner.name == "util.global.load":
            return self._loaded(global_of(owner), depth)
        return self._computed(owner, value, depth)

    def _loaded(self, name: str, depth: int) -> Number | None:
        """What a global holds: its initial value, or what is stored in it; by its address anything may be."""
        holder = self._globals.get(name)
        initial = None if holder is None else _attribute_number(holder.attributes.get("initial_value"))
        stored = [self._of(each, depth) for each in self._stored.get(name, ())]
        found = self._one_of(stored if initial is None else [initial, *stored])
        return replace(found, told=False) if found and name in self._addressed else found

    def _computed(self, owner: Operation, value: Value, depth: int) -> Number | None:
        if owner.name not in _COMPUTED:
            return None
        inputs = [self._of(operand, depth) for operand in owner.operands]
        numbers, told = [each.value for each in inputs], all(each.told for each in inputs)
        if owner.name == "affine.apply":
            return Number(_applied(ir.AffineMapAttr(owner.attributes["map"]).value, numbers), told)
        if owner.name == "arith.select":
            chosen = inputs[1] if numbers[0] else inputs[2]
            return Number(chosen.value, told=inputs[0].told and chosen.told)
        if owner.name in _SAME:
            result = numbers[value.result_number]
        elif owner.name == "arith.cmpi":
            result = int(_COMPARE[owner.attributes["predicate"].value](*numbers))
        elif ("div" in owner.name or "rem" in owner.name) and numbers[1] == 0:
            return None
        else:
            result = _BINARY[owner.name](*numbers)
        return Number(_cut(result, str(value.type)), told)

    def _one_of(self, candidates: Sequence[Number]) -> Number | None:
        """The number that all of these are; where they differ, the first of them stands in, if that is wanted."""
        same = len({each.value for each in candidates}) == 1
        if not candidates or not (same or self._first_values):
            return None
        return Number(candidates[0].value, told=same and all(each.told for each in candidates))

    def _given(self, block: Operation, number: int) -> list[Value]:
        """What a block's argument may be: operands of the branches to the block, or of the calls of its function."""
        holder = block.owner.operation
        if block != holder.regions[0].blocks[0]:
            return [each for other in block.region.blocks for each in _handed_over(other, block, number)]
        if holder.name == "flow.dispatch.workgroups":
            return operand_parts(holder)[_ARGUMENTS][number : number + 1]
        calls = self._calls.get(string_attribute(holder, "sym_name"), [])
        return [call.operands[number] for call in calls] if holder.name == "util.func" else []

    def _argument_extent(self, owner: Operation) -> Number | None:
        view = owner.operands[0]
        block = getattr(view.owner, "operation", view.owner)
        if hasattr(block, "name") or block.owner.operation.name != "util.func":
            return None  # the buffer of another computation
        function = string_attribute(block.owner.operation, "sym_name")
        return Number(self._extent(function, view.arg_number, owner.attributes["index"].value), told=True)


_ARGUMENTS = 1
"""Of the parts of a dispatch's operands those that its body is handed, behind which it has what it writes."""


def _applied(map_: Any, operands: Sequence[int]) -> int:  # noqa: ANN401 - of the bindings
    """The one result of an affine map; its symbols are the last operands. Nothing is divided by 0: that is 0."""

    def value(expression: Any) -> int:  # noqa: ANN401 - of the bindings
        if isinstance(expression, ir.AffineConstantExpr):
            return int(expression.value)
        if isinstance(expression, ir.AffineDimExpr):
            return operands[int(expression.position)]
        if isinstance(expression, ir.AffineSymbolExpr):
            return operands[int(map_.n_dims) + int(expression.position)]
        one, other = value(expression.lhs), value(expression.rhs)
        compute = next(each for kind, each in _AFFINE if isinstance(expression, kind))
        return compute(one, other)

    return value(map_.results[0])


_AFFINE: Final[tuple[tuple[Any, Callable[[int, int], int]], ...]] = (
    (ir.AffineAddExpr, lambda a, b: a + b),
    (ir.AffineMulExpr, lambda a, b: a * b),
    (ir.AffineModExpr, lambda a, b: a % b if b else 0),
    (ir.AffineFloorDivExpr, lambda a, b: a // b if b else 0),
    (ir.AffineCeilDivExpr, lambda a, b: -(-a // b) if b else 0),
)


def _handed_over(source: Operation, target: Operation, number: int) -> list[Value]:
    """What a block hands over to another one as this argument, once for each way."""
    last = list(source.operations)[-1].operation
    if last.name == "cf.br":
        handed = [list(last.operands)]
    elif last.name == "cf.cond_br":
        _, *handed = operand_parts(last)
    else:
        return []
    return [part[number] for successor, part in zip(last.successors, handed, strict=True) if successor == target]


def _attribute_number(attribute: object) -> Number | None:
    value = getattr(attribute, "value", None)
    return Number(int(value), told=True) if isinstance(value, int) else None


def _cut(number: int, type_text: str) -> int:
    """A number as its type holds it; the sign of those that are no index is not told, and theirs are not negative."""
    if type_text == "index":
        return _unsigned(number + _HALF, _WIDEST) - _HALF
    return _unsigned(number, int(type_text.removeprefix("i") or 64))
