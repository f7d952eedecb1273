"""Reads the loops of a stage, and what is outside of them, by the tags of the model; says why ops are gone.

Operations of a stage are of a kind: loops, what does work, and what is evidence of little or nothing. Why an op is
found nowhere is inferred, as far as the model as written tells.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence

from tracemap.graph.lowering import LOOPS, Link, Loop, Remainder, SourceOp, Stage
from tracemap.graph.ops import Evidence, OpId, Reason
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.source import CONTROL_FLOW, FUNCTIONS, SourceOperation
from tracemap.ir.stages import StageOp, read_stage
from tracemap.mapping.fates import reason
from tracemap.mapping.identity import Provenance
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import is_call, is_constant, is_structural
from tracemap.units import UNKNOWN, Integer


class StageReader:
    """Reads the stages of one model. `ops`: those that are looked for."""

    def __init__(self, parser: MlirParser, provenance: Provenance, facts: ModelFacts) -> None:
        self._parser = parser
        self._provenance = provenance
        self._facts = facts
        followed = [op for op in facts.ops if is_of_the_program(op)]
        self.ops = tuple(
            SourceOp(OpId.of(op.index), op.name, op.function, op.line, op.column, is_constant(op)) for op in followed
        )
        self._followed = frozenset(op.index for op in followed)

    def stage(self, pipeline: str, module: Module, text: str, lines: Sequence[Integer]) -> Stage:
        """The module after a pipeline. `lines`: of its operations in `text`, in pre-order; empty where not known."""
        root = read_stage(self._parser, module, lines)
        loops: list[Loop] = []
        remainders: list[Remainder] = []
        for operation in loops_and_rest(root):
            if operation.name in LOOPS:
                loops.append(self._loop(operation, f"loop{len(loops)}"))
            else:
                inside = [operation] if is_looked_into(operation) else operation.walk()
                remainder = Remainder(operation.name, operation.function, operation.line, self._links(inside))
                remainders += [remainder] if remainder.links else []
        inlined = self._inlined(root)
        links = [link for loop in loops for link in loop.links] + [link for each in remainders for link in each.links]
        reasons = _reasons(self._facts, self._followed, inlined | {link.op for link in links})
        return Stage(pipeline, text, tuple(loops), tuple(remainders), inlined, reasons)

    def _loop(self, operation: StageOp, name: str) -> Loop:
        inside = list(operation.walk())
        working = [each for each in inside if kind_of(each) is Kind.WORK]
        children = enumerate(outermost_loops(operation.children))
        return Loop(
            id=name,
            name=operation.name,
            function=operation.function,
            line=operation.line,
            last_line=max((each.line for each in inside if each.line is not UNKNOWN), default=UNKNOWN),
            links=self._links(inside),
            operations=len(working),
            untraced=sum(1 for each in working if not self._provenance.of(each.location)),
            children=tuple(self._loop(child, f"{name}.{number}") for number, child in children),
        )

    def _links(self, operations: Iterable[StageOp]) -> tuple[Link, ...]:
        evidence: dict[int, Evidence] = {}
        lines: dict[int, set[int]] = {}
        for operation in operations:
            kind = kind_of(operation)
            if kind is Kind.TERMINATOR:
                continue
            indices = self._provenance.of(operation.location)
            owners = self._owners(indices)
            for owner in owners:
                if operation.line is not UNKNOWN:
                    lines.setdefault(owner, set()).add(operation.line)
            # Lines show all that carries the tag, a link needs evidence; LOCATED is what no other op shares.
            for owner in self._owners(index for index in indices if is_evidence(kind, self._facts.operations[index])):
                if len(owners) == 1:
                    evidence[owner] = Evidence.LOCATED
                else:
                    evidence.setdefault(owner, Evidence.FUSED)
        return tuple(
            Link(OpId.of(owner), kind, tuple(sorted(lines.get(owner, ())))) for owner, kind in sorted(evidence.items())
        )

    def _owners(self, indices: Iterable[int]) -> frozenset[int]:
        return self._facts.owners(indices) & self._followed

    def _inlined(self, root: StageOp) -> frozenset[OpId]:
        """The calls on the caller sides of locations: what they called stands in their place."""
        callers = {index for operation in root.walk() for index in self._provenance.callers(operation.location)}
        return frozenset(OpId.of(index) for index in callers & self._facts.call_ops & self._followed)


_TERMINATORS = (".condition", ".in_parallel", ".return", ".terminator", ".yield")
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


def _reasons(facts: ModelFacts, followed: Iterable[int], found: Collection[OpId]) -> dict[OpId, Reason]:
    """The reason of each op that is followed and not among those found, where there is one."""
    reasons = {}
    for index in sorted(followed):
        op = OpId.of(index)
        slug = "" if op in found else _slug(facts, facts.operations[index], found)
        if slug:
            reasons[op] = reason(slug, facts.place(facts.twins[index]) if slug == "twin" else "")
    return reasons


def _slug(facts: ModelFacts, operation: SourceOperation, found: Collection[OpId]) -> str:
    index = operation.index
    twin = facts.twins.get(index, -1)
    if operation.results and twin >= 0 and OpId.of(twin) in found and not _reads_memory(operation):
        return "twin"
    if index not in facts.dataflow.live:
        return "dead"
    if index in facts.moves or names_memory(operation):
        return "passed-through"
    return "computed-at-compile-time" if index in facts.dataflow.constant else ""


def _reads_memory(operation: SourceOperation) -> bool:
    """Whether an op may give another value each time though its operands are equal."""
    return operation.name.startswith(("affine.", "memref.", "scf.", "vector.")) or is_call(operation)
