"""`tracemap build`: a model's file to a bundle; also around a command line of iree-compile."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from tracemap.commands.framework import NAME, options_command
from tracemap.commands.streams import (
    is_quiet,
    print_diagnostics,
    print_message,
    print_next,
    print_result_line,
    show_in_format,
    show_phases,
    warn_in_lines,
)
from tracemap.core.codec import escape_surrogates
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import ModelInvalid, ModelUnreadable, TargetUnwritable, UsageInvalid
from tracemap.core.files import (
    STANDARD_INPUT,
    FileFormat,
    atomic_file,
    check_files,
    format_of_file,
    names_file,
    read_user_input,
    similar_name,
    write_output_of,
)
from tracemap.core.process.children import end, start
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.ir.text_checks import format_fault
from tracemap.options.compile import BuildOptions, LowerOptions

if TYPE_CHECKING:
    from tracemap.frontends.imported import ImportedModel
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.compiler.command import CompileCommand
    from tracemap.map.bundle import Bundle
    from tracemap.map.lowering import Lowering


# ---- models
#
# Model files: their content, the name of their bundle, and the folder of their Python files.


STRING_MODEL_NAME: Final = "<string>"
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
        data, name = model, STRING_MODEL_NAME
    else:
        if fault := _path_fault(Path(model)):
            raise ModelUnreadable(f"{model}: {fault}")
        data = read_user_input(model, ModelUnreadable)
        name = "<stdin>" if model == STANDARD_INPUT else escape_surrogates(Path(model).name)
    if why := format_fault(data, name):
        raise ModelInvalid(f"{name}: {why}")
    return data, name


_MODEL_SUFFIXES: Final = frozenset({".mlir", ".mlirbc", ".onnx", ".pt2"})
_SAVED_MODEL: Final = "saved_model.pb"


def _path_fault(path: Path) -> str:
    """Why a path cannot be a model, and what to do; "" if it can be read."""
    kind = format_of_file(path)
    if kind is FileFormat.BUNDLE:
        return f"is a bundle, not a model, so it is built already; record it: tracemap record {path}"
    if kind is FileFormat.FOLDER:
        advice = "pass a file (.mlir, .mlirbc, .onnx, .pt2)"
        if names_file(path / _SAVED_MODEL):
            advice = f"import it first: iree-import-tf {path} -o MODEL.mlir (pip install iree-tools-tf)"
        return f"is a folder, not a model; {advice}"
    if kind is None and str(path) != STANDARD_INPUT and path.parent.is_dir() and not os.path.lexists(path):
        models = [other.name for other in path.parent.iterdir() if other.suffix.lower() in _MODEL_SUFFIXES]
        similar = similar_name(path, models)
        return f"there is no such file; did you mean {similar}?" if similar else ""
    return ""


def import_framework_file(model: str | bytes, folder: Path) -> ImportedModel | None:
    """Import the file of a framework (ONNX, torch); None: it is an MLIR file, to read with `read_model`.

    Args:
        model: as for `read_model`.
        folder: folder for parameter files, which must exist until the bundle has its copies.

    Raises:
        TracemapError: see `frontends.detect.import_file`.
    """
    from tracemap.frontends.detect import import_file

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
        TracemapError: see `map.build.build.build`, `map.build.from_dumps.build_from_dumps` and
            `frontends.detect.import_file`.
        ModelUnreadable: the file cannot be read.
        UsageInvalid: the options cannot be combined, or the bundle has no name.
    """
    if options.to == "native" or any((options.pipelines, options.from_native, options.model_file, options.ir)):
        return _build_native(model, options, progress)
    if options.from_dumps is not None or options.module is not None:
        if options.timing:
            raise UsageInvalid(
                "--timing measures the compiler, but --from-dumps compiles nothing: leave out one of them"
            )
        return _build_from_dumps(model, options, progress)
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.build import build as build_request

    with temporary_folder() as folder:
        imported = import_framework_file(model, folder)
        if imported is not None:
            return build_imported(imported, options, own_folder(model), progress)
    data, name = read_model(model)
    target = options.output or default_bundle(model)
    request = BuildRequest(data, name, target, options, own_folder(model), may_restore=not options.no_cache)
    return build_request(request, progress)


def build_program(
    program: object,
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    options: BuildOptions,
    progress: Progress = no_progress,
) -> Bundle:
    """Import a program of a framework and write its bundle, by default with the program's name.

    Raises:
        TracemapError: see `frontends.detect.import_program` and `map.build.build.build`.
        UsageInvalid: the options name the dumps of a compilation made elsewhere.
    """
    from tracemap.frontends.detect import import_program

    if options.from_dumps is not None or options.module is not None:
        raise UsageInvalid("--from-dumps and --module are only for compilations made elsewhere: leave them out")
    with temporary_folder() as folder:
        return build_imported(import_program(program, arguments, keywords, folder), options, (), progress)


def build_imported(
    imported: ImportedModel, options: BuildOptions, own_folder: tuple[Path, ...], progress: Progress
) -> Bundle:
    """Write the bundle of an imported model, by default with the model's name.

    Raises:
        TracemapError: see `map.build.build.build`.
    """
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.build import build as build_request

    request = BuildRequest(
        imported.data,
        imported.file_name,
        options.output or default_bundle(imported.file_name),
        options,
        own_folder,
        text_of=imported.text_of,
        keeping=imported.keeping,
        diagnostics=imported.diagnostics,
        may_restore=not options.no_cache,
    )
    try:
        return build_request(request, progress)
    except ModelInvalid as error:
        raise ModelInvalid(imported.explain(str(error))) from error


def _build_native(model: str | bytes, options: BuildOptions, progress: Progress) -> Bundle:
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.native.build import build_from_native, build_native

    _check_native_options(options)
    if options.model_file is not None:
        if model or options.from_native is None:
            raise UsageInvalid("--model names the model of --from-native: pass the model once, and no other way")
        model = str(options.model_file)
    if not model:
        raise UsageInvalid("--from-native needs the model that the code was compiled from: pass MODEL, or --model")
    data, name = read_model(model)
    request = BuildRequest(data, name, options.output or default_bundle(model), options, own_folder(model))
    if options.from_native is not None:
        return build_from_native(request, options.from_native, progress)
    return build_native(request, progress)


def _check_native_options(options: BuildOptions) -> None:
    """Reject options of the other ways to a bundle.

    Raises:
        UsageInvalid: they cannot be combined.
    """
    if options.from_native is None:
        if options.to != "native" or not options.pipelines:
            raise UsageInvalid("--pipeline needs --to native and the reverse; IREE has pipelines of its own")
        if options.ir:
            raise UsageInvalid("--ir is a stage of a library that was compiled elsewhere: pass it with --from-native")
    elif options.pipelines or options.flags or options.to == "native":
        raise UsageInvalid("--from-native compiles nothing: leave out --to, --pipeline and the flags after --")
    others = {
        "--from-dumps": options.from_dumps is not None,
        "--module": options.module is not None,
        "--remarks": options.remarks,
        "--timing": options.timing,
        "--parameters": bool(options.parameters),
        "--device": options.device != "local",
    }
    for flag, is_set in others.items():
        if is_set:
            raise UsageInvalid(f"{flag} belongs to a compilation by IREE: leave it out for native code")


def _build_from_dumps(model: str | bytes, options: BuildOptions, progress: Progress) -> Bundle:
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.from_dumps import build_from_dumps

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
        TracemapError: see `map.build.lowering_stages.lower` and `frontends.detect.import_file`.
        ModelUnreadable: the file cannot be read.
        TargetExists, TargetUnwritable: an output cannot be written.
        UsageInvalid: the options name no pipeline.
    """
    from tracemap.map.build.lowering_stages import lower as lower_model

    if not options.pipelines:
        raise UsageInvalid("name at least one pass pipeline, such as 'builtin.module(cse)'")
    check_files(options.output, options.html, force=options.force)
    with temporary_folder() as folder:
        imported = import_framework_file(model, folder)
    data, name = read_model(model) if imported is None else (imported.data, imported.file_name)
    lowering = lower_model(data, name, options.pipelines, progress)
    if options.html is not None:
        from tracemap.reports.html import write_page
        from tracemap.reports.lowering_page import render_lowering_page

        progress("writing the page")
        write_page(render_lowering_page(lowering), options.html, force=options.force)
    if options.output is not None:
        write_output_of(partial(show_lowering, lowering, options), options.output)
    return lowering


def show_lowering(lowering: Lowering, options: LowerOptions, out: TextIO) -> None:
    """Write stages with their loops and ops to a stream, in the format of the options."""
    from tracemap.reports.terminal.bundles import print_lowering

    def value() -> object:
        from tracemap.reports.json_documents import shown_lowering

        return shown_lowering(lowering)

    show_in_format(options.format, out, partial(print_lowering, lowering), value)


# ---- wrapper
#
# `tracemap build -- iree-compile ARGS…`: run a compiler command, and write a bundle next to its output.
#
# The command does the same as without tracemap: same output, same messages, same exit status. If it cannot be traced,
# it runs unchanged, and a warning says why.


def run_wrapped(options: BuildOptions) -> Bundle | None:
    """Run the command in the options' flags; return the bundle, or None if the command cannot be traced.

    The default bundle is next to the command's output.

    Raises:
        SystemExit: the command fails; has its exit status.
        TracemapError: the command succeeds, but its bundle cannot be built.
    """
    from tracemap.map.build.build import BuildRequest
    from tracemap.map.build.compiler.command import read_command

    command = read_command(options.flags)
    target, obstacle = _target(command, options.output)
    data = b"" if obstacle else _read(command)
    if obstacle or not data:
        _run_untraced(command, b"", obstacle or f"{command.model} cannot be read, or is empty")
        return None
    name = "<stdin>" if command.model == "-" else command.model
    request = BuildRequest(
        model=data,
        file_name=Path(name).name,
        target=target,
        # Build systems repeat their commands, so the default bundle is overwritten.
        options=dataclasses.replace(options, force=options.force or options.output is None),
        own_folder=own_folder(command.model),
        compiler=command.compiler,
        name_for_compiler=name,
    )
    return _trace(command, request, data)


def _trace(command: CompileCommand, request: BuildRequest, data: bytes) -> Bundle:
    from tracemap.map.build.build import build

    folder = Path(command.output).parent
    if command.output != "-" and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise TargetUnwritable(
            f"{command.output}: the folder {folder} does not exist or is not writable; choose another path"
        )
    try:
        with show_phases("build") as progress:
            bundle = build(request, progress, lambda text: _echo(text, request.name_for_compiler))
    except ModelInvalid as error:
        status = _run(command, data)
        if status != 0:
            sys.exit(status)
        raise ModelInvalid(f"the command succeeded, but the build for the bundle failed: {error}") from error
    with atomic_file(Path(command.output)) as temporary:
        shutil.copyfile(bundle.module_path, temporary)
    return bundle


def _target(command: CompileCommand, bundle: Path | None) -> tuple[Path, str]:
    """Path of the bundle, and the reason why the command cannot be traced ("": it can)."""
    if command.obstacle or bundle is not None:
        return bundle or Path(), command.obstacle
    output = Path(command.output)
    if command.output == "-" or (output.exists() and not output.is_file()):
        return Path(), "its output has no name to derive the bundle's from (pass -o BUNDLE before the --)"
    return output.with_suffix(".tracemap"), ""


def _read(command: CompileCommand) -> bytes:
    try:
        return read_user_input(command.model, ModelUnreadable)
    except ModelUnreadable:
        return b""  # iree-compile's own message is the best one


def _run_untraced(command: CompileCommand, data: bytes, reason: str) -> None:
    from tracemap.map.build.compiler.command import NO_MODEL

    status = _run(command, data)
    if status != 0:
        sys.exit(status)
    if reason != NO_MODEL:  # such a command asks only for a version or help
        print_diagnostics([Diagnostic("not-traced", f"no bundle is written: {reason}")])


def _run(command: CompileCommand, data: bytes) -> int:
    """Run the command with tracemap's own standard streams; return its exit status as a shell does."""
    sys.stdout.flush()
    stdin_data = data if data and command.model == "-" else None  # tracemap has already read standard input
    child = start(
        [command.program, *command.arguments],
        apart=False,
        stdin=None if stdin_data is None else subprocess.PIPE,
        stdout=None,
        stderr=None,
    )
    try:
        child.communicate(stdin_data)
    finally:
        end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _echo(text: str, name: str) -> None:
    """Print the compiler's messages, with the model's name instead of `-` for standard input."""
    if text and not is_quiet():
        warn_in_lines(text if not text.startswith("-:") else name + text[1:])


# ---- command line


@options_command("build", BuildOptions)
@click.argument("model", required=False, type=NAME)
@click.pass_context
def command(context: click.Context, model: str | None, options: BuildOptions) -> None:
    """Compile MODEL into a bundle that traces its ops to dispatches and kernels.

    MODEL is MLIR text or bytecode in any dialect that iree-compile accepts; `-` reads it from standard input. Models of
    ONNX (MODEL.onnx) and programs saved by torch.export.save (MODEL.pt2) are imported first. Flags for iree-compile go
    after `--`.

    In a build system, put `tracemap build --` before the iree-compile command. The command does the same as before, and
    tracemap writes the bundle next to its output.

    --from-dumps compiles nothing and reads the IR dumps of an earlier compilation. That compilation must use
    --mlir-print-debuginfo and --dump-compilation-phases-to=DIR. Ops are then identified by their source
    locations; a warning says how many ops share a location or have none.

    --to native compiles with mlir-opt, mlir-translate and clang instead of IREE; flags for clang go after `--`.
    --from-native reads code that these tools, or others, have compiled.

    \b
    Example:
      tracemap build model.mlir -o model.tracemap -- --iree-opt-level=O2
      tracemap build -- iree-compile model.mlir \\
        --iree-hal-target-device=local -o model.vmfb
      tracemap build --from-dumps dumps --module model.vmfb model.mlir
      tracemap build model.mlir --to native --pipeline 'builtin.module(…)'
      tracemap build model.mlir --from-native libmodel.so --ir loops.mlir
    """
    if model or any((options.from_dumps, options.module, options.from_native, options.model_file)):
        with show_phases("build") as progress:
            bundle = build(model or "", options, progress)
        _report(bundle)
    elif options.flags:
        if context.get_parameter_source("device") is not click.core.ParameterSource.DEFAULT:
            raise UsageInvalid(
                "--device has no effect on the command after `--`, which has its own target; leave it out"
            )
        wrapped = run_wrapped(options)
        if wrapped is not None:
            _report(wrapped, quiet=True)
    else:
        raise UsageInvalid("name the MODEL to compile, or put an iree-compile command after a leading `--`")


_TOP: Final = 5
"""Rows of each table of the cost of building."""


def _print_cost(bundle: Bundle) -> None:
    """Print the cost of building, on standard error like the summary."""
    from tracemap.map.build_cost import build_cost
    from tracemap.reports.terminal.build_cost import print_build_cost

    print_build_cost(build_cost(bundle), bundle.graph, sys.stderr, top=_TOP)


def _report(bundle: Bundle, *, quiet: bool = False) -> None:
    """Print a summary of the bundle; `quiet`: not on standard output, which belongs to the wrapped command."""
    from tracemap.core.units import plural
    from tracemap.map.build.build import COMPILER_WARNED

    graph = bundle.graph
    traced = sum(bool(site.members) for site in graph.sites)
    dispatches, kernels = plural(len(graph.sites), "dispatch"), plural(len(graph.kernels), "kernel")
    print_message(f"{plural(len(graph.ops), 'op')}, {dispatches} ({traced} traced to ops), {kernels}")
    # The wrapped command has already printed the compiler's warnings.
    print_diagnostics(item for item in graph.diagnostics if not quiet or item.slug != COMPILER_WARNED)
    if bundle.has_remarks:
        print_diagnostics(bundle.remarks().diagnostics)
    if bundle.timing() is not None and not is_quiet():
        _print_cost(bundle)
    (print_message if quiet else print_result_line)(str(bundle.path))
    print_next("record", bundle.path)
