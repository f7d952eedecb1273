"""Costs inside a kernel, assigned to lines of ops by its IR and machine code, and from there to ops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.core.errors import ModuleInvalid
from tracemap.core.units import split_by_largest_remainder
from tracemap.machine.code import (
    OUTSIDE,
    WINDOW,
    CodeLoop,
    Instruction,
    instructions_of,
    loops_around,
    loops_by_address,
    loops_of,
)
from tracemap.machine.debug_lines import Contracted, code_of_ops, lines_sharing_work
from tracemap.machine.images import Image, kernel_images
from tracemap.map.model import Kernel, Site, TraceGraph
from tracemap.map.query import NO_OP_LINE, KernelLines, kernel_lines
from tracemap.runs.model import SAMPLES

if TYPE_CHECKING:
    from tracemap.machine.memory_traffic import Waits

# ---- code
#
# Machine code of a kernel: the op whose value an instruction carries, and the *pools* in which samples are split.
#
# A processor has hundreds of instructions in flight, and a sample names the oldest: the one that waits longest for the
# others, wherever the work is. So samples say which loop took the time, but not which instruction of a loop that fits
# the processor's window. The samples of such a loop form one pool, which is split by how long each instruction keeps
# the core busy (`Instruction.hundredths`). Samples that found the processor waiting for memory belong to the ops that
# read. A long wait empties the window, so that instructions that use the late values wait as well.


NO_POOL: Final = -1
_POOL_WINDOWS = 8
"""Windows of instructions up to which a body is a single pool."""

Lines = Counter[int]
"""Costs, or weights, by line of kernel IR."""


class KernelCode(msgspec.Struct, frozen=True, dict=True):
    """The machine code of a kernel."""

    contracted: Contracted

    @property
    def instructions(self) -> Sequence[Instruction]:
        """The instructions, sorted by address."""
        return self.contracted.instructions

    @cached_property
    def loops(self) -> tuple[CodeLoop, ...]:
        """The loops of the machine code."""
        return loops_of(self.instructions)

    @cached_property
    def loop_at(self) -> dict[int, int]:
        """The index of the innermost loop around an instruction, by address; no entry outside loops."""
        return loops_by_address(self.instructions, self.loops)

    @cached_property
    def line_at(self) -> dict[int, int]:
        """The line of the op whose value an instruction carries, by address; no entry if it carries none."""
        from tracemap.machine.dataflow import value_lines

        return value_lines(self.contracted, self.loops)

    @cached_property
    def loops_of_ops(self) -> frozenset[int]:
        """The loops with instructions that carry a value of an op."""
        loops: set[int] = set()
        for address in self.line_at:
            loops.update(loops_around(self.loops, self.loop_at.get(address, OUTSIDE)))
        return frozenset(loops)

    @cached_property
    def _hundredths(self) -> tuple[dict[int, int], dict[int, Fraction]]:
        """Core time of instructions in hundredths of a cycle, by address, and the mean of each line.

        If a line has code in loops, its mean is over that code only, because it runs most.
        """
        in_loops: dict[int, list[int]] = defaultdict(list)
        outside: dict[int, list[int]] = defaultdict(list)
        for loop, body in self._bodies.items():
            for instruction in body:
                (outside if loop == OUTSIDE else in_loops)[instruction.line].append(instruction.hundredths)
        means = {line: Fraction(sum(times), len(times)) for line, times in (outside | in_loops).items()}
        return {instruction.address: instruction.hundredths for instruction in self.instructions}, means

    @cached_property
    def lines(self) -> frozenset[int]:
        """The lines of ops that have code."""
        return frozenset(self.line_at.values())

    def busy(self, address: int, line: int, count: int) -> int:
        """Core time of `count` executions of an instruction, in hundredths of a clock cycle.

        Without an address (`NO_ADDRESS`), the mean of its line applies; without either, one cycle.
        """
        at, of_line = self._hundredths
        return round(count * at.get(address, of_line.get(line, 100)))

    @cached_property
    def _bodies(self) -> dict[int, list[Instruction]]:
        """The instructions by innermost loop; `OUTSIDE` for those outside all loops."""
        bodies: dict[int, list[Instruction]] = defaultdict(list)
        for instruction in self.instructions:
            bodies[self.loop_at.get(instruction.address, OUTSIDE)].append(instruction)
        return bodies

    @cached_property
    def _waits(self) -> tuple[Waits, ...]:
        from tracemap.machine.memory_traffic import waits_of

        return tuple(waits_of(body) for loop, body in self._bodies.items() if loop != OUTSIDE)

    @cached_property
    def waits(self) -> dict[int, int]:
        """Instructions of loops that wait only for memory, with the line of the op that reads."""
        pairs = (pair for waits in self._waits for pair in waits.load_of.items())
        return {address: self.line_at[load] for address, load in pairs if load in self.line_at}

    def cycles_at_waits(self, loop: int) -> tuple[int, int]:
        """Core time of a loop's iteration at instructions in `waits`, and in total, in hundredths of a clock cycle."""
        body = self._bodies[loop]
        at_waits = sum(instruction.hundredths for instruction in body if instruction.address in self.waits)
        return at_waits, sum(instruction.hundredths for instruction in body)

    @cached_property
    def uses_of_loads(self) -> dict[int, tuple[int, ...]]:
        """Instructions of loops that use values computed from loads, with the lines of the ops that read."""
        pairs = (pair for waits in self._waits for pair in waits.sources_of.items())
        lines = ((address, {self.line_at[load] for load in loads if load in self.line_at}) for address, loads in pairs)
        return {address: tuple(sorted(readers)) for address, readers in lines}

    @cached_property
    def _pools(self) -> tuple[dict[int, int], list[Lines]]:
        """The index of each address's pool, and the weights of the pools' lines."""
        pool_of: dict[int, int] = {}
        weights: list[Lines] = []
        for loop, body in self._bodies.items():
            # A sample's address is off by up to a window to either side. This helps only in code of many windows.
            is_long = len(body) > _POOL_WINDOWS * WINDOW
            for begin in range(0, len(body), WINDOW if is_long else max(1, len(body))):
                part = body[begin : begin + WINDOW] if is_long else body
                lines = self._weights(body[max(0, begin - WINDOW) : begin + 2 * WINDOW] if is_long else body)
                if lines:
                    # Outside loops, code of no op comes before or after that of ops, and is unattributed.
                    addresses = (instruction.address for instruction in part)
                    inside = (address for address in addresses if loop != OUTSIDE or address in self.line_at)
                    pool_of.update(dict.fromkeys(inside, len(weights)))
                    weights.append(lines)
        return pool_of, weights

    def _weights(self, instructions: Sequence[Instruction]) -> Lines:
        lines: Lines = Counter()
        for instruction in instructions:
            # Reloads of spilled values are due to the register pressure of all ops together, so no op gets them.
            if instruction.address in self.line_at and not instruction.values.reloads:
                lines[self.line_at[instruction.address]] += instruction.hundredths
        return lines

    def pool_of(self, address: int) -> int:
        """The index of an address's pool; `NO_POOL` if the address itself decides which op a sample belongs to."""
        return self._pools[0].get(address, NO_POOL)

    def weights_of(self, pool: int) -> Lines:
        """Core time of the instructions of each line, in and around a pool."""
        return self._pools[1][pool]

    def brought_in(self, loop: int) -> Lines:
        """Bytes of cache lines that a loop's loads fetch per iteration, by line of the op that takes the values."""
        from tracemap.machine.memory_traffic import bytes_brought_in

        loads: dict[int, list[Instruction]] = defaultdict(list)
        for instruction in self._bodies[loop]:
            if instruction.address in self.line_at and instruction.values.loads and not instruction.values.near:
                loads[self.line_at[instruction.address]].append(instruction)
        return Counter({line: bytes_brought_in(of_line, self._bodies[loop]) for line, of_line in loads.items()})


# ---- lines


UNKNOWN_LOOP = -2
"""The loop of rows without an address."""


class Spot(NamedTuple):
    """The parts of a row's position that decide which op its cost belongs to.

    `line`: the line of kernel IR; `owner`: the line of the op that owns the cost, or `NO_OP_LINE` if unknown. Without
    an owner, `loop` is the surrounding loop of machine code, and `pool` the pool of the address. `waits`: the
    instruction may be found waiting for memory; `reads`: the lines of the ops that read the values used there.
    """

    line: int
    owner: int
    loop: int = OUTSIDE
    pool: int = NO_POOL
    waits: bool = False
    reads: tuple[int, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether the surrounding loop, not the position itself, decides the owner."""
        return self.waits or self.pool != NO_POOL


class Waiting(msgspec.Struct, frozen=True):
    """The memory waits of a loop.

    `lines`: weights for splitting them over the lines of the ops that read; `found`: samples that found the loop
    waiting, of the `at_waits` samples at instructions that may wait; `samples`: all samples of the loop.
    """

    lines: Lines
    found: int
    at_waits: int
    samples: int

    def at(self, samples: int) -> int:
        """The number of waits among samples at instructions that may wait for memory."""
        return samples * self.found // self.at_waits if self.at_waits else 0

    def at_uses(self, samples: int) -> int:
        """The number of waits among samples at instructions that use late values.

        A wait empties the processor's window, so that the instructions after it wait in turn. Otherwise the window is
        full, and the address of a sample says nothing. So the fraction of waits is that of the whole loop.
        """
        return samples * self.found // self.samples if self.samples else 0


class KernelSteps(msgspec.Struct, frozen=True, dict=True):
    """The lines of a kernel, in its IR and in its machine code."""

    kernel: Kernel
    frames: KernelLines
    images: Callable[[], Sequence[Image]]
    _loop_of: dict[int, int] = msgspec.field(default_factory=dict)

    @cached_property
    def code(self) -> KernelCode:
        """Its machine code; without instructions if it cannot be read."""
        images = kernel_images(self.images(), self.kernel.name)
        try:
            instructions = instructions_of(*images[0]) if images else ()
        except ModuleInvalid:
            instructions = ()
        return KernelCode(code_of_ops(instructions, self.frames.op_lines))

    def shared_lines(self, with_code: Collection[int]) -> Mapping[int, Sequence[int]]:
        """For each line that also does the work of other lines, those lines: their ops have no code of their own.

        `with_code`: the lines that have code.
        """
        ops_with_code = {op for line in with_code for op in self.frames.ops_at(line)}
        shared: dict[int, list[int]] = defaultdict(list)
        for line, others in lines_sharing_work(self.frames.op_lines, with_code).items():
            if ops_with_code.isdisjoint(self.frames.ops_at(line)):
                for other in others:
                    shared[other].append(line)
        return shared

    def loop_of(self, address: int) -> int:
        """The innermost loop around an address that has code of ops; `OUTSIDE` if there is none."""
        if address not in self._loop_of:
            loops = loops_around(self.code.loops, self.code.loop_at.get(address, OUTSIDE))
            self._loop_of[address] = next((loop for loop in loops if loop in self.code.loops_of_ops), OUTSIDE)
        return self._loop_of[address]

    def is_inside(self, loop: int, outer: int) -> bool:
        """Whether a loop is `outer`, or nested in it."""
        return outer in (OUTSIDE, *loops_around(self.code.loops, loop))

    def spot_of(self, row: StepRow, metric: str) -> Spot:
        """The spot of a row, for assigning a metric."""
        own = row.step if row.step in self.frames.owned else NO_OP_LINE
        if row.address == NO_ADDRESS:
            return Spot(row.step, own, OUTSIDE if own else UNKNOWN_LOOP)
        if metric == SAMPLES:
            loop = self.code.loop_at.get(row.address, OUTSIDE)
            reads = self.code.uses_of_loads.get(row.address, ())
            pool, waits = self.code.pool_of(row.address), row.address in self.code.waits
            if waits or pool != NO_POOL:
                return Spot(row.step, NO_OP_LINE, loop, pool, waits, reads)
        owner = self.code.line_at.get(row.address, own)
        return Spot(row.step, owner, OUTSIDE if owner else self.loop_of(row.address))

    def waits_in_loops(self, rows: Sequence[StepRow], samples: int, misses: int) -> Mapping[int, Waiting]:
        """The memory waits of loops, from samples of all sites.

        A read that waits has missed. All reads wait in one queue, so the read found waiting says little about whose
        misses filled the queue. Reads are therefore weighted by their misses, or by the bytes that they fetch if no
        misses were counted.

        Args:
            rows: the rows of the kernel.
            samples: the index of the metric of samples.
            misses: the index of a metric of read misses, or `NO_METRIC`.
        """
        waits_by_loop: dict[int, Lines] = defaultdict(Counter)
        samples_by_loop: Counter[int] = Counter()
        missed: Lines = Counter()
        for row in rows:
            if row.address != NO_ADDRESS and row.values[samples]:
                loop = self.code.loop_at.get(row.address, OUTSIDE)
                samples_by_loop[loop] += row.values[samples]
                if row.address in self.code.waits:
                    waits_by_loop[loop][self.code.waits[row.address]] += row.values[samples]
            if misses != NO_METRIC:
                missed[row.step] += row.values[misses]
        waiting = {}
        for loop, at_waits in waits_by_loop.items():
            total, of_loop = at_waits.total(), samples_by_loop[loop]
            lines = self._weights_of_waits(loop, at_waits, missed)
            waiting[loop] = Waiting(lines, self._waiting(loop, total, of_loop), total, of_loop)
        return waiting

    def _waiting(self, loop: int, at_waits: int, samples: int) -> int:
        """The number of waits among `at_waits` samples at instructions that may wait for memory.

        Such instructions keep the core busy, too, but a load that hits completes long before it is the oldest. Consider
        the samples that found no wait, neither here nor at a use (`Waiting.at_uses`). Per cycle, these instructions
        have half as many of them as others (0.3 to 0.6 as many on Zen 5, in loops of gathers with sequential indices).
        """
        busy, cycles = self.code.cycles_at_waits(loop)
        if busy == cycles:
            return at_waits
        cycles = 2 * cycles - busy
        excess = max(0, at_waits * cycles - samples * busy)
        return excess * samples // (cycles * samples - busy * (2 * samples - at_waits)) if excess else 0

    def _weights_of_waits(self, loop: int, at_waits: Lines, missed: Lines) -> Lines:
        fetched = self.code.brought_in(loop)
        least_of_many = max(at_waits.total() / len(at_waits) / _OF_EVEN, max(at_waits.values()) / _OF_MOST)
        least = min(at_waits.total() / _RARE, least_of_many)
        waited = [line for line, count in at_waits.items() if count >= least]
        counted = Counter({line: missed[line] for line in waited if missed[line]})
        return counted or Counter({line: fetched[line] or 1 for line in waited})


NO_METRIC = -1
_RARE = 20
"""A read with less than this fraction (1/20) of its loop's waits does not miss: it is only near a read that does."""
_OF_EVEN, _OF_MOST = 4, 10
"""In a loop with many reads, each may have only a few of the waits. There, a read misses if it has at least 1/4 of an
even part, and at least 1/10 of the waits at the read with the most."""


def kernel_steps(graph: TraceGraph, kernel: Kernel, images: Callable[[], Sequence[Image]]) -> KernelSteps:
    """The lines of a kernel of the map; `images` is called only when needed, and may return none: then no loops."""
    return KernelSteps(kernel, kernel_lines(graph, kernel), images)


def in_loops(
    steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str, waits: Mapping[int, Waiting]
) -> Mapping[int, Lines]:
    """Costs of a metric (at index `number`) at lines of ops, by innermost loop, over all sites of the kernel."""
    by_loop: dict[int, Counter[Spot]] = defaultdict(Counter)
    for row in rows:
        if row.address != NO_ADDRESS and row.values[number]:
            spot = steps.spot_of(row, metric)
            if spot.is_shared or spot.owner:
                by_loop[steps.loop_of(row.address)][spot] += row.values[number]
    return {loop: lines_of_ops(steps, spots, {}, waits) for loop, spots in by_loop.items()}


def lines_of_ops(
    steps: KernelSteps, spots: Counter[Spot], by_loop: Mapping[int, Lines], waits: Mapping[int, Waiting]
) -> Lines:
    """Costs of one site by lines of ops; code of no op goes to the lines around it."""
    lines = _waits_and_pools(steps, spots, waits)
    by_line: Counter[int] = Counter()
    in_loop: Counter[int] = Counter()
    for spot, value in spots.items():
        if spot.owner:
            lines[spot.owner] += value
        elif spot.is_shared:
            continue
        elif spot.loop in (UNKNOWN_LOOP, OUTSIDE):
            by_line[spot.line] += value
        else:
            in_loop[spot.loop] += value
    owned = lines.copy()
    for line, value in sorted(by_line.items()):
        around = steps.frames.around(line)
        within = Counter({inner: owned[inner] for inner in steps.frames.inside(around) if owned[inner]})
        lines.update(_split(value, within or Counter({around: 1})))
    for loop, value in sorted(in_loop.items()):
        lines.update(_split_in_loop(steps, loop, value, by_loop))
    return lines


def _waits_and_pools(steps: KernelSteps, spots: Counter[Spot], waits: Mapping[int, Waiting]) -> Lines:
    """Costs of memory waits and of pools, by lines of ops."""
    lines: Lines = Counter()
    waited: Counter[int] = Counter()
    pooled: Counter[int] = Counter()
    may_wait: Counter[tuple[int, int, bool]] = Counter()
    for spot, value in spots.items():
        if spot.is_shared:
            pooled[spot.pool] += value
            if spot.waits or (spot.loop in waits and not waits[spot.loop].lines.keys().isdisjoint(spot.reads)):
                may_wait[spot.loop, spot.pool, spot.waits] += value
    for (loop, pool, is_at_wait), value in may_wait.items():
        late = waits[loop].at(value) if is_at_wait else waits[loop].at_uses(value)
        late = late if pool != NO_POOL else value
        waited[loop] += late
        pooled[pool] -= late
    for loop, value in sorted(waited.items()):
        lines.update(_split(value, waits[loop].lines))
    del pooled[NO_POOL]  # samples outside pools are all waits
    for pool, value in sorted(pooled.items()):
        lines.update(_split(value, steps.code.weights_of(pool)))
    return lines


def _split_in_loop(steps: KernelSteps, loop: int, value: int, by_loop: Mapping[int, Lines]) -> Lines:
    """Split the cost of code of no op in a loop over the lines of ops in that loop."""
    weights: Lines = Counter()
    for inner, inside in by_loop.items():
        if steps.is_inside(inner, loop):
            weights.update(inside)
    if not weights.total():  # no costs at these lines: use their numbers of instructions
        line_at = steps.code.line_at.items()
        weights = Counter(line for address, line in line_at if steps.is_inside(steps.loop_of(address), loop))
    return _split(value, weights)


def _split(value: int, weights: Lines) -> Lines:
    lines = sorted(weights)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [weights[line] for line in lines]), strict=True)))


def spread_evenly(spots: Counter[Spot], weights: Sequence[int]) -> list[Counter[Spot]]:
    """Split the costs of spots over sites, so that each site gets its exact part of the total and of every spot.

    Splitting every spot separately would give single samples at many spots all to the first site.
    """
    left = split_by_largest_remainder(spots.total(), weights)
    parts: list[Counter[Spot]] = [Counter() for _ in weights]
    for spot in sorted(spots):
        shares = split_by_largest_remainder(spots[spot], left)
        for number, share in enumerate(shares):
            if share:
                parts[number][spot] = share
                left[number] -= share
    return parts


def member_costs(steps: KernelSteps, lines: Lines, site: Site, shared: Mapping[int, Sequence[int]]) -> list[int]:
    """The cost of each op of a site, then the unattributed cost; a line of several ops gives each the same.

    `shared`: as of `KernelSteps.shared_lines`.
    """
    by_members: Counter[tuple[int, ...]] = Counter()
    for line, part in lines.items():
        source_lines = (line, *shared.get(line, ()))
        members = {member for source in source_lines for member in steps.frames.members_at(source, site)}
        by_members[tuple(sorted(members))] += part
    # Lines of the same ops are split together; split separately, all remainders would go to the first op.
    values = [0] * (len(site.members) + 1)
    for indices, part in sorted(by_members.items()):
        owners = indices or (-1,)
        for owner, share in zip(owners, split_by_largest_remainder(part, [1] * len(owners)), strict=True):
            values[owner] += share
    return values
