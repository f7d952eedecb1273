"""Text of `store`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.attribution.model import NO_WORK
from tracemap.measurements.columns import unit_of
from tracemap.reports.escaping import file_line_if_known
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.store.changepoints import FEWEST_NIGHTS
from tracemap.store.model import (
    FleetAdded,
    FleetCalls,
    FleetChange,
    FleetComparison,
    FleetCosts,
    FleetGroup,
    FleetHost,
    FleetMetric,
    FleetName,
    FleetOp,
    FleetRuns,
    FleetTrend,
    FleetTrends,
    Looked,
    ModelDifferences,
    titles,
)
from tracemap.units import (
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

if TYPE_CHECKING:
    from rich.console import Console

    from tracemap.options.store import StoreQueryOptions


# ---- fleet
#
# Many runs as text: which there are, and what ops cost over them.


def print_added(added: FleetAdded, out: TextIO) -> None:
    """A line a run."""
    to = console(out)
    for each in added.runs:
        say(to, f"{each.file}: {'added' if each.added else 'was there already'}, as {each.run} of {each.model}")


def print_runs(found: FleetRuns, out: TextIO) -> None:
    """One row a run."""
    to = console(out)
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
        for run in found.runs
    )
    print_table(to, "", headings, rows)
    say_looked(to, found.looked)


def print_costs(found: FleetCosts, out: TextIO, options: StoreQueryOptions) -> None:
    """A table for each group: ops, the dearest first, then what has no op."""
    to = console(out)
    for count, group in enumerate(found.groups):
        if count:
            say(to, "")
        _print_group(to, group, options)
    say_looked(to, found.looked)


def print_sites(found: FleetCalls, out: TextIO, top: int) -> None:
    """A table for each group and map: sites, those that take most time first."""
    to = console(out)
    unit = unit_of(found.metric)
    for count, group in enumerate(found.groups):
        if count:
            say(to, "")
        named = "".join(f", {column} {_text(value)}" for column, value in group.group.items())
        about = f"{found.metric} of a call" + (f", within {found.error_percent:g} %" if found.error_percent else "")
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
        title = f"{group.model}{named}, map {group.map[:12]}: {plural(group.runs, 'run')}, {about}"
        print_table(to, title, _OF_SITES, rows, gap=False)
        if len(shown) < len(group.sites):
            say(to, f"… {plural(len(group.sites) - len(shown), 'more site')}", "dim")
    say_looked(to, found.looked)


_OF_SITES: Sequence[Heading] = (
    Heading("site"),
    Heading("kernel", least=12),
    number("calls"),
    number("p10", leave=20),
    number("median"),
    number("p90"),
    number("p99", leave=10),
    number("max", leave=15),
)


_NOT_OF_ONE: Final = (
    "sums: runs are of several functions (--group-by function) or sizes of inputs (--group-by inputs), "
    "or do not tell how many invocations"
)


def _print_group(to: Console, group: FleetGroup, options: StoreQueryOptions) -> None:
    named = "".join(f", {column} {_text(value)}" for column, value in group.group.items())
    metrics = [metric.name for metric in group.metrics]
    of_all = {metric.name: _work(group, metric) for metric in group.metrics}
    told = all(isinstance(metric.invocations, int) for metric in group.metrics)
    calls = {metric.name: metric.invocations if told and not options.totals else UNKNOWN for metric in group.metrics}
    per = "sums" if options.totals else "per invocation" if told else _NOT_OF_ONE
    about = f"{group.model}{named}: {plural(group.runs, 'run')}, {per}"
    headings = [
        Heading("op"),
        Heading("name", least=12),
        Heading("line", least=10, leave=20),
        Heading("scope", least=10, leave=60),
        number("runs", leave=70),
        *(each for metric in metrics for each in (number(metric), number("share", leave=10))),
    ]
    shown = group.ops[: options.top] if options.top else group.ops
    rows = [_op_row(op, metrics, calls, of_all) for op in shown]
    rows += [*_rest(group.ops[len(shown) :], metrics, calls, of_all)]
    for row in group.residual:
        whole = {} if row.reason in NO_WORK else of_all
        rows.append(("", row.reason, "", "", "", *_cells(row.amounts, metrics, calls, whole)))
    print_table(to, about, headings, rows, gap=False)


def _work(group: FleetGroup, metric: FleetMetric) -> int:
    """What shares are of, as `attribute` has it: all that was measured but what is no work."""
    return metric.measured - sum(row.amounts[metric.name] for row in group.residual if row.reason in NO_WORK)


def _op_row(
    op: FleetOp, metrics: Sequence[str], calls: Mapping[str, Integer], of_all: Mapping[str, int]
) -> tuple[object, ...]:
    place = file_line_if_known(op.file, op.line)
    return op.op, _text(op.name), place, _text(op.scope), op.runs, *_cells(op.amounts, metrics, calls, of_all)


def _rest(
    ops: Sequence[FleetOp], metrics: Sequence[str], calls: Mapping[str, Integer], of_all: Mapping[str, int]
) -> Iterator[tuple[object, ...]]:
    if ops:
        amounts = {metric: sum(op.amounts[metric] for op in ops) for metric in metrics}
        yield "", f"… {plural(len(ops), 'more op')}", "", "", "", *_cells(amounts, metrics, calls, of_all)


def _cells(
    amounts: Mapping[str, int], metrics: Sequence[str], calls: Mapping[str, Integer], of_all: Mapping[str, int]
) -> Iterator[str]:
    for metric in metrics:
        unit, count = unit_of(metric), calls[metric]
        amount = amounts[metric]
        yield format_mean(amount, count, unit) if isinstance(count, int) and count else format_quantity(amount, unit)
        yield format_share(amount, of_all[metric]) if metric in of_all else ""


def say_looked(to: Console, looked: Looked) -> None:
    """What was left out, and what is to be known of the runs."""
    for skipped in looked.skipped:
        say(to, f"left out: {skipped.file} {skipped.why}", "yellow")
    if looked.unfinished:
        say(
            to,
            f"{plural(looked.unfinished, 'run')} not there whole yet: being added, or whoever added was killed",
            "dim",
        )
    if looked.ahead:
        say(to, f"{plural(looked.ahead, 'run')} recorded by a clock that is ahead of that of who added them", "yellow")


def _text(value: Text) -> str:
    return value if isinstance(value, str) else "unknown"


def _number(value: Integer) -> str:
    return format_count(value) if isinstance(value, int) else "?"


# ---- fleet changes
#
# What changed in a fleet as text: since when, on which processors, by how much; and hosts that are unlike others.


def print_trends(found: FleetTrends, out: TextIO) -> None:
    """For each model its changes, the least likely by chance first, then hosts that are unlike others."""
    to = console(out)
    for count, (trend, title) in enumerate(zip(found.models, titles(found.models), strict=True)):
        if count:
            say(to, "")
        _print_trend(to, trend, title, found)
    say_looked(to, found.looked)


def _print_trend(to: Console, trend: FleetTrend, title: str, found: FleetTrends) -> None:
    of = "night" if found.over == "date" else "compiler"
    size = ", ".join(
        (plural(trend.nights, of), plural(trend.hosts, "host"), plural(trend.cpu_models, "processor model"))
    )
    few = trend.nights < FEWEST_NIGHTS
    nothing = "no change can be told" if few else "nothing changed beyond chance"
    what = plural(len(trend.changes), "change") if trend.changes else nothing
    say(to, f"{title}: {what} ({found.metric}; {size})", "bold")
    if trend.untold:
        say(to, f"{plural(trend.untold, 'run')} left out: {_UNTOLD}", "yellow")
    if few:
        needed = f"a step needs {FEWEST_NIGHTS} {of}s"
        say(to, f"{needed}; tracemap store compare sets some of them beside others", "dim")
    if trend.changes:
        print_table(to, "", _HEADINGS, [_change(each, found.metric) for each in trend.changes], gap=False)
        say(to, _OWN, "dim")
    if trend.outliers:
        print_table(to, "hosts unlike others of their processor", _OF_HOSTS, map(_host, trend.outliers))


_UNTOLD = "they do not tell when or where they were recorded, or what ops cost in an invocation"
_UNPLACED = "they do not tell where they were recorded, or what ops cost in an invocation"
_OWN = "changes and costs of ops are without what all ops of a run have in common: that is `all ops`"

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
    Heading("or between", leave=45),
)
_OF_HOSTS: Sequence[Heading] = (
    Heading("host"),
    Heading("processor", least=10),
    Heading("change"),
    Heading("op", least=6),
    Heading("name", least=10, leave=40),
    number("z", leave=50),
    number("hosts", leave=60),
)


def _change(change: FleetChange, metric: str) -> tuple[object, ...]:
    between = "" if change.night_low == change.night_high else f"{change.night_low} … {change.night_high}"
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
        between,
    )


def _host(found: FleetHost) -> tuple[object, ...]:
    op, name, _ = _op(found.op)
    return found.host, found.cpu_model, _percent(found.ratio), op, name, f"{found.z:.1f}", found.hosts


def print_comparison(found: FleetComparison, out: TextIO) -> None:
    """For each model what differs, the least likely by chance first."""
    to = console(out)
    for count, (each, title) in enumerate(zip(found.models, titles(found.models), strict=True)):
        if count:
            say(to, "")
        _print_differences(to, each, title, found.metric)
    say_looked(to, structs.replace(found.after, ahead=found.before.ahead + found.after.ahead))


def _print_differences(to: Console, found: ModelDifferences, title: str, metric: str) -> None:
    nothing = "no difference beyond chance" if found.compared else "nothing can be compared"
    what = plural(len(found.differences), "difference") if found.differences else nothing
    compared = plural(found.compared, "op and processor", "ops and processors")
    say(to, f"{title}: {what} ({metric}; {compared} compared)", "bold")
    if found.untold:
        say(to, f"{plural(found.untold, 'run')} left out: {_UNPLACED}", "yellow")
    if found.lonely:
        say(to, f"{found.lonely} not compared: no host is on both sides, or there are too few runs of it", "yellow")
    rows = (
        (
            _percent(each.ratio),
            *_op(each.op),
            _or_all(each.cpu_model),
            _cost(each.before, metric),
            _cost(each.after, metric),
            f"{_percent(each.ratio_low)} … {_percent(each.ratio_high)}",
            each.hosts,
        )
        for each in found.differences
    )
    if found.differences:
        without = [heading for heading in _HEADINGS if heading.text not in {"since", "host", "or between"}]
        print_table(to, "", without, rows, gap=False)
        say(to, _OWN, "dim")


def _op(op: FleetName) -> tuple[str, str, str]:
    return op.op, op.name if isinstance(op.name, str) else "", file_line_if_known(op.file, op.line)


def _or_all(value: Text) -> str:
    return value if isinstance(value, str) else "all"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _cost(value: Integer, metric: str) -> str:
    return format_quantity(value, unit_of(metric)) if isinstance(value, int) else ""
