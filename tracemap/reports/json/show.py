"""The JSON of `tracemap show`: what readers of a map need, and of kernels the inside where it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from tracemap.codec import Count, Document, Positive, Record, view
from tracemap.graph.model import ModuleInfo, TraceGraph
from tracemap.graph.ops import Evidence, Fate, Frame, OpId
from tracemap.graph.program import Kernel, Step
from tracemap.graph.query import Selection, everything
from tracemap.graph.remarks import Remark
from tracemap.machine.code import OUTSIDE, Instruction
from tracemap.reports.kernels import KernelView
from tracemap.units import UNKNOWN, Integer, Text


class ShownReason(Record, frozen=True):
    """Why an op has its fate: a stable slug and a sentence for people."""

    slug: str
    text: str


class ShownOp(Record, frozen=True):
    """An operation of the model as the user wrote it, and the sites that it is a member of."""

    id: OpId
    name: str
    function: Text
    file: Text
    line: Integer
    column: Integer
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    fate: Fate
    reason: ShownReason
    sites: tuple[str, ...]


class ShownMember(Record, frozen=True):
    """An op that does work in a site: how that is known, and what the work is estimated to be."""

    op: OpId
    evidence: Evidence
    root: bool
    operations: Integer
    bytes: Integer


class ShownSite(Record, frozen=True):
    """One place in the host program that calls a kernel."""

    id: str
    ordinal: Count
    function: Text
    path: tuple[OpId, ...]
    kernel: str
    initializer: bool
    command_buffer: Integer
    command_index: Integer
    members: tuple[ShownMember, ...]


class ShownLoop(Record, frozen=True):
    """A loop of a kernel's machine code: the loop around it, by its place, and the ops that have code in it."""

    parent: Integer
    address: Count
    instructions: Count
    ops: tuple[OpId, ...]
    lines: tuple[Positive, ...]


class ShownInstruction(Record, frozen=True):
    """An instruction, and the line of the kernel's text that it is of."""

    address: Count
    line: Integer
    text: str


class ShownKernel(Record, frozen=True):
    """A compiled dispatch function. Loops and instructions are null where they were not asked for."""

    name: str
    sites: tuple[str, ...]
    text: Text
    steps: tuple[Step, ...]
    loops: tuple[ShownLoop, ...] | None
    instructions: tuple[ShownInstruction, ...] | None


class FateCounts(dict[Fate, int]):
    """How many ops have each fate; all fates are there."""

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """All fates, and nothing else."""
        counts = {fate.value: {"type": "integer", "minimum": 0} for fate in Fate}
        return {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False}


class Coverage(Record, frozen=True):
    """How far the map reaches: ops by fate, and sites that have members."""

    ops: Count
    by_fate: FateCounts
    sites: Count
    sites_with_members: Count


class ShownMap(Document, frozen=True, kw_only=True):
    """The map of a model: its ops, the sites of its program, the kernels they call."""

    schema_version: Literal[1] = 1
    kind: Literal["map"] = "map"
    module: ModuleInfo
    ops: tuple[ShownOp, ...]
    sites: tuple[ShownSite, ...]
    kernels: tuple[ShownKernel, ...]
    remarks: Annotated[
        tuple[Remark, ...] | None, Meta(description="What the compiler remarked; null where it was not asked for.")
    ]
    coverage: Annotated[Coverage, Meta(description="Of the whole map, also where only a part of it is shown.")]


def shown_map(
    graph: TraceGraph,
    selection: Selection | None = None,
    views: Sequence[KernelView] = (),
    *,
    assembly: bool = False,
    remarks: tuple[Remark, ...] | None = None,
) -> ShownMap:
    """The map as `tracemap show --format json` prints it; with a selection only its ops, sites and kernels.

    Kernels of which there is a view have their loops and, where they are asked for, instructions.
    """
    chosen = selection or everything(graph)
    view_of = {view.kernel.name: view for view in views if not view.no_code}
    return ShownMap(
        module=graph.module,
        ops=tuple(
            view(ShownOp, op, reason=view(ShownReason, op.reason), sites=graph.sites_of_op.get(op.id, ()))
            for op in chosen.ops
        ),
        sites=tuple(
            view(ShownSite, site, members=tuple(view(ShownMember, member) for member in site.members))
            for site in chosen.sites
        ),
        kernels=tuple(_kernel(kernel, view_of.get(kernel.name), assembly) for kernel in chosen.kernels),
        remarks=remarks,
        coverage=_coverage(graph),
    )


def _kernel(kernel: Kernel, inside: KernelView | None, assembly: bool) -> ShownKernel:
    if inside is None:
        return view(ShownKernel, kernel, loops=None, instructions=None)
    loops = (view(ShownLoop, loop, parent=UNKNOWN if loop.parent == OUTSIDE else loop.parent) for loop in inside.loops)
    instructions = tuple(map(_instruction, inside.instructions)) if assembly else None
    return view(ShownKernel, kernel, loops=tuple(loops), instructions=instructions)


def _instruction(each: Instruction) -> ShownInstruction:
    return ShownInstruction(each.address, each.line or UNKNOWN, f"{each.mnemonic} {each.operands}".strip())


def _coverage(graph: TraceGraph) -> Coverage:
    found = Counter(op.fate for op in graph.ops)
    by_fate = FateCounts({fate: found[fate] for fate in Fate})
    return Coverage(len(graph.ops), by_fate, len(graph.sites), sum(1 for site in graph.sites if site.members))
