"""Estimated cost of an op in a dispatch: operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder, sum_of
from tracemap.ir.attributes import Shape, is_conversion, product
from tracemap.ir.dispatch_bodies import ATTENTION, GATHER, NO_DIMENSION, SCATTER, BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.map.build.model.kinds import op_alias
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.sites.owners import Owners
from tracemap.map.model import KernelLine, OpId, sort_ops

# ---- hoisting
#
# Execution counts of operations in a structured op's region, after loop-invariant code motion.
#
# A layer norm multiplies each element of a row by the reciprocal root of the row's variance. If both are fused into one
# region, the root is next to the multiplication and written once for each element. But the compiler hoists invariant
# code out of loops, so the root is computed once for each row. If workgroups split a row, each of them computes it.

PASS_THROUGH = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice"})
"""Body operations that only pass tensors on."""

_INVARIANT = frozenset({"arith.constant"})
_TILE = 8
"""Rows of results that IREE's CPU code generator keeps in registers for x86-64 and AArch64 (KernelDispatch.cpp)."""
_WORKGROUP_TILE = 64
"""The most elements of a loop in a workgroup of IREE's CPU code generator (KernelDispatch.cpp)."""


class Hoisting:
    """Computes the execution counts of operations in one body."""

    def __init__(self, body: Sequence[BodyOp]) -> None:
        self._body = body
        self._parents = {op.parent for op in body}
        self._varying: dict[int, frozenset[int]] = {}

    def repetitions(self, op: BodyOp) -> Integer:
        """The executions of an operation in a region for one execution of the op around it.

        Loops are ordered from the outside in, and an operation that is invariant in the innermost ones is hoisted out
        of these. An operation that varies only in an inner loop runs in all iterations of the loops around that.
        """
        outer = self._body[op.parent]
        if not outer.loops:
            return outer.iterations
        order = self._order(outer)
        varying = self._varying_loops(op, outer)
        innermost = max((position for position, loop in enumerate(order) if loop in varying), default=-1)
        repeated = order[: innermost + 1]
        tiled = self._tiled_loop(outer, [loop for loop in repeated if loop not in varying])
        trip_counts = [_tiles(outer.loops[loop], _TILE) if loop == tiled else outer.loops[loop] for loop in repeated]
        # Loops in which nothing varies, but that workgroups split, so that each workgroup repeats the work. If the
        # dispatch contains a reduction, a workgroup has whole rows.
        split = [] if any(map(self._reduces, self._body)) else order[len(repeated) :]
        return product((*trip_counts, *(_tiles(outer.loops[loop], _WORKGROUP_TILE) for loop in split)))

    def _tiled_loop(self, outer: BodyOp, invariant: Sequence[int]) -> int:
        """The loop whose iterations share an invariant within a tile of a contraction's results; -1 if none."""
        inputs = _inputs(outer)
        is_reused = all(len(set(loops)) < len(outer.loops) for loops in outer.positions[:inputs])
        if inputs < 2 or not is_reused or not outer.positions[inputs:]:
            return -1
        result_loops = set(outer.positions[inputs])
        return max((loop for loop in invariant if loop in result_loops), default=-1)

    def _order(self, outer: BodyOp) -> list[int]:
        """The loops from the outermost to the innermost.

        A reduction in the same dispatch has a result for each index of some loops; these are the outer loops of all
        operations that use it.
        """
        reduced = {
            loop
            for operand, loops in zip(outer.operands, outer.positions, strict=False)
            if self._is_reduced(operand.producer)
            for loop in loops
        }
        return sorted(range(len(outer.loops)), key=lambda loop: (loop not in reduced, loop))

    def _is_reduced(self, producer: int) -> bool:
        """Whether the producer of a tensor in the body is a reduction."""
        while producer >= 0 and self._body[producer].name in PASS_THROUGH:
            producer = self._body[producer].operands[0].producer
        return producer >= 0 and self._reduces(self._body[producer])

    @staticmethod
    def _reduces(op: BodyOp) -> bool:
        result_elements = op.results[0].elements if op.loops and op.results else UNKNOWN
        return result_elements is not UNKNOWN and op.iterations is not UNKNOWN and op.iterations > result_elements

    def _varying_loops(self, op: BodyOp, outer: BodyOp) -> frozenset[int]:
        """The loops in which the value of an operation in a region varies."""
        if op.index not in self._varying:
            self._varying[op.index] = self._find_varying(op, outer)
        return self._varying[op.index]

    def _find_varying(self, op: BodyOp, outer: BodyOp) -> frozenset[int]:
        all_loops = frozenset(range(len(outer.loops)))
        if op.parent != outer.index or op.index in self._parents or not (op.operands or op.name in _INVARIANT):
            return all_loops
        loops: set[int] = set()
        for operand in op.operands:
            if operand.producer >= 0:
                maker = self._body[operand.producer]
                # A value from outside of the structured op is invariant in all loops.
                loops |= self._varying_loops(maker, outer) if maker.parent >= 0 else set()
            else:
                loops |= self._loops_of_argument(operand.argument, outer)
        return frozenset(loops)

    def _loops_of_argument(self, number: int, outer: BodyOp) -> frozenset[int]:
        """The loops in which an argument of a region varies; all loops for an accumulator."""
        input_positions = outer.positions[: _inputs(outer)]
        loops = input_positions[number] if 0 <= number < len(input_positions) else (NO_DIMENSION,)
        return frozenset(range(len(outer.loops)) if NO_DIMENSION in loops else loops)


def _inputs(op: BodyOp) -> int:
    """The number of inputs of a structured op; its other operands are the destinations of its results."""
    return max(0, len(op.operands) - len(op.results))


def _tiles(extent: Integer, tile: int) -> Integer:
    return UNKNOWN if extent is UNKNOWN else -(-extent // tile)


# ---- products
#
# Multiplications in products that the compiler's lowering gives the location of an operand.
#
# A `stablehlo.dot_general` of a row with a matrix for each batch element, as in a decoding step, becomes an operation
# that multiplies and adds in its region. The addition has the product's location, but the multiplication has that of
# the producer of the first operand, which has a kernel of its own. Both belong to the product.

_ADDS = frozenset({"arith.addf", "arith.addi"})
MULTIPLIES = frozenset({"arith.mulf", "arith.muli"})
_SUMS_OF_PRODUCTS = frozenset({"product", "convolve"})

Misplaced = Mapping[OpId, OpId]
"""Ops in the locations of misplaced multiplications -> the products that the multiplications belong to."""


def relocate_products(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[DispatchRegion, Misplaced]:
    """A site's body with the product's location on each of its multiplications, and the ops in the old locations."""
    pairs = list(_misplaced_multiplications(region.body, owners, facts))
    if not pairs:
        return region, {}
    product_locations = {multiply.index: addition.location for multiply, addition in pairs}
    body = (replace(op, location=product_locations.get(op.index, op.location)) for op in region.body)
    misplaced = {
        op: owners.of(addition.location)[0] for multiply, addition in pairs for op in owners.of(multiply.location)
    }
    return replace(region, body=tuple(body)), misplaced


def assign_product_steps(steps: Sequence[KernelLine], misplaced: Sequence[Misplaced]) -> tuple[KernelLine, ...]:
    """Assign multiplications in products to the products. `misplaced`: at the kernel's sites."""
    misplaced_ops = {op for misplaced_at_site in misplaced for op in misplaced_at_site}
    products = {op for misplaced_at_site in misplaced for op in misplaced_at_site.values()}
    products_at = {step.line: products & {*step.ops} for step in steps}

    def assign(step: KernelLine) -> KernelLine:
        enclosing_products = set() if step.parent is UNKNOWN else products_at.get(step.parent, set())
        if step.op_name not in MULTIPLIES or not enclosing_products or not misplaced_ops & {*step.ops}:
            return step
        return structs.replace(step, ops=sort_ops(({*step.ops} - misplaced_ops) | enclosing_products))

    return tuple(map(assign, steps))


def _misplaced_multiplications(
    body: Sequence[BodyOp], owners: Owners, facts: ModelFacts
) -> Iterator[tuple[BodyOp, BodyOp]]:
    """The multiplications with the location of another op, each with the addition of its product."""
    for op in body:
        if op.name not in _ADDS or op.parent < 0 or not _accumulates(op, body[op.parent]):
            continue
        product_ops = owners.of(op.location)
        if len(product_ops) != 1 or not _is_product(product_ops[0], facts):
            continue
        for operand in op.operands:
            multiply = _source_of_conversions(operand.producer, body)
            named = () if multiply is None or multiply.name not in MULTIPLIES else owners.of(multiply.location)
            if multiply is not None and named not in ((), product_ops):
                yield multiply, op


def _accumulates(op: BodyOp, outer: BodyOp) -> bool:
    """Whether an addition adds to an accumulator: an argument after all inputs."""
    return any(operand.argument >= _inputs(outer) for operand in op.operands)


def _is_product(op: OpId, facts: ModelFacts) -> bool:
    alias = op_alias(facts.operations[op.number], facts.parts_of.get(op.number, ()))
    return alias in _SUMS_OF_PRODUCTS


def _source_of_conversions(producer: int, body: Sequence[BodyOp]) -> BodyOp | None:
    while producer >= 0 and is_conversion(body[producer].name):
        producer = body[producer].operands[0].producer
    return body[producer] if producer >= 0 else None


# ---- cost
#
# Estimated scalar operations and memory traffic of the ops in a dispatch, from the operations of its body.
#
# Operations: a structured op runs its region once per iteration, and each arithmetic operation of the region counts for
# the model's op that it came from. Bytes: loads count for the ops that use them, stores for the op that made the value;
# values that stay inside the dispatch cause no traffic. Both add up over the ops of a site.

_SOURCE_NAMES = {
    "cosine": "math.cos",
    "div": "arith.divf",
    "divide": "arith.divf",
    "exponential": "math.exp",
    "exponential_minus_one": "math.expm1",
    "log_plus_one": "math.log1p",
    "logistic": "math.tanh",
    "pow": "math.powf",
    "power": "math.powf",
    "remainder": "arith.remf",
    "sigmoid": "math.tanh",
    "sine": "math.sin",
}
"""Frontends' names with another name in MLIR's math and arith dialects."""

OwnersOf = Callable[[BodyOp], tuple[str, ...]]
"""The model's ops that a body operation came from; never empty."""

LOAD = "iree_tensor_ext.dispatch.tensor.load"
STORE = "iree_tensor_ext.dispatch.tensor.store"

_FREE = frozenset(
    """
    arith.constant arith.index_cast cf.assert iree_linalg_ext.yield linalg.index linalg.yield
    scf.condition scf.for scf.if scf.while scf.yield
    """.split()
)
_REPEATING = ("linalg.", "iree_linalg_ext.", "scf.for", "scf.while")
"""Operations whose regions run more than once."""

_EXTRACT = "tensor.extract"

_OPERATIONS_OF = {
    "math.acos": 15,
    "math.asin": 15,
    "math.atan": 15,
    "math.atan2": 18,
    "math.cbrt": 12,
    "math.cos": 15,
    "math.cosh": 20,
    "math.erf": 18,
    "math.exp": 10,
    "math.exp2": 8,
    "math.expm1": 12,
    "math.fma": 2,
    "math.ipowi": 8,
    "math.log": 12,
    "math.log10": 13,
    "math.log1p": 13,
    "math.log2": 12,
    "math.powf": 22,
    "math.rsqrt": 4,
    "math.sin": 15,
    "math.sinh": 20,
    "math.sqrt": 4,
    "math.tan": 18,
    "math.tanh": 15,
    "arith.divf": 4,
    "arith.divsi": 8,
    "arith.divui": 8,
    "arith.remf": 8,
    "arith.remsi": 8,
    "arith.remui": 8,
}
"""Scalar operations of ops that expand to several instructions: the order of the polynomial in MLIR's
math-to-polynomial patterns, or the latency of a division relative to an addition. All others count 1."""

_OPERATIONS_PER_ELEMENT = {
    "linalg.softmax": 2 + _OPERATIONS_OF["math.exp"] + 1 + 4,  # maximum and difference, exponential, sum, division
    "iree_linalg_ext.topk": 4,
    "iree_linalg_ext.sort": 16,
    "iree_linalg_ext.fft": 10,
    GATHER: 0,
    "iree_linalg_ext.im2col": 0,
    "linalg.pack": 0,
    "linalg.unpack": 0,
    # Tiles of 8x8, with IREE's tile sizes, are multiplied by constants from both sides.
    "iree_linalg_ext.winograd.filter_transform": 8,
    "iree_linalg_ext.winograd.input_transform": 32,
    "iree_linalg_ext.winograd.output_transform": 21,
}
"""Ops without a region that shows their work; those that only move elements count 0."""
_COUNTED_WHOLE = frozenset({*_OPERATIONS_PER_ELEMENT, ATTENTION})


def operations_of_source(name: str) -> int:
    """Scalar operations per element of a frontend's op: `stablehlo.exponential`, `torch.aten.tanh`, `onnx.Exp`."""
    short = name.rsplit(".", 1)[-1].lower()
    return _OPERATIONS_OF.get(_SOURCE_NAMES.get(short, f"math.{short}"), 1)


class CostModel:
    """Adds up the estimated costs of one site.

    `owners` gives the model's ops that a body operation came from. `folded` are the indices of conversions that other
    ops do while they read: these ops read the loaded data, in its narrow type.
    """

    def __init__(self, body: Sequence[BodyOp], owners: OwnersOf, folded: Container[int] = ()) -> None:
        self._body = body
        self._owners = owners
        self._folded = folded
        self._users: dict[int, list[tuple[BodyOp, int]]] = {}
        self._children: dict[int, list[BodyOp]] = {}
        for op in body:
            self._children.setdefault(op.parent, []).append(op)
            for number, operand in enumerate(op.operands):
                if operand.producer >= 0:
                    self._users.setdefault(operand.producer, []).append((op, number))
        self._workers_of: dict[int, tuple[str, ...]] = {}
        self._hoisting = Hoisting(body)
        self.operations: dict[str, Integer] = {}
        self.bytes_read: dict[str, Integer] = {}
        self.bytes_written: dict[str, Integer] = {}
        for op in body:
            if op.name == LOAD:
                self._charge_load(op)
            elif op.name == STORE:
                self._charge_store(op)
            elif op.name not in _FREE:
                self._charge_operations(op)

    @property
    def are_open(self) -> bool:
        """Whether a cost is unknown because a size is."""
        return any(UNKNOWN in costs.values() for costs in (self.operations, self.bytes_read, self.bytes_written))

    def bytes_of(self, op: str) -> tuple[Integer, Integer]:
        """The bytes that an op reads and writes."""
        return self.bytes_read.get(op, 0), self.bytes_written.get(op, 0)

    def _charge_operations(self, op: BodyOp) -> None:
        outer = self._body[op.parent] if op.parent >= 0 else None
        if outer is None:
            is_bare = op.index not in self._children
            if op.name == ATTENTION:
                self._charge(self.operations, self._owners(op), _attention_operations(op))
            elif op.name in _COUNTED_WHOLE or (is_bare and op.name.startswith(_COUNTED_BARE)):
                # For each element of its result or its largest operand.
                per_element = _OPERATIONS_PER_ELEMENT.get(op.name, _OPERATIONS_OF.get(op.name, 1))
                self._charge(self.operations, self._owners(op), product((op.iterations, per_element)))
        elif outer.name not in _COUNTED_WHOLE:
            # Positions are divided by constants: shifts and multiplications, mostly once for a vector.
            cost = 1 if op.computes_index else _OPERATIONS_OF.get(op.name, 1)
            self._charge(self.operations, self._workers(op), product((self._runs(op), cost)))

    def _runs(self, op: BodyOp) -> Integer:
        """The execution count of an operation in a region, for all regions around it."""
        factors: list[Integer] = []
        while op.parent >= 0:
            outer = self._body[op.parent]
            if outer.name.startswith(_REPEATING):
                factors.append(self._hoisting.repetitions(op))
            op = outer
        return product(tuple(factors))

    def _workers(self, op: BodyOp) -> tuple[str, ...]:
        """The model's ops that an operation works for; for an index computation, the ops that use it."""
        cached = self._workers_of.get(op.index)
        if cached is None:
            users = [user for user, _ in self._users.get(op.index, ())] if op.computes_index else []
            workers = tuple(dict.fromkeys(worker for user in users for worker in self._workers(user)))
            cached = self._workers_of[op.index] = workers or self._owners(op)
        return cached

    def _charge_load(self, load: BodyOp) -> None:
        # The ops that compute with the data get the cost of loading it; the load's own ops if there are none.
        consumers = self._consumers(load, 0)
        owners = [owner for op in consumers for owner in self._workers(op)] or list(self._owners(load))
        self._charge(self.bytes_read, tuple(dict.fromkeys(owners)), self._bytes_read(load))

    def _bytes_read(self, load: BodyOp) -> Integer:
        """Bytes that a load reads; for a table at most the elements that are gathered from it."""
        shape, all_bytes = load.results[0], load.results[0].bytes
        users = self._users.get(load.index, ())
        gathered: Integer = 0
        for user, number in users:
            if user.name == _EXTRACT:
                count = self._runs(user)
            elif (user.name, number) in ((GATHER, 0), (SCATTER, len(user.operands) - 1)):
                count = user.iterations
            else:
                return all_bytes
            gathered = sum_of((gathered, Shape((count,), shape.element_bits).bytes))
        return _minimum(all_bytes, gathered) if users else all_bytes

    def _charge_store(self, store: BodyOp) -> None:
        value = store.operands[0]
        maker, written = self._maker(store, value.producer, value.result), value.shape.bytes
        if maker.name == SCATTER:  # in place: all other elements stay as they are
            written = _minimum(written, Shape((maker.iterations,), value.shape.element_bits).bytes)
        self._charge(self.bytes_written, self._owners(maker), written)

    def _consumers(self, op: BodyOp, depth: int) -> list[BodyOp]:
        """The body operations that compute with an operation's result; in structured ops, the users of the argument."""
        consumers: list[BodyOp] = []
        for user, number in self._users.get(op.index, ()):
            inner_users = [
                user if child.index in self._folded else child
                for child in self._children.get(user.index, ())
                if (child.name not in _FREE or child.computes_index)
                and any(operand.argument == number for operand in child.operands)
            ]
            if user.name in PASS_THROUGH and depth < len(self._body):
                consumers += self._consumers(user, depth + 1)
            elif user.name != STORE:
                consumers += inner_users or [user]
        return consumers

    def _maker(self, store: BodyOp, producer: int, result: int) -> BodyOp:
        """The body operation that made a stored value; in structured ops, the one whose value is yielded."""
        while producer >= 0 and self._body[producer].name in PASS_THROUGH:
            operand = self._body[producer].operands[0]
            producer, result = operand.producer, operand.result
        if producer < 0 or self._body[producer].name == LOAD:
            return store
        maker = self._body[producer]
        for child in self._children.get(producer, ()):
            if child.name == "linalg.yield" and 0 <= result < len(child.operands):
                yielded = child.operands[result].producer
                return self._body[yielded] if yielded >= 0 and self._body[yielded].name not in _FREE else maker
        return maker

    @staticmethod
    def _charge(account: dict[str, Integer], owners: tuple[str, ...], amount: Integer) -> None:
        if amount is UNKNOWN:
            account.update(dict.fromkeys(owners, UNKNOWN))
            return
        for owner, share in zip(owners, split_by_largest_remainder(amount, [1] * len(owners)), strict=True):
            account[owner] = sum_of((account.get(owner, 0), share))


_COUNTED_BARE = ("linalg.", "iree_linalg_ext.", "math.", "arith.")
"""Dialects whose operations do work on elements even without a region."""


def _minimum(left: Integer, right: Integer) -> Integer:
    """The smaller of two values; a known one if the other is unknown."""
    return min((value for value in (left, right) if value is not UNKNOWN), default=UNKNOWN)


def _attention_operations(op: BodyOp) -> Integer:
    """Two matrix products (multiplications and additions) and a softmax of the scores in between.

    Each score is a sum over the elements of a query, and is multiplied by the elements of a value.
    """
    width = sum_of((_last_extent(op.operands[0].shape), _last_extent(op.results[0]) if op.results else UNKNOWN))
    if op.iterations is UNKNOWN or width is UNKNOWN or not width:
        return op.iterations
    return 2 * op.iterations + op.iterations // width * _OPERATIONS_PER_ELEMENT["linalg.softmax"]


def _last_extent(shape: Shape) -> Integer:
    return shape.extents[-1] if shape.extents else UNKNOWN
