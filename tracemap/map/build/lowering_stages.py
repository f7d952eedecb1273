"""Stages of pass pipelines: the loops, the ops in them, and the reasons for ops without any operation left."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tracemap.core.errors import ModelInvalid, PipelineInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, find_tool, no_progress, run_tool, signal_text
from tracemap.core.units import UNKNOWN
from tracemap.ir.dumps import StageOp, lines_in, read_stage, stage_text
from tracemap.ir.model_reader import ParsedModel, create_records, parse_model
from tracemap.ir.parsing import MlirParser
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS, TEXT_FILE, SourceOperation
from tracemap.map.build.model.kinds import is_call, is_constant, is_structural
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.outcomes import reason
from tracemap.map.build.tagging import Provenance, Tags, unused_prefix, write_tagged
from tracemap.map.lowering import LOOPS, Link, Loop, Lowering, OperationOutsideLoops, SourceOp, Stage
from tracemap.map.model import Evidence, OpId, Reason

# ---- kinds

_TERMINATORS = (".condition", ".in_parallel", ".operator_terminator", ".return", ".terminator", ".yield")
_REDUCTION = "scf.reduce"
"""The end of an `scf.parallel`, with the reduction in its region."""
_CONSTANT = ".constant"

_ADDRESSING = frozenset(
    """
    bufferization.alloc_tensor bufferization.dealloc_tensor bufferization.to_buffer bufferization.to_tensor
    memref.alloc memref.alloca memref.assume_alignment memref.cast memref.collapse_shape memref.dealloc memref.dim
    memref.expand_shape memref.extract_strided_metadata memref.reinterpret_cast memref.subview memref.transpose
    tensor.cast tensor.collapse_shape tensor.dim tensor.empty tensor.expand_shape tensor.extract_slice
    """.split()
)
_INDEX = "index"

_WRAPPERS = CONTROL_FLOW | FUNCTIONS
"""Operations outside of loops whose children are examined one by one."""
_COMPILER_DIRECTIVES = "transform."
"""Prefix of operations that are instructions to the compiler."""


class Kind(enum.Enum):
    """The kind of an operation, which decides what ops it is evidence of."""

    WORK = enum.auto()
    """Evidence of every op whose tag it carries."""
    ADDRESS = enum.auto()
    """Names memory or computes an index: evidence only of ops that do the same."""
    CONSTANT = enum.auto()
    """Evidence only of constants, since passes also make constants for loop bounds and steps."""
    TERMINATOR = enum.auto()
    """Never evidence."""


def kind_of(operation: StageOp) -> Kind:
    """The kind of an operation."""
    name = operation.name
    if name.endswith(_TERMINATORS) or name == _REDUCTION:
        return Kind.TERMINATOR
    if name.endswith(_CONSTANT):
        return Kind.CONSTANT
    if name in _ADDRESSING or (operation.computes_index and not operation.children):
        return Kind.ADDRESS
    return Kind.WORK


def is_evidence(kind: Kind, source: SourceOperation) -> bool:
    """Whether an operation of a kind is evidence of the model's operation whose tag it carries."""
    match kind:
        case Kind.WORK:
            return True
        case Kind.ADDRESS:
            indices_only = bool(source.results) and all(result == _INDEX for result in source.results)
            return source.is_op and (names_memory(source) or indices_only)
        case Kind.CONSTANT:
            return source.is_op and is_constant(source)
        case Kind.TERMINATOR:
            return False


def names_memory(operation: SourceOperation) -> bool:
    """Whether an op only names memory. Passes create such operations around what they rewrite."""
    return operation.name in _ADDRESSING


def is_of_the_program(operation: SourceOperation) -> bool:
    """Whether passes can turn an op of the model into loops or other operations."""
    return not is_structural(operation) and not operation.name.startswith(_COMPILER_DIRECTIVES)


def outermost_loops(operations: Iterable[StageOp]) -> Iterator[StageOp]:
    """The loops among operations and inside them that no other loop contains, in order."""
    for operation in operations:
        if operation.name in LOOPS:
            yield operation
        else:
            yield from outermost_loops(operation.children)


def loops_and_rest(operation: StageOp) -> Iterator[StageOp]:
    """Outermost loops, and the operations outside of them; operations that contain loops are split up."""
    yield operation
    if operation.name not in LOOPS and is_looked_into(operation):
        for child in operation.children:
            yield from loops_and_rest(child)


def is_looked_into(operation: StageOp) -> bool:
    """Whether the operations inside an operation that is not a loop are examined one by one."""
    return operation.name in _WRAPPERS or next(outermost_loops(operation.children), None) is not None


# ---- stages


class StageReader:
    """Reads the stages of one model. `ops`: the ops that are searched for."""

    def __init__(self, provenance: Provenance, facts: ModelFacts) -> None:
        self._provenance = provenance
        self._facts = facts
        self._followed_ops = [op for op in facts.ops if is_of_the_program(op)]
        self.ops = tuple(
            SourceOp(OpId.of(op.index), op.name, op.function, op.line, op.column, is_constant(op))
            for op in self._followed_ops
        )
        self._followed = frozenset(op.index for op in self._followed_ops)

    def stage(self, pipeline: str, root: StageOp, text: str) -> Stage:
        """The stage after a pipeline, from its operations and its text."""
        loops: list[Loop] = []
        remainders: list[OperationOutsideLoops] = []
        for operation in loops_and_rest(root):
            if operation.name in LOOPS:
                loops.append(self._loop(operation, f"loop{len(loops)}"))
            else:
                inside = [operation] if is_looked_into(operation) else operation.walk()
                remainder = OperationOutsideLoops(
                    operation.name, operation.function, operation.line, self._links(inside)
                )
                remainders += [remainder] if remainder.links else []
        inlined = self._inlined(root)
        links = [link for loop in loops for link in loop.links] + [link for item in remainders for link in item.links]
        located_ops = inlined | {link.op for link in links}
        return Stage(pipeline, text, tuple(loops), tuple(remainders), inlined, self._reasons(located_ops))

    def _loop(self, operation: StageOp, name: str) -> Loop:
        inside = list(operation.walk())
        working = [inner for inner in inside if kind_of(inner) is Kind.WORK]
        children = enumerate(outermost_loops(operation.children))
        return Loop(
            id=name,
            name=operation.name,
            function=operation.function,
            line=operation.line,
            last_line=max((inner.line for inner in inside if inner.line is not UNKNOWN), default=UNKNOWN),
            links=self._links(inside),
            operations=len(working),
            untraced=sum(1 for inner in working if not self._provenance.of(inner.location)),
            children=tuple(self._loop(child, f"{name}.{index}") for index, child in children),
        )

    def _links(self, operations: Iterable[StageOp]) -> tuple[Link, ...]:
        """The ops in the operations, in the order of the model."""
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
            # Lines are of all operations with the tag, a link needs evidence; LOCATED needs a tag that stands alone.
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
        """The calls on the caller sides of locations: the callee's body replaced them."""
        op_paths = (op_path for operation in root.walk() for op_path in self._provenance.op_paths(operation.location))
        callers = {call for _, path in op_paths for call in path}
        return frozenset(OpId.of(index) for index in callers & self._facts.call_ops & self._followed)

    def _reasons(self, located_ops: Collection[OpId]) -> dict[OpId, Reason]:
        """The reasons for ops that were not located, if the model as written shows them."""
        reasons = {}
        for operation in self._followed_ops:
            op = OpId.of(operation.index)
            slug = "" if op in located_ops else self._slug(operation, located_ops)
            if slug:
                where = self._facts.place(self._facts.duplicates[operation.index]) if slug == "twin" else ""
                reasons[op] = reason(slug, where)
        return reasons

    def _slug(self, operation: SourceOperation, located_ops: Collection[OpId]) -> str:
        index = operation.index
        twin = self._facts.duplicates.get(index, -1)
        # Memory may change between equal operations, and calls may change it.
        reads_memory = operation.name.startswith(("affine.", "memref.", "scf.", "vector.")) or is_call(operation)
        if operation.results and twin >= 0 and OpId.of(twin) in located_ops and not reads_memory:
            return "twin"
        if index not in self._facts.dataflow.live:
            return "dead"
        if index in self._facts.moves or names_memory(operation):
            return "passed-through"
        return "computed-at-compile-time" if index in self._facts.dataflow.constant else ""


# ---- pipelines
#
# Runs pass pipelines of iree-opt on a tagged model and reads after each one which ops run in which loops.
#
# Every operation of the model has a tag in its location. Passes copy or merge the locations of operations that they
# rewrite, so the tags lead from the result back to ops. Stages are passed on as bytecode, which keeps the locations of
# all operations, unlike printed short forms. A link is a tag on an operation in the loop, and never inferred. The
# reasons for ops that are gone are inferred from the model as written.


def lower(data: bytes, file_name: str, pipelines: Sequence[str], progress: Progress = no_progress) -> Lowering:
    """Run the pipelines on a model, one after the other, and link loops to ops after each.

    Args:
        data: the model, MLIR text or bytecode.
        file_name: the model's name in messages.
        pipelines: in the syntax of `iree-opt --pass-pipeline`, `builtin.module(…)`.
        progress: called with a text for each stage.

    Raises:
        ModelInvalid: the model does not parse.
        PipelineInvalid: iree-opt rejects a pipeline, or a pipeline rejects the model; the message is iree-opt's.
        ToolMissing: iree-opt is not installed.
    """
    program = find_tool("iree-opt")
    parser = MlirParser()
    from iree.compiler import version  # after the checks that it is installed

    parsed = _parsed(parser, data, file_name)
    tags = Tags(unused_prefix(data))
    with temporary_folder() as folder:
        bytecode = write_tagged(parsed.module, tags, file_name, folder)
        facts = ModelFacts(create_records(parser, parsed))
        reader = StageReader(Tags(tags.prefix, facts.call_ops), facts)
        root = read_stage(parser, parsed.module, [operation.line for operation in facts.operations])
        stages = [reader.stage("", root, parsed.text)]
        for index, pipeline in enumerate(pipelines, start=1):
            progress(f"running pipeline {index} of {len(pipelines)}")
            target = folder / f"stage-{index}.mlirbc"
            _run_pipeline(program, bytecode, target, pipeline, file_name)
            bytecode = target
            progress(f"reading stage {index}")
            module = parser.parse(bytecode.read_bytes(), printed=True)
            text = stage_text(module)
            root = read_stage(parser, module, lines_in(parser, module, text))
            stages.append(reader.stage(pipeline, root, text))
    return Lowering(file_name, version.VERSION, reader.ops, tuple(stages))


def _parsed(parser: MlirParser, data: bytes, file_name: str) -> ParsedModel:
    try:
        return parse_model(parser, data)
    except ModelInvalid as error:
        raise ModelInvalid(f"{file_name}: cannot be parsed: {_in_file(str(error), TEXT_FILE, file_name)}") from error


_ERROR_LINE = re.compile(r"\berror:|Assertion|LLVM ERROR")


def _run_pipeline(program: Path, source: Path, target: Path, pipeline: str, file_name: str) -> None:
    """Run iree-opt from bytecode to bytecode; its errors have the model's name instead of temporary ones."""
    options = ["--allow-unregistered-dialect", "--emit-bytecode", f"--pass-pipeline={pipeline}"]
    result = run_tool([program, *options, "-o", target, source])
    if result.returncode == 0:
        return
    outcome = "rejects it" if result.returncode > 0 else f"{signal_text(-result.returncode)} in it"
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    line = next((line for line in lines if _ERROR_LINE.search(line)), "it does not say why")
    line = line.removeprefix("<unknown>:0: error: ")
    for placeholder in (TEXT_FILE, str(source)):
        line = _in_file(line, placeholder, file_name)
    raise PipelineInvalid(f"{pipeline or 'an empty pipeline'}: iree-opt {outcome}: {line}")


def _in_file(message: str, placeholder: str, file_name: str) -> str:
    """A message with the model's name instead of a placeholder."""
    return (
        f"{file_name}:{message.removeprefix(placeholder + ':')}" if message.startswith(f"{placeholder}:") else message
    )
