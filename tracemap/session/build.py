"""A model's file, or the dumps of a compilation made elsewhere, to a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import UsageInvalid
from tracemap.options.build import BuildOptions
from tracemap.owned.home import temporary_folder
from tracemap.session.models import default_bundle, imported_file, own_folder, read_model
from tracemap.toolchain import Progress, no_progress

if TYPE_CHECKING:
    from tracemap.frontends.imported import Imported
    from tracemap.graph.bundle import Bundle


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
    from tracemap.mapping.build import build as build_request
    from tracemap.mapping.request import BuildRequest

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
    from tracemap.mapping.build import build as build_request
    from tracemap.mapping.request import BuildRequest

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
    from tracemap.mapping.from_dumps import build_from_dumps
    from tracemap.mapping.request import BuildRequest

    if options.from_dumps is None or options.module is None or options.flags:
        raise UsageInvalid("--from-dumps DIR and --module M.vmfb go together, and without flags for the compiler")
    if options.remarks:
        raise UsageInvalid("--remarks: nothing is compiled with --from-dumps; leave one of them out")
    data, name = read_model(model) if model else (b"", "")
    target = options.output or default_bundle(model or str(options.module))
    folder = own_folder(model or str(options.from_dumps / "dump"))
    request = BuildRequest(data, name, target, options, folder)
    return build_from_dumps(request, options.from_dumps, options.module, progress)
