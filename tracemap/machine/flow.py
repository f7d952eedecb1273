"""Which op's value an instruction carries, where its own line does not tell.

A load stands on the line of the whole loop nest, not on that of the op that reads what it loads; a store likewise. The
registers tell: what is loaded is of the op that takes it first, what is stored of the op that made it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracemap.machine.code import OUTSIDE, CodeLoop, Instruction, loops_around, loops_by_address
from tracemap.machine.debug_lines import Contracted


def lines_of_values(code: Contracted, loops: Sequence[CodeLoop]) -> dict[int, int]:
    """The line of the op whose value an instruction carries, by its address; no entry where it carries none.

    Args:
        code: of a function; an instruction of a line that is of an op carries this op's value.
        loops: those of the function.
    """
    loop_at = loops_by_address(code.instructions, loops)
    carriers = _Carriers(code.instructions, loops, loop_at, code.lines.owned, code.factors)
    lines = ((each.address, carriers.line_of(place)) for place, each in enumerate(code.instructions))
    return {address: line for address, line in lines if line} | dict(code.products)


@dataclass
class _Carriers:
    instructions: Sequence[Instruction]
    loops: Sequence[CodeLoop]
    loop_at: Mapping[int, int]
    owned: frozenset[int]
    factors: Mapping[int, tuple[frozenset[str], int]]
    _found: dict[int, int] = field(default_factory=dict)
    _inside: dict[int, list[int]] = field(default_factory=dict)

    def line_of(self, place: int) -> int:
        """The line of the op whose value an instruction carries, 0 for none."""
        if place not in self._found:
            self._found[place] = self._line(place, set())
        return self._found[place]

    def _line(self, place: int, passed: set[int]) -> int:
        """The same; `passed`: the instructions that were looked at on the ways to it."""
        instruction = self.instructions[place]
        own = instruction.line if instruction.line in self.owned else 0
        if own and not _brings_back(instruction):
            return own
        if place in self._found or place in passed or len(passed) >= _MOST_PASSED:
            return self._found.get(place, own)
        passed.add(place)
        if instruction.values.stores:
            return self._made(place, passed) or own
        return (self._taken(place, passed) if _carries(instruction) else 0) or own

    def _taken(self, place: int, passed: set[int]) -> int:
        """The op that takes what an instruction writes: the first one that is told by those that take it."""
        waiting = self.instructions[place].values.writes
        for other in self._behind(place):
            values = self.instructions[other].values
            if taken := waiting & (values.reads | values.places):
                found = self._taker(other, taken, passed)
                if found:
                    return found
            waiting -= values.writes - values.partly
            if not waiting:
                break
        return 0

    def _taker(self, place: int, taken: frozenset[str], passed: set[int]) -> int:
        """The op that an instruction takes a value for."""
        instruction = self.instructions[place]
        factors, line = self.factors.get(instruction.address, (frozenset(), 0))
        if taken & factors:
            return line
        # What is put on the stack is of who takes it from there, whatever line the compiler has given to that.
        if _puts_away(instruction) and place not in passed:
            passed.add(place)
            if later := self._taken(place, passed):
                return later
        return self._line(place, passed)

    def _made(self, place: int, passed: set[int]) -> int:
        """The op that has made what an instruction stores."""
        wanted = self.instructions[place].values.reads
        for other in self._before(place):
            instruction = self.instructions[other]
            if wanted & instruction.values.writes:
                if instruction.line in self.owned:
                    return instruction.line
                if other in passed:
                    return 0
                passed.add(other)
                return self._made(other, passed)
        return 0

    def _behind(self, place: int) -> Iterator[int]:
        """The other instructions in the order in which they run behind one.

        Once around its innermost loop, then on from the end of that, once around the next loop, and so on.
        """
        low = high = place
        for inside, goes_around in self._from_inside_out(place):
            yield from inside[bisect_left(inside, high + 1) :]
            if goes_around:
                yield from inside[: bisect_left(inside, low)]
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _before(self, place: int) -> Iterator[int]:
        """The same backwards: those that run before one, the last one first."""
        low = high = place
        for inside, goes_around in self._from_inside_out(place):
            yield from reversed(inside[: bisect_left(inside, low)])
            if goes_around:
                yield from reversed(inside[bisect_left(inside, high + 1) :])
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _from_inside_out(self, place: int) -> Iterator[tuple[list[int], bool]]:
        """The instructions of each loop around one, and whether it goes around; last all of them."""
        for loop in loops_around(self.loops, self.loop_at.get(self.instructions[place].address, OUTSIDE)):
            yield self._held_by(loop), True
        yield self._held_by(OUTSIDE), False

    def _held_by(self, loop: int) -> list[int]:
        """The instructions of a loop, with those of loops inside of it; of all code outside of loops."""
        if loop not in self._inside:
            numbers = range(len(self.instructions))
            held = (number for number in numbers if self.loops[loop].holds(self.instructions[number].address))
            self._inside[loop] = list(numbers if loop == OUTSIDE else held)
        return self._inside[loop]


_MOST_PASSED: Final = 64
"""Instructions that hand a value on before an op takes it; longer ways are not looked for."""

_MOVES = re.compile(r"v?mov|ld[rp]|ldur|st[rp]|stur")


def _brings_back(instruction: Instruction) -> bool:
    """Whether an instruction does nothing but bring a value back that was put on the stack for want of registers."""
    values = instruction.values
    return values.reloads and bool(values.reads) and _MOVES.match(instruction.mnemonic) is not None


def _puts_away(instruction: Instruction) -> bool:
    """Whether an instruction does nothing but put a value on the stack."""
    writes = instruction.values.writes
    is_slot = bool(writes) and all(register.startswith("[") for register in writes)
    return is_slot and _MOVES.match(instruction.mnemonic) is not None


def _carries(instruction: Instruction) -> bool:
    """Whether an instruction brings an element somewhere, rather than counting or finding a place."""
    values = instruction.values
    return values.loads or any(register.startswith(("v", "[")) for register in values.writes)
