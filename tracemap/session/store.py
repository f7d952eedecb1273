"""Questions about the runs of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tracemap.errors import StoreInvalid, UsageInvalid
from tracemap.options.store import (
    AskOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)
from tracemap.outputs import check_files, write_shown
from tracemap.session.store_shown import show_comparison, show_costs, show_list, show_sites, show_trends
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.store.changed import FleetComparison, FleetTrends
    from tracemap.store.engine import Engine
    from tracemap.store.headers import Headers
    from tracemap.store.model import FleetCalls, FleetCosts, FleetRuns

_T = TypeVar("_T")


def asked(options: AskOptions) -> Headers:
    """The runs that a question is about.

    Raises:
        StoreInvalid: there is no store, or a file that is none of its tables.
        UsageInvalid: a condition is none, or no run is as it says.
    """
    from tracemap.store.headers import read_headers
    from tracemap.store.layout import Store
    from tracemap.store.selection import conditions

    wanted = conditions(options.where)
    headers = read_headers(Store(options.store), skip_bad=options.skip_bad)
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
    from tracemap.store.layout import ASIDE, CALLS, COSTS, TARGETS
    from tracemap.store.lineage import read_names
    from tracemap.store.selection import check_column

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    question = Question(options.group_by, options.metric, options.calls)
    headers = asked(options)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    tables = (CALLS, TARGETS, ASIDE, COSTS) if options.calls else (COSTS,)
    with _engine(options.engine, options.memory, progress) as engine:
        found = _answer(headers, tables, options, lambda whole: fleet_costs(engine, whole, names, question))
    if options.output is not None:
        write_shown(partial(show_costs, found, options), options.output)
    return found


def store_sites(options: StoreSitesOptions, progress: Progress = no_progress) -> FleetCalls:
    """How long single calls of sites take over the runs of a store.

    Raises:
        StoreInvalid, UsageInvalid, ToolMissing: as `store_query` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.layout import CALLS, TARGETS
    from tracemap.store.lineage import Names
    from tracemap.store.percentiles import fleet_calls
    from tracemap.store.selection import check_column

    check_files(options.output, force=options.force)
    for column in options.group_by:
        check_column(column)
    headers, nobody = asked(options), Names({}, ())
    with _engine(options.engine, options.memory, progress) as engine:
        found = _answer(
            headers,
            (CALLS, TARGETS),
            options,
            lambda whole: fleet_calls(engine, whole, nobody, options.metric, options.group_by),
        )
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
    from tracemap.store.lineage import read_names

    check_files(options.output, options.html, force=options.force)
    headers = asked(options)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    progress("looking for changes")
    with duck_engine(options.memory, progress) as engine:
        found = fleet_trends(engine, headers, names, options.metric, options.over, 1 + options.threshold / 100)
    if options.html is not None:
        from tracemap.reports.fleet.render import write_trends_page

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
    from tracemap.store.lineage import read_names
    from tracemap.store.selection import conditions

    check_files(options.output, force=options.force)
    headers = asked(options)
    sides = []
    for name, texts in (("--before", options.before), ("--after", options.after)):
        side = headers.chosen(conditions(texts))
        if not side.rows:
            raise UsageInvalid(f"{name} {' '.join(texts)}: no run of {len(headers.rows)} is as asked for")
        sides.append(side)
    names = read_names(headers.listing, [row["map"] for row in headers.rows])
    progress("comparing")
    with duck_engine(options.memory, progress) as engine:
        both = sides[0], sides[1]
        found = fleet_comparison(engine, both, names, options.metric, 1 + options.threshold / 100)
    if options.output is not None:
        write_shown(partial(show_comparison, found, options), options.output)
    return found


def _answer(headers: Headers, tables: Sequence[str], options: AskOptions, ask: Callable[[Headers], _T]) -> _T:
    """The answer to a question that reads some tables; asked again without runs whose files cannot be read whole.

    Raises:
        StoreInvalid: a file cannot be read, and is not to be left out; or no file is to blame for what has failed.
    """
    from tracemap.store.headers import check_readable, damaged

    try:
        return ask(headers)
    except StoreInvalid:
        found = damaged(headers, tables)
        if not found:
            raise
    left = headers.without(found)
    if not options.skip_bad:
        check_readable(left.listing)
    return ask(left)


def store_list(options: StoreListOptions) -> FleetRuns:
    """The runs of a store.

    Raises:
        StoreInvalid, UsageInvalid: as `store_query` does.
        TargetExists, TargetUnwritable: the output cannot be written.
    """
    from tracemap.store.listing import fleet_runs

    check_files(options.output, force=options.force)
    found = fleet_runs(asked(options))
    if options.output is not None:
        write_shown(partial(show_list, found, options), options.output)
    return found


@contextmanager
def _engine(name: str, memory_mb: int, progress: Progress) -> Iterator[Engine]:
    if name == "duckdb":
        from tracemap.store.engine import duck_engine

        with duck_engine(memory_mb, progress) as engine:
            yield engine
        return
    from tracemap.store.spark import spark_engine

    with spark_engine(name, memory_mb, progress) as on_spark:
        yield on_spark
