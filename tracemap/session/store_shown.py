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


def show_list(found: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""
    from tracemap.reports.csv import fleet as tables
    from tracemap.reports.terminal import fleet as texts

    _show(found, options.format, out, tables.runs_csv, texts.print_runs)


def show_costs(found: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write what ops cost over runs, in the format of the options."""
    from tracemap.reports.csv import fleet as tables
    from tracemap.reports.terminal import fleet as texts

    _show(found, options.format, out, tables.costs_csv, partial(texts.print_costs, options=options))


def show_sites(found: FleetCalls, options: StoreSitesOptions, out: TextIO) -> None:
    """Write percentiles of calls, in the format of the options."""
    from tracemap.reports.csv import fleet as tables
    from tracemap.reports.terminal import fleet as texts

    _show(found, options.format, out, tables.sites_csv, partial(texts.print_sites, top=options.top))


def show_trends(found: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write what changed in a fleet, in the format of the options."""
    from tracemap.reports.csv import fleet as tables
    from tracemap.reports.terminal import fleet_changes as texts

    _show(found, options.format, out, tables.trends_csv, texts.print_trends)


def show_comparison(found: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write what differs between two sets of runs, in the format of the options."""
    from tracemap.reports.csv import fleet as tables
    from tracemap.reports.terminal import fleet_changes as texts

    _show(found, options.format, out, tables.comparison_csv, texts.print_comparison)


def _show(
    found: _T, form: str, out: TextIO, table: Callable[[_T], str], printed: Callable[[_T, TextIO], object]
) -> None:
    """Write an answer as JSON, as a table of CSV, or as what is printed."""

    def text(stream: TextIO) -> None:
        if form == "csv":
            stream.write(table(found))
        else:
            printed(found, stream)

    show_as(form, out, text, lambda: found)
