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
from typing import Final

from tracemap.core.units import UNKNOWN
from tracemap.machine.caches import LINE_BYTES, Caches
from tracemap.machine.code import OUTSIDE, WINDOW, CodeLoop, Instruction, loops_around
from tracemap.machine.dataflow import Chain, chains_of
from tracemap.machine.execution import CERTAIN, Access, CountBounds, Execution, blocks_of, executed
from tracemap.machine.integers import Surroundings, Value, is_number, loaded_pointer, subtract
from tracemap.machine.memory_traffic import Turns, streams_of, traffic_of

GRID: Final = (-2, -3, -4)
"""The dimensions of the grid of workgroups, as pseudo loops around a kernel."""


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
    model = _Estimate(instructions, loops, workgroups, constants)
    return Estimate(model.core, model.chain, model.memory(caches), model.first.doubts)


class _Estimate:
    def __init__(
        self,
        instructions: Sequence[Instruction],
        loops: Sequence[CodeLoop],
        workgroups: Sequence[int],
        constants: Sequence[int],
    ) -> None:
        self._instructions, self._loops, self._workgroups, self._constants = instructions, loops, workgroups, constants
        self._blocks = blocks_of(instructions, loops)
        self.first = self._executed((0, 0, 0), with_turns=True)
        """Execution of the first workgroup."""
        self._last = {
            dimension: self._at(dimension, count - 1) for dimension, count in enumerate(workgroups) if count > 1
        }
        """Execution of the last workgroup in each dimension with several workgroups."""
        blocks = self._blocks.by_address.values()
        self._loop_of = {instruction.address: block.loop for block in blocks for instruction in block.instructions}
        """The innermost loop around each instruction, by address."""
        self._bodies: dict[int, list[Instruction]] = defaultdict(list)
        """The instructions of each loop, without those of nested loops."""
        for instruction in instructions:
            self._bodies[self._loop_of[instruction.address]].append(instruction)
        self._inside: dict[int, list[int]] = defaultdict(list, {OUTSIDE: [OUTSIDE]})
        """The loops within each loop, including itself. `OUTSIDE` contains only itself."""
        for loop in range(len(loops)):
            for outer in loops_around(loops, loop):
                self._inside[outer].append(loop)
        self._runs = self._counts()
        self._instructions_in = self._sum_by_loop(self._runs)
        """Executed instructions in each loop."""
        self.core = {
            instruction.address: self._runs.get(instruction.address, 0.0) * instruction.hundredths
            for instruction in instructions
        }
        """Core time of instructions."""
        self._core_in = self._sum_by_loop(self.core)
        self.chain: dict[int, float] = defaultdict(float)
        """Waiting for values in the iterations of loops, beyond core time."""
        for loop in self._bodies:
            if loop != OUTSIDE and self._runs.get(loops[loop].header):
                self._add_chains(loop)

    def _at(self, dimension: int, number: int) -> Execution:
        """Execution of workgroup `number` in a dimension, at 0 in the others."""
        return self._executed([number * (dimension == other) for other in range(len(self._workgroups))])

    def _executed(self, workgroup: Sequence[int], *, with_turns: bool = False) -> Execution:
        memory = {Value(_DISPATCH, at): count for at, count in zip(_COUNTS_AT, self._workgroups, strict=True)}
        memory |= {Value(_WORKGROUP, at): index for at, index in zip(_IDS_AT, workgroup, strict=True)}
        memory |= {Value(_CONSTANTS, 4 * index): value for index, value in enumerate(self._constants)}
        return executed(self._blocks, Surroundings(_ARGUMENTS, memory), with_turns=with_turns)

    def _counts(self) -> dict[int, float]:
        """Execution counts over all workgroups, by address.

        If the last workgroup of a dimension has the counts of the first, all have. Otherwise sample some in between.
        """
        first, total = self.first.counts, math.prod(self._workgroups)
        runs: dict[int, float] = {address: count * total for address, count in first.items()}
        for dimension, last in self._last.items():
            if last.counts != first:
                count = self._workgroups[dimension]
                for weight, other in self._sample_workgroups(dimension, last):
                    for address in first.keys() | other.counts.keys():
                        change = other.counts.get(address, 0.0) - first.get(address, 0.0)
                        runs[address] = runs.get(address, 0.0) + change * weight * total / count
        return {address: max(0.0, count) for address, count in runs.items()}

    def _sample_workgroups(self, dimension: int, last: Execution) -> Iterator[tuple[float, Execution]]:
        """Sampled workgroups of a dimension except the first. Each stands for a range that it is in the middle of."""
        count = self._workgroups[dimension]
        samples = min(count - 2, _MOST_SAMPLES)
        for index in range(samples):
            workgroup = 1 + (2 * index + 1) * (count - 2) // (2 * samples)
            yield (count - 2) / samples, self._at(dimension, workgroup)
        yield 1.0, last

    def _sum_by_loop(self, values: Mapping[int, float]) -> Mapping[int, float]:
        """Sum values by address for each loop, nested loops included."""
        own = {
            loop: sum(values.get(instruction.address, 0.0) for instruction in body)
            for loop, body in self._bodies.items()
        }
        return {loop: sum(own.get(inner, 0.0) for inner in nested) for loop, nested in self._inside.items()}

    def _instructions_per_turn(self, loop: int) -> float:
        """Executed instructions per iteration of a loop, nested loops included."""
        turns = self._runs.get(self._loops[loop].header, 0.0)
        return self._instructions_in[loop] / turns if turns else 0.0

    def _add_chains(self, loop: int) -> None:
        turns, count = self._runs[self._loops[loop].header], self._instructions_per_turn(loop)
        busy = self._core_in[loop] / turns
        chains = chains_of(self._bodies[loop])
        # A chain carried by a nested loop belongs to that loop.
        if len(self._inside[loop]) == 1 and chains.carried.hundredths > busy:
            _add_beyond(self.chain, chains.carried, busy, turns)
            return
        own = sum(self._runs.get(instruction.address, 0.0) for instruction in self._bodies[loop]) / turns
        if len(self._inside[loop]) > 1 and own < count:
            # While the loop's own code waits, the core executes as much of nested loops as its schedulers hold.
            own_busy = sum(self.core.get(instruction.address, 0.0) for instruction in self._bodies[loop]) / turns
            nested_busy = (busy - own_busy) * min(1.0, max(0.0, _IN_FLIGHT - own) / (count - own))
            _add_beyond(self.chain, chains.within, own_busy + nested_busy, turns)
            return
        # As many iterations overlap as the schedulers hold; of a long iteration, a part of it.
        share = min(1.0, count / _IN_FLIGHT)
        _add_beyond(self.chain, chains.within.scaled(share), busy * min(1.0, _IN_FLIGHT / count), turns)

    def memory(self, caches: Caches) -> Mapping[int, float]:
        """Waiting for memory in loops, beyond core time and chains."""
        streams = streams_of(self._accesses())
        storing = {instruction.address for instruction in self._instructions if instruction.values.stores}
        waits: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for stream, bytes_beyond in zip(streams, traffic_of(streams, [cache.bytes for cache in caches]), strict=True):
            factor = _READ_FACTOR if storing.isdisjoint(stream.addresses) else _WRITE_FACTOR
            hundredths = factor * _hundredths(bytes_beyond, caches)
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
        while loop != OUTSIDE and self._loops[loop].parent != OUTSIDE:
            outer = self._loops[loop].parent
            if self._instructions_per_turn(outer) > WINDOW:
                break
            loop = outer
        return loop

    def _accesses(self) -> dict[int, tuple[Access, Sequence[Turns]]]:
        """Accesses to arrays, with the loops around them from inside out, then the grid."""
        accesses_with_loops: dict[int, tuple[Access, Sequence[Turns]]] = {}
        for address, access in self.first.accesses.items():
            if access.place is UNKNOWN or access.place.pointer not in _STATES:
                loops = zip(loops_around(self._loops, self._loop_of[address]), access.turns, strict=False)
                turns = [Turns(loop, step, count) for loop, (step, count) in loops]
                accesses_with_loops[address] = access, (*turns, *self._grid(address, access))
        return accesses_with_loops

    def _grid(self, address: int, access: Access) -> Iterator[Turns]:
        """Strides of an access in each dimension of the grid."""
        for dimension, last in self._last.items():
            count, other = self._workgroups[dimension], last.accesses.get(address, access)
            moved = subtract(other.place, access.place)
            step = moved.offset // (count - 1) if is_number(moved) else UNKNOWN
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
