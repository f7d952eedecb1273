"""The inside of a kernel as readers see it: its final IR line by line, its loops, its instructions, their ops."""

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
    """A line of a kernel's text: the ops that its step came from, and how many instructions are of it."""

    line: int
    text: str
    ops: tuple[OpId, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class KernelLoop:
    """A loop of a kernel's machine code: the loop around it (`OUTSIDE`: none), and the ops that have code in it."""

    parent: int
    address: int
    ops: tuple[OpId, ...]
    lines: tuple[int, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class KernelView:
    """All of a kernel. `no_code` says why there are no instructions and loops, "" where there are."""

    kernel: Kernel
    lines: tuple[KernelLine, ...]
    loops: tuple[KernelLoop, ...]
    instructions: tuple[Instruction, ...]
    no_code: str


def view_kernel(kernel: Kernel, text: str, images: Sequence[Image]) -> KernelView:
    """Put a kernel's text and its machine code together.

    Args:
        kernel: one of a map.
        text: its final IR; "" where that is not kept.
        images: the machine code of the module.
    """
    code, no_code = _code(kernel, images)
    count = Counter(each.line for each in code)
    ops_of = {step.line: step.ops for step in kernel.steps}
    lines = tuple(
        KernelLine(number, words, ops_of.get(number, ()), count[number])
        for number, words in enumerate(lines_of(text), 1)
    )
    loops = tuple(_loop(loop, ops_of) for loop in loops_of(code))
    return KernelView(kernel, lines, loops, code, no_code)


def _code(kernel: Kernel, images: Sequence[Image]) -> tuple[tuple[Instruction, ...], str]:
    # A module for several targets has a kernel of this name in each of its images; one is enough to be looked at.
    found = kernel_images(images, kernel.name)
    if not found:
        return (), "the module has no machine code with debug lines for it"
    # Code that cannot be read leaves out a part of the view; the final IR is shown all the same.
    try:
        return tuple(outline_of(*found[0])), ""
    except ModuleInvalid as error:
        return (), str(error)


def _loop(loop: CodeLoop, ops_of: dict[int, tuple[OpId, ...]]) -> KernelLoop:
    # Debug lines of code that the backend made up (prologues) name no line of a step.
    lines = tuple(line for line in loop.lines if line in ops_of)
    ops = {op for line in lines for op in ops_of[line]}
    return KernelLoop(loop.parent, loop.header, in_order(ops), lines, sum(loop.lines.values()))


def ops_text(graph: TraceGraph, ops: Sequence[str], most: int = 4) -> str:
    """Ops for people: id, name and line, at most so many."""
    found = [graph.op_by_id[op] for op in ops[:most] if op in graph.op_by_id]
    named = [f"{op.id} {op.name} {op_line(op)}" for op in found]
    return ", ".join((*named, f"+{len(ops) - most} more") if len(ops) > most else named)


def ops_at_site(graph: TraceGraph, kernel: Kernel, ops: Sequence[OpId]) -> tuple[OpId, ...]:
    """Of a step's or loop's ops those of the kernel's first site, as sites that share a kernel have the same ones."""
    members = {member.op for site in kernel.sites[:1] for member in graph.site_by_id[site].members}
    return tuple(op for op in ops if op in members) or tuple(ops)


def loop_tree(loops: Sequence[KernelLoop], parent: int = OUTSIDE, depth: int = 0) -> Iterator[tuple[int, KernelLoop]]:
    """Loops with their depth, each before those in it."""
    for number, loop in enumerate(loops):
        if loop.parent == parent:
            yield depth, loop
            yield from loop_tree(loops, number, depth + 1)
