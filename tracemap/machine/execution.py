"""How often each instruction of a kernel runs, and where in memory its loads and stores go, found without running it.

A kernel's control flow counts whole numbers that are known: sizes are in the code, places in the grid of workgroups are
given. So its code is followed as the processor would, with whole numbers alone (`machine.integers`). Of a loop the
first two turns and the last are followed; the turns between are taken to go on as these do. Where a branch depends on
data, both ways are followed, each with half of the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tracemap.machine.code import ALWAYS, OUTSIDE, CodeLoop, Instruction
from tracemap.machine.integers import (
    Comparison,
    IntegerStep,
    Known,
    Memory,
    State,
    Surroundings,
    integer_step,
    operands_of,
)
from tracemap.units import UNKNOWN, Unknown

ASSUMED_TURNS: Final = 8
"""Turns of a loop whose end depends on what is not known."""
_MOST_BLOCKS: Final = 200_000
"""Blocks that are followed at most: what nests deeper is not known."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where an instruction goes in memory: the first place, and by how many bytes each loop around it moves that.

    `turns`: of each loop from inside out, the step in bytes (unknown where it has none) and how many turns it makes.
    """

    place: Known
    bytes: int
    turns: tuple[tuple[int | Unknown, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Execution:
    """What a call of a function does.

    `counts`: how often each instruction runs, by address; `accesses`: where loads and stores go, by address;
    `assumed`: loops, by the address of their header, whose number of turns is not known.
    """

    counts: Mapping[int, float]
    accesses: Mapping[int, Access]
    assumed: frozenset[int]


NO_EXECUTION: Final = Execution({}, {}, frozenset())


def executed(instructions: Sequence[Instruction], loops: Sequence[CodeLoop], around: Surroundings) -> Execution:
    """What a call of a function does, with what it finds in registers and memory.

    Args:
        instructions: of the function, by address.
        loops: those of the function (`machine.code.loops_of`).
        around: what it finds.
    """
    if not instructions:
        return NO_EXECUTION
    walk = _Walk(instructions, loops)
    try:
        found, _ = walk.region(OUTSIDE, {instructions[0].address: _Arrival(1.0, State.at_entry(around))})
    except _TooMuch:
        return NO_EXECUTION
    counts: dict[int, float] = {}
    for start, count in found.counts.items():
        for each in walk.blocks[start].instructions:
            counts[each.address] = count
    return Execution(counts, found.accesses, frozenset(walk.assumed))


class _TooMuch(Exception):
    """More is to be followed than is worth it."""


@dataclass(frozen=True, slots=True)
class _Block:
    instructions: Sequence[Instruction]
    steps: Sequence[tuple[IntegerStep | None, Memory | None, int]]
    """Of each instruction that matters: what it does to whole numbers, the place of an element, and its address."""
    condition: str
    """Of the jump at its end; "" where it has none, or is always taken."""
    target: int
    """Where that leads to; -1: nowhere in this function."""
    next: int
    """What follows where it does not jump; -1: nothing."""
    loop: int
    """The innermost loop around it."""


@dataclass(slots=True)
class _Arrival:
    """Somewhere that control comes to: how often, and with which state."""

    weight: float
    state: State

    def joined(self, other: _Arrival) -> _Arrival:
        return _Arrival(self.weight + other.weight, self.state.merged(other.state))


@dataclass(slots=True)
class _Found:
    """What happened in a region, by block or address; `exits` are comparisons that decide whether a loop goes on."""

    counts: Counter[int] = field(default_factory=Counter)
    accesses: dict[int, Access] = field(default_factory=dict)
    exits: dict[int, tuple[Comparison, str, bool]] = field(default_factory=dict)

    def add(self, other: _Found) -> None:
        self.counts.update(other.counts)
        for address, access in other.accesses.items():
            self.accesses.setdefault(address, access)


class _Walk:
    """Follows the code of a function, region by region: all of it, or the body of a loop."""

    def __init__(self, instructions: Sequence[Instruction], loops: Sequence[CodeLoop]) -> None:
        self.loops = loops
        self.assumed: set[int] = set()
        self._followed = 0
        self._size_of = [sum(high - low for low, high in loop.ranges) for loop in loops]
        self._number_of_header = {loop.header: number for number, loop in enumerate(loops)}
        self.blocks = {block.instructions[0].address: block for block in self._blocks(instructions)}

    def _blocks(self, instructions: Sequence[Instruction]) -> Iterator[_Block]:
        leaders = {target for each in instructions for target in each.targets}
        start = 0
        for place, each in enumerate(instructions):
            is_last = place + 1 == len(instructions)
            if is_last or each.targets or not each.falls_through or instructions[place + 1].address in leaders:
                yield self._block(instructions[start : place + 1], -1 if is_last else instructions[place + 1].address)
                start = place + 1

    def _block(self, body: Sequence[Instruction], following: int) -> _Block:
        last = body[-1]
        jumps = last.mnemonic.startswith("j")
        return _Block(
            body,
            [step for each in body if (step := _step_of(each)) is not None],
            last.mnemonic[1:] if jumps and last.mnemonic not in ALWAYS else "",
            last.targets[0] if last.targets else -1,
            following if last.falls_through else -1,
            self._innermost(body[0].address),
        )

    def _innermost(self, address: int) -> int:
        around = [number for number, loop in enumerate(self.loops) if loop.holds(address)]
        return min(around, key=lambda number: self._size_of[number], default=OUTSIDE)

    def _child(self, address: int, region: int) -> int:
        """The loop directly inside of a region that a block is in; the region itself where it is in none."""
        loop, inner = self.blocks[address].loop, region
        while loop not in (region, OUTSIDE):
            loop, inner = self.loops[loop].parent, loop
        return inner if loop == region else OUTSIDE - 1

    @cached_property
    def _order(self) -> dict[int, int]:
        """The blocks in reverse postorder of the control flow: what comes before another on all ways has less."""
        first = next(iter(self.blocks))
        order: list[int] = []
        seen = {first}
        waiting = [(first, iter(self._followers(first)))]
        while waiting:
            block, followers = waiting[-1]
            other = next((each for each in followers if each not in seen), None)
            if other is None:
                order.append(block)
                waiting.pop()
            else:
                seen.add(other)
                waiting.append((other, iter(self._followers(other))))
        return {block: number for number, block in enumerate(reversed(order))}

    def _followers(self, block: int) -> Sequence[int]:
        of = self.blocks[block]
        return [each for each in (of.target, of.next) if each in self.blocks]

    # ---- regions

    def region(self, loop: int, arrivals: Mapping[int, _Arrival]) -> tuple[_Found, dict[int, _Arrival]]:
        """Follow a region once: what happened in it, and where control leaves it to.

        Of a loop that is once around: coming back to the header leaves it.
        """
        found, leaving = _Found(), dict[int, _Arrival]()
        waiting = dict(arrivals)
        header = self.loops[loop].header if loop != OUTSIDE else -1
        fresh = set(arrivals)
        while waiting:
            block = min(waiting, key=lambda each: self._order.get(each, 0))
            arrival = waiting.pop(block)
            inner = self._child(block, loop)
            if inner == loop:
                edges = self._follow(block, arrival, found, loop)
            else:
                inside, edges = self._loop(inner, block, arrival)
                found.add(inside)
            for target, other in edges.items():
                leaves = (target == header and target not in fresh) or target == header or not self._is_in(target, loop)
                onto = leaving if leaves else waiting
                onto[target] = onto[target].joined(other) if target in onto else other
        return found, leaving

    def _is_in(self, block: int, loop: int) -> bool:
        if block not in self.blocks:
            return False
        return loop == OUTSIDE or self.loops[loop].holds(block)

    def _follow(self, start: int, arrival: _Arrival, found: _Found, loop: int) -> dict[int, _Arrival]:
        """Follow a block: where control goes behind it."""
        self._followed += 1
        if self._followed > _MOST_BLOCKS:
            raise _TooMuch
        block, state = self.blocks[start], arrival.state.copy()
        found.counts[start] += arrival.weight  # type: ignore[assignment]  # weights may be parts
        for step, memory, address in block.steps:
            if memory is not None:
                place = state.address(memory)
                if address not in found.accesses:
                    found.accesses[address] = Access(place, memory.size)
            if step is not None:
                step.run(state)
        if not block.condition:
            target = block.target if block.target >= 0 else block.next
            return {target: _Arrival(arrival.weight, state)} if target >= 0 else {}
        compared = state.compared
        if compared is UNKNOWN or not _is_condition(block.condition):
            half = arrival.weight / 2
            return {block.target: _Arrival(half, state), block.next: _Arrival(half, state.copy())}
        if loop != OUTSIDE:
            inside = [
                self._is_in(each, loop) and each != self.loops[loop].header for each in (block.target, block.next)
            ]
            self._note_exit(start, compared, block, loop, found)
            del inside
        taken = compared.holds(block.condition)
        return {block.target if taken else block.next: _Arrival(arrival.weight, state)}

    def _note_exit(self, start: int, compared: Comparison, block: _Block, loop: int, found: _Found) -> None:
        """Keep what decides whether a loop goes on."""
        stays = [self._is_in(each, loop) for each in (block.target, block.next)]
        if stays[0] != stays[1]:
            found.exits[start] = compared, block.condition, stays[1]  # whether it ends when the condition holds

    # ---- loops

    def _loop(self, number: int, entry: int, arrival: _Arrival) -> tuple[_Found, dict[int, _Arrival]]:
        """Follow a loop until it ends."""
        header = self.loops[number].header
        state, weight = arrival.state, arrival.weight
        first, leaving = self.region(number, {entry: _Arrival(1.0, state)})
        turns = [first]
        headers = [state]
        exits: dict[int, _Arrival] = {}
        back = _leave(leaving, header, exits)
        if back is None:
            return _scaled(_summed(turns, [1.0]), weight), _weighted(exits, weight)
        if back.weight < 1:  # its end depends on data
            return self._unknown(number, first, back, exits, weight)
        headers.append(back.state)
        second, leaving = self.region(number, {header: _Arrival(1.0, back.state)})
        turns.append(second)
        back = _leave(leaving, header, exits)
        if back is None:
            return _scaled(_summed(turns, [1.0, 1.0]), weight), _weighted(exits, weight)
        if back.weight < 1:
            return self._unknown(number, second, back, exits, weight)
        headers.append(back.state)
        count = _turns(first, second)
        if count is UNKNOWN:
            return self._unknown(number, second, back, exits, weight)
        last, leaving = self.region(number, {header: _Arrival(1.0, headers[1].moved(headers[2], count - 2))})
        again = _leave(leaving, header, exits)
        if again is not None and not exits:
            return self._unknown(number, second, again, exits, weight)
        return _scaled(_of_turns(first, second, last, count), weight), _weighted(exits, weight)

    def _unknown(
        self, number: int, turn: _Found, back: _Arrival, exits: dict[int, _Arrival], weight: float
    ) -> tuple[_Found, dict[int, _Arrival]]:
        """A loop whose end is not known."""
        loop = self.loops[number]
        self.assumed.add(loop.header)
        found = _of_turns(turn, turn, turn, ASSUMED_TURNS)
        found.accesses = {
            address: replace(access, turns=(*access.turns, (UNKNOWN, float(ASSUMED_TURNS))))
            for address, access in turn.accesses.items()
        }
        if not exits:  # what is not known at the last turn may be anything
            for start, block in self.blocks.items():
                if loop.holds(start):
                    for target in (block.target, block.next):
                        if target in self.blocks and not loop.holds(target):
                            exits[target] = _Arrival(1.0, State(back.state.around, dict(back.state.around.registers)))
        total = sum(each.weight for each in exits.values()) or 1.0
        scaled = {
            target: _Arrival(each.weight / total, _forgotten(each.state, back.state)) for target, each in exits.items()
        }
        return _scaled(found, weight), _weighted(scaled, weight)


def _forgotten(state: State, other: State) -> State:
    """What is the same in whichever turn a loop ends."""
    return state.merged(other)


def _leave(leaving: Mapping[int, _Arrival], header: int, exits: dict[int, _Arrival]) -> _Arrival | None:
    """The way back to a loop's header, None where there is none; the others are added to the exits."""
    for target, arrival in leaving.items():
        if target != header:
            exits[target] = exits[target].joined(arrival) if target in exits else arrival
    return leaving.get(header)


def _weighted(arrivals: Mapping[int, _Arrival], weight: float) -> dict[int, _Arrival]:
    return {target: _Arrival(each.weight * weight, each.state) for target, each in arrivals.items()}


def _turns(first: _Found, second: _Found) -> int | Unknown:
    """How many turns a loop makes, from what its exits compare in the first two."""
    found = [
        turns
        for start, (compared, condition, ends_if) in second.exits.items()
        if start in first.exits
        for turns in [_turns_until(first.exits[start][0], compared, condition, ends_if=ends_if)]
        if turns is not UNKNOWN
    ]
    return min(found, default=UNKNOWN)


_NEAR: Final = 3


def _turns_until(first: Comparison, second: Comparison, condition: str, *, ends_if: bool) -> int | Unknown:
    """The number of the first turn, from the third on, at which a condition ends a loop."""
    change = (second.left - second.right) - (first.left - first.right)
    if not change:
        return UNKNOWN
    distance = first.left - first.right
    for apart in (distance, *(distance + sign * (1 << first.bits) for sign in (1, -1))):
        near = -apart // change if change else 0
        for turns in range(max(2, near - _NEAR), max(2, near + _NEAR) + 1):
            if first.moved(second, turns).holds(condition) == ends_if and (
                turns == 2 or first.moved(second, turns - 1).holds(condition) != ends_if
            ):
                return turns + 1
    return UNKNOWN


def _summed(parts: Sequence[_Found], weights: Sequence[float]) -> _Found:
    found = _Found()
    for part in parts:
        found.add(part)
    if len(parts) > 1:
        found.accesses = _stepped(parts[0], parts[1], len(weights), found.accesses)
    else:
        found.accesses = {
            address: replace(each, turns=(*each.turns, (0, 1.0))) for address, each in found.accesses.items()
        }
    return found


def _of_turns(first: _Found, second: _Found, last: _Found, count: int) -> _Found:
    """All turns of a loop: the counts of those between change as from the first to the second, or stay."""
    found = _Found()
    for start in first.counts.keys() | second.counts.keys() | last.counts.keys():
        one, two, end = first.counts[start], second.counts[start], last.counts[start]
        between = count - 3 if first is not second else count - 2
        slope = two - one
        grows = slope and abs(one + (count - 1) * slope - end) <= abs(slope)
        middle = between * (two + end) / 2 if grows else between * two
        found.counts[start] = one + (two if first is not second else 0) + middle + end  # type: ignore[assignment]
    merged = {**last.accesses, **second.accesses, **first.accesses}
    found.accesses = _stepped(first, second, count, merged)
    return found


def _stepped(first: _Found, second: _Found, count: int, accesses: Mapping[int, Access]) -> dict[int, Access]:
    """Accesses with one more loop around them."""
    found = {}
    for address, access in accesses.items():
        step: int | Unknown = UNKNOWN
        if address in first.accesses and address in second.accesses:
            one, two = first.accesses[address].place, second.accesses[address].place
            if one is not UNKNOWN and two is not UNKNOWN and one.base == two.base:
                step = two.offset - one.offset
        found[address] = replace(access, turns=(*access.turns, (step, float(count))))
    return found


def _scaled(found: _Found, weight: float) -> _Found:
    if weight != 1:
        for start in found.counts:
            found.counts[start] *= weight  # type: ignore[assignment]
    return found


def _is_condition(name: str) -> bool:
    return name not in ("p", "np", "pe", "po", "o", "no", "cxz", "ecxz", "rcxz")


def _step_of(each: Instruction) -> tuple[IntegerStep | None, Memory | None, int] | None:
    step = integer_step(each.mnemonic, each.operands, each.values.writes)
    memory = None
    if (each.values.loads or each.values.stores) and not each.values.near:
        memory = next((one for one in operands_of(each.operands) if isinstance(one, Memory)), None)
    return (step, memory, each.address) if step is not None or memory is not None else None
