"""Assembly of the trace graph from phase dumps, as they are read."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import ModelInvalid
from tracemap.core.functions import Argument, Function
from tracemap.core.locations import MOST_NESTED
from tracemap.core.units import plural
from tracemap.ir.allocations import read_allocations
from tracemap.ir.dispatch_bodies import RAISED_OPS, Raised, read_raised
from tracemap.ir.flow import DispatchRegion, FlowProgram, read_dispatch_creation, read_flow, read_result_users
from tracemap.ir.hal import functions_of, read_hal, read_stream_dispatches, stream_kernels
from tracemap.ir.parsing import MlirParser, Module
from tracemap.ir.source_model import BRANCHES, CONTROL_FLOW, SourceArgument, SourceModel
from tracemap.map.build.compiler.compilation import Phases
from tracemap.map.build.model.kinds import can_be_member, is_global, is_structural
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.outcomes import Commands, LastLocatedPhase, OutcomeRules, op_record
from tracemap.map.build.sites.cost import Misplaced, relocate_products
from tracemap.map.build.sites.dispatch_sites import (
    PlacedSites,
    SiteBuilder,
    kernels_of,
    pair_bodies,
    place_commands,
    sites_by_op,
    with_kernels,
)
from tracemap.map.build.sites.members import (
    UnknownMembers,
    drop_idle_members,
    find_rotation,
    find_unknown_members,
    separate_assumed_costs,
)
from tracemap.map.build.sites.memory import memory_plan
from tracemap.map.build.sites.owners import Owners
from tracemap.map.build.sites.raised_idioms import Idioms, add_raised, raised_ops_by_work
from tracemap.map.build.sites.relabelled_ops import (
    HorizontalGroup,
    Relabelling,
    add_horizontal_members,
    add_replaced_ops,
    assign_to_moves,
    find_horizontal_groups,
    find_stand_ins,
    restore_relabelled,
)
from tracemap.map.build.sites.schedules import (
    ASYNC_SUFFIX,
    MOVES,
    find_schedules,
    find_transfers,
    has_unknown_moves,
    inlined_later,
    public_callers,
    with_inlined,
)
from tracemap.map.build.sites.steps import UnlocatedSteps, add_steps, sites_without_steps
from tracemap.map.build.tagging import Identity
from tracemap.map.memory import MemoryPlan
from tracemap.map.model import (
    SOURCE,
    Kernel,
    ModuleInfo,
    Op,
    Site,
    SourceFile,
    TraceGraph,
    Transfer,
)

# ---- dump reader


class DumpReader:
    """Reads the dumps of phases, and records which ops each still locates."""

    def __init__(self, parser: MlirParser, phases: Phases, identity: Identity) -> None:
        self._parser = parser
        self._phases = phases
        self._identity = identity
        self._recorded: set[str] = set()
        self.survival = LastLocatedPhase()

    def text(self, phase: str) -> str:
        """Wait for the dump of a phase; "" if the compilation skips that phase."""
        if not self._phases.has(phase):
            return ""
        text = self._phases.wait_for(phase)
        if phase not in self._recorded:
            self._recorded.add(phase)
            with _phase_in_errors(phase):
                self.survival.add(phase, self._identity.located(text))
        return text

    def is_gone_early(self, index: int) -> bool:
        """Whether no phase read so far locates an op from preprocessing on."""
        return self.survival.last_phase(index) in (SOURCE, "input", "abi")

    def module(self, phase: str) -> Module:
        """Parse the dump of a phase."""
        text = self.text(phase)
        with _phase_in_errors(phase):
            return self._parser.parse(text, printed=self._phases.is_own)


@contextmanager
def _phase_in_errors(phase: str) -> Iterator[None]:
    """Add the phase to the error if its dump does not parse."""
    try:
        yield
    except ModelInvalid as error:
        raise ModelInvalid(f"the dump of the phase {phase} does not parse: {str(error).removeprefix('-:')}") from error


# ---- assembly
#
# Phase dumps -> trace graph, the common part of `build` and `from_dumps`.
#
# The early phases are read while the compiler still generates code; no step waits for more than its next dump.


@dataclass(frozen=True, slots=True)
class _SiteMembers:
    """Dispatch sites with their ops; for each site the ops computed side by side and the relabelled ops; and the sites
    whose ops are unknown.
    """

    sites: tuple[Site, ...]
    horizontal_groups: tuple[HorizontalGroup, ...]
    stand_ins: tuple[Relabelling, ...]
    unknown_members: UnknownMembers


class Assembly:
    """Makes the trace graph of a model from the phases of its compilation."""

    def __init__(self, parser: MlirParser, facts: ModelFacts, phases: Phases, identity: Identity) -> None:
        self._parser = parser
        self._facts = facts
        self._phases = phases
        self._dumps = DumpReader(parser, phases, identity)
        self._workers = Owners.among(facts, identity.provenance, can_be_member)
        # A constant never runs in a dispatch, but a copy or a line of IR may belong to it.
        self._movers = Owners.among(facts, identity.provenance, lambda op: not is_structural(op))
        # A kernel without working ops may make a constant or the initial value of a global.
        self._makers = Owners.among(facts, identity.provenance, lambda op: is_global(op) or not is_structural(op))
        self._all = Owners.among(facts, identity.provenance, lambda _: True)
        self._branches = Owners.among(facts, identity.provenance, lambda op: op.name in CONTROL_FLOW | BRANCHES)
        self.memory: MemoryPlan | None = None
        """The memory of the program; None if the compilation does not tell."""

    def graph(self, module: Callable[[], ModuleInfo], sources: Sequence[SourceFile]) -> TraceGraph:
        """Read the phases, in order, and assemble the map.

        Args:
            module: called once the compilation has ended.
            sources: the texts to keep; the first is the model's.

        Raises:
            ModelInvalid: the compiler failed, or a required phase cannot be read.
        """
        # In the order of the compiler's dumps, so that each is read while the compiler makes the next.
        self._facts.precompute()
        idioms = Idioms(self._workers, self._facts, self._raised())
        regions, misplaced = self._regions()
        flow = read_flow(self._parser, self._dumps.module("flow"))
        callers = public_callers(flow)
        host_names = self._host_names(flow)
        paired = pair_bodies(regions, flow.dispatches)
        bodies = [None if body is None or body.brought else body for body in paired]
        flow, bodies = self._with_inlined(flow, bodies)
        flow = self._with_added(flow, bodies)
        site_members = self._sites(flow, bodies, callers, regions, idioms)
        hal = with_kernels(read_hal(self._parser, self._dumps.module("hal")), flow.dispatches)
        placed = place_commands(site_members.sites, flow.dispatches, hal, self._movers, callers)
        transfers, transfer_ids = find_transfers(hal, self._movers, callers)
        commands = _commands(placed, transfers, has_unknown=has_unknown_moves(hal, self._all))
        ops = self._ops(placed.sites, host_names, commands, site_members.unknown_members.doubtful, sources[0].name)
        functions = entry_points(flow, self._facts.model)
        self._plan_memory(placed.sites, flow, bodies, callers)
        # Last, since the texts of the kernels exist only when the compiler has ended.
        misplaced_by_body = [misplaced.get(id(body), {}) for body in bodies]
        kernels = self._kernels(flow, placed.sites, bodies, idioms, site_members, misplaced_by_body)
        return TraceGraph(
            module=module(),
            functions=functions,
            ops=ops,
            sites=placed.sites,
            kernels=kernels,
            command_buffers=placed.buffers,
            sources=tuple(sources),
            diagnostics=tuple(self._diagnostics(paired, placed, ops, kernels)),
            transfers=transfers,
            schedules=find_schedules(hal, [function.name for function in functions], transfer_ids, self._branches),
        )

    def _plan_memory(
        self,
        sites: Sequence[Site],
        flow: FlowProgram,
        bodies: Sequence[DispatchRegion | None],
        callers: Mapping[str, str],
    ) -> None:
        text = self._phases.allocations()
        if text:
            with suppress(ModelInvalid):  # other flags of the user may print something else in between
                functions = read_allocations(self._parser, self._parser.parse(text, printed=self._phases.is_own))
                self.memory = memory_plan(functions, sites, flow.dispatches, bodies, self._movers, callers, self._facts)

    def _regions(self) -> tuple[list[DispatchRegion], Mapping[int, Misplaced]]:
        """The bodies of the dispatch-creation phase, and by the id() of each the operations with a wrong location."""
        regions = read_dispatch_creation(self._parser, self._dumps.module("dispatch-creation"))
        corrected = [relocate_products(region, self._workers, self._facts) for region in regions]
        return [region for region, _ in corrected], {id(region): misplaced for region, misplaced in corrected}

    def _kernels(
        self,
        flow: FlowProgram,
        sites: Sequence[Site],
        bodies: Sequence[DispatchRegion | None],
        idioms: Idioms,
        site_members: _SiteMembers,
        misplaced: Sequence[Misplaced],
    ) -> tuple[Kernel, ...]:
        """The kernels with their steps, including steps without locations."""
        pairs = zip(sites, bodies, strict=True)
        raised = [raised_ops_by_work(site, body, idioms, self._facts) for site, body in pairs]
        rotations = [find_rotation(body, self._workers, self._facts) for body in bodies]
        conversions = self._facts.conversions.ops
        unlocated = UnlocatedSteps(
            raised, rotations, site_members.horizontal_groups, site_members.stand_ins, misplaced, conversions
        )
        return add_steps(kernels_of(flow, sites), self._phases.kernels(), sites, bodies, unlocated, self._movers)

    def _with_inlined(
        self, flow: FlowProgram, bodies: list[DispatchRegion | None]
    ) -> tuple[FlowProgram, list[DispatchRegion | None]]:
        """Copy the dispatches and bodies of functions to the calls that the compiler inlines later."""
        functions = inlined_later(flow)
        left = functions_of(self._dumps.text("stream")) if functions else frozenset()
        return with_inlined(flow, bodies, functions - left) if left else (flow, bodies)

    def _with_added(self, flow: FlowProgram, bodies: list[DispatchRegion | None]) -> FlowProgram:
        """Add the kernels and dispatches that the stream phase creates; appends their bodies to `bodies`."""
        kernels = stream_kernels(self._dumps.text("stream"), flow.kernels)
        if not kernels:
            return flow
        added = read_stream_dispatches(self._parser, self._dumps.module("stream"), kernels)
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
    ) -> _SiteMembers:
        """The sites with all their ops: first those with locations, then those absorbed into the same dispatch."""
        unknown_members = find_unknown_members(flow.dispatches, bodies, self._workers, self._facts)
        builder = SiteBuilder(self._workers, self._makers, self._facts, callers, flow.called_by_initializers)
        sites = drop_idle_members(unknown_members.cleared(builder.sites(flow.dispatches, bodies)), self._facts)
        ordinals = {id(region): ordinal for ordinal, region in enumerate(regions)}
        empty = {
            index: (body, ordinals[id(body)])
            for index, (site, body) in enumerate(zip(sites, bodies, strict=True))
            if body is not None and not site.members and id(body) in ordinals and index not in unknown_members.sites
        }
        if empty:  # rare, so the phase is parsed again instead of kept
            module = self._dumps.module("dispatch-creation")
            served = read_result_users(self._parser, module, (ordinal for _, ordinal in empty.values()))
            for index, (body, ordinal) in empty.items():
                sites[index] = builder.with_user_op(sites[index], body, served[ordinal])
        sites = add_replaced_ops(sites, bodies, self._facts, self._dumps.is_gone_early)
        stand_ins = find_stand_ins(sites, bodies, self._workers, self._facts)
        restored = restore_relabelled(sites, stand_ins, self._facts)
        attributed = assign_to_moves(restored, bodies, self._facts)
        with_raised = add_raised(attributed, bodies, idioms, self._facts)
        horizontal_groups = find_horizontal_groups(with_raised, bodies, self._workers, self._facts)
        sites = unknown_members.cleared(
            [
                separate_assumed_costs(site)
                for site in add_horizontal_members(with_raised, horizontal_groups, self._facts)
            ]
        )
        return _SiteMembers(tuple(sites), horizontal_groups, stand_ins, unknown_members)

    def _raised(self) -> tuple[Raised, ...]:
        """The operations that the compiler raised; the phases are parsed only if there are any."""
        before, after = "preprocessing", "global-optimization"
        for phase in ("input", "abi", before):
            self._dumps.text(phase)
        if not any(name in self._dumps.text(after) for name in RAISED_OPS):
            return ()
        try:
            return read_raised(self._parser, self._dumps.module(before), self._dumps.module(after))
        except ModelInvalid:  # not essential, since the model's own shape also shows them
            return ()

    def _host_names(self, flow: FlowProgram) -> dict[int, frozenset[str]]:
        """The names of the host operations in the flow phase that came from each op."""
        names: dict[int, set[str]] = {}
        for host_op in flow.host_ops:
            for op in self._all.of(host_op.location):
                names.setdefault(op.number, set()).add(host_op.name)
        return {index: frozenset(names_of_op) for index, names_of_op in names.items()}

    def _ops(
        self,
        sites: Sequence[Site],
        host_names: Mapping[int, frozenset[str]],
        commands: Commands,
        doubtful: Set[int],
        file_name: str,
    ) -> tuple[Op, ...]:
        judgements = OutcomeRules(self._facts, sites_by_op(sites), host_names, commands, doubtful).outcomes()
        operations = (op for op in self._facts.ops if op.name != "builtin.module")
        survival = self._dumps.survival
        return tuple(
            op_record(self._facts, op, judgements[op.index], file_name, survival.last_phase(op.index))
            for op in operations
        )

    def _diagnostics(
        self,
        bodies: Sequence[DispatchRegion | None],
        placed: PlacedSites,
        ops: Sequence[Op],
        kernels: Sequence[Kernel],
    ) -> Iterator[Diagnostic]:
        """Diagnostics about all that is missing from the map."""
        if None in bodies:
            text = (
                "some dispatches of the flow phase have no body in the dispatch-creation phase, so only the ops that "
                "their locations name are known"
            )
            yield Diagnostic("bodies-missing", text)
        yield from placed.diagnostics
        if not self._facts.model.positions_known:
            text = "the model's text does not parse without its locations, so the lines of ops are unknown"
            yield Diagnostic("positions-unknown", text)
        unlocated = sum(1 for op in ops if not op.own_location)
        if unlocated > len(ops) // 2:
            text = (
                f"{unlocated} of {plural(len(ops), 'op')} have no location in the model (loc(unknown)), so tracemap "
                "follows them by its own tags; `tracemap audit` lists them"
            )
            yield Diagnostic("locations-absent", text)
        if self._parser.cut_locations:  # without their number, since each phase repeats those of the model
            text = (
                f"some locations are nested more than {MOST_NESTED} deep and were truncated, so the map lacks the "
                "calls and names below"
            )
            yield Diagnostic("locations-cut", text)
        if count := sites_without_steps(kernels, placed.sites):
            text = f"{plural(count, 'dispatch')} with ops, but without a line of kernel IR for any of them"
            yield Diagnostic("steps-unknown", text)


def _commands(placed: PlacedSites, transfers: Sequence[Transfer], *, has_unknown: bool) -> Commands:
    """The ops that became commands."""
    moving = [command for buffer in placed.buffers for command in buffer.commands if command.kind in MOVES]
    ops_of_commands = [*(command.ops for command in moving), *(transfer.ops for transfer in transfers)]
    return Commands(
        moved=frozenset(op.number for ops in ops_of_commands for op in ops),
        has_unknown=has_unknown,
        left_out=placed.left_out,
    )


def module_info(
    file: Path,
    name: str,
    compiler: str,
    flags: tuple[str, ...],
    stored: Literal["module.vmfb", "module.so"] = "module.vmfb",
) -> ModuleInfo:
    """The record of a compiled module, with the SHA-256 of its file; `stored`: its name in the bundle."""
    return ModuleInfo(name, hashlib.sha256(file.read_bytes()).hexdigest(), compiler, flags, stored)


def entry_points(flow: FlowProgram, model: SourceModel) -> tuple[Function, ...]:
    """The functions that the runtime's tools can call, with their arguments.

    The asynchronous form `f$async` of a function is left out, but supplies the types that its wrapper `f` lacks.
    """
    public = {function.name: function for function in flow.functions if function.public}
    functions = []
    for name, function in public.items():
        if name.endswith(ASYNC_SUFFIX) and name.removesuffix(ASYNC_SUFFIX) in public:
            continue
        typed = public.get(f"{name}{ASYNC_SUFFIX}", function)
        known = model.arguments.get(name, ())
        names = _argument_names(len(typed.arguments), known)
        arguments = tuple(
            Argument(names[index], type_text, index < len(known) and known[index].loop_bound)
            for index, type_text in enumerate(typed.arguments)
        )
        functions.append(Function(name, arguments))
    return tuple(functions)


def _argument_names(count: int, known: Sequence[SourceArgument]) -> list[str]:
    """Names of arguments in the program; IREE's own name, which has the index, for those with no name of their own."""
    names = [argument.name for argument in known] if len(known) == count else [""] * count
    counts = Counter(names)
    return [
        name if name and counts[name] == 1 and not _IREE_NAME.fullmatch(name) else f"input{index}"
        for index, name in enumerate(names)
    ]


_IREE_NAME: Final = re.compile(r"input\d+")
