"""The memory plan of a program: its allocations with the ops and dispatch sites that write and read them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tracemap.core.units import UNKNOWN, Text
from tracemap.ir.allocations import Access, Allocation, FunctionAllocations, GlobalStore, MemoryCommand, Size
from tracemap.ir.attributes import shape_of
from tracemap.ir.dispatch_bodies import BodyOp
from tracemap.ir.flow import DispatchRegion, FlowDispatch
from tracemap.ir.parsing import reachable
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS, SourceOperation
from tracemap.map.build.model.kinds import is_destination
from tracemap.map.build.model.model_facts import ModelFacts
from tracemap.map.build.sites.dispatch_sites import CommandJoin
from tracemap.map.build.sites.owners import Owners
from tracemap.map.memory import (
    FunctionMemory,
    MemoryAllocation,
    MemoryOp,
    MemoryPlan,
    MemoryStep,
    MemoryValue,
    StepRange,
)
from tracemap.map.model import OpId, Site, sort_ops

_STORE = "dispatch.tensor.store"
"""The end of the names of operations that write a result of a dispatch."""


def memory_plan(
    functions: Sequence[FunctionAllocations],
    sites: Sequence[Site],
    dispatches: Sequence[FlowDispatch],
    bodies: Sequence[DispatchRegion | None],
    owners: Owners,
    callers: Mapping[str, str],
    facts: ModelFacts,
) -> MemoryPlan:
    """The memory of all functions; sites, dispatches and bodies are in the order of the flow phase.

    Args:
        functions: the allocations of the host program.
        sites: the dispatch sites.
        dispatches: the dispatches of these sites.
        bodies: their bodies.
        owners: for copies, fills and allocations.
        callers: function -> the public function that users call to reach it.
        facts: the model's data flow leads from a value to the ops that read it.
    """
    return _Planner(functions, sites, dispatches, bodies, owners, callers, facts).plan()


@dataclass
class _Planner:
    functions: Sequence[FunctionAllocations]
    sites: Sequence[Site]
    dispatches: Sequence[FlowDispatch]
    bodies: Sequence[DispatchRegion | None]
    owners: Owners
    callers: Mapping[str, str]
    facts: ModelFacts

    def __post_init__(self) -> None:
        commands = (command for function in self.functions for step in function.steps for command in step)
        launches = [command for command in commands if command.kind == "dispatch"]
        self._join = CommandJoin(self.sites, self.dispatches, launches)
        pairs = zip(self.sites, self.bodies, strict=True)
        calls = Counter(callee for function in self.functions for callee in function.calls)
        inner = {callee for own in self.functions if own.steps or own.allocations for callee in own.calls}
        self._overlapping = inner | {callee for callee, count in calls.items() if count > 1}
        self._stored = {site.id: self._stored_ops(site, body) for site, body in pairs}
        self._site_by_id = {site.id: site for site in self.sites}
        self._readers_of_global: dict[str, list[MemoryCommand]] = defaultdict(list)
        for function in self.functions:
            for command in (command for step in function.steps for command in step):
                for name in command.globals_read:
                    self._readers_of_global[name].append(command)

    def plan(self) -> MemoryPlan:
        """The memory of the functions that the module has, and of its initializers."""
        known = {dispatch.function for dispatch in self.dispatches} | set(self.callers)
        used = [own for own in self.functions if own.steps or own.allocations]
        return MemoryPlan(
            functions=tuple(self._function(own) for own in used if own.function and own.function in known),
            initializers=tuple(self._function(own) for own in used if not own.function),
            ops=tuple(self._ops()),
        )

    def _ops(self) -> Iterator[MemoryOp]:
        """The ops on which results depend, with what they read."""
        flow = self.facts.dataflow
        for op in self.facts.ops:
            makers = flow.makers(op.index) if op.index in flow.live else []
            if makers or (op.index in flow.live and op.results):
                size = shape_of(op.results[0]).bytes if op.results else UNKNOWN
                yield MemoryOp(OpId.of(op.index), tuple(map(OpId.of, makers)), size, self._instead(op))

    def _instead(self, op: SourceOperation) -> Text:
        """The op whose result takes an op's place if it is removed."""
        model = self.facts.model
        if op.name in CONTROL_FLOW or len(op.results) != 1:
            return UNKNOWN
        for operand in op.operands:
            maker = self.facts.operations[operand.maker]
            if not operand.argument and is_destination(maker):
                continue
            if not operand.argument:
                if maker.results[operand.number] == op.results[0]:
                    return OpId.of(maker.owner)
            elif maker.name not in FUNCTIONS:
                return UNKNOWN  # what a loop carries
            else:
                arguments = model.arguments.get(maker.symbol, ())
                if operand.number < len(arguments) and arguments[operand.number].type == op.results[0]:
                    return self._passed(maker, operand.number)
        return UNKNOWN

    def _passed(self, function: SourceOperation, number: int) -> Text:
        """The op whose result is passed as an argument of a function: "" if it is none, unknown if it varies."""
        passed = reachable(
            self.facts.dataflow.unordered_makers((function.index, number)),
            lambda node: () if isinstance(node, int) else self.facts.dataflow.unordered_makers(node),
        )
        makers = [node for node in passed if isinstance(node, int)]
        if len(makers) > 1:
            return UNKNOWN
        return OpId.of(makers[0]) if makers else ""

    def _function(self, own: FunctionAllocations) -> FunctionMemory:
        name = self.callers.get(own.function, own.function)
        called = own.function if own.function in self._overlapping else ""
        return FunctionMemory(name, tuple(self._allocations(own)), tuple(map(self._step, own.steps)), called)

    def _step(self, commands: Sequence[MemoryCommand]) -> MemoryStep:
        sites = (self._site(command) for command in commands)
        moved = (op for command in commands if command.kind != "dispatch" for op in self.owners.of(command.location))
        return MemoryStep(tuple(site for site in sites if site), sort_ops(moved))

    def _site(self, command: MemoryCommand) -> str:
        site = self._join.of(command) if command.kind == "dispatch" else UNKNOWN
        return site if isinstance(site, str) else ""

    def _allocations(self, function: FunctionAllocations) -> Iterator[MemoryAllocation]:
        uses: dict[tuple[int, int], list[tuple[MemoryCommand, Access]]] = defaultdict(list)
        for step in function.steps:
            for command in step:
                for access in command.accesses:
                    uses[access.allocation, access.slice].append((command, access))
        stores: dict[tuple[int, int], list[GlobalStore]] = defaultdict(list)
        for store in function.stores:
            stores[store.allocation, store.slice].append(store)
        for number, allocation in enumerate(function.allocations):
            source = number if allocation.carried_from < 0 else allocation.carried_from
            yield MemoryAllocation(
                allocation.resource,
                tuple(self._values(source, allocation, uses, stores if not function.function else {})),
                tuple(StepRange(first, last) for first, last in allocation.alive),
                is_packed=bool(allocation.slices),
                is_carried=allocation.carried_from >= 0,
                is_kept=allocation.is_kept,
            )

    def _values(
        self,
        number: int,
        allocation: Allocation,
        uses: Mapping[tuple[int, int], Sequence[tuple[MemoryCommand, Access]]],
        stores: Mapping[tuple[int, int], Sequence[GlobalStore]],
    ) -> Iterator[MemoryValue]:
        """The values of an allocation; `stores`: globals that hold them when the module is loaded."""

        def value(indices: Sequence[int], size: Size, first: int = 0, last: int = 0) -> MemoryValue:
            used = [use for index in indices for use in uses.get((number, index), ())]
            stored = [store for index in indices for store in stores.get((number, index), ())]
            return self._value(allocation, used, stored, size, first, last)

        parts = range(len(allocation.parts))
        if allocation.slices:
            yield from (value([index], own.size, own.first, own.last) for index, own in enumerate(allocation.slices))
        elif parts and isinstance(allocation.size, int) and (number, -1) not in uses:
            yield from (value([index], allocation.parts[index].size) for index in parts)
            padding = allocation.size - sum(part.size for part in allocation.parts)
            if padding:
                yield MemoryValue(str(padding), (), (), (), (), 0, 0)
        else:
            yield value([-1, *parts], allocation.size)

    def _value(
        self,
        allocation: Allocation,
        uses: Sequence[tuple[MemoryCommand, Access]],
        stores: Sequence[GlobalStore],
        size: Size,
        first: int,
        last: int,
    ) -> MemoryValue:
        writes = [(command, access) for command, access in uses if access.writes]
        reads = [command for command, access in uses if access.reads]
        reads += [command for store in stores for command in self._readers_of_global[store.name]]
        found = [op for command, access in writes for op in self._written_ops(command, access)]
        # A constant has the location of its store; those that are loaded together share that of the allocation.
        if not found:
            found = [op for store in stores for op in self.owners.of(store.location)]
        if not found and not uses:
            owners = self.owners.of(allocation.location)
            found = list(owners) if len(owners) == 1 else []
        written_by = dict.fromkeys(filter(None, (self._site(command) for command, _ in writes)))
        read_by = tuple(dict.fromkeys(filter(None, map(self._site, reads))))
        text = str(size) if isinstance(size, int) else size
        ops = sort_ops(found)
        return MemoryValue(text, ops, tuple(written_by), read_by, self._reading_ops(ops, read_by), first, last)

    def _reading_ops(self, ops: Sequence[OpId], sites: Sequence[str]) -> tuple[OpId, ...]:
        """The ops in dispatch sites that are nearest to the ops of a value in the model; root ops if none is."""
        readers: list[OpId] = []
        for site in (self._site_by_id[site] for site in sites):
            members = {member.op.number for member in site.members}
            nearest = [OpId.of(number) for op in ops if (number := self._nearest(op.number, members)) is not None]
            readers += nearest or ([site.root.op] if site.root else [])
        return sort_ops(readers)

    def _nearest(self, op: int, members: Set[int]) -> int | None:
        # A weight that is transposed at compile time has the location of the op that reads it.
        return op if op in members else self.facts.dataflow.nearest(op, members, downwards=True)

    def _written_ops(self, command: MemoryCommand, access: Access) -> Sequence[OpId]:
        """The ops whose result a command writes by an access."""
        if command.kind != "dispatch":
            return self.owners.of(command.location)
        stored = self._stored.get(self._site(command), ())
        written = [own for own in command.accesses if own.writes]
        number = next(index for index, own in enumerate(written) if own is access)
        return (
            stored[number] if len(stored) == len(written) else tuple(dict.fromkeys(op for ops in stored for op in ops))
        )

    def _stored_ops(self, site: Site, body: DispatchRegion | None) -> tuple[tuple[OpId, ...], ...]:
        """For each result of a dispatch site, the ops that compute it; the root op if that is not known."""
        root = (site.root.op,) if site.root else ()
        if body is None:
            return (root,)
        stores = [op for op in body.body if op.name.endswith(_STORE) and len(op.operands) > 1]
        stores.sort(key=lambda store: store.operands[1].argument)
        members = {member.op for member in site.members}
        found = []
        for store in stores:
            ops = self._producers(body.body, store.operands[0].producer)
            found.append(tuple(op for op in ops if op in members) or root)
        return tuple(found) or (root,)

    def _producers(self, body: Sequence[BodyOp], index: int) -> tuple[OpId, ...]:
        return self.owners.of(body[index].location) if index >= 0 else ()
