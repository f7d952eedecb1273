"""Find the op whose value an instruction carries, if its own debug line does not tell.

The debug line of a load or store is that of the whole loop nest, not of an op. Registers tell the op: a load belongs to
the first op that uses the value, a store to the op that computed it.
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
    """The line of the op whose value an instruction carries, by address; no entry if there is none.

    Args:
        code: code of a function. An instruction on an op's line carries that op's value.
        loops: loops of the function.
    """
    loop_at = loops_by_address(code.instructions, loops)
    carriers = _Carriers(code.instructions, loops, loop_at, code.lines.owned, code.factors)
    lines = ((instruction.address, carriers.line_of(index)) for index, instruction in enumerate(code.instructions))
    return {address: line for address, line in lines if line} | dict(code.products)


@dataclass
class _Carriers:
    instructions: Sequence[Instruction]
    loops: Sequence[CodeLoop]
    loop_at: Mapping[int, int]
    owned: frozenset[int]
    factors: Mapping[int, tuple[frozenset[str], int]]
    _line_cache: dict[int, int] = field(default_factory=dict)
    _loop_cache: dict[int, list[int]] = field(default_factory=dict)

    def line_of(self, index: int) -> int:
        """The line of the op whose value an instruction carries; 0 if there is none."""
        if index not in self._line_cache:
            self._line_cache[index] = self._line(index, set())
        return self._line_cache[index]

    def _line(self, index: int, passed: set[int]) -> int:
        """As `line_of`, uncached. `passed`: instructions already visited on the way."""
        instruction = self.instructions[index]
        own = instruction.line if instruction.line in self.owned else 0
        if own and not _is_reload(instruction):
            return own
        if index in self._line_cache or index in passed or len(passed) >= _MOST_PASSED:
            return self._line_cache.get(index, own)
        passed.add(index)
        if instruction.values.stores:
            return self._line_of_source(index, passed) or own
        return (self._line_of_users(index, passed) if _moves_element(instruction) else 0) or own

    def _line_of_users(self, index: int, passed: set[int]) -> int:
        """The op that uses the value of an instruction: the first one that its users lead to."""
        waiting = self.instructions[index].values.writes
        for other in self._instructions_after(index):
            values = self.instructions[other].values
            if used := waiting & (values.reads | values.places):
                line = self._line_of_user(other, used, passed)
                if line:
                    return line
            waiting -= values.writes - values.partly
            if not waiting:
                break
        return 0

    def _line_of_user(self, index: int, used: frozenset[str], passed: set[int]) -> int:
        """The op for which an instruction uses a value."""
        instruction = self.instructions[index]
        factors, line = self.factors.get(instruction.address, (frozenset(), 0))
        if used & factors:
            return line
        # A spilled value belongs to the op that uses it after the reload, whatever the line of the reload.
        if _is_spill(instruction) and index not in passed:
            passed.add(index)
            if later := self._line_of_users(index, passed):
                return later
        return self._line(index, passed)

    def _line_of_source(self, index: int, passed: set[int]) -> int:
        """The op that computed the value that an instruction stores."""
        stored = self.instructions[index].values.reads
        for other in self._instructions_before(index):
            instruction = self.instructions[other]
            if stored & instruction.values.writes:
                if instruction.line in self.owned:
                    return instruction.line
                if other in passed:
                    return 0
                passed.add(other)
                return self._line_of_source(other, passed)
        return 0

    def _instructions_after(self, index: int) -> Iterator[int]:
        """The other instructions in execution order after one.

        Once around its innermost loop, then from the end of that once around the next outer loop, and so on.
        """
        low = high = index
        for inside, goes_around in self._from_inside_out(index):
            yield from inside[bisect_left(inside, high + 1) :]
            if goes_around:
                yield from inside[: bisect_left(inside, low)]
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _instructions_before(self, index: int) -> Iterator[int]:
        """The other instructions in reverse execution order before one."""
        low = high = index
        for inside, goes_around in self._from_inside_out(index):
            yield from reversed(inside[: bisect_left(inside, low)])
            if goes_around:
                yield from reversed(inside[bisect_left(inside, high + 1) :])
            low, high = min(low, inside[0]), max(high, inside[-1])

    def _from_inside_out(self, index: int) -> Iterator[tuple[list[int], bool]]:
        """The instructions of each loop around one, and whether they repeat; finally all instructions."""
        for loop in loops_around(self.loops, self.loop_at.get(self.instructions[index].address, OUTSIDE)):
            yield self._held_by(loop), True
        yield self._held_by(OUTSIDE), False

    def _held_by(self, loop: int) -> list[int]:
        """The instructions of a loop, nested loops included; for `OUTSIDE`, of the whole function."""
        if loop not in self._loop_cache:
            indexes = range(len(self.instructions))
            in_loop = (index for index in indexes if self.loops[loop].holds(self.instructions[index].address))
            self._loop_cache[loop] = list(indexes if loop == OUTSIDE else in_loop)
        return self._loop_cache[loop]


_MOST_PASSED: Final = 64
"""Limit on instructions that pass a value on before an op uses it."""

_MOVES = re.compile(r"v?mov|ld[rp]|ldur|st[rp]|stur")


def _is_reload(instruction: Instruction) -> bool:
    """Whether an instruction only reloads a spilled value."""
    values = instruction.values
    return values.reloads and bool(values.reads) and _MOVES.match(instruction.mnemonic) is not None


def _is_spill(instruction: Instruction) -> bool:
    """Whether an instruction only spills a value to the stack."""
    writes = instruction.values.writes
    is_slot = bool(writes) and all(register.startswith("[") for register in writes)
    return is_slot and _MOVES.match(instruction.mnemonic) is not None


def _moves_element(instruction: Instruction) -> bool:
    """Whether an instruction moves an element, as opposed to counting or computing an address."""
    values = instruction.values
    return values.loads or any(register.startswith(("v", "[")) for register in values.writes)
