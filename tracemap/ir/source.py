"""The model as written, as records: operations, values, and signatures of equal computations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tracemap.ir.attributes import shape_of
from tracemap.ir.parsing import MlirParser, Operation, Value, walk
from tracemap.locations import UNKNOWN_LOCATION, Location
from tracemap.units import UNKNOWN, Integer, Text

# ---- signatures
#
# What an operation computes from its operands, as a number: equal for operations that compute the same.


_PRODUCT, _PLAIN_PRODUCT = "stablehlo.dot_general", "stablehlo.dot"
_DIMENSIONS = "dot_dimension_numbers"
_PLAIN_NAMES = {"torch.aten.mm": "torch.aten.matmul"}
"""Ops that are a special case of another one, which computes the same from the same operands."""


class Signatures:
    """Numbers the operations of one model, in pre-order.

    `index_of`: the operations met so far, each with its place in pre-order; whoever walks the model lets it grow.
    """

    def __init__(self, parser: MlirParser, index_of: Mapping[Operation, int]) -> None:
        self._parser = parser
        self._index_of = index_of
        self._number_of: dict[Hashable, int] = {}

    def of(self, operation: Operation, name: str, results: tuple[str, ...]) -> int:
        """The number of an operation by its name, attributes, types of results, and what stands in its regions."""
        written = _PLAIN_NAMES.get(name, name)
        attributes = self._attributes(operation)
        if name == _PRODUCT and _is_plain(operation):
            written, attributes = _PLAIN_PRODUCT, self._attributes(operation, without=_DIMENSIONS)
        content = (written, attributes, results, self._regions(operation))
        return self._number_of.setdefault(content, len(self._number_of))

    def _attributes(self, operation: Operation, without: str = "") -> Hashable:
        attributes = operation.attributes
        try:
            return tuple([(name, attributes[name]) for name in attributes if name != without])
        except TypeError:  # the bindings cannot hand out attributes that are locations: like no other
            return len(self._index_of)

    def _regions(self, operation: Operation) -> Hashable:
        """What stands in an operation's regions: names, attributes, types, and where values come from within it."""
        if not len(operation.regions):
            return ()
        # Values defined inside go by their number there, so that equal regions at two places are equal.
        _, *inside = walk(operation)
        number_of = {each: number for number, each in enumerate(inside)}

        def defined(value: Value) -> Hashable:
            if hasattr(value, "arg_number"):
                return ("argument", value.arg_number, number_of.get(value.owner.owner.operation, -1))
            owner = value.owner.operation
            if owner in number_of:
                return (number_of[owner], value.result_number)
            return ("outside", self._index_of.get(owner, -1), value.result_number)

        return tuple(
            (
                each.name,
                self._attributes(each),
                tuple(map(defined, each.operands)),
                tuple([self._parser.text_of(result.type) for result in each.results]),
            )
            for each in inside
        )


def _is_plain(product: Operation) -> bool:
    """Whether a product of StableHLO sums over the last dimension of one operand and the first of the other.

    Then it is the product that StableHLO has an op of its own for.
    """
    last = len(shape_of(str(product.operands[0].type)).extents) - 1
    dimensions = str(product.attributes[_DIMENSIONS])
    return dimensions == f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>"


# ---- source
#
# The model as the user wrote it, as records: its operations, which of them are ops and which parts, where they stand.
#
# An *op* is an operation that stands for itself. In the regions of ops that are no control flow stand their *parts*.
# `tracemap.ir.reading` makes these records.


CONTROL_FLOW = frozenset(
    """
    affine.for affine.if affine.parallel
    builtin.module
    flow.dispatch.region flow.dispatch.workgroups
    onnx.If onnx.Loop onnx.Scan
    scf.execute_region scf.for scf.forall scf.if scf.index_switch scf.parallel scf.while
    stablehlo.case stablehlo.if stablehlo.while
    torch.prim.If torch.prim.Loop
    tosa.cond_if tosa.while_loop
    util.initializer
    """.split()
)
"""Operations whose regions hold ops of their own right; in any other operation's region stand its parts."""

BRANCHES = frozenset({"cf.br", "cf.cond_br", "cf.switch"})
"""Operations that go on in another block of their region."""

FUNCTIONS = frozenset({"func.func", "util.func", "ml_program.func"})

TEXT_FILE = "-"
"""The file name in locations that the parser makes for text that it is handed without a name."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a value is defined: as result `number` of the operation `maker`, or as argument `number` of its region.

    Arguments of functions are arguments of the function operation. Those of the blocks that branches lead to are
    counted on from those of the blocks before.
    """

    maker: int
    number: int
    argument: bool


@dataclass(frozen=True, slots=True)
class SourceOperation:
    """One operation of the parsed module, op or part.

    `index`: its pre-order place over all operations; `owner`: the index of the op whose part it is (its own index for
    ops); `parent`: the index of the operation in whose region it stands, -1 for the module; `function`: the symbol of
    the enclosing function; `parsed_location`: as the parser gave it; `made_up`: it
    is no word of the model, only the parser's own place in its text; `line`, `column`: of its name in the text;
    `operands`: where each is defined; `results`: the printed types of its results;
    `symbol`: the name it defines, or the one it refers to: the callee of a call, the global of a load;
    `signature`: equal for operations that compute the same from equal operands; `block`: the number of the block that
    it stands in, unique in the model; `constant`: the whole number that a constant consists of; `splat`: the
    number that all elements of a constant tensor are, with its type, as MLIR prints it; `direction`: how it compares
    (EQ, NE, LT, LE, GT, GE); `cases`: of a switch the numbers that its arms are for, behind the first one, which is for
    all others; `successors`: of a branch between blocks the places of those that it leads to, among the blocks of their
    region.
    """

    index: int
    owner: int
    parent: int
    name: str
    function: Text
    parsed_location: Location
    made_up: bool
    line: Integer
    column: Integer
    operands: tuple[Definition, ...]
    results: tuple[str, ...]
    symbol: str
    signature: int
    block: int
    constant: Integer = UNKNOWN
    splat: str = ""
    direction: str = ""
    cases: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()

    @property
    def is_op(self) -> bool:
        """Whether it is an op, not a part."""
        return self.owner == self.index

    @property
    def location(self) -> Location:
        """What the model says of where it comes from; unknown where the parser made it up, for want of one."""
        return UNKNOWN_LOCATION if self.made_up else self.parsed_location


@dataclass(frozen=True, slots=True)
class SourceArgument:
    """An argument of a function: whether its value decides how often a loop runs."""

    type: str
    loop_bound: bool


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The model: its name, text, operations in pre-order, and its functions' arguments by symbol.

    `private`: the functions that only the module itself can call; `fixed`: the globals that always have the value that
    is written with them; `positions_known`: whether lines and columns are those of the operations' names in the text.
    """

    name: str
    text: str
    operations: tuple[SourceOperation, ...]
    arguments: Mapping[str, tuple[SourceArgument, ...]]
    private: frozenset[str]
    fixed: frozenset[str]
    positions_known: bool

    def type_of(self, value: Definition) -> str:
        """The type of a value as it is printed; "" for an argument of a region, or of a block that branches lead to."""
        maker = self.operations[value.maker]
        if not value.argument:
            return maker.results[value.number]
        arguments = self.arguments.get(maker.symbol, ()) if maker.name in FUNCTIONS else ()
        return arguments[value.number].type if value.number < len(arguments) else ""
