"""`build` and `lower`: a model's file to a bundle, or through pass pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from tracemap.codec import storable
from tracemap.errors import ModelInvalid, ModelUnreadable, UsageInvalid
from tracemap.inputs import STANDARD_INPUT, given_bytes
from tracemap.ir.checks import why_no_model
from tracemap.options.compile import BuildOptions, LowerOptions
from tracemap.outputs import check_files, show_as, write_shown
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.frontends.imported import Imported
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.lowering import Lowering


# ---- models
#
# Files of models: their content, the name of their bundle, the folder of their Python files.


GIVEN: Final = "<string>"
"""What a model without a file is called, as Python calls code that it was given."""


def read_model(model: str | bytes) -> tuple[bytes, str]:
    """The content of a model (its file, `-`: standard input, or the content itself) and the name that it goes by.

    Raises:
        ModelUnreadable: it cannot be read.
        ModelInvalid: it is of another kind of file.
    """
    if isinstance(model, bytes):
        data, name = model, GIVEN
    else:
        data = given_bytes(model, ModelUnreadable)
        name = "<stdin>" if model == STANDARD_INPUT else storable(Path(model).name)
    if why := why_no_model(data, name):
        raise ModelInvalid(f"{name}: {why}")
    return data, name


def imported_file(model: str | bytes, folder: Path) -> Imported | None:
    """The model of a framework's file; None: it is none, and is to be read as it is.

    Args:
        model: as `read_model` takes it.
        folder: where parameters are written; it must stay until they are kept.

    Raises:
        TracemapError: as `frontends.recognising.import_file` does.
    """
    from tracemap.frontends.recognising import import_file

    return import_file(Path(model), folder) if isinstance(model, str) and model != STANDARD_INPUT else None


def own_folder(model: str | bytes) -> tuple[Path, ...]:
    """The folder below which a model's Python files are looked for last; none for a model that lies in none."""
    return () if isinstance(model, bytes) or model == STANDARD_INPUT else (Path(model).parent,)


def default_bundle(model: str | bytes) -> Path:
    """The bundle of a model that was given no other name.

    Raises:
        UsageInvalid: a model without a file has no name for its bundle.
    """
    if isinstance(model, bytes):
        raise UsageInvalid("a model that is no file needs a name for its bundle: pass output")
    if model == STANDARD_INPUT:
        raise UsageInvalid("a model from standard input needs a name for its bundle: pass -o")
    return Path(Path(model).stem + ".tracemap")


# ---- build
#
# A model's file, or the dumps of a compilation made elsewhere, to a bundle.


def build(model: str | bytes, options: BuildOptions, progress: Progress = no_progress) -> Bundle:
    """Write the bundle of a model (its file, `-`: standard input, or its content), by default under the file's name.

    The model is compiled, or the dumps of a compilation made elsewhere are read; these need no model (""). Python files
    of frames are looked for below the roots of the options, then below the model's own folder. A file of a framework
    is imported first.

    Raises:
        TracemapError: as `mapping.build.build`, `mapping.from_dumps.build_from_dumps` and
            `frontends.recognising.import_file` do.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: a model without a file has no name for its bundle, or options do not go together.
    """
    if options.from_dumps is not None or options.module is not None:
        return _build_from_dumps(model, options, progress)
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.build import build as build_request

    with temporary_folder() as folder:
        imported = imported_file(model, folder)
        if imported is not None:
            return _build_imported(imported, options, own_folder(model), progress)
    data, name = read_model(model)
    target = options.output or default_bundle(model)
    return build_request(BuildRequest(data, name, target, options, own_folder(model)), progress)


def build_program(
    program: object,
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    options: BuildOptions,
    progress: Progress = no_progress,
) -> Bundle:
    """Write the bundle of a program of a framework, by default under its name.

    Raises:
        TracemapError: as `frontends.recognising.import_program` and `mapping.build.build` do.
        UsageInvalid: options are of compilations made elsewhere.
    """
    from tracemap.frontends.recognising import import_program

    if options.from_dumps is not None or options.module is not None:
        raise UsageInvalid("--from-dumps and --module are for compilations made elsewhere: leave them out")
    with temporary_folder() as folder:
        return _build_imported(import_program(program, arguments, keywords, folder), options, (), progress)


def _build_imported(
    imported: Imported, options: BuildOptions, own_folder: tuple[Path, ...], progress: Progress
) -> Bundle:
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.build import build as build_request

    request = BuildRequest(
        imported.data,
        imported.file_name,
        options.output or default_bundle(imported.file_name),
        options,
        own_folder,
        text_of=imported.text_of,
        keeping=imported.keeping,
        diagnostics=imported.diagnostics,
    )
    return build_request(request, progress)


def _build_from_dumps(model: str | bytes, options: BuildOptions, progress: Progress) -> Bundle:
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.from_dumps import build_from_dumps

    if options.from_dumps is None or options.module is None or options.flags:
        raise UsageInvalid("--from-dumps DIR and --module M.vmfb go together, and without flags for the compiler")
    if options.remarks:
        raise UsageInvalid("--remarks: nothing is compiled with --from-dumps; leave one of them out")
    data, name = read_model(model) if model else (b"", "")
    target = options.output or default_bundle(model or str(options.module))
    folder = own_folder(model or str(options.from_dumps / "dump"))
    request = BuildRequest(data, name, target, options, folder)
    return build_from_dumps(request, options.from_dumps, options.module, progress)


# ---- lower
#
# A model's file through pass pipelines, its ops linked to the loops of each stage.


def lower(model: str | bytes, options: LowerOptions, progress: Progress = no_progress) -> Lowering:
    """Run pass pipelines over a model (its file, `-`: standard input, or its content), and write what the options name.

    A file of a framework is imported first.

    Raises:
        TracemapError: as `mapping.lowering.pipelines.lower` and `frontends.recognising.import_file` do.
        ModelUnreadable: the file cannot be read.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: there is no pipeline.
    """
    from tracemap.mapping.lowering import lower as lower_model

    if not options.pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    check_files(options.output, options.html, force=options.force)
    with temporary_folder() as folder:
        imported = imported_file(model, folder)
    data, name = read_model(model) if imported is None else (imported.data, imported.file_name)
    lowering = lower_model(data, name, options.pipelines, progress)
    if options.html is not None:
        from tracemap.reports.html.document import write_page
        from tracemap.reports.lowering_page import render_lowering_page

        progress("writing the page")
        write_page(render_lowering_page(lowering), options.html, force=options.force)
    if options.output is not None:
        write_shown(partial(show_lowering, lowering, options), options.output)
    return lowering


def show_lowering(lowering: Lowering, options: LowerOptions, out: TextIO) -> None:
    """Write stages, loops and ops to a stream, in the format of the options."""
    from tracemap.reports.json_documents import shown_lowering
    from tracemap.reports.terminal.lowering import print_lowering

    show_as(options.format, out, partial(print_lowering, lowering), partial(shown_lowering, lowering))
