"""Answers about a store written to a stream, in the format that was asked for; what the others need is not imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar

from tracemap.options.store import (
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)
from tracemap.outputs import show_as

if TYPE_CHECKING:
    from tracemap.store.changed import FleetComparison, FleetTrends
    from tracemap.store.model import FleetCalls, FleetCosts, FleetRuns

_T = TypeVar("_T")
_Shown = tuple[Callable[[_T], str], Callable[[_T, TextIO], object]]
"""What makes a table of CSV of an answer, and what prints it."""


def show_list(found: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""

    def load() -> _Shown[FleetRuns]:
        from tracemap.reports.csv import fleet as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.runs_csv, texts.print_runs

    _show(found, options.format, out, load)


def show_costs(found: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write what ops cost over runs, in the format of the options."""

    def load() -> _Shown[FleetCosts]:
        from tracemap.reports.csv import fleet as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.costs_csv, partial(texts.print_costs, options=options)

    _show(found, options.format, out, load)


def show_sites(found: FleetCalls, options: StoreSitesOptions, out: TextIO) -> None:
    """Write percentiles of calls, in the format of the options."""

    def load() -> _Shown[FleetCalls]:
        from tracemap.reports.csv import fleet as tables
        from tracemap.reports.terminal import fleet as texts

        return tables.sites_csv, partial(texts.print_sites, top=options.top)

    _show(found, options.format, out, load)


def show_trends(found: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write what changed in a fleet, in the format of the options."""

    def load() -> _Shown[FleetTrends]:
        from tracemap.reports.csv import fleet as tables
        from tracemap.reports.terminal import fleet_changes as texts

        return tables.trends_csv, texts.print_trends

    _show(found, options.format, out, load)


def show_comparison(found: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write what differs between two sets of runs, in the format of the options."""

    def load() -> _Shown[FleetComparison]:
        from tracemap.reports.csv import fleet as tables
        from tracemap.reports.terminal import fleet_changes as texts

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
