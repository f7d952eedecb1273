"""Warnings about a result: disagreeing evidence, runs that do not match the map, and uncertain figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from tracemap.attribution.join.targets import EXECUTE, UNMATCHED
from tracemap.attribution.model import Basis, Disagreement, ResidualReason, SiteResult
from tracemap.attribution.result.shares import Splitting
from tracemap.attribution.scan.connection import Tables
from tracemap.attribution.scan.scan import Scan
from tracemap.attribution.weights import Weights
from tracemap.diagnostics import TRANSFERS_UNTIMED, Diagnostic
from tracemap.errors import RunMismatch
from tracemap.graph.model import Site, TraceGraph
from tracemap.measurements.columns import events_sql
from tracemap.measurements.model import INSTRUCTIONS, SAMPLES, STAND_INS, Clock
from tracemap.measurements.sql import literal
from tracemap.options.results import Rule
from tracemap.units import ASSUMED_SIZE, MOST_LISTED, UNKNOWN, format_count, listed, plural

# ---- agreement
#
# Whether the ways of dividing a kernel over its ops say the same: samples, simulated instructions, machine code.
#
# Each can be wrong where the others are right. So they are compared pairwise, and a difference beyond the errors of
# both is named: two that err alike cannot hide it from the third.


ERROR_OF: Mapping[Basis, float] = {Basis.SAMPLES: 0.15, Basis.SIMULATED: 0.15, Basis.CODE: 0.20}
"""By how much of a kernel a share may be off: what `make accuracy` holds each way to, for the code and some more."""


def disagreements(found: Sequence[tuple[Site, Mapping[Basis, Weights]]]) -> Iterator[Disagreement]:
    """The kernels that are divided differently, each once, by the site where the difference is largest.

    Args:
        found: the sites, with the weights of their members by each way that tells any.
    """
    worst: dict[str, tuple[float, Disagreement]] = {}
    for site, ways in found:
        for one, other in combinations(ways, 2):
            beyond, member = max(
                (_beyond(ways[one], ways[other], place, ERROR_OF[one] + ERROR_OF[other]), -place)
                for place in range(len(site.members))
            )
            if beyond > 0 and beyond > worst.get(site.kernel, (0.0,))[0]:
                shares = {way: _share(weights, -member) for way, weights in ways.items()}
                percent = {way: round(100 * share) for way, share in shares.items()}
                told = Disagreement(site.kernel, site.id, site.members[-member].op, percent)
                worst[site.kernel] = beyond, told
    for kernel in sorted(worst):
        yield worst[kernel][1]


def _share(weights: Weights, member: int) -> float:
    """A member's part of what is of ops."""
    whole = sum(weights.values[:-1])
    return weights.values[member] / whole if whole else 0.0


def _beyond(one: Weights, other: Weights, member: int, error: float) -> float:
    """By how much two shares differ more than chance and the errors allow."""
    low, high = sorted((_share(one, member), _share(other, member)))
    chance = sum(_chance(weights, member) for weights in (one, other))
    return round(high - low - error - chance, 9)  # so that shares which are alike, but for the last bit, are alike


def _chance(weights: Weights, member: int) -> float:
    """Half of the 95 % interval of a share that samples tell."""
    if not weights.sampled or not sum(weights.values):
        return 0.0
    low, high = weights.intervals(1_000_000)[member]
    return (high - low) / 2_000_000


# ---- mismatch
#
# Runs of which nothing matches the map: what they have, and what the map has instead.


_NAMED: Final = 3
_NAMES = """
SELECT kernel, count(*) FROM ({events}) WHERE kind NOT IN ('execute', 'alloca', 'dealloca') GROUP BY kernel
ORDER BY count(*) DESC, kernel NULLS LAST LIMIT {most}
"""
_KNOWN = "SELECT kernel FROM ({events}) WHERE kernel IN ({known}) LIMIT 1"


def check_something_matches(graph: TraceGraph, tables: Tables, seen: Scan) -> None:
    """Refuse runs with events of kernels of which none is the map's.

    Raises:
        RunMismatch: it is so.
    """
    lost = seen.by_target[UNMATCHED].events if UNMATCHED in seen.by_target else 0
    lost += sum(row.target == UNMATCHED for row in seen.step_rows)
    found = any(number >= 0 and events.events for number, events in seen.by_target.items())
    if not lost or found or any(row.target >= 0 for row in seen.step_rows):
        return
    known = ", ".join(literal(kernel.name) for kernel in graph.kernels) or "NULL"
    if any(tables.of_run(run).query(_KNOWN.format(events=events_sql(run), known=known)) for run in tables.runs):
        return  # the map's kernels, in places where it has none
    names = [
        "no kernel" if name is None else repr(name)
        for run in tables.runs
        for name, _ in tables.of_run(run).query(_NAMES.format(events=events_sql(run), most=_NAMED))
    ]
    files = ", ".join(run.file_name for run in tables.runs)
    has = listed([repr(kernel.name) for kernel in graph.kernels], most=_NAMED) or "none"
    raise RunMismatch(
        f"{files}: {plural(lost, 'row')} and none of a kernel of the map; the rows name {_some(names)}, the map has "
        f"{has}; name the bundle that it was recorded from, or pass --allow-mismatch"
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown}, …" if len(names) > _NAMED else shown


# ---- diagnostics
#
# What a reader must know before trusting the figures.


_LOST = 0.001
"""The part of a metric that may be lost by rounding without a word."""


def result_diagnostics(
    graph: TraceGraph, sites: Sequence[SiteResult], by: Splitting, disagree: Sequence[Disagreement]
) -> Iterator[Diagnostic]:
    """Those of the whole result; the runs have some of their own."""
    scan = by.totals.scan
    at_load = sum(site.initializer for site in graph.sites) - sum(
        graph.site_by_id[site.site].initializer for site in sites
    )
    if at_load:
        text = f"{plural(at_load, 'site')} run at load, in no profile of the stock tools: not measured"
        yield Diagnostic("load-time-not-measured", text)
    yield from _of_clocks(scan)
    yield from _of_targets(scan)
    yield from _of_untimed(graph, scan)
    yield from _of_amounts(sites)
    yield from _of_values(graph, scan)
    yield from _of_steps(by)
    if by.rule is Rule.MEASURED:
        yield from _of_rule(sites, by)
    yield from _of_estimates(sites, by)
    yield from _of_disagreement(graph, disagree)
    if scan.invocations.count is UNKNOWN and any(number >= 0 for number in scan.by_target):
        text = (
            "the runs do not tell which invocation an event belongs to: how the cost of an op differs from one to the "
            "next (median, p10, p90) is unknown"
        )
        yield Diagnostic("invocations-unknown", text)
    yield from _of_rows(scan)
    if not scan.by_target and not scan.step_rows:
        yield Diagnostic("no-events", "the run has no events: nothing was measured")


def _of_amounts(sites: Sequence[SiteResult]) -> Iterator[Diagnostic]:
    """Sites of which it is not known what their members cost."""
    assumed = sum(site.assumed_sizes and _was_called(site) for site in sites)
    if assumed:
        text = f"the costs of the members of {plural(assumed, 'site')} depend on sizes that the program does not know "
        yield Diagnostic("assumed-sizes", f"{text}before: split as if each of these were {ASSUMED_SIZE}")
    equal = sum(site.equal_members and _was_called(site) for site in sites)
    if equal:
        text = f"the costs of the members of {plural(equal, 'site')} are unknown: split evenly"
        yield Diagnostic("equal-members", text)


def _of_rows(scan: Scan) -> Iterator[Diagnostic]:
    """Tables that have other rows than were recorded: somebody took some away, or has them twice."""
    found = sum(each.events for each in scan.by_target.values())
    if scan.recorded is UNKNOWN or found == scan.recorded:
        return
    text = f"{plural(scan.recorded, 'event')} were recorded, and the table has {format_count(found)}: "
    if found < scan.recorded:
        yield Diagnostic("rows-missing", f"{text}rows are missing, and so are their costs")
    else:
        yield Diagnostic("rows-added", f"{text}rows are there twice, or are of another run, and so are their costs")


def _of_clocks(scan: Scan) -> Iterator[Diagnostic]:
    """Which clock tells of kernels, where it is not the host's."""
    if any(metric.clock is Clock.DEVICE for metric in scan.metrics):
        text = "kernels were timed by the device, on a clock of its own; the elapsed time is the host's"
        yield Diagnostic("device-clock", text)


def _of_targets(scan: Scan) -> Iterator[Diagnostic]:
    """Events that could be of several places, the most frequent first."""
    several = [
        (scan.by_target[number].events, target)
        for number, target in enumerate(scan.targets)
        if not target.exact and number in scan.by_target
    ]
    if several:
        several.sort(key=lambda each: -each[0])
        named = [f"{format_count(events)} of {_any_of(target.places)}" for events, target in several]
        events = plural(sum(events for events, _ in several), "event")
        text = f"{events} could be of several sites and were split evenly over them: {listed(named, '; ')}"
        yield Diagnostic("split-evenly", text)
    if scan.surplus:
        text = "more command buffers were recorded than the map has of their kind: another module has the same"
        yield Diagnostic("modules-alike", text)


def _of_untimed(graph: TraceGraph, scan: Scan) -> Iterator[Diagnostic]:
    """Copies and fills that the runtime does together with kernels, and times neither alone."""
    if not scan.untimed or EXECUTE not in scan.by_target:
        return
    ops = dict.fromkeys(op for command in scan.untimed for op in command.ops)
    of_ops = f" ({listed([f'{op} {graph.op_by_id[op].name}' for op in ops])})" if ops else ""
    what = "a copy or fill" if len(scan.untimed) == 1 else f"{len(scan.untimed):,} copies and fills"
    text = (
        f"the runtime does not time {what} within command buffers{of_ops}: what they take is part of "
        f"{ResidualReason.QUEUE.value}, in wall time alone"
    )
    yield Diagnostic(TRANSFERS_UNTIMED, text)


def _any_of(places: Sequence[str]) -> str:
    """Places, one of which it is; of many the first few, and how many more.

    >>> _any_of(["site1", "site2"]), _any_of([f"site{number}" for number in range(1, 9)])
    ('site1 or site2', 'site1 or site2 or site3 or site4 or site5 or 3 others')
    """
    more = len(places) - MOST_LISTED
    return " or ".join((*places[:MOST_LISTED], *([plural(more, "other")] if more > 0 else [])))


def _of_values(graph: TraceGraph, scan: Scan) -> Iterator[Diagnostic]:
    """Metrics whose small values are lost, and dispatches that some metric was not measured of."""
    of_sites = [
        scan.by_target[number]
        for number, target in enumerate(scan.targets)
        if number in scan.by_target and target.places[0] not in graph.transfer_by_id
    ]
    for name, part in scan.rounded.items():
        if part > _LOST:
            text = (
                f"values of {name} are counted in millionths, too coarse for them: {100 * part:.1f} % of their sum "
                "is lost by rounding; give them in a smaller unit"
            )
            yield Diagnostic("values-rounded", text)
    for metric in scan.metrics:
        absent = sum(each.absent[metric.name] for each in of_sites)
        if absent:
            text = f"{plural(absent, 'dispatch event')} have no {metric.name}; they are not in its sum"
            yield Diagnostic("values-unknown", text)


def _of_steps(by: Splitting) -> Iterator[Diagnostic]:
    """Samples and counts that name a kernel of several sites."""
    for metric in (SAMPLES, INSTRUCTIONS):
        if count := by.steps.spread[metric]:
            how = by.totals.spread_by(metric)
            text = f"{format_count(count)} {metric} name only kernels of several sites: spread over them {how}"
            yield Diagnostic("steps-spread", text)


def _of_rule(sites: Sequence[SiteResult], by: Splitting) -> Iterator[Diagnostic]:
    """What shares by the rule `measured` mean, and where it had nothing to go by."""
    less = "One op less can save less, as a core does several at once"
    # A sole member has all of its site, whatever was seen.
    known = [by.bases[site.site] for site in sites if len(site.shares) > 1 and site.site in by.bases]
    shared = [basis for basis in known if basis.factor == 1]
    if any(basis.sampled for basis in shared):
        text = (
            "shares of a kernel's ops: samples tell which loop took the time; inside of a loop it is split by how long "
            f"each op's instructions keep a core busy. {less}"
        )
        yield Diagnostic("shares-are-occupancy", text)
    counted = sum(not basis.sampled for basis in shared)
    if counted:
        where = "without samples" if counted == len(shared) else f"at {plural(counted, 'site')} of few samples"
        text = (
            f"shares of a kernel's ops: {where}, time is split by the simulated instructions of each op, by how "
            f"long they keep a core busy, and by what simulated misses take beyond that. {less}"
        )
        yield Diagnostic("shares-are-instructions", text)
    unseen = [site for site in sites if _was_called(site) and len(site.shares) > 1 and site.site not in by.bases]
    stood_in = sum(by.steps.graph.site_by_id[site.site].kernel in by.steps.stood_in for site in unseen)
    if len(unseen) > stood_in:
        text = f"nothing was seen of the ops of {plural(len(unseen) - stood_in, 'site')}: split by the rule model"
        yield Diagnostic("split-by-model", text)
    if stood_in:
        text = (
            f"at {plural(stood_in, 'site')} most simulated instructions stand in for others ({STAND_INS}), and tell "
            "nothing of the time: split by the rule model; record with --sample"
        )
        yield Diagnostic("split-by-model", text)


def _was_called(site: SiteResult) -> bool:
    """Whether calls of a site are known."""
    return isinstance(site.calls, int) and site.calls > 0


def _of_estimates(sites: Sequence[SiteResult], by: Splitting) -> Iterator[Diagnostic]:
    """Sites whose members' shares are estimated from machine code, and how far these may be off."""
    known = [
        by.bases[site.site] for site in sites if _was_called(site) and len(site.shares) > 1 and site.site in by.bases
    ]
    factors = [basis.factor for basis in known if basis.factor > 1]
    if not factors or by.rule not in (Rule.CODE, Rule.MEASURED):
        return
    where = "" if by.rule is Rule.CODE else f"at {plural(len(factors), 'site')} in which nothing was seen, "
    text = (
        f"shares of a kernel's ops: {where}estimated from machine code (how often instructions run, how long they keep "
        f"a core busy, what they load); an op's cost may be off by a factor of {min(factors):g}"
    )
    if max(factors) > min(factors):
        uncertain = sum(factor > min(factors) for factor in factors)
        text += f", at {plural(uncertain, 'site')} that mostly wait by {max(factors):g}"
    if open_ends := sum(bool(basis.bounds) for basis in known):
        text += (
            f"; at {plural(open_ends, 'site')} the data decides how often code runs, and intervals hold all that it may"
        )
    yield Diagnostic("shares-are-estimates", f"{text}. Record with --sample to measure them")


def _of_disagreement(graph: TraceGraph, found: Sequence[Disagreement]) -> Iterator[Diagnostic]:
    """Kernels that two ways divide differently, by more than their errors."""
    if found:
        text = (
            f"{plural(len(found), 'kernel')} {'is' if len(found) == 1 else 'are'} divided differently by different "
            f"evidence, by more than its errors: {listed([_told(graph, each) for each in found])}"
        )
        yield Diagnostic("evidence-disagrees", text)


def _told(graph: TraceGraph, each: Disagreement) -> str:
    shares = ", ".join(f"{percent} % by {way.value}" for way, percent in each.percent.items())
    return f"{each.kernel}: {each.op} {graph.op_by_id[each.op].name} has {shares}"
