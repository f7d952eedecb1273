"""Runs pass pipelines of iree-opt over a tagged model and reads, after each, which ops work in which loops.

Every operation of the model has a tag in its location; passes that rewrite it copy or merge locations, so the tags lead
from the operations of the result back to ops. Stages are handed on as bytecode, which keeps the locations of all
operations: printed short forms do not. Nothing is inferred: a link is a tag that stands on an operation in the loop.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.errors import ModelInvalid, PipelineInvalid
from tracemap.graph.lowering import LOOPS, Link, Loop, Lowering, Remainder, SourceOp, Stage
from tracemap.graph.model import Evidence
from tracemap.ir.loops import StageOp, lines_in, read_stage, stage_text
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.source import (
    CONTROL_FLOW,
    FUNCTIONS,
    SourceModel,
    SourceOperation,
    describe,
    is_bytecode,
    read_model,
    written_locations,
)
from tracemap.locations import Tags
from tracemap.mapping.build import unused_prefix, write_tagged
from tracemap.mapping.fates import is_constant, is_structural
from tracemap.toolchain import Progress, find_tool, no_progress, run_tool
from tracemap.units import UNKNOWN, Integer

_TERMINATORS = (".yield", ".return", ".condition", ".terminator", ".in_parallel")
_REDUCE = "scf.reduce"
_CONSTANTS = (".constant",)

_ADDRESSES = frozenset(
    """
    bufferization.alloc_tensor bufferization.dealloc_tensor bufferization.to_buffer bufferization.to_tensor
    memref.alloc memref.alloca memref.assume_alignment memref.cast memref.collapse_shape memref.dealloc memref.dim
    memref.expand_shape memref.extract_strided_metadata memref.reinterpret_cast memref.subview memref.transpose
    tensor.cast tensor.collapse_shape tensor.dim tensor.empty tensor.expand_shape tensor.extract_slice
    """.split()
)
"""Operations that only name memory. Passes make them around what they rewrite: evidence only for ops that do no more
themselves, as a slice of the model is still there as a view of a buffer."""

_WRAPPERS = CONTROL_FLOW | FUNCTIONS | {"llvm.func", "scf.execute_region", "util.initializer"}


def lower(
    data: bytes, file_name: str, pipelines: Sequence[str], progress: Progress = no_progress
) -> Lowering:
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
        raise ModelInvalid(f"{file_name}: cannot be parsed: {_in_file(str(error), '-', file_name)}") from error
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
        if done.returncode == 0 and self.target.is_file():
            return self.target
        ended = f"was ended by signal {-done.returncode} in it" if done.returncode < 0 else "refuses it"
        said = self._first_error(done.stderr)
        raise PipelineInvalid(f"{self.pipeline}: iree-opt {ended}" + (f": {said}" if said else ""))

    def _first_error(self, said: str) -> str:
        """The first line with an error, and no names of our own files."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        line = next((line for line in lines if re.search(r"\berror:", line)), "")
        line = line or next((line for line in lines if "ssertion" in line), "")
        return _in_file(line.replace("<unknown>:0: error: ", ""), str(self.source), _in_file(line, "-", self.file_name))


def _in_file(message: str, ours: str, file_name: str) -> str:
    """A message with the model's name where it has a name that we gave."""
    return f"{file_name}:{message.removeprefix(ours + ':')}" if message.startswith(f"{ours}:") else message
