"""`tracemap build -- iree-compile ARGS…`: run a compiler command, and write a bundle next to its output.

The command does the same as without tracemap: same output, same messages, same exit status. If it cannot be traced, it
runs unchanged, and a warning says why.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.cli.streams import is_quiet, show_phases, warn, warn_in_lines
from tracemap.diagnostics import Diagnostic
from tracemap.errors import ModelInvalid, ModelUnreadable, TargetUnwritable
from tracemap.inputs import given_bytes
from tracemap.options.compile import BuildOptions
from tracemap.outputs import replaced
from tracemap.owned.children import end, start
from tracemap.session.build import own_folder

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.compiler.command import CompileCommand


def run_wrapped(options: BuildOptions) -> Bundle | None:
    """Run the command in the options' flags; return the bundle, or None if the command cannot be traced.

    The default bundle is next to the command's output.

    Raises:
        SystemExit: the command fails; has its exit status.
        TracemapError: the command succeeds, but its bundle cannot be built.
    """
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.compiler.command import read_command

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
    from tracemap.mapping.build import build

    _check_folder(command.output)
    try:
        with show_phases("build") as progress:
            bundle = build(request, progress, lambda text: _echo(text, request.name_for_compiler))
    except ModelInvalid as error:
        status = _run(command, data)
        if status != 0:
            sys.exit(status)
        raise ModelInvalid(f"the command succeeded, but the build for the bundle failed: {error}") from error
    _copy_module(bundle.module_path, command.output)
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
        return given_bytes(command.model, ModelUnreadable)
    except ModelUnreadable:
        return b""  # iree-compile's own message is the best one


def _run_untraced(command: CompileCommand, data: bytes, reason: str) -> None:
    from tracemap.mapping.compiler.command import NO_MODEL

    status = _run(command, data)
    if status != 0:
        sys.exit(status)
    if reason != NO_MODEL:  # such a command asks only for a version or help
        warn([Diagnostic("not-traced", f"no bundle is written: {reason}")])


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


def _check_folder(output: str) -> None:
    folder = Path(output).parent
    if output != "-" and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise TargetUnwritable(f"{output}: the folder {folder} does not exist or is not writable; choose another path")


def _copy_module(module: Path, output: str) -> None:
    """Copy the module to the command's output, atomically.

    Raises:
        TargetUnwritable: the output cannot be written.
    """
    with replaced(Path(output)) as temporary:
        shutil.copyfile(module, temporary)
