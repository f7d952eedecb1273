"""How often each instruction of a kernel runs, and where its loads and stores go, without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from tracemap.machine.code import ALWAYS, OUTSIDE, CodeLoop, Instruction, basic_blocks, loops_by_address
from tracemap.machine.integer_steps import IntegerStep, integer_step
from tracemap.machine.integers import CONDITIONS, Comparison, Known, Memory, State, Surroundings, operands_of
from tracemap.units import UNKNOWN, Unknown

# ---- blocks
#
# The code of a function in basic blocks, with what is followed of each: whole numbers, and places in memory.


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


# ---- execution
#
# How often each instruction of a kernel runs, and where in memory its loads and stores go, found without running it.
#
# A kernel's control flow counts whole numbers that are known: sizes are in the code, places in the grid of workgroups
# are given. So its code is followed as the processor would, with whole numbers alone (`machine.integers`). Of a loop
# the first two turns and the last are followed; the turns between are taken to go on as these do. Where a branch
# depends on data, both ways are followed, each with half of the weight; either may be the one that is always taken.


_ALL: Final = 1 - 1e-9
ASSUMED_TURNS: Final = 8
"""Turns of a loop whose end depends on what is not known."""
_MOST_FOLLOWED: Final = 200_000
"""Blocks that are followed at most: of what nests deeper nothing is known."""


class Access(NamedTuple):
    """Where an instruction goes in memory: the first place, and by how many bytes each loop around it moves that.

    `turns`: of each loop from inside out, the step in bytes (unknown where it has none) and how many turns it makes.
    """

    place: Known
    bytes: int
    turns: tuple[tuple[int | Unknown, float], ...] = ()

    def within(self, step: int | Unknown, turns: float) -> Access:
        """The same with one more loop around it."""
        return Access(self.place, self.bytes, (*self.turns, (step, turns)))


class Doubt(NamedTuple):
    """How much less or more often something may run than it is taken to, as factors."""

    least: float
    most: float

    def times(self, other: Doubt) -> Doubt:
        """Both together."""
        return Doubt(self.least * other.least, self.most * other.most)


CERTAIN: Final = Doubt(1.0, 1.0)
ASSUMED: Final = Doubt(0.0, 1e6)
"""Of the turns of a loop whose end depends on what is not known."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What a call of a function does.

    `counts`: how often each instruction runs, by address; `accesses`: where loads and stores go, by address; `doubts`:
    of instructions whose count depends on data, by address.
    """

    counts: Mapping[int, float]
    accesses: Mapping[int, Access]
    doubts: Mapping[int, Doubt]


NO_EXECUTION: Final = Execution({}, {}, {})


def executed(blocks: Blocks, around: Surroundings, *, with_turns: bool = True) -> Execution:
    """What a call of a function does, with what it finds in registers and memory.

    Args:
        blocks: of the function.
        around: what it finds.
        with_turns: tell by how much loops move accesses; else only where these begin, which takes less time.
    """
    if not blocks.by_address:
        return NO_EXECUTION
    walk = _Walk(blocks, with_turns)
    try:
        found = walk.region(OUTSIDE, {blocks.entry: _Arrival(1.0, State.at_entry(around))})[0]
    except _TooMuch:
        return NO_EXECUTION
    counts = {
        each.address: count for start, count in found.counts.items() for each in blocks.by_address[start].instructions
    }
    doubts = {
        each.address: doubt for start, doubt in found.doubts.items() for each in blocks.by_address[start].instructions
    }
    return Execution(counts, found.accesses if with_turns else walk.begins, doubts)


class _TooMuch(Exception):
    """More is to be followed than is worth it."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Somewhere that control comes to: how often, and with which state."""

    weight: float
    state: State
    doubt: Doubt = CERTAIN

    def joined(self, other: _Arrival | None) -> _Arrival:
        """Both, with what is the same in their states."""
        if other is None:
            return self
        weight, state = self.weight + other.weight, self.state.merged(other.state)
        if self.doubt == other.doubt:
            return _Arrival(weight, state, self.doubt)
        pairs = zip(self.doubt, other.doubt, strict=True)
        return _Arrival(
            weight, state, Doubt(*((self.weight * one + other.weight * two) / weight for one, two in pairs))
        )

    def scaled(self, factor: float, doubt: Doubt) -> _Arrival:
        """So many times as often, with more doubt."""
        return _Arrival(self.weight * factor, self.state, self.doubt.times(doubt))


_Arrivals = Mapping[int, _Arrival]
"""By the block that control comes to."""


@dataclass(frozen=True, slots=True)
class _Exit:
    """A branch that leaves a loop: what it compares, and whether it leaves where its condition holds."""

    compared: Comparison
    condition: str
    leaves_if: bool


@dataclass(slots=True)
class _Found:
    """What happened in a region: how often blocks ran, accesses by address, exits by the block that they end."""

    counts: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    accesses: dict[int, Access] = field(default_factory=dict)
    exits: dict[int, _Exit] = field(default_factory=dict)
    doubts: dict[int, Doubt] = field(default_factory=dict)
    """Of blocks whose count depends on data."""

    def add(self, other: _Found) -> None:
        for start, count in other.counts.items():
            self.counts[start] += count
        self.add_doubts(other.doubts)
        for address, access in other.accesses.items():
            self.accesses.setdefault(address, access)

    def add_doubts(self, doubts: Mapping[int, Doubt]) -> None:
        for start, doubt in doubts.items():
            known = self.doubts.get(start, doubt)
            self.doubts[start] = Doubt(min(known.least, doubt.least), max(known.most, doubt.most))

    def scaled(self, factor: float, doubt: Doubt = CERTAIN) -> _Found:
        """So many times as often, with more doubt."""
        counts = defaultdict(float, {start: count * factor for start, count in self.counts.items()})
        doubts = self.doubts
        if doubt != CERTAIN:
            doubts = {start: doubts.get(start, CERTAIN).times(doubt) for start in counts}
        return replace(self, counts=counts, doubts=doubts)


class _Walk:
    """Follows the code of a function, region by region: all of it, or the body of a loop."""

    def __init__(self, blocks: Blocks, with_turns: bool) -> None:
        self.blocks = blocks
        self.begins: dict[int, Access] = {}
        """Where loads and stores go first, if that is all that is asked."""
        self._with_turns = with_turns
        self.looks_at_places = True
        """Whether it is noted where loads and stores go: not in the last turn of a loop."""
        self._followed = 0

    def region(self, loop: int, arrivals: _Arrivals) -> tuple[_Found, dict[int, _Arrival]]:
        """Follow a region once: what happened in it, and where control leaves it to.

        Of a loop that is one turn: coming back to the header leaves it.
        """
        found, leaving, waiting = _Found(), dict[int, _Arrival](), dict(arrivals)
        header, total = self.blocks.header(loop), sum(each.weight for each in arrivals.values())
        while waiting:
            start = min(waiting, key=self.blocks.order)
            arrival = waiting.pop(start)
            if not waiting and arrival.weight >= total * _ALL:  # whatever branches were taken, all of them lead here
                arrival = replace(arrival, doubt=CERTAIN)
            inner = self.blocks.child(start, loop)
            if inner == loop:
                edges = self._follow(start, arrival, found, loop)
            else:
                inside, edges = self._loop(inner, start, arrival)
                found.add(inside)
            for target, other in edges.items():
                onto = leaving if target == header or not self.blocks.is_in(target, loop) else waiting
                onto[target] = other.joined(onto.get(target))
        return found, leaving

    def _follow(self, start: int, arrival: _Arrival, found: _Found, loop: int) -> _Arrivals:
        """Follow a block: where control goes behind it."""
        self._followed += 1
        if self._followed > _MOST_FOLLOWED:
            raise _TooMuch
        block, state = self.blocks.by_address[start], arrival.state.copy()
        found.counts[start] += arrival.weight
        if arrival.doubt != CERTAIN:
            found.add_doubts({start: arrival.doubt})
        accesses = found.accesses if self._with_turns else self.begins
        for step in block.steps:
            if step.memory is not None and self.looks_at_places and step.address not in accesses:
                accesses[step.address] = Access(state.address(step.memory), step.memory.size)
            if step.numbers is not None:
                step.numbers.run(state)
        if not block.condition:
            return {target: _Arrival(arrival.weight, state, arrival.doubt) for target in block.targets}
        compared = state.compared
        if compared is UNKNOWN or block.condition not in CONDITIONS:
            doubt = Doubt(0.0, 2 * arrival.doubt.most)
            return {target: _Arrival(arrival.weight / 2, state.copy(), doubt) for target in block.targets}
        self._note_exit(block, compared, loop, found)
        taken = compared.holds(block.condition)
        return {block.targets[0 if taken else -1]: _Arrival(arrival.weight, state, arrival.doubt)}

    def _note_exit(self, block: Block, compared: Comparison, loop: int, found: _Found) -> None:
        jumps_in, goes_on_in = (self.blocks.is_in(target, loop) for target in (block.targets[0], block.targets[-1]))
        if loop != OUTSIDE and jumps_in != goes_on_in:
            found.exits[block.address] = _Exit(compared, block.condition, leaves_if=goes_on_in)

    # ---- loops

    def _loop(self, loop: int, entry: int, arrival: _Arrival) -> tuple[_Found, _Arrivals]:
        """Follow a loop until it ends."""
        turns = _Turns(self, loop, entry, arrival.state)
        found = turns.all()
        if found is None:
            found = turns.some()
            turns.add_untaken_exits(self.blocks)
        total = sum(each.weight for each in turns.exits.values()) or 1.0
        factor = arrival.weight / total
        exits = {target: each.scaled(factor, arrival.doubt) for target, each in turns.exits.items()}
        return found.scaled(arrival.weight, arrival.doubt), exits


class _Turns:
    """The turns of a loop, and where it is left to."""

    def __init__(self, walk: _Walk, loop: int, entry: int, state: State) -> None:
        self._walk = walk
        self._loop = loop
        self._entry = entry
        self.exits: dict[int, _Arrival] = {}
        self._turns: list[_Found] = []
        self._states = [state]

    def all(self) -> _Found | None:
        """What happened in all of them; None where their number is not known."""
        for _ in range(2):
            back = self._turn(self._states[-1])
            if back is None:
                return self._of(len(self._turns))
            if back.weight < 1:  # it depends on data whether it goes on
                return None
            self._states.append(back.state)
        count = _count(*self._turns)
        if count is UNKNOWN:
            return None
        looked, self._walk.looks_at_places = self._walk.looks_at_places, False
        self._turn(self._states[1].moved(self._states[2], count - 2))
        self._walk.looks_at_places = looked
        return self._of(count) if self.exits else None

    def _turn(self, state: State) -> _Arrival | None:
        """Follow one turn; returns the way back to its header."""
        start = self._walk.blocks.header(self._loop) if self._turns else self._entry
        found, leaving = self._walk.region(self._loop, {start: _Arrival(1.0, state)})
        self._turns.append(found)
        back = leaving.pop(self._walk.blocks.header(self._loop), None)
        for target, arrival in leaving.items():
            self.exits[target] = arrival.joined(self.exits.get(target))
        return back

    def some(self) -> _Found:
        """What happens in as many turns as are assumed, all like the last one that was followed."""
        last = self._turns[-1]
        found = last.scaled(ASSUMED_TURNS, ASSUMED)
        found.accesses = {address: access.within(UNKNOWN, ASSUMED_TURNS) for address, access in last.accesses.items()}
        return found

    def add_untaken_exits(self, blocks: Blocks) -> None:
        """Have it end at any of its exits where none was seen: what is not known then may be anything."""
        around = self._states[-1].around
        for target in () if self.exits else blocks.behind(self._loop):
            self.exits[target] = _Arrival(1.0, State(around, dict(around.registers)))
        self.exits = {
            target: _Arrival(each.weight, each.state.merged(self._states[-1])) for target, each in self.exits.items()
        }

    def _of(self, count: int) -> _Found:
        """What happened in so many turns: between the second and the last it goes on as it began."""
        first = self._turns[0]
        second = self._turns[1] if len(self._turns) > 1 else first
        found = _Found()
        for start in {start for turn in self._turns for start in turn.counts}:
            seen = [turn.counts.get(start, 0.0) for turn in self._turns]
            found.counts[start] = sum(seen) + _between(seen, count)
        for turn in self._turns:
            found.add_doubts(turn.doubts)
            for address, access in turn.accesses.items():
                if address not in found.accesses:
                    found.accesses[address] = access.within(_bytes_a_turn(first, second, address), count)
        return found


def _between(seen: Sequence[float], count: int) -> float:
    """How often a block runs in the turns that were not followed, from how often it did in those that were."""
    left = count - len(seen)
    if left <= 0:
        return 0.0
    first, second, last = seen
    change = second - first
    grows = change and abs(first + (count - 1) * change - last) <= abs(change)
    return left * (second + last) / 2 if grows else left * second


def _bytes_a_turn(first: _Found, second: _Found, address: int) -> int | Unknown:
    """How many bytes an access goes on by from one turn to the next."""
    if first is second or address not in first.accesses or address not in second.accesses:
        return 0 if first is second else UNKNOWN
    one, two = first.accesses[address].place, second.accesses[address].place
    if one is UNKNOWN or two is UNKNOWN or one.pointer != two.pointer:
        return UNKNOWN
    return two.offset - one.offset


def _count(first: _Found, second: _Found) -> int | Unknown:
    """How many turns a loop makes, from what its exits compare in the first two."""
    counts = [
        count
        for start, then in second.exits.items()
        if start in first.exits
        for count in _first_to_leave(first.exits[start], then)
    ]
    return min(counts, default=UNKNOWN)


_NEAR: Final = 3


def _first_to_leave(first: _Exit, second: _Exit) -> Iterator[int]:
    """The number of the first turn, from the third on, at which an exit leaves its loop."""
    change = (second.compared.left - second.compared.right) - (first.compared.left - first.compared.right)
    distance = first.compared.left - first.compared.right
    whole = 1 << first.compared.bits
    for apart in (distance, distance + whole, distance - whole) if change else ():
        near = -apart // change
        for turn in range(max(2, near - _NEAR), max(2, near + _NEAR) + 1):
            if _leaves(first, second, turn) and (turn == 2 or not _leaves(first, second, turn - 1)):
                yield turn + 1
                return


def _leaves(first: _Exit, second: _Exit, turn: int) -> bool:
    return first.compared.moved(second.compared, turn).holds(first.condition) == first.leaves_if
