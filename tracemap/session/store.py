"""`store`: queries over many runs."""

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


# ---- show
#
# Write answers of queries to a stream, in the format of the options. Other formats are not imported.


_T = TypeVar("_T")
_Writers = tuple[Callable[[_T], str], Callable[[_T, TextIO], object]]
"""Writers of an answer: its CSV table, and its text."""


def show_list(answer: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""

    def load() -> _Writers[FleetRuns]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.runs_csv, texts.print_runs

    _show(answer, options.format, out, load)


def show_costs(answer: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write the costs of ops over runs, in the format of the options."""

    def load() -> _Writers[FleetCosts]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.costs_csv, partial(texts.print_costs, options=options)

    _show(answer, options.format, out, load)


def show_sites(answer: FleetCalls, options: StoreSitesOptions, out: TextIO) -> None:
    """Write percentiles of calls, in the format of the options."""

    def load() -> _Writers[FleetCalls]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.sites_csv, partial(texts.print_sites, top=options.top)

    _show(answer, options.format, out, load)


def show_trends(answer: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write changes over time, in the format of the options."""

    def load() -> _Writers[FleetTrends]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.trends_csv, texts.print_trends

    _show(answer, options.format, out, load)


def show_comparison(answer: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write differences between two sets of runs, in the format of the options."""

    def load() -> _Writers[FleetComparison]:
        from tracemap.reports import csv_tables as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.comparison_csv, texts.print_comparison

    _show(answer, options.format, out, load)


def _show(answer: _T, form: str, out: TextIO, load: Callable[[], _Writers[_T]]) -> None:
    """Write an answer as JSON, CSV or text; JSON needs no import by `load`."""

    def text(stream: TextIO) -> None:
        table, printed = load()
        if form == "csv":
            stream.write(table(answer))
        else:
            printed(answer, stream)

    show_as(form, out, text, lambda: answer)


# ---- store
#
# Queries over the runs of a store.


_AnswerT = TypeVar("_AnswerT")


def asked(options: AskOptions) -> Headers:
    """Runs that meet the conditions of a query.

    Raises:
        StoreInvalid: there is no store, or it contains a foreign file.
        UsageInvalid: a condition is invalid, or no run meets all conditions.
    """
    from tracemap.store.headers import conditions, read_headers
    from tracemap.store.layout import store_at

    parsed = conditions(options.where)
    headers = read_headers(store_at(options.store), skip_bad=options.skip_bad)
    chosen = headers.chosen(parsed)
    if not chosen.rows:
        conditions_text = " ".join(f"--where {text}" for text in options.where)
        matching = f" matches {conditions_text}" if conditions_text else " can be read"
        raise UsageInvalid(f"none of the {len(headers.rows)} runs in {options.store}{matching}")
    return chosen


def store_query(options: StoreQueryOptions, progress: Progress = no_progress) -> FleetCosts:
    """Costs of ops over the runs of a store.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run meets the conditions or has the metrics, or a column does not exist.
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

        answer = _answer(options, tables, ask, headers)
    if options.output is not None:
        write_shown(partial(show_costs, answer, options), options.output)
    return answer


def store_sites(options: StoreSitesOptions, progress: Progress = no_progress) -> FleetCalls:
    """Percentiles of call times per dispatch site over the runs of a store.

    Raises:
        StoreInvalid, UsageInvalid, ToolMissing: see `store_query`.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.costs import fleet_calls
    from tracemap.store.headers import check_column
    from tracemap.store.layout import CALLS, TARGETS
    from tracemap.store.lineage import Names

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    headers, no_names = asked(options), Names({}, ())
    with _engine(options, headers.listing.place, progress) as engine:

        def ask(whole: Headers) -> FleetCalls:
            return fleet_calls(engine, whole, no_names, options.metric, options.group_by)

        answer = _answer(options, (CALLS, TARGETS), ask, headers)
    if options.output is not None:
        write_shown(partial(show_sites, answer, options), options.output)
    return answer


def store_trend(options: StoreTrendOptions, progress: Progress = no_progress) -> FleetTrends:
    """Ops that became slower or faster over the runs of a store, since which night and on which processors.

    Also lists hosts that differ from others with the same processor.

    Raises:
        StoreInvalid: there is no store, or a file cannot be read.
        UsageInvalid: no run meets the conditions, has the metric, or has the time and machine of its recording.
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

        answer = _answer(options, (OPS, COSTS, SPREADS), ask, headers)
    if options.html is not None:
        from tracemap.reports.fleet_page import write_trends_page

        write_trends_page(answer, options.html, force=options.force)
    if options.output is not None:
        write_shown(partial(show_trends, answer, options), options.output)
    return answer


def store_compare(options: StoreCompareOptions, progress: Progress = no_progress) -> FleetComparison:
    """Ops that cost more or less in some runs of a store than in others, and on which processors.

    Raises:
        StoreInvalid, UsageInvalid: see `store_trend`; also if a run is on both sides.
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
            maps = {*before.maps_of_models, *after.maps_of_models}
            names = read_names(before.listing, [key for key in headers.maps_of_models if key in maps])
            return fleet_comparison(engine, (before, after), names, options.metric, 1 + options.threshold / 100)

        answer = _answer(options, (OPS, COSTS, SPREADS), ask, *sides)
    if options.output is not None:
        write_shown(partial(show_comparison, answer, options), options.output)
    return answer


def _side(headers: Headers, name: str, texts: Sequence[str]) -> Headers:
    """Runs of one side of a comparison.

    Raises:
        UsageInvalid: a condition is invalid, or no run meets all conditions.
    """
    from tracemap.store.headers import conditions

    side = headers.chosen(conditions(texts))
    if not side.rows:
        raise UsageInvalid(f"{name} {' '.join(texts)}: none of the {len(headers.rows)} runs matches")
    return side


def _answer(options: AskOptions, tables: Sequence[str], ask: Callable[..., _AnswerT], *sides: Headers) -> _AnswerT:
    """Answer a query over tables of one or more sets of runs. With `--skip-bad`, repeat it without damaged files.

    Raises:
        StoreInvalid: a file cannot be read and `--skip-bad` is not set, no run is left without it, or the query fails
            although all files can be read.
    """
    from tracemap.store.headers import check_readable, damaged

    try:
        return ask(*sides)
    except StoreInvalid:
        bad_files = [bad for side in sides for bad in damaged(side, tables)]
        if not bad_files:
            raise
    left = [side.without(bad_files) for side in sides]
    if not options.skip_bad:
        check_readable(left[0].listing)
    if not all(side.rows for side in left):
        check_readable(left[0].listing, "no run without damaged files is left; add runs again")
    return ask(*left)


def store_list(options: StoreListOptions) -> FleetRuns:
    """Runs of a store, with the data of their headers.

    Raises:
        StoreInvalid, UsageInvalid: see `store_query`.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.grouping import fleet_runs

    check_files(options.output, force=options.force)
    answer = fleet_runs(asked(options))
    if options.output is not None:
        write_shown(partial(show_list, answer, options), options.output)
    return answer


@contextmanager
def _engine(options: StoreQueryOptions | StoreSitesOptions, place: Place, progress: Progress) -> Iterator[Engine]:
    if options.engine == "duckdb":
        from tracemap.store.engine import duck_engine

        with duck_engine(options.memory, progress, place) as engine:
            yield engine
        return
    from tracemap.store.spark import spark_engine

    if not place.local:
        raise UsageInvalid(
            f"--engine {options.engine}: Spark reads only stores in folders; leave --engine out for {place}"
        )
    with spark_engine(options.engine, options.memory, progress) as on_spark:
        yield on_spark
