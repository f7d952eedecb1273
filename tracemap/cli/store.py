"""`tracemap store`: many runs in one place, and questions about all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracemap.cli.help import HelpContext
from tracemap.cli.options import PATH, options_command
from tracemap.cli.streams import phases_shown, tell
from tracemap.options.store import (
    StoreAddOptions,
    StoreCompareOptions,
    StoreListOptions,
    StoreQueryOptions,
    StoreSitesOptions,
    StoreTrendOptions,
)


class _Store(click.Group):
    """The commands of a store, in the order of the work."""

    context_class = HelpContext

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order in which they were declared."""
        return list(self.commands)


@click.group("store", cls=_Store)
def command() -> None:
    """Keep runs of many machines and nights in one folder, and ask what ops cost over all of them.

    \b
    Example:
      tracemap store add run.parquet --store nightly --tag branch=main
      tracemap store query --store nightly --group-by cpu_model,date
    """


@options_command("add", StoreAddOptions)
@click.argument("runs", metavar="RUN...", type=PATH, nargs=-1, required=True)
def add(runs: tuple[Path, ...], options: StoreAddOptions) -> None:
    """Put runs into a store, each joined with its bundle; the store is made with the first one.

    Any file that tracemap attribute reads can be added. Files are only added, never changed: many machines may do so at
    once, and a run that is there already is not added again.

    \b
    Example:
      tracemap store add model.tracemap/runs/*.parquet --store nightly
      tracemap store add run.csv --map model.tracemap --store nightly --host ci-7
    """
    from tracemap.session.store_add import show_added, store_add

    with phases_shown("store add") as progress:
        added = store_add(runs, None, options, progress)
    show_added(added, options, sys.stdout)


@options_command("list", StoreListOptions)
def list_(options: StoreListOptions) -> None:
    """List the runs of a store, with what their headers tell.

    \b
    Example:
      tracemap store list --store nightly --where 'date>=2026-11-01'
      tracemap store list --store nightly --format csv
    """
    from tracemap.session.store import show_list, store_list

    found = store_list(options)
    if options.output is None:
        show_list(found, options, sys.stdout)


@options_command("query", StoreQueryOptions)
def query(options: StoreQueryOptions) -> None:
    """Say what ops cost over runs of a store: of each model, and of each value of the columns to group by.

    What runs came to when they were added is summed up. With --calls all single calls are added up anew, which takes
    longer and ends in the same numbers.

    \b
    Example:
      tracemap store query --store nightly
      tracemap store query --store nightly --group-by cpu_model,compiler
      tracemap store query --store nightly --where host=ci-7 --calls --format csv
    """
    from tracemap.session.store import show_costs, store_query

    with phases_shown("store query") as progress:
        found = store_query(options, progress)
    if options.output is None:
        show_costs(found, options, sys.stdout)
    else:
        tell(f"written: {options.output}")


@options_command("sites", StoreSitesOptions)
def sites(options: StoreSitesOptions) -> None:
    """Say how long single calls of each site take over runs of a store: percentiles, exact up to 20 million calls.

    With more calls they are known to within 0.5 %, which the answer says.

    \b
    Example:
      tracemap store sites --store nightly --group-by cpu_model
    """
    from tracemap.session.store import show_sites, store_sites

    with phases_shown("store sites") as progress:
        found = store_sites(options, progress)
    if options.output is None:
        show_sites(found, options, sys.stdout)


@options_command("trend", StoreTrendOptions)
def trend(options: StoreTrendOptions) -> None:
    """Say which ops became slower or faster, since which night, on which processors; and which hosts are unlike others.

    What all ops of a run have in common is taken out first: a slow night of a machine is no op's. Changes are named
    that chance does not explain, corrected for all that was looked at.

    \b
    Example:
      tracemap store trend --store nightly
      tracemap store trend --store nightly --over compiler --html week.html
    """
    from tracemap.session.store import show_trends, store_trend

    with phases_shown("store trend") as progress:
        found = store_trend(options, progress)
    if options.html is not None:
        tell(f"page: {options.html}")
    if options.output is None:
        show_trends(found, options, sys.stdout)


@options_command("compare", StoreCompareOptions)
def compare(options: StoreCompareOptions) -> None:
    """Say which ops cost more or less in some runs than in others, on which processors: of two nights, for one.

    Each host is compared with itself.

    \b
    Example:
      tracemap store compare --store nightly \\
        --before date=2026-11-01 --after date=2026-11-02
    """
    from tracemap.session.store import show_comparison, store_compare

    with phases_shown("store compare") as progress:
        found = store_compare(options, progress)
    if options.output is None:
        show_comparison(found, options, sys.stdout)


_LINES = {
    add: "Put runs into a store, each joined with its bundle.",
    list_: "List the runs of a store, with what their headers tell.",
    query: "Say what ops cost over runs of a store.",
    sites: "Say how long single calls of each site take.",
    trend: "Say which ops became slower or faster, and since when.",
    compare: "Say which ops cost more in some runs than in others.",
}
for _each, _line in _LINES.items():
    _each.short_help = _line
    command.add_command(_each)
