"""Remarks of the compiler, each at the line of a kernel's text that it names: what a bundle's `remarks.json` holds.

It lies beside the map, only where `build --remarks` asked for it, and is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from tracemap.codec import Count, Document, Positive, Record
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.units import UNKNOWN, Integer, Text

FIGURES: Final = frozenset({"asm-printer", "prolog-epilog", "size-info", "stack-frame-layout", "target-features"})
"""Passes that count what there is, and say of no optimisation that it was done or not."""


class Remark(Record, frozen=True):
    """What a pass of the compiler says of a place: equal ones of a line are one, `count` times.

    `line` is that of the kernel's text; `ops` are those that its step came from, or all members of the kernel's sites
    where the step is of none: the kernel itself, what stores its results. `pass`, `name` and `kind` (`passed`, `missed`
    or `analysis`) are LLVM's, unknown where its wording does not tell. `cost_share`: the part of a run's cost that
    these ops have in this kernel, null without a run.
    """

    kernel: Text
    line: Integer
    ops: tuple[OpId, ...]
    pass_name: Text = field(name="pass")
    name: Text
    kind: Text
    text: str
    count: Positive
    cost_share: Annotated[float, Meta(ge=0)] | None = None


class Remarks(Document, frozen=True, kw_only=True):
    """All remarks of a compilation; `elsewhere` counts those that name no line of a kernel.

    `run` and `metric`: what `cost_share` is of.
    """

    schema_version: Literal[1] = 1
    kind: Literal["remarks"] = "remarks"
    run: Text = UNKNOWN
    metric: Text = UNKNOWN
    remarks: tuple[Remark, ...]
    elsewhere: Count
    diagnostics: tuple[Diagnostic, ...] = ()


def remarks_at(found: Remarks, graph: TraceGraph, names: Collection[str]) -> tuple[Remark, ...]:
    """The remarks of ops, of kernels, and of the kernels of sites, by their ids and names."""
    kernels = {*names, *(graph.site_by_id[name].kernel for name in names if name in graph.site_by_id)}
    ops = set(names)
    return tuple(each for each in found.remarks if each.kernel in kernels or not ops.isdisjoint(each.ops))


def check_named(found: Remarks, graph: TraceGraph) -> None:
    """Refuse remarks of what is not in the map.

    Raises:
        ValueError: one names a kernel or an op that the map does not have.
    """
    for remark in found.remarks:
        if isinstance(remark.kernel, str) and remark.kernel not in graph.kernel_by_name:
            raise ValueError(f"there is no kernel {remark.kernel[:80]!r} in the map")
        for op in remark.ops:
            if op not in graph.op_by_id:
                raise ValueError(f"there is no op {op[:80]!r} in the map")
