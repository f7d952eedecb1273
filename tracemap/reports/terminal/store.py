"""Text of `store`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.attribution.model import EXCLUDED_REASONS
from tracemap.core.units import (
    UNKNOWN,
    Integer,
    Text,
    format_count,
    format_mean,
    format_ns,
    format_quantity,
    format_share,
    plural,
)
from tracemap.reports.escaping import file_line_if_known
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.runs.columns import unit_of
from tracemap.store.changepoints import FEWEST_NIGHTS
from tracemap.store.model import (
    ModelDifferences,
    QueryScope,
    StoreAdded,
    StoreCalls,
    StoreChange,
    StoreComparison,
    StoreCosts,
    StoreGroup,
    StoreHost,
    StoreMetric,
    StoreOp,
    StoreOpName,
    StoreRuns,
    StoreTrend,
    StoreTrends,
    model_headings,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tracemap.options.store import StoreQueryOptions


# ---- runs of a store, and costs over them


def print_added(added: StoreAdded, out: TextIO) -> None:
    """Print one line per run."""
    terminal = console(out)
    for run in added.runs:
        say(terminal, f"{run.file}: {'added' if run.added else 'already there'}, as {run.run} of {run.model}")


def print_runs(runs: StoreRuns, out: TextIO) -> None:
    """Print one row per run."""
    terminal = console(out)
    headings = [
        Heading("run"),
        Heading("model", least=8),
        Heading("host", least=8, leave=20),
        Heading("cpu", least=12, leave=40),
        Heading("date"),
        Heading("device", leave=30),
        number("workers", leave=50),
        number("events", leave=10),
        number("median call", leave=5),
        Heading("compiler", leave=60),
        Heading("tags", leave=25, least=12),
    ]
    rows = (
        (
            run.run,
            run.model,
            _text(run.host),
            _text(run.cpu_model),
            _text(run.date),
            _text(run.device),
            _number(run.workers),
            _number(run.calls),
            format_ns(run.median_ns),
            _text(run.compiler),
            " ".join(f"{name}={value}" for name, value in sorted(run.tags.items())),
        )
        for run in runs.runs
    )
    print_table(terminal, "", headings, rows)
    _print_notes(terminal, runs.looked)


def print_costs(costs: StoreCosts, out: TextIO, options: StoreQueryOptions) -> None:
    """Print a table per group: the most expensive ops first, then unattributed costs."""
    terminal = console(out)
    for index, group in enumerate(costs.groups):
        if index:
            say(terminal, "")
        _print_group(terminal, group, options)
    _print_notes(terminal, costs.looked)


def print_sites(calls: StoreCalls, out: TextIO, top: int) -> None:
    """Print a table per group and map: the most expensive dispatch sites first."""
    terminal = console(out)
    unit = unit_of(calls.metric)
    for index, group in enumerate(calls.groups):
        if index:
            say(terminal, "")
        group_text = "".join(f", {column} {_text(value)}" for column, value in group.group.items())
        accuracy = f", within {calls.error_percent:g} %" if calls.error_percent else ""
        shown = group.sites[:top] if top else group.sites
        rows = (
            (
                _text(site.site) if isinstance(site.site, str) else "several",
                _text(site.kernel),
                format_count(site.calls),
                *(format_quantity(value, unit) for value in (site.p10, site.median, site.p90, site.p99, site.most)),
            )
            for site in shown
        )
        metric = f"{calls.metric} per call{accuracy}"
        title = f"{group.model}{group_text}, map {group.map[:12]}: {plural(group.runs, 'run')}, {metric}"
        print_table(terminal, title, _SITE_HEADINGS, rows, gap=False)
        if len(shown) < len(group.sites):
            say(terminal, f"… {plural(len(group.sites) - len(shown), 'more dispatch site')}", "dim")
    _print_notes(terminal, calls.looked)


_SITE_HEADINGS: Sequence[Heading] = (
    Heading("site"),
    Heading("kernel", least=12),
    number("calls"),
    number("p10", leave=20),
    number("median"),
    number("p90"),
    number("p99", leave=10),
    number("max", leave=15),
)


_WHY_SUMS: Final = (
    "sums: the runs are of several functions (--group-by function) or input shapes (--group-by inputs), "
    "or their number of invocations is unknown"
)


def _print_group(terminal: Console, group: StoreGroup, options: StoreQueryOptions) -> None:
    group_text = "".join(f", {column} {_text(value)}" for column, value in group.group.items())
    metrics = [metric.name for metric in group.metrics]
    work = {metric.name: _work(group, metric) for metric in group.metrics}
    known = all(isinstance(metric.invocations, int) for metric in group.metrics)
    invocations = {
        metric.name: metric.invocations if known and not options.totals else UNKNOWN for metric in group.metrics
    }
    per = "sums" if options.totals else "per invocation" if known else _WHY_SUMS
    title = f"{group.model}{group_text}: {plural(group.runs, 'run')}, {per}"
    headings = [
        Heading("op"),
        Heading("name", least=12),
        Heading("line", least=10, leave=20),
        Heading("scope", least=10, leave=60),
        number("runs", leave=70),
        *(heading for metric in metrics for heading in (number(metric), number("share", leave=10))),
    ]
    shown = group.ops[: options.top] if options.top else group.ops
    rows = [_op_row(op, metrics, invocations, work) for op in shown]
    rows += [*_remaining_ops(group.ops[len(shown) :], metrics, invocations, work)]
    for row in group.unattributed:
        base = {} if row.reason in EXCLUDED_REASONS else work
        rows.append(("", row.reason, "", "", "", *_cells(row.amounts, metrics, invocations, base)))
    print_table(terminal, title, headings, rows, gap=False)


def _work(group: StoreGroup, metric: StoreMetric) -> int:
    """The base of shares, as in `attribute`: measured costs without outliers and other costs that are not work."""
    return metric.measured - sum(
        row.amounts[metric.name] for row in group.unattributed if row.reason in EXCLUDED_REASONS
    )


def _op_row(
    op: StoreOp, metrics: Sequence[str], invocations: Mapping[str, Integer], work: Mapping[str, int]
) -> tuple[object, ...]:
    location = file_line_if_known(op.file, op.line)
    return op.op, _text(op.name), location, _text(op.scope), op.runs, *_cells(op.amounts, metrics, invocations, work)


def _remaining_ops(
    ops: Sequence[StoreOp], metrics: Sequence[str], invocations: Mapping[str, Integer], work: Mapping[str, int]
) -> Iterator[tuple[object, ...]]:
    if ops:
        amounts = {metric: sum(op.amounts[metric] for op in ops) for metric in metrics}
        yield "", f"… {plural(len(ops), 'more op')}", "", "", "", *_cells(amounts, metrics, invocations, work)


def _cells(
    amounts: Mapping[str, int], metrics: Sequence[str], invocations: Mapping[str, Integer], work: Mapping[str, int]
) -> Iterator[str]:
    for metric in metrics:
        unit, count = unit_of(metric), invocations[metric]
        amount = amounts[metric]
        yield format_mean(amount, count, unit) if isinstance(count, int) and count else format_quantity(amount, unit)
        yield format_share(amount, work[metric]) if metric in work else ""


def _print_notes(terminal: Console, query: QueryScope) -> None:
    """Print skipped files, unfinished runs and clocks that are wrong."""
    for skipped in query.skipped:
        say(terminal, f"skipped: {skipped.file} {skipped.why}", "yellow")
    if query.unfinished:
        say(
            terminal,
            f"{plural(query.unfinished, 'run')} incomplete: `store add` is still running, or was killed",
            "dim",
        )
    if query.ahead:
        say(
            terminal,
            f"{plural(query.ahead, 'run')} dated after being added: the clock of the recording machine is ahead",
            "yellow",
        )


def _text(value: Text) -> str:
    return value if isinstance(value, str) else "unknown"


def _number(value: Integer) -> str:
    return format_count(value) if isinstance(value, int) else "?"


# ---- trends and comparisons


def print_trends(trends: StoreTrends, out: TextIO) -> None:
    """Print per model: level shifts, the most significant first, then hosts that differ from others."""
    terminal = console(out)
    for index, (trend, title) in enumerate(zip(trends.models, model_headings(trends.models), strict=True)):
        if index:
            say(terminal, "")
        _print_trend(terminal, trend, title, trends)
    _print_notes(terminal, trends.looked)


def _print_trend(terminal: Console, trend: StoreTrend, title: str, trends: StoreTrends) -> None:
    period = "night" if trends.over == "date" else "compiler"
    size = ", ".join(
        (plural(trend.nights, period), plural(trend.hosts, "host"), plural(trend.cpu_models, "processor model"))
    )
    too_few = trend.nights < FEWEST_NIGHTS
    none = f"too few {period}s to detect a change" if too_few else "no significant change"
    result = plural(len(trend.changes), "change") if trend.changes else none
    say(terminal, f"{title}: {result} ({trends.metric}; {size})", "bold")
    if trend.runs_left_out:
        say(terminal, f"{plural(trend.runs_left_out, 'run')} left out: {_NO_DATE_OR_HOST}", "yellow")
    if too_few:
        minimum = f"a level shift needs {FEWEST_NIGHTS} {period}s"
        say(terminal, f"{minimum}; `tracemap store compare` compares two sets of runs", "dim")
    if trend.changes:
        print_table(terminal, "", _HEADINGS, [_change(change, trends.metric) for change in trend.changes], gap=False)
        say(terminal, _CORRECTED, "dim")
    if trend.outliers:
        title = "Hosts that differ from others with the same processor"
        print_table(terminal, title, _HOST_HEADINGS, map(_host, trend.outliers))


_NO_DATE_OR_HOST = "their date, their host, or the cost of ops per invocation is unknown"
_NO_HOST = "their host, or the cost of ops per invocation is unknown"
_CORRECTED = "changes of single ops are corrected for the change of all ops, which the row `all ops` shows"

_HEADINGS: Sequence[Heading] = (
    Heading("since"),
    Heading("change"),
    Heading("op", least=6),
    Heading("name", least=10, leave=40),
    Heading("line", least=10, leave=30),
    Heading("processor", least=10),
    Heading("host", least=6, leave=10),
    number("before", leave=20),
    number("after", leave=20),
    Heading("interval", leave=50),
    number("hosts", leave=60),
    Heading("date range", leave=45),
)
_HOST_HEADINGS: Sequence[Heading] = (
    Heading("host"),
    Heading("processor", least=10),
    Heading("change"),
    Heading("op", least=6),
    Heading("name", least=10, leave=40),
    number("z", leave=50),
    number("hosts", leave=60),
)


def _change(change: StoreChange, metric: str) -> tuple[object, ...]:
    date_range = "" if change.night_low == change.night_high else f"{change.night_low} … {change.night_high}"
    return (
        change.night,
        _percent(change.ratio),
        *_op(change.op),
        _or_all(change.cpu_model),
        _or_all(change.host),
        _cost(change.before, metric),
        _cost(change.after, metric),
        f"{_percent(change.ratio_low)} … {_percent(change.ratio_high)}",
        f"{change.hosts_agree} of {change.hosts}",
        date_range,
    )


def _host(host: StoreHost) -> tuple[object, ...]:
    op, name, _ = _op(host.op)
    return host.host, host.cpu_model, _percent(host.ratio), op, name, f"{host.z:.1f}", host.hosts


def print_comparison(comparison: StoreComparison, out: TextIO) -> None:
    """Print per model: significant differences, the most significant first."""
    terminal = console(out)
    for index, (model, title) in enumerate(zip(comparison.models, model_headings(comparison.models), strict=True)):
        if index:
            say(terminal, "")
        _print_differences(terminal, model, title, comparison.metric)
    ahead = comparison.before.ahead + comparison.after.ahead
    _print_notes(terminal, structs.replace(comparison.after, ahead=ahead))


def _print_differences(terminal: Console, model: ModelDifferences, title: str, metric: str) -> None:
    none = "no significant difference" if model.compared else "nothing can be compared"
    result = plural(len(model.differences), "difference") if model.differences else none
    compared = plural(model.compared, "pair of op and processor", "pairs of op and processor")
    say(terminal, f"{title}: {result} ({metric}; {compared} compared)", "bold")
    if model.runs_left_out:
        say(terminal, f"{plural(model.runs_left_out, 'run')} left out: {_NO_HOST}", "yellow")
    if model.unpaired:
        say(terminal, f"{model.unpaired} not compared: no host has runs on both sides, or it has too few", "yellow")
    rows = (
        (
            _percent(difference.ratio),
            *_op(difference.op),
            _or_all(difference.cpu_model),
            _cost(difference.before, metric),
            _cost(difference.after, metric),
            f"{_percent(difference.ratio_low)} … {_percent(difference.ratio_high)}",
            difference.hosts,
        )
        for difference in model.differences
    )
    if model.differences:
        headings = [heading for heading in _HEADINGS if heading.text not in {"since", "host", "date range"}]
        print_table(terminal, "", headings, rows, gap=False)
        say(terminal, _CORRECTED, "dim")


def _op(op: StoreOpName) -> tuple[str, str, str]:
    return op.op, op.name if isinstance(op.name, str) else "", file_line_if_known(op.file, op.line)


def _or_all(value: Text) -> str:
    return value if isinstance(value, str) else "all"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _cost(value: Integer, metric: str) -> str:
    return format_quantity(value, unit_of(metric)) if isinstance(value, int) else ""
