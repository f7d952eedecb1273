"""Costs seen in a kernel, brought to lines of ops by its text and machine code, and to members."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple

from tracemap.attribution.scan.rows import NO_ADDRESS, StepRow
from tracemap.errors import ModuleInvalid
from tracemap.graph.model import Kernel, Site, TraceGraph
from tracemap.graph.query import NOBODY, Frames, kernel_frames
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
from tracemap.machine.debug_lines import Contracted, code_of_ops, taken_in
from tracemap.machine.flow import lines_of_values
from tracemap.machine.images import Image, kernel_images
from tracemap.machine.memory import Waits, brought_by, waits_of
from tracemap.measurements.model import SAMPLES
from tracemap.units import split_by_largest_remainder

# ---- code
#
# What a kernel's machine code tells of what was seen in it: whose values an instruction carries, and what is one pool.
#
# A processor has hundreds of instructions in work at a time, and a sample names the oldest of them: the one that waits
# longest for the others, wherever the work is. So samples tell which loop took the time, but not which instruction of
# a loop that fits the processor's window. There, a loop's samples are one pool, split by how long each instruction
# keeps the core busy (`Instruction.hundredths`). Samples that found the processor waiting for memory are of the ops
# that read. Where it waits much, the window is emptied: what is computed from the values that came late is then waited
# for as well.


NO_POOL: Final = -1

Lines = Counter[int]
"""What was seen, or a weight, by line of the kernel's text."""


@dataclass(frozen=True)
class KernelCode:
    """The machine code of a kernel."""

    contracted: Contracted

    @property
    def instructions(self) -> Sequence[Instruction]:
        """By address."""
        return self.contracted.instructions

    @cached_property
    def loops(self) -> tuple[CodeLoop, ...]:
        """Its loops."""
        return loops_of(self.instructions)

    @cached_property
    def loop_at(self) -> dict[int, int]:
        """The number of the innermost loop around an instruction, by address; no entry where there is none."""
        return loops_by_address(self.instructions, self.loops)

    @cached_property
    def line_at(self) -> dict[int, int]:
        """The line of the op whose value an instruction carries, by address; no entry where it carries none."""
        return lines_of_values(self.contracted, self.loops)

    @cached_property
    def loops_of_ops(self) -> frozenset[int]:
        """The loops in which anything is of an op, be it a value that is carried."""
        found: set[int] = set()
        for address in self.line_at:
            found.update(loops_around(self.loops, self.loop_at.get(address, OUTSIDE)))
        return frozenset(found)

    @cached_property
    def _hundredths(self) -> tuple[dict[int, int], dict[int, Fraction]]:
        """For how long instructions keep the core busy, by address, and what those of a line do on average.

        Of a line that has code in loops only that counts, as it is what runs most.
        """
        in_loops: dict[int, list[int]] = defaultdict(list)
        outside: dict[int, list[int]] = defaultdict(list)
        for loop, body in self._bodies.items():
            for each in body:
                (outside if loop == OUTSIDE else in_loops)[each.line].append(each.hundredths)
        means = {line: Fraction(sum(found), len(found)) for line, found in (outside | in_loops).items()}
        return {each.address: each.hundredths for each in self.instructions}, means

    @cached_property
    def lines(self) -> frozenset[int]:
        """The lines of ops that have code."""
        return frozenset(self.line_at.values())

    def busy(self, address: int, line: int, count: int) -> int:
        """For how long an instruction keeps the core busy, if it runs so many times, in hundredths of a clock cycle.

        Where its address is not known (`NO_ADDRESS`), it is like those of its line; what is not known takes a cycle.
        """
        at, of_line = self._hundredths
        return round(count * at.get(address, of_line.get(line, 100)))

    @cached_property
    def _bodies(self) -> dict[int, list[Instruction]]:
        """The instructions of each loop that stand in no loop inside of it; those outside of all loops."""
        found: dict[int, list[Instruction]] = defaultdict(list)
        for each in self.instructions:
            found[self.loop_at.get(each.address, OUTSIDE)].append(each)
        return found

    @cached_property
    def _waits(self) -> tuple[Waits, ...]:
        """Of each loop."""
        return tuple(waits_of(body) for loop, body in self._bodies.items() if loop != OUTSIDE)

    @cached_property
    def waits(self) -> dict[int, int]:
        """Instructions of loops that wait for memory alone, with the line of the op that reads."""
        pairs = (pair for waits in self._waits for pair in waits.load_of.items())
        return {address: self.line_at[load] for address, load in pairs if load in self.line_at}

    def cycles_at_waits(self, loop: int) -> tuple[int, int]:
        """For how long a turn of a loop keeps the core busy at those, and at all, in hundredths of a clock cycle."""
        body = self._bodies[loop]
        at_waits = (each for each in body if each.address in self.waits)
        return sum(each.hundredths for each in at_waits), sum(each.hundredths for each in body)

    @cached_property
    def behind(self) -> dict[int, tuple[int, ...]]:
        """Instructions of loops that wait for what is made of loaded values, with the lines of the ops that read."""
        pairs = (pair for waits in self._waits for pair in waits.behind.items())
        lines = ((address, {self.line_at[load] for load in loads if load in self.line_at}) for address, loads in pairs)
        return {address: tuple(sorted(found)) for address, found in lines}

    @cached_property
    def _pools(self) -> tuple[dict[int, int], list[Lines]]:
        """The number of the pool that each address is in, and the weights of the pools' lines."""
        pool_of: dict[int, int] = {}
        weights: list[Lines] = []
        for loop, body in self._bodies.items():
            for part, around in _parts(body):
                lines = self._weights(around)
                if lines:
                    # Outside of loops, code that is of no op comes before or behind that of ops, and is nobody's.
                    inside = (each.address for each in part if loop != OUTSIDE or each.address in self.line_at)
                    pool_of.update(dict.fromkeys(inside, len(weights)))
                    weights.append(lines)
        return pool_of, weights

    def _weights(self, instructions: Sequence[Instruction]) -> Lines:
        lines: Lines = Counter()
        for each in instructions:
            # Values are loaded again where registers do not suffice for all ops together: that is nobody's own.
            if each.address in self.line_at and not each.values.reloads:
                lines[self.line_at[each.address]] += each.hundredths
        return lines

    def pool_of(self, address: int) -> int:
        """The number of the pool that a sample at an address falls into; `NO_POOL`: its place tells whose it is."""
        return self._pools[0].get(address, NO_POOL)

    def weights_of(self, pool: int) -> Lines:
        """How long the instructions of each line keep the core busy, in the surroundings of a pool."""
        return self._pools[1][pool]

    def brought_in(self, loop: int) -> Lines:
        """How many bytes of lines of memory a loop's loads bring in one turn, by the line of the op that takes them."""
        loads: dict[int, list[Instruction]] = defaultdict(list)
        for each in self._bodies[loop]:
            if each.address in self.line_at and each.values.loads and not each.values.near:
                loads[self.line_at[each.address]].append(each)
        return Counter({line: brought_by(found, self._bodies[loop]) for line, found in loads.items()})


def _parts(body: Sequence[Instruction]) -> Iterator[tuple[Sequence[Instruction], Sequence[Instruction]]]:
    """A body in parts, each with the code around it that a sample in it may be of; most bodies are a single part.

    A sample's place is off by a window to either side. Only in code of many windows it tells more than the model does.
    """
    if len(body) <= _MANY * WINDOW:
        yield body, body
        return
    for begin in range(0, len(body), WINDOW):
        yield body[begin : begin + WINDOW], body[max(0, begin - WINDOW) : begin + 2 * WINDOW]


_MANY = 8


# ---- lines
#
# What was seen in a kernel, brought to lines of ops by its text and machine code, and from these to members.


UNKNOWN_LOOP = -2
"""The loop of what has no address."""


class Spot(NamedTuple):
    """Where something was seen, as far as it decides whose it is.

    `line`: of the kernel's text; `owner`: the line of the op whose it is, `NOBODY` where that is not told; then `loop`
    is the one of the machine code around, and `pool` the code that it was seen in, of which a sample's place tells no
    more; `waits`: what stands there can be found waiting for memory; `reads` are the lines of the ops that read what is
    computed with there.
    """

    line: int
    owner: int
    loop: int = OUTSIDE
    pool: int = NO_POOL
    waits: bool = False
    reads: tuple[int, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether its place does not tell whose it is, but the loop around it does."""
        return self.waits or self.pool != NO_POOL


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a loop waits for memory: how that is split over the lines of the ops that read, and how many of its samples
    found it waiting, of those at what may wait.
    """

    lines: Lines
    found: int
    at_waits: int
    samples: int

    def at(self, samples: int) -> int:
        """How many of the samples at what may wait found it waiting."""
        return samples * self.found // self.at_waits if self.at_waits else 0

    def behind(self, samples: int) -> int:
        """How many of the samples at what is computed from late values found it waiting for these.

        A wait empties the processor's window, so that what is behind it is waited for in turn; elsewhere the window is
        full, and such a place tells nothing. So it is for as large a part as the loop is found waiting.
        """
        return samples * self.found // self.samples if self.samples else 0


@dataclass(frozen=True)
class KernelSteps:
    """The steps of a kernel, in its text and in its machine code."""

    kernel: Kernel
    frames: Frames
    images: Callable[[], Sequence[Image]]
    _loop_of: dict[int, int] = field(default_factory=dict)

    @property
    def owned(self) -> frozenset[int]:
        """The lines that are of ops, and tell whose the work is that stands on them."""
        return self.frames.owned

    @cached_property
    def code(self) -> KernelCode:
        """Its machine code; without instructions where that cannot be read."""
        found = kernel_images(self.images(), self.kernel.name)
        try:
            instructions = instructions_of(*found[0]) if found else ()
        except ModuleInvalid:
            instructions = ()
        return KernelCode(code_of_ops(instructions, self.frames.op_lines))

    def shared_lines(self, seen: Collection[int]) -> Mapping[int, Sequence[int]]:
        """The lines whose work is done on others as well, by these: their ops have no code elsewhere.

        `seen`: the lines that have code.
        """
        with_code = {op for line in seen for op in self.frames.ops_at(line)}
        found: dict[int, list[int]] = defaultdict(list)
        for line, others in taken_in(self.frames.op_lines, seen).items():
            if with_code.isdisjoint(self.frames.ops_at(line)):
                for other in others:
                    found[other].append(line)
        return found

    def loop_of(self, address: int) -> int:
        """The innermost loop around an address that has code of ops, `OUTSIDE` where there is none."""
        if address not in self._loop_of:
            loops = loops_around(self.code.loops, self.code.loop_at.get(address, OUTSIDE))
            self._loop_of[address] = next((loop for loop in loops if loop in self.code.loops_of_ops), OUTSIDE)
        return self._loop_of[address]

    def is_inside(self, loop: int, outer: int) -> bool:
        """Whether a loop is another, or stands in it."""
        return outer in (OUTSIDE, *loops_around(self.code.loops, loop))

    def spot_of(self, row: StepRow, metric: str) -> Spot:
        """Where a row is, as far as it decides whose a metric's value is."""
        own = row.step if row.step in self.owned else NOBODY
        if row.address == NO_ADDRESS:
            return Spot(row.step, own, OUTSIDE if own else UNKNOWN_LOOP)
        if metric == SAMPLES:
            loop, reads = self.code.loop_at.get(row.address, OUTSIDE), self.code.behind.get(row.address, ())
            pool, waits = self.code.pool_of(row.address), row.address in self.code.waits
            if waits or pool != NO_POOL:
                return Spot(row.step, NOBODY, loop, pool, waits, reads)
        owner = self.code.line_at.get(row.address, own)
        return Spot(row.step, owner, OUTSIDE if owner else self.loop_of(row.address))

    def waits_in_loops(self, rows: Sequence[StepRow], samples: int, misses: int) -> Mapping[int, Waiting]:
        """How what a loop waited for memory is split over the lines that read, by loop, for samples of all sites.

        Reads that wait at all have missed. They wait in one queue, so which of them is found waiting says little of
        whose misses filled it: each counts as many lines as it misses, or as much as it brings in where no misses were
        counted.

        Args:
            rows: of the kernel.
            samples: the number of that metric.
            misses: the number of a metric that counts misses of reads, `NO_METRIC` where there is none.
        """
        found: dict[int, Lines] = defaultdict(Counter)
        around: Counter[int] = Counter()
        missed: Lines = Counter()
        for row in rows:
            if row.address != NO_ADDRESS and row.values[samples]:
                loop = self.code.loop_at.get(row.address, OUTSIDE)
                around[loop] += row.values[samples]
                if row.address in self.code.waits:
                    found[loop][self.code.waits[row.address]] += row.values[samples]
            if misses != NO_METRIC:
                missed[row.step] += row.values[misses]
        return {
            loop: Waiting(
                self._weights_of_waits(loop, seen, missed),
                self._waiting(loop, seen.total(), around[loop]),
                seen.total(),
                around[loop],
            )
            for loop, seen in found.items()
        }

    def _waiting(self, loop: int, at_waits: int, samples: int) -> int:
        """How many of the samples at what may wait for memory found it waiting.

        It keeps the core busy as all else does, but a load that hits is done long before it is the oldest: of the
        samples that found no wait, neither here nor behind one (`Waiting.behind`), half as many are here as elsewhere
        in as many cycles (in loops of gathers whose indices are in sequence, 0.3 to 0.6 as many on Zen 5).
        """
        busy, cycles = self.code.cycles_at_waits(loop)
        if busy == cycles:
            return at_waits
        cycles = 2 * cycles - busy
        beyond = max(0, at_waits * cycles - samples * busy)
        return beyond * samples // (cycles * samples - busy * (2 * samples - at_waits)) if beyond else 0

    def _weights_of_waits(self, loop: int, seen: Lines, missed: Lines) -> Lines:
        brought = self.code.brought_in(loop)
        of_many = max(seen.total() / len(seen) / _OF_EVEN, max(seen.values()) / _OF_MOST)
        least = min(seen.total() / _SELDOM, of_many)
        waited = [line for line, count in seen.items() if count >= least]
        counted = Counter({line: missed[line] for line in waited if missed[line]})
        return counted or Counter({line: brought[line] or 1 for line in waited})


NO_METRIC = -1
_SELDOM = 20
"""Reads at which less than one in so many waits of their loop is found do not miss: they stand near one that does."""
_OF_EVEN, _OF_MOST = 4, 10
"""A loop may read so much that each read has but a few of its waits: then those do at which at least one in so many is
found of an even part, and of those at the read that is waited for most."""


def kernel_steps(graph: TraceGraph, kernel: Kernel, images: Callable[[], Sequence[Image]]) -> KernelSteps:
    """The steps of a kernel of the map; without images, which are asked for when they are needed, it has no loops."""
    return KernelSteps(kernel, kernel_frames(graph, kernel), images)


def in_loops(
    steps: KernelSteps, rows: Sequence[StepRow], number: int, metric: str, waits: Mapping[int, Waiting]
) -> Mapping[int, Lines]:
    """What was seen of a metric, the one of this number, at lines of ops, by their innermost loop; of all sites,
    which run the same code.
    """
    seen: dict[int, Counter[Spot]] = defaultdict(Counter)
    for row in rows:
        if row.address != NO_ADDRESS and row.values[number]:
            spot = steps.spot_of(row, metric)
            if spot.is_shared or spot.owner:
                seen[steps.loop_of(row.address)][spot] += row.values[number]
    return {loop: lines_of_ops(steps, spots, {}, waits) for loop, spots in seen.items()}


def lines_of_ops(
    steps: KernelSteps, seen: Counter[Spot], by_loop: Mapping[int, Lines], waits: Mapping[int, Waiting]
) -> Lines:
    """What was seen at one site, by lines that are of ops; code of none goes to the lines around it."""
    lines = _waited_and_pooled(steps, seen, waits)
    of_frame: Counter[int] = Counter()
    of_loop: Counter[int] = Counter()
    for spot, value in seen.items():
        if spot.owner:
            lines[spot.owner] += value
        elif spot.is_shared:
            continue
        elif spot.loop in (UNKNOWN_LOOP, OUTSIDE):
            of_frame[spot.line] += value
        else:
            of_loop[spot.loop] += value
    told = lines.copy()
    for line, value in sorted(of_frame.items()):
        around = steps.frames.around(line)
        within = Counter({inner: told[inner] for inner in steps.frames.inside(around) if told[inner]})
        lines.update(_split(value, within or Counter({around: 1})))
    for loop, value in sorted(of_loop.items()):
        lines.update(_shared(steps, loop, value, by_loop))
    return lines


def _waited_and_pooled(steps: KernelSteps, seen: Counter[Spot], waits: Mapping[int, Waiting]) -> Lines:
    """What was seen of waits for memory and of pools, by lines that are of ops."""
    lines: Lines = Counter()
    waited: Counter[int] = Counter()
    pooled: Counter[int] = Counter()
    may_wait: Counter[tuple[int, int, bool]] = Counter()
    for spot, value in seen.items():
        if spot.is_shared:
            pooled[spot.pool] += value
            if spot.waits or (spot.loop in waits and not waits[spot.loop].lines.keys().isdisjoint(spot.reads)):
                may_wait[spot.loop, spot.pool, spot.waits] += value
    for (loop, pool, is_at_wait), value in may_wait.items():
        late = waits[loop].at(value) if is_at_wait else waits[loop].behind(value)
        late = late if pool != NO_POOL else value
        waited[loop] += late
        pooled[pool] -= late
    for loop, value in sorted(waited.items()):
        lines.update(_split(value, waits[loop].lines))
    del pooled[NO_POOL]  # all of what is in none has waited
    for pool, value in sorted(pooled.items()):
        lines.update(_split(value, steps.code.weights_of(pool)))
    return lines


def _shared(steps: KernelSteps, loop: int, value: int, by_loop: Mapping[int, Lines]) -> Lines:
    """What code of no op in a loop has seen, given to the lines of ops in it."""
    seen: Lines = Counter()
    for inner, inside in by_loop.items():
        if steps.is_inside(inner, loop):
            seen.update(inside)
    if not seen.total():  # nothing was seen of any of them: by the number of their instructions
        carried = steps.code.line_at.items()
        seen = Counter(line for address, line in carried if steps.is_inside(steps.loop_of(address), loop))
    return _split(value, seen)


def _split(value: int, weights: Lines) -> Lines:
    lines = sorted(weights)
    return Counter(dict(zip(lines, split_by_largest_remainder(value, [weights[line] for line in lines]), strict=True)))


def spread_evenly(seen: Counter[Spot], weights: Sequence[int]) -> list[Counter[Spot]]:
    """Split what was seen at spots over sites, so that each site has its part of the sum, and of each spot.

    Both are exact. Splitting each spot by itself would not do: where one sample was seen at each of many spots, all
    would go to the first site.
    """
    left = split_by_largest_remainder(seen.total(), weights)
    parts: list[Counter[Spot]] = [Counter() for _ in weights]
    for spot in sorted(seen):
        shares = split_by_largest_remainder(seen[spot], left)
        for number, share in enumerate(shares):
            if share:
                parts[number][spot] = share
                left[number] -= share
    return parts


def of_members(steps: KernelSteps, lines: Lines, site: Site, shared: Mapping[int, Sequence[int]]) -> list[int]:
    """What was seen of each member of a site, and of nobody after them; a line of several gives each the same.

    `shared`: the lines whose work is done on a line as well.
    """
    together: Counter[tuple[int, ...]] = Counter()
    for line, part in lines.items():
        found = {member for each in (line, *shared.get(line, ())) for member in steps.frames.members_at(each, site)}
        together[tuple(sorted(found))] += part
    # Lines of the same members are split as one: split one by one, all that is left over would go to the first member.
    values = [0] * (len(site.members) + 1)
    for members, part in sorted(together.items()):
        owners = members or (-1,)
        for owner, share in zip(owners, split_by_largest_remainder(part, [1] * len(owners)), strict=True):
            values[owner] += share
    return values
