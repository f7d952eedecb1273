"""What a membership is estimated to cost: scalar operations and bytes of memory traffic, from the site's body ops.

Operations: a structured op runs its region once per iteration, and each arithmetic op of the region counts for the
model op that it came from. Bytes: what a dispatch loads counts for the ops that use it, what it stores for the op that
made it; values that stay inside the dispatch cost no traffic. Both add up over the members of a site.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tracemap.ir.bodies import ATTENTION, GATHER, SCATTER, BodyOp
from tracemap.ir.types import Shape, add, product
from tracemap.mapping.sites.hoisting import PASS_THROUGH, Hoisting
from tracemap.units import UNKNOWN, Integer, split_by_largest_remainder

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

Owners = Callable[[BodyOp], tuple[str, ...]]
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

    def __init__(self, body: Sequence[BodyOp], owners: Owners, folded: Container[int] = ()) -> None:
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
