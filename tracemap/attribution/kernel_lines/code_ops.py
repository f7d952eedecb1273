"""The op of each instruction of a kernel, for tools that show one line per instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.attribution.kernel_lines.lines import KernelCode
from tracemap.machine.code import instructions_of
from tracemap.machine.debug_lines import NO_LINE, code_of_ops
from tracemap.machine.images import CodeFunction, Image
from tracemap.map.model import Kernel, Membership, Site, TraceGraph
from tracemap.map.query import kernel_lines


@dataclass(frozen=True, slots=True)
class SiteOp:
    """An op in a dispatch site, and the number of further sites of the kernel that have it."""

    site: Site
    member: Membership
    others: int


@dataclass(frozen=True, slots=True)
class InstructionOp:
    """An instruction: address in the image, size in bytes, line of kernel IR (0: none), and its op, if any."""

    address: int
    size: int
    line: int
    op: SiteOp | None


def instruction_ops(
    graph: TraceGraph, kernel: Kernel, image: Image, function: CodeFunction
) -> tuple[InstructionOp, ...]:
    """The instructions of a kernel in an image, by address, with the op whose value each carries.

    The line is the one that attribution uses (`KernelCode.line_at`); instructions of no op keep their debug line. Some
    lines belong to several ops, and kernels to several dispatch sites: the first dispatch site with an op of the line
    counts, and there the first op.

    Raises:
        ModuleInvalid: the architecture is not supported, or the code lies outside the image.
    """
    lines = kernel_lines(graph, kernel)
    instructions = instructions_of(image, function)
    line_at = KernelCode(code_of_ops(instructions, lines.op_lines)).line_at
    sites = [graph.site_by_id[site] for site in kernel.sites]
    op_of_line: dict[int, SiteOp | None] = {NO_LINE: None}
    result = []
    for instruction in instructions:
        own = instruction.line if instruction.line in lines.owned else NO_LINE
        line = line_at.get(instruction.address, own)
        if line not in op_of_line:
            op_of_line[line] = _first_op(sites, lines.ops_at(line))
        op = op_of_line[line]
        result.append(InstructionOp(instruction.address, instruction.size, line or instruction.line, op))
    return tuple(result)


def _first_op(sites: Sequence[Site], ops: Sequence[str]) -> SiteOp | None:
    found = [(site, member) for site in sites for member in site.members if member.op in ops]
    if not found:
        return None
    site, member = found[0]
    return SiteOp(site, member, len({other.id for other, its in found if its.op == member.op}) - 1)


def root_op(graph: TraceGraph, kernel: Kernel) -> SiteOp | None:
    """The op that a kernel has its name from, in its first site with one; else the first op of its sites."""
    sites = [graph.site_by_id[site] for site in kernel.sites]
    roots = [site.root.op for site in sites if site.root is not None]
    return _first_op(sites, roots[:1] or [member.op for site in sites for member in site.members][:1])
