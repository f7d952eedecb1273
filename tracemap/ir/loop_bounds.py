"""Which values decide how often a loop runs: followed forwards from a value to the loops' bounds and conditions."""

from __future__ import annotations

from tracemap.ir.parsing import Operation, Value, is_scalar_like

_BOUNDS_OF = {"scf.for": slice(0, 3), "scf.parallel": slice(0, None), "scf.forall": slice(0, None)}
"""Of counted loops the operands that are bounds or steps."""


def bounds_loop(value: Value) -> bool:
    """Whether a value is one number that reaches the bounds of a counted loop or the condition of a while loop."""
    return is_scalar_like(value) and _reaches_loop(value, set())


def _reaches_loop(value: Value, seen: set[object]) -> bool:
    if value in seen:  # a loop's values flow back to where they came from
        return False
    seen.add(value)
    return any(_use_reaches_loop(use.owner.operation, use.operand_number, seen) for use in value.uses)


def _use_reaches_loop(user: Operation, number: int, seen: set[object]) -> bool:
    if user.name in _BOUNDS_OF:
        return number in range(len(user.operands))[_BOUNDS_OF[user.name]]
    if user.name in ("scf.while", "stablehlo.while"):
        return _reaches_loop(user.regions[0].blocks[0].arguments[number], seen)
    if user.name == "scf.condition":
        return number == 0
    if user.name == "stablehlo.return" and user.parent.operation.name == "stablehlo.while":
        return _is_first_region(user)
    return any(_reaches_loop(result, seen) for result in user.results if is_scalar_like(result))


def _is_first_region(terminator: Operation) -> bool:
    first = terminator.parent.operation.regions[0].blocks[0]
    return any(operation.operation == terminator for operation in first.operations)
