"""Bodies of dispatches: operations, what feeds them, how often they run, and those that the compiler raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tracemap.core.locations import Location
from tracemap.core.units import UNKNOWN, Integer, sum_of
from tracemap.ir.attributes import Shape, product, shape_of
from tracemap.ir.host_program import constant, walk_hosts
from tracemap.ir.parsing import (
    Attribute,
    MlirParser,
    Module,
    Operation,
    Region,
    Value,
    get_indexing_maps,
    ir,
    is_scalar_like,
    producer_of,
    unwrapped_name,
    walk,
)

# ---- raising
#
# Operations that the compiler combined into a single one (raising), such as softmax.
#
# A raised operation (IREE, GlobalOptimization/RaiseSpecialOps.cpp) replaces an idiom, and has only the location of the
# idiom's last operation. The locations of the other operations are found in the previous phase, on the path between
# the idiom's input and its result.

RAISED_OPS = frozenset({"linalg.softmax"})
"""Raised operations; their first operand is the input of the idiom."""

_DESTINATIONS = frozenset({"tensor.empty", "linalg.fill"})
"""Initial values of outputs. The compiler shares them between users of the same shape, so their place is arbitrary."""
_CONSTANT = "arith.constant"
_MAX_IDIOM_OPS = 32
"""Maximum of operations in an idiom."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The location of a raised operation, and the locations of the operations that it replaces."""

    location: Location
    made_of: tuple[Location, ...]


def read_raised(parser: MlirParser, before: Module, after: Module) -> tuple[Raised, ...]:
    """The raised operations and the locations that they replace, as far as the phase before raising shows them.

    Raised operations that share a location are left out, because the operations of their idioms cannot be assigned.
    """
    # Keyed by identity, since the parser returns one object per distinct location.
    raised_at: dict[int, list[Operation]] = {}
    for _, operation in walk_hosts(after):
        if operation.name in RAISED_OPS:
            raised_at.setdefault(id(parser.location(operation)), []).append(operation)
    ends_at: dict[int, list[Operation]] = {key: [] for key, raised in raised_at.items() if len(raised) == 1}
    for _, operation in walk_hosts(before) if ends_at else ():
        ends = ends_at.get(id(parser.location(operation)))
        if ends is not None and _computes_tensors(operation):
            ends.append(operation)
    return tuple(_raised(parser, raised_at[key][0], ends) for key, ends in ends_at.items())


def _computes_tensors(operation: Operation) -> bool:
    name = operation.name
    return name not in _DESTINATIONS and name != _CONSTANT and any(map(_is_tensor, operation.results))


def _raised(parser: MlirParser, operation: Operation, ends: list[Operation]) -> Raised:
    idiom = _operations_between(parser, _producer_location(parser, operation.operands[0]), ends)
    return Raised(parser.location(operation), tuple(dict.fromkeys(map(parser.location, idiom))))


def _operations_between(parser: MlirParser, start: Location | None, ends: list[Operation]) -> list[Operation]:
    """The operations on all paths from a single value to `ends`; empty if they depend on other values, too.

    `start`: location of the value's producer; None for an argument.
    """
    worklist = list(ends)
    starts: set[Value] = set()
    for operation in worklist:  # grows during the loop
        makers = [(value, producer_of(value)) for value in _outer_tensors(operation)]
        inputs = [pair for pair in makers if pair[1] is None or pair[1].name not in _DESTINATIONS]
        for value, producer in inputs:
            if producer is None or parser.location(producer) is start:
                starts.add(value)
            elif producer.name != _CONSTANT and producer not in worklist:
                worklist.append(producer)
        if not inputs or len(worklist) > _MAX_IDIOM_OPS:
            return []  # an operation without inputs is a further value that the idiom depends on
    return worklist if [_producer_location(parser, value) for value in starts] == [start] else []


def _outer_tensors(operation: Operation) -> Iterator[Value]:
    """The tensors from outside an operation that it and its nested operations read."""
    operations = list(walk(operation))
    inside = set(operations)
    for inner in operations:
        for value in inner.operands:
            # A block argument is defined by the operation around its region.
            if _is_tensor(value) and (producer_of(value) or value.owner.owner.operation) not in inside:
                yield value


def _is_tensor(value: Value) -> bool:
    return str(value.type).startswith("tensor<")


def _producer_location(parser: MlirParser, value: Value) -> Location | None:
    producer = producer_of(value)
    return None if producer is None else parser.location(producer)


# ---- positions
#
# Index computations, and the operations that use them.
#
# If the compiler collapses several dimensions into a loop, or reads backwards, the kernel computes indices before it
# reads. These operations have the location of the whole region. Their cost belongs to the operation that uses the
# index.

_INDEX = "index"
_STRUCTURED = ("linalg.", "iree_linalg_ext.")
_MAX_INDEX_OPS = 64
"""Maximum of index operations to follow."""


def computes_index(parser: MlirParser, operation: Operation) -> bool:
    """Whether an operation has results and all of them are indices."""
    results = operation.results
    return len(results) > 0 and all(parser.text_of(result.type) == _INDEX for result in results)


def users_of_index(parser: MlirParser, operation: Operation) -> tuple[Operation, ...]:
    """The operations that use an index computation, directly or through others; other operations return themselves.

    Applies only in the regions of structured operations. Elsewhere indices belong to tiles, loops and sizes.
    """
    if not computes_index(parser, operation) or not operation.parent.name.startswith(_STRUCTURED):
        return (operation,)
    worklist = [operation]
    users: dict[Operation, None] = {}
    for index_op in worklist:  # grows during the loop
        for result in index_op.results:
            for use in result.uses:
                user = use.owner.operation
                if not computes_index(parser, user):
                    users[user] = None
                elif user not in worklist and len(worklist) < _MAX_INDEX_OPS:
                    worklist.append(user)
    return tuple(users) or (operation,)


# ---- loop bounds
#
# Arguments that decide the trip count of a loop, found by following their uses to bounds and conditions.

_BOUNDS_OF = {"scf.for": slice(0, 3), "scf.parallel": slice(0, None), "scf.forall": slice(0, None)}
"""Operands of counted loops that are bounds or steps."""
_CONDITIONS = frozenset({"scf.condition", "torch.prim.Loop.condition"})
_COUNTED_FIRST = frozenset({"onnx.Loop", "torch.prim.Loop"})
"""Loops whose first operand is the maximum trip count."""


def bounds_loop(value: Value) -> bool:
    """Whether a value is a single number that flows into the bounds or the condition of a loop."""
    seen: set[object] = set()  # values may flow in cycles through a loop
    worklist = [value] if is_scalar_like(value) else []  # iterative, since chains may be as long as the program
    while worklist:
        current = worklist.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            decides, follow = _use_of_number(use.owner.operation, use.operand_number)
            if decides:
                return True
            worklist += follow
    return False


def _use_of_number(user: Operation, number: int) -> tuple[bool, list[Value]]:
    """Whether this operand of `user` decides a loop's trip count, and the values that it flows into."""
    if user.name in _BOUNDS_OF:
        return number in range(len(user.operands))[_BOUNDS_OF[user.name]], []
    if user.name in ("scf.while", "stablehlo.while"):
        return False, [user.regions[0].blocks[0].arguments[number]]
    if user.name in _CONDITIONS or unwrapped_name(user, user.name) in _COUNTED_FIRST:
        return number == 0, []
    if user.name == "torch.operator_terminator":
        return number == 0 and unwrapped_name(user.parent.operation, user.parent.operation.name) == "onnx.Loop", []
    if user.name == "stablehlo.return" and user.parent.operation.name == "stablehlo.while":
        return bool(user.block == user.parent.operation.regions[0].blocks[0]), []
    return False, [result for result in user.results if is_scalar_like(result)]


# ---- bodies


@dataclass(frozen=True, slots=True)
class BodyOperand:
    """An operand: either the index of its producer and the number of the result, or the number of the block argument.

    Numbers that do not apply are -1.
    """

    producer: int
    result: int
    argument: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class BodyOp:
    """An operation in a dispatch body, possibly nested in a region of another one.

    Attributes:
        index: pre-order index in the body.
        parent: index of the enclosing operation; -1 at the top level of the body.
        iterations: executions of the region per execution of the operation, for structured (linalg) ops and loops; for
            attention, the number of multiply-adds; for other operations, the number of elements of their results.
        computes_index: all its results are indices.
        loops: loop extents of a structured op, outermost first; otherwise empty.
        positions: per operand and dimension, the loop that indexes it; -1 for a computed index.
    """

    index: int
    parent: int
    name: str
    location: Location
    operands: tuple[BodyOperand, ...]
    results: tuple[Shape, ...]
    iterations: Integer
    computes_index: bool
    loops: tuple[Integer, ...]
    positions: tuple[tuple[int, ...], ...]


def read_body(
    parser: MlirParser, dispatch: Operation, shape: Callable[[Value], Shape] | None = None
) -> tuple[BodyOp, ...]:
    """The operations in the first region of a `flow.dispatch.workgroups`, in pre-order.

    The second region computes the workgroup count on the host, so it is no work of the dispatch. `shape` returns the
    shapes of values; if None, they come from the types.
    """
    reader = _BodyReader(parser, shape)
    if len(dispatch.regions):
        reader.read_region(dispatch.regions[0], -1)
    return tuple(reader.operations)


def has_unknown_sizes(body: Sequence[BodyOp]) -> bool:
    """Whether a shape in a body has an unknown extent."""
    shapes = (shape for op in body for shape in (*op.results, *(operand.shape for operand in op.operands)))
    return any(UNKNOWN in shape.extents for shape in shapes)


class _BodyReader:
    def __init__(self, parser: MlirParser, shape: Callable[[Value], Shape] | None) -> None:
        self._parser = parser
        self._has_own_shapes = shape is not None
        self._shape = shape or self._shape_of_type
        self._index_of: dict[Operation, int] = {}
        self.operations: list[BodyOp] = []

    def read_region(self, region: Region, parent: int) -> None:
        for block in region.blocks:
            for child in block.operations:
                self._read(child.operation, parent)

    def _read(self, operation: Operation, parent: int) -> None:
        index = len(self.operations)
        self._index_of[operation] = index
        operands = tuple([self._operand(operand) for operand in operation.operands])
        results = tuple(map(self._shape, operation.results))
        name = operation.name
        loops, positions = _loops(self._parser, operation, name, self._operand_shapes(operation, operands))
        self.operations.append(
            BodyOp(
                index=index,
                parent=parent,
                name=name,
                location=self._parser.location(operation),
                operands=operands,
                results=results,
                iterations=product(loops)
                if positions
                else _iterations(self._parser, operation, name, operands, results),
                computes_index=computes_index(self._parser, operation),
                loops=loops,
                positions=positions,
            )
        )
        for region in operation.regions:
            self.read_region(region, index)

    def _shape_of_type(self, value: Value) -> Shape:
        return shape_of(self._parser.text_of(value.type))

    def _operand_shapes(self, operation: Operation, operands: Sequence[BodyOperand]) -> list[Sequence[Shape]]:
        """The shapes of all operands, by precedence for loop extents: from the types first, then from `shape`."""
        shapes = [operand.shape for operand in operands]
        return [[*map(self._shape_of_type, operation.operands)], shapes] if self._has_own_shapes else [shapes]

    def _operand(self, operand: Value) -> BodyOperand:
        shape = self._shape(operand)
        if hasattr(operand, "arg_number"):  # a block argument; its owner is a block
            return BodyOperand(-1, -1, operand.arg_number, shape)
        return BodyOperand(self._index_of.get(operand.owner.operation, -1), operand.result_number, -1, shape)


ATTENTION, SCATTER = "iree_linalg_ext.attention", "iree_linalg_ext.scatter"
GATHER = "iree_linalg_ext.gather"


def _products_of_attention(parser: MlirParser, attention: Operation, shapes: list[Shape]) -> Integer:
    """Number of multiply-adds of an attention: of queries with keys, and of scores with values.

    Its indexing maps decide which dimensions its operands (query, key, value …) and its result share.
    """
    maps = _positions_of_maps(parser, attention.attributes["indexing_maps"])[1]
    extents: dict[int, Integer] = {}
    for dimensions, shape in zip(maps, shapes, strict=False):
        extents |= dict(zip(dimensions, shape.extents, strict=False))
    query, key, result = set(maps[0]), set(maps[1]), set(maps[-1])

    def volume(dimensions: set[int]) -> Integer:
        return product(tuple(extents.get(dimension, UNKNOWN) for dimension in dimensions))

    scores = volume((query & result) | (key - query))
    return product((scores, sum_of((volume(query - result), volume(result - query)))))


_COUNTED_LOOP = "scf.for"
_LOOPS = frozenset({_COUNTED_LOOP, "scf.while"})


def _trips(loop: Operation) -> Integer:
    """Trip count of a loop with constant bounds; otherwise unknown."""
    low, high, step = map(constant, list(loop.operands)[:3])
    if low is UNKNOWN or high is UNKNOWN or step is UNKNOWN or step < 1:
        return UNKNOWN
    return max(0, -((low - high) // step))


def _iterations(
    parser: MlirParser, operation: Operation, name: str, operands: tuple[BodyOperand, ...], results: tuple[Shape, ...]
) -> Integer:
    if name == ATTENTION:
        return _products_of_attention(parser, operation, [operand.shape for operand in operands])
    if name in _LOOPS:
        return _trips(operation) if name == _COUNTED_LOOP else UNKNOWN
    if name == SCATTER:
        return operands[0].shape.elements  # the updates; the target may be far larger
    if name == GATHER:
        return operands[-1].shape.elements  # the output; the source may be far larger
    shapes = [*results, *(operand.shape for operand in operands)] if name.startswith("iree_linalg_ext.") else results
    sizes = [shape.elements for shape in shapes]
    known = [size for size in sizes if size is not UNKNOWN]
    if len(known) < len(sizes):
        return UNKNOWN
    return max(known, default=1)


# Operations share affine maps; the positions of a map are computed once and cached by its text.
NO_DIMENSION = -1


def _loops(
    parser: MlirParser, operation: Operation, name: str, operand_shapes: Sequence[Sequence[Shape]]
) -> tuple[tuple[Integer, ...], tuple[tuple[int, ...], ...]]:
    """The loop extents of a linalg op, from indexing maps and operand shapes, and its maps; empty for other ops.

    `operand_shapes`: alternative shapes of all operands; the first known extent of a loop counts.
    """
    attribute = get_indexing_maps(operation) if name.startswith("linalg.") else None
    if attribute is None:
        return (), ()
    count, maps = _positions_of_maps(parser, attribute)
    extents: dict[int, Integer] = {}
    pairs = (pair for shapes in operand_shapes for pair in zip(maps, shapes, strict=False))
    for dimensions, shape in pairs:
        for dimension, extent in zip(dimensions, shape.extents, strict=False):
            # If the extent is dynamic in one operand, it may be static in another.
            if dimension != NO_DIMENSION and extents.get(dimension, UNKNOWN) is UNKNOWN:
                extents[dimension] = extent
    return tuple(extents.get(dimension, UNKNOWN) for dimension in range(count)), maps


_MAPS: dict[str, tuple[int, tuple[tuple[int, ...], ...]]] = {}


def _positions_of_maps(parser: MlirParser, attribute: Attribute) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The number of loops, and per operand and dimension the loop that indexes it (-1: a computed index)."""
    text = parser.text_of(attribute)
    if text not in _MAPS:
        maps = [element.value for element in attribute]
        positions = tuple(tuple(_dimension(expression) for expression in map_.results) for map_ in maps)
        _MAPS[text] = (maps[0].n_dims if maps else 0, positions)
    return _MAPS[text]


def _dimension(expression: ir.AffineExpr) -> int:
    return int(expression.position) if isinstance(expression, ir.AffineDimExpr) else NO_DIMENSION
