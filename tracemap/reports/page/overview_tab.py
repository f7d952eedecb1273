"""The overview: facts about module and run, coverage, and the balance of each metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution, MetricTotal
from tracemap.codec import view
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Fate
from tracemap.measurements.model import UNKNOWN_PARTS
from tracemap.reports.advice import advice, devices_compared
from tracemap.reports.basis import (
    basis,
    divisor,
    elapsed_of_one,
    elapsed_said,
    invocations_said,
    known_invocations,
    shown_unit,
)
from tracemap.reports.costed import ELAPSED_PARTS, CostedMap, called_functions, explained_of_elapsed
from tracemap.reports.labels import or_dash
from tracemap.reports.page.model import Coverage, FateCount, MetricBalance, ResidualLine, Shown, amounts
from tracemap.reports.page.pictures import ElapsedPart
from tracemap.units import Unknown, format_ns, format_share


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
