"""Kinds of operations of a stage: loops, what does work, and what is evidence of little or nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from tracemap.graph.lowering import LOOPS
from tracemap.ir.source import CONTROL_FLOW, FUNCTIONS, SourceOperation
from tracemap.ir.stages import StageOp
from tracemap.mapping.model.kinds import is_constant, is_structural

_TERMINATORS = (".condition", ".in_parallel", ".operator_terminator", ".return", ".terminator", ".yield")
_REDUCTION = "scf.reduce"
"""The end of an `scf.parallel`; what it reduces stands in its region."""
_CONSTANT = ".constant"

_ADDRESSES = frozenset(
    """
    bufferization.alloc_tensor bufferization.dealloc_tensor bufferization.to_buffer bufferization.to_tensor
    memref.alloc memref.alloca memref.assume_alignment memref.cast memref.collapse_shape memref.dealloc memref.dim
    memref.expand_shape memref.extract_strided_metadata memref.reinterpret_cast memref.subview memref.transpose
    tensor.cast tensor.collapse_shape tensor.dim tensor.empty tensor.expand_shape tensor.extract_slice
    """.split()
)
_INDEX = "index"

_WRAPPERS = CONTROL_FLOW | FUNCTIONS
"""Operations outside of loops that are looked into, not taken as a whole."""
_NOT_OF_THE_PROGRAM = "transform."
"""Operations that tell the compiler what to do."""


class Kind(enum.Enum):
    """What an operation of a stage does, as far as evidence goes."""

    WORK = enum.auto()
    """It is evidence of every op whose tag it carries."""
    ADDRESS = enum.auto()
    """It names memory or computes an index: evidence only of ops that do no more themselves."""
    CONSTANT = enum.auto()
    """Evidence only of constants: others are made for bounds and steps of loops."""
    TERMINATOR = enum.auto()
    """Never evidence."""


def kind_of(operation: StageOp) -> Kind:
    """The kind of an operation."""
    name = operation.name
    if name.endswith(_TERMINATORS) or name == _REDUCTION:
        return Kind.TERMINATOR
    if name.endswith(_CONSTANT):
        return Kind.CONSTANT
    if name in _ADDRESSES or (operation.computes_index and not operation.children):
        return Kind.ADDRESS
    return Kind.WORK


def is_evidence(kind: Kind, source: SourceOperation) -> bool:
    """Whether an operation of a kind is evidence of an operation of the model whose tag it carries."""
    match kind:
        case Kind.WORK:
            return True
        case Kind.ADDRESS:
            indices_only = bool(source.results) and all(each == _INDEX for each in source.results)
            return source.is_op and (names_memory(source) or indices_only)
        case Kind.CONSTANT:
            return source.is_op and is_constant(source)
        case Kind.TERMINATOR:
            return False


def names_memory(operation: SourceOperation) -> bool:
    """Whether an op only names memory. Passes make such operations around what they rewrite."""
    return operation.name in _ADDRESSES


def is_of_the_program(operation: SourceOperation) -> bool:
    """Whether an op of the model is something that a pass makes loops or other operations of."""
    return not is_structural(operation) and not operation.name.startswith(_NOT_OF_THE_PROGRAM)


def outermost_loops(operations: Iterable[StageOp]) -> Iterator[StageOp]:
    """The loops in operations that are in no other loop among them, in order."""
    for operation in operations:
        if operation.name in LOOPS:
            yield operation
        else:
            yield from outermost_loops(operation.children)


def loops_and_rest(operation: StageOp) -> Iterator[StageOp]:
    """Outermost loops, and the operations outside of them: those that hold loops by themselves, others whole."""
    yield operation
    if operation.name not in LOOPS and is_looked_into(operation):
        for child in operation.children:
            yield from loops_and_rest(child)


def is_looked_into(operation: StageOp) -> bool:
    """Whether what stands in an operation that is no loop is looked at by itself."""
    return operation.name in _WRAPPERS or next(outermost_loops(operation.children), None) is not None
