"""A model's file through pass pipelines, its ops linked to the loops of each stage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TextIO

from tracemap.errors import UsageInvalid
from tracemap.options.lower import LowerOptions
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.owned.home import temporary_folder
from tracemap.session.models import imported_file, read_model
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.graph.lowering import Lowering


def lower(model: str | bytes, options: LowerOptions, progress: Progress = no_progress) -> Lowering:
    """Run pass pipelines over a model (its file, `-`: standard input, or its content), and write what the options name.

    A file of a framework is imported first.

    Raises:
        TracemapError: as `mapping.lowering.pipelines.lower` and `frontends.recognising.import_file` do.
        ModelUnreadable: the file cannot be read.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: there is no pipeline.
    """
    from tracemap.mapping.lowering.pipelines import lower as lower_model

    if not options.pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    check_files(options.output, options.html, force=options.force)
    with temporary_folder() as folder:
        imported = imported_file(model, folder)
    data, name = read_model(model) if imported is None else (imported.data, imported.file_name)
    lowering = lower_model(data, name, options.pipelines, progress)
    if options.html is not None:
        from tracemap.reports.html.document import write_page
        from tracemap.reports.lowering.page import render_lowering_page

        progress("writing the page")
        write_page(render_lowering_page(lowering), options.html, force=options.force)
    if options.output is not None:
        write_shown(partial(show_lowering, lowering, options), options.output)
    return lowering


def show_lowering(lowering: Lowering, options: LowerOptions, out: TextIO) -> None:
    """Write stages, loops and ops to a stream, in the format of the options."""
    from tracemap.reports.json.lowering import shown_lowering
    from tracemap.reports.terminal.lowering import print_lowering

    show_as(options.format, out, partial(print_lowering, lowering), partial(shown_lowering, lowering))
