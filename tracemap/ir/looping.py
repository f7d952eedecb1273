"""Which arguments decide how often a loop runs: followed from the value to bounds and conditions."""

from __future__ import annotations

from tracemap.ir.parsing import Operation, Value, is_scalar_like, own_name

_BOUNDS_OF = {"scf.for": slice(0, 3), "scf.parallel": slice(0, None), "scf.forall": slice(0, None)}
"""Of counted loops the operands that are bounds or steps."""
_CONDITIONS = frozenset({"scf.condition", "torch.prim.Loop.condition"})
_COUNTED_FIRST = frozenset({"onnx.Loop", "torch.prim.Loop"})
"""Loops whose first operand is how often they run at most."""


def bounds_loop(value: Value) -> bool:
    """Whether a value is one number that reaches the bounds of a counted loop or the condition of a while loop."""
    return is_scalar_like(value) and _reaches_loop(value)


def _reaches_loop(value: Value) -> bool:
    seen: set[object] = set()  # a loop's values flow back to where they came from
    left = [value]  # no recursion: a chain of numbers may be as long as the program
    while left:
        current = left.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            decides, follow = _use_of_number(use.owner.operation, use.operand_number)
            if decides:
                return True
            left += follow
    return False


def _use_of_number(user: Operation, number: int) -> tuple[bool, list[Value]]:
    """Whether an operation runs a loop as often as this operand says; and the numbers that come of the operand."""
    if user.name in _BOUNDS_OF:
        return number in range(len(user.operands))[_BOUNDS_OF[user.name]], []
    if user.name in ("scf.while", "stablehlo.while"):
        return False, [user.regions[0].blocks[0].arguments[number]]
    if user.name in _CONDITIONS or own_name(user, user.name) in _COUNTED_FIRST:
        return number == 0, []
    if user.name == "torch.operator_terminator":
        return number == 0 and own_name(user.parent.operation, user.parent.operation.name) == "onnx.Loop", []
    if user.name == "stablehlo.return" and user.parent.operation.name == "stablehlo.while":
        return bool(user.block == user.parent.operation.regions[0].blocks[0]), []
    return False, [result for result in user.results if is_scalar_like(result)]
