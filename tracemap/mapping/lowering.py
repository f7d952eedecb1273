"""Stages of pass pipelines: loops, the ops that work in them, and why others are nowhere."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import ModelInvalid, PipelineInvalid
from tracemap.graph.lowering import LOOPS, Link, Loop, Lowering, Remainder, SourceOp, Stage
from tracemap.graph.model import Evidence, OpId, Reason
from tracemap.ir.dumps import StageOp, lines_in, read_stage, stage_text
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.reading import ParsedModel, describe, parse_model
from tracemap.ir.source import CONTROL_FLOW, FUNCTIONS, TEXT_FILE, SourceOperation
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import is_call, is_constant, is_structural
from tracemap.mapping.outcomes import reason
from tracemap.mapping.tagging import Provenance, Tags, unused_prefix, write_tagged
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, ended_by, find_tool, no_progress, run_tool
from tracemap.units import UNKNOWN, Integer

# ---- kinds
#
# Kinds of operations of a stage: loops, what does work, and what is evidence of little or nothing.


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


# ---- losses
#
# Why ops are found nowhere in a stage, as far as the model as written tells; it is all inferred.


class Losses:
    """Finds the reasons of one model. `followed`: the ops that are looked for in stages."""

    def __init__(self, facts: ModelFacts, followed: Sequence[SourceOperation]) -> None:
        self._facts = facts
        self._followed = followed

    def reasons(self, found: Collection[OpId]) -> dict[OpId, Reason]:
        """The reason of each op that is not among those found, where there is one."""
        reasons = {}
        for operation in self._followed:
            op = OpId.of(operation.index)
            slug = "" if op in found else self._slug(operation, found)
            if slug:
                where = self._facts.place(self._facts.twins[operation.index]) if slug == "twin" else ""
                reasons[op] = reason(slug, where)
        return reasons

    def _slug(self, operation: SourceOperation, found: Collection[OpId]) -> str:
        index = operation.index
        twin = self._facts.twins.get(index, -1)
        if operation.results and twin >= 0 and OpId.of(twin) in found and not _reads_memory(operation):
            return "twin"
        if index not in self._facts.dataflow.live:
            return "dead"
        if index in self._facts.moves or names_memory(operation):
            return "passed-through"
        return "computed-at-compile-time" if index in self._facts.dataflow.constant else ""


def _reads_memory(operation: SourceOperation) -> bool:
    """Whether an op may give another value each time though its operands are equal."""
    return operation.name.startswith(("affine.", "memref.", "scf.", "vector.")) or is_call(operation)


# ---- stages
#
# Reads the loops of a stage, and what is outside of them, by the tags of the model.


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
        self._losses = Losses(facts, followed)

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
        found = inlined | {link.op for link in links}
        return Stage(pipeline, text, tuple(loops), tuple(remainders), inlined, self._losses.reasons(found))

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
        """The ops that work in the operations, in the order of the model."""
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
        ways = (way for operation in root.walk() for way in self._provenance.ways(operation.location))
        callers = {call for _, path in ways for call in path}
        return frozenset(OpId.of(index) for index in callers & self._facts.call_ops & self._followed)


# ---- pipelines
#
# Runs pass pipelines of iree-opt over a tagged model and reads, after each, which ops work in which loops.
#
# Every operation of the model has a tag in its location; passes that rewrite it copy or merge locations, so the tags
# lead from the operations of the result back to ops. Stages are handed on as bytecode, which keeps the locations of
# all operations: printed short forms do not. A link is a tag that stands on an operation in the loop, never inferred;
# why an op is found nowhere is inferred, from the model as written.


def lower(data: bytes, file_name: str, pipelines: Sequence[str], progress: Progress = no_progress) -> Lowering:
    """Run the pipelines over a model, one after the other, and link loops to ops after each.

    Args:
        data: the model, MLIR text or bytecode.
        file_name: what it is called in messages.
        pipelines: as `iree-opt --pass-pipeline` takes them, `builtin.module(…)`.
        progress: told of each stage.

    Raises:
        ModelInvalid: the model does not parse.
        PipelineInvalid: iree-opt refuses a pipeline, or the pipeline the model; the message is its own.
        ToolMissing: iree-opt is not installed.
    """
    from iree.compiler import version

    program = find_tool("iree-opt")
    parser = MlirParser()
    parsed = _parsed(parser, data, file_name)
    tags = Tags(unused_prefix(data))
    with temporary_folder() as folder:
        bytecode = write_tagged(parsed.module, tags, file_name, folder)
        facts = ModelFacts(describe(parser, parsed))
        reader = StageReader(parser, Tags(tags.prefix, facts.call_ops), facts)
        stages = [reader.stage("", parsed.module, parsed.text, [operation.line for operation in facts.operations])]
        for number, pipeline in enumerate(pipelines, start=1):
            progress(f"running pipeline {number} of {len(pipelines)}")
            run = _Run(program, bytecode, folder / f"stage-{number}.mlirbc", pipeline, file_name)
            bytecode = run.to_end()
            progress(f"reading stage {number}")
            module = parser.parse(bytecode.read_bytes(), printed=True)
            text = stage_text(module)
            stages.append(reader.stage(pipeline, module, text, lines_in(parser, module, text)))
    return Lowering(file_name, version.VERSION, reader.ops, tuple(stages))


def _parsed(parser: MlirParser, data: bytes, file_name: str) -> ParsedModel:
    try:
        return parse_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{file_name}: cannot be parsed: {_in_file(str(error), TEXT_FILE, file_name)}") from error


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of iree-opt: bytecode in, bytecode out."""

    program: Path
    source: Path
    target: Path
    pipeline: str
    file_name: str

    def to_end(self) -> Path:
        options = ["--allow-unregistered-dialect", "--emit-bytecode", f"--pass-pipeline={self.pipeline}"]
        done = run_tool([self.program, *options, "-o", self.target, self.source])
        if done.returncode == 0:
            return self.target
        ended = "refuses it" if done.returncode > 0 else f"{ended_by(-done.returncode)} in it"
        raise PipelineInvalid(f"{self.pipeline or 'an empty pipeline'}: iree-opt {ended}: {self._reason(done.stderr)}")

    def _reason(self, said: str) -> str:
        """The first line with an error, without names that are ours: of the bytecode, or of the unnamed model."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        line = next((line for line in lines if _COMPLAINT.search(line)), "it does not say why")
        line = line.removeprefix("<unknown>:0: error: ")
        for ours in (TEXT_FILE, str(self.source)):
            line = _in_file(line, ours, self.file_name)
        return line


_COMPLAINT = re.compile(r"\berror:|Assertion|LLVM ERROR")


def _in_file(message: str, ours: str, file_name: str) -> str:
    """A message with the model's name in place of one that we gave."""
    return f"{file_name}:{message.removeprefix(ours + ':')}" if message.startswith(f"{ours}:") else message
