"""`store`: questions about many runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.options.store import (
    AskOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.store.engine import Engine
    from tracemap.store.folder import Place
    from tracemap.store.headers import Headers
    from tracemap.store.model import FleetCalls, FleetComparison, FleetCosts, FleetRuns, FleetTrends


# ---- store shown
#
# Answers about a store written to a stream, in the format that was asked for; what the others need is not imported.


_T = TypeVar("_T")
_Shown = tuple[Callable[[_T], str], Callable[[_T, TextIO], object]]
"""What makes a table of CSV of an answer, and what prints it."""


def show_list(found: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""

    def load() -> _Shown[FleetRuns]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.runs_csv, texts.print_runs

    _show(found, options.format, out, load)


def show_costs(found: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write what ops cost over runs, in the format of the options."""

    def load() -> _Shown[FleetCosts]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.costs_csv, partial(texts.print_costs, options=options)

    _show(found, options.format, out, load)


def show_sites(found: FleetCalls, options: StoreSitesOptions, out: TextIO) -> None:
    """Write percentiles of calls, in the format of the options."""

    def load() -> _Shown[FleetCalls]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.sites_csv, partial(texts.print_sites, top=options.top)

    _show(found, options.format, out, load)


def show_trends(found: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write what changed in a fleet, in the format of the options."""

    def load() -> _Shown[FleetTrends]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.trends_csv, texts.print_trends

    _show(found, options.format, out, load)


def show_comparison(found: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write what differs between two sets of runs, in the format of the options."""

    def load() -> _Shown[FleetComparison]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.comparison_csv, texts.print_comparison

    _show(found, options.format, out, load)


def _show(found: _T, form: str, out: TextIO, load: Callable[[], _Shown[_T]]) -> None:
    """Write an answer as JSON, which needs nothing of what is loaded; as a table of CSV; or as what is printed."""

    def text(stream: TextIO) -> None:
        table, printed = load()
        if form == "csv":
            stream.write(table(found))
        else:
            printed(found, stream)

    show_as(form, out, text, lambda: found)


# ---- store
#
# Questions about the runs of a store.


_AnswerT = TypeVar("_AnswerT")


def asked(options: AskOptions) -> Headers:
    """The runs that a question is about.

    Raises:
        StoreInvalid: there is no store, or a file that is none of its tables.
        UsageInvalid: a condition is none, or no run is as it says.
    """
    from tracemap.store.headers import conditions, read_headers
    from tracemap.store.layout import store_at

    wanted = conditions(options.where)
    headers = read_headers(store_at(options.store), skip_bad=options.skip_bad)
    chosen = headers.chosen(wanted)
    if not chosen.rows:
        named = " ".join(f"--where {text}" for text in options.where)
        raise UsageInvalid(f"no run of {len(headers.rows)} in {options.store} is as asked for {named}".rstrip())
    return chosen


def store_query(options: StoreQueryOptions, progress: Progress = no_progress) -> FleetCosts:
    """What ops cost over the runs of a store.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run is as asked for, or has a metric; there is no such column.
        ToolMissing: Spark is not installed.
    """
    from tracemap.store.costs import Question, fleet_costs
    from tracemap.store.headers import check_column
    from tracemap.store.layout import ASIDE, CALLS, COSTS, OPS, TARGETS
    from tracemap.store.lineage import read_names

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    question = Question(options.group_by, options.metric, options.calls)
    headers = asked(options)
    tables = (OPS, CALLS, TARGETS, ASIDE, COSTS) if options.calls else (OPS, COSTS)
    with _engine(options, headers.listing.place, progress) as engine:

        def ask(whole: Headers) -> FleetCosts:
            return fleet_costs(engine, whole, read_names(whole.listing, whole.maps_of_models), question)

        found = _answer(options, tables, ask, headers)
    if options.output is not None:
        write_shown(partial(show_costs, found, options), options.output)
    return found


def store_sites(options: StoreSitesOptions, progress: Progress = no_progress) -> FleetCalls:
    """How long single calls of sites take over the runs of a store.

    Raises:
        StoreInvalid, UsageInvalid, ToolMissing: as `store_query` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.costs import fleet_calls
    from tracemap.store.headers import check_column
    from tracemap.store.layout import CALLS, TARGETS
    from tracemap.store.lineage import Names

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    headers, nobody = asked(options), Names({}, ())
    with _engine(options, headers.listing.place, progress) as engine:

        def ask(whole: Headers) -> FleetCalls:
            return fleet_calls(engine, whole, nobody, options.metric, options.group_by)

        found = _answer(options, (CALLS, TARGETS), ask, headers)
    if options.output is not None:
        write_shown(partial(show_sites, found, options), options.output)
    return found


def store_trend(options: StoreTrendOptions, progress: Progress = no_progress) -> FleetTrends:
    """What became slower or faster over the runs of a store, since when, on which processors; hosts unlike others.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run is as asked for, has the metric, or tells when and where it was recorded.
        TargetExists, TargetUnwritable: an output cannot be written.
    """
    from tracemap.store.asking import fleet_trends
    from tracemap.store.engine import duck_engine
    from tracemap.store.layout import COSTS, OPS, SPREADS
    from tracemap.store.lineage import read_names

    check_files(options.output, options.html, force=options.force)
    headers = asked(options)
    progress("looking for changes")
    with duck_engine(options.memory, progress, headers.listing.place) as engine:

        def ask(whole: Headers) -> FleetTrends:
            names = read_names(whole.listing, whole.maps_of_models)
            return fleet_trends(engine, whole, names, options.metric, options.over, 1 + options.threshold / 100)

        found = _answer(options, (OPS, COSTS, SPREADS), ask, headers)
    if options.html is not None:
        from tracemap.reports.fleet_page import write_trends_page

        write_trends_page(found, options.html, force=options.force)
    if options.output is not None:
        write_shown(partial(show_trends, found, options), options.output)
    return found


def store_compare(options: StoreCompareOptions, progress: Progress = no_progress) -> FleetComparison:
    """Which ops cost more or less in some runs of a store than in others, on which processors.

    Raises:
        StoreInvalid, UsageInvalid: as `store_trend`; or a run is of both sides.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.asking import fleet_comparison
    from tracemap.store.engine import duck_engine
    from tracemap.store.layout import COSTS, OPS, SPREADS
    from tracemap.store.lineage import read_names

    check_files(options.output, force=options.force)
    headers = asked(options)
    sides = _side(headers, "--before", options.before), _side(headers, "--after", options.after)
    progress("comparing")
    with duck_engine(options.memory, progress, headers.listing.place) as engine:

        def ask(before: Headers, after: Headers) -> FleetComparison:
            of_either = {*before.maps_of_models, *after.maps_of_models}
            names = read_names(before.listing, [each for each in headers.maps_of_models if each in of_either])
            return fleet_comparison(engine, (before, after), names, options.metric, 1 + options.threshold / 100)

        found = _answer(options, (OPS, COSTS, SPREADS), ask, *sides)
    if options.output is not None:
        write_shown(partial(show_comparison, found, options), options.output)
    return found


def _side(headers: Headers, name: str, texts: Sequence[str]) -> Headers:
    """The runs of one side of a comparison.

    Raises:
        UsageInvalid: a condition is none, or no run is as it says.
    """
    from tracemap.store.headers import conditions

    side = headers.chosen(conditions(texts))
    if not side.rows:
        raise UsageInvalid(f"{name} {' '.join(texts)}: no run of {len(headers.rows)} is as asked for")
    return side


def _answer(options: AskOptions, tables: Sequence[str], ask: Callable[..., _AnswerT], *sides: Headers) -> _AnswerT:
    """The answer to a question that reads some tables of one set of runs or more; asked again without runs whose files
    cannot be read whole.

    Raises:
        StoreInvalid: a file cannot be read, and is not to be left out, or no run is left without it; or no file is to
            blame for what has failed.
    """
    from tracemap.store.headers import check_readable, damaged

    try:
        return ask(*sides)
    except StoreInvalid:
        found = [bad for side in sides for bad in damaged(side, tables)]
        if not found:
            raise
    left = [side.without(found) for side in sides]
    if not options.skip_bad:
        check_readable(left[0].listing)
    if not all(side.rows for side in left):
        check_readable(left[0].listing, "no run without such a file is left to answer of; add runs again")
    return ask(*left)


def store_list(options: StoreListOptions) -> FleetRuns:
    """The runs of a store.

    Raises:
        StoreInvalid, UsageInvalid: as `store_query` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.grouping import fleet_runs

    check_files(options.output, force=options.force)
    found = fleet_runs(asked(options))
    if options.output is not None:
        write_shown(partial(show_list, found, options), options.output)
    return found


@contextmanager
def _engine(options: StoreQueryOptions | StoreSitesOptions, place: Place, progress: Progress) -> Iterator[Engine]:
    if options.engine == "duckdb":
        from tracemap.store.engine import duck_engine

        with duck_engine(options.memory, progress, place) as engine:
            yield engine
        return
    from tracemap.store.spark import spark_engine

    if not place.local:
        raise UsageInvalid(f"--engine {options.engine}: Spark reads stores in folders only; leave it out for {place}")
    with spark_engine(options.engine, options.memory, progress) as on_spark:
        yield on_spark
