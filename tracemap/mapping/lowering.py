"""Runs pass pipelines of iree-opt over a tagged model and reads, after each, which ops work in which loops.

Every operation of the model has a tag in its location; passes that rewrite it copy or merge locations, so the tags lead
from the operations of the result back to ops. Stages are handed on as bytecode, which keeps the locations of all
operations: printed short forms do not. A link is a tag that stands on an operation in the loop, never inferred; why an
op is found nowhere is inferred, from the model as written.
"""

from __future__ import annotations

import enum
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import ModelInvalid, PipelineInvalid
from tracemap.graph.lowering import LOOPS, Link, Loop, Lowering, Remainder, SourceOp, Stage
from tracemap.graph.model import Evidence, OpId, Reason
from tracemap.ir.loops import StageOp, lines_in, read_stage, stage_text
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.source import (
    CONTROL_FLOW,
    FUNCTIONS,
    TEXT_FILE,
    SourceModel,
    SourceOperation,
    describe,
    is_bytecode,
    read_model,
    written_locations,
)
from tracemap.locations import Tags
from tracemap.mapping.build import unused_prefix, write_tagged
from tracemap.mapping.fates.fates import REASONS, is_constant, is_structural, only_moves
from tracemap.mapping.model.dataflow import Dataflow, is_call
from tracemap.mapping.model.twins import find_twins
from tracemap.toolchain import Progress, find_tool, no_progress, run_tool
from tracemap.units import UNKNOWN, Integer

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
"""Operations that only name memory. Passes make them around what they rewrite."""
_INDEX = "index"

_WRAPPERS = CONTROL_FLOW | FUNCTIONS
"""Operations outside of loops that are looked into, not taken as a whole."""
_NOT_OF_THE_PROGRAM = "transform."
"""Operations that tell the compiler what to do."""


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
    try:
        module, text = read_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{file_name}: cannot be parsed: {_in_file(str(error), TEXT_FILE, file_name)}") from error
    written = written_locations(module)
    tags = Tags(unused_prefix(data))
    with tempfile.TemporaryDirectory(prefix="tracemap-") as folder:
        bytecode = write_tagged(module, tags, file_name, Path(folder))
        model = describe(parser, module, text, written, is_text=not is_bytecode(data))
        reader = _StageReader(parser, tags, model)
        stages = [reader.stage("", module, text, tuple(operation.line for operation in model.operations))]
        for number, pipeline in enumerate(pipelines, start=1):
            progress(f"running pipeline {number} of {len(pipelines)}")
            run = _Run(program, bytecode, Path(folder, f"stage-{number}.mlirbc"), pipeline, file_name)
            bytecode = run.to_end()
            progress(f"reading stage {number}")
            module = parser.parse(bytecode.read_bytes())
            text = stage_text(module)
            stages.append(reader.stage(pipeline, module, text, lines_in(parser, module, text)))
    return Lowering(file_name, version.VERSION, reader.ops, tuple(stages))


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
        ended = "refuses it" if done.returncode > 0 else f"was ended by signal {-done.returncode} in it"
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


class _StageReader:
    """Reads the loops of stages, and what is outside of them, by the tags of one model."""

    def __init__(self, parser: MlirParser, tags: Tags, model: SourceModel) -> None:
        self._parser = parser
        self._tags = tags
        self._source = model.operations
        named = [op for op in model.operations if op.is_op and _is_of_the_program(op)]
        self.ops = tuple(SourceOp(_id(op), op.name, op.function, op.line, op.column, is_constant(op)) for op in named)
        self._followed = {op.index for op in named}
        self._calls = {op.index for op in named if is_call(op)}
        self._losses = _Losses(model, named)

    def stage(self, pipeline: str, module: Module, text: str, lines: Sequence[Integer]) -> Stage:
        root = read_stage(self._parser, module, lines)
        loops: list[Loop] = []
        remainders: list[Remainder] = []
        for operation in _units(root):
            if operation.name in LOOPS:
                loops.append(self._loop(operation, f"loop{len(loops)}"))
            else:
                inside = [operation] if _is_looked_into(operation) else operation.walk()
                remainder = Remainder(operation.name, operation.function, operation.line, self._links(inside))
                remainders += [remainder] if remainder.links else []
        inlined = frozenset(_id(self._source[index]) for index in self._inlined(root))
        links = [link for loop in loops for link in loop.links] + [link for each in remainders for link in each.links]
        found = inlined | {link.op for link in links}
        return Stage(pipeline, text, tuple(loops), tuple(remainders), inlined, self._losses.reasons(found))

    def _loop(self, operation: StageOp, name: str) -> Loop:
        inside = list(operation.walk())
        working = [each for each in inside if _kind(each) is _Kind.WORK]
        return Loop(
            id=name,
            name=operation.name,
            function=operation.function,
            line=operation.line,
            last_line=max((each.line for each in inside if each.line is not UNKNOWN), default=UNKNOWN),
            links=self._links(inside),
            operations=len(working),
            untraced=sum(1 for each in working if not self._tags.of(each.location)),
            children=tuple(
                self._loop(child, f"{name}.{number}") for number, child in enumerate(_outermost(operation.children))
            ),
        )

    def _links(self, operations: Iterable[StageOp]) -> tuple[Link, ...]:
        """The ops that work in the operations, in the order of the model."""
        evidence: dict[int, Evidence] = {}
        lines: dict[int, set[int]] = {}
        for operation in operations:
            if _kind(operation) is _Kind.TERMINATOR:
                continue
            owners = self._owners(operation, self._tags.of(operation.location))
            for owner in owners:
                if operation.line is not UNKNOWN:
                    lines.setdefault(owner, set()).add(operation.line)
            proven = self._owners(operation, self._evident(operation))
            for owner in proven:
                if len(owners) == 1:
                    evidence[owner] = Evidence.LOCATED
                else:
                    evidence.setdefault(owner, Evidence.FUSED)
        return tuple(
            Link(_id(self._source[owner]), kind, tuple(sorted(lines.get(owner, ()))))
            for owner, kind in sorted(evidence.items())
        )

    def _owners(self, operation: StageOp, indices: Iterable[int]) -> tuple[int, ...]:
        owners = (self._source[index].owner for index in indices if index < len(self._source))
        return tuple(dict.fromkeys(owner for owner in owners if owner in self._followed))

    def _evident(self, operation: StageOp) -> Iterator[int]:
        """The operations of the model that an operation is evidence of, by its tags."""
        kind = _kind(operation)
        for index in self._tags.of(operation.location):
            if kind is _Kind.WORK or (index < len(self._source) and _is_of_kind(self._source[index], kind)):
                yield index

    def _inlined(self, root: StageOp) -> frozenset[int]:
        """The calls on the caller sides of locations: what they called stands in their place."""
        callers = {index for operation in root.walk() for index in self._tags.callers(operation.location)}
        return frozenset(callers & self._calls)


class _Losses:
    """Why ops are found nowhere in a stage, as far as the model as written tells; it is all inferred."""

    def __init__(self, model: SourceModel, named: Sequence[SourceOperation]) -> None:
        self._operations = model.operations
        self._named = named
        self._dataflow = Dataflow(model)
        self._twins = find_twins(model)
        self._part_names: dict[int, list[str]] = {}
        for operation in model.operations:
            if not operation.is_op:
                self._part_names.setdefault(operation.owner, []).append(operation.name)

    def reasons(self, found: Collection[str]) -> dict[OpId, Reason]:
        """The reason of each op that is not among those found, where there is one."""
        reasons = {}
        for operation in self._named:
            slug = "" if _id(operation) in found else self._slug(operation, found)
            if slug:
                where = self._place(self._twins[operation.index]) if slug == "twin" else ""
                reasons[_id(operation)] = Reason(slug, REASONS[slug].format(where=where), inferred=True)
        return reasons

    def _slug(self, operation: SourceOperation, found: Collection[str]) -> str:
        index = operation.index
        twin = self._twins.get(index, -1)
        if operation.results and twin >= 0 and _id(self._operations[twin]) in found and not _reads_memory(operation):
            return "twin"
        if index not in self._dataflow.live:
            return "dead"
        if only_moves(operation, self._part_names.get(index, ())) or operation.name in _ADDRESSES:
            return "passed-through"
        return "computed-at-compile-time" if index in self._dataflow.constant else ""

    def _place(self, index: int) -> str:
        operation = self._operations[index]
        return _id(operation) if operation.line is UNKNOWN else f"{operation.line}:{operation.column}"


def _reads_memory(operation: SourceOperation) -> bool:
    """Whether an op may give another value each time though its operands are equal."""
    return operation.name.startswith(("affine.", "memref.", "scf.", "vector.")) or is_call(operation)


class _Kind(enum.Enum):
    """What an operation of a stage does, as far as evidence goes."""

    WORK = enum.auto()
    """It is evidence of every op whose tag it carries."""
    ADDRESS = enum.auto()
    """It names memory or computes an index: evidence only of ops that do no more themselves."""
    CONSTANT = enum.auto()
    """Evidence only of constants: others are made for bounds and steps of loops."""
    TERMINATOR = enum.auto()
    """Never evidence."""


def _kind(operation: StageOp) -> _Kind:
    name = operation.name
    if name.endswith(_TERMINATORS) or name == _REDUCTION:
        return _Kind.TERMINATOR
    if name.endswith(_CONSTANT):
        return _Kind.CONSTANT
    if name in _ADDRESSES or (operation.computes_index and not operation.children):
        return _Kind.ADDRESS
    return _Kind.WORK


def _is_of_kind(source: SourceOperation, kind: _Kind) -> bool:
    """Whether an operation of the model is an op, and does itself no more than that."""
    if not source.is_op:
        return False
    if kind is _Kind.CONSTANT:
        return is_constant(source)
    return source.name in _ADDRESSES or (bool(source.results) and all(each == _INDEX for each in source.results))


def _is_of_the_program(source: SourceOperation) -> bool:
    return not is_structural(source) and not source.name.startswith(_NOT_OF_THE_PROGRAM)


def _outermost(operations: Iterable[StageOp]) -> Iterator[StageOp]:
    """The loops in operations that are in no other loop among them, in order."""
    for operation in operations:
        if operation.name in LOOPS:
            yield operation
        else:
            yield from _outermost(operation.children)


def _units(operation: StageOp) -> Iterator[StageOp]:
    """Outermost loops, and the operations outside of them: those that hold loops by themselves, others whole."""
    yield operation
    if operation.name not in LOOPS and _is_looked_into(operation):
        for child in operation.children:
            yield from _units(child)


def _is_looked_into(operation: StageOp) -> bool:
    return operation.name in _WRAPPERS or next(_outermost(operation.children), None) is not None


def _id(operation: SourceOperation) -> OpId:
    return OpId.of(operation.index)
