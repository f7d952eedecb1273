"""What changed in a fleet as text: since when, on which processors, by how much; and hosts that are unlike others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from msgspec import structs

from tracemap.measurements.columns import unit_of
from tracemap.reports.labels import file_line_if_known
from tracemap.reports.terminal.fleet import say_looked
from tracemap.reports.terminal.tables import Heading, console, number, print_table, say
from tracemap.store.changed import (
    FleetChange,
    FleetComparison,
    FleetHost,
    FleetName,
    FleetTrend,
    FleetTrends,
    ModelDifferences,
    titles,
)
from tracemap.store.changepoints import FEWEST_NIGHTS
from tracemap.units import Integer, Text, format_quantity, plural

if TYPE_CHECKING:
    from rich.console import Console


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
