"""The memory of a function without some ops, from the model's data flow and the compiler's plan.

The users of a removed op use its first operand of the same type. Ops that nothing else needs are gone as well. The
compiler might fuse the rest in another way, which only a recompilation shows: then the result is an estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.memory import (
    RESULT,
    FunctionMemory,
    MemoryAllocation,
    MemoryPlan,
    MemoryValue,
    StepRange,
    first_step,
    needing_steps,
)
from tracemap.map.model import Membership, OpId, TraceGraph

SiteWork = Mapping[str, Mapping[OpId, Integer]]
"""The ops that compute in each dispatch site, with their operations; without fills and pure data movement."""


def computing_ops(graph: TraceGraph) -> SiteWork:
    """The ops of each dispatch site that compute something."""
    found = {site.id: {member.op: _operations(member) for member in site.members} for site in graph.sites}
    return {site: {op: work for op, work in ops.items() if work != 0} for site, ops in found.items()}


def _operations(member: Membership) -> Integer:
    return member.operations if isinstance(member.operations, int) else member.assumed_operations


def without_ops(
    plan: MemoryPlan, function: FunctionMemory, removed: frozenset[OpId], computing: SiteWork
) -> tuple[FunctionMemory, bool]:
    """A function without some ops, and whether it is an estimate, since the compiler may fuse the rest in another way.

    A result stays, since something must be returned: what it was made from becomes the result.
    """
    return _Remover(_Flow(plan, removed, computing), function, computing).left()


# ---- data flow


class _Flow:
    """The model's data flow, in which the users of removed ops use other ops.

    `gone`: the removed ops, and those that nothing else needs.
    """

    def __init__(self, plan: MemoryPlan, removed: frozenset[OpId], computing: SiteWork) -> None:
        self.removed = removed
        self.op_by_id = {op.op: op for op in plan.ops}
        self.sites_of: dict[OpId, list[str]] = {}
        for site, ops in computing.items():
            for op in ops:
                self.sites_of.setdefault(op, []).append(site)
        read = {reads for op in plan.ops for reads in op.reads}
        worklist = [op.op for op in plan.ops if op.op not in read and op.op not in removed]
        live = set(worklist)
        for op in worklist:  # grows in the loop
            more = [reads for reads in self.reads(op) if reads not in live]
            live.update(more)
            worklist += more
        self.gone = removed | (self.op_by_id.keys() - live if live else frozenset())

    def reads(self, op: OpId) -> set[OpId]:
        """The ops whose results an op uses after the edit."""
        return {left for reads in self._own_reads(op) for left in self._instead_of(reads, frozenset())}

    def _own_reads(self, op: OpId) -> Sequence[OpId]:
        return self.op_by_id[op].reads if op in self.op_by_id else ()

    def _instead_of(self, op: OpId, visited: frozenset[OpId]) -> Iterator[OpId]:
        """The ops that the users of an op use: itself, or others if it is removed."""
        if op not in self.removed:
            yield op
        elif op not in visited and op in self.op_by_id:
            instead = self.op_by_id[op].instead
            following = self._own_reads(op) if not isinstance(instead, str) else [OpId(instead)] if instead else []
            for other in following:
                yield from self._instead_of(other, visited | {op})

    def instead(self, op: OpId, stored: Collection[OpId]) -> tuple[Text, bool]:
        """The op whose value takes the place of a removed op's value, and whether it is the only possible one.

        It is "" for a value of no op, and unknown if there are several of other sizes.
        """
        found: dict[OpId, None] = {}
        visited: set[OpId] = set()
        worklist = list(self._instead_of(op, frozenset()))
        for other in worklist:  # grows in the loop
            if other in self.sites_of or other in stored:
                found[other] = None
            elif other not in visited:
                visited.add(other)
                worklist += sorted(self.reads(other) - visited, key=lambda reads: reads.number)
        if len(found) < 2:
            return next(iter(found), ""), True
        # Loops pass on one of several values, of which the last one is made inside.
        size = self.bytes(op)
        same = [other for other in found if isinstance(size, int) and self.bytes(other) == size]
        instead: Text = max(same, key=lambda other: other.number, default=UNKNOWN)
        return instead, False

    def is_read(self, op: OpId, ops: Collection[OpId], *, edited: bool) -> bool:
        """Whether an op uses results of others, directly or through ops that compute nothing."""
        worklist = [op]
        for current in worklist:  # grows in the loop
            reads = self.reads(current) if edited else self._own_reads(current)
            if any(other in ops for other in reads):
                return True
            worklist += [other for other in reads if other not in self.sites_of and other not in worklist]
        return False

    def bytes(self, op: OpId) -> Integer:
        """The size of an op's first result."""
        return self.op_by_id[op].bytes if op in self.op_by_id else UNKNOWN


# ---- values


@dataclass(slots=True)
class _Held:
    """A value while ops are removed; `first` and `last`: steps of the function."""

    allocation: MemoryAllocation
    value: MemoryValue
    first: int
    last: int
    size: Text
    ops: tuple[OpId, ...]
    readers: list[str] = field(default_factory=list)
    is_gone: bool = False


class _Remover:
    def __init__(self, flow: _Flow, function: FunctionMemory, computing: SiteWork) -> None:
        self._flow, self._function, self._computing = flow, function, computing
        self._step_of = {site: number for number, step in enumerate(function.steps) for site in step.sites}
        self._is_estimate = False
        self._held = [
            [self._of(allocation, value) for value in allocation.values] for allocation in function.allocations
        ]
        self._values = [held for values in self._held for held in values]
        self._stored = {op for held in self._values if held.value.written_by for op in held.ops}
        work = ((site, set(ops)) for site, ops in computing.items())
        self._left = {site: ops - flow.gone for site, ops in work}

    def _of(self, allocation: MemoryAllocation, value: MemoryValue) -> _Held:
        needing = needing_steps(allocation, value)
        first, last = (needing[0].first, needing[-1].last) if needing else (0, -1)
        return _Held(allocation, value, first, last, value.size, value.ops, list(value.read_by))

    def left(self) -> tuple[FunctionMemory, bool]:
        for held in self._values:
            if held.ops and set(held.ops) <= self._flow.gone:
                self._remove(held)
        self._forget_readers()
        self._fuse()
        allocations = tuple(
            self._allocation(own, values) for own, values in zip(self._function.allocations, self._held, strict=True)
        )
        return structs.replace(self._function, allocations=allocations), self._is_estimate

    # -- values of removed ops

    def _remove(self, held: _Held) -> None:
        """Drop a value whose ops are gone, or put another in its place."""
        if not held.value.written_by and any(op in self._flow.sites_of for op in held.ops):
            return  # a copy or fill for a dispatch: it goes when nothing reads it
        removed = [op for op in held.ops if op in self._flow.removed]
        if not removed:
            held.is_gone = True
            return
        if held.allocation.is_carried:  # the next trip still reads what this one leaves
            self._is_estimate = True
            return
        instead, is_only = self._flow.instead(removed[-1], self._stored)
        self._is_estimate |= not is_only
        writers = held.value.written_by
        own = [op for site in writers for op in self._left.get(site, ())]
        if not isinstance(instead, str):
            self._is_estimate = True
            instead = max(own, key=lambda op: op.number, default=UNKNOWN)
        if not isinstance(instead, str):
            self._extend(held)
        elif not instead:
            held.is_gone = True
        elif other := self._storing(OpId(instead), held, is_own=instead in own):
            self._merge(held, other)
        elif instead in own:
            size, old = self._flow.bytes(OpId(instead)), self._flow.bytes(removed[-1])
            if isinstance(size, int) and str(old) == held.size:
                held.size = str(size)
            held.ops = (OpId(instead),)
        else:
            self._extend(held)

    def _storing(self, op: OpId, held: _Held, *, is_own: bool) -> _Held | None:
        """The value that holds the result of an op; `is_own`: the same dispatch makes both."""
        writers = set(held.value.written_by)
        for own in self._values:
            if own is held or own.is_gone or op not in own.ops or own.allocation.is_carried:
                continue
            # A dispatch that only pads or packs what an op reads has its name, but does not compute it.
            makes = any(op in self._computing.get(site, {}) for site in own.value.written_by)
            is_moved = op not in self._flow.sites_of
            if (makes or is_moved) and (not is_own or writers & set(own.value.written_by)):
                return own
        return None

    def _merge(self, held: _Held, other: _Held) -> None:
        """Let the readers of a value read another one; a result takes the place of that one."""
        if held.allocation.resource == RESULT and other.allocation.resource != RESULT:
            held, other = other, held
        other.first = min(held.first, other.first)
        other.last = max(held.last, other.last)
        other.readers += held.readers
        held.is_gone = True

    def _extend(self, held: _Held) -> None:
        """Drop a value; what its dispatches read is needed as long as it was."""
        self._is_estimate = True
        if held.allocation.resource == RESULT:
            return
        held.is_gone = True
        for other in self._values:
            if set(other.readers) & set(held.value.written_by):
                other.last = max(other.last, held.last)
                other.readers += held.readers

    # -- readers

    def _forget_readers(self) -> None:
        """End lifetimes where the last dispatch that needed a value does not need it any longer."""
        for held in self._values:
            if held.is_gone or held.allocation.resource == RESULT or not held.value.read_by:
                continue
            left = [site for site in held.readers if self._reads(site, held)]
            if len(left) == len(held.readers):
                continue
            old_last = max((self._step_of.get(site, -1) for site in held.readers), default=-1)
            held.readers = left
            if not left and not held.allocation.is_carried:
                held.is_gone = True
            elif old_last == held.last:
                sites = [*left, *held.value.written_by]
                held.last = max([held.first, *(self._step_of.get(site, -1) for site in sites)])

    def _reads(self, site: str, held: _Held) -> bool:
        """Whether a dispatch site still reads a value."""
        work, left = self._computing.get(site, {}), self._left.get(site, set())
        if not work:
            return not self._is_site_gone(site)
        if not left:
            return False
        if not held.value.written_by or site not in held.value.read_by:
            return True
        was = any(self._flow.is_read(op, held.value.ops, edited=False) for op in work)
        return not was or any(self._flow.is_read(op, {*held.value.ops, *held.ops}, edited=True) for op in left)

    def _is_site_gone(self, site: str) -> bool:
        """Whether all that a site of moves writes is gone."""
        written = [held for held in self._values if site in held.value.written_by]
        return bool(written) and all(held.is_gone for held in written)

    # -- fusion

    def _fuse(self) -> None:
        """Without its product, a dispatch of elementwise ops is one with the dispatch that wrote what it reads."""
        for site, work in self._computing.items():
            left = self._left[site]
            if site not in self._step_of or not left or len(left) == len(work):
                continue
            # A reduction of what was fused into it may get a dispatch of its own, as in a softmax.
            first = min(op.number for op in work if op not in left)
            self._is_estimate |= any(op.number > first and self._is_heavy(op, work) for op in left)
            if not any(self._is_heavy(op, work) for op in work) or any(self._is_heavy(op, work) for op in left):
                continue
            self._is_estimate = True
            written = [held for held in self._values if site in held.value.written_by and not held.is_gone]
            for held in self._values:
                # What a loop carries, a result, is not fused with what is outside of it.
                reads_only = set(held.readers) == {site} and not held.is_gone and held.allocation.resource != RESULT
                if written and reads_only and held.value.written_by and all(own.size == held.size for own in written):
                    held.is_gone = True
                    for own in written:
                        own.first = min(own.first, held.first)
                    break

    def _is_heavy(self, op: OpId, work: Mapping[OpId, Integer]) -> bool:
        """Whether an op computes far more than its result has elements, as products and reductions do."""
        size, operations = self._flow.bytes(op), work[op]
        return not isinstance(size, int) or not isinstance(operations, int) or operations >= _HEAVY * size

    # -- allocations

    def _allocation(self, allocation: MemoryAllocation, values: Sequence[_Held]) -> MemoryAllocation:
        left = [held for held in values if not held.is_gone]
        if not allocation.alive or (not left and not values):
            return allocation
        if allocation.is_packed:
            begin = first_step(allocation)
            packed = [(own, self._of(allocation, own.value)) for own in left]
            slices = [
                structs.replace(
                    own.value,
                    size=own.size,
                    ops=own.ops,
                    first=own.value.first if own.first == old.first else max(0, own.first - begin),
                    last=own.value.last if own.last == old.last else own.last - begin,
                )
                for own, old in packed
            ]
            return structs.replace(allocation, values=tuple(slices))
        kept = [structs.replace(own.value, size=own.size, ops=own.ops) for own in left]
        alive = allocation.alive
        if left:
            first, last = min(held.first for held in left), max(held.last for held in left)
            if len(alive) == 1:
                alive = (StepRange(first, last),) if first <= last else alive
            else:
                end = max(last, alive[-1].first)
                alive = (*alive[:-1], StepRange(alive[-1].first, end))
        return structs.replace(allocation, values=tuple(kept), alive=alive)


_HEAVY = 8
"""Operations per byte of a result from which an op is no elementwise one."""
