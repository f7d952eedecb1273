"""Reference for scalar operations and bodies, vectorized over arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tracemap.ir.attributes import DYNAMIC, Linear, NotLinear, linear_maps
from tracemap.ir.parsing import Operation, Value
from tracemap.kernels.reference.elements import UNDEFINED, Array, NotEvaluated, computed_type, rounded

if TYPE_CHECKING:
    import numpy.typing as npt


# ---- scalars
#
# Scalar operations (`arith`, `math`), computed on whole arrays at once.
#
# Semantics follow MLIR's documentation of the two dialects (https://mlir.llvm.org/docs/Dialects/ArithOps/ and
# …/MathOps/). Undefined cases, such as a division by zero, have an arbitrary result.


Compute = Callable[..., Array]


def evaluate(operation: Operation, inputs: list[Array]) -> Array:
    """The result of a scalar operation; a tuple for several results.

    Raises:
        NotEvaluated: the operation is not supported.
    """
    import numpy as np

    special = _SPECIAL.get(operation.name)
    with np.errstate(all="ignore"):
        if special is not None:
            return special(operation, inputs)
        compute = (_boolean_operations() if _are_boolean(inputs) else _plain_operations()).get(operation.name)
        if compute is None:
            raise NotEvaluated(f"{operation.name} has no reference")
        return compute(*inputs)


def _are_boolean(inputs: list[Array]) -> bool:
    """Whether all operands are i1, whose set bit means -1 in signed operations."""
    import numpy as np

    return bool(inputs) and all(np.asarray(value).dtype == np.bool_ for value in inputs)


@cache
def _boolean_operations() -> Mapping[str, Compute]:
    """Arithmetic and order of 1-bit integers."""
    import numpy as np

    same = "arith.andi arith.ori arith.xori arith.maxui arith.minui arith.select util.optimization_barrier".split()
    return {
        **{name: _plain_operations()[name] for name in same},
        **dict.fromkeys(("arith.addi", "arith.subi"), np.logical_xor),
        **dict.fromkeys(("arith.muli", "arith.maxsi"), np.logical_and),
        "arith.minsi": np.logical_or,
    }


@cache
def _plain_operations() -> Mapping[str, Compute]:
    """Operations that depend on their operands only, not on attributes."""
    return {**_arithmetic(), **_functions()}


def _arithmetic() -> Mapping[str, Compute]:
    import numpy as np

    return {
        "arith.addf": np.add,
        "arith.subf": np.subtract,
        "arith.mulf": np.multiply,
        "arith.divf": np.divide,
        "arith.remf": np.fmod,
        "arith.negf": np.negative,
        "arith.maximumf": np.maximum,
        "arith.minimumf": np.minimum,
        "arith.maxnumf": np.fmax,
        "arith.minnumf": np.fmin,
        "arith.addi": np.add,
        "arith.subi": np.subtract,
        "arith.muli": np.multiply,
        "arith.andi": np.bitwise_and,
        "arith.ori": np.bitwise_or,
        "arith.xori": np.bitwise_xor,
        "arith.maxsi": np.maximum,
        "arith.minsi": np.minimum,
        "arith.maxui": lambda a, b: np.where(unsigned(a) >= unsigned(b), a, b),
        "arith.minui": lambda a, b: np.where(unsigned(a) <= unsigned(b), a, b),
        "arith.divsi": _quotient,
        "arith.remsi": lambda a, b: a - b * _quotient(a, b),
        "arith.divui": lambda a, b: _as(unsigned(a) // _not_zero(unsigned(b)), a),
        "arith.remui": lambda a, b: _as(unsigned(a) % _not_zero(unsigned(b)), a),
        "arith.floordivsi": lambda a, b: a // _not_zero(b),
        "arith.ceildivsi": lambda a, b: -(-a // _not_zero(b)),
        "arith.ceildivui": _ceiling_unsigned,
        "arith.shli": lambda a, b: _shifted(np.left_shift, a, b),
        "arith.shrui": lambda a, b: _as(_shifted(np.right_shift, unsigned(a), unsigned(b)), a),
        "arith.shrsi": lambda a, b: _shifted(np.right_shift, a, b),
        "arith.select": np.where,
        "math.absi": np.abs,
        "math.ipowi": np.power,
        "util.assume.int": lambda *a: a if len(a) > 1 else a[0],
        "util.optimization_barrier": lambda *a: a if len(a) > 1 else a[0],
        "iree_tensor_ext.dispatch.workload.ordinal": lambda a: a,
    }


def _functions() -> Mapping[str, Compute]:
    """Functions on floats; most have the same name in numpy."""
    import numpy as np

    erf = np.frompyfunc(math.erf, 1, 1)
    same = "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh ceil floor trunc copysign".split()
    others = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh"}
    others |= {"acosh": "arccosh", "atanh": "arctanh", "absf": "abs", "roundeven": "rint", "powf": "power"}
    others |= {"fpowi": "power", "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite"}
    return {
        **{f"math.{name}": getattr(np, name) for name in same},
        **{f"math.{name}": getattr(np, other) for name, other in others.items()},
        "math.rsqrt": lambda a: 1.0 / np.sqrt(a),
        "math.erf": lambda a: np.asarray(erf(a), dtype=np.float64),
        "math.erfc": lambda a: 1.0 - np.asarray(erf(a), dtype=np.float64),
        "math.round": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a),
        "math.fma": lambda a, b, c: a * b + c,
    }


def unsigned(value: Array) -> Array:
    """Reinterpret integers as unsigned of the same width; booleans are unchanged."""
    import numpy as np

    array = np.asarray(value)
    return array if array.dtype.kind != "i" else array.astype(f"u{array.dtype.itemsize}")


def _as(value: Array, like: Array) -> Array:
    import numpy as np

    return np.asarray(value).astype(np.asarray(like).dtype)


def _not_zero(value: Array) -> Array:
    import numpy as np

    array = np.asarray(value)
    return np.where(array == 0, array.dtype.type(1), array)


def _quotient(dividend: Array, divisor: Array) -> Array:
    """Quotient rounded towards zero."""
    import numpy as np

    divisor = _not_zero(divisor)
    down = dividend // divisor
    return np.where((down * divisor != dividend) & ((dividend < 0) != (divisor < 0)), down + 1, down)


def _ceiling_unsigned(left: Array, right: Array) -> Array:
    """Unsigned quotient rounded up."""
    dividend, divisor = unsigned(left), _not_zero(unsigned(right))
    return _as(dividend // divisor + (dividend % divisor != 0), left)


def _shifted(shift: Compute, value: Array, by: Array) -> Array:
    """Shift with clamped distance: larger distances are undefined in MLIR, and numpy would reduce them modulo width."""
    import numpy as np

    bits = np.asarray(value).dtype.itemsize * 8
    return shift(value, np.clip(by, 0, bits - 1).astype(np.asarray(value).dtype))


_ORDER: tuple[str, ...] = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")


def _compare_floats(operation: Operation, inputs: list[Array]) -> Array:
    """`arith.cmpf`. Predicates 1 to 6 are ordered, 8 to 13 unordered; 0, 7, 14, 15: false, ord, uno, true."""
    import numpy as np

    predicate = operation.attributes["predicate"].value
    left, right = np.broadcast_arrays(*inputs)
    either_nan = np.isnan(left) | np.isnan(right)
    if predicate in (0, 15):
        return np.full(left.shape, predicate == 15)
    if predicate in (7, 14):
        return either_nan if predicate == 14 else ~either_nan
    comparison = getattr(np, _ORDER[(predicate - 1) % 7])(left, right)
    return comparison & ~either_nan if predicate < 7 else comparison | either_nan


def _compare_integers(operation: Operation, inputs: list[Array]) -> Array:
    import numpy as np

    predicate = operation.attributes["predicate"].value
    names = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    if _are_boolean(inputs):  # in signed comparisons, true (-1) is less than false
        inputs = [value if predicate >= len(names) else -np.asarray(value, np.int8) for value in inputs]
    if predicate >= len(names):
        inputs, predicate = [unsigned(value) for value in inputs], predicate - 4
    return getattr(np, names[predicate])(*inputs)


def _convert(operation: Operation, inputs: list[Array]) -> Array:
    """Convert between integers, or between integers and floats. Overflow of floats to integers is undefined in MLIR."""
    import numpy as np

    value = np.asarray(inputs[0])
    if operation.name in ("arith.extui", "arith.uitofp", "arith.index_castui"):
        value = unsigned(value)
    target = str(operation.results[0].type)
    if target == "i1":
        return (value & 1).astype(np.bool_)
    if value.dtype == np.bool_ and operation.name in ("arith.extsi", "arith.sitofp"):
        value = -value.astype(np.int8)
    if operation.name in ("arith.fptosi", "arith.fptoui"):
        value = np.nan_to_num(np.trunc(value))
        whole = value.astype(np.uint64) if operation.name.endswith("ui") else value.astype(np.int64)
        return whole.astype(computed_type(target))
    result = value.astype(computed_type(target))
    return rounded(result, target) if operation.name.endswith("tofp") else result


def _bitcast(operation: Operation, inputs: list[Array]) -> Array:
    """Reinterpret bits as another type of the same width."""
    from tracemap.kernels.reference.elements import from_memory, stored_type, to_memory

    source, target = str(operation.operands[0].type), str(operation.results[0].type)
    return from_memory(to_memory(inputs[0], source).view(stored_type(target)), target)


def _product_with_carry(operation: Operation, inputs: list[Array]) -> Array:
    """The lower and the upper half of a product of integers (`arith.mului_extended`, `arith.mulsi_extended`)."""
    import numpy as np

    kind = np.asarray(inputs[0]).dtype
    if kind.itemsize > 4:
        raise NotEvaluated(f"{operation.name} of 64 bits has no reference")
    signed = operation.name == "arith.mulsi_extended"
    wide = np.int64 if signed else np.uint64
    factors = [np.asarray(value if signed else unsigned(value)).astype(wide) for value in inputs]
    whole = factors[0] * factors[1]
    return whole.astype(kind), (whole >> (8 * kind.itemsize)).astype(kind)


def _sum_with_carry(_: Operation, inputs: list[Array]) -> Array:
    total = inputs[0] + inputs[1]
    return total, unsigned(total) < unsigned(inputs[0])


def _rounded(operation: Operation, inputs: list[Array]) -> Array:
    return rounded(inputs[0], str(operation.results[0].type))


def _constant(operation: Operation, _: list[Array]) -> Array:
    return constant_number(operation)


def constant_number(operation: Operation) -> Array:
    """The number of a scalar `arith.constant`."""
    attribute, kind = operation.attributes["value"], str(operation.results[0].type)
    value: Any = attribute.value
    return computed_type(kind).type(value)


_SPECIAL: Mapping[str, Callable[[Operation, list[Array]], Array]] = {
    "arith.constant": _constant,
    "arith.cmpf": _compare_floats,
    "arith.cmpi": _compare_integers,
    "arith.truncf": _rounded,
    "arith.extf": lambda _, inputs: inputs[0],
    "arith.bitcast": _bitcast,
    "arith.mului_extended": _product_with_carry,
    "arith.mulsi_extended": _product_with_carry,
    "arith.addui_extended": _sum_with_carry,
    **dict.fromkeys(
        [
            *("arith.extui", "arith.extsi", "arith.trunci", "arith.index_cast", "arith.index_castui"),
            *("arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui"),
        ],
        _convert,
    ),
}


# ---- blocks
#
# Bodies: sequences of scalar operations, computed on all points of an iteration space at once.


Outer = Callable[[Value], Array]
"""Evaluates a value that is defined outside the body."""


def operand_maps(operation: Operation) -> list[list[Linear]]:
    """The indexing maps of an operation's operands.

    Raises:
        NotEvaluated: a map is not linear.
    """
    try:
        return linear_maps(operation)
    except NotLinear as error:
        raise NotEvaluated(f"{operation.name} has no reference: {error}") from error


def no_indices(_: int) -> Array:
    """Loop indices of a body without loops: refuses."""
    raise NotEvaluated("an index outside of a loop has no reference")


def evaluate_block(
    operations: Sequence[Operation],
    known: dict[Value, Array],
    outer: Outer,
    results_of: Sequence[Value],
    indices: Callable[[int], Array] = no_indices,
) -> list[Array]:
    """Evaluate scalar operations.

    Args:
        operations: the operations, in order.
        known: values of the block's arguments; gets the results of the operations.
        outer: evaluates values from outside the block.
        results_of: the values to return.
        indices: loop indices by dimension, for `linalg.index`.
    """

    def of(value: Value) -> Array:
        return known[value] if value in known else outer(value)

    for operation in operations:
        if operation.name == "linalg.index":
            results: Sequence[Array] = (indices(operation.attributes["dim"].value),)
        else:
            results = _compute(operation, [of(operand) for operand in operation.operands])
        known.update(zip(operation.results, results, strict=True))
    return [of(value) for value in results_of]


def _compute(operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    if operation.name == "tensor.extract":
        return (_extract(operands[0], operands[1:]),)
    if operation.name == "affine.apply":
        row = operand_maps(operation)[0][0]
        return (row.constant + sum(factor * operands[number] for number, factor in row.factors.items()),)
    if operation.name == "affine.linearize_index":
        return (linear_index(operation, operands),)
    result = evaluate(operation, list(operands))
    return result if isinstance(result, tuple) else (result,)


def linear_index(operation: Operation, operands: Sequence[Array]) -> Array:
    """`affine.linearize_index`: combine indices into one, row-major."""
    count = int(operation.attributes["operandSegmentSizes"][0])
    indices, dynamic = operands[:count], iter(operands[count:])
    basis = [next(dynamic) if size == DYNAMIC else int(size) for size in operation.attributes["static_basis"]]
    total = indices[0]
    for index, size in zip(indices[1:], basis[len(basis) - count + 1 :], strict=True):
        total = total * size + index
    return total


def _extract(tensor: npt.NDArray[Any], indices: Sequence[Array]) -> Array:
    import numpy as np

    if not indices:
        return tensor[()]
    coordinates = np.broadcast_arrays(*indices)
    if any(np.any((axis < 0) | (axis >= size)) for axis, size in zip(coordinates, tensor.shape, strict=True)):
        raise NotEvaluated(f"{UNDEFINED}an element index is out of bounds")
    return tensor[tuple(coordinates)]
