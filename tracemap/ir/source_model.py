"""The model as written, as records: operations, values, and signatures that identify equal computations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tracemap.core.locations import UNKNOWN_LOCATION, Location
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.ir.attributes import shape_of
from tracemap.ir.parsing import MlirParser, Operation, Value, walk

# ---- signatures
#
# Signatures: numbers that are equal for operations that compute the same from equal operands.

_PRODUCT, _PLAIN_PRODUCT = "stablehlo.dot_general", "stablehlo.dot"
_DIMENSIONS = "dot_dimension_numbers"
_PLAIN_NAMES = {"torch.aten.mm": "torch.aten.matmul"}
"""Ops that compute the same as another, more general op on the same operands."""


class Signatures:
    """Assigns signatures to the operations of a model, in pre-order.

    `index_of`: pre-order indices of the operations visited so far; the caller adds to it while traversing the model.
    """

    def __init__(self, parser: MlirParser, index_of: Mapping[Operation, int]) -> None:
        self._parser = parser
        self._index_of = index_of
        self._number_of: dict[Hashable, int] = {}

    def of(self, operation: Operation, name: str, results: tuple[str, ...]) -> int:
        """The signature of an operation, from its name, attributes, result types and regions."""
        general_name = _PLAIN_NAMES.get(name, name)
        attributes = self._attributes(operation)
        if name == _PRODUCT and _is_plain(operation):
            general_name, attributes = _PLAIN_PRODUCT, self._attributes(operation, without=_DIMENSIONS)
        content = (general_name, attributes, results, self._regions(operation))
        return self._number_of.setdefault(content, len(self._number_of))

    def _attributes(self, operation: Operation, without: str = "") -> Hashable:
        attributes = operation.attributes
        try:
            return tuple([(name, attributes[name]) for name in attributes if name != without])
        except TypeError:  # the bindings do not support location attributes: make the signature unique
            return len(self._index_of)

    def _regions(self, operation: Operation) -> Hashable:
        """Content of an operation's regions: names, attributes, types and data flow."""
        if not len(operation.regions):
            return ()
        # Inner values are numbered within the region, so that equal regions compare equal.
        _, *inside = walk(operation)
        number_of = {op: number for number, op in enumerate(inside)}

        def definition(value: Value) -> Hashable:
            if hasattr(value, "arg_number"):
                return ("argument", value.arg_number, number_of.get(value.owner.owner.operation, -1))
            owner = value.owner.operation
            if owner in number_of:
                return (number_of[owner], value.result_number)
            return ("outside", self._index_of.get(owner, -1), value.result_number)

        return tuple(
            (
                op.name,
                self._attributes(op),
                tuple(map(definition, op.operands)),
                tuple([self._parser.text_of(result.type) for result in op.results]),
            )
            for op in inside
        )


def _is_plain(product: Operation) -> bool:
    """Whether a StableHLO product contracts the last dimension of its first operand with the first of its second.

    Then `stablehlo.dot` computes the same.
    """
    last = len(shape_of(str(product.operands[0].type)).extents) - 1
    dimensions = str(product.attributes[_DIMENSIONS])
    return dimensions == f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>"


# ---- source
#
# The model as the user wrote it, as records: its operations with their positions in the text.
#
# An *op* is an operation of its own. Operations in the regions of an op that is not control flow are its *parts*.
# `tracemap.ir.model_reader` creates these records.

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
"""Operations whose regions contain ops. The regions of all other operations contain their parts."""

BRANCHES = frozenset({"cf.br", "cf.cond_br", "cf.switch"})
"""Operations that branch to another block of their region."""

FUNCTIONS = frozenset({"func.func", "util.func", "ml_program.func"})

TEXT_FILE = "-"
"""The file name in locations that the parser creates for text without a file name."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of a value: result `number` of the operation `maker`, or argument `number` of its region.

    Arguments of a function belong to the function operation. Block arguments are numbered continuously over the blocks
    of a region.
    """

    maker: int
    number: int
    argument: bool


@dataclass(frozen=True, slots=True)
class SourceOperation:
    """An operation of the parsed module, either an op or a part of an op.

    Attributes:
        index: pre-order index over all operations.
        owner: index of the op that it is a part of; its own index for ops.
        parent: index of the enclosing operation, -1 for the module.
        function: symbol of the enclosing function.
        parsed_location: location as parsed.
        made_up: the location does not come from the model; the parser inserted its own position in the text.
        line: line of the operation's name in the text.
        column: column of the operation's name in the text.
        operands: definitions of the operands.
        results: printed types of the results.
        symbol: the symbol it defines or refers to, such as the callee of a call or the global of a load.
        signature: equal for operations that compute the same from equal operands.
        block: number of the enclosing block, unique in the model.
        constant: value of an integer constant.
        splat: common value of all elements of a constant tensor, with its type, as MLIR prints it.
        direction: comparison direction (EQ, NE, LT, LE, GT, GE).
        cases: case values of a switch. The first arm, the default, has none.
        successors: for branches, the indices of the target blocks in their region.
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
        """The location that the model gives; unknown if the parser inserted its own."""
        return UNKNOWN_LOCATION if self.made_up else self.parsed_location


@dataclass(frozen=True, slots=True)
class SourceArgument:
    """An argument of a function.

    `loop_bound`: its value decides the trip count of a loop. `name`: its name in the program, "" if it has none.
    """

    type: str
    loop_bound: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The model: its name, text, operations in pre-order, and function arguments by symbol.

    `private`: functions that only the module itself can call; `fixed`: globals that never change from their initial
    value in the text; `positions_known`: whether operations have lines and columns.
    """

    name: str
    text: str
    operations: tuple[SourceOperation, ...]
    arguments: Mapping[str, tuple[SourceArgument, ...]]
    private: frozenset[str]
    fixed: frozenset[str]
    positions_known: bool

    def type_of(self, value: Definition) -> str:
        """The printed type of a value; "" for arguments of regions and of blocks other than a function's first."""
        maker = self.operations[value.maker]
        if not value.argument:
            return maker.results[value.number]
        arguments = self.arguments.get(maker.symbol, ()) if maker.name in FUNCTIONS else ()
        return arguments[value.number].type if value.number < len(arguments) else ""
