"""Diagnostics of a result, and time that no op gets, with its reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from tracemap.attribution.join.targets import EXECUTE, MEMORY, MIGRATED, OUTSIDE_KERNELS, TRANSFER, UNMATCHED
from tracemap.attribution.model import Basis, Disagreement, SiteResult, UnattributedReason, UnattributedRow
from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.shares import SplitInput, Totals
from tracemap.attribution.weights import Weights
from tracemap.core.diagnostics import LOAD_TIME, SHARES_ESTIMATED, TRANSFERS_UNTIMED, Diagnostic
from tracemap.core.errors import RunMismatch
from tracemap.core.units import ASSUMED_SIZE, MOST_LISTED, UNKNOWN, Integer, format_count, join_names, plural, sum_of
from tracemap.map.model import Site, TraceGraph
from tracemap.options.results import Rule
from tracemap.runs.columns import events_sql
from tracemap.runs.model import INSTRUCTIONS, SAMPLES, STAND_INS, Clock
from tracemap.runs.sql import literal

# ---- agreement
#
# Compare the evidence for splitting a kernel over its ops: samples, simulated instructions, machine code.
#
# Any of the three can be wrong. They are compared pairwise, and a difference beyond the errors of both is reported:
# two with the same error cannot hide it from the third.


ERROR_OF: Mapping[Basis, float] = {Basis.SAMPLES: 0.15, Basis.SIMULATED: 0.15, Basis.CODE: 0.20}
"""Error of a share, as a fraction of the kernel: the limits of `make accuracy`, with a margin for machine code."""


def disagreements(evidence: Sequence[tuple[Site, Mapping[Basis, Weights]]]) -> Iterator[Disagreement]:
    """Kernels whose evidence disagrees, each reported once, for the site with the largest difference.

    Args:
        evidence: the dispatch sites, with the weights of their ops by each kind of evidence.
    """
    worst: dict[str, tuple[float, Disagreement]] = {}
    for site, weights_by_basis in evidence:
        for first, second in combinations(weights_by_basis, 2):
            error = ERROR_OF[first] + ERROR_OF[second]
            excess, negative_index = max(
                (_excess(weights_by_basis[first], weights_by_basis[second], index, error), -index)
                for index in range(len(site.members))
            )
            if excess > 0 and excess > worst.get(site.kernel, (0.0,))[0]:
                shares = {basis: _share(weights, -negative_index) for basis, weights in weights_by_basis.items()}
                percent = {basis: round(100 * share) for basis, share in shares.items()}
                disagreement = Disagreement(site.kernel, site.id, site.members[-negative_index].op, percent)
                worst[site.kernel] = excess, disagreement
    for kernel in sorted(worst):
        yield worst[kernel][1]


def _share(weights: Weights, member: int) -> float:
    """One op's fraction of the attributed cost."""
    total = sum(weights.values[:-1])
    return weights.values[member] / total if total else 0.0


def _excess(first: Weights, second: Weights, member: int, error: float) -> float:
    """Difference of two shares beyond chance and `error`."""
    low, high = sorted((_share(first, member), _share(second, member)))
    sampled = (weights for weights in (first, second) if weights.sampled and any(weights.values))
    intervals = [weights.intervals(1_000_000)[member] for weights in sampled]
    chance = sum([(upper - lower) / 2_000_000 for lower, upper in intervals], 0.0)
    return round(high - low - error - chance, 9)  # rounded, so that the last bit makes no difference


# ---- mismatch


_NAMED: Final = 3
_NAMES = """
SELECT kernel, count(*) FROM ({events}) WHERE kind NOT IN ('execute', 'alloca', 'dealloca') GROUP BY kernel
ORDER BY count(*) DESC, kernel NULLS LAST LIMIT {most}
"""
_KNOWN = "SELECT kernel FROM ({events}) WHERE kernel IN ({known}) LIMIT 1"


def check_something_matches(graph: TraceGraph, tables: Tables, scan: Scan) -> None:
    """Reject runs that name kernels, but none of the map's.

    Raises:
        RunMismatch: no row of the runs names a kernel of the map.
    """
    unmatched = scan.by_target[UNMATCHED].events if UNMATCHED in scan.by_target else 0
    unmatched += sum(row.target == UNMATCHED for row in scan.step_rows)
    has_match = any(number >= 0 and events.events for number, events in scan.by_target.items())
    if not unmatched or has_match or any(row.target >= 0 for row in scan.step_rows):
        return
    known = ", ".join(literal(kernel.name) for kernel in graph.kernels) or "NULL"
    if any(tables.for_run(run).query(_KNOWN.format(events=events_sql(run), known=known)) for run in tables.runs):
        return  # kernels of the map, but at commands where the map has no dispatch
    names = [
        "no kernel" if name is None else repr(name)
        for run in tables.runs
        for name, _ in tables.for_run(run).query(_NAMES.format(events=events_sql(run), most=_NAMED))
    ]
    files = ", ".join(run.file_name for run in tables.runs)
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    has = join_names([repr(kernel.name) for kernel in graph.kernels], most=_NAMED) or "none"
    raise RunMismatch(
        f"{files}: none of {plural(unmatched, 'row')} names a kernel of the map; the rows name {shown}, "
        f"the map has {has}; pass the bundle that the run was recorded from (--map), or --allow-mismatch"
    )


# ---- diagnostics


_TOLERATED_LOSS = 0.001
"""The fraction of a metric that rounding may lose without a note."""


def result_diagnostics(
    graph: TraceGraph, sites: Sequence[SiteResult], by: SplitInput, disagree: Sequence[Disagreement]
) -> Iterator[Diagnostic]:
    """The notes on the whole result; runs have notes of their own."""
    scan = by.totals.scan
    at_load = sum(site.initializer for site in graph.sites) - sum(
        graph.site_by_id[site.site].initializer for site in sites
    )
    if at_load:
        text = (
            f"{plural(at_load, 'dispatch')} run at load: not measured, because profiles of IREE's tools exclude loading"
        )
        yield Diagnostic(LOAD_TIME, text)
    if any(metric.clock is Clock.DEVICE for metric in scan.metrics):
        text = "kernels were timed by the device, on its own clock; the elapsed time is by the host's clock"
        yield Diagnostic("device-clock", text)
    yield from _ambiguity_notes(scan)
    yield from _untimed_transfer_notes(graph, scan)
    yield from _unknown_cost_notes(sites)
    yield from _value_notes(graph, scan)
    yield from _step_notes(by)
    if by.rule is Rule.MEASURED:
        yield from _measured_rule_notes(sites, by)
    yield from _estimate_notes(sites, by)
    if disagree:
        shares = [
            f"{kernel.kernel}: {kernel.op} {graph.op_by_id[kernel.op].name} has "
            + ", ".join(f"{percent} % by {basis.value}" for basis, percent in kernel.percent.items())
            for kernel in disagree
        ]
        text = (
            f"evidence disagrees on the shares in {plural(len(disagree), 'kernel')} by more than its errors: "
            f"{join_names(shares)}"
        )
        yield Diagnostic("evidence-disagrees", text)
    if scan.invocations.count is UNKNOWN and any(number >= 0 for number in scan.by_target):
        text = (
            "the runs do not say which invocation an event belongs to: distributions over invocations (median, p10, "
            "p90) are unknown"
        )
        yield Diagnostic("invocations-unknown", text)
    yield from _row_count_notes(scan)
    if not scan.by_target and not scan.step_rows:
        yield Diagnostic("no-events", "the run has no events: nothing was measured")


def _unknown_cost_notes(sites: Sequence[SiteResult]) -> Iterator[Diagnostic]:
    assumed = sum(site.assumed_sizes and _was_called(site) for site in sites)
    if assumed:
        text = f"{plural(assumed, 'dispatch')} with dynamic sizes: cost split over the ops as if each size were"
        yield Diagnostic("assumed-sizes", f"{text} {ASSUMED_SIZE}")
    equal = sum(site.equal_members and _was_called(site) for site in sites)
    if equal:
        text = f"{plural(equal, 'dispatch')} with unknown costs of ops: each op gets the same"
        yield Diagnostic("equal-members", text)


def _row_count_notes(scan: Scan) -> Iterator[Diagnostic]:
    rows = sum(target_sum.events for target_sum in scan.by_target.values())
    if scan.recorded is UNKNOWN or rows == scan.recorded:
        return
    text = f"{plural(scan.recorded, 'event')} were recorded, but the table has {format_count(rows)}: "
    if rows < scan.recorded:
        yield Diagnostic("rows-missing", f"{text}rows are missing, and costs are too low")
    else:
        yield Diagnostic("rows-added", f"{text}rows are duplicated or come from another run, and costs are too high")


def _ambiguity_notes(scan: Scan) -> Iterator[Diagnostic]:
    """Notes on events that may belong to several places, the most frequent first."""
    ambiguous = [
        (scan.by_target[number].events, target)
        for number, target in enumerate(scan.targets)
        if not target.exact and number in scan.by_target
    ]
    if ambiguous:
        ambiguous.sort(key=lambda pair: -pair[0])
        counts = [f"{format_count(events)} of {_any_of(target.places)}" for events, target in ambiguous]
        events = plural(sum(events for events, _ in ambiguous), "event")
        text = (
            f"{events} may belong to several dispatch sites and were split evenly over them: {join_names(counts, '; ')}"
        )
        yield Diagnostic("split-evenly", text)
    if scan.surplus:
        text = "the run has more command buffers of a kind than the map: another module has identical ones"
        yield Diagnostic("modules-alike", text)


def _untimed_transfer_notes(graph: TraceGraph, scan: Scan) -> Iterator[Diagnostic]:
    """A note on copies and fills that the runtime executes together with kernels and does not time."""
    if not scan.untimed or EXECUTE not in scan.by_target:
        return
    ops = dict.fromkeys(op for command in scan.untimed for op in command.ops)
    op_list = f" ({join_names([f'{op} {graph.op_by_id[op].name}' for op in ops])})" if ops else ""
    transfers = "a copy or fill" if len(scan.untimed) == 1 else f"{len(scan.untimed):,} copies and fills"
    text = (
        f"the runtime does not time {transfers} within command buffers{op_list}: their time is part of "
        f"{UnattributedReason.QUEUE.value}, in wall time only"
    )
    yield Diagnostic(TRANSFERS_UNTIMED, text)


def _any_of(places: Sequence[str]) -> str:
    """Alternative places; if there are many, the first few and the number of others.

    >>> _any_of(["site1", "site2"]), _any_of([f"site{number}" for number in range(1, 9)])
    ('site1 or site2', 'site1 or site2 or site3 or site4 or site5 or 3 others')
    """
    more = len(places) - MOST_LISTED
    return " or ".join((*places[:MOST_LISTED], *([plural(more, "other")] if more > 0 else [])))


def _value_notes(graph: TraceGraph, scan: Scan) -> Iterator[Diagnostic]:
    """Notes on metrics that lose precision, and on dispatches without a value of some metric."""
    site_sums = [
        scan.by_target[number]
        for number, target in enumerate(scan.targets)
        if number in scan.by_target and target.places[0] not in graph.transfer_by_id
    ]
    for name, loss in scan.rounded.items():
        if loss > _TOLERATED_LOSS:
            text = (
                f"{100 * loss:.1f} % of the sum of {name} is lost by rounding: its values are counted in millionths, "
                "too coarse for them; give them in a smaller unit"
            )
            yield Diagnostic("values-rounded", text)
    for metric in scan.metrics:
        absent = sum(target_sum.absent[metric.name] for target_sum in site_sums)
        if absent:
            text = f"{plural(absent, 'dispatch event')} have no {metric.name}; its sum excludes them"
            yield Diagnostic("values-unknown", text)


def _step_notes(by: SplitInput) -> Iterator[Diagnostic]:
    """Notes on samples and counts that name only a kernel of several dispatch sites."""
    for metric in (SAMPLES, INSTRUCTIONS):
        if count := by.steps.spread[metric]:
            criterion = by.totals.spread_by(metric)
            amount = f"{format_count(count)} {metric}"
            text = f"{amount} name only kernels with several dispatch sites: split over them {criterion}"
            yield Diagnostic("steps-spread", text)


def _measured_rule_notes(sites: Sequence[SiteResult], by: SplitInput) -> Iterator[Diagnostic]:
    """Notes on the meaning of shares by the rule `measured`, and on sites where it could not be applied."""
    caveat = "Removing an op may save less, because a core executes several ops at the same time"
    measured = [weights for weights in _known_weights(sites, by) if weights.factor == 1]
    if any(weights.sampled for weights in measured):
        text = (
            "shares of a kernel's ops: samples say which loop took the time; inside a loop, time is split by how long "
            f"each op's instructions keep a core busy. {caveat}"
        )
        yield Diagnostic("shares-are-occupancy", text)
    simulated = sum(not weights.sampled for weights in measured)
    if simulated:
        scope = (
            "without samples" if simulated == len(measured) else f"in {plural(simulated, 'dispatch')} with few samples"
        )
        text = (
            f"shares of a kernel's ops: {scope}, time is split by the simulated instructions of each op, how long they "
            f"keep a core busy, and the extra time of simulated cache misses. {caveat}"
        )
        yield Diagnostic("shares-are-instructions", text)
    unseen = [site for site in sites if _was_called(site) and len(site.shares) > 1 and site.site not in by.site_weights]
    stood_in = sum(by.steps.graph.site_by_id[site.site].kernel in by.steps.stood_in for site in unseen)
    if len(unseen) > stood_in:
        text = f"no measurement of the ops in {plural(len(unseen) - stood_in, 'site')}: split by the rule model"
        yield Diagnostic("split-by-model", text)
    if stood_in:
        text = (
            f"in {plural(stood_in, 'dispatch')} most simulated instructions stand in for others ({STAND_INS}) and do "
            "not reflect the time: split by the rule model; record with --sample"
        )
        yield Diagnostic("split-by-model", text)


def _known_weights(sites: Sequence[SiteResult], by: SplitInput) -> list[Weights]:
    # The only op of a site gets the whole site, whatever was measured.
    return [by.site_weights[site.site] for site in sites if len(site.shares) > 1 and site.site in by.site_weights]


def _was_called(site: SiteResult) -> bool:
    """Whether the runs are known to have called a site."""
    return isinstance(site.calls, int) and site.calls > 0


def _estimate_notes(sites: Sequence[SiteResult], by: SplitInput) -> Iterator[Diagnostic]:
    """A note on dispatch sites whose shares are estimated from machine code, with the size of the error."""
    known = _known_weights([site for site in sites if _was_called(site)], by)
    factors = [weights.factor for weights in known if weights.factor > 1]
    if not factors or by.rule not in (Rule.CODE, Rule.MEASURED):
        return
    scope = "" if by.rule is Rule.CODE else f"in {plural(len(factors), 'dispatch')} without measurements, "
    text = (
        f"shares of a kernel's ops: {scope}estimated from machine code (how often instructions run, how long they keep "
        f"a core busy, how much they load); an op's cost may be off by a factor of {min(factors):g}"
    )
    if max(factors) > min(factors):
        waiting = sum(factor > min(factors) for factor in factors)
        text += f", or by {max(factors):g} in {plural(waiting, 'dispatch')} that mostly wait for memory"
    if data_dependent := sum(bool(weights.bounds) for weights in known):
        text += (
            f"; in {plural(data_dependent, 'dispatch')} the data decides how often code runs, and the intervals cover "
            "all cases"
        )
    yield Diagnostic(SHARES_ESTIMATED, f"{text}. Record with --sample to measure them")


# ---- unattributed costs


_REASON_OF = {
    UNMATCHED: UnattributedReason.UNMATCHED,
    OUTSIDE_KERNELS: UnattributedReason.OUTSIDE_KERNELS,
    TRANSFER: UnattributedReason.TRANSFER,
    MIGRATED: UnattributedReason.MIGRATION,
    MEMORY: UnattributedReason.MEMORY,
}


_Cost = tuple[UnattributedReason, Integer, Mapping[str, int]]
"""A reason, a number of events, and their cost by metric name."""


def unattributed_rows(
    graph: TraceGraph, totals: Totals, sites: Sequence[SiteResult], metrics: Sequence[str]
) -> tuple[UnattributedRow, ...]:
    """One row for each reason that applies; unmatched events get a row even if they cost nothing."""
    events: dict[UnattributedReason, Integer] = defaultdict(lambda: 0 if totals.has_calls else UNKNOWN)
    sums: dict[UnattributedReason, Counter[str]] = defaultdict(Counter)
    for reason, count, cost in _costs(graph, totals, sites):
        events[reason] = sum_of((events[reason], count))
        sums[reason].update(cost)
    return tuple(
        UnattributedRow(reason, events[reason], {name: sums[reason][name] for name in metrics})
        for reason in UnattributedReason
        if reason in sums and (any(sums[reason].values()) or reason is UnattributedReason.UNMATCHED)
    )


def _costs(graph: TraceGraph, totals: Totals, sites: Sequence[SiteResult]) -> Iterator[_Cost]:
    scan = totals.scan
    for number, events in scan.by_target.items():
        if number in _REASON_OF:
            yield _REASON_OF[number], events.events, events.sums
        if events.outlier_calls:
            yield UnattributedReason.OUTLIERS, events.outlier_calls, events.outliers
    # Step rows only locate the time of events that are counted already, so they add no events.
    names = [metric.name for metric in scan.step_metrics]
    for row in scan.step_rows:
        if row.target < 0:
            yield _REASON_OF[row.target], 0, dict(zip(names, row.values, strict=True))
    # The dispatches' own rows count the part of executes in which they ran.
    if EXECUTE in scan.by_target:
        executes = scan.by_target[EXECUTE]
        uncovered = {name: total - scan.execute_covered[name] for name, total in executes.sums.items()}
        yield UnattributedReason.QUEUE, executes.events, uncovered
    # Transfers of the map that belong to no op are unattributed, as are transfers that the map lacks.
    for transfer in graph.all_transfers:
        if transfer.id in totals.places and not transfer.ops:
            total = totals.at(transfer.id)
            yield UnattributedReason.TRANSFER, total.calls, total.sums
    for site in sites:
        if not site.shares:
            yield (
                UnattributedReason.COMPILER_MADE,
                site.calls,
                {name: cost.total for name, cost in site.metrics.items()},
            )
        elif any(site.nobody.values()):
            yield UnattributedReason.KERNEL_OVERHEAD, site.calls, site.nobody
