"""Phase dumps -> trace graph: what `build` and `from_dumps` have in common.

Early phases are read while the compiler still generates code; nothing here waits for more than it is about to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModelInvalid
from tracemap.graph.model import (
    Argument,
    Fate,
    Frame,
    Function,
    Kernel,
    ModuleInfo,
    Op,
    OpId,
    Part,
    Reason,
    Site,
    SourceFile,
    TraceGraph,
)
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.phases import FlowProgram, read_dispatch_creation, read_flow, read_hal
from tracemap.ir.source import CONTROL_FLOW, SourceModel, SourceOperation
from tracemap.locations import CodeFrame, Tags, frames
from tracemap.mapping.compiler.compiling import Phases
from tracemap.mapping.fates import fates
from tracemap.mapping.fates.survival import Survival, owners_in
from tracemap.mapping.model.conversions import Conversions
from tracemap.mapping.model.dataflow import Dataflow, asks_for_shape, is_call
from tracemap.mapping.model.origins import Origins
from tracemap.mapping.model.raised import SoftmaxFinder
from tracemap.mapping.model.scopes import scopes_of
from tracemap.mapping.model.twins import find_twins
from tracemap.mapping.sites.absorbed import AbsorbedFinder, add_absorbed, raised_in
from tracemap.mapping.sites.members import TagOwners
from tracemap.mapping.sites.schedules import find_schedules, find_transfers
from tracemap.mapping.sites.sites import SiteBuilder, kernels_of, pair_regions, place_commands, public_callers
from tracemap.mapping.sites.steps import add_steps, sites_without_steps
from tracemap.units import UNKNOWN, Text, plural


class Identity(Protocol):
    """How operations of the phases are known to come from operations of the model."""

    @property
    def tags(self) -> Tags:
        """What a location says about where an operation came from."""

    def located(self, text: str) -> frozenset[int]:
        """The indices of the ops that the dump of a phase still locates."""

    def mentioned(self, text: str) -> frozenset[int]:
        """The indices of the ops that a dump names at all, be it as the place of a block argument or of a call."""


@contextmanager
def _naming(phase: str) -> Iterator[None]:
    """Name the phase where its dump does not parse."""
    try:
        yield
    except ModelInvalid as error:
        raise ModelInvalid(f"the dump of the phase {phase} does not parse: {str(error).removeprefix('-:')}") from error


class TagIdentity:
    """By the tags that tracemap put in: exact."""

    def __init__(self, tags: Tags, model: SourceModel) -> None:
        self._tags = tags
        self._owner_of = {op.index: op.owner for op in model.operations}

    @property
    def tags(self) -> Tags:
        """The tags themselves."""
        return self._tags

    def located(self, text: str) -> frozenset[int]:
        """The ops whose tags stand on operations of the text."""
        return owners_in(text, self._tags.prefix, self._owner_of)

    def mentioned(self, text: str) -> frozenset[int]:
        """The ops whose tags stand anywhere in the text."""
        found = re.findall(rf'"{re.escape(self._tags.prefix)}(\d+)"', text)
        return frozenset(self._owner_of[int(index)] for index in found if int(index) in self._owner_of)


class Assembly:
    """Makes the trace graph of a model from the phases of its compilation.

    `own`: the indices of the operations that have a location of their own.
    """

    def __init__(
        self, parser: MlirParser, model: SourceModel, phases: Phases, identity: Identity, own: frozenset[int]
    ) -> None:
        self._parser = parser
        self._model = model
        self._phases = phases
        self._identity = identity
        self._own = own
        self._survival = Survival()
        self._diagnostics: list[Diagnostic] = []
        self._scopes: Mapping[int, tuple[str, ...]] = {}

    def graph(self, module: Callable[[], ModuleInfo], sources: Sequence[SourceFile]) -> TraceGraph:
        """Read the phases, in order, and put everything together.

        Args:
            module: asked once the compilation has ended.
            sources: the texts that are kept; the first is the model's.

        Raises:
            ModelInvalid: the compiler failed, or a phase that is needed cannot be read.
        """
        model, tags = self._model, self._identity.tags
        owner_of = {op.index: op.owner for op in model.operations}
        able = {op.index for op in model.operations if op.is_op and fates.can_be_member(op)}
        calls = {op.index: OpId.of(op.index) for op in model.operations if op.is_op and is_call(op)}
        parts = _part_names(model)
        moves = {op.index for op in model.operations if op.is_op and fates.only_moves(op, parts.get(op.index, ()))}
        ids = {index: OpId.of(owner) for index, owner in owner_of.items() if owner in able}
        origins = Origins(model, moves)
        members = TagOwners(tags, ids, calls, Conversions(model, parts, origins))
        alive = self._identity.mentioned(self._look_at("input"))
        dataflow = Dataflow(model)
        for phase in ("abi", "preprocessing", "global-optimization"):
            self._look_at(phase)
        regions = read_dispatch_creation(self._parser, self._parsed("dispatch-creation"))
        flow = read_flow(self._parser, self._parsed("flow"))
        located, diagnostics = SiteBuilder(members).sites(regions, flow)
        self._diagnostics += diagnostics
        twins = find_twins(model)
        bodies, _ = pair_regions(regions, flow.dispatches)
        raised = raised_in(located, bodies, members, SoftmaxFinder(model, origins))
        sites = self._with_absorbed(located, model, dataflow, alive, twins, raised)
        host_names = _host_names(flow, tags, owner_of)
        self._look_at("stream")
        hal = read_hal(self._parser, self._parsed("hal"))
        movers = {op.index for op in model.operations if op.is_op and not fates.is_structural(op)}
        moving = TagOwners(tags, {index: OpId.of(owner) for index, owner in owner_of.items() if owner in movers}, calls)
        placed, buffers, diagnostics = place_commands(sites, flow, hal, moving)
        transfers, transfer_ids = find_transfers(hal, moving, public_callers(flow))
        self._diagnostics += diagnostics
        ops = self._ops(model, dataflow, placed, host_names, twins, sources[0].name)
        self._note_places(ops)
        functions = entry_points(flow, model)
        kernels = add_steps(kernels_of(flow, placed), self._phases.kernels(), placed, bodies, moving)
        self._note_steps(kernels, placed)
        return TraceGraph(
            module=module(),
            functions=functions,
            ops=ops,
            sites=placed,
            kernels=kernels,
            command_buffers=buffers,
            sources=tuple(sources),
            diagnostics=tuple(self._diagnostics),
            transfers=transfers,
            schedules=find_schedules(hal, [function.name for function in functions], transfer_ids),
        )

    def _note_steps(self, kernels: Sequence[Kernel], sites: Sequence[Site]) -> None:
        without = sites_without_steps(kernels, sites)
        if without:
            text = f"{plural(without, 'site')} have members of which no step of their kernel is known to be"
            self._diagnostics.append(Diagnostic("steps-unknown", text))

    def _look_at(self, phase: str) -> str:
        """The dump of a phase, after noting which ops it still locates; "" where the compilation left it out."""
        if not self._phases.has(phase):
            return ""
        text = self._phases.wait_for(phase)
        with _naming(phase):
            self._survival.add(phase, self._identity.located(text))
        return text

    def _parsed(self, phase: str) -> Module:
        text = self._look_at(phase)
        with _naming(phase):
            return self._parser.parse(text)

    @staticmethod
    def _with_absorbed(
        located: Sequence[Site],
        model: SourceModel,
        dataflow: Dataflow,
        alive: frozenset[int],
        twins: Mapping[int, int],
        raised: Mapping[int, frozenset[str]],
    ) -> tuple[Site, ...]:
        sites_of: dict[int, set[str]] = {}
        for site in located:
            for member in site.members:
                sites_of.setdefault(member.op.number, set()).add(site.id)
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
        both = {op: absorbed.get(op, frozenset()) | raised.get(op, frozenset()) for op in absorbed.keys() | raised}
        return add_absorbed(located, model, both)

    def _note_places(self, ops: Sequence[Op]) -> None:
        """Say what the model's text and locations do not tell."""
        if not self._model.positions_known:
            text = "the model's text without its locations does not parse: lines of ops are unknown"
            self._diagnostics.append(Diagnostic("positions-unknown", text))
        absent = sum(1 for op in ops if not op.own_location)
        if absent > len(ops) // 2:
            text = (
                f"the model itself says of {plural(absent, 'op')} of {len(ops)} not where they come from "
                "(loc(unknown)): they are followed by tracemap's own tags; `tracemap audit` lists them"
            )
            self._diagnostics.append(Diagnostic("locations-absent", text))

    def _ops(
        self,
        model: SourceModel,
        dataflow: Dataflow,
        sites: Sequence[Site],
        host_names: Mapping[int, frozenset[str]],
        twins: Mapping[int, int],
        file_name: str,
    ) -> tuple[Op, ...]:
        sites_of: dict[int, list[Site]] = {}
        for site in sites:
            for member in site.members:
                sites_of.setdefault(member.op.number, []).append(site)
        parts: dict[int, list[SourceOperation]] = {}
        for operation in model.operations:
            if not operation.is_op:
                parts.setdefault(operation.owner, []).append(operation)
        self._scopes = scopes_of(model)
        around = fates.Surroundings(model, dataflow, sites_of, host_names, _part_names(model), twins)
        judged = fates.Judge(around).fates()
        return tuple(
            self._op(operation, parts.get(operation.index, ()), *judged[operation.index], file_name)
            for operation in model.operations
            if operation.is_op and operation.name != "builtin.module"
        )

    def _op(
        self,
        operation: SourceOperation,
        parts: Sequence[SourceOperation],
        fate: Fate,
        reason: Reason,
        file_name: str,
    ) -> Op:
        return Op(
            id=OpId.of(operation.index),
            name=operation.name,
            function=operation.function,
            file=UNKNOWN if operation.line is UNKNOWN else file_name,
            line=operation.line,
            column=operation.column,
            scope=self._scopes[operation.index],
            frames=tuple(_frame(frame) for frame in frames(operation.location)),
            fate=fate,
            reason=reason,
            parts=tuple(Part(part.name, part.line, part.column) for part in parts),
            own_location=operation.index in self._own,
            last_phase=self._survival.last_phase(operation.index),
        )


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
