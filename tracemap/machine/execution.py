"""Static execution counts: how often each instruction of a kernel runs, and which memory it accesses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Final, NamedTuple, TypeVar

from tracemap.core.units import UNKNOWN, Unknown
from tracemap.machine.code import ALWAYS, OUTSIDE, CodeLoop, Instruction, basic_blocks, loops_by_address
from tracemap.machine.integers import (
    CONDITIONS,
    Comparison,
    IntegerStep,
    Known,
    Memory,
    State,
    Surroundings,
    integer_step,
    is_number,
    operands_of,
    subtract,
)

# ---- blocks
#
# A function's basic blocks, with the instructions that affect tracked integers or memory addresses.


_T = TypeVar("_T")
_ELSEWHERE: Final = -2
"""`Blocks.child` of a region that does not contain the block."""


@dataclass(frozen=True, slots=True)
class Step:
    """The tracked parts of an instruction: its effect on integers, and its memory operand."""

    address: int
    numbers: IntegerStep | None
    memory: Memory | None


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block. `steps`: its tracked instructions.

    `condition`: condition of the jump at its end, "" if there is none or it is unconditional. `targets`: successors; of
    a conditional jump the jump target, then the fall-through.
    """

    instructions: Sequence[Instruction]
    steps: Sequence[Step]
    condition: str
    targets: tuple[int, ...]
    loop: int

    @property
    def address(self) -> int:
        """Start address."""
        return self.instructions[0].address


@dataclass(frozen=True)
class Blocks:
    """The basic blocks of a function by address, and its loops."""

    by_address: Mapping[int, Block]
    loops: Sequence[CodeLoop]

    @property
    def entry(self) -> int:
        """The entry block."""
        return next(iter(self.by_address))

    def header(self, loop: int) -> int:
        """Address of a loop's header; -1 outside of loops."""
        return self.loops[loop].header if loop != OUTSIDE else -1

    def is_in(self, address: int, loop: int) -> bool:
        """Whether a block belongs to a loop, nested loops included. Region `OUTSIDE` contains all blocks."""
        return address in self.by_address and (loop == OUTSIDE or self.loops[loop].holds(address))

    def child(self, address: int, region: int) -> int:
        """The child loop of a region that contains a block, or the region itself if the block is directly in it."""
        loop, inner = self.by_address[address].loop, region
        while loop not in (region, OUTSIDE):
            loop, inner = self.loops[loop].parent, loop
        return inner if loop == region else _ELSEWHERE

    def by_instruction(self, values: Mapping[int, _T]) -> dict[int, _T]:
        """Values by address of instructions, from those of their blocks."""
        return {
            instruction.address: value
            for start, value in values.items()
            for instruction in self.by_address[start].instructions
        }

    def exits(self, loop: int) -> set[int]:
        """The blocks outside of a loop that it can jump to."""
        inside = (block for address, block in self.by_address.items() if self.is_in(address, loop))
        return {target for block in inside for target in block.targets if not self.is_in(target, loop)}

    def order(self, address: int) -> int:
        """Index of a block in topological order, ignoring back edges."""
        return self._order.get(address, 0)

    @cached_property
    def _order(self) -> dict[int, int]:
        """Reverse postorder of a depth-first search (Aho, Lam, Sethi, Ullman, section 9.6.2)."""
        left: list[int] = []
        seen = {self.entry}
        waiting = [(self.entry, iter(self.by_address[self.entry].targets))]
        while waiting:
            address, targets = waiting[-1]
            other = next((target for target in targets if target not in seen and target in self.by_address), None)
            if other is None:
                left.append(address)
                waiting.pop()
            else:
                seen.add(other)
                waiting.append((other, iter(self.by_address[other].targets)))
        return {address: place for place, address in enumerate(reversed(left))}


def blocks_of(instructions: Sequence[Instruction], loops: Sequence[CodeLoop]) -> Blocks:
    """The basic blocks of a function.

    Args:
        instructions: instructions of the function, by address.
        loops: loops of the function.
    """
    loop_at = loops_by_address(instructions, loops)
    bodies = basic_blocks(instructions) if instructions else []
    blocks: dict[int, Block] = {}
    for body, following in zip_longest(bodies, bodies[1:]):
        last = body[-1]
        targets = (*last.targets[:1], *((following[0].address,) if last.falls_through and following else ()))
        jumps = len(targets) > 1 and last.mnemonic.startswith("j") and last.mnemonic not in ALWAYS
        steps = [step for instruction in body if (step := _step(instruction)) is not None]
        loop = loop_at.get(body[0].address, OUTSIDE)
        blocks[body[0].address] = Block(body, steps, last.mnemonic[1:] if jumps else "", targets, loop)
    return Blocks(blocks, loops)


def _step(instruction: Instruction) -> Step | None:
    numbers = integer_step(instruction.mnemonic, instruction.operands, instruction.values.writes)
    memory = None
    if (instruction.values.loads or instruction.values.stores) and not instruction.values.near:
        memory = next((operand for operand in operands_of(instruction.operands) if isinstance(operand, Memory)), None)
    return Step(instruction.address, numbers, memory) if numbers is not None or memory is not None else None


# ---- execution
#
# Execution counts and memory accesses of a kernel, without running it.
#
# A kernel's control flow depends on known integers: sizes are in the code, and workgroup ids are given. So its code is
# interpreted with integers only (`machine.integers`). Of a loop, the first two iterations and the last are interpreted;
# the others are extrapolated. Where a branch depends on data, both sides are followed with half the weight each; either
# of them may be the one that is always taken.


_ALL: Final = 1 - 1e-9
ASSUMED_TURNS: Final = 8
"""Assumed trip count of a loop whose end depends on unknown data."""
_MOST_INTERPRETED: Final = 200_000
"""Limit on interpreted blocks. Beyond it, nothing is known."""


class Access(NamedTuple):
    """Memory access of an instruction: first address, and stride in each loop around it.

    `turns`: for each loop from inside out, the stride in bytes (unknown if it is not constant) and the trip count.
    """

    place: Known
    bytes: int
    turns: tuple[tuple[int | Unknown, float], ...] = ()

    def within(self, step: int | Unknown, turns: float) -> Access:
        """The same access with one more loop around it."""
        return Access(self.place, self.bytes, (*self.turns, (step, turns)))


class CountBounds(NamedTuple):
    """Bounds of a count, as factors."""

    least: float
    most: float

    def times(self, other: CountBounds) -> CountBounds:
        """Combine two independent factors."""
        return CountBounds(self.least * other.least, self.most * other.most)


CERTAIN: Final = CountBounds(1.0, 1.0)
ASSUMED: Final = CountBounds(0.0, 1e6)
"""Bounds for the trip count of a loop whose end depends on unknown data."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Execution of a function call, by address of instructions.

    `counts`: execution counts; `accesses`: memory accesses; `doubts`: bounds of counts that depend on data.
    """

    counts: Mapping[int, float]
    accesses: Mapping[int, Access]
    doubts: Mapping[int, CountBounds]


NO_EXECUTION: Final = Execution({}, {}, {})


def executed(blocks: Blocks, around: Surroundings, *, with_turns: bool = True) -> Execution:
    """Interpret a call of a function.

    Args:
        blocks: blocks of the function.
        around: initial registers and memory.
        with_turns: compute the strides of accesses; otherwise only their first addresses, which takes less time.
    """
    if not blocks.by_address:
        return NO_EXECUTION
    walk = _Walk(blocks, with_turns)
    try:
        region = walk.region(OUTSIDE, {blocks.entry: _Arrival(1.0, State.at_entry(around))})[0]
    except _LimitExceeded:
        return NO_EXECUTION
    accesses = region.accesses if with_turns else walk.begins
    return Execution(blocks.by_instruction(region.counts), accesses, blocks.by_instruction(region.doubts))


class _LimitExceeded(Exception):
    """The limit on interpreted blocks is exceeded."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Arrival of control at a block: weight (expected count), state and bounds."""

    weight: float
    state: State
    doubt: CountBounds = CERTAIN

    def joined(self, other: _Arrival | None) -> _Arrival:
        """Merge two arrivals, keeping what their states have in common."""
        if other is None:
            return self
        weight, state = self.weight + other.weight, self.state.merged(other.state)
        if self.doubt == other.doubt:
            return _Arrival(weight, state, self.doubt)
        pairs = zip(self.doubt, other.doubt, strict=True)
        return _Arrival(
            weight, state, CountBounds(*((self.weight * own + other.weight * others) / weight for own, others in pairs))
        )

    def scaled(self, factor: float, doubt: CountBounds) -> _Arrival:
        """Multiply the weight, and widen the bounds."""
        return _Arrival(self.weight * factor, self.state, self.doubt.times(doubt))


_Arrivals = Mapping[int, _Arrival]
"""Arrivals by target block."""


@dataclass(frozen=True, slots=True)
class _Exit:
    """A conditional exit of a loop: the comparison, and whether it leaves the loop if the condition holds."""

    compared: Comparison
    condition: str
    leaves_if: bool


@dataclass(slots=True)
class _RegionResult:
    """Result for a region: block counts, accesses by address, and exits by the address of their block."""

    counts: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    accesses: dict[int, Access] = field(default_factory=dict)
    exits: dict[int, _Exit] = field(default_factory=dict)
    doubts: dict[int, CountBounds] = field(default_factory=dict)
    """Bounds for blocks whose count depends on data."""

    def add(self, other: _RegionResult) -> None:
        for start, count in other.counts.items():
            self.counts[start] += count
        self.add_doubts(other.doubts)
        for address, access in other.accesses.items():
            self.accesses.setdefault(address, access)

    def add_doubts(self, doubts: Mapping[int, CountBounds]) -> None:
        for start, doubt in doubts.items():
            known = self.doubts.get(start, doubt)
            self.doubts[start] = CountBounds(min(known.least, doubt.least), max(known.most, doubt.most))

    def scaled(self, factor: float, doubt: CountBounds = CERTAIN) -> _RegionResult:
        """Multiply the counts, and widen the bounds."""
        counts = defaultdict(float, {start: count * factor for start, count in self.counts.items()})
        doubts = self.doubts
        if doubt != CERTAIN:
            doubts = {start: doubts.get(start, CERTAIN).times(doubt) for start in counts}
        return replace(self, counts=counts, doubts=doubts)


class _Walk:
    """Interprets a function region by region: the whole function, or the body of a loop."""

    def __init__(self, blocks: Blocks, with_turns: bool) -> None:
        self.blocks = blocks
        self.begins: dict[int, Access] = {}
        """First addresses of memory accesses, if only these are needed."""
        self._with_turns = with_turns
        self.records_accesses = True
        """Whether memory accesses are recorded: not in the last iteration of a loop."""
        self._interpreted = 0

    def region(self, loop: int, arrivals: _Arrivals) -> tuple[_RegionResult, dict[int, _Arrival]]:
        """Interpret a region once, and return its result and the arrivals outside of it.

        For a loop this is one iteration: the back edge to the header leaves the region.
        """
        result, leaving, waiting = _RegionResult(), dict[int, _Arrival](), dict(arrivals)
        header, total = self.blocks.header(loop), sum(arrived.weight for arrived in arrivals.values())
        while waiting:
            start = min(waiting, key=self.blocks.order)
            arrival = waiting.pop(start)
            if not waiting and arrival.weight >= total * _ALL:  # all paths join here, whichever branches were taken
                arrival = replace(arrival, doubt=CERTAIN)
            inner = self.blocks.child(start, loop)
            if inner == loop:
                edges = self._interpret_block(start, arrival, result, loop)
            else:
                inner_result, edges = self._loop(inner, start, arrival)
                result.add(inner_result)
            for target, other in edges.items():
                destination = leaving if target == header or not self.blocks.is_in(target, loop) else waiting
                destination[target] = other.joined(destination.get(target))
        return result, leaving

    def _interpret_block(self, start: int, arrival: _Arrival, result: _RegionResult, loop: int) -> _Arrivals:
        """Interpret a block, and return the arrivals at its successors."""
        self._interpreted += 1
        if self._interpreted > _MOST_INTERPRETED:
            raise _LimitExceeded
        block, state = self.blocks.by_address[start], arrival.state.copy()
        result.counts[start] += arrival.weight
        if arrival.doubt != CERTAIN:
            result.add_doubts({start: arrival.doubt})
        accesses = result.accesses if self._with_turns else self.begins
        for step in block.steps:
            if step.memory is not None and self.records_accesses and step.address not in accesses:
                accesses[step.address] = Access(state.address(step.memory), step.memory.size)
            if step.numbers is not None:
                step.numbers.run(state)
        if not block.condition:
            return {target: _Arrival(arrival.weight, state, arrival.doubt) for target in block.targets}
        compared = state.compared
        if compared is UNKNOWN or block.condition not in CONDITIONS:
            doubt = CountBounds(0.0, 2 * arrival.doubt.most)
            return {target: _Arrival(arrival.weight / 2, state.copy(), doubt) for target in block.targets}
        self._record_exit(block, compared, loop, result)
        taken = compared.holds(block.condition)
        return {block.targets[0 if taken else -1]: _Arrival(arrival.weight, state, arrival.doubt)}

    def _record_exit(self, block: Block, compared: Comparison, loop: int, result: _RegionResult) -> None:
        jump_stays, fall_through_stays = (
            self.blocks.is_in(target, loop) for target in (block.targets[0], block.targets[-1])
        )
        if loop != OUTSIDE and jump_stays != fall_through_stays:
            result.exits[block.address] = _Exit(compared, block.condition, leaves_if=fall_through_stays)

    # ---- loops

    def _loop(self, loop: int, entry: int, arrival: _Arrival) -> tuple[_RegionResult, _Arrivals]:
        turns = _Turns(self, loop, entry, arrival.state)
        result = turns.all()
        if result is None:
            result = turns.some()
            turns.add_untaken_exits(self.blocks)
        total = sum(exit_arrival.weight for exit_arrival in turns.exits.values()) or 1.0
        factor = arrival.weight / total
        exits = {target: arrived.scaled(factor, arrival.doubt) for target, arrived in turns.exits.items()}
        return result.scaled(arrival.weight, arrival.doubt), exits


class _Turns:
    """The iterations of a loop, and its exits."""

    def __init__(self, walk: _Walk, loop: int, entry: int, state: State) -> None:
        self._walk = walk
        self._loop = loop
        self._entry = entry
        self.exits: dict[int, _Arrival] = {}
        self._turns: list[_RegionResult] = []
        self._states = [state]

    def all(self) -> _RegionResult | None:
        """The result for all iterations; None if the trip count is unknown."""
        for _ in range(2):
            back = self._turn(self._states[-1])
            if back is None:
                return self._of(len(self._turns))
            if back.weight < 1:  # the next iteration depends on data
                return None
            self._states.append(back.state)
        count = _trip_count(*self._turns)
        if count is UNKNOWN:
            return None
        were_recorded, self._walk.records_accesses = self._walk.records_accesses, False
        self._turn(self._states[1].moved(self._states[2], count - 2))
        self._walk.records_accesses = were_recorded
        return self._of(count) if self.exits else None

    def _turn(self, state: State) -> _Arrival | None:
        """Interpret one iteration; returns the arrival at the header by the back edge."""
        start = self._walk.blocks.header(self._loop) if self._turns else self._entry
        result, leaving = self._walk.region(self._loop, {start: _Arrival(1.0, state)})
        self._turns.append(result)
        back = leaving.pop(self._walk.blocks.header(self._loop), None)
        for target, arrival in leaving.items():
            self.exits[target] = arrival.joined(self.exits.get(target))
        return back

    def some(self) -> _RegionResult:
        """The result for the assumed trip count, with all iterations like the last interpreted one."""
        last = self._turns[-1]
        result = last.scaled(ASSUMED_TURNS, ASSUMED)
        result.accesses = {address: access.within(UNKNOWN, ASSUMED_TURNS) for address, access in last.accesses.items()}
        return result

    def add_untaken_exits(self, blocks: Blocks) -> None:
        """Add all possible exits if none was seen, with unknown state."""
        around = self._states[-1].around
        for target in () if self.exits else blocks.exits(self._loop):
            self.exits[target] = _Arrival(1.0, State(around, dict(around.registers)))
        self.exits = {
            target: _Arrival(arrival.weight, arrival.state.merged(self._states[-1]))
            for target, arrival in self.exits.items()
        }

    def _of(self, count: int) -> _RegionResult:
        """The result for a trip count. Iterations between the second and the last are extrapolated."""
        first = self._turns[0]
        second = self._turns[1] if len(self._turns) > 1 else first
        result = _RegionResult()
        for start in {start for turn in self._turns for start in turn.counts}:
            counts = [turn.counts.get(start, 0.0) for turn in self._turns]
            result.counts[start] = sum(counts) + _extrapolated_count(counts, count)
        for turn in self._turns:
            result.add_doubts(turn.doubts)
            for address, access in turn.accesses.items():
                if address not in result.accesses:
                    result.accesses[address] = access.within(_stride(first, second, address), count)
        return result


def _extrapolated_count(counts: Sequence[float], count: int) -> float:
    """Count of a block in the iterations that were not interpreted, extrapolated from the others."""
    remaining = count - len(counts)
    if remaining <= 0:
        return 0.0
    first, second, last = counts
    change = second - first
    grows = change and abs(first + (count - 1) * change - last) <= abs(change)
    return remaining * (second + last) / 2 if grows else remaining * second


def _stride(first: _RegionResult, second: _RegionResult, address: int) -> int | Unknown:
    if first is second:
        return 0
    if address not in first.accesses or address not in second.accesses:
        return UNKNOWN
    moved = subtract(second.accesses[address].place, first.accesses[address].place)
    return moved.offset if is_number(moved) else UNKNOWN


def _trip_count(first: _RegionResult, second: _RegionResult) -> int | Unknown:
    """Trip count of a loop, from the comparisons of its exits in the first two iterations."""
    counts = [
        count
        for start, later_exit in second.exits.items()
        if start in first.exits
        for count in _exit_iteration(first.exits[start], later_exit)
    ]
    return min(counts, default=UNKNOWN)


_NEAR: Final = 3


def _exit_iteration(first: _Exit, second: _Exit) -> Iterator[int]:
    """The number of the first iteration, from the third on, in which an exit leaves the loop."""
    change = (second.compared.left - second.compared.right) - (first.compared.left - first.compared.right)
    distance = first.compared.left - first.compared.right
    whole = 1 << first.compared.bits
    for difference in (distance, distance + whole, distance - whole) if change else ():
        guess = -difference // change
        for turn in range(max(2, guess - _NEAR), max(2, guess + _NEAR) + 1):
            if _exit_leaves(first, second, turn) and (turn == 2 or not _exit_leaves(first, second, turn - 1)):
                yield turn + 1
                return


def _exit_leaves(first: _Exit, second: _Exit, turn: int) -> bool:
    return first.compared.moved(second.compared, turn).holds(first.condition) == first.leaves_if
