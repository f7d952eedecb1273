"""How long a kernel's instructions keep a core busy, estimated from its machine code alone.

Of each instruction: how often it runs (`machine.execution`) times its reciprocal throughput (`machine.throughput`).
What a loop's turns cannot be faster than, as each needs the one before, is of the instructions of that chain
(`machine.chains`). What the loop's loads and stores bring from which cache (`machine.traffic`) takes time beside that:
what it takes longer than the core is of those that bring it in. So core and memory are put together as for samples:
work overlaps, and what remains is waiting.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from tracemap.machine.chains import Chain, chains_of
from tracemap.machine.code import OUTSIDE, WINDOW, CodeLoop, Instruction, loops_around
from tracemap.machine.execution import CERTAIN, Access, Blocks, Doubt, Execution, blocks_of, executed
from tracemap.machine.integers import Surroundings, Value, loaded_pointer
from tracemap.machine.traffic import LINE_BYTES, Turns, brought, streams_of
from tracemap.units import UNKNOWN, Unknown

GRID: Final = (-2, -3, -4)
"""The dimensions of the grid of workgroups, as loops around a kernel."""


class Cache(NamedTuple):
    """How many bytes a cache holds, and in how many hundredths of a cycle a line of memory comes from behind it."""

    bytes: int
    line_hundredths: int


Caches = tuple[Cache, ...]
"""Those of a core, from the first level on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hundredths of a cycle of all calls of a grid, by the address of instructions.

    `core`: executing; `chain`: waiting for values; `memory`: waiting for memory. `doubts`: of those that run more or
    less often as the data will have it.
    """

    core: Mapping[int, float]
    chain: Mapping[int, float]
    memory: Mapping[int, float]
    doubts: Mapping[int, Doubt]

    def total(self) -> Mapping[int, tuple[int, int, int]]:
        """All of it, in whole numbers: as it is taken to be, and the least and the most that it may be."""
        found: Counter[int] = Counter()
        for part in (self.core, self.chain, self.memory):
            for address, value in part.items():
                found[address] += round(value)
        doubts = ((address, value, self.doubts.get(address, CERTAIN)) for address, value in found.items())
        return {
            address: (value, round(value * doubt.least), round(value * doubt.most)) for address, value, doubt in doubts
        }


_DISPATCH: Final = "\0dispatch"
_WORKGROUP: Final = "\0workgroup"
_ARGUMENTS: Final = {"rdi": Value("\0environment", 0), "rsi": Value(_DISPATCH, 0), "rdx": Value(_WORKGROUP, 0)}
_COUNTS_AT: Final = (12, 16, 20)
_IDS_AT: Final = (0, 4, 8)
_CONSTANTS: Final = loaded_pointer(Value(_DISPATCH, 24))
_BINDINGS: Final = loaded_pointer(Value(_DISPATCH, 32))
"""Where a dispatch and a workgroup have them (IREE, runtime/src/iree/hal/local/executable_library.h)."""
_STATES: Final = frozenset({_DISPATCH, _WORKGROUP, _CONSTANTS, _BINDINGS})
"""What is no array: always near."""


def estimate(
    instructions: Sequence[Instruction],
    loops: Sequence[CodeLoop],
    workgroups: Sequence[int],
    caches: Caches,
    constants: Sequence[int] = (),
) -> Estimate:
    """Estimate what all workgroups of a grid take.

    Args:
        instructions: of the kernel, by address.
        loops: those of the kernel.
        workgroups: how many, in each dimension of the grid.
        caches: of the machine.
        constants: the numbers of 32 bits that the kernel is called with, as far as they are known.
    """
    numbers = {_CONSTANT_BYTES * place: number for place, number in enumerate(constants)}
    made = _Estimate(instructions, loops, tuple(workgroups), numbers)
    return Estimate(made.core, made.chain, made.memory(caches), made.first.doubts)


_CONSTANT_BYTES: Final = 4


@dataclass(frozen=True)
class _Estimate:
    instructions: Sequence[Instruction]
    loops: Sequence[CodeLoop]
    workgroups: tuple[int, ...]
    constants: Mapping[int, int]

    @cached_property
    def first(self) -> Execution:
        """What the first workgroup does."""
        return self._executed((0, 0, 0), with_turns=True)

    @cached_property
    def _last(self) -> Mapping[int, Execution]:
        """What the last workgroup of each dimension does that has several."""
        several = (dimension for dimension, count in enumerate(self.workgroups) if count > 1)
        return {dimension: self._along(dimension, self.workgroups[dimension] - 1) for dimension in several}

    def _along(self, dimension: int, number: int) -> Execution:
        """What the workgroup of this number in a dimension does, the first one in the others."""
        return self._executed([number * (dimension == other) for other in range(len(self.workgroups))])

    def _executed(self, place: Sequence[int], *, with_turns: bool = False) -> Execution:
        memory = {Value(_DISPATCH, at): count for at, count in zip(_COUNTS_AT, self.workgroups, strict=True)}
        memory |= {Value(_WORKGROUP, at): number for at, number in zip(_IDS_AT, place, strict=True)}
        memory |= {Value(_CONSTANTS, at): value for at, value in self.constants.items()}
        return executed(self._blocks, Surroundings(_ARGUMENTS, memory), with_turns=with_turns)

    @cached_property
    def _blocks(self) -> Blocks:
        return blocks_of(self.instructions, self.loops)

    @cached_property
    def _runs(self) -> Mapping[int, float]:
        """How often instructions run in all workgroups, by address.

        Where the last workgroup of a dimension does as much as the first one, all do. Else some between are looked at.
        """
        first, total = self.first.counts, math.prod(self.workgroups)
        found: dict[int, float] = {address: count * total for address, count in first.items()}
        for dimension, last in self._last.items():
            if last.counts != first:
                count = self.workgroups[dimension]
                for weight, other in self._sampled(dimension, last):
                    for address in first.keys() | other.counts.keys():
                        change = other.counts.get(address, 0.0) - first.get(address, 0.0)
                        found[address] = found.get(address, 0.0) + change * weight * total / count
        return {address: max(0.0, count) for address, count in found.items()}

    def _sampled(self, dimension: int, last: Execution) -> Iterator[tuple[float, Execution]]:
        """Workgroups of a dimension but the first, each with how many it stands for, which it is in the middle of."""
        count = self.workgroups[dimension]
        looked_at = min(count - 2, _MOST_SAMPLED)
        for number in range(looked_at):
            place = 1 + (2 * number + 1) * (count - 2) // (2 * looked_at)
            yield (count - 2) / looked_at, self._along(dimension, place)
        yield 1.0, last

    @cached_property
    def _loop_of(self) -> Mapping[int, int]:
        """The innermost loop around each instruction, by address."""
        blocks = self._blocks.by_address.values()
        return {each.address: block.loop for block in blocks for each in block.instructions}

    @cached_property
    def _bodies(self) -> Mapping[int, Sequence[Instruction]]:
        """The instructions of each loop, without those of loops inside of it."""
        found: dict[int, list[Instruction]] = defaultdict(list)
        for each in self.instructions:
            found[self._loop_of[each.address]].append(each)
        return found

    @cached_property
    def _inside(self) -> Mapping[int, Sequence[int]]:
        """The loops inside of each, itself too; of the code outside of loops only that."""
        found: dict[int, list[int]] = defaultdict(list)
        found[OUTSIDE].append(OUTSIDE)
        for loop in range(len(self.loops)):
            for outer in loops_around(self.loops, loop):
                found[outer].append(loop)
        return found

    def _in_all(self, values: Mapping[int, float]) -> Mapping[int, float]:
        """What values by address come to in each loop, those inside of it included."""
        own = {loop: sum(values.get(each.address, 0.0) for each in body) for loop, body in self._bodies.items()}
        return {loop: sum(own.get(inner, 0.0) for inner in inside) for loop, inside in self._inside.items()}

    @cached_property
    def _runs_in(self) -> Mapping[int, float]:
        """How many instructions run in each loop."""
        return self._in_all(self._runs)

    def _instructions_a_turn(self, loop: int) -> float:
        """How many instructions run in a turn of a loop, those of loops inside of it too."""
        turns = self._runs.get(self.loops[loop].header, 0.0)
        return self._runs_in[loop] / turns if turns else 0.0

    # ---- the core

    @cached_property
    def core(self) -> Mapping[int, float]:
        """What instructions keep the core busy for."""
        return {each.address: self._runs.get(each.address, 0.0) * each.hundredths for each in self.instructions}

    @cached_property
    def _core_in(self) -> Mapping[int, float]:
        """The same in each loop."""
        return self._in_all(self.core)

    @cached_property
    def chain(self) -> Mapping[int, float]:
        """What the turns of loops wait for values, beyond what they keep the core busy for."""
        found: dict[int, float] = defaultdict(float)
        for loop in self._bodies:
            if loop != OUTSIDE and self._runs.get(self.loops[loop].header):
                self._add_chains(found, loop)
        return found

    def _add_chains(self, found: dict[int, float], loop: int) -> None:
        turns, count = self._runs[self.loops[loop].header], self._instructions_a_turn(loop)
        busy = self._core_in[loop] / turns
        chains = chains_of(self._bodies[loop])
        # What a loop inside of it carries is that one's.
        if len(self._inside[loop]) == 1 and chains.carried.hundredths > busy:
            _add_beyond(found, chains.carried, busy, turns)
            return
        own = sum(self._runs.get(each.address, 0.0) for each in self._bodies[loop]) / turns
        if len(self._inside[loop]) > 1 and own < count:
            # While its own code waits, as much of the loops inside of it is done as the core can have in work with it.
            own_busy = sum(self.core.get(each.address, 0.0) for each in self._bodies[loop]) / turns
            beside = (busy - own_busy) * min(1.0, max(0.0, _IN_WORK - own) / (count - own))
            _add_beyond(found, chains.within, own_busy + beside, turns)
            return
        # As many turns overlap as the core can have in work; of a long turn, a part of it.
        overlapped = min(1.0, count / _IN_WORK)
        _add_beyond(found, chains.within.scaled(overlapped), busy * min(1.0, _IN_WORK / count), turns)

    # ---- memory

    def memory(self, caches: Caches) -> Mapping[int, float]:
        """What loops wait for memory, beyond what they take without it."""
        streams = streams_of(self._accesses())
        waits: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for stream, behind in zip(streams, brought(streams, [cache.bytes for cache in caches]), strict=True):
            hundredths = _hundredths(behind, caches) * (_STORED if self._stores(stream.addresses) else _LOADED)
            for address in stream.addresses:
                waits[self._overlapping(self._loop_of[address])][address] += hundredths / len(stream.addresses)
        found: dict[int, float] = {}
        chain_in = self._in_all(self.chain)
        for loop, waiting in waits.items():
            takes, total = self._core_in[loop] + chain_in[loop], sum(waiting.values())
            if total > takes:
                found.update({address: value * (total - takes) / total for address, value in waiting.items()})
        return found

    def _overlapping(self, loop: int) -> int:
        """The loop whose turns a loop's waiting overlaps with: one around it, if its turns fit into the window."""
        while loop != OUTSIDE and self.loops[loop].parent != OUTSIDE:
            outer = self.loops[loop].parent
            if self._instructions_a_turn(outer) > WINDOW:
                break
            loop = outer
        return loop

    def _stores(self, addresses: Sequence[int]) -> bool:
        """Whether any of these instructions stores."""
        return not self._storing.isdisjoint(addresses)

    @cached_property
    def _storing(self) -> frozenset[int]:
        return frozenset(each.address for each in self.instructions if each.values.stores)

    def _accesses(self) -> dict[int, tuple[Access, Sequence[Turns]]]:
        """The accesses to arrays, each with the loops around it, from inside out, and then the grid."""
        found: dict[int, tuple[Access, Sequence[Turns]]] = {}
        for address, access in self.first.accesses.items():
            if access.place is UNKNOWN or access.place.pointer not in _STATES:
                loops = zip(loops_around(self.loops, self._loop_of[address]), access.turns, strict=False)
                turns = [Turns(loop, step, count) for loop, (step, count) in loops]
                found[address] = access, (*turns, *self._grid(address, access))
        return found

    def _grid(self, address: int, access: Access) -> Iterator[Turns]:
        """How each dimension of the grid moves an access."""
        for dimension, last in self._last.items():
            count, other = self.workgroups[dimension], last.accesses.get(address, access)
            step: int | Unknown = UNKNOWN
            if (
                other.place is not UNKNOWN
                and access.place is not UNKNOWN
                and other.place.pointer == access.place.pointer
            ):
                step = (other.place.offset - access.place.offset) // (count - 1)
            yield Turns(GRID[dimension], step, float(count))


_LOADED, _STORED = 2 / 3, 4 / 3
"""How long a line takes beside the mean of one that is read and one that is written: the latter is read as well."""
_MOST_SAMPLED: Final = 6
"""Workgroups between the first and the last of a dimension that are looked at."""
_IN_WORK: Final = 160
"""Instructions of a chain that a core has in work at a time: fewer than its window holds, as those that wait fill its
schedulers first."""


def _add_beyond(found: dict[int, float], chain: Chain, busy: float, turns: float) -> None:
    """Add what a chain takes in all turns of a loop beyond what keeps the core busy."""
    if chain.hundredths > busy:
        part = (chain.hundredths - busy) / chain.hundredths * turns
        for address, hundredths in chain.parts.items():
            found[address] += hundredths * part


def _hundredths(behind: Sequence[float], caches: Caches) -> float:
    """How long it takes to bring what comes from behind each cache, each part at the speed of where it lies."""
    farther = (*behind[1:], 0.0)
    parts = zip(caches, behind, farther, strict=True)
    return sum(max(0.0, here - beyond) / LINE_BYTES * cache.line_hundredths for cache, here, beyond in parts)
