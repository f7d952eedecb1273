"""`tracemap store`: many runs in one place, and queries over all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.help import HelpContext
from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import show_phases, tell
from tracemap.options.store import (
    StoreAddOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)


class _Store(click.Group):
    """Commands of a store, in workflow order."""

    context_class = HelpContext

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order of their declaration."""
        return list(self.commands)


@click.group("store", cls=_Store)
def command() -> None:
    """Keep runs from many machines and nights in one store, and query what ops cost over all of them.

    \b
    Example:
      tracemap store add run.parquet --store nightly --tag branch=main
      tracemap store query --store nightly --group-by cpu_model,date
    """


@options_command("add", StoreAddOptions)
@click.argument("runs", metavar="RUN...", type=PATH, nargs=-1, required=True)
def add(runs: tuple[Path, ...], options: StoreAddOptions) -> None:
    """Add runs to a store, joined with their bundles. The first run creates the store.

    You can add any file that `tracemap attribute` reads. Files of a store never change, so many machines can add runs
    at once. A run that the store already has is not added again.

    \b
    Example:
      tracemap store add model.tracemap/runs/*.parquet --store nightly
      tracemap store add run.csv --map model.tracemap --store nightly --host ci-7
    """
    from tracemap.session.store_add import show_added, store_add

    with show_phases("store add") as progress:
        added = store_add(runs, None, options, progress)
    show_added(added, options, sys.stdout)


@options_command("list", StoreListOptions)
def list_(options: StoreListOptions) -> None:
    """List the runs of a store, with the data of their headers.

    \b
    Example:
      tracemap store list --store nightly --where 'date>=2026-11-01'
      tracemap store list --store nightly --format csv
    """
    from tracemap.session.store import show_list, store_list

    answer = store_list(options)
    if options.output is None:
        show_list(answer, options, sys.stdout)


@options_command("query", StoreQueryOptions)
def query(options: StoreQueryOptions) -> None:
    """Show what ops cost over the runs of a store, per model and per value of the --group-by columns.

    The command adds up the sums that were stored with each run. --calls adds up all single calls instead, which takes
    longer and gives the same numbers.

    \b
    Example:
      tracemap store query --store nightly
      tracemap store query --store nightly --group-by cpu_model,compiler
      tracemap store query --store nightly --where host=ci-7 --calls --format csv
    """
    from tracemap.session.store import show_costs, store_query

    with show_phases("store query") as progress:
        answer = store_query(options, progress)
    if options.output is None:
        show_costs(answer, options, sys.stdout)
    else:
        tell(f"written: {options.output}")


@options_command("sites", StoreSitesOptions)
def sites(options: StoreSitesOptions) -> None:
    """Show percentiles of the call times of each dispatch site, over the runs of a store.

    Percentiles are exact up to 20 million calls. With more calls, they are accurate to 0.5 %, and the output says so.

    \b
    Example:
      tracemap store sites --store nightly --group-by cpu_model
    """
    from tracemap.session.store import show_sites, store_sites

    with show_phases("store sites") as progress:
        answer = store_sites(options, progress)
    if options.output is None:
        show_sites(answer, options, sys.stdout)


@options_command("trend", StoreTrendOptions)
def trend(options: StoreTrendOptions) -> None:
    """Show which ops became slower or faster, since which night, and on which processors.

    Changes that all ops of a run have in common are removed first. A slow night of a machine is therefore not reported
    as a change of its ops. Only statistically significant changes are listed, corrected for the number of series
    examined. The output also lists hosts that differ from others with the same processor.

    \b
    Example:
      tracemap store trend --store nightly
      tracemap store trend --store nightly --over compiler --html week.html
    """
    from tracemap.session.store import show_trends, store_trend

    with show_phases("store trend") as progress:
        answer = store_trend(options, progress)
    if options.html is not None:
        tell(f"page: {options.html}")
    if options.output is None:
        show_trends(answer, options, sys.stdout)


@options_command("compare", StoreCompareOptions)
def compare(options: StoreCompareOptions) -> None:
    """Show which ops cost more or less in some runs than in others, for example in two nights.

    The output names the processors. Each host is compared with itself.

    \b
    Example:
      tracemap store compare --store nightly \\
        --before date=2026-11-01 --after date=2026-11-02
    """
    from tracemap.session.store import show_comparison, store_compare

    with show_phases("store compare") as progress:
        answer = store_compare(options, progress)
    if options.output is None:
        show_comparison(answer, options, sys.stdout)


_LINES = {
    add: "Add runs to a store, joined with their bundles.",
    list_: "List the runs of a store.",
    query: "Show what ops cost over the runs of a store.",
    sites: "Show percentiles of the call times of each dispatch site.",
    trend: "Show which ops became slower or faster, and since when.",
    compare: "Show which ops cost more in some runs than in others.",
}
for _command, _line in _LINES.items():
    _command.short_help = _line
    command.add_command(_command)
