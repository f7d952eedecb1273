"""Views of kernels: final IR by line, loops and instructions, with their ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracemap.errors import ModuleInvalid
from tracemap.graph.model import Kernel, OpId, TraceGraph, in_order
from tracemap.machine.code import OUTSIDE, CodeLoop, Instruction, loops_of
from tracemap.machine.figures import outline_of
from tracemap.machine.images import Image, kernel_images
from tracemap.reports.escaping import lines_of, op_line


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of final IR: its ops, and its number of instructions."""

    line: int
    text: str
    ops: tuple[OpId, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class KernelLoop:
    """A loop in the machine code: index of the enclosing loop (`OUTSIDE`: none), and the ops with code in it."""

    parent: int
    address: int
    ops: tuple[OpId, ...]
    lines: tuple[int, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class KernelView:
    """A kernel. `no_code` is the reason for no instructions and loops, or ""."""

    kernel: Kernel
    lines: tuple[KernelLine, ...]
    loops: tuple[KernelLoop, ...]
    instructions: tuple[Instruction, ...]
    no_code: str


def view_kernel(kernel: Kernel, text: str, images: Sequence[Image]) -> KernelView:
    """Join a kernel's final IR with its machine code.

    Args:
        kernel: a kernel of the map.
        text: its final IR; "" if the bundle lacks it.
        images: the machine code of the module.
    """
    code, no_code = _code(kernel, images)
    count = Counter(instruction.line for instruction in code)
    ops_of = {step.line: step.ops for step in kernel.steps}
    lines = tuple(
        KernelLine(number, line, ops_of.get(number, ()), count[number]) for number, line in enumerate(lines_of(text), 1)
    )
    loops = tuple(_loop(loop, ops_of) for loop in loops_of(code))
    return KernelView(kernel, lines, loops, code, no_code)


def _code(kernel: Kernel, images: Sequence[Image]) -> tuple[tuple[Instruction, ...], str]:
    # A module for several targets has the kernel in several images. Show the first.
    candidates = kernel_images(images, kernel.name)
    if not candidates:
        return (), "the module has no machine code with debug lines for this kernel"
    # Without readable code, the view still has the final IR.
    try:
        return tuple(outline_of(*candidates[0])), ""
    except ModuleInvalid as error:
        return (), str(error)


def _loop(loop: CodeLoop, ops_of: dict[int, tuple[OpId, ...]]) -> KernelLoop:
    # Debug lines of prologues, which the backend makes, name no line of the IR.
    lines = tuple(line for line in loop.lines if line in ops_of)
    ops = {op for line in lines for op in ops_of[line]}
    return KernelLoop(loop.parent, loop.header, in_order(ops), lines, sum(loop.lines.values()))


def ops_text(graph: TraceGraph, ops: Sequence[str], most: int = 4) -> str:
    """Id, name and line of the first `most` ops, and the number of others."""
    shown = [graph.op_by_id[op] for op in ops[:most] if op in graph.op_by_id]
    texts = [f"{op.id} {op.name} {op_line(op)}" for op in shown]
    return ", ".join((*texts, f"+{len(ops) - most} more") if len(ops) > most else texts)


def ops_at_site(graph: TraceGraph, kernel: Kernel, ops: Sequence[OpId]) -> tuple[OpId, ...]:
    """The ops of a line or loop that are in the kernel's first dispatch site; all of them if none is."""
    members = {member.op for site in kernel.sites[:1] for member in graph.site_by_id[site].members}
    return tuple(op for op in ops if op in members) or tuple(ops)


def loop_tree(loops: Sequence[KernelLoop], parent: int = OUTSIDE, depth: int = 0) -> Iterator[tuple[int, KernelLoop]]:
    """Loops with their nesting depth, outer loops first."""
    for index, loop in enumerate(loops):
        if loop.parent == parent:
            yield depth, loop
            yield from loop_tree(loops, index, depth + 1)
