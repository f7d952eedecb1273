"""Reference for scalar operations and bodies, vectorized over arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracemap.ir.attributes import DYNAMIC, Linear, NotLinear, linear_maps
from tracemap.ir.parsing import Operation, Value
from tracemap.kernels.reference.elements import (
    UNDEFINED,
    Array,
    NotEvaluated,
    computed_type,
    from_memory,
    rounded,
    stored_type,
    to_memory,
)

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
    special = _SPECIAL.get(operation.name)
    with np.errstate(all="ignore"):
        if special is not None:
            return special(operation, inputs)
        compute = (_OF_BOOLEANS if _are_boolean(inputs) else _PLAIN).get(operation.name)
        if compute is None:
            raise NotEvaluated(f"{operation.name} has no reference")
        return compute(*inputs)


def _are_boolean(inputs: list[Array]) -> bool:
    """Whether all operands are i1, whose set bit means -1 in signed operations."""
    return bool(inputs) and all(np.asarray(value).dtype == np.bool_ for value in inputs)


def unsigned(value: Array) -> Array:
    """Reinterpret integers as unsigned of the same width; booleans are unchanged."""
    array = np.asarray(value)
    return array if array.dtype.kind != "i" else array.astype(f"u{array.dtype.itemsize}")


def _as(value: Array, like: Array) -> Array:
    return np.asarray(value).astype(np.asarray(like).dtype)


def _not_zero(value: Array) -> Array:
    array = np.asarray(value)
    return np.where(array == 0, array.dtype.type(1), array)


def _quotient(dividend: Array, divisor: Array) -> Array:
    """Quotient rounded towards zero."""
    divisor = _not_zero(divisor)
    down = dividend // divisor
    return np.where((down * divisor != dividend) & ((dividend < 0) != (divisor < 0)), down + 1, down)


def _ceiling_unsigned(left: Array, right: Array) -> Array:
    dividend, divisor = unsigned(left), _not_zero(unsigned(right))
    return _as(dividend // divisor + (dividend % divisor != 0), left)


def _shifted(shift: Compute, value: Array, by: Array) -> Array:
    """Shift with clamped distance: larger distances are undefined in MLIR, and numpy would reduce them modulo width."""
    bits = np.asarray(value).dtype.itemsize * 8
    return shift(value, np.clip(by, 0, bits - 1).astype(np.asarray(value).dtype))


_NUMPY_FUNCTIONS: Final = {
    **{"add": "addf addi", "subtract": "subf subi", "multiply": "mulf muli", "divide": "divf", "fmod": "remf"},
    **{"negative": "negf", "maximum": "maximumf maxsi", "minimum": "minimumf minsi", "fmax": "maxnumf"},
    **{"fmin": "minnumf", "bitwise_and": "andi", "bitwise_or": "ori", "bitwise_xor": "xori", "where": "select"},
}
"""Operations of the dialect `arith`, by the numpy function that computes the same."""
ARITHMETIC: Final[Mapping[str, Compute]] = {
    **{
        f"arith.{name}": getattr(np, function) for function, names in _NUMPY_FUNCTIONS.items() for name in names.split()
    },
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
    "math.absi": np.abs,
    "math.ipowi": np.power,
    "util.assume.int": lambda *a: a if len(a) > 1 else a[0],
    "util.optimization_barrier": lambda *a: a if len(a) > 1 else a[0],
    "iree_tensor_ext.dispatch.workload.ordinal": lambda a: a,
}
_erf: Final = np.frompyfunc(math.erf, 1, 1)
_NUMPY_NAMES: Final = {
    **{"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh"},
    **{"acosh": "arccosh", "atanh": "arctanh", "absf": "abs", "roundeven": "rint", "powf": "power", "fpowi": "power"},
}
_FLOAT_FUNCTIONS: Final = (
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh ceil floor trunc copysign "
    "isnan isinf isfinite asin acos atan atan2 asinh acosh atanh absf roundeven powf fpowi"
)
_FUNCTIONS: Final[Mapping[str, Compute]] = {
    **{f"math.{name}": getattr(np, _NUMPY_NAMES.get(name, name)) for name in _FLOAT_FUNCTIONS.split()},
    "math.rsqrt": lambda a: 1.0 / np.sqrt(a),
    "math.erf": lambda a: np.asarray(_erf(a), dtype=np.float64),
    "math.erfc": lambda a: 1.0 - np.asarray(_erf(a), dtype=np.float64),
    "math.round": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a),
    "math.fma": lambda a, b, c: a * b + c,
}
"""Functions on floats; most have the same name in numpy."""
_PLAIN: Final = {**ARITHMETIC, **_FUNCTIONS}
"""Operations that depend on their operands only, not on attributes."""
_OF_BOOLEANS: Final[Mapping[str, Compute]] = {
    **{
        name: ARITHMETIC[name]
        for name in "arith.andi arith.ori arith.xori arith.maxui arith.minui arith.select "
        "util.optimization_barrier".split()
    },
    **dict.fromkeys(("arith.addi", "arith.subi"), np.logical_xor),
    **dict.fromkeys(("arith.muli", "arith.maxsi"), np.logical_and),
    "arith.minsi": np.logical_or,
}
"""Arithmetic and order of 1-bit integers."""

_ORDER: tuple[str, ...] = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")


def _compare_floats(operation: Operation, inputs: list[Array]) -> Array:
    """`arith.cmpf`. Predicates 1 to 6 are ordered, 8 to 13 unordered; 0, 7, 14, 15: false, ord, uno, true."""
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
    predicate = operation.attributes["predicate"].value
    names = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    if _are_boolean(inputs):  # in signed comparisons, true (-1) is less than false
        inputs = [value if predicate >= len(names) else -np.asarray(value, np.int8) for value in inputs]
    if predicate >= len(names):
        inputs, predicate = [unsigned(value) for value in inputs], predicate - 4
    return getattr(np, names[predicate])(*inputs)


def _convert(operation: Operation, inputs: list[Array]) -> Array:
    """Convert between integers, or between integers and floats. Overflow of floats to integers is undefined in MLIR."""
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
    source, target = str(operation.operands[0].type), str(operation.results[0].type)
    return from_memory(to_memory(inputs[0], source).view(stored_type(target)), target)


def _product_with_carry(operation: Operation, inputs: list[Array]) -> Array:
    """The lower and the upper half of a product of integers (`arith.mului_extended`, `arith.mulsi_extended`)."""
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


_SPECIAL: Mapping[str, Callable[[Operation, list[Array]], Array]] = {
    "arith.constant": lambda op, _: computed_type(str(op.results[0].type)).type(op.attributes["value"].value),
    "arith.cmpf": _compare_floats,
    "arith.cmpi": _compare_integers,
    "arith.truncf": lambda op, inputs: rounded(inputs[0], str(op.results[0].type)),
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


class Watch:
    """Sees the operations of a kernel while it is evaluated; subclasses may change results."""

    def computed(self, operation: Operation, operands: Sequence[Array], results: Sequence[Array]) -> Sequence[Array]:
        """The results to go on with.

        Args:
            operation: an operation of the kernel, or of a body.
            operands: its operands, a body's on all points at once; None for what is no number, and without the
                operands of structured operations.
            results: its results.
        """
        del operation, operands
        return results

    def summed(self, total: Array, sizes: Callable[[], Array], terms: int, element: str) -> Array:
        """The sums to go on with, before they are added to their initial values.

        Args:
            total: the sums.
            sizes: computes the sums of the terms' absolute values; has the shape of `total`.
            terms: number of terms of each.
            element: type of the accumulator.
        """
        del sizes, terms, element
        return total


class Body:
    """The body of a structured operation. `outer` evaluates values from outside of it; `watch` sees its operations."""

    def __init__(self, operation: Operation, outer: Outer, watch: Watch | None = None) -> None:
        block = operation.regions[0].blocks[0]
        *self.operations, terminator = (op.operation for op in block.operations)
        self.arguments, self.yielded = list(block.arguments), list(terminator.operands)
        self._outer, self.watch = outer, watch

    def values(
        self,
        arguments: Sequence[Array],
        results_of: Sequence[Value] | None = None,
        indices: Callable[[int], Array] = no_indices,
    ) -> list[Array]:
        """Evaluate values of the body.

        Args:
            arguments: values of the body's arguments.
            results_of: the values to return; None: the yielded ones.
            indices: loop indices by dimension, for `linalg.index`.
        """
        known: dict[Value, Array] = dict(zip(self.arguments, arguments, strict=True))

        def of(value: Value) -> Array:
            return known[value] if value in known else self._outer(value)

        for operation in self.operations:
            if operation.name == "linalg.index":
                results: Sequence[Array] = (indices(operation.attributes["dim"].value),)
            else:
                operands = [of(operand) for operand in operation.operands]
                results = _compute(operation, operands)
                if self.watch is not None:
                    results = self.watch.computed(operation, operands, results)
            known.update(zip(operation.results, results, strict=True))
        return [of(value) for value in (self.yielded if results_of is None else results_of)]


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
    if not indices:
        return tensor[()]
    coordinates = np.broadcast_arrays(*indices)
    if any(np.any((axis < 0) | (axis >= size)) for axis, size in zip(coordinates, tensor.shape, strict=True)):
        raise NotEvaluated(f"{UNDEFINED}an element index is out of bounds")
    return tensor[tuple(coordinates)]
