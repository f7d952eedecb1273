"""The overview tab: facts, coverage, balance, roofline."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution, MetricTotal
from tracemap.codec import view
from tracemap.graph.model import Fate, Membership, Op, OpId, TraceGraph
from tracemap.measurements.model import UNKNOWN_PARTS
from tracemap.reports.advice import (
    advice,
    basis,
    devices_compared,
    divisor,
    elapsed_of_one,
    elapsed_said,
    invocations_said,
    known_invocations,
    shown_unit,
)
from tracemap.reports.cost_lookup import (
    DEFAULT_METRIC,
    ELAPSED_PARTS,
    CostedMap,
    called_functions,
    explained_of_elapsed,
)
from tracemap.reports.escaping import as_shown, or_dash
from tracemap.reports.page.model import (
    Coverage,
    ElapsedPart,
    FateCount,
    MetricBalance,
    ResidualLine,
    Roofline,
    RoofPoint,
    Shown,
    amounts,
)
from tracemap.units import Integer, Unknown, format_ns, format_share

# ---- families
#
# Families of ops by their names, for the colours of pictures: what kind of work an op is.
#
# Nothing is computed by it: the names of the dialects that we know are told apart by their words, and of what has none
# of them nothing is said. The family of a `linalg.generic` is that of the kernel that it gave its name.


class Family(enum.StrEnum):
    """A kind of work."""

    CONTRACTION = "contraction"
    """Matrix products and convolutions."""
    REDUCTION = "reduction"
    """Sums, pooling, norms, softmax, sorting."""
    MOVEMENT = "movement"
    """What moves elements: transposes, gathers, pads, copies."""
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
_SAME_AS_ROOT: Final = ("linalg.generic",)


def family_of_name(name: str) -> Family:
    """The family of an op by its name alone.

    >>> [family_of_name(name).value for name in ("stablehlo.dot_general", "torch.aten.max_pool2d", "onnx.Conv")]
    ['contraction', 'reduction', 'contraction']
    """
    return _family(name)


@lru_cache(maxsize=4096)  # a large model has few names
def _family(name: str) -> Family:
    # torch writes an overload behind the name: `torch.aten.add.Tensor`.
    parts = name.split(".")[1:] or [name]
    if parts[0] in ("aten", "prims", "prim", "operator"):
        parts = parts[1:2]
    words = [word for word in re.split(r"[_\d]+|(?<=[a-z])(?=[A-Z])", parts[0]) if word]
    lower = [word.lower() for word in words]
    # The longest run of words that is known: `reduce_window` before `reduce`; earlier ones first.
    for length in range(len(lower), 0, -1):
        for begin in range(len(lower) - length + 1):
            if family := _FAMILY_OF.get("".join(lower[begin : begin + length])):
                return family
    return Family.OTHER


def families_of(graph: TraceGraph) -> Mapping[OpId, Family]:
    """The families of ops: by their names; of those whose name says nothing, by that of a kernel that they gave it."""
    by_kernel = {site.root.op: site.kernel for site in graph.sites if site.root}
    return {op.id: _of_op(op, by_kernel.get(op.id, "")) for op in graph.ops}


def _of_op(op: Op, kernel: str) -> Family:
    if op.name not in _SAME_AS_ROOT:
        return _family(op.name)
    # `main$async_dispatch_3_matmul_like_128x64x32_f32`: what stands behind the number.
    _, _, described = kernel.partition("_dispatch_")
    return _family("." + described.partition("_")[2]) if described else Family.OTHER


# ---- roofline
#
# How far ops and kernels are from what the machine allows (Williams, Waterman, Patterson: Roofline, CACM 2009).
#
# The time that is attainable is the larger of operations over peak and bytes over bandwidth, of one core, as the run's
# header has them; what was measured is the CPU time of all workers, so that both are of as many cores as worked.


MOST_POINTS: Final = 400
"""Of ops, and as many of kernels: the dearest."""


@dataclass(slots=True)
class _Work:
    """What something did in all calls, as far as it is known."""

    operations: int = 0
    bytes: int = 0
    is_known: bool = True

    def add(self, member: Membership, calls: Integer) -> None:
        if isinstance(member.operations, Unknown) or isinstance(member.bytes, Unknown) or isinstance(calls, Unknown):
            self.is_known = False
        else:
            self.operations += member.operations * calls
            self.bytes += member.bytes * calls


def roofline_of(costed: CostedMap) -> Roofline | None:
    """The roofline of a page; None without a run that measured CPU time."""
    attribution = costed.attribution
    number = next((at for at, metric in enumerate(costed.metrics) if metric.name == DEFAULT_METRIC), -1)
    if attribution is None or number < 0:
        return None
    peaks = attribution.run.peaks
    points, unknown = [], 0
    for found in (_ops(costed), _kernels(costed)):
        ranked = sorted(found, key=lambda each: -each[2])
        for kind, name, time_ns, work in ranked[:MOST_POINTS]:
            if not work.is_known or not work.operations + work.bytes:
                unknown += kind == "op"
                continue
            attainable_s = max(work.operations / peaks.operations_per_second, work.bytes / peaks.bytes_per_second)
            label = as_shown(costed.graph.op_by_id[OpId(name)].name if kind == "op" else name)
            points.append(
                RoofPoint(kind, name, label, work.operations, work.bytes, time_ns, max(1, round(attainable_s * 1e9)))
            )
    return Roofline(number, peaks.operations_per_second, peaks.bytes_per_second, peaks.source, tuple(points), unknown)


def _ops(costed: CostedMap) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    for site in costed.graph.sites:
        if of_site := costed.site_results.get(site.id):
            for member in site.members:
                works[member.op].add(member, of_site.calls)
    for op, result in costed.op_results.items():
        if (time_ns := result.metrics[DEFAULT_METRIC].attributed) > 0 and op in works:
            yield "op", str(op), time_ns, works[op]


def _kernels(costed: CostedMap) -> Iterator[tuple[str, str, int, _Work]]:
    works: Mapping[str, _Work] = defaultdict(_Work)
    times: dict[str, int] = defaultdict(int)
    for site in costed.graph.sites:
        if site.members and (result := costed.site_results.get(site.id)):
            times[site.kernel] += result.metrics[DEFAULT_METRIC].total
            for member in site.members:
                works[site.kernel].add(member, result.calls)
    for kernel, time_ns in times.items():
        if time_ns > 0:
            yield "kernel", kernel, time_ns, works[kernel]


# ---- overview tab
#
# The overview: facts about module and run, coverage, and the balance of each metric.


def facts(costed: CostedMap) -> tuple[tuple[str, str], ...]:
    """What there is to know about the module, and about the run where there is one."""
    run = _run_facts(costed.attribution) if costed.attribution else ()
    return (*_module_facts(costed.graph), *run)


def _module_facts(graph: TraceGraph) -> Iterable[tuple[str, str]]:
    module = graph.module
    yield "module", module.name
    yield "SHA-256", module.sha256
    yield "compiler", module.iree_compiler
    yield "flags", " ".join(module.flags) or "–"


def _run_facts(attribution: Attribution) -> Iterable[tuple[str, str]]:
    run = attribution.run
    word, _, named = called_functions(attribution).partition(" ")
    yield word, named
    yield "device", or_dash(run.device)
    yield "workers", or_dash(run.workers)
    yield "invocations", invocations_said(run)
    yield "elapsed", _elapsed(attribution)
    yield "elapsed went for", explained_of_elapsed(attribution) or "–"
    if text := devices_compared(run.devices):
        yield "devices", text
    if text := advice(attribution):
        yield "advice", text
    yield "rule", attribution.rule.value
    yield "command", " ".join(run.command) or "–"


def _elapsed(attribution: Attribution) -> str:
    whole = format_ns(attribution.run.elapsed_ns)
    return whole if isinstance(elapsed_of_one(attribution), Unknown) else f"{elapsed_said(attribution)}; {whole} in all"


def elapsed_parts(costed: CostedMap) -> tuple[ElapsedPart, ...]:
    """What the elapsed time went for; nothing where that is not known. They add up to it."""
    parts = costed.attribution.run.elapsed if costed.attribution else UNKNOWN_PARTS
    if parts == UNKNOWN_PARTS:
        return ()
    shown = zip(ELAPSED_PARTS, parts.values(), strict=True)
    return tuple(ElapsedPart(name, part) for name, part in shown if isinstance(part, int) and part)


def coverage(costed: CostedMap) -> Coverage:
    """How much of the model and of the program the map and the run account for."""
    graph = costed.graph
    fates = Counter(op.fate for op in graph.ops)
    return Coverage(
        ops=len(graph.ops),
        by_fate=tuple(
            FateCount(fate.value, fates[fate], format_share(fates[fate], len(graph.ops)))
            for fate in Fate
            if fates[fate]
        ),
        sites=len(graph.sites),
        sites_with_members=sum(bool(site.members) for site in graph.sites),
        load_time_sites=len(costed.unmeasured_sites),
        uncalled_sites=_uncalled_sites(costed),
        kernels=len(graph.kernels),
        inferred=sum(op.reason.inferred for op in graph.ops),
    )


def _uncalled_sites(costed: CostedMap) -> int:
    if costed.attribution is None:
        return 0
    # Sites that run at load are in no profile, so nothing is to be concluded from their absence.
    called = {result.site for result in costed.site_results.values() if result.calls}
    return sum(not site.initializer and site.id not in called for site in costed.graph.sites)


def balance(metric: MetricTotal) -> MetricBalance:
    """A metric's balance, and how its amounts are shown."""
    unit, scale = shown_unit(metric)
    per_invocation, of_run = (
        Shown(divisor(metric, totals=totals) * scale, basis((metric,), totals=totals)) for totals in (False, True)
    )
    return view(
        MetricBalance,
        metric,
        shown_unit=unit,
        scale=scale,
        shown=(per_invocation, of_run),
        known_invocations=known_invocations(metric) > 0,
    )


def calls(metrics: Sequence[MetricTotal]) -> tuple[int, int]:
    """What numbers of calls are divided by: the invocations of what is measured of whole dispatches, or nothing."""
    return (divisor(metrics[0], totals=False) if metrics else 1, 1)


def residual(costed: CostedMap) -> tuple[ResidualLine, ...]:
    """The costs without an op; none without a run."""
    rows = costed.attribution.residual if costed.attribution else ()
    return tuple(
        ResidualLine(row.reason.value, RESIDUAL_TEXTS[row.reason], row.events, amounts(row.metrics, costed.metrics))
        for row in rows
    )
