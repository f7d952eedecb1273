"""Remarks of the compiler -> the steps of the kernels that they name, and the ops that these came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.graph.program import Kernel
from tracemap.graph.remarks import Remark, Remarks
from tracemap.mapping.compiler.remarks import SaidRemark
from tracemap.units import UNKNOWN, Integer


def placed(said: Iterable[SaidRemark], graph: TraceGraph) -> Remarks:
    """Bring remarks to steps and ops; those that name no kernel are counted.

    Args:
        said: as LLVM printed them. Their file is the name of a kernel's text, without a folder.
        graph: the map, whose kernels have texts.
    """
    kernel_of = {kernel.text: kernel for kernel in graph.kernels if isinstance(kernel.text, str)}
    found: Counter[tuple[str, int, str]] = Counter()
    first: dict[tuple[str, int, str], SaidRemark] = {}
    elsewhere = 0
    for each in said:
        kernel = kernel_of.get(each.file)
        if kernel is None:
            elsewhere += 1
            continue
        key = (kernel.name, each.line, each.text)
        found[key] += 1
        first.setdefault(key, each)
    ops_of = {name: _ops_by_line(graph.kernel_by_name[name], graph) for name, _, _ in found}
    numbers = {kernel.name: number for number, kernel in enumerate(graph.kernels)}
    ordered = sorted(found, key=lambda key: (numbers[key[0]], *key))
    return Remarks(
        remarks=tuple(_remark(key, first[key], found[key], ops_of[key[0]]) for key in ordered), elsewhere=elsewhere
    )


def _remark(key: tuple[str, int, str], said: SaidRemark, count: int, ops: Mapping[Integer, tuple[OpId, ...]]) -> Remark:
    kernel, number, text = key
    worded = said.wording()
    line: Integer = number or UNKNOWN
    return Remark(
        kernel=kernel,
        line=line,
        ops=ops.get(line, ops[UNKNOWN]),
        pass_name=UNKNOWN if worded is None else worded.pass_name,
        name=UNKNOWN if worded is None else worded.name,
        kind=UNKNOWN if worded is None else worded.kind,
        text=text,
        count=count,
    )


def _ops_by_line(kernel: Kernel, graph: TraceGraph) -> dict[Integer, tuple[OpId, ...]]:
    """The ops of each line with a step of ops; at `UNKNOWN` those of the kernel, which all other lines are of."""
    members = {member.op for site in kernel.sites for member in graph.site_by_id[site].members}
    of_kernel = tuple(sorted(members, key=lambda op: op.number))
    return {UNKNOWN: of_kernel, **{step.line: step.ops for step in kernel.steps if step.ops}}
