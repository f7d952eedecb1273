"""Estimated cost of an op in a site: operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from tracemap.graph.model import OpId, Step, in_order
from tracemap.ir.attributes import Shape, add, is_conversion, product
from tracemap.ir.bodies import ATTENTION, GATHER, NO_DIMENSION, SCATTER, BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import word_of
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

# ---- hoisting
#
# How often an op of a structured op's region runs: not in the turns of loops inside of which it stays the same.
#
# A layer norm multiplies each element of a row by the reciprocal root of the row's variance. Fused into one region the
# root stands beside the multiplication, once for each element, as it is written. The compiler moves out of a loop what
# does not change in it, so that the root is taken once for a row. Where workgroups share a row out, each of them takes
# it again.


PASS_THROUGH = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice"})
"""Body ops that only hand tensors on."""

_SAME_EVERYWHERE = frozenset({"arith.constant"})
_TILE = 8
"""Rows of results that IREE's CPU code generator keeps in registers for x86-64 and AArch64 (KernelDispatch.cpp)."""
_SHARED_OUT = 64
"""Elements of a loop that IREE's CPU code generator gives to a workgroup at most (KernelDispatch.cpp)."""
_INPUTS_OF_CONTRACTION = 2


class Hoisting:
    """Tells of the ops of one body how often they run."""

    def __init__(self, body: Sequence[BodyOp]) -> None:
        self._body = body
        self._holding = {op.parent for op in body}
        self._changes: dict[int, frozenset[int]] = {}

    def turns(self, op: BodyOp) -> Integer:
        """How often an op of a region runs when the op around it runs once.

        The loops are run from the outside to the inside, and what stays the same in the innermost of them stands
        before these. What changes in an inner loop alone runs in all turns of those around it.
        """
        around = self._body[op.parent]
        if not around.loops:
            return around.iterations
        order = self._order(around)
        changing = self._changing(op, around)
        innermost = max((place for place, loop in enumerate(order) if loop in changing), default=-1)
        turned = order[: innermost + 1]
        tiled = self._tiled(around, [loop for loop in turned if loop not in changing])
        own = [_tiles(around.loops[loop], _TILE) if loop == tiled else around.loops[loop] for loop in turned]
        return product((*own, *(_tiles(around.loops[loop], _SHARED_OUT) for loop in self._shared_out(order, turned))))

    def _shared_out(self, order: Sequence[int], turned: Sequence[int]) -> Sequence[int]:
        """The loops in whose turns nothing changes, as far as workgroups share them out and compute it again each.

        Where something is reduced in the dispatch, a workgroup has whole rows.
        """
        reduces = any(self._reduces(op) for op in self._body)
        return [] if reduces else order[len(turned) :]

    def _tiled(self, around: BodyOp, unchanging: Sequence[int]) -> int:
        """The loop of which the turns that share a tile of a contraction's results compute this once; -1: none."""
        inputs = _inputs(around)
        used_again = all(len(set(loops)) < len(around.loops) for loops in around.positions[:inputs])
        if inputs < _INPUTS_OF_CONTRACTION or not used_again or not around.positions[inputs:]:
            return -1
        of_results = set(around.positions[inputs])
        return max((loop for loop in unchanging if loop in of_results), default=-1)

    def _order(self, around: BodyOp) -> list[int]:
        """The loops from the outermost to the innermost.

        What is reduced in the same dispatch is there for each of its elements, and so the loops over these are the
        outer ones of all that uses it.
        """
        outer = {
            loop
            for operand, loops in zip(around.operands, around.positions, strict=False)
            if self._is_reduced(operand.producer)
            for loop in loops
        }
        return sorted(range(len(around.loops)), key=lambda loop: (loop not in outer, loop))

    def _is_reduced(self, producer: int) -> bool:
        """Whether what makes a tensor in the body adds up more elements than it makes."""
        while producer >= 0 and self._body[producer].name in PASS_THROUGH:
            producer = self._body[producer].operands[0].producer
        if producer < 0:
            return False
        return self._reduces(self._body[producer])

    @staticmethod
    def _reduces(op: BodyOp) -> bool:
        made = op.results[0].elements if op.loops and op.results else UNKNOWN
        return made is not UNKNOWN and op.iterations is not UNKNOWN and op.iterations > made

    def _changing(self, op: BodyOp, around: BodyOp) -> frozenset[int]:
        """The loops in whose turns what an op of a region computes is not always the same."""
        if op.index not in self._changes:
            self._changes[op.index] = self._work_out(op, around)
        return self._changes[op.index]

    def _work_out(self, op: BodyOp, around: BodyOp) -> frozenset[int]:
        every = frozenset(range(len(around.loops)))
        if op.parent != around.index or op.index in self._holding or not (op.operands or op.name in _SAME_EVERYWHERE):
            return every
        found: set[int] = set()
        for operand in op.operands:
            if operand.producer >= 0:
                maker = self._body[operand.producer]
                # What is made before the structured op is the same in all of its turns.
                found |= self._changing(maker, around) if maker.parent >= 0 else set()
            else:
                found |= self._changing_argument(operand.argument, around)
        return frozenset(found)

    def _changing_argument(self, number: int, around: BodyOp) -> frozenset[int]:
        """The loops in whose turns a region is handed other elements; all where it is handed its own result on."""
        read = around.positions[: _inputs(around)]
        loops = read[number] if 0 <= number < len(read) else (NO_DIMENSION,)
        return frozenset(range(len(around.loops)) if NO_DIMENSION in loops else loops)


def _inputs(around: BodyOp) -> int:
    """How many operands of a structured op are read; behind them stands what its results are made in."""
    return max(0, len(around.operands) - len(around.results))


def _tiles(extent: Integer, tile: int) -> Integer:
    return UNKNOWN if extent is UNKNOWN else -(-extent // tile)


# ---- products
#
# Multiplications of products that carry the location of an operand, as the compiler's lowering gives it to them.
#
# A `stablehlo.dot_general` of a row with a matrix for each of a batch, as one step of decoding has it, becomes an
# operation that multiplies and adds up in its region. There the addition is located at the product, and the
# multiplication at whatever makes the first operand, which has a kernel of its own. What a product adds up it
# multiplied.


_ADDS = frozenset({"arith.addf", "arith.addi"})
MULTIPLIES = frozenset({"arith.mulf", "arith.muli"})
_SUMS_OF_PRODUCTS = frozenset({"product", "convolve"})

Misplaced = Mapping[OpId, OpId]
"""Ops at which multiplications of a site are located, and the products that they belong to."""


def with_own_products(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[DispatchRegion, Misplaced]:
    """A site's body in which each multiplication of a product has the product's location, and where they had been."""
    pairs = list(_misplaced(region.body, owners, facts))
    if not pairs:
        return region, {}
    places = {multiply.index: add.location for multiply, add in pairs}
    body = (replace(op, location=places.get(op.index, op.location)) for op in region.body)
    found = {op: owners.of(add.location)[0] for multiply, add in pairs for op in owners.of(multiply.location)}
    return replace(region, body=tuple(body)), found


def with_products(steps: Sequence[Step], misplaced: Sequence[Misplaced]) -> tuple[Step, ...]:
    """The steps of a kernel, of which multiplications inside of products are of these. `misplaced`: at its sites."""
    others = {op for at_site in misplaced for op in at_site}
    products = {op for at_site in misplaced for op in at_site.values()}
    around = {step.line: products & {*step.ops} for step in steps}

    def placed(step: Step) -> Step:
        inside = set() if step.parent is UNKNOWN else around.get(step.parent, set())
        if step.op_name not in MULTIPLIES or not inside or not others & {*step.ops}:
            return step
        return structs.replace(step, ops=in_order(({*step.ops} - others) | inside))

    return tuple(map(placed, steps))


def _misplaced(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[BodyOp, BodyOp]]:
    """The multiplications that are located elsewhere, each with the addition of the product that it is for."""
    for op in body:
        if op.name not in _ADDS or op.parent < 0 or not _adds_up(op, body[op.parent]):
            continue
        own = owners.of(op.location)
        if len(own) != 1 or not _is_product(own[0], facts):
            continue
        for operand in op.operands:
            multiply = _behind_conversions(operand.producer, body)
            if multiply is not None and multiply.name in MULTIPLIES and owners.of(multiply.location) not in ((), own):
                yield multiply, op


def _adds_up(op: BodyOp, around: BodyOp) -> bool:
    """Whether an addition adds to what its region hands from one turn to the next: arguments behind all inputs."""
    first = len(around.operands) - len(around.results)
    return any(operand.argument >= first for operand in op.operands)


def _is_product(op: OpId, facts: ModelFacts) -> bool:
    word = word_of(facts.operations[op.number], facts.parts_of.get(op.number, ()))
    return word in _SUMS_OF_PRODUCTS


def _behind_conversions(producer: int, body: Sequence[BodyOp]) -> BodyOp | None:
    while producer >= 0 and is_conversion(body[producer].name):
        producer = body[producer].operands[0].producer
    return body[producer] if producer >= 0 else None


# ---- cost
#
# What a membership is estimated to cost: scalar operations and bytes of memory traffic, from the site's body ops.
#
# Operations: a structured op runs its region once per iteration, and each arithmetic op of the region counts for the
# model op that it came from. Bytes: what a dispatch loads counts for the ops that use it, what it stores for the op
# that made it; values that stay inside the dispatch cost no traffic. Both add up over the members of a site.


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
"""Frontends' names for what MLIR's math and arith dialects call otherwise."""

OwnersOf = Callable[[BodyOp], tuple[str, ...]]
"""The model ops that a body op came from; never empty."""

LOAD = "iree_tensor_ext.dispatch.tensor.load"
STORE = "iree_tensor_ext.dispatch.tensor.store"

_FREE = frozenset(
    """
    arith.constant arith.index_cast cf.assert iree_linalg_ext.yield linalg.index linalg.yield
    scf.condition scf.for scf.if scf.while scf.yield
    """.split()
)
_REPEATING = ("linalg.", "iree_linalg_ext.", "scf.for", "scf.while")
"""Ops whose regions run more than once."""

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
"""Scalar operations of ops that are expanded into more than one instruction (the order of the polynomial that
MLIR's math-to-polynomial patterns use, or the latency of a division over an addition's). All others count 1."""

_OPERATIONS_PER_ELEMENT = {
    "linalg.softmax": 2 + _OPERATIONS_OF["math.exp"] + 1 + 4,  # maximum and difference, exponential, sum, division
    "iree_linalg_ext.topk": 4,
    "iree_linalg_ext.sort": 16,
    "iree_linalg_ext.fft": 10,
    GATHER: 0,
    "iree_linalg_ext.im2col": 0,
    "linalg.pack": 0,
    "linalg.unpack": 0,
    # A tile of eight by eight is multiplied by constants from both sides, of which the sizes are IREE's.
    "iree_linalg_ext.winograd.filter_transform": 8,
    "iree_linalg_ext.winograd.input_transform": 32,
    "iree_linalg_ext.winograd.output_transform": 21,
}
"""Of ops whose regions, if they have one, do not tell how much they do; nothing of those that only move elements."""
_WHOLE = frozenset({*_OPERATIONS_PER_ELEMENT, ATTENTION})


def operations_of_source(name: str) -> int:
    """Scalar operations per element of a frontend's op: `stablehlo.exponential`, `torch.aten.tanh`, `onnx.Exp`."""
    short = name.rsplit(".", 1)[-1].lower()
    return _OPERATIONS_OF.get(_SOURCE_NAMES.get(short, f"math.{short}"), 1)


class CostModel:
    """Adds up the estimates of one site.

    `owners` says which model ops a body op came from; `folded` are the indices of conversions that other ops do
    themselves while they read: what is brought in is read by those, as narrow as it is.
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
        self.bytes: dict[str, Integer] = {}
        self._add_up()

    @property
    def are_open(self) -> bool:
        """Whether an amount is unknown, as a size is."""
        return UNKNOWN in self.operations.values() or UNKNOWN in self.bytes.values()

    def _add_up(self) -> None:
        for op in self._body:
            if op.name == LOAD:
                self._charge_load(op)
            elif op.name == STORE:
                self._charge_store(op)
            elif op.name not in _FREE:
                self._charge_operations(op)

    def _charge_operations(self, op: BodyOp) -> None:
        outer = self._body[op.parent] if op.parent >= 0 else None
        if outer is None:
            is_bare = op.index not in self._children
            if op.name == ATTENTION:
                self._charge(self.operations, self._owners(op), _attention_operations(op))
            elif op.name in _WHOLE or (is_bare and op.name.startswith(_COUNTED_BARE)):
                self._charge(self.operations, self._owners(op), _whole_operations(op))
        elif outer.name not in _WHOLE:
            # Positions are divided by constants, which takes shifts and multiplications, mostly once for a vector.
            each = 1 if op.computes_index else _OPERATIONS_OF.get(op.name, 1)
            amount = product((self._runs(op), each))
            self._charge(self.operations, self._workers(op), amount)

    def _runs(self, op: BodyOp) -> Integer:
        """How often an op of a region runs, by all that stands around it."""
        factors: list[Integer] = []
        while op.parent >= 0:
            around = self._body[op.parent]
            if around.name.startswith(_REPEATING):
                factors.append(self._hoisting.turns(op))
            op = around
        return product(tuple(factors))

    def _workers(self, op: BodyOp) -> tuple[str, ...]:
        """The model ops that an op of a region works for: of a position, whoever needs it."""
        known = self._workers_of.get(op.index)
        if known is None:
            users = [user for user, _ in self._users.get(op.index, ())] if op.computes_index else []
            found = tuple(dict.fromkeys(worker for user in users for worker in self._workers(user)))
            known = self._workers_of[op.index] = found or self._owners(op)
        return known

    def _charge_load(self, load: BodyOp) -> None:
        # Whoever computes with the data pays for bringing it in; a load that nobody computes with pays itself.
        consumers = self._consumers(load, 0)
        owners = [owner for op in consumers for owner in self._workers(op)] or list(self._owners(load))
        self._charge(self.bytes, tuple(dict.fromkeys(owners)), self._bytes_read(load))

    def _bytes_read(self, load: BodyOp) -> Integer:
        """What a load brings in: of a table no more than is taken from it, element by element."""
        shape, whole = load.results[0], load.results[0].bytes
        users = self._users.get(load.index, ())
        taken: Integer = 0
        for user, number in users:
            if user.name == _EXTRACT:
                taken = add(taken, Shape((self._runs(user),), shape.element_bits).bytes)
            elif (user.name, number) in ((GATHER, 0), (SCATTER, len(user.operands) - 1)):
                taken = add(taken, Shape((user.iterations,), shape.element_bits).bytes)
            else:
                return whole
        return _least(whole, taken) if users else whole

    def _charge_store(self, store: BodyOp) -> None:
        value = store.operands[0]
        maker, written = self._maker(store, value.producer, value.result), value.shape.bytes
        if maker.name == SCATTER:  # in place: all else stays as it was
            written = _least(written, Shape((maker.iterations,), value.shape.element_bits).bytes)
        self._charge(self.bytes, self._owners(maker), written)

    def _consumers(self, op: BodyOp, depth: int) -> list[BodyOp]:
        """The body ops that compute with an op's result: inside of structured ops, those that use the argument."""
        found: list[BodyOp] = []
        for user, number in self._users.get(op.index, ()):
            inside = [
                user if child.index in self._folded else child
                for child in self._children.get(user.index, ())
                if (child.name not in _FREE or child.computes_index)
                and any(operand.argument == number for operand in child.operands)
            ]
            if user.name in PASS_THROUGH and depth < len(self._body):
                found += self._consumers(user, depth + 1)
            elif user.name != STORE:
                found += inside or [user]
        return found

    def _maker(self, store: BodyOp, producer: int, result: int) -> BodyOp:
        """The body op that made a stored value: inside of structured ops, the one whose value is yielded."""
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
            account[owner] = add(account.get(owner, 0), share)


_COUNTED_BARE = ("linalg.", "iree_linalg_ext.", "math.", "arith.")
"""Dialects of which what stands in a body without a region does work on elements."""


def _least(one: Integer, other: Integer) -> Integer:
    """The smaller of two, of which one may be unknown."""
    return min((each for each in (one, other) if each is not UNKNOWN), default=UNKNOWN)


def _whole_operations(op: BodyOp) -> Integer:
    """Operations of an op that is counted as a whole: per element of its result, or of its largest operand."""
    return product((op.iterations, _OPERATIONS_PER_ELEMENT.get(op.name, _OPERATIONS_OF.get(op.name, 1))))


def _attention_operations(op: BodyOp) -> Integer:
    """Two matrix products, whose multiplications and additions count, and a softmax of the scores between them.

    Each score is a sum over the elements of a query, and is multiplied with the elements of a value.
    """
    width = add(_last_extent(op.operands[0].shape), _last_extent(op.results[0]) if op.results else UNKNOWN)
    if op.iterations is UNKNOWN or width is UNKNOWN or not width:
        return op.iterations
    return 2 * op.iterations + op.iterations // width * _OPERATIONS_PER_ELEMENT["linalg.softmax"]


def _last_extent(shape: Shape) -> Integer:
    return shape.extents[-1] if shape.extents else UNKNOWN
