"""Runs pass pipelines of iree-opt over a tagged model and reads, after each, which ops work in which loops.

Every operation of the model has a tag in its location; passes that rewrite it copy or merge locations, so the tags lead
from the operations of the result back to ops. Stages are handed on as bytecode, which keeps the locations of all
operations: printed short forms do not. A link is a tag that stands on an operation in the loop, never inferred; why an
op is found nowhere is inferred, from the model as written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import ModelInvalid, PipelineInvalid
from tracemap.graph.lowering import Lowering
from tracemap.ir.parsing import MlirParser
from tracemap.ir.reading import ParsedModel, describe, parse_model
from tracemap.ir.source import TEXT_FILE
from tracemap.ir.stages import lines_in, stage_text
from tracemap.mapping.lowering.stages import StageReader
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.tagging import Tags, unused_prefix, write_tagged
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, ended_by, find_tool, no_progress, run_tool


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
