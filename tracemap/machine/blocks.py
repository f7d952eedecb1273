"""The code of a function in basic blocks, with what is followed of each: whole numbers, and places in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tracemap.machine.code import ALWAYS, OUTSIDE, CodeLoop, Instruction, basic_blocks, loops_by_address
from tracemap.machine.integer_steps import IntegerStep, integer_step
from tracemap.machine.operands import Memory, operands_of

_ELSEWHERE: Final = -2
"""The child of a region that a block is not in."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is followed of an instruction: what it does to whole numbers, and the place in memory that it goes to."""

    address: int
    numbers: IntegerStep | None
    memory: Memory | None


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block. `steps`: of its instructions that matter.

    `condition`: of the jump at its end, "" where it has none or is always taken. `targets`: the blocks that may follow,
    where a condition decides the one that it jumps to, then the one that it goes on to.
    """

    instructions: Sequence[Instruction]
    steps: Sequence[Step]
    condition: str
    targets: tuple[int, ...]
    loop: int

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.instructions[0].address


@dataclass(frozen=True)
class Blocks:
    """The blocks of a function, by address, and its loops."""

    by_address: Mapping[int, Block]
    loops: Sequence[CodeLoop]

    @property
    def entry(self) -> int:
        """The first block."""
        return next(iter(self.by_address))

    def header(self, loop: int) -> int:
        """The block that a loop begins with; -1 outside of loops."""
        return self.loops[loop].header if loop != OUTSIDE else -1

    def is_in(self, address: int, loop: int) -> bool:
        """Whether a block belongs to a loop, nested ones included; all do to the code outside of loops."""
        return address in self.by_address and (loop == OUTSIDE or self.loops[loop].holds(address))

    def child(self, address: int, region: int) -> int:
        """The loop directly inside of a region that a block is in; the region itself where it is in none."""
        loop, inner = self.by_address[address].loop, region
        while loop not in (region, OUTSIDE):
            loop, inner = self.loops[loop].parent, loop
        return inner if loop == region else _ELSEWHERE

    def behind(self, loop: int) -> set[int]:
        """The blocks that a loop can be left to."""
        inside = (block for address, block in self.by_address.items() if self.is_in(address, loop))
        return {target for block in inside for target in block.targets if not self.is_in(target, loop)}

    def order(self, address: int) -> int:
        """The place of a block in an order in which each stands behind those that lead to it, but for loops."""
        return self._order.get(address, 0)

    @cached_property
    def _order(self) -> dict[int, int]:
        """Reverse postorder of a search in depth (Aho, Lam, Sethi, Ullman, section 9.6.2)."""
        left: list[int] = []
        seen = {self.entry}
        waiting = [(self.entry, iter(self.by_address[self.entry].targets))]
        while waiting:
            address, targets = waiting[-1]
            other = next((each for each in targets if each not in seen and each in self.by_address), None)
            if other is None:
                left.append(address)
                waiting.pop()
            else:
                seen.add(other)
                waiting.append((other, iter(self.by_address[other].targets)))
        return {address: place for place, address in enumerate(reversed(left))}


def blocks_of(instructions: Sequence[Instruction], loops: Sequence[CodeLoop]) -> Blocks:
    """The blocks of a function.

    Args:
        instructions: of the function, by address.
        loops: those of the function.
    """
    loop_at = loops_by_address(instructions, loops)
    bodies = _bodies(instructions)
    found = [_block(body, following, loop_at.get(body[0].address, OUTSIDE)) for body, following in bodies]
    return Blocks({block.address: block for block in found}, loops)


def _bodies(instructions: Sequence[Instruction]) -> Iterator[tuple[Sequence[Instruction], int]]:
    """The instructions of each block, and the address behind it; -1 where it is the last."""
    bodies = basic_blocks(instructions) if instructions else []
    for place, body in enumerate(bodies):
        yield body, bodies[place + 1][0].address if place + 1 < len(bodies) else -1


def _block(body: Sequence[Instruction], following: int, loop: int) -> Block:
    last = body[-1]
    jumps = last.mnemonic.startswith("j") and last.mnemonic not in ALWAYS
    onwards = (following,) if last.falls_through and following >= 0 else ()
    targets = (*last.targets[:1], *onwards)
    steps = [step for each in body if (step := _step(each)) is not None]
    return Block(body, steps, last.mnemonic[1:] if jumps and len(targets) > 1 else "", targets, loop)


def _step(each: Instruction) -> Step | None:
    numbers = integer_step(each.mnemonic, each.operands, each.values.writes)
    memory = None
    if (each.values.loads or each.values.stores) and not each.values.near:
        memory = next((one for one in operands_of(each.operands) if isinstance(one, Memory)), None)
    return Step(each.address, numbers, memory) if numbers is not None or memory is not None else None
