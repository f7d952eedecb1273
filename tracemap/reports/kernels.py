"""Kernels and the compiler's remarks as rows of reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from tracemap.core.errors import ModuleInvalid
from tracemap.core.units import Text
from tracemap.machine.code import OUTSIDE, CodeLoop, Instruction, loops_of
from tracemap.machine.code_figures import text_instructions
from tracemap.machine.images import Image, kernel_images
from tracemap.map.bundle_documents import STATISTICS_PASSES, Remark, Remarks
from tracemap.map.model import Kernel, OpId, TraceGraph, entry_name, sort_ops
from tracemap.reports.escaping import lines_of, op_line

if TYPE_CHECKING:
    from tracemap.attribution.model import MetricTotal
    from tracemap.machine.sass import SassReader
    from tracemap.reports.cost_lookup import MapCosts

# ---- kernels
#
# Views of kernels: final IR by line, loops and instructions, with their ops.


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of final IR: its ops, and its number of instructions."""

    line: int
    text: str
    ops: tuple[OpId, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class KernelLoop:
    """A loop in the machine code: index of the enclosing loop (`OUTSIDE`: none), and the ops with code in it.

    `ranges`: its addresses (low, high exclusive), nested loops included.
    """

    parent: int
    address: int
    ops: tuple[OpId, ...]
    lines: tuple[int, ...]
    instructions: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class KernelView:
    """A kernel. `no_code` is the reason for no instructions and loops, or ""."""

    kernel: Kernel
    lines: tuple[KernelLine, ...]
    loops: tuple[KernelLoop, ...]
    instructions: tuple[Instruction, ...]
    no_code: str


def view_kernel(kernel: Kernel, text: str, images: Sequence[Image], sass: SassReader | None = None) -> KernelView:
    """Join a kernel's final IR with its machine code.

    Args:
        kernel: a kernel of the map.
        text: its final IR; "" if the bundle lacks it.
        images: the machine code of the module.
        sass: that of a CUDA module, which has no lines; None: not to be shown.
    """
    code, no_code = _code(kernel, images)
    if not code and sass is not None:
        own, reason = sass.code_of(entry_name(kernel.name))
        code, no_code = own, "" if own else reason or no_code
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
        return tuple(text_instructions(*candidates[0])), ""
    except ModuleInvalid as error:
        return (), str(error)


def _loop(loop: CodeLoop, ops_of: dict[int, tuple[OpId, ...]]) -> KernelLoop:
    # Debug lines of prologues, which the backend makes, name no line of the IR.
    lines = tuple(line for line in loop.lines if line in ops_of)
    ops = {op for line in lines for op in ops_of[line]}
    return KernelLoop(loop.parent, loop.header, sort_ops(ops), lines, sum(loop.lines.values()), loop.ranges)


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


# ---- remarks
#
# Compiler remarks with the costs of their ops, the most expensive first.


_FIRST = ("regalloc", "loop-vectorize", "slp-vectorizer", "loop-unroll")
"""Passes whose missed optimisations usually cost most."""
_KINDS = {"missed": 0, "passed": 1, "analysis": 2}


def rank_by_cost(remarks: Remarks, costed: MapCosts, metric: MetricTotal, run: Text) -> Remarks:
    """The remarks with their ops' share of the run's cost in their kernel, the most expensive first.

    Args:
        remarks: the bundle's remarks.
        costed: the bundle's map and the costs of the run.
        metric: the metric of the shares; its `work` is the total.
        run: the run's name.
    """
    of_kernel: dict[Text, dict[str, int]] = {}
    for result in costed.site_results.values():
        costs = of_kernel.setdefault(costed.graph.site_by_id[result.site].kernel, {})
        for share in result.shares:
            costs[share.op] = costs.get(share.op, 0) + share.attributed.get(metric.name, 0)

    def with_share(remark: Remark) -> Remark:
        costs = of_kernel.get(remark.kernel, {})
        share = sum(costs.get(op, 0) for op in remark.ops) / metric.work if metric.work else 0.0
        return structs.replace(remark, cost_share=share)

    with_shares = tuple(map(with_share, remarks.remarks))
    return structs.replace(remarks, run=run, metric=metric.name, remarks=sort_remarks(with_shares))


def sort_remarks(remarks: Sequence[Remark]) -> tuple[Remark, ...]:
    """Sort remarks by cost, kernel and line; on a line, missed optimisations come first and counts last."""
    numbers: dict[Text, int] = {}
    for remark in remarks:
        numbers.setdefault(remark.kernel, len(numbers))

    def key(remark: Remark) -> tuple[object, ...]:
        line = remark.line if isinstance(remark.line, int) else 0
        return -(remark.cost_share or 0), numbers[remark.kernel], line, *_urgency(remark)

    return tuple(sorted(remarks, key=key))


def _urgency(remark: Remark) -> tuple[object, ...]:
    passes = _FIRST.index(remark.pass_name) if remark.pass_name in _FIRST else len(_FIRST)
    kind = _KINDS.get(remark.kind, len(_KINDS)) if isinstance(remark.kind, str) else len(_KINDS)
    return (
        remark.pass_name in STATISTICS_PASSES,
        kind,
        passes,
        " spills " not in remark.text,
        -remark.count,
        remark.text,
    )
