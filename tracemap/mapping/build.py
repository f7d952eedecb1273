"""Model -> trace graph -> bundle: one compilation gives everything.

The compiler runs in a process of its own; while it generates code, the model and the early phases are read here.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.errors import ModelInvalid
from tracemap.graph import bundle
from tracemap.graph.model import (
    Argument,
    Diagnostic,
    Fate,
    Frame,
    Function,
    ModuleInfo,
    Op,
    Part,
    Reason,
    Site,
    SourceFile,
    TraceGraph,
)
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.phases import FlowProgram, read_dispatch_creation, read_flow, read_hal
from tracemap.ir.source import (
    CONTROL_FLOW,
    SourceModel,
    SourceOperation,
    describe,
    read_model,
    tag_operations,
    written_locations,
)
from tracemap.locations import CodeFrame, Tags, frames
from tracemap.mapping import fates
from tracemap.mapping.absorbed import AbsorbedFinder, add_absorbed
from tracemap.mapping.compiling import Compilation, compile_flags, compilers_own_message
from tracemap.mapping.conversions import conversions_read
from tracemap.mapping.dataflow import Dataflow, asks_for_shape, is_call
from tracemap.mapping.members import TagOwners
from tracemap.mapping.schedules import find_schedules, find_transfers
from tracemap.mapping.scopes import scopes_of
from tracemap.mapping.sites import SiteBuilder, kernels_of, place_commands, public_callers
from tracemap.mapping.sources import FoundSource, find_sources
from tracemap.mapping.twins import find_twins
from tracemap.toolchain import Progress, no_progress
from tracemap.units import UNKNOWN, Text

_TAG_PREFIX = "tm.op."


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build: the model's bytes, its file name (shown, kept), where its Python files may lie, how to compile."""

    model: bytes
    file_name: str
    target: Path
    source_roots: tuple[Path, ...]
    device: str = "local"
    flags: tuple[str, ...] = ()
    keep_sources: bool = True
    force: bool = False


def build(request: BuildRequest, progress: Progress = no_progress) -> bundle.Bundle:
    """Compile a model and write its bundle.

    Raises:
        ModelInvalid: the compiler does not accept the model; the message is its own.
        TargetExists, TargetUnwritable: the bundle cannot be written.
        UsageInvalid: a compiler flag that takes away what is needed.
        ToolMissing: the compiler is not installed.
    """
    flags = compile_flags(request.device, request.flags)
    bundle.check_target(request.target, force=request.force)
    with tempfile.TemporaryDirectory(prefix="tracemap-") as folder:
        return _Build(request, flags, Path(folder), progress).run()


class _Build:
    """The steps of one build, in order."""

    def __init__(self, request: BuildRequest, flags: tuple[str, ...], folder: Path, progress: Progress) -> None:
        self._request = request
        self._flags = flags
        self._folder = folder
        self._progress = progress
        self._parser = MlirParser()
        self._diagnostics: list[Diagnostic] = []
        self._scopes: Mapping[int, tuple[str, ...]] = {}

    def run(self) -> bundle.Bundle:
        self._progress("reading the model")
        module, text = self._read()
        written = written_locations(module)
        tags = Tags(unused_prefix(self._request.model))
        tag_operations(module, tags, self._request.file_name)
        bytecode = self._folder / "model.mlirbc"
        with bytecode.open("wb") as file:
            module.operation.write_bytecode(file)
        with Compilation(bytecode, self._folder, self._flags) as compilation:
            self._progress("compiling")
            model = describe(self._parser, module, text, written, is_text=not self._is_bytecode)
            found = self._find_sources(model)
            try:
                graph = self._graph(compilation, model, tags, found)
            except ModelInvalid as error:
                raise ModelInvalid(self._own_message(str(error))) from error
            self._progress("writing the bundle")
            texts = self._texts(model, found)
            return bundle.store(self._request.target, graph, compilation.module, texts, force=self._request.force)

    @property
    def _is_bytecode(self) -> bool:
        return self._request.model.startswith(b"ML\xefR")

    def _read(self) -> tuple[Module, str]:
        try:
            return read_model(self._parser, self._request.model)
        except ModelInvalid as error:
            raise ModelInvalid(self._own_message(str(error))) from error

    def _own_message(self, ours: str) -> str:
        """iree-compile's own words about the model as it stands in its file; ours where it has none to say."""
        copy = self._folder / _safe_name(self._request.file_name)
        copy.write_bytes(self._request.model)
        said = compilers_own_message(copy, self._flags, self._folder / "unused.vmfb")
        said = said.replace(str(copy), self._request.file_name)
        message = said or ours.replace("-:", f"{self._request.file_name}:", 1)
        return f"{self._request.file_name}: cannot be compiled: {message}"

    def _graph(
        self, compilation: Compilation, model: SourceModel, tags: Tags, found: Sequence[FoundSource]
    ) -> TraceGraph:
        owner_of = {op.index: op.owner for op in model.operations}
        able = {op.index for op in model.operations if op.is_op and fates.can_be_member(op)}
        calls = {op.index: f"op{op.index}" for op in model.operations if op.is_op and is_call(op)}
        parts = _part_names(model)
        moves = {op.index for op in model.operations if op.is_op and fates.only_moves(op, parts.get(op.index, ()))}
        ids = {index: f"op{owner}" for index, owner in owner_of.items() if owner in able}
        members = TagOwners(tags, ids, calls, conversions_read(model, parts, moves))
        alive = self._alive_after_input(compilation, tags, owner_of)
        dataflow = Dataflow(model)
        regions = read_dispatch_creation(self._parser, self._parser.parse(compilation.wait_for("dispatch-creation")))
        flow = read_flow(self._parser, self._parser.parse(compilation.wait_for("flow")))
        located, diagnostics = SiteBuilder(members).sites(regions, flow)
        self._diagnostics += diagnostics
        twins = find_twins(model)
        sites = self._with_absorbed(located, model, dataflow, alive, twins)
        host_names = _host_names(flow, tags, owner_of)
        hal = read_hal(self._parser, self._parser.parse(compilation.wait_for("hal")))
        movers = {op.index for op in model.operations if op.is_op and not fates.is_structural(op)}
        moving = TagOwners(tags, {index: f"op{owner}" for index, owner in owner_of.items() if owner in movers}, calls)
        placed, buffers, diagnostics = place_commands(sites, flow, hal, moving)
        transfers, transfer_ids = find_transfers(hal, moving, public_callers(flow))
        self._diagnostics += diagnostics
        self._note_positions(model)
        ops = self._ops(model, dataflow, placed, host_names, twins)
        compilation.wait()
        functions = entry_points(flow, model)
        return TraceGraph(
            module=self._module_info(compilation.module, model),
            functions=functions,
            ops=ops,
            sites=placed,
            kernels=kernels_of(flow, placed),
            command_buffers=buffers,
            sources=(self._model_source(), *(each.source for each in found)),
            diagnostics=tuple(self._diagnostics),
            transfers=transfers,
            schedules=find_schedules(hal, [function.name for function in functions], transfer_ids),
        )

    @staticmethod
    def _alive_after_input(compilation: Compilation, tags: Tags, owner_of: Mapping[int, int]) -> frozenset[int]:
        """The ops that the compiler's input phase kept: what vanished there was simplified, not raised."""
        found = re.findall(rf'"{re.escape(tags.prefix)}(\d+)"', compilation.wait_for("input"))
        return frozenset(owner_of[int(index)] for index in found if int(index) in owner_of)

    @staticmethod
    def _with_absorbed(
        located: Sequence[Site],
        model: SourceModel,
        dataflow: Dataflow,
        alive: frozenset[int],
        twins: Mapping[int, int],
    ) -> tuple[Site, ...]:
        sites_of: dict[int, set[str]] = {}
        for site in located:
            for member in site.members:
                sites_of.setdefault(int(member.op.removeprefix("op")), set()).add(site.id)
        parts = _part_names(model)
        ops = [op for op in model.operations if op.is_op and op.index not in sites_of]
        passable = {
            op.index
            for op in ops
            if fates.only_moves(op, parts.get(op.index, ()))
            or is_call(op)
            or op.name in CONTROL_FLOW
            or (fates.is_structural(op) and op.name.endswith((".return", ".yield")))
        }
        candidates = {
            op.index
            for op in ops
            if op.index in alive
            and op.index not in passable
            and op.index not in dataflow.constant
            and fates.can_be_absorbed(op)
        }
        indifferent = {op.index for op in ops if asks_for_shape(op)}
        absorbed = AbsorbedFinder(dataflow, sites_of, candidates, passable, indifferent, twins).find()
        return add_absorbed(located, model, absorbed)

    def _note_positions(self, model: SourceModel) -> None:
        if not model.positions_known:
            text = "the model's text without its locations does not parse: lines of ops are unknown"
            self._diagnostics.append(Diagnostic("positions-unknown", text))

    def _ops(
        self,
        model: SourceModel,
        dataflow: Dataflow,
        sites: Sequence[Site],
        host_names: Mapping[int, frozenset[str]],
        twins: Mapping[int, int],
    ) -> tuple[Op, ...]:
        sites_of: dict[int, list[Site]] = {}
        for site in sites:
            for member in site.members:
                sites_of.setdefault(int(member.op.removeprefix("op")), []).append(site)
        parts: dict[int, list[SourceOperation]] = {}
        for operation in model.operations:
            if not operation.is_op:
                parts.setdefault(operation.owner, []).append(operation)
        self._scopes = scopes_of(model)
        around = fates.Surroundings(model, dataflow, sites_of, host_names, _part_names(model), twins)
        judged = fates.Judge(around).fates()
        return tuple(
            self._op(operation, parts.get(operation.index, ()), *judged[operation.index])
            for operation in model.operations
            if operation.is_op and operation.name != "builtin.module"
        )

    def _op(self, operation: SourceOperation, parts: Sequence[SourceOperation], fate: Fate, reason: Reason) -> Op:
        return Op(
            id=f"op{operation.index}",
            name=operation.name,
            function=operation.function,
            file=UNKNOWN if operation.line is UNKNOWN else self._request.file_name,
            line=operation.line,
            column=operation.column,
            scope=self._scopes[operation.index],
            frames=tuple(_frame(frame) for frame in frames(operation.location)),
            fate=fate,
            reason=reason,
            parts=tuple(Part(part.name, part.line, part.column) for part in parts),
        )

    def _find_sources(self, model: SourceModel) -> tuple[FoundSource, ...]:
        if not self._request.keep_sources:
            return ()
        names = {frame.place.file for op in model.operations for frame in frames(op.location)}
        return find_sources(names, self._request.source_roots)

    def _model_source(self) -> SourceFile:
        return SourceFile(self._request.file_name, _safe_name(self._request.file_name), "mlir")

    def _texts(self, model: SourceModel, found: Sequence[FoundSource]) -> dict[str, str]:
        if not self._request.keep_sources:
            return {}
        return {self._model_source().path: model.text, **{each.source.path: each.text for each in found}}

    def _module_info(self, module: Path, model: SourceModel) -> ModuleInfo:
        from iree.compiler import version

        digest = hashlib.sha256(module.read_bytes()).hexdigest()
        return ModuleInfo(model.name, digest, version.VERSION, self._flags)


def _part_names(model: SourceModel) -> dict[int, list[str]]:
    """The names of the parts of each op that has any."""
    names: dict[int, list[str]] = {}
    for operation in model.operations:
        if not operation.is_op:
            names.setdefault(operation.owner, []).append(operation.name)
    return names


def _host_names(flow: FlowProgram, tags: Tags, owner_of: Mapping[int, int]) -> dict[int, frozenset[str]]:
    """For each op the names of the host operations of the flow phase that carry its tag."""
    names: dict[int, set[str]] = {}
    for host_op in flow.host_ops:
        for index in tags.of(host_op.location):
            if index in owner_of:
                names.setdefault(owner_of[index], set()).add(host_op.name)
    return {index: frozenset(found) for index, found in names.items()}


def unused_prefix(model: bytes) -> str:
    """A prefix for tags that the model does not contain itself, so that none of its names can pass for a tag."""
    prefix = _TAG_PREFIX
    number = 0
    while prefix.encode() in model:
        number += 1
        prefix = f"tm{number}.op."
    return prefix


def entry_points(flow: FlowProgram, model: SourceModel) -> tuple[Function, ...]:
    """The functions that the runtime's tools can call, with the arguments that they take.

    The asynchronous form `f$async` of a function is left out, but tells the types that its wrapper `f` does not.
    """
    public = {function.name: function for function in flow.functions if function.public}
    found = []
    for name, function in public.items():
        if name.endswith("$async") and name.removesuffix("$async") in public:
            continue
        typed = public.get(f"{name}$async", function)
        written = model.arguments.get(name, ())
        arguments = tuple(
            Argument(f"input{place}", type_text, place < len(written) and written[place].loop_bound)
            for place, type_text in enumerate(typed.arguments)
        )
        found.append(Function(name, arguments))
    return tuple(found)


def _frame(frame: CodeFrame) -> Frame:
    function: Text = frame.function or UNKNOWN
    return Frame(frame.place.file, frame.place.line, frame.place.column or UNKNOWN, function)


def _safe_name(name: str) -> str:
    """A file name for the bundle: the model's own, without anything that could lead elsewhere."""
    safe = "".join(character if character.isalnum() or character in "._-" else "_" for character in Path(name).name)
    return safe.lstrip(".") or "model.mlir"
