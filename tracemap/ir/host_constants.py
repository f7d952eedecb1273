"""Constant propagation in the host program, given known or assumed extents of its arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tracemap.ir.host_program import callee_of, global_of
from tracemap.ir.parsing import (
    Module,
    Operation,
    Value,
    ir,
    nested,
    operand_segments,
    producer_of,
    string_attribute,
    walk,
)

Extent = Callable[[str, int, int], int]
"""Extent of an argument, by public function, argument number and dimension."""

_MAX_DEPTH = 200
"""Maximum length of a dependency chain."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the host program; `told` is False for an assumed number, whose real value only a run shows."""

    value: int
    told: bool


def _unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


_MAX_BITS = 64
"""Bits of a number. Larger shift distances yield 0; Python would compute huge numbers."""
_HALF = 1 << (_MAX_BITS - 1)

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
    "arith.shli": lambda a, b: a << b if 0 <= b < _MAX_BITS else 0,
    "arith.shrui": lambda a, b: a >> b if 0 <= b < _MAX_BITS else 0,
    "arith.shrsi": lambda a, b: a >> b if 0 <= b < _MAX_BITS else 0,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "util.align": lambda a, b: -(-a // b) * b if b else a,
}
"""Semantics for non-negative numbers, such as sizes; results are truncated to the width of their type."""
_SAME = {"arith.index_cast", "arith.index_castui", "arith.extui", "arith.extsi", "arith.trunci", "util.assume.int"}
_SAME |= {"util.optimization_barrier", "iree_tensor_ext.dispatch.workload.ordinal"}
_COMPUTED = {*_BINARY, *_SAME, "affine.apply", "arith.select", "arith.cmpi"}
_ORDERINGS = (operator.lt, operator.le, operator.gt, operator.ge)
_COMPARE: tuple[Callable[[int, int], bool], ...] = (operator.eq, operator.ne, *_ORDERINGS, *_ORDERINGS)
"""Predicates of `arith.cmpi`, by number: eq, ne, then signed and unsigned comparisons."""


class HostValues:
    """Numbers of the values of the host program and of its dispatch bodies; cached.

    Args:
        module: the module.
        extent: extents of the arguments of public functions.
        unknown: assumed value of a number that cannot be computed; booleans are assumed true.
        first_values: assume the first value of a number that changes during execution, such as a loop counter;
            otherwise assume `unknown`.
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
                    self._calls.setdefault(callee_of(operation), []).append(operation)
                elif operation.name == "util.global.store":
                    self._stored.setdefault(global_of(operation), []).append(operation.operands[0])
                elif operation.name == "util.global.address":
                    self._addressed.add(global_of(operation))

    def of(self, value: Value) -> Number:
        """The number of a value."""
        return self._of(value, 0)

    def _of(self, value: Value, depth: int) -> Number:
        if value not in self._known:
            # Preset, so that cyclic dependencies, as in loops, yield an assumed number.
            self._known[value] = unknown = Number(1 if str(value.type) == "i1" else self._unknown, told=False)
            self._known[value] = self._compute(value, depth + 1) or unknown if depth < _MAX_DEPTH else unknown
        return self._known[value]

    def _compute(self, value: Value, depth: int) -> Number | None:
        """The number; None if it cannot be computed, not even its first value."""
        owner = producer_of(value)
        if owner is None:  # a block argument
            sources = self._argument_sources(value.owner, value.arg_number)
            return self._merge([self._of(source, depth) for source in sources if source != value])
        if owner.name == "arith.constant":
            return _attribute_number(owner.attributes["value"])
        if owner.name == "hal.buffer_view.dim":
            return self._argument_extent(owner)
        if owner.name == "util.global.load":
            return self._load_global(global_of(owner), depth)
        return self._fold(owner, value, depth)

    def _load_global(self, name: str, depth: int) -> Number | None:
        """The number in a global: its initial value or a stored one; assumed if its address is taken."""
        declaration = self._globals.get(name)
        initial = None if declaration is None else _attribute_number(declaration.attributes.get("initial_value"))
        stored = [self._of(value, depth) for value in self._stored.get(name, ())]
        number = self._merge(stored if initial is None else [initial, *stored])
        return replace(number, told=False) if number and name in self._addressed else number

    def _fold(self, owner: Operation, value: Value, depth: int) -> Number | None:
        if owner.name not in _COMPUTED:
            return None
        inputs = [self._of(operand, depth) for operand in owner.operands]
        numbers, told = [number.value for number in inputs], all(number.told for number in inputs)
        if owner.name == "affine.apply":
            return Number(_apply_map(ir.AffineMapAttr(owner.attributes["map"]).value, numbers), told)
        if owner.name == "arith.select":
            selected = inputs[1] if numbers[0] else inputs[2]
            return Number(selected.value, told=inputs[0].told and selected.told)
        if owner.name in _SAME:
            result = numbers[value.result_number]
        elif owner.name == "arith.cmpi":
            result = int(_COMPARE[owner.attributes["predicate"].value](*numbers))
        elif ("div" in owner.name or "rem" in owner.name) and numbers[1] == 0:
            return None
        else:
            result = _BINARY[owner.name](*numbers)
        return Number(_truncate(result, str(value.type)), told)

    def _merge(self, candidates: Sequence[Number]) -> Number | None:
        """The common value of the candidates; if they differ, the first one is assumed (with `first_values`)."""
        same = len({number.value for number in candidates}) == 1
        if not candidates or not (same or self._first_values):
            return None
        return Number(candidates[0].value, told=same and all(number.told for number in candidates))

    def _argument_sources(self, block: Operation, number: int) -> list[Value]:
        """Possible values of a block argument: operands of branches to the block, or of calls of its function."""
        enclosing = block.owner.operation
        if block != enclosing.regions[0].blocks[0]:
            return [value for other in block.region.blocks for value in _branch_operands(other, block, number)]
        if enclosing.name == "flow.dispatch.workgroups":
            return operand_segments(enclosing)[_ARGUMENTS][number : number + 1]
        calls = self._calls.get(string_attribute(enclosing, "sym_name"), [])
        return [call.operands[number] for call in calls] if enclosing.name == "util.func" else []

    def _argument_extent(self, owner: Operation) -> Number | None:
        view = owner.operands[0]
        if producer_of(view) is not None or view.owner.owner.operation.name != "util.func":
            return None  # the buffer is computed
        function = string_attribute(view.owner.owner.operation, "sym_name")
        return Number(self._extent(function, view.arg_number, owner.attributes["index"].value), told=True)


_ARGUMENTS = 1
"""Index of the operand segment that becomes the first arguments of a dispatch's body; its outputs follow."""


def _apply_map(map_: Any, operands: Sequence[int]) -> int:  # noqa: ANN401 - of the bindings
    """The single result of an affine map, whose symbols are the last operands. A division by 0 yields 0."""

    def value(expression: Any) -> int:  # noqa: ANN401 - of the bindings
        if isinstance(expression, ir.AffineConstantExpr):
            return int(expression.value)
        if isinstance(expression, ir.AffineDimExpr):
            return operands[int(expression.position)]
        if isinstance(expression, ir.AffineSymbolExpr):
            return operands[int(map_.n_dims) + int(expression.position)]
        left, right = value(expression.lhs), value(expression.rhs)
        compute = next(function for kind, function in _functions_of_kinds() if isinstance(expression, kind))
        return compute(left, right)

    return value(map_.results[0])


@cache
def _functions_of_kinds() -> tuple[tuple[Any, Callable[[int, int], int]], ...]:
    return (
        (ir.AffineAddExpr, lambda a, b: a + b),
        (ir.AffineMulExpr, lambda a, b: a * b),
        (ir.AffineModExpr, lambda a, b: a % b if b else 0),
        (ir.AffineFloorDivExpr, lambda a, b: a // b if b else 0),
        (ir.AffineCeilDivExpr, lambda a, b: -(-a // b) if b else 0),
    )


def _branch_operands(source: Operation, target: Operation, number: int) -> list[Value]:
    """The values that a block passes to this argument of another block, one per edge."""
    branch = list(source.operations)[-1].operation
    if branch.name == "cf.br":
        operands = [list(branch.operands)]
    elif branch.name == "cf.cond_br":
        _, *operands = operand_segments(branch)
    else:
        return []
    edges = zip(branch.successors, operands, strict=True)
    return [values[number] for successor, values in edges if successor == target]


def _attribute_number(attribute: object) -> Number | None:
    value = getattr(attribute, "value", None)
    return Number(int(value), told=True) if isinstance(value, int) else None


def _truncate(number: int, type_text: str) -> int:
    """A number truncated to its type: signed for `index`, unsigned for other types."""
    if type_text == "index":
        return _unsigned(number + _HALF, _MAX_BITS) - _HALF
    return _unsigned(number, int(type_text.removeprefix("i") or 64))
