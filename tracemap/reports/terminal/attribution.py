"""What `attribute` prints: the run, costs by op or as they are asked for, the balance, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TextIO

from tracemap.attribution.model import RESIDUAL_TEXTS, Attribution
from tracemap.diagnostics import foremost, others
from tracemap.graph.model import TraceGraph
from tracemap.options.results import AttributeOptions, Rule
from tracemap.reports.advice import advice, counted_in, devices_compared, elapsed_said, invocations_said
from tracemap.reports.cost_lookup import (
    ASSUMED_SIZES,
    AT_LOAD,
    EQUAL_MEMBERS,
    SPLIT_EVENLY,
    CostedMap,
    called_functions,
    explained_of_elapsed,
)
from tracemap.reports.escaping import or_dash
from tracemap.reports.terminal.tables import Heading, console, print_diagnostics, print_table, say
from tracemap.reports.views.chosen import Chosen, chosen_view, costs_of
from tracemap.reports.views.costs import Costs
from tracemap.reports.views.model import TEXT, Column, Row, View
from tracemap.reports.views.ops import UNCERTAIN, UNCERTAIN_MARK, slowest_calls
from tracemap.units import UNKNOWN, Scale, format_ns, listed, plural

if TYPE_CHECKING:
    from rich.console import Console

_NS = "ns"


def print_attribution(
    graph: TraceGraph, attribution: Attribution, out: TextIO, options: AttributeOptions | None = None
) -> None:
    """Print what ops cost: the run, a table, what has no op, and diagnostics.

    Args:
        graph: the map.
        attribution: the costs.
        out: where to; styles and the width of the terminal are used where it is one.
        options: what a row is, and which of them and which columns are shown; None: the defaults.

    Raises:
        UsageInvalid: there is no such metric or column.
    """
    print_costs(CostedMap(graph, attribution), attribution, out, options or AttributeOptions())


def print_costs(costed: CostedMap, attribution: Attribution, out: TextIO, options: AttributeOptions) -> None:
    """As `print_attribution`, of a map with the costs of the attribution."""
    costs = costs_of(attribution, options)
    chosen = chosen_view(costed, costs, options)
    to = console(out)
    diagnostics = costed.graph.diagnostics + attribution.diagnostics
    print_diagnostics(to, foremost(diagnostics))
    _print_run(to, costed, attribution, totals=options.totals)
    _print_view(to, chosen, costs, attribution)
    if options.by == "site":
        _print_slowest(to, slowest_calls(costed, [str(row["site"]) for row in chosen.rows]))
    _print_balance(to, attribution, costs)
    _print_remarks(to, costed)
    print_diagnostics(to, others(diagnostics))


def _print_run(to: Console, costed: CostedMap, attribution: Attribution, *, totals: bool) -> None:
    run, graph = attribution.run, costed.graph
    elapsed = format_ns(run.elapsed_ns) if totals else elapsed_said(attribution)
    say(
        to,
        f"{graph.module.name}: {called_functions(attribution)}, device {or_dash(run.device)}, "
        f"workers {or_dash(run.workers)}, invocations {invocations_said(run)}, {_rule_said(attribution)}",
    )
    explained = explained_of_elapsed(attribution)
    say(to, f"elapsed {elapsed}" + (f": {explained}" if explained else ""))
    for text in (devices_compared(run.devices), advice(attribution)):
        if text:
            say(to, text)
    at_load = len(costed.unmeasured_sites)
    with_members = sum(bool(site.members) for site in graph.sites)
    calls = [result.calls for result in costed.site_results.values()]
    called = "calls unknown" if UNKNOWN in calls else f"{sum(count != 0 for count in calls)} called"
    loaded = f", {at_load} run at load: not measured" if at_load else ""
    say(to, f"{plural(len(graph.sites), 'site')}: {with_members} with members, {called}{loaded}")
    say(to, "")


def _rule_said(attribution: Attribution) -> str:
    """Which rule kernels are split over their ops by; those that measure nothing inside of them estimate."""
    shared = any(site.calls and len(site.shares) > 1 for site in attribution.sites)
    how = _ESTIMATES.get(attribution.rule, "") if shared else ""
    return f"rule {attribution.rule.value}{how}"


_ESTIMATES = {
    Rule.CODE: " (ops that share a kernel: estimated from machine code)",
    Rule.MODEL: " (ops that share a kernel: estimated)",
}


# ---- the table


_OPEN_BY_SAMPLES = "samples leave half of the cost or more open (95 % interval); record longer"
_OPEN_BY_ESTIMATES = (
    "estimated from machine code, and may be off by a factor of 2 or more; record with --sample to measure"
)
_OPEN_BY_WAITS = (
    "half of the cost or more is open: the run was disturbed, and invocations lie far apart (p10 to p90); record on a "
    "quieter machine{}"
)


def _print_view(to: Console, chosen: Chosen, costs: Costs, attribution: Attribution) -> None:
    view, workers = chosen.view, attribution.run.workers
    title = f"{view.noun[:1].upper()}{view.noun[1:]}s by {costs.first.name}, {costs.basis()}"
    _print_columns(to, title, _in_order(chosen), chosen.rows, gap=False, advice="; --columns chooses")
    marked = [row for row in chosen.rows if row.get(UNCERTAIN.key)] if UNCERTAIN in chosen.columns else []
    by_waits = _OPEN_BY_WAITS.format("" if workers == 1 else ", or with --serial")
    by_evidence = _OPEN_BY_ESTIMATES if attribution.rule is Rule.CODE else _OPEN_BY_SAMPLES
    for legend in dict.fromkeys(by_evidence if "likely_low" in row else by_waits for row in marked):
        say(to, f"{UNCERTAIN_MARK} {legend}")
    for count, words, share in (
        (chosen.hidden, f"more {view.noun}", chosen.hidden_share),
        (chosen.unmatched, f"{view.noun} that {{}} not match", chosen.unmatched_share),
    ):
        if count:
            say(to, f"… {_counted(count, words)}" + (f", {float(share):.1f} %" if view.share else ""))


def _print_slowest(to: Console, view: View) -> None:
    said = tuple(column for column in view.columns if column.usual and any(row.get(column.key) for row in view.rows))
    if view.rows:
        _print_columns(to, "Slowest single calls of these sites, as they were measured", said, view.rows, gap=True)


def _counted(count: int, words: str) -> str:
    noun, _, rest = words.partition(" that ")
    return plural(count, noun) + (f" that {rest.format('does' if count == 1 else 'do')}" if rest else "")


def _in_order(chosen: Chosen) -> tuple[Column, ...]:
    """Columns that were asked for go from the right where there is no room, the first never."""
    if not chosen.asked:
        return chosen.columns
    return tuple(replace(column, leave=place, least=column.least) for place, column in enumerate(chosen.columns))


def _print_columns(
    to: Console, title: str, columns: Sequence[Column], rows: Sequence[Row], *, gap: bool, advice: str = ""
) -> None:
    values = {column.key: [_value(row, column) for row in rows] for column in columns if column.unit != TEXT}
    # Times stand side by side to be compared: they have the unit of the first, as far as it shows them.
    times = (values[column.key] for column in columns if column.unit == _NS)
    longest = max((abs(value or 0) for value in next(times, ())), default=0)
    drawn = [
        _numbers(column, values[column.key], longest if column.unit == _NS else 0)
        if column.key in values
        else _texts(column, rows)
        for column in columns
    ]
    cells = zip(*(texts for _, texts in drawn), strict=True)
    print_table(to, title, [heading for heading, _ in drawn], cells, gap=gap, advice=advice)


def _value(row: Row, column: Column) -> float | None:
    cell = row.get(column.key)
    return None if cell is None or isinstance(cell, str) else float(Fraction(cell) / column.divisor)


def _texts(column: Column, rows: Sequence[Row]) -> tuple[Heading, list[str]]:
    heading = Heading(column.heading, leave=column.leave, least=column.least, words=column.words)
    return heading, [str(row.get(column.key) or "") for row in rows]


def _numbers(column: Column, values: Sequence[float | None], beside: float) -> tuple[Heading, list[str]]:
    """All in one unit, which stands above them."""
    scale = Scale.of([value for value in values if value is not None], column.unit, beside)
    unit = f" {scale.unit}" if scale.unit else ""
    heading = Heading(f"{column.heading}{unit}{column.per}", right=True, leave=column.leave)
    return heading, ["–" if value is None else scale.text(value) for value in values]


# ---- what else is to be known


def _print_remarks(to: Console, costed: CostedMap) -> None:
    results = costed.site_results.values()
    of_sites = (
        (AT_LOAD, list(costed.unmeasured_sites)),
        (SPLIT_EVENLY, [result.site for result in results if result.split_evenly]),
        (ASSUMED_SIZES, [result.site for result in results if result.assumed_sizes and result.calls]),
        (EQUAL_MEMBERS, [result.site for result in results if result.equal_members and result.calls]),
    )
    for remark, sites in of_sites:
        if sites:
            say(to, f"{listed(sites)}: {remark}")


def _print_balance(to: Console, attribution: Attribution, costs: Costs) -> None:
    """What is of ops and what is of none, of the metrics that are shown; then the same to the last unit, as sums."""
    metrics = [costs.column(metric.name, costs.name(metric), metric, place) for place, metric in enumerate(costs.shown)]
    columns = (Column("what", ""), *metrics, Column("why", "what it is", leave=30, least=18, words=True))
    _print_columns(to, f"Balance, {costs.basis()}", columns, list(_balance_rows(attribution, costs)), gap=True)
    for total in costs.shown:
        parts = f"measured {total.measured} = attributed {total.attributed} + residual {total.residual}"
        calls = counted_in(total, costs.shown)
        say(to, f"{total.name}: {parts} {total.unit}{calls and f', {calls}'}")
    others = [metric.name for metric in costs.all_metrics if metric not in costs.shown]
    if others:
        say(to, f"--metric shows others: {', '.join(others)}")


def _balance_rows(attribution: Attribution, costs: Costs) -> Iterator[Row]:
    metrics = costs.shown
    yield {"what": "attributed", **{metric.name: metric.attributed for metric in metrics}, "why": "to ops"}
    for row in attribution.residual:
        if any(row.metrics[metric.name] for metric in metrics):
            yield {"what": f"residual {row.reason.value}", **row.metrics, "why": RESIDUAL_TEXTS[row.reason]}
    yield {"what": "measured", **{metric.name: metric.measured for metric in metrics}}
