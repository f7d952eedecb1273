"""Answers about a store written to a stream, in the format that was asked for; what the others need is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

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


def show_list(found: FleetRuns, options: StoreListOptions, out: TextIO) -> None:
    """Write the runs of a store, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import runs_csv

            stream.write(runs_csv(found))
        else:
            from tracemap.reports.terminal.fleet import print_runs

            print_runs(found, stream)

    show_as(options.format, out, text, lambda: found)


def show_costs(found: FleetCosts, options: StoreQueryOptions, out: TextIO) -> None:
    """Write what ops cost over runs, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import costs_csv

            stream.write(costs_csv(found))
        else:
            from tracemap.reports.terminal.fleet import print_costs

            print_costs(found, stream, options)

    show_as(options.format, out, text, lambda: found)


def show_trends(found: FleetTrends, options: StoreTrendOptions, out: TextIO) -> None:
    """Write what changed in a fleet, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import trends_csv

            stream.write(trends_csv(found))
        else:
            from tracemap.reports.terminal.fleet_changes import print_trends

            print_trends(found, stream)

    show_as(options.format, out, text, lambda: found)


def show_comparison(found: FleetComparison, options: StoreCompareOptions, out: TextIO) -> None:
    """Write what differs between two sets of runs, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import comparison_csv

            stream.write(comparison_csv(found))
        else:
            from tracemap.reports.terminal.fleet_changes import print_comparison

            print_comparison(found, stream)

    show_as(options.format, out, text, lambda: found)


def show_sites(found: FleetCalls, options: StoreSitesOptions, out: TextIO) -> None:
    """Write percentiles of calls, in the format of the options."""

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv.fleet import sites_csv

            stream.write(sites_csv(found))
        else:
            from tracemap.reports.terminal.fleet import print_sites

            print_sites(found, stream, options.top)

    show_as(options.format, out, text, lambda: found)
