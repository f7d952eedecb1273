"""Instructions and loops of a kernel's machine code.

Loops are natural loops of the control flow (Aho, Lam, Sethi, Ullman, section 9.6.6). They are the loops of the
generated code, after unrolling, fusion and peeling.
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
"""Parent of an outermost loop."""
WINDOW: Final = 512
"""Instructions in flight in a core: reorder buffers of current server cores hold 350 to 512."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: address in the image, size in bytes, text, and debug line (0: none).

    `targets`: jump targets within the function; `falls_through`: whether the next instruction may follow;
    `hundredths`: hundredths of a cycle that it keeps a core busy; `values`: its data flow.
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
    """A loop: its parent (`OUTSIDE`: none), the address of its header, and its code.

    `ranges`: address ranges (low, high exclusive), nested loops included; `lines`: number of instructions per line,
    nested loops included. Loops are in order of their first address, outer loops first.
    """

    parent: int
    header: int
    ranges: tuple[tuple[int, int], ...]
    lines: Mapping[int, int]

    def holds(self, address: int) -> bool:
        """Whether the instruction at an address belongs to the loop."""
        return any(low <= address < high for low, high in self.ranges)


def instructions_of(image: Image, function: CodeFunction) -> tuple[Instruction, ...]:
    """The instructions of a function, by address.

    Raises:
        ModuleInvalid: the architecture is not supported, or the code lies outside the image.
    """
    import numpy as np

    decoded_instructions = list(decoded(image, function))
    lines = image.lines_at(
        np.array([instruction.address for instruction in decoded_instructions], dtype=np.int64)
    ).tolist()
    known = _known(image.machine)
    return tuple(
        _instruction(instruction, line, function, image.machine, known)
        for instruction, line in zip(decoded_instructions, lines, strict=True)
    )


@cache
def _known(_machine: str) -> dict[bytes, _Encoding]:
    """Cache of encodings by their bytes, for an architecture. Kernels share many."""
    return {}


_MOST_KNOWN: Final = 1 << 16


class _Encoding(NamedTuple):
    """Properties of an instruction that depend on its bytes only."""

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
    encoding = known[code]
    return Instruction(
        address=decoded.address,
        size=decoded.size,
        mnemonic=decoded.mnemonic,
        operands=decoded.op_str,
        line=line,
        targets=_targets(decoded, function) if encoding.is_jump else (),
        falls_through=encoding.falls_through,
        hundredths=encoding.hundredths,
        values=encoding.values,
    )


def _encoding(decoded: Decoded, machine: str) -> _Encoding:
    import capstone

    groups = decoded.groups if decoded.id else ()  # invalid bytes have none
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
    """The direct target of a jump within the function: its last operand, if that is an immediate."""
    import capstone

    immediates = [int(last.imm) for last in decoded.operands[-1:] if last.type == capstone.CS_OP_IMM]
    return tuple(target for target in immediates if function.low <= target < function.high)


ALWAYS = ("jmp", "b", "br")
"""Unconditional jumps."""


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
    """The basic blocks of a function, by address."""
    leaders = {target for instruction in instructions for target in instruction.targets}
    starts = [0]
    for index in range(1, len(instructions)):
        previous = instructions[index - 1]
        if instructions[index].address in leaders or previous.targets or not previous.falls_through:
            starts.append(index)
    return [instructions[low:high] for low, high in zip(starts, [*starts[1:], len(instructions)], strict=True)]


def _flow(blocks: Sequence[Sequence[Instruction]]) -> nx.DiGraph[int]:
    """Control-flow graph of block indexes."""
    import networkx as nx

    first = {block[0].address: index for index, block in enumerate(blocks)}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    for index, block in enumerate(blocks):
        last = block[-1]
        graph.add_edges_from((index, first[target]) for target in last.targets if target in first)
        if last.falls_through and index + 1 < len(blocks):
            graph.add_edge(index, index + 1)
    return graph


def _dominates(head: int, node: int, dominator: Mapping[int, int | None]) -> bool:
    """Whether all paths from the entry to `node` pass through `head`."""
    while node != head:
        above = dominator.get(node)  # for the entry, None or the entry itself, depending on networkx's version
        if above is None or above == node:
            return False
        node = above
    return True


def _natural(graph: nx.DiGraph[int], head: int, tail: int) -> set[int]:
    """The nodes that reach a loop's tail without passing its head."""
    nodes, waiting = {head}, [tail]
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            waiting.extend(graph.predecessors(node))
    return nodes


def _loop(
    head: int, order: Sequence[int], bodies: Mapping[int, set[int]], blocks: Sequence[Sequence[Instruction]]
) -> CodeLoop:
    body = bodies[head]
    outer_loops = [index for index, other in enumerate(order) if other != head and body < bodies[other]]
    lines = Counter(instruction.line for block_index in body for instruction in blocks[block_index])
    return CodeLoop(
        parent=min(outer_loops, key=lambda index: len(bodies[order[index]]), default=OUTSIDE),
        header=blocks[head][0].address,
        ranges=tuple(_ranges([blocks[block_index] for block_index in sorted(body)])),
        lines=dict(sorted(lines.items())),
    )


def _ranges(blocks: Sequence[Sequence[Instruction]]) -> Iterator[tuple[int, int]]:
    """Merge the addresses of blocks into contiguous ranges, in order."""
    low = high = blocks[0][0].address
    for block in blocks:
        if block[0].address != high:
            yield low, high
            low = block[0].address
        high = block[-1].address + block[-1].size
    yield low, high


def loops_by_address(instructions: Sequence[Instruction], loops: Sequence[CodeLoop]) -> dict[int, int]:
    """Index of the innermost loop around each instruction, by address; no entry outside of loops.

    Args:
        instructions: instructions of a function, by address.
        loops: loops of the function.
    """
    addresses = [instruction.address for instruction in instructions]
    loop_at: dict[int, int] = {}
    sizes = [sum(high - low for low, high in loop.ranges) for loop in loops]
    for index in sorted(range(len(loops)), key=lambda index: -sizes[index]):  # inner ones last
        for low, high in loops[index].ranges:
            loop_at.update(dict.fromkeys(addresses[bisect_left(addresses, low) : bisect_left(addresses, high)], index))
    return loop_at


def loops_around(loops: Sequence[CodeLoop], loop: int) -> Iterator[int]:
    """A loop and its ancestors, from inside out; empty for `OUTSIDE`."""
    while loop != OUTSIDE:
        yield loop
        loop = loops[loop].parent
