"""Estimate of the time that a kernel's instructions keep a core busy, from its machine code alone.

Core time of an instruction: execution count (`machine.execution`) times reciprocal throughput (`machine.code`).
An iteration of a loop cannot be faster than its dependency chain; the excess belongs to the instructions of that chain
(`machine.dataflow`). Loads and stores bring data from caches (`machine.memory_traffic`) while the core works; the
excess over core time belongs to the instructions that bring data in. This is the same model as for samples: work
overlaps, and the rest is waiting.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.machine.code import OUTSIDE, WINDOW, CodeLoop, Instruction, loops_around
from tracemap.machine.dataflow import Chain, chains_of
from tracemap.machine.execution import CERTAIN, Access, Blocks, CountBounds, Execution, blocks_of, executed
from tracemap.machine.integers import Surroundings, Value, loaded_pointer
from tracemap.machine.memory_traffic import LINE_BYTES, Turns, streams_of, traffic_of

GRID: Final = (-2, -3, -4)
"""The dimensions of the grid of workgroups, as pseudo loops around a kernel."""


class Cache(NamedTuple):
    """A cache: size in bytes, and hundredths of a cycle to bring a line from the level below it."""

    bytes: int
    line_hundredths: int


Caches = tuple[Cache, ...]
"""The caches of a core, from the first level on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hundredths of a cycle over all calls of a grid, by address of instructions.

    `core`: executing; `chain`: waiting for values; `memory`: waiting for memory. `doubts`: bounds for instructions
    whose count depends on data.
    """

    core: Mapping[int, float]
    chain: Mapping[int, float]
    memory: Mapping[int, float]
    doubts: Mapping[int, CountBounds]

    def total(self) -> Mapping[int, tuple[int, int, int]]:
        """Total by address, in integers: the estimate, its lower and its upper bound."""
        sums: Counter[int] = Counter()
        for part in (self.core, self.chain, self.memory):
            for address, value in part.items():
                sums[address] += round(value)
        doubts = ((address, value, self.doubts.get(address, CERTAIN)) for address, value in sums.items())
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
"""Offsets of a dispatch's and a workgroup's fields (IREE, runtime/src/iree/hal/local/executable_library.h)."""
_STATES: Final = frozenset({_DISPATCH, _WORKGROUP, _CONSTANTS, _BINDINGS})
"""Pointers to state, not to arrays: always in cache."""


def estimate(
    instructions: Sequence[Instruction],
    loops: Sequence[CodeLoop],
    workgroups: Sequence[int],
    caches: Caches,
    constants: Sequence[int] = (),
) -> Estimate:
    """Estimate the time of all workgroups of a grid.

    Args:
        instructions: instructions of the kernel, by address.
        loops: loops of the kernel.
        workgroups: number of workgroups in each dimension of the grid.
        caches: caches of the machine.
        constants: the kernel's 32-bit arguments, as far as they are known.
    """
    constant_values = {_CONSTANT_BYTES * index: value for index, value in enumerate(constants)}
    model = _Estimate(instructions, loops, tuple(workgroups), constant_values)
    return Estimate(model.core, model.chain, model.memory(caches), model.first.doubts)


_CONSTANT_BYTES: Final = 4


@dataclass(frozen=True)
class _Estimate:
    instructions: Sequence[Instruction]
    loops: Sequence[CodeLoop]
    workgroups: tuple[int, ...]
    constants: Mapping[int, int]

    @cached_property
    def first(self) -> Execution:
        """Execution of the first workgroup."""
        return self._executed((0, 0, 0), with_turns=True)

    @cached_property
    def _last(self) -> Mapping[int, Execution]:
        """Execution of the last workgroup in each dimension with several workgroups."""
        dimensions = (dimension for dimension, count in enumerate(self.workgroups) if count > 1)
        return {dimension: self._at(dimension, self.workgroups[dimension] - 1) for dimension in dimensions}

    def _at(self, dimension: int, number: int) -> Execution:
        """Execution of workgroup `number` in a dimension, at 0 in the others."""
        return self._executed([number * (dimension == other) for other in range(len(self.workgroups))])

    def _executed(self, workgroup: Sequence[int], *, with_turns: bool = False) -> Execution:
        memory = {Value(_DISPATCH, at): count for at, count in zip(_COUNTS_AT, self.workgroups, strict=True)}
        memory |= {Value(_WORKGROUP, at): index for at, index in zip(_IDS_AT, workgroup, strict=True)}
        memory |= {Value(_CONSTANTS, at): value for at, value in self.constants.items()}
        return executed(self._blocks, Surroundings(_ARGUMENTS, memory), with_turns=with_turns)

    @cached_property
    def _blocks(self) -> Blocks:
        return blocks_of(self.instructions, self.loops)

    @cached_property
    def _runs(self) -> Mapping[int, float]:
        """Execution counts over all workgroups, by address.

        If the last workgroup of a dimension has the counts of the first, all have. Otherwise sample some in between.
        """
        first, total = self.first.counts, math.prod(self.workgroups)
        runs: dict[int, float] = {address: count * total for address, count in first.items()}
        for dimension, last in self._last.items():
            if last.counts != first:
                count = self.workgroups[dimension]
                for weight, other in self._sample_workgroups(dimension, last):
                    for address in first.keys() | other.counts.keys():
                        change = other.counts.get(address, 0.0) - first.get(address, 0.0)
                        runs[address] = runs.get(address, 0.0) + change * weight * total / count
        return {address: max(0.0, count) for address, count in runs.items()}

    def _sample_workgroups(self, dimension: int, last: Execution) -> Iterator[tuple[float, Execution]]:
        """Sampled workgroups of a dimension except the first. Each stands for a range that it is in the middle of."""
        count = self.workgroups[dimension]
        samples = min(count - 2, _MOST_SAMPLES)
        for index in range(samples):
            workgroup = 1 + (2 * index + 1) * (count - 2) // (2 * samples)
            yield (count - 2) / samples, self._at(dimension, workgroup)
        yield 1.0, last

    @cached_property
    def _loop_of(self) -> Mapping[int, int]:
        """The innermost loop around each instruction, by address."""
        blocks = self._blocks.by_address.values()
        return {instruction.address: block.loop for block in blocks for instruction in block.instructions}

    @cached_property
    def _bodies(self) -> Mapping[int, Sequence[Instruction]]:
        """The instructions of each loop, without those of nested loops."""
        bodies: dict[int, list[Instruction]] = defaultdict(list)
        for instruction in self.instructions:
            bodies[self._loop_of[instruction.address]].append(instruction)
        return bodies

    @cached_property
    def _inside(self) -> Mapping[int, Sequence[int]]:
        """The loops within each loop, including itself. `OUTSIDE` contains only itself."""
        nested: dict[int, list[int]] = defaultdict(list)
        nested[OUTSIDE].append(OUTSIDE)
        for loop in range(len(self.loops)):
            for outer in loops_around(self.loops, loop):
                nested[outer].append(loop)
        return nested

    def _sum_by_loop(self, values: Mapping[int, float]) -> Mapping[int, float]:
        """Sum values by address for each loop, nested loops included."""
        own = {
            loop: sum(values.get(instruction.address, 0.0) for instruction in body)
            for loop, body in self._bodies.items()
        }
        return {loop: sum(own.get(inner, 0.0) for inner in nested) for loop, nested in self._inside.items()}

    @cached_property
    def _instructions_in(self) -> Mapping[int, float]:
        """Executed instructions in each loop."""
        return self._sum_by_loop(self._runs)

    def _instructions_per_turn(self, loop: int) -> float:
        """Executed instructions per iteration of a loop, nested loops included."""
        turns = self._runs.get(self.loops[loop].header, 0.0)
        return self._instructions_in[loop] / turns if turns else 0.0

    # ---- the core

    @cached_property
    def core(self) -> Mapping[int, float]:
        """Core time of instructions."""
        return {
            instruction.address: self._runs.get(instruction.address, 0.0) * instruction.hundredths
            for instruction in self.instructions
        }

    @cached_property
    def _core_in(self) -> Mapping[int, float]:
        """Core time of each loop."""
        return self._sum_by_loop(self.core)

    @cached_property
    def chain(self) -> Mapping[int, float]:
        """Waiting for values in the iterations of loops, beyond core time."""
        waits: dict[int, float] = defaultdict(float)
        for loop in self._bodies:
            if loop != OUTSIDE and self._runs.get(self.loops[loop].header):
                self._add_chains(waits, loop)
        return waits

    def _add_chains(self, waits: dict[int, float], loop: int) -> None:
        turns, count = self._runs[self.loops[loop].header], self._instructions_per_turn(loop)
        busy = self._core_in[loop] / turns
        chains = chains_of(self._bodies[loop])
        # A chain carried by a nested loop belongs to that loop.
        if len(self._inside[loop]) == 1 and chains.carried.hundredths > busy:
            _add_beyond(waits, chains.carried, busy, turns)
            return
        own = sum(self._runs.get(instruction.address, 0.0) for instruction in self._bodies[loop]) / turns
        if len(self._inside[loop]) > 1 and own < count:
            # While the loop's own code waits, the core executes as much of nested loops as its schedulers hold.
            own_busy = sum(self.core.get(instruction.address, 0.0) for instruction in self._bodies[loop]) / turns
            nested_busy = (busy - own_busy) * min(1.0, max(0.0, _IN_FLIGHT - own) / (count - own))
            _add_beyond(waits, chains.within, own_busy + nested_busy, turns)
            return
        # As many iterations overlap as the schedulers hold; of a long iteration, a part of it.
        share = min(1.0, count / _IN_FLIGHT)
        _add_beyond(waits, chains.within.scaled(share), busy * min(1.0, _IN_FLIGHT / count), turns)

    # ---- memory

    def memory(self, caches: Caches) -> Mapping[int, float]:
        """Waiting for memory in loops, beyond core time and chains."""
        streams = streams_of(self._accesses())
        waits: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for stream, bytes_beyond in zip(streams, traffic_of(streams, [cache.bytes for cache in caches]), strict=True):
            hundredths = _hundredths(bytes_beyond, caches) * (
                _WRITE_FACTOR if self._stores(stream.addresses) else _READ_FACTOR
            )
            for address in stream.addresses:
                waits[self._overlapping(self._loop_of[address])][address] += hundredths / len(stream.addresses)
        result: dict[int, float] = {}
        chain_in = self._sum_by_loop(self.chain)
        for loop, stream_waits in waits.items():
            busy, total = self._core_in[loop] + chain_in[loop], sum(stream_waits.values())
            if total > busy:
                result.update({address: value * (total - busy) / total for address, value in stream_waits.items()})
        return result

    def _overlapping(self, loop: int) -> int:
        """The loop whose iterations overlap a loop's waiting: an outer one if its iterations fit the reorder buffer."""
        while loop != OUTSIDE and self.loops[loop].parent != OUTSIDE:
            outer = self.loops[loop].parent
            if self._instructions_per_turn(outer) > WINDOW:
                break
            loop = outer
        return loop

    def _stores(self, addresses: Sequence[int]) -> bool:
        """Whether any of these instructions stores."""
        return not self._storing.isdisjoint(addresses)

    @cached_property
    def _storing(self) -> frozenset[int]:
        return frozenset(instruction.address for instruction in self.instructions if instruction.values.stores)

    def _accesses(self) -> dict[int, tuple[Access, Sequence[Turns]]]:
        """Accesses to arrays, with the loops around them from inside out, then the grid."""
        accesses_with_loops: dict[int, tuple[Access, Sequence[Turns]]] = {}
        for address, access in self.first.accesses.items():
            if access.place is UNKNOWN or access.place.pointer not in _STATES:
                loops = zip(loops_around(self.loops, self._loop_of[address]), access.turns, strict=False)
                turns = [Turns(loop, step, count) for loop, (step, count) in loops]
                accesses_with_loops[address] = access, (*turns, *self._grid(address, access))
        return accesses_with_loops

    def _grid(self, address: int, access: Access) -> Iterator[Turns]:
        """Strides of an access in each dimension of the grid."""
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


_READ_FACTOR, _WRITE_FACTOR = 2 / 3, 4 / 3
"""Time of a line relative to the mean of a read and a written one. A written line is read as well."""
_MOST_SAMPLES: Final = 6
"""Number of sampled workgroups between the first and the last of a dimension."""
_IN_FLIGHT: Final = 160
"""Instructions of a chain that a core holds at a time: fewer than the reorder buffer, since waiting instructions fill
the schedulers first."""


def _add_beyond(waits: dict[int, float], chain: Chain, busy: float, turns: float) -> None:
    """Add the time of a chain in all iterations of a loop beyond core time."""
    if chain.hundredths > busy:
        part = (chain.hundredths - busy) / chain.hundredths * turns
        for address, hundredths in chain.parts.items():
            waits[address] += hundredths * part


def _hundredths(bytes_beyond: Sequence[float], caches: Caches) -> float:
    """Time to bring data from beyond each cache, each part at the speed of the level that holds it."""
    next_level = (*bytes_beyond[1:], 0.0)
    parts = zip(caches, bytes_beyond, next_level, strict=True)
    return sum(max(0.0, own - below) / LINE_BYTES * cache.line_hundredths for cache, own, below in parts)
