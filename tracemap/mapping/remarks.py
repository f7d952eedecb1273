"""Remarks of the compiler -> the steps of the kernels that they name, and the ops that these came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracemap.graph.bundle import KERNELS_FOLDER
from tracemap.graph.documents import Remark, Remarks
from tracemap.graph.model import Kernel, OpId, TraceGraph, in_order
from tracemap.mapping.compiler.remarks import NUMBERED, Origin, SaidRemark
from tracemap.units import UNKNOWN, Integer


def placed(said: Iterable[SaidRemark], graph: TraceGraph) -> Remarks:
    """Bring remarks to steps and ops; those that name neither a kernel nor an op are counted.

    Args:
        said: as they were printed. Their file is the name of a kernel's text, with or without its folder, or stands for
            the model with operations in place of lines.
        graph: the map, whose kernels have texts.
    """
    kernel_of = {kernel.text: kernel for kernel in graph.kernels if isinstance(kernel.text, str)}
    found: Counter[_Place] = Counter()
    elsewhere = 0
    for each in said:
        kernel = kernel_of.get(each.file.removeprefix(f"{KERNELS_FOLDER}/"))
        if kernel is not None:
            found[_Place(kernel.name, each.line, "", each.origin, each.text)] += 1
        elif each.file == NUMBERED and (op := OpId.of(each.line)) in graph.op_by_id:
            found[_Place(_only_kernel(op, graph), 0, op, each.origin, each.text)] += 1
        else:
            elsewhere += 1
    ops_of = {place.kernel: _ops_by_line(graph.kernel_by_name[place.kernel], graph) for place in found if place.kernel}
    numbers = {kernel.name: number for number, kernel in enumerate(graph.kernels)}
    ordered = sorted(found, key=lambda place: (numbers.get(place.kernel, -1), place.line, place.op, place.text))
    return Remarks(
        remarks=tuple(_remark(place, found[place], ops_of.get(place.kernel, {})) for place in ordered),
        elsewhere=elsewhere,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A remark and where it stands: on a line of a kernel's text (0: of the kernel), or at an op, and then the kernel
    is "" where the op works in several.
    """

    kernel: str
    line: int
    op: str
    origin: Origin
    text: str


def _only_kernel(op: OpId, graph: TraceGraph) -> str:
    kernels = {graph.site_by_id[site].kernel for site in graph.sites_of_op.get(op, ())}
    return kernels.pop() if len(kernels) == 1 else ""


def _remark(place: _Place, count: int, ops: Mapping[Integer, tuple[OpId, ...]]) -> Remark:
    line: Integer = place.line or UNKNOWN
    return Remark(
        kernel=place.kernel or UNKNOWN,
        line=line,
        ops=(OpId(place.op),) if place.op else ops.get(line, ops[UNKNOWN]),
        pass_name=place.origin.pass_name,
        name=place.origin.name,
        kind=place.origin.kind,
        text=place.text,
        count=count,
    )


def _ops_by_line(kernel: Kernel, graph: TraceGraph) -> dict[Integer, tuple[OpId, ...]]:
    """The ops of each line with a step of ops; at `UNKNOWN` those of the kernel, which all other lines are of."""
    members = {member.op for site in kernel.sites for member in graph.site_by_id[site].members}
    of_kernel = in_order(members)
    return {UNKNOWN: of_kernel, **{step.line: step.ops for step in kernel.steps if step.ops}}
