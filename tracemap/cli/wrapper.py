"""`tracemap build -- iree-compile ARGS…`: runs a command of somebody else's and keeps the trail beside its output.

The command does what it would do without tracemap: the same output, the same messages, the same exit status. What
cannot be traced runs as it is, and standard error says so.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.cli.streams import is_quiet, phases_shown, warn, warn_in_lines
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
    """Run the command that the options' flags are; returns the bundle, or None where there is nothing to trace.

    The bundle goes beside the command's output where the options name no other place.

    Raises:
        SystemExit: the command fails; with its status.
        TracemapError: the command succeeds, but its trail cannot be read.
    """
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.compiler.command import read_command

    command = read_command(options.flags)
    target, obstacle = _target(command, options.output)
    data = b"" if obstacle else _read(command)
    if obstacle or not data:
        _run_as_it_is(command, b"", obstacle or f"{command.model} cannot be read, or is empty")
        return None
    name = "<stdin>" if command.model == "-" else command.model
    request = BuildRequest(
        model=data,
        file_name=Path(name).name,
        target=target,
        # A build system runs its commands again and again: what it made beside its output it may replace.
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
        with phases_shown("build") as progress:
            made = build(request, progress, lambda said: _echo(said, request.name_for_compiler))
    except ModelInvalid as error:
        status = _run(command, data)
        if status != 0:
            sys.exit(status)
        raise ModelInvalid(f"the command succeeded, but without tracing: {error}") from error
    _hand_over(made.module_path, command.output)
    return made


def _target(command: CompileCommand, bundle: Path | None) -> tuple[Path, str]:
    """Where the bundle goes, and why the command cannot be traced ("": it can)."""
    if command.obstacle or bundle is not None:
        return bundle or Path(), command.obstacle
    output = Path(command.output)
    if command.output == "-" or (output.exists() and not output.is_file()):
        return Path(), "its output has no name for a bundle beside it (pass -o BUNDLE before the --)"
    return output.with_suffix(".tracemap"), ""


def _read(command: CompileCommand) -> bytes:
    try:
        return given_bytes(command.model, ModelUnreadable)
    except ModelUnreadable:
        return b""  # iree-compile itself says best what is wrong


def _run_as_it_is(command: CompileCommand, data: bytes, why: str) -> None:
    from tracemap.mapping.compiler.command import NO_MODEL

    status = _run(command, data)
    if status != 0:
        sys.exit(status)
    if why != NO_MODEL:  # it only asked for a version or help
        warn([Diagnostic("not-traced", f"no bundle: {why}")])


def _run(command: CompileCommand, data: bytes) -> int:
    """Run the command with the standard streams that tracemap was given; returns its status as a shell would."""
    sys.stdout.flush()
    taken = data if data and command.model == "-" else None  # standard input can be read only once
    child = start(
        [command.program, *command.arguments],
        apart=False,
        stdin=None if taken is None else subprocess.PIPE,
        stdout=None,
        stderr=None,
    )
    try:
        child.communicate(taken)
    finally:
        end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _echo(said: str, name: str) -> None:
    """Pass on what the compiler said; places in the model go by the model's name."""
    if said and not is_quiet():
        warn_in_lines(said if not said.startswith("-:") else name + said[1:])


def _check_folder(output: str) -> None:
    folder = Path(output).parent
    if output != "-" and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise TargetUnwritable(f"{output}: the folder {folder} does not exist or may not be written")


def _hand_over(module: Path, output: str) -> None:
    """Put the module where the command wanted it: whole, or not at all.

    Raises:
        TargetUnwritable: it cannot be written there.
    """
    with replaced(Path(output)) as temporary:
        shutil.copyfile(module, temporary)
