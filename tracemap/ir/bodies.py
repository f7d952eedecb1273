"""Bodies of dispatches: operations, what feeds them, and how often they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracemap.ir.attributes import Shape, add, constant_of, product, shape_of
from tracemap.ir.parsing import (
    Attribute,
    MlirParser,
    Operation,
    Region,
    Value,
    get_indexing_maps,
    ir,
    is_scalar_like,
    own_name,
)
from tracemap.locations import Location
from tracemap.units import UNKNOWN, Integer

# ---- positions
#
# Work on positions: the operations that say which element is meant, and those that they say it for.
#
# Where the compiler makes one loop of several dimensions, or reads backwards, a kernel's region divides and counts
# before it reads. Such operations carry the location of whatever the region was made for; what they cost is of the
# operation that needs the position.


_INDEX = "index"
_STRUCTURED = ("linalg.", "iree_linalg_ext.")
_MOST_USES = 64
"""How many operations behind a position are looked at."""


def computes_index(parser: MlirParser, operation: Operation) -> bool:
    """Whether all results of an operation are indices, and it has any."""
    results = operation.results
    return len(results) > 0 and all(parser.text_of(result.type) == _INDEX for result in results)


def served(parser: MlirParser, operation: Operation) -> tuple[Operation, ...]:
    """The operations that a position is worked out for, behind further work on positions; else the operation itself.

    Only in the regions of structured operations: elsewhere positions are of tiles, loops and sizes.
    """
    if not computes_index(parser, operation) or not operation.parent.name.startswith(_STRUCTURED):
        return (operation,)
    working = [operation]
    found: dict[Operation, None] = {}
    for position in working:  # which grows meanwhile
        for result in position.results:
            for use in result.uses:
                user = use.owner.operation
                if not computes_index(parser, user):
                    found[user] = None
                elif user not in working and len(working) < _MOST_USES:
                    working.append(user)
    return tuple(found) or (operation,)


# ---- looping
#
# Which arguments decide how often a loop runs: followed from the value to bounds and conditions.


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


# ---- bodies
#
# What stands in the body of a dispatch: its operations, what feeds them, and how often each runs.


@dataclass(frozen=True, slots=True)
class BodyOperand:
    """An operand: the body operation that made it and as which result, or the number of the block argument it is.

    What does not apply is -1.
    """

    producer: int
    result: int
    argument: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class BodyOp:
    """An operation in a dispatch body, ops nested in regions included, in pre-order.

    `index`: its own, in pre-order; `parent`: the index of the operation whose region it is in (-1: the body itself);
    `iterations`: of a structured (linalg) op or a loop, how often its region runs when it runs once; of an attention
    the products that it adds up; of others the elements of their results;
    `computes_index`: all its results are indices;
    `loops`: of a structured op the extents of its loops, the outermost first, nothing of others; `positions`: of each
    of its operands the loop that each dimension runs over (-1: a computed one).
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

    The second region computes the workgroup count on the host and is no work of the dispatch. `shape` tells the shapes
    of values; None: their types do.
    """
    reader = _BodyReader(parser, shape)
    if len(dispatch.regions):
        reader.read_region(dispatch.regions[0], -1)
    return tuple(reader.found)


def has_open_sizes(body: Sequence[BodyOp]) -> bool:
    """Whether a size of anything in a body is not known before."""
    shapes = (shape for op in body for shape in (*op.results, *(operand.shape for operand in op.operands)))
    return any(UNKNOWN in shape.extents for shape in shapes)


class _BodyReader:
    def __init__(self, parser: MlirParser, shape: Callable[[Value], Shape] | None) -> None:
        self._parser = parser
        self._told = shape is not None
        self._shape = shape or self._typed
        self._index_of: dict[Operation, int] = {}
        self.found: list[BodyOp] = []

    def read_region(self, region: Region, parent: int) -> None:
        for block in region.blocks:
            for child in block.operations:
                self._read(child.operation, parent)

    def _read(self, operation: Operation, parent: int) -> None:
        index = len(self.found)
        self._index_of[operation] = index
        operands = tuple([self._operand(operand) for operand in operation.operands])
        results = tuple(map(self._shape, operation.results))
        name = operation.name
        loops, positions = _loops(self._parser, operation, name, self._telling(operation, operands))
        self.found.append(
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

    def _typed(self, value: Value) -> Shape:
        return shape_of(self._parser.text_of(value.type))

    def _telling(self, operation: Operation, operands: Sequence[BodyOperand]) -> list[Sequence[Shape]]:
        """The shapes of operands that tell how long loops are, what types say before what was told beside them."""
        shapes = [operand.shape for operand in operands]
        return [[*map(self._typed, operation.operands)], shapes] if self._told else [shapes]

    def _operand(self, operand: Value) -> BodyOperand:
        shape = self._shape(operand)
        if hasattr(operand, "arg_number"):  # an argument, whose owner is a block
            return BodyOperand(-1, -1, operand.arg_number, shape)
        return BodyOperand(self._index_of.get(operand.owner.operation, -1), operand.result_number, -1, shape)


ATTENTION, SCATTER = "iree_linalg_ext.attention", "iree_linalg_ext.scatter"
GATHER = "iree_linalg_ext.gather"


def _products_of_attention(parser: MlirParser, attention: Operation, shapes: list[Shape]) -> Integer:
    """How many products of two numbers an attention adds up: of queries with keys, and of what these give with values.

    Its maps tell which dimensions its operands (query, key, value …) and its result share, in whatever order they lie.
    """
    maps = _positions_of_maps(parser, attention.attributes["indexing_maps"])[1]
    extents: dict[int, Integer] = {}
    for dimensions, shape in zip(maps, shapes, strict=False):
        extents |= dict(zip(dimensions, shape.extents, strict=False))
    query, key, result = set(maps[0]), set(maps[1]), set(maps[-1])

    def volume(dimensions: set[int]) -> Integer:
        return product(tuple(extents.get(dimension, UNKNOWN) for dimension in dimensions))

    scores = volume((query & result) | (key - query))
    return product((scores, add(volume(query - result), volume(result - query))))


_COUNTED_LOOP = "scf.for"
_LOOPS = frozenset({_COUNTED_LOOP, "scf.while"})


def _trips(loop: Operation) -> Integer:
    """How often the body of a loop runs whose bounds are constants."""
    low, high, step = map(_constant, list(loop.operands)[:3])
    if low is UNKNOWN or high is UNKNOWN or step is UNKNOWN or step < 1:
        return UNKNOWN
    return max(0, -((low - high) // step))


def _constant(value: Value) -> Integer:
    """The number that a constant is."""
    if hasattr(value, "arg_number") or value.owner.operation.name != "arith.constant":
        return UNKNOWN
    return constant_of(value.owner.operation)


def _iterations(
    parser: MlirParser, operation: Operation, name: str, operands: tuple[BodyOperand, ...], results: tuple[Shape, ...]
) -> Integer:
    if name == ATTENTION:
        return _products_of_attention(parser, operation, [operand.shape for operand in operands])
    if name in _LOOPS:
        return _trips(operation) if name == _COUNTED_LOOP else UNKNOWN
    if name == SCATTER:
        return operands[0].shape.elements  # the updates; what they go into may be far larger
    if name == GATHER:
        return operands[-1].shape.elements  # what is taken; what it is taken from may be far larger
    shapes = [*results, *(operand.shape for operand in operands)] if name.startswith("iree_linalg_ext.") else results
    sizes = [shape.elements for shape in shapes]
    known = [size for size in sizes if size is not UNKNOWN]
    if len(known) < len(sizes):
        return UNKNOWN
    return max(known, default=1)


# Affine maps of the compiler are shared between operations; the positions of each are worked out once per context.
NO_DIMENSION = -1


def _loops(
    parser: MlirParser, operation: Operation, name: str, told: Sequence[Sequence[Shape]]
) -> tuple[tuple[Integer, ...], tuple[tuple[int, ...], ...]]:
    """The extents of a linalg op's loops, from its indexing maps and operand shapes, and the maps; nothing without.

    `told`: the shapes of all operands, once or more often; the first that knows an extent tells it.
    """
    maps = _indexing_maps(parser, operation) if name.startswith("linalg.") else None
    if maps is None:
        return (), ()
    extents: dict[int, Integer] = {}
    pairs = (pair for shapes in told for pair in zip(maps[1], shapes, strict=False))
    for dimensions, shape in pairs:
        for dimension, extent in zip(dimensions, shape.extents, strict=False):
            # A loop that one operand leaves open may be given by another's static shape.
            if dimension != NO_DIMENSION and extents.get(dimension, UNKNOWN) is UNKNOWN:
                extents[dimension] = extent
    return tuple(extents.get(dimension, UNKNOWN) for dimension in range(maps[0])), maps[1]


_MAPS: dict[str, tuple[int, tuple[tuple[int, ...], ...]]] = {}


def _indexing_maps(parser: MlirParser, operation: Operation) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """The number of loops, and for each operand the loop that each of its dimensions runs over (-1: a computed one)."""
    attribute = get_indexing_maps(operation)
    return None if attribute is None else _positions_of_maps(parser, attribute)


def _positions_of_maps(parser: MlirParser, attribute: Attribute) -> tuple[int, tuple[tuple[int, ...], ...]]:
    text = parser.text_of(attribute)
    if text not in _MAPS:
        maps = [element.value for element in attribute]
        positions = tuple(tuple(_dimension(expression) for expression in each.results) for each in maps)
        _MAPS[text] = (maps[0].n_dims if maps else 0, positions)
    return _MAPS[text]


def _dimension(expression: ir.AffineExpr) -> int:
    return int(expression.position) if isinstance(expression, ir.AffineDimExpr) else NO_DIMENSION
