"""The overview tab: kinds of work, roofline, facts, coverage, and balance."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tracemap.attribution.model import UNATTRIBUTED_TEXTS, Attribution, MetricTotal, Overhead, OverheadPlace
from tracemap.core.codec import record_from
from tracemap.core.units import Integer, Unknown, format_ns, format_share, join_names
from tracemap.map.build_cost import BuildCost
from tracemap.map.model import Membership, Op, OpId, Outcome, TraceGraph
from tracemap.reports.advice import (
    basis,
    device_comparison_text,
    display_unit,
    divisor,
    elapsed_text,
    gain_text,
    invocations_text,
    known_invocations,
    mean_elapsed_ns,
)
from tracemap.reports.cost_lookup import (
    DEFAULT_METRIC,
    KERNELS,
    OVERHEAD_LABELS,
    OVERHEAD_PARTS,
    ElapsedShare,
    MapCosts,
    called_functions,
    elapsed_breakdown_text,
)
from tracemap.reports.escaping import as_shown, or_dash
from tracemap.reports.page.model import (
    AdviceLine,
    Basis,
    CostTable,
    MetricBalance,
    OutcomeCount,
    OverheadRow,
    PageCoverage,
    Roofline,
    RoofPoint,
    UnattributedLine,
    amounts,
)
from tracemap.reports.views.ops import without_dialect

# ---- families: kinds of work by the names of ops, only for the colours of pictures
#
# Known words in the name decide; other ops are in the family `other`. A `linalg.generic` has the family of the kernel
# that is named after it; without one, its body may show that it is elementwise.


class Family(enum.StrEnum):
    """A kind of work."""

    CONTRACTION = "contraction"
    """Matrix products and convolutions."""
    REDUCTION = "reduction"
    """Sums, pooling, norms, softmax, sorting."""
    MOVEMENT = "movement"
    """Transposes, gathers, pads, copies."""
    ELEMENTWISE = "elementwise"
    OTHER = "other"


_WORDS: Final = {
    Family.CONTRACTION: """
        dot dotgeneral matmul bmm mm addmm baddbmm mv matvec vecmat linear conv conv1d conv2d conv3d convolution
        depthwise gemm einsum contract mmt4d attention fullyconnected tensordot
    """,
    Family.REDUCTION: """
        reduce reduction reducewindow sum mean var std prod pool pooling avgpool maxpool averagepool globalaveragepool
        softmax logsoftmax argmax argmin amax amin norm layernorm groupnorm batchnorm layernormalization
        batchnormalization instancenormalization sort topk cumsum scan logsumexp winograd fft
    """,
    Family.MOVEMENT: """
        transpose permute reshape view slice gather scatter concat concatenate cat pad broadcast broadcastin
        broadcastindim tile expand collapse squeeze unsqueeze flatten reverse copy embedding index select split stack
        pack unpack insert extract dynamicslice dynamicupdateslice constantpad roll iota
    """,
    Family.ELEMENTWISE: """
        add subtract sub multiply mul divide div maximum minimum max min exp exponential log tanh sqrt rsqrt erf gelu
        relu silu sigmoid logistic negate neg abs power pow sine sin cosine cos floor ceil round sign compare where
        clamp clip convert cast xor and or not elementwise map fill square reciprocal eq ne lt le gt ge rem remainder
        shift shiftleft shiftright bitcast hardswish leakyrelu rescale
    """,
}
_FAMILY_OF: Final[Mapping[str, Family]] = {
    word.replace("_", ""): family for family, words in _WORDS.items() for word in words.split()
}
_GENERIC: Final = ("linalg.generic",)


@lru_cache(maxsize=4096)  # a large model has few names
def family_of_name(name: str) -> Family:
    """The family of an op by its name alone.

    >>> [family_of_name(name).value for name in ("stablehlo.dot_general", "torch.aten.max_pool2d", "onnx.Conv")]
    ['contraction', 'reduction', 'contraction']
    """
    # torch appends the overload to the name: `torch.aten.add.Tensor`.
    parts = name.split(".")[1:] or [name]
    if parts[0] in ("aten", "prims", "prim", "operator"):
        parts = parts[1:2]
    words = [word for word in re.split(r"[_\d]+|(?<=[a-z])(?=[A-Z])", parts[0]) if word]
    lower = [word.lower() for word in words]
    # Prefer the longest known run of words (`reduce_window` before `reduce`), then the earliest.
    for length in range(len(lower), 0, -1):
        for begin in range(len(lower) - length + 1):
            if family := _FAMILY_OF.get("".join(lower[begin : begin + length])):
                return family
    return Family.OTHER


def families_of(graph: TraceGraph) -> Mapping[OpId, Family]:
    """The families of ops by their names; for generic ops, by their kernel's name or their body."""
    kernel_of_root = {site.root.op: site.kernel for site in graph.sites if site.root}
    return {op.id: _family_of_op(op, kernel_of_root.get(op.id, "")) for op in graph.ops}


def _family_of_op(op: Op, kernel: str) -> Family:
    if op.name not in _GENERIC:
        return family_of_name(op.name)
    # `main$async_dispatch_3_matmul_like_128x64x32_f32`: the part after the number describes the work.
    _, _, suffix = kernel.partition("_dispatch_")
    family = family_of_name("." + suffix.partition("_")[2]) if suffix else Family.OTHER
    return Family.ELEMENTWISE if family is Family.OTHER and _ends_in_math(op) else family


def _ends_in_math(op: Op) -> bool:
    """Whether the op's body ends in a function such as tanh; the body of a reduction ends in what combines elements."""
    names = [part.name for part in op.parts if part.name != "linalg.yield"]
    return bool(names) and names[-1].startswith("math.") and names[-1] != "math.fma"


# ---- roofline of ops and kernels (Williams, Waterman, Patterson: Roofline, CACM 2009)
#
# The roofline time is the larger of operations / peak and bytes / bandwidth of one core, from the run's header. The
# measured time is the CPU time of all workers, so both refer to one core.


MOST_POINTS: Final = 400
"""Most ops, and most kernels, of a roofline: the most expensive ones."""


@dataclass(slots=True)
class _Work:
    """Operations and bytes in all calls; `is_known`: all of them are known."""

    operations: int = 0
    bytes: int = 0
    is_known: bool = True

    def add(self, member: Membership, calls: Integer) -> None:
        if isinstance(member.operations, Unknown) or isinstance(member.bytes, Unknown) or isinstance(calls, Unknown):
            self.is_known = False
        else:
            self.operations += member.operations * calls
            self.bytes += member.bytes * calls


def roofline_of(costed: MapCosts) -> Roofline | None:
    """The roofline of a page; None without a run that measured CPU time, or the time of a GPU with known peaks."""
    attribution = costed.attribution
    if attribution is None:
        return None
    peaks = attribution.run.peaks
    timed = "duration_ns" if peaks.source == "specified" else DEFAULT_METRIC
    metric_index = next((index for index, metric in enumerate(costed.metrics) if metric.name == timed), -1)
    if metric_index < 0:
        return None
    points, unknown = [], 0
    for entries in (_ops(costed, timed), _kernels(costed, timed)):
        ranked = sorted(entries, key=lambda entry: -entry[2])
        for kind, name, time_ns, work in ranked[:MOST_POINTS]:
            if not work.is_known or not work.operations + work.bytes:
                unknown += kind == "op"
                continue
            roofline_s = max(work.operations / peaks.operations_per_second, work.bytes / peaks.bytes_per_second)
            roofline_ns = max(1, round(roofline_s * 1e9))
            label = as_shown(_op_title(costed.graph.op_by_id[OpId(name)]) if kind == "op" else name)
            points.append(RoofPoint(kind, name, label, work.operations, work.bytes, time_ns, roofline_ns))
    peak_rates = (peaks.operations_per_second, peaks.bytes_per_second)
    return Roofline(metric_index, *peak_rates, peaks.source, peaks.units, tuple(points), unknown)


def _op_title(op: Op) -> str:
    return op.node or without_dialect(op.name)


def _ops(costed: MapCosts, timed: str) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    for site in costed.graph.sites:
        if site_result := costed.site_results.get(site.id):
            for member in site.members:
                works[member.op].add(member, site_result.calls)
    for op, result in costed.op_results.items():
        if (time_ns := result.metrics[timed].attributed) > 0 and op in works:
            yield "op", str(op), time_ns, works[op]


def _kernels(costed: MapCosts, timed: str) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    times: dict[str, int] = defaultdict(int)
    for site in costed.graph.sites:
        if site.members and (result := costed.site_results.get(site.id)):
            times[site.kernel] += result.metrics[timed].total
            for member in site.members:
                works[site.kernel].add(member, result.calls)
    for kernel, time_ns in times.items():
        if time_ns > 0:
            yield "kernel", kernel, time_ns, works[kernel]


# ---- facts about module and run, coverage, and balance


def facts(costed: MapCosts) -> tuple[tuple[str, str], ...]:
    """Facts about the module and, if there is one, about the run, as pairs of label and value."""
    module = costed.graph.module
    return (
        ("module", module.name),
        ("SHA-256", module.sha256),
        ("compiler", module.iree_compiler),
        ("flags", " ".join(module.flags) or "–"),
        *(_run_facts(costed.attribution) if costed.attribution else ()),
    )


_MOST_ROWS: Final = 20
"""Most rows of a table of the cost of building; `show --cost` has all."""


def building_tables(cost: BuildCost, graph: TraceGraph) -> tuple[CostTable, ...]:
    """The tables of the cost of building, the most expensive rows first."""

    def time(value: Integer) -> str:
        return "–" if isinstance(value, Unknown) else format_ns(value)

    kernels = tuple((own.kernel, time(own.duration_ns), f"{own.code_bytes:,}") for own in cost.kernels[:_MOST_ROWS])
    ops = tuple(
        (
            *(own.op, graph.op_by_id[own.op].name, time(own.duration_ns)),
            *(f"{part:,}" for part in (own.code_bytes, own.data_bytes, own.bytecode_bytes, own.constant_bytes)),
        )
        for own in cost.ops[:_MOST_ROWS]
    )
    passes = tuple((own.pass_name, own.tool, time(own.duration_ns)) for own in cost.passes[:_MOST_ROWS])
    rest = tuple((own.part, own.name, f"{own.bytes:,}", own.reason) for own in cost.unattributed[:_MOST_ROWS])
    columns = ("compile time", "code bytes")
    return (
        CostTable("Compile time", ("part", "time"), tuple((part.name, time(part.amount)) for part in cost.times)),
        CostTable("Module", ("part", "bytes"), tuple((part.name, f"{part.amount:,}") for part in cost.bytes)),
        CostTable("Kernels", ("kernel", *columns), kernels),
        CostTable("Ops (inferred)", ("op", "name", *columns, "data", "bytecode", "constants"), ops),
        CostTable("Unattributed bytes", ("part", "of", "bytes", "reason"), rest),
        CostTable("Passes", ("pass", "tool", "time"), passes),
    )


def _run_facts(attribution: Attribution) -> Iterable[tuple[str, str]]:
    run = attribution.run
    label, _, functions = called_functions(attribution).partition(" ")
    yield label, functions
    yield "device", or_dash(run.device)
    yield "workers", or_dash(run.workers)
    yield "invocations", invocations_text(run)
    total = format_ns(run.elapsed_ns)
    known = not isinstance(mean_elapsed_ns(attribution), Unknown)
    yield "elapsed", f"{elapsed_text(attribution)}; {total} in all" if known else total
    yield "where the time goes", elapsed_breakdown_text(attribution) or "–"
    if text := device_comparison_text(run.devices):
        yield "devices", text
    yield "rule", attribution.rule.value
    yield "command", " ".join(run.command) or "–"


def advice_of(costed: MapCosts) -> tuple[AdviceLine, ...]:
    """The advice on the run, with odd characters by name."""
    if costed.attribution is None:
        return ()
    return tuple(
        AdviceLine(as_shown(advice.text), as_shown(advice.command), gain_text(advice, costed.attribution))
        for advice in costed.attribution.advice
    )


def elapsed_shares(costed: MapCosts) -> tuple[ElapsedShare, ...]:
    """The parts of the elapsed time, which add up to it; empty if unknown.

    The outliers are a part of their own: the same part of the kernels' time as of the wall time of all calls.
    """
    wall = [result.metrics["duration_ns"] for result in costed.site_results.values() if "duration_ns" in result.metrics]
    outliers = sum(cost.outliers for cost in wall)
    calls_ns = sum(cost.total + cost.outliers for cost in wall)
    outliers_ns, shown = 0, []
    for part in costed.elapsed_shares():
        own_ns = part.ns * outliers // calls_ns if part.kind == KERNELS and calls_ns else 0
        own_ns = part.ns if part.kind == OverheadPlace.OUTLIERS else own_ns
        outliers_ns += own_ns
        shown.append(ElapsedShare(part.kind, part.name, part.ns - own_ns))
    shown.insert(1, ElapsedShare("outliers", "outliers", outliers_ns))
    return tuple(part for part in shown if part.ns)


def invocations_of_elapsed(costed: MapCosts) -> int:
    """The number of invocations in the elapsed time; 1 if unknown."""
    iterations = costed.attribution.run.iterations if costed.attribution else 1
    return iterations if isinstance(iterations, int) and iterations else 1


_MOST_OVERHEAD: Final = 12
"""Most rows of the table of the time between kernels."""


def overhead_rows(costed: MapCosts) -> tuple[OverheadRow, ...]:
    """The largest rows of the time between kernels."""
    rows = costed.attribution.overhead if costed.attribution else ()
    return tuple(_overhead_row(costed, row) for row in rows[:_MOST_OVERHEAD])


def _overhead_row(costed: MapCosts, row: Overhead) -> OverheadRow:
    ops = [costed.graph.op_by_id[op] for op in row.ops]
    parts = sorted(zip(OVERHEAD_PARTS, row.parts, strict=True), key=lambda item: -item[1])
    shown = [f"{name} {format_share(ns, row.total_ns)}" for name, ns in parts if ns and name != "other"]
    return OverheadRow(
        place=OVERHEAD_LABELS[row.place],
        ops=join_names([f"{op.id} {op.name}" for op in ops], most=2),
        line=costed.line_of(ops[0])[0] if ops else "",
        gaps=row.count,
        ns=row.total_ns,
        parts=", ".join(shown),
    )


def coverage(costed: MapCosts) -> PageCoverage:
    """Coverage of the model and the program by the map and the run."""
    graph = costed.graph
    outcomes = Counter(op.outcome for op in graph.ops)
    # Do not count sites that run at load time, since profiles do not contain them.
    called = {result.site for result in costed.site_results.values() if result.calls}
    uncalled = sum(not site.initializer and site.id not in called for site in graph.sites)
    return PageCoverage(
        ops=len(graph.ops),
        by_outcome=tuple(
            OutcomeCount(outcome.value, outcomes[outcome], format_share(outcomes[outcome], len(graph.ops)))
            for outcome in Outcome
            if outcomes[outcome]
        ),
        sites=len(graph.sites),
        sites_with_members=sum(bool(site.members) for site in graph.sites),
        load_time_sites=len(costed.unmeasured_sites),
        uncalled_sites=uncalled if costed.attribution else 0,
        kernels=len(graph.kernels),
        inferred=sum(op.reason.inferred for op in graph.ops),
    )


def balance(metric: MetricTotal) -> MetricBalance:
    """A metric's balance, with its display unit and bases."""
    unit, scale = display_unit(metric)
    per_invocation, sums = (
        Basis(divisor(metric, totals=totals) * scale, basis((metric,), totals=totals)) for totals in (False, True)
    )
    return record_from(
        MetricBalance,
        metric,
        shown_unit=unit,
        scale=scale,
        shown=(per_invocation, sums),
        known_invocations=known_invocations(metric) > 0,
    )


def calls(metrics: Sequence[MetricTotal]) -> tuple[int, int]:
    """Divisors of numbers of calls: per invocation, and for sums."""
    return (divisor(metrics[0], totals=False) if metrics else 1, 1)


def unattributed(costed: MapCosts) -> tuple[UnattributedLine, ...]:
    """Unattributed costs with their reasons; empty without a run."""
    rows = costed.attribution.unattributed if costed.attribution else ()
    return tuple(
        UnattributedLine(
            row.reason.value, UNATTRIBUTED_TEXTS[row.reason], row.events, amounts(row.metrics, costed.metrics)
        )
        for row in rows
    )
