"""Runs joined onto their bundle: which op costs what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.errors import UsageInvalid
from tracemap.options.option import declared_options
from tracemap.options.results import AttributeOptions
from tracemap.outputs import show_as, write_shown
from tracemap.session.overwrite_guard import check_spared, check_targets
from tracemap.session.runs import Attributed, excerpts, joined_open
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle


def attribute(
    runs: Sequence[Path], bundle: Bundle | None, options: AttributeOptions, progress: Progress = no_progress
) -> Attributed:
    """Join runs (tables or `.ireeprof`) onto their bundle, and write what the options name.

    Without a bundle it is that of the options; without that, it is found from the first run.

    Raises:
        TracemapError: as `session.runs.joined_open`, `excerpts` and `graph.bundle.load` do.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: a metric or column is wanted that the table does not have.
    """
    from tracemap.graph.bundle import load

    _check_format(options)
    targets = options.output, options.html
    if bundle is None and options.map is not None:
        bundle = load(options.map)
    check_targets(*targets, force=options.force, runs=runs, bundles=[] if bundle is None else [bundle.path])
    with joined_open(runs, bundle, options, progress, options.window) as (made, opened):
        check_spared(*targets, bundles=[made.bundle.path])  # one that was named is looked at before any work
        if options.format == "text":
            from tracemap.reports.views.chosen import check_choice

            check_choice(made.costed, made.attribution, options)
        if options.html is not None:
            from tracemap.reports.page.render import write_bundle_page

            progress("writing the page")
            shown = partial(excerpts, made.bundle.graph, opened, options.memory)
            write_bundle_page(made.bundle, made.costed, options.html, shown, force=options.force, totals=options.totals)
    if options.output is not None:
        write_shown(partial(show_attribution, made, options), options.output)
    return made


_OF_TEXT: Final = ("by", "metrics", "top", "sort", "columns", "filters")
"""Options of the text's table: JSON and CSV have everything, always the same."""


def _check_format(options: AttributeOptions) -> None:
    """Refuse what has no effect on JSON and CSV, rather than print something else than was asked for."""
    if options.format == "text":
        return
    for declared in declared_options(AttributeOptions):
        if declared.name in _OF_TEXT and getattr(options, declared.name) != declared.default:
            raise UsageInvalid(
                f"{declared.names[0]} is of the text's table; --format {options.format} has all ops, metrics and "
                f"columns: leave {declared.names[0]} out"
            )


def show_attribution(made: Attributed, options: AttributeOptions, out: TextIO) -> None:
    """Write the costs of ops to a stream, in the format of the options; what the others need is not imported."""
    graph, result = made.bundle.graph, made.attribution

    def text(stream: TextIO) -> None:
        if options.format == "csv":
            from tracemap.reports.csv_tables import attribution_csv

            stream.write(attribution_csv(graph, result))
        else:
            from tracemap.reports.terminal.attribution import print_costs

            print_costs(made.costed, result, stream, options)

    def value() -> object:
        from tracemap.reports.json_documents import shown_attribution

        return shown_attribution(result)

    show_as(options.format, out, text, value)
