"""Assembly of the trace graph from phase dumps, as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModelInvalid
from tracemap.functions import Argument, Function
from tracemap.graph.model import (
    SOURCE,
    Frame,
    Kernel,
    ModuleInfo,
    Op,
    OpId,
    Part,
    Site,
    SourceFile,
    TraceGraph,
    Transfer,
)
from tracemap.ir.flow import DispatchRegion, FlowProgram, read_dispatch_creation, read_flow, read_served
from tracemap.ir.hal import added_kernels, functions_of, read_added, read_hal
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.raising import RAISED, Raised, read_raised
from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.locations import MOST_NESTED, CodeFrame, frames
from tracemap.mapping.compiler.compiling import Phases
from tracemap.mapping.identity import Identity
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.kinds import can_be_member, is_global, is_structural
from tracemap.mapping.outcomes import Commands, Judge, Judgement, Survival
from tracemap.mapping.sites.calls import ASYNC_SUFFIX, inlined_later, public_callers, with_inlined
from tracemap.mapping.sites.cost import Misplaced, with_own_products
from tracemap.mapping.sites.horizontal_fusion import Group, add_beside, groups_beside
from tracemap.mapping.sites.members import rotation_in, with_amounts_apart, without_idle
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.raised import Idioms, add_raised, works_of_raised
from tracemap.mapping.sites.relabelled import StandIns, add_replaced, find_stand_ins, give_to_moves, replace_stand_ins
from tracemap.mapping.sites.schedules import MOVES, find_schedules, find_transfers, moves_untold
from tracemap.mapping.sites.sites import (
    PlacedSites,
    SiteBuilder,
    kernels_of,
    pair_bodies,
    place_commands,
    sites_by_op,
    with_kernels,
)
from tracemap.mapping.sites.steps import UntoldSteps, add_steps, sites_without_steps
from tracemap.mapping.sites.unknown_members import Untold, find_untold
from tracemap.units import UNKNOWN, Text, plural

# ---- dump reader
#
# The dumps of a compilation's phases, read as they come, and how far each op is still located in them.


class DumpReader:
    """Reads the dumps of phases, and notes which ops each still locates."""

    def __init__(self, parser: MlirParser, phases: Phases, identity: Identity) -> None:
        self._parser = parser
        self._phases = phases
        self._identity = identity
        self._noted: set[str] = set()
        self.survival = Survival()

    def text(self, phase: str) -> str:
        """The dump of a phase, as soon as it is there; "" where the compilation left it out."""
        if not self._phases.has(phase):
            return ""
        text = self._phases.wait_for(phase)
        if phase not in self._noted:
            self._noted.add(phase)
            with _naming(phase):
                self.survival.add(phase, self._identity.located(text))
        return text

    def is_gone_early(self, index: int) -> bool:
        """Whether an op is located in no phase from preprocessing on, as far as they were read."""
        return self.survival.last_phase(index) in (SOURCE, "input", "abi")

    def module(self, phase: str) -> Module:
        """The dump of a phase, parsed."""
        text = self.text(phase)
        with _naming(phase):
            return self._parser.parse(text, printed=self._phases.is_own)


@contextmanager
def _naming(phase: str) -> Iterator[None]:
    """Name the phase where its dump does not parse."""
    try:
        yield
    except ModelInvalid as error:
        raise ModelInvalid(f"the dump of the phase {phase} does not parse: {str(error).removeprefix('-:')}") from error


# ---- assembly
#
# Phase dumps -> trace graph: what `build` and `from_dumps` have in common.
#
# Early phases are read while the compiler still generates code; nothing here waits for more than it is about to read.


@dataclass(frozen=True, slots=True)
class _Found:
    """Sites with their members; of each the ops that are computed side by side, and those whose locations stood in for
    others; and what locations do not tell.
    """

    sites: tuple[Site, ...]
    beside: tuple[Group, ...]
    stand_ins: tuple[StandIns, ...]
    untold: Untold


class Assembly:
    """Makes the trace graph of a model from the phases of its compilation."""

    def __init__(self, parser: MlirParser, facts: ModelFacts, phases: Phases, identity: Identity) -> None:
        self._parser = parser
        self._facts = facts
        self._phases = phases
        self._dumps = DumpReader(parser, phases, identity)
        self._workers = Owners.among(facts, identity.provenance, can_be_member)
        # Constants do no work in a dispatch, but may well be what a copy or a step is of.
        self._movers = Owners.among(facts, identity.provenance, lambda op: not is_structural(op))
        # And what a kernel makes that no op works in may be a constant's, or the first value of a global.
        self._makers = Owners.among(facts, identity.provenance, lambda op: is_global(op) or not is_structural(op))
        self._anyone = Owners.among(facts, identity.provenance, lambda _: True)

    def graph(self, module: Callable[[], ModuleInfo], sources: Sequence[SourceFile]) -> TraceGraph:
        """Read the phases, in order, and put everything together.

        Args:
            module: asked once the compilation has ended.
            sources: the texts that are kept; the first is the model's.

        Raises:
            ModelInvalid: the compiler failed, or a phase that is needed cannot be read.
        """
        # In the order in which the compiler writes the dumps: each is read while it makes the next.
        self._facts.work_out()
        idioms = Idioms(self._workers, self._facts, self._raised())
        regions, misplaced = self._regions()
        flow = read_flow(self._parser, self._dumps.module("flow"))
        callers = public_callers(flow)
        host_names = self._host_names(flow)
        paired = pair_bodies(regions, flow.dispatches)
        bodies = [None if body is None or body.brought else body for body in paired]
        flow, bodies = self._with_inlined(flow, bodies)
        flow = self._with_added(flow, bodies)
        found = self._sites(flow, bodies, callers, regions, idioms)
        hal = with_kernels(read_hal(self._parser, self._dumps.module("hal")), flow.dispatches)
        placed = place_commands(found.sites, flow.dispatches, hal, self._movers, callers)
        transfers, transfer_ids = find_transfers(hal, self._movers, callers)
        commands = _commands(placed, transfers, has_unknown=moves_untold(hal, self._anyone))
        ops = self._ops(placed.sites, host_names, commands, found.untold.doubtful, sources[0].name)
        functions = entry_points(flow, self._facts.model)
        # Last, for the texts of the kernels are there when the compiler has ended.
        of_bodies = [misplaced.get(id(body), {}) for body in bodies]
        kernels = self._kernels(flow, placed.sites, bodies, idioms, found, of_bodies)
        return TraceGraph(
            module=module(),
            functions=functions,
            ops=ops,
            sites=placed.sites,
            kernels=kernels,
            command_buffers=placed.buffers,
            sources=tuple(sources),
            diagnostics=(
                *_missing_bodies(paired),
                *placed.diagnostics,
                *_missing_places(self._facts.model, ops),
                *_cut_locations(self._parser.cut_locations),
                *_missing_steps(kernels, placed.sites),
            ),
            transfers=transfers,
            schedules=find_schedules(hal, [function.name for function in functions], transfer_ids),
        )

    def _regions(self) -> tuple[list[DispatchRegion], Mapping[int, Misplaced]]:
        """The bodies of the dispatch-creation phase, and by the identity of each what was located elsewhere in it."""
        written = read_dispatch_creation(self._parser, self._dumps.module("dispatch-creation"))
        found = [with_own_products(region, self._workers, self._facts) for region in written]
        return [region for region, _ in found], {id(region): misplaced for region, misplaced in found}

    def _kernels(
        self,
        flow: FlowProgram,
        sites: Sequence[Site],
        bodies: Sequence[DispatchRegion | None],
        idioms: Idioms,
        found: _Found,
        misplaced: Sequence[Misplaced],
    ) -> tuple[Kernel, ...]:
        """The kernels with their steps, also of what no location tells."""
        pairs = zip(sites, bodies, strict=True)
        raised = [works_of_raised(site, body, idioms, self._facts) for site, body in pairs]
        rotations = [rotation_in(body, self._workers, self._facts) for body in bodies]
        conversions = self._facts.conversions.ops
        untold = UntoldSteps(raised, rotations, found.beside, found.stand_ins, misplaced, conversions)
        return add_steps(kernels_of(flow, sites), self._phases.kernels(), sites, bodies, untold, self._movers)

    def _with_inlined(
        self, flow: FlowProgram, bodies: list[DispatchRegion | None]
    ) -> tuple[FlowProgram, list[DispatchRegion | None]]:
        """The flow phase, and the bodies, with the dispatches of functions at each call that is inlined later."""
        functions = inlined_later(flow)
        left = functions_of(self._dumps.text("stream")) if functions else frozenset()
        return with_inlined(flow, bodies, functions - left) if left else (flow, bodies)

    def _with_added(self, flow: FlowProgram, bodies: list[DispatchRegion | None]) -> FlowProgram:
        """The flow phase with the kernels and dispatches that the stream phase adds; appends their bodies."""
        kernels = added_kernels(self._dumps.text("stream"), flow.kernels)
        if not kernels:
            return flow
        added = read_added(self._parser, self._dumps.module("stream"), kernels)
        bodies += [body for _, body in added]
        dispatches = (*flow.dispatches, *(dispatch for dispatch, _ in added))
        return replace(flow, kernels=(*flow.kernels, *kernels), dispatches=dispatches)

    def _sites(
        self,
        flow: FlowProgram,
        bodies: Sequence[DispatchRegion | None],
        callers: Mapping[str, str],
        regions: Sequence[DispatchRegion],
        idioms: Idioms,
    ) -> _Found:
        """Sites with all of their members: first those that locations tell, then what was absorbed into these."""
        untold = find_untold(flow.dispatches, bodies, self._workers, self._facts)
        builder = SiteBuilder(self._workers, self._makers, self._facts, callers, flow.called_by_initializers)
        sites = without_idle(untold.cleared(builder.sites(flow.dispatches, bodies)), self._facts)
        ordinals = {id(region): ordinal for ordinal, region in enumerate(regions)}
        empty = {
            place: (body, ordinals[id(body)])
            for place, (site, body) in enumerate(zip(sites, bodies, strict=True))
            if body is not None and not site.members and id(body) in ordinals and place not in untold.places
        }
        if empty:  # rarely, so that the phase is parsed again rather than kept
            module = self._dumps.module("dispatch-creation")
            served = read_served(self._parser, module, (ordinal for _, ordinal in empty.values()))
            for place, (body, ordinal) in empty.items():
                sites[place] = builder.with_served(sites[place], body, served[ordinal])
        sites = add_replaced(sites, bodies, self._facts, self._dumps.is_gone_early)
        stand_ins = find_stand_ins(sites, bodies, self._workers, self._facts)
        meant = replace_stand_ins(sites, stand_ins, self._facts)
        moved = give_to_moves(meant, bodies, self._facts)
        found = add_raised(moved, bodies, idioms, self._facts)
        beside = groups_beside(found, bodies, self._workers, self._facts)
        sites = untold.cleared([with_amounts_apart(site) for site in add_beside(found, beside, self._facts)])
        return _Found(tuple(sites), beside, stand_ins, untold)

    def _raised(self) -> tuple[Raised, ...]:
        """What operations were raised from; the phases that tell are parsed only where there are any."""
        before, after = "preprocessing", "global-optimization"
        for phase in ("input", "abi", before):
            self._dumps.text(phase)
        if not any(name in self._dumps.text(after) for name in RAISED):
            return ()
        try:
            return read_raised(self._parser, self._dumps.module(before), self._dumps.module(after))
        except ModelInvalid:  # the map can do without: the model's own shape tells of them, too
            return ()

    def _host_names(self, flow: FlowProgram) -> dict[int, frozenset[str]]:
        """For each op the names of the host operations of the flow phase that came from it."""
        names: dict[int, set[str]] = {}
        for host_op in flow.host_ops:
            for op in self._anyone.of(host_op.location):
                names.setdefault(op.number, set()).add(host_op.name)
        return {index: frozenset(found) for index, found in names.items()}

    def _ops(
        self,
        sites: Sequence[Site],
        host_names: Mapping[int, frozenset[str]],
        commands: Commands,
        doubtful: Set[int],
        file_name: str,
    ) -> tuple[Op, ...]:
        judged = Judge(self._facts, sites_by_op(sites), host_names, commands, doubtful).fates()
        of_the_module = (op for op in self._facts.ops if op.name != "builtin.module")
        return tuple(self._op(operation, judged[operation.index], file_name) for operation in of_the_module)

    def _op(self, operation: SourceOperation, judged: Judgement, file_name: str) -> Op:
        fate, reason = judged
        index = operation.index
        return Op(
            id=OpId.of(index),
            name=operation.name,
            function=operation.function,
            file=UNKNOWN if operation.line is UNKNOWN else file_name,
            line=operation.line,
            column=operation.column,
            scope=self._facts.scopes[index],
            frames=tuple(_frame(frame) for frame in frames(operation.location)),
            fate=fate,
            reason=reason,
            parts=tuple(Part(part.name, part.line, part.column) for part in self._facts.parts_of.get(index, ())),
            own_location=index in self._facts.with_location,
            last_phase=self._dumps.survival.last_phase(index),
        )


def _commands(placed: PlacedSites, transfers: Sequence[Transfer], *, has_unknown: bool) -> Commands:
    """What of the program became commands."""
    moving = [command for buffer in placed.buffers for command in buffer.commands if command.kind in MOVES]
    owned = [*(command.ops for command in moving), *(transfer.ops for transfer in transfers)]
    return Commands(
        moved=frozenset(op.number for ops in owned for op in ops),
        has_unknown=has_unknown,
        left_out=placed.left_out,
    )


def _missing_bodies(bodies: Sequence[DispatchRegion | None]) -> Iterator[Diagnostic]:
    if None in bodies:
        text = (
            "some dispatches of the flow phase have no body in the dispatch-creation phase: "
            "only what their locations name is known"
        )
        yield Diagnostic("bodies-missing", text)


def _missing_places(model: SourceModel, ops: Sequence[Op]) -> Iterator[Diagnostic]:
    """What the model's text and locations do not tell."""
    if not model.positions_known:
        text = "the model's text without its locations does not parse: lines of ops are unknown"
        yield Diagnostic("positions-unknown", text)
    absent = sum(1 for op in ops if not op.own_location)
    if absent > len(ops) // 2:
        text = (
            f"the model itself does not say where {absent} of {plural(len(ops), 'op')} come from "
            "(loc(unknown)): they are followed by tracemap's own tags; `tracemap audit` lists them"
        )
        yield Diagnostic("locations-absent", text)


def _cut_locations(count: int) -> Iterator[Diagnostic]:
    """That locations were not read whole. Each phase repeats those of the model, so how many is no number of ops."""
    if count:
        text = (
            f"there are locations that are nested more than {MOST_NESTED} deep: what lies deeper is cut off, and calls "
            "or names of it are not in the map"
        )
        yield Diagnostic("locations-cut", text)


def _missing_steps(kernels: Sequence[Kernel], sites: Sequence[Site]) -> Iterator[Diagnostic]:
    without = sites_without_steps(kernels, sites)
    if without:
        text = f"{plural(without, 'site')} with members of which no step of the kernel is known to be"
        yield Diagnostic("steps-unknown", text)


def module_info(file: Path, name: str, compiler: str, flags: tuple[str, ...]) -> ModuleInfo:
    """How the map names a compiled module; its file is read for its SHA-256."""
    return ModuleInfo(name, hashlib.sha256(file.read_bytes()).hexdigest(), compiler, flags)


def entry_points(flow: FlowProgram, model: SourceModel) -> tuple[Function, ...]:
    """The functions that the runtime's tools can call, with the arguments that they take.

    The asynchronous form `f$async` of a function is left out, but tells the types that its wrapper `f` does not.
    """
    public = {function.name: function for function in flow.functions if function.public}
    found = []
    for name, function in public.items():
        if name.endswith(ASYNC_SUFFIX) and name.removesuffix(ASYNC_SUFFIX) in public:
            continue
        typed = public.get(f"{name}{ASYNC_SUFFIX}", function)
        written = model.arguments.get(name, ())
        arguments = tuple(
            Argument(f"input{number}", type_text, number < len(written) and written[number].loop_bound)
            for number, type_text in enumerate(typed.arguments)
        )
        found.append(Function(name, arguments))
    return tuple(found)


def _frame(frame: CodeFrame) -> Frame:
    function: Text = frame.function or UNKNOWN
    return Frame(frame.place.file, frame.place.line, frame.place.column or UNKNOWN, function)
