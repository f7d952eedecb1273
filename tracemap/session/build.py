"""`build` and `lower`: compile a model into a bundle, or run pass pipelines over it."""

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
# Model files: their content, the name of their bundle, and the folder of their Python files.


GIVEN: Final = "<string>"
"""Name of a model without a file, like Python's name for code in a string."""


def read_model(model: str | bytes) -> tuple[bytes, str]:
    """Content and display name of a model.

    Args:
        model: the model's file, `-` for standard input, or the content as bytes.

    Raises:
        ModelUnreadable: the file cannot be read.
        ModelInvalid: the file is of another kind.
    """
    if isinstance(model, bytes):
        data, name = model, GIVEN
    else:
        data = given_bytes(model, ModelUnreadable)
        name = "<stdin>" if model == STANDARD_INPUT else storable(Path(model).name)
    if why := why_no_model(data, name):
        raise ModelInvalid(f"{name}: {why}")
    return data, name


def import_framework_file(model: str | bytes, folder: Path) -> Imported | None:
    """Import the file of a framework (ONNX, torch); None: it is an MLIR file, to read with `read_model`.

    Args:
        model: as for `read_model`.
        folder: folder for parameter files, which must exist until the bundle has its copies.

    Raises:
        TracemapError: see `frontends.recognising.import_file`.
    """
    from tracemap.frontends.recognising import import_file

    return import_file(Path(model), folder) if isinstance(model, str) and model != STANDARD_INPUT else None


def own_folder(model: str | bytes) -> tuple[Path, ...]:
    """The model's own folder, the last one to search for its Python files; empty for a model without a file."""
    return () if isinstance(model, bytes) or model == STANDARD_INPUT else (Path(model).parent,)


def default_bundle(model: str | bytes) -> Path:
    """Default bundle path of a model.

    Raises:
        UsageInvalid: the model has no file to name the bundle after.
    """
    if isinstance(model, bytes):
        raise UsageInvalid("the model has no file to name the bundle after: pass output")
    if model == STANDARD_INPUT:
        raise UsageInvalid("a model from standard input has no file to name the bundle after: pass -o")
    return Path(Path(model).stem + ".tracemap")


# ---- build
#
# Build a bundle from a model, or from the dumps of a compilation made elsewhere.


def build(model: str | bytes, options: BuildOptions, progress: Progress = no_progress) -> Bundle:
    """Compile a model, or read the dumps of a compilation made elsewhere, and write the bundle.

    Files of frameworks are imported first. The Python files of frames are searched below the source roots in the
    options, then below the model's own folder.

    Args:
        model: the model's file, `-` for standard input, or its content. "": the dumps contain the model.
        options: options of `tracemap build`. The default output has the name of the model's file.
        progress: receives the phase of the work.

    Raises:
        TracemapError: see `mapping.build.build`, `mapping.from_dumps.build_from_dumps` and
            `frontends.recognising.import_file`.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: the options cannot be combined, or the bundle has no name.
    """
    if options.from_dumps is not None or options.module is not None:
        return _build_from_dumps(model, options, progress)
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.build import build as build_request

    with temporary_folder() as folder:
        imported = import_framework_file(model, folder)
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
    """Import a program of a framework and write its bundle, by default with the program's name.

    Raises:
        TracemapError: see `frontends.recognising.import_program` and `mapping.build.build`.
        UsageInvalid: the options name the dumps of a compilation made elsewhere.
    """
    from tracemap.frontends.recognising import import_program

    if options.from_dumps is not None or options.module is not None:
        raise UsageInvalid("--from-dumps and --module are only for compilations made elsewhere: leave them out")
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
        raise UsageInvalid("--from-dumps DIR needs --module M.vmfb and the reverse, and neither takes compiler flags")
    if options.remarks:
        raise UsageInvalid("--remarks needs a compilation, and --from-dumps compiles nothing; leave one of them out")
    data, name = read_model(model) if model else (b"", "")
    target = options.output or default_bundle(model or str(options.module))
    folder = own_folder(model or str(options.from_dumps / "dump"))
    request = BuildRequest(data, name, target, options, folder)
    return build_from_dumps(request, options.from_dumps, options.module, progress)


# ---- lower
#
# Run pass pipelines over a model, and link its ops to the loops of each stage.


def lower(model: str | bytes, options: LowerOptions, progress: Progress = no_progress) -> Lowering:
    """Run pass pipelines over a model, and write the outputs that the options name.

    Files of frameworks are imported first.

    Args:
        model: the model's file, `-` for standard input, or its content.
        options: options of `tracemap lower`.
        progress: receives the phase of the work.

    Raises:
        TracemapError: see `mapping.lowering.pipelines.lower` and `frontends.recognising.import_file`.
        ModelUnreadable: the file cannot be read.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the options name no pipeline.
    """
    from tracemap.mapping.lowering import lower as lower_model

    if not options.pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    check_files(options.output, options.html, force=options.force)
    with temporary_folder() as folder:
        imported = import_framework_file(model, folder)
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
    """Write stages with their loops and ops to a stream, in the format of the options."""
    from tracemap.reports.json_documents import shown_lowering
    from tracemap.reports.terminal.lowering import print_lowering

    show_as(options.format, out, partial(print_lowering, lowering), partial(shown_lowering, lowering))
