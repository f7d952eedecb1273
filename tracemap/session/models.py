"""A model to its bundle, or through pass pipelines to the loops that they make."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.errors import ModelUnreadable, UsageInvalid
from tracemap.options.models import BuildOptions, LowerOptions
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.lowering import Lowering

STANDARD_INPUT: Final = "-"


def read_model(model: str) -> tuple[bytes, str]:
    """The content of a model's file (`-`: standard input) and the name that it goes by.

    Raises:
        ModelUnreadable: it cannot be read.
    """
    if model == STANDARD_INPUT:
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        return Path(model).read_bytes(), Path(model).name
    except OSError as error:
        raise ModelUnreadable(f"{model}: cannot be read: {error.strerror}") from error


def own_folder(model: str) -> tuple[Path, ...]:
    """The folder below which a model's Python files are looked for last; none for standard input."""
    return () if model == STANDARD_INPUT else (Path(model).parent,)


def default_bundle(model: str) -> Path:
    """The bundle of a model that was given no other name.

    Raises:
        UsageInvalid: a model from standard input has no name for its bundle.
    """
    if model == STANDARD_INPUT:
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")


def build(model: str, options: BuildOptions, progress: Progress = no_progress) -> Bundle:
    """Write the bundle of a model's file (`-`: standard input), by default under the model's name.

    The model is compiled, or the dumps of a compilation made elsewhere are read; these need no model (""). Python files
    of frames are looked for below the roots of the options, then below the model's own folder.

    Raises:
        TracemapError: as `mapping.build.build` and `mapping.from_dumps.build_from_dumps` do.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: a model from standard input has no name for its bundle, or options do not go together.
    """
    if options.from_dumps is not None or options.module is not None:
        return _build_from_dumps(model, options, progress)
    from tracemap.mapping.build import build as build_request
    from tracemap.mapping.request import BuildRequest

    data, name = read_model(model)
    target = options.output or default_bundle(model)
    return build_request(BuildRequest(data, name, target, options, own_folder(model)), progress)


def _build_from_dumps(model: str, options: BuildOptions, progress: Progress) -> Bundle:
    from tracemap.mapping.from_dumps import build_from_dumps
    from tracemap.mapping.request import BuildRequest

    if options.from_dumps is None or options.module is None or options.flags:
        raise UsageInvalid("--from-dumps DIR and --module M.vmfb go together, and without flags for the compiler")
    data, name = read_model(model) if model else (b"", "")
    target = options.output or default_bundle(model or str(options.module))
    folder = own_folder(model or str(options.from_dumps / "dump"))
    request = BuildRequest(data, name, target, options, folder)
    return build_from_dumps(request, options.from_dumps, options.module, progress)


def lower(model: str, options: LowerOptions, progress: Progress = no_progress) -> Lowering:
    """Run pass pipelines over a model's file (`-`: standard input), and write what the options name.

    Raises:
        TracemapError: as `mapping.lowering.pipelines.lower` does.
        ModelUnreadable: the file cannot be read.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: there is no pipeline.
    """
    from tracemap.mapping.lowering.pipelines import lower as lower_model

    if not options.pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    check_files(options.output, options.html, force=options.force)
    data, name = read_model(model)
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
