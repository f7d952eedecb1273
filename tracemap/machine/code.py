"""The instructions of a kernel and its loops, as the processor runs them.

Loops are natural loops (Aho, Lam, Sethi, Ullman, section 9.6.6): found in the control flow of the instructions, so they
are those that the code generator left, whatever it unrolled, fused or peeled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tracemap.machine.decoding import decoded
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.throughput import hundredths_of_cycle
from tracemap.machine.values import NO_VALUES, Decoded, Values, values_of

if TYPE_CHECKING:
    import networkx as nx

OUTSIDE = -1
"""The parent of a loop that stands in no other."""
WINDOW: Final = 512
"""Instructions that a core has in work at a time: the reorder buffers of present-day server cores hold 350 to 512."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: its address in the image, size in bytes, text, and the line that it is of (0: none).

    `targets` are where it may jump to within its function; `falls_through` says whether the next one may follow.
    `hundredths` of a cycle is how long it keeps a core busy; `values` says what it reads and writes.
    """

    address: int
    size: int
    mnemonic: str
    operands: str
    line: int
    targets: tuple[int, ...]
    falls_through: bool
    hundredths: int
    values: Values


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """A loop: the loop that it stands in (`OUTSIDE`: none), where it begins, and the code that belongs to it.

    `ranges` are runs of addresses (first, behind the last), nested loops included; `lines` counts the instructions of
    each line in it, nested loops included. Loops are in the order of their first address, outer ones before inner ones.
    """

    parent: int
    header: int
    ranges: tuple[tuple[int, int], ...]
    lines: Mapping[int, int]

    def holds(self, address: int) -> bool:
        """Whether the instruction at an address belongs to it."""
        return any(low <= address < high for low, high in self.ranges)


def instructions_of(image: Image, function: CodeFunction) -> tuple[Instruction, ...]:
    """The instructions of a function, by address.

    Raises:
        ModuleInvalid: the code is of an architecture that is not read here, or lies outside of the image.
    """
    import numpy as np

    found = list(decoded(image, function))
    lines = image.lines_at(np.array([each.address for each in found], dtype=np.int64)).tolist()
    known = _known(image.machine)
    return tuple(
        _instruction(each, line, function, image.machine, known) for each, line in zip(found, lines, strict=True)
    )


@cache
def _known(_machine: str) -> dict[bytes, _Encoding]:
    """By the bytes of instructions of an architecture: kernels have many in common."""
    return {}


_MOST_KNOWN: Final = 1 << 16


class _Encoding(NamedTuple):
    """What instructions of the same bytes have in common."""

    values: Values
    hundredths: int
    is_jump: bool
    falls_through: bool


def _instruction(
    decoded: Decoded, line: int, function: CodeFunction, machine: str, known: dict[bytes, _Encoding]
) -> Instruction:
    code = bytes(decoded.bytes)
    if code not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[code] = _encoding(decoded, machine)
    found = known[code]
    return Instruction(
        address=decoded.address,
        size=decoded.size,
        mnemonic=decoded.mnemonic,
        operands=decoded.op_str,
        line=line,
        targets=_targets(decoded, function) if found.is_jump else (),
        falls_through=found.falls_through,
        hundredths=found.hundredths,
        values=found.values,
    )


def _encoding(decoded: Decoded, machine: str) -> _Encoding:
    import capstone

    groups = decoded.groups if decoded.id else ()  # bytes that are no instruction have none
    is_jump = capstone.CS_GRP_JUMP in groups
    ends = capstone.CS_GRP_RET in groups or capstone.CS_GRP_INT in groups
    values = values_of(decoded, machine) if decoded.id else NO_VALUES
    return _Encoding(
        values,
        hundredths_of_cycle(machine, decoded.mnemonic, decoded.op_str, loads=values.loads, stores=values.stores),
        is_jump,
        falls_through=not ends and not (is_jump and decoded.mnemonic in ALWAYS),
    )


def _targets(decoded: Decoded, function: CodeFunction) -> tuple[int, ...]:
    """Where a jump leads to, as far as it says so itself: its last operand, if that is a number."""
    import capstone

    told = [int(last.imm) for last in decoded.operands[-1:] if last.type == capstone.CS_OP_IMM]
    return tuple(target for target in told if function.low <= target < function.high)


ALWAYS = ("jmp", "b", "br")
"""Jumps that are always taken."""


def loops_of(instructions: Sequence[Instruction]) -> tuple[CodeLoop, ...]:
    """The loops of a function, from its instructions by address."""
    if not instructions:
        return ()
    import networkx as nx

    blocks = basic_blocks(instructions)
    graph = _flow(blocks)
    dominator = nx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for tail, head in graph.edges:
        if (tail in dominator or tail == 0) and _dominates(head, tail, dominator):
            bodies.setdefault(head, {head}).update(_natural(graph, head, tail))
    order = sorted(bodies, key=lambda head: (blocks[head][0].address, -len(bodies[head])))
    return tuple(_loop(head, order, bodies, blocks) for head in order)


def basic_blocks(instructions: Sequence[Instruction]) -> list[Sequence[Instruction]]:
    """The basic blocks of a function, by address; not empty."""
    leaders = {target for each in instructions for target in each.targets}
    starts = [0]
    for place in range(1, len(instructions)):
        before = instructions[place - 1]
        if instructions[place].address in leaders or before.targets or not before.falls_through:
            starts.append(place)
    return [instructions[low:high] for low, high in zip(starts, [*starts[1:], len(instructions)], strict=True)]


def _flow(blocks: Sequence[Sequence[Instruction]]) -> nx.DiGraph[int]:
    """Control flow between the numbers of blocks."""
    import networkx as nx

    first = {block[0].address: number for number, block in enumerate(blocks)}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    for number, block in enumerate(blocks):
        last = block[-1]
        graph.add_edges_from((number, first[target]) for target in last.targets if target in first)
        if last.falls_through and number + 1 < len(blocks):
            graph.add_edge(number, number + 1)
    return graph


def _dominates(head: int, node: int, dominator: Mapping[int, int | None]) -> bool:
    """Whether every way from the entry to a node leads through another."""
    while node != head:
        above = dominator.get(node)  # the entry has none, or itself, as the version of networkx will have it
        if above is None or above == node:
            return False
        node = above
    return True


def _natural(graph: nx.DiGraph[int], head: int, tail: int) -> set[int]:
    """The nodes from which a loop's last node can be reached without passing its head."""
    found, waiting = {head}, [tail]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(graph.predecessors(node))
    return found


def _loop(
    head: int, order: Sequence[int], bodies: Mapping[int, set[int]], blocks: Sequence[Sequence[Instruction]]
) -> CodeLoop:
    body = bodies[head]
    around = [place for place, other in enumerate(order) if other != head and body < bodies[other]]
    lines = Counter(each.line for number in body for each in blocks[number])
    return CodeLoop(
        parent=min(around, key=lambda place: len(bodies[order[place]]), default=OUTSIDE),
        header=blocks[head][0].address,
        ranges=tuple(_ranges([blocks[number] for number in sorted(body)])),
        lines=dict(sorted(lines.items())),
    )


def _ranges(blocks: Sequence[Sequence[Instruction]]) -> Iterator[tuple[int, int]]:
    """Runs of addresses that blocks cover, in order."""
    low = high = blocks[0][0].address
    for block in blocks:
        if block[0].address != high:
            yield low, high
            low = block[0].address
        high = block[-1].address + block[-1].size
    yield low, high


def loops_by_address(instructions: Sequence[Instruction], loops: Sequence[CodeLoop]) -> dict[int, int]:
    """The number of the innermost loop around each instruction, by address; no entry where there is none.

    Args:
        instructions: of a function, by address.
        loops: those of the function.
    """
    addresses = [each.address for each in instructions]
    found: dict[int, int] = {}
    sizes = [sum(high - low for low, high in loop.ranges) for loop in loops]
    for number in sorted(range(len(loops)), key=lambda number: -sizes[number]):  # inner ones last
        for low, high in loops[number].ranges:
            found.update(dict.fromkeys(addresses[bisect_left(addresses, low) : bisect_left(addresses, high)], number))
    return found


def loops_around(loops: Sequence[CodeLoop], loop: int) -> Iterator[int]:
    """A loop and those that it stands in, from inside out; none outside of loops."""
    while loop != OUTSIDE:
        yield loop
        loop = loops[loop].parent
