"""Machine code of a kernel: functions, instructions and their throughput, loops."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tracemap.machine.decoding import decoded
from tracemap.machine.images import CodeFunction, Image
from tracemap.machine.values import NO_VALUES, DataFlow, Decoded, values_of

if TYPE_CHECKING:
    import networkx as nx


# ---- throughput
#
# Reciprocal throughput of instructions: how long each keeps a core busy.
#
# Reciprocal throughput is cycles per instruction in a sequence of independent instructions of one kind. The numbers
# come from uops.info (Abel and Reineke, ASPLOS 2019) and LLVM's models of current server cores (Ice Lake, Sapphire
# Rapids, Zen 4), and for AArch64 from Arm's Software Optimization Guides (Neoverse N1 to V2). They are grouped into
# classes; where cores differ, the value lies between theirs. Divisions and roots count half, since their unit works in
# parallel to other work. Register moves are handled by renaming. Only ratios within one loop matter.


Classes = Sequence[tuple[re.Pattern[str], tuple[int, int, int]]]
"""Pattern of a mnemonic with the kinds of its operands (`_kinds`) -> hundredths of a cycle for scalars and 128, 256 and
512 bits."""


def _classes(*rows: tuple[str, tuple[int, int, int]]) -> Classes:
    return [(re.compile(pattern), cycles) for pattern, cycles in rows]


# The first matching pattern counts. A leading "v" of mnemonics is removed.
_X86: Final = _classes(
    (r"div[ps][sh]", (200, 300, 500)),
    (r"div[ps]d", (250, 500, 900)),
    (r"sqrt[ps][sh]", (250, 400, 600)),
    (r"sqrt[ps]d", (350, 600, 1100)),
    (r"i?div ", (800, 800, 800)),
    (r"p?gather", (400, 800, 1600)),
    (r"p?scatter", (1100, 1800, 2600)),
    (r"r(cp|sqrt)", (100, 100, 200)),
    (r"(range|reduce|rndscale|round|getexp|getmant|fixupimm)", (100, 100, 130)),
    (r"p?compress|p?expand", (200, 200, 300)),
    # Pure loads, whatever their name.
    (r"(p?broadcast\w*|movddup|movs[hl]dup) \w\{?m", (20, 20, 20)),
    # Between register files.
    (r"(mov[dqw]|pbroadcast[bwdq]) [xyz]\{?r|(mov[dqw]|pextr[bwdq]|extractps) [rm]x|pinsr[bwdq] xxr", (100, 100, 100)),
    (r"cvtsi2|cvtt?[ps][sdh]2u?si|u?comis", (100, 100, 100)),
    (r"(cmp|pcmp|fpclass|ptestn?m)\w* k", (90, 90, 100)),
    (r"kmov\w m", (60, 60, 60)),
    (r"(kmov|kortest|kand|kor|kxor|kshift|kunpck|movmsk|pmovmsk)", (85, 85, 85)),
    (r"p?blend[mv]", (70, 70, 70)),
    (r"p?blend", (40, 40, 50)),
    # Within 128-bit lanes, and across lanes. Part of a register to or from memory is a merging load or a store.
    (r"(insert|extract)[fi]\w* [\w{]*m", (60, 60, 65)),
    (r"(insertps|palignr|unpck|movlh|movhl|pinsr)", (80, 80, 100)),
    (r"(permil|shufp|pshuf|punpck|pack|movddup|movs[hl]dup)", (50, 50, 100)),
    (r"(perm|insert|extract|align|shuf|p?broadcast)", (85, 100, 100)),
    (r"pmov[sz]x", (50, 100, 110)),
    (r"pmov[bwdqs]{2}", (100, 100, 115)),
    (r"cvt", (50, 50, 85)),
    (r"(cmp[^x ]|pcmp)", (55, 50, 80)),
    # A core has one or two of these units for 512 bits, and two for 256.
    (r"(fn?m(add|sub)|mul|add|sub|max|min|scalef|dp|pmul|pmadd|pdpbusd|pdpwssd)[a-z0-9]*[ps][shdb]", (50, 50, 75)),
    (r"p(mul|madd|sad|dp|sll|srl|sra)", (50, 50, 80)),
    (r"p(add|sub|max|min|abs|and|or|xor|ternlog|avg|rol|ror)", (30, 35, 50)),
    (r"(and|andn|or|xor)p[sd]", (30, 30, 50)),
    (r"movs[sd] xxx|mov\w+ [xyz]\{[xyz]", (35, 35, 45)),
    (r"(mov|lddqu)", (20, 20, 20)),
    (r"(imul|mulx|popcnt|lzcnt|tzcnt|bsf|bsr|pdep|pext)", (100, 100, 100)),
    (r"(lea|sh[lr]|sa[lr]|ro[lr]|rc[lr]|cmov|set|sbb|adc)", (50, 50, 50)),
    (r"(div|call)", (500, 500, 500)),
)
_X86_LOAD: Final = (35, 40, 60)
"""Two or three loads a cycle; half as many for 512 bits."""
_X86_STORE: Final = (60, 75, 100)

_AARCH64: Final = _classes(
    (r"fdiv", (400, 800, 800)),
    (r"fsqrt", (500, 900, 900)),
    (r"[us]div", (700, 700, 700)),
    (r"frecpe|frsqrte", (100, 100, 100)),
    (r"(ld[1234]|ldn?p)", (60, 60, 60)),
    (r"ld", (40, 40, 40)),
    (r"st", (60, 75, 75)),
    (r"(fcvt|[su]cvtf|frint|addv|[fsu](max|min)n?m?v|tbl|tbx|ins|dup|[us]mov)", (75, 75, 75)),
    (r"f", (40, 40, 40)),
    (r"(madd|msub|mul|[us]mull|[us]dot|[us]mla)", (75, 75, 75)),
)
_OTHER: Final = (25, 25, 25)
"""Integer arithmetic and jumps: four or more a cycle."""


def hundredths_of_cycle(machine: str, mnemonic: str, operands: str, *, loads: bool, stores: bool) -> int:
    """Hundredths of a cycle that an instruction keeps a core busy, at least 1.

    Args:
        machine: ELF name of the architecture (`EM_X86_64`). For unknown ones, all instructions count the same.
        mnemonic: mnemonic in lower case.
        operands: operands as the disassembler prints them.
        loads: whether it reads memory.
        stores: whether it writes memory.
    """
    if machine == "EM_AARCH64":
        return _class_of(machine, mnemonic)[1]
    if machine != "EM_X86_64":
        return 100
    width = 2 if "zmm" in operands else 1 if "ymm" in operands else 0
    own = _class_of(machine, f"{mnemonic.removeprefix('v')} {_kinds(operands)}")[width]
    # Moves only load or store. Arithmetic with a memory operand uses separate units at the same time.
    memory = _X86_LOAD[width] * loads + _X86_STORE[width] * stores
    return max(own, memory)


def _kinds(operands: str) -> str:
    """A letter for each operand: vector of a width, mask, memory, number or other register; `{` if masked.

    >>> _kinds("zmm1 {k1} {z}, zmm2, dword ptr [rax + 4*rbx]{1to16}"), _kinds("k1, xmm2, xmm3"), _kinds("r8, xmm1, 1")
    ('z{zm', 'kxx', 'rxi')
    """
    return "".join(map(_kind, operands.split(", "))) if operands else ""


_VECTOR_OR_MASK: Final = re.compile(r"[xyz]mm\d|k\d")


def _kind(operand: str) -> str:
    if "[" in operand or _VECTOR_OR_MASK.match(operand):
        return ("m" if "[" in operand else operand[0]) + ("{" if "{k" in operand else "")
    return "i" if operand[:1].isdigit() or operand[:1] == "-" else "r"


@cache
def _class_of(machine: str, instruction: str) -> tuple[int, int, int]:
    classes = _X86 if machine == "EM_X86_64" else _AARCH64
    return next((cycles for pattern, cycles in classes if pattern.match(instruction)), _OTHER)


# ---- code
#
# Loops are natural loops of the control flow (Aho, Lam, Sethi, Ullman, section 9.6.6). They are the loops of the
# generated code, after unrolling, fusion and peeling.


OUTSIDE = -1
"""Parent of an outermost loop."""
WINDOW: Final = 512
"""Instructions in flight in a core: reorder buffers of current server cores hold 350 to 512."""


class Instruction(msgspec.Struct, frozen=True):
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
    values: DataFlow


class CodeLoop(msgspec.Struct, frozen=True):
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
    decoded_instructions = list(decoded(image, function))
    lines = image.lines_of([instruction.address for instruction in decoded_instructions])
    return tuple(
        _instruction(instruction, line, function, image.machine)
        for instruction, line in zip(decoded_instructions, lines, strict=True)
    )


_MOST_KNOWN: Final = 1 << 16


class _Encoding(NamedTuple):
    """Properties of an instruction that depend on its bytes only."""

    values: DataFlow
    hundredths: int
    is_jump: bool
    falls_through: bool


_KNOWN: Final[defaultdict[str, dict[bytes, _Encoding]]] = defaultdict(dict)
"""Encodings by architecture and bytes. Kernels share many."""


def _instruction(decoded: Decoded, line: int, function: CodeFunction, machine: str) -> Instruction:
    known, code = _KNOWN[machine], bytes(decoded.bytes)
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
    first = {block[0].address: index for index, block in enumerate(blocks)}
    graph: nx.DiGraph[int] = nx.DiGraph()  # the control flow between indexes of blocks
    graph.add_nodes_from(range(len(blocks)))
    for index, block in enumerate(blocks):
        graph.add_edges_from((index, first[target]) for target in block[-1].targets if target in first)
        if block[-1].falls_through and index + 1 < len(blocks):
            graph.add_edge(index, index + 1)
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
