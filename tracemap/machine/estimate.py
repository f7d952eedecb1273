"""How long a kernel's instructions keep a core busy, estimated from its machine code alone.

Of each instruction: how often it runs (`machine.execution`) times its reciprocal throughput (`machine.throughput`).
What a loop's turns cannot be faster than, as each needs the one before, is of the instructions of that chain
(`machine.chains`). What the loop's loads and stores bring from which cache (`machine.traffic`) takes time beside that:
what it takes longer than the core is of those that bring it in. So core and memory are put together as for samples:
work overlaps, and what remains is waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tracemap.machine.chains import Chain, chains_of
from tracemap.machine.code import OUTSIDE, CodeLoop, Instruction, innermost
from tracemap.machine.execution import Access, Execution, executed
from tracemap.machine.integers import Surroundings, Value
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

    `core`: executing; `chain`: waiting for values; `memory`: waiting for memory. `assumed`: loops whose number of turns
    is not known.
    """

    core: Mapping[int, float]
    chain: Mapping[int, float]
    memory: Mapping[int, float]
    assumed: frozenset[int]

    def total(self) -> Counter[int]:
        """All of it, in whole numbers."""
        found: Counter[int] = Counter()
        for part in (self.core, self.chain, self.memory):
            for address, value in part.items():
                found[address] += round(value)
        return found


_DISPATCH: Final = "\0dispatch"
_WORKGROUP: Final = "\0workgroup"
_COUNTS_AT: Final = (12, 16, 20)
_IDS_AT: Final = (0, 4, 8)
_CONSTANTS_AT: Final = 24
"""Where the state of a dispatch and of a workgroup has them (IREE, runtime/src/iree/hal/local/executable_library.h)."""


def surroundings(counts: Sequence[int], ids: Sequence[int], constants: Sequence[int] = ()) -> Surroundings:
    """What a kernel finds in a workgroup of a grid."""
    memory = {Value(_DISPATCH, at): count for at, count in zip(_COUNTS_AT, counts, strict=True)}
    memory |= {Value(_WORKGROUP, at): number for at, number in zip(_IDS_AT, ids, strict=True)}
    behind = f"{_DISPATCH}[{_CONSTANTS_AT}]"
    memory |= {Value(behind, 4 * number): value for number, value in enumerate(constants)}
    registers = {"rdi": Value("\0environment", 0), "rsi": Value(_DISPATCH, 0), "rdx": Value(_WORKGROUP, 0)}
    return Surroundings(registers, memory)


def estimate(
    instructions: Sequence[Instruction],
    loops: Sequence[CodeLoop],
    counts: Sequence[int],
    caches: Caches,
    constants: Sequence[int] = (),
) -> Estimate:
    """Estimate what all workgroups of a grid take.

    Args:
        instructions: of the kernel, by address.
        loops: those of the kernel.
        counts: of workgroups, in each dimension of the grid.
        caches: of the machine.
        constants: the numbers that the dispatch is called with.
    """
    first = executed(instructions, loops, surroundings(counts, (0, 0, 0), constants))
    runs, grid = _over_grid(first, instructions, loops, counts, constants)
    bodies: dict[int, list[Instruction]] = defaultdict(list)
    for each in instructions:
        bodies[innermost(loops, each.address)].append(each)
    core = {each.address: runs.get(each.address, 0.0) * each.hundredths for each in instructions}
    chain = _chains(bodies, loops, core, runs)
    memory = _waits(bodies, loops, first, grid, runs, core, chain, caches)
    return Estimate(core, chain, memory, first.assumed)


def _over_grid(
    first: Execution,
    instructions: Sequence[Instruction],
    loops: Sequence[CodeLoop],
    counts: Sequence[int],
    constants: Sequence[int],
) -> tuple[dict[int, float], dict[int, list[Turns]]]:
    """How often instructions run in all workgroups, and how far each dimension of the grid moves their places.

    Workgroups are alike but for the last ones of a dimension, which have what is left.
    """
    total = counts[0] * counts[1] * counts[2]
    runs = {address: count * total for address, count in first.counts.items()}
    grid: dict[int, list[Turns]] = {address: [] for address in first.accesses}
    for dimension, count in enumerate(counts):
        if count < 2:
            continue
        place = [0, 0, 0]
        place[dimension] = count - 1
        last = executed(instructions, loops, surroundings(counts, place, constants))
        for address in first.counts.keys() | last.counts.keys():
            runs[address] = (
                runs.get(address, 0.0)
                + (last.counts.get(address, 0.0) - first.counts.get(address, 0.0)) * total / count
            )
        for address, access in first.accesses.items():
            step: int | Unknown = UNKNOWN
            other = last.accesses.get(address)
            if (
                other is not None
                and other.place is not UNKNOWN
                and access.place is not UNKNOWN
                and other.place.base == access.place.base
            ):
                step = (other.place.offset - access.place.offset) // (count - 1)
            grid[address].append(Turns(GRID[dimension], step, float(count)))
    return {address: max(0.0, count) for address, count in runs.items()}, grid


_IN_WORK: Final = 256
"""Instructions of a chain that a core has in work at a time: fewer than its window holds, as those that wait fill its
schedulers first."""


def _chains(
    bodies: Mapping[int, Sequence[Instruction]],
    loops: Sequence[CodeLoop],
    core: Mapping[int, float],
    runs: Mapping[int, float],
) -> dict[int, float]:
    """What the turns of loops wait for values, beyond what they keep the core busy for."""
    found: Counter[int] = Counter()
    whole = {number: _with_inner(number, bodies, loops) for number in bodies if number != OUTSIDE}
    for number, body in whole.items():
        turns = runs.get(loops[number].header, 0.0)
        if not turns:
            continue
        count = sum(runs.get(each.address, 0.0) for each in body) / turns
        busy = sum(core[each.address] for each in body) / turns
        chains = chains_of(bodies[number])
        if len(body) == len(bodies[number]):  # what a loop inside of it carries is that loop's
            _add_beyond(found, chains.carried, busy, turns)
        part = min(1.0, _IN_WORK / count)
        within = Chain(
            chains.within.hundredths * min(1.0, count / _IN_WORK),
            {address: each * min(1.0, count / _IN_WORK) for address, each in chains.within.parts.items()},
        )
        if chains.carried.hundredths <= busy:
            _add_beyond(found, within, busy * part, turns)
    return dict(found)


def _with_inner(
    number: int, bodies: Mapping[int, Sequence[Instruction]], loops: Sequence[CodeLoop]
) -> Sequence[Instruction]:
    """The instructions of a loop, with those of loops inside of it."""
    inside = (body for other, body in bodies.items() if number in _loops_around(loops, other))
    return [each for body in inside for each in body]


def _add_beyond(found: Counter[int], chain: Chain, busy: float, turns: float) -> None:
    """Add what a chain takes in all turns of a loop beyond what keeps the core busy."""
    if chain.hundredths > busy:
        part = (chain.hundredths - busy) / chain.hundredths * turns
        for address, hundredths in chain.parts.items():
            found[address] += hundredths * part  # type: ignore[assignment]  # parts of hundredths


def _waits(
    bodies: Mapping[int, Sequence[Instruction]],
    loops: Sequence[CodeLoop],
    first: Execution,
    grid: Mapping[int, Sequence[Turns]],
    runs: Mapping[int, float],
    core: Mapping[int, float],
    chain: Mapping[int, float],
    caches: Caches,
) -> dict[int, float]:
    """What loops wait for memory, beyond what they take without it."""
    accesses: dict[int, tuple[Access, Sequence[Turns]]] = {}
    loop_of = {each.address: number for number, body in bodies.items() for each in body}
    for address, access in first.accesses.items():
        if access.place is not UNKNOWN and access.place.base in (
            _DISPATCH,
            _WORKGROUP,
            f"{_DISPATCH}[{_CONSTANTS_AT}]",
            f"{_DISPATCH}[32]",
        ):
            continue
        around = _loops_around(loops, loop_of[address])
        turns = [Turns(loop, step, count) for loop, (step, count) in zip(around, access.turns, strict=False)]
        accesses[address] = access, (*turns, *grid.get(address, ()))
    streams = streams_of(accesses)
    waits: dict[int, Counter[int]] = defaultdict(Counter)
    for stream, behind in zip(streams, brought(streams, [cache.bytes for cache in caches]), strict=True):
        hundredths = _hundredths(behind, caches)
        for address in stream.addresses:
            waits[loop_of[address]][address] += hundredths / len(stream.addresses)  # type: ignore[assignment]
    found: dict[int, float] = {}
    for number, waiting in waits.items():
        takes = sum(core[each.address] + chain.get(each.address, 0.0) for each in bodies[number])
        total = sum(waiting.values())
        if total > takes:
            found.update({address: value * (total - takes) / total for address, value in waiting.items()})
    return found


def _loops_around(loops: Sequence[CodeLoop], number: int) -> list[int]:
    found = []
    while number != OUTSIDE:
        found.append(number)
        number = loops[number].parent
    return found


def _hundredths(behind: Sequence[float], caches: Caches) -> float:
    """How long it takes to bring what comes from behind each cache, each part at the speed of where it lies."""
    farther = (*behind[1:], 0.0)
    parts = zip(caches, behind, farther, strict=True)
    return sum(max(0.0, here - beyond) / LINE_BYTES * cache.line_hundredths for cache, here, beyond in parts)
