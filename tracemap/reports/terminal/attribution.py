"""Text of `attribute`: the run, a table of costs, the balance, and remarks on how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.attribution.model import UNATTRIBUTED_TEXTS, Attribution
from tracemap.core.diagnostics import ABOVE_RESULT, BUDGET_SPENT, LOAD_TIME, Diagnostic, above_result, below_result
from tracemap.core.units import (
    MAX_INTEGER,
    UNKNOWN,
    Scale,
    Unknown,
    format_count,
    format_ns,
    join_names,
    plural,
    plural_of,
    split_by_largest_remainder,
)
from tracemap.map.model import TraceGraph
from tracemap.options.results import AttributeOptions, Rule
from tracemap.reports.advice import (
    advice_lines,
    device_comparison_text,
    display_unit,
    elapsed_text,
    invocations_note,
    mean_elapsed_ns,
    notices,
)
from tracemap.reports.cost_lookup import (
    ASSUMED_SIZES,
    EQUAL_MEMBERS,
    SPLIT_EVENLY,
    MapCosts,
    called_functions,
    elapsed_breakdown_text,
)
from tracemap.reports.escaping import or_dash
from tracemap.reports.terminal.tables import Heading, console, note_text, print_notes, print_table, say, say_line
from tracemap.reports.views.costs import LEAVE_METRIC, OVERHEAD, SHARE, TEXT, ULPS, Column, Costs, Row, View
from tracemap.reports.views.ops import GAIN, GAIN_RANGE, LOW_END, PASS, UNCERTAIN, UNCERTAIN_MARK, slowest_calls
from tracemap.reports.views.selection import ViewSelection, select_from_view, selected_costs
from tracemap.runs.model import UNKNOWN_PARTS

if TYPE_CHECKING:
    from rich.console import Console

_NS = "ns"


def print_attribution(
    graph: TraceGraph, attribution: Attribution, out: TextIO, options: AttributeOptions | None = None
) -> None:
    """Print the run, the table of costs, the unattributed costs and the diagnostics.

    Args:
        graph: the map.
        attribution: the costs.
        out: the output; a terminal gets styles and lines that fit its width.
        options: rows and columns to show; None: the defaults.

    Raises:
        UsageInvalid: an option names an unknown metric or column.
    """
    print_costs(MapCosts(graph, attribution), attribution, out, options or AttributeOptions())


def print_costs(
    costed: MapCosts, attribution: Attribution, out: TextIO, options: AttributeOptions, *, table_only: bool = False
) -> None:
    """Print an attribution like `print_attribution`, from a map that already has its costs.

    `table_only`: leave out everything around the table.
    """
    costs = selected_costs(attribution, options)
    chosen = select_from_view(costed, costs, options)
    terminal = console(out)
    if table_only:
        _print_columns(terminal, "", _by_priority(chosen), chosen.rows, gap=False, advice=None)
        return
    _print_run(terminal, costed, attribution, totals=options.totals)
    _print_view(terminal, chosen, costs, attribution)
    if options.by == "site":
        _print_slowest(terminal, slowest_calls(costed, [str(row["site"]) for row in chosen.rows]))
    if options.balance:
        _print_balance(terminal, attribution, costs)
    else:
        say(terminal, "")
        say(terminal, _balance_line(attribution, costs))
    for text in advice_lines(attribution):
        say(terminal, text)
    print_notes(terminal, _notes(costed, attribution), every=options.notes)


def print_summary(costed: MapCosts, attribution: Attribution, out: TextIO, top: int) -> None:
    """Print the elapsed time, the most expensive source lines, and advice: at most 15 lines with five source lines."""
    options = AttributeOptions(by="source", top=top)
    costs = selected_costs(attribution, options)
    chosen = select_from_view(costed, costs, options)
    terminal = console(out)
    say_line(terminal, _elapsed_line(costed, attribution, totals=False))
    passes = select_from_view(costed, costs, AttributeOptions(by="pass")).rows
    if len(passes) > 1:
        say(terminal, ", ".join(f"{row[PASS.key]} {float(row.get(SHARE) or 0):.1f} %" for row in passes))
    _print_view(terminal, replace(chosen, columns=_summary_columns(chosen)), costs, attribution)
    spent = [diagnostic.message for diagnostic in attribution.diagnostics if diagnostic.slug == BUDGET_SPENT]
    for text in notices(costed):
        if text not in spent:
            say(terminal, text.partition(" (")[0])
    for text in advice_lines(attribution):
        say(terminal, text)


_SUMMARY: Final = ("line", "names", "share", GAIN_RANGE.key, "kernel")


def _summary_columns(chosen: ViewSelection) -> tuple[Column, ...]:
    """Those of the columns that a summary shows; the ranking metric may be another than CPU time."""
    keys = {*_SUMMARY, chosen.view.rank}
    shown = {GAIN_RANGE if column is GAIN else column for column in chosen.columns}
    return tuple(column for column in chosen.view.columns if column in shown and column.key in keys)


def _print_run(terminal: Console, costed: MapCosts, attribution: Attribution, *, totals: bool) -> None:
    """Print the header: two lines, which a narrow terminal cuts."""
    run, functions = attribution.run, called_functions(attribution).partition(" ")[2]
    invocations = "invocations unknown" if isinstance(run.iterations, Unknown) else plural(run.iterations, "invocation")
    workers = "workers unknown" if isinstance(run.workers, Unknown) else plural(run.workers, "worker")
    say_line(
        terminal,
        f"{costed.graph.module.name}: {functions} on {or_dash(run.device)}, {workers}, {invocations}, "
        f"rule {attribution.rule.value}",
    )
    say_line(terminal, _elapsed_line(costed, attribution, totals=totals))
    say(terminal, "")


_SMALL_PERCENT: Final = 2
"""Parts of the elapsed time below this percentage are only in the balance."""


def _elapsed_line(costed: MapCosts, attribution: Attribution, *, totals: bool) -> str:
    """The elapsed time, and its largest parts: kernels, and the places that spent time without one."""
    run, mean_ns = attribution.run, mean_elapsed_ns(attribution)
    median_ns, elapsed_ns = run.invocation.median_ns, run.elapsed_ns
    if totals or isinstance(mean_ns, Unknown):
        time = format_ns(elapsed_ns) if totals else elapsed_text(attribution)
    elif isinstance(median_ns, Unknown):
        time = f"{format_ns(mean_ns)} per invocation (mean)"
    else:
        time = f"{format_ns(mean_ns)} per invocation (mean; median {format_ns(median_ns)})"
    if isinstance(elapsed_ns, Unknown) or not elapsed_ns or run.elapsed == UNKNOWN_PARTS:
        explained = elapsed_breakdown_text(attribution)
    else:
        percents = [(part.name, round(100 * part.ns / elapsed_ns)) for part in costed.elapsed_shares()]
        explained = ", ".join(f"{name} {percent} %" for name, percent in percents if percent >= _SMALL_PERCENT)
    return f"elapsed {time}" + (f": {explained}" if explained else "")


def _notes(costed: MapCosts, attribution: Attribution) -> Iterator[str]:
    """Notes on the result and its basis, the most important first."""
    diagnostics = [*costed.graph.diagnostics, *attribution.diagnostics]
    yield from map(note_text, sorted(above_result(diagnostics), key=lambda item: ABOVE_RESULT.index(item.slug)))
    if text := device_comparison_text(attribution.run.devices):
        yield f"note: {text}"
    yield from (f"note: {text}" for text in _remarks(costed))
    for item in below_result(diagnostics):
        sites = join_names(list(costed.unmeasured_sites)) if item.slug == LOAD_TIME else ""
        yield note_text(Diagnostic(item.slug, f"{sites}: {item.message}") if sites else item)
    yield f"note: {_coverage_text(costed)}"


def _coverage_text(costed: MapCosts) -> str:
    """The numbers of dispatches: traced to ops, executed, and run at load time."""
    graph, at_load = costed.graph, len(costed.unmeasured_sites)
    with_members = sum(bool(site.members) for site in graph.sites)
    calls = [result.calls for result in costed.site_results.values()]
    executed = None if UNKNOWN in calls else sum(count != 0 for count in calls)
    executed_text = (
        "number of executions unknown" if executed is None else f"{_of_all(executed, len(graph.sites))} executed"
    )
    at_load_text = f", {at_load} run at load time (not measured)" if at_load else ""
    traced = _of_all(with_members, len(graph.sites))
    return f"{plural(len(graph.sites), 'dispatch')}: {traced} traced to ops, {executed_text}{at_load_text}"


def _of_all(count: int, total: int) -> str:
    return "all" if count == total > 1 else str(count)


# ---- the table


_UNCERTAIN_SAMPLES = "uncertain by 50 % or more: too few samples (95 % interval); record longer"
_UNCERTAIN_ESTIMATE = (
    "estimated from machine code, may be off by a factor of 2 or more; record with --sample to measure"
)
_UNCERTAIN_NOISE = (
    "uncertain by 50 % or more: noisy run, invocations differ widely (p10 to p90); record on a quieter machine{}"
)


def _print_view(terminal: Console, chosen: ViewSelection, costs: Costs, attribution: Attribution) -> None:
    view, workers = chosen.view, attribution.run.workers
    ranked_by, basis = (OVERHEAD, costs.elapsed_basis()) if view.rank == OVERHEAD else (costs.first.name, costs.basis())
    title = f"{view.noun[:1].upper()}{plural_of(view.noun)[1:]} by {ranked_by}, {basis}"
    _print_columns(terminal, title, _by_priority(chosen), chosen.rows, gap=False, advice="; select with --columns")
    marked = [row for row in chosen.rows if row.get(UNCERTAIN.key)] if UNCERTAIN in chosen.columns else []
    noise_legend = _UNCERTAIN_NOISE.format("" if workers == 1 else ", or with --serial")
    share_legend = _UNCERTAIN_ESTIMATE if attribution.rule is Rule.CODE else _UNCERTAIN_SAMPLES
    for legend in dict.fromkeys(share_legend if "likely_low" in row else noise_legend for row in marked):
        say(terminal, f"{UNCERTAIN_MARK} {legend}")
    for count, words, share in (
        (chosen.hidden, f"more {view.noun}", chosen.hidden_share),
        (chosen.unmatched, f"{view.noun} that {{}} not match", chosen.unmatched_share),
    ):
        if count:
            say(terminal, f"… {_count_text(count, words)}" + (f", {float(share):.1f} %" if view.share else ""))


def _print_slowest(terminal: Console, view: View) -> None:
    columns = tuple(column for column in view.columns if column.usual and any(row.get(column.key) for row in view.rows))
    if view.rows:
        _print_columns(terminal, "Slowest single calls of these dispatch sites", columns, view.rows, gap=True)


def _count_text(count: int, words: str) -> str:
    noun, _, clause = words.partition(" that ")
    return plural(count, noun) + (f" that {clause.format('does' if count == 1 else 'do')}" if clause else "")


def _by_priority(chosen: ViewSelection) -> tuple[Column, ...]:
    """The columns; explicitly selected ones are dropped from the right on a narrow terminal, never the first."""
    if not chosen.asked:
        return chosen.columns
    return tuple(replace(column, leave=index, least=column.least) for index, column in enumerate(chosen.columns))


def _print_columns(
    terminal: Console,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    gap: bool,
    advice: str | None = "",
) -> None:
    values = {column.key: [_value(row, column) for row in rows] for column in columns if column.unit != TEXT}
    # Adjacent columns of times share the unit of the first where its precision allows, so that readers can compare.
    times = (values[column.key] for column in columns if column.unit == _NS)
    longest = max((abs(value or 0) for value in next(times, ())), default=0)
    formatted = [
        _numbers(column, values[column.key], longest if column.unit == _NS else 0)
        if column.key in values
        else _texts(column, rows)
        for column in columns
    ]
    cells = zip(*(texts for _, texts in formatted), strict=True)
    print_table(
        terminal, title, [heading for heading, _ in formatted], cells, gap=gap, advice=advice, extra=LEAVE_METRIC
    )


def _value(row: Row, column: Column) -> float | None:
    cell = row.get(column.key)
    return None if cell is None or isinstance(cell, str) else float(Fraction(cell) / column.divisor)


def _texts(column: Column, rows: Sequence[Row]) -> tuple[Heading, list[str]]:
    heading = Heading(column.heading, leave=column.leave, least=column.least, words=column.words)
    return heading, [str(row.get(column.key) or "") for row in rows]


def _numbers(column: Column, values: Sequence[float | None], longest_time: float) -> tuple[Heading, list[str]]:
    """A column of numbers in one unit, which the heading names."""
    if column.unit == ULPS:
        heading = Heading(f"{column.heading} {ULPS}", right=True, leave=column.leave)
        return heading, ["–" if value is None else _ulps_text(value) for value in values]
    scale = Scale.of([value for value in values if value is not None], column.unit, longest_time)
    unit = f" {scale.unit}" if scale.unit else ""
    begins_pair = column.key == LOW_END
    heading = Heading(f"{column.heading}{unit}{column.per}", right=True, leave=column.leave, begins_pair=begins_pair)
    return heading, ["–" if value is None else scale.text(value) for value in values]


def _ulps_text(value: float) -> str:
    return "infinite" if value >= MAX_INTEGER else format_count(round(value))


# ---- remarks and balance


def _remarks(costed: MapCosts) -> Iterator[str]:
    """Remarks on how the costs of dispatch sites are split."""
    results = costed.site_results.values()
    sites_by_remark = (
        (SPLIT_EVENLY, [result.site for result in results if result.split_evenly]),
        (ASSUMED_SIZES, [result.site for result in results if result.assumed_sizes and result.calls]),
        (EQUAL_MEMBERS, [result.site for result in results if result.equal_members and result.calls]),
    )
    for remark, sites in sites_by_remark:
        if sites:
            yield f"{join_names(sites)}: {remark}"


def _balance_line(attribution: Attribution, costs: Costs) -> str:
    """The balance of the ranking metric in one line; its parts are rounded so that they add up."""
    metric, divisor = costs.first, costs.divisor(costs.first)
    unit, size = display_unit(metric)
    scale = Scale.of([metric.measured / divisor / size], unit)
    rest = [(row.reason.value, row.metrics[metric.name]) for row in attribution.unattributed]
    parts = [("to ops", metric.attributed), *(part for part in rest if part[1])]
    step = divisor * size * scale.size / 10**scale.digits
    steps = round(metric.measured / step)
    amounts = (
        split_by_largest_remainder(steps, [amount for _, amount in parts])
        if min(amount for _, amount in parts) >= 0
        else [round(amount / step) for _, amount in parts]
    )
    number = f",.{scale.digits}f"
    texts = [f"{rounded / 10**scale.digits:{number}} {name}" for (name, _), rounded in zip(parts, amounts, strict=True)]
    total = f"{steps / 10**scale.digits:{number}}{f' {scale.unit}' if scale.unit else ''}"
    return f"balance of {metric.name}: {total} = {' + '.join(texts)} (--balance)"


def _print_balance(terminal: Console, attribution: Attribution, costs: Costs) -> None:
    """Attributed and unattributed costs of the shown metrics, as a table; their exact sums; the elapsed time."""
    metrics = [costs.column(metric.name, costs.name(metric), metric, index) for index, metric in enumerate(costs.shown)]
    columns = (Column("what", ""), *metrics, Column("why", "meaning", leave=30, least=18, words=True))
    _print_columns(terminal, f"Balance, {costs.basis()}", columns, list(_balance_rows(attribution, costs)), gap=True)
    for total in costs.shown:
        parts = f"measured {total.measured} = attributed {total.attributed} + unattributed {total.unattributed}"
        invocations = invocations_note(total, costs.shown)
        say(terminal, f"{total.name}: {parts} {total.unit}{invocations and f', {invocations}'}")
    not_shown = [metric.name for metric in costs.all_metrics if metric not in costs.shown]
    if not_shown:
        say(terminal, f"other metrics (--metric): {', '.join(not_shown)}")
    explained = elapsed_breakdown_text(attribution)
    if explained:
        say(terminal, f"elapsed time: {elapsed_text(attribution)}: {explained}")


def _balance_rows(attribution: Attribution, costs: Costs) -> Iterator[Row]:
    metrics = costs.shown
    yield {"what": "attributed", **{metric.name: metric.attributed for metric in metrics}, "why": "to ops"}
    for row in attribution.unattributed:
        if any(row.metrics[metric.name] for metric in metrics):
            yield {"what": f"no op: {row.reason.value}", **row.metrics, "why": UNATTRIBUTED_TEXTS[row.reason]}
    yield {"what": "measured", **{metric.name: metric.measured for metric in metrics}}
