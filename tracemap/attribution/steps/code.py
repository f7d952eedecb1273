"""What a kernel's machine code tells of what was seen in it: whose values an instruction carries, and what is one pool.

A processor has hundreds of instructions in work at a time, and a sample names the oldest of them: the one that waits
longest for the others, wherever the work is. So samples tell which loop took the time, but not which instruction of a
loop that fits the processor's window. There, a loop's samples are one pool, split by how long each instruction keeps
the core busy (`Instruction.hundredths`). Samples that found the processor waiting for memory are of the ops that read.
Where it waits much, the window is emptied: what is computed from the values that came late is then waited for as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from tracemap.machine.code import OUTSIDE, WINDOW, CodeLoop, Instruction, loops_by_address, loops_of
from tracemap.machine.contracted import Contracted
from tracemap.machine.flow import lines_of_values
from tracemap.machine.memory import Waits, brought_by, waits_of

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
            loop = self.loop_at.get(address, OUTSIDE)
            while loop != OUTSIDE and loop not in found:
                found.add(loop)
                loop = self.loops[loop].parent
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
