"""`tracemap build -- iree-compile ARGS…`: runs a command of somebody else's and keeps the trail beside its output.

The command does what it would do without tracemap: the same output, the same messages, the same exit status. What
cannot be traced runs as it is, and standard error says so.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracemap.cli.progress import phases_shown
from tracemap.errors import ModelInvalid, TargetUnwritable, ToolMissing

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle
    from tracemap.mapping.build import BuildRequest
    from tracemap.mapping.compiler.command import CompileCommand


def run_wrapped(words: Sequence[str], request: BuildRequest, bundle: Path | None) -> Bundle | None:
    """Run the command; returns the bundle, or None where there is nothing to trace.

    Args:
        words: the program and its arguments.
        request: the options that are tracemap's own; model, target and compiler are filled in here.
        bundle: where the bundle goes; None: beside the command's output.

    Raises:
        SystemExit: the command fails; with its status.
        TracemapError: the command succeeds, but its trail cannot be read.
    """
    from tracemap.mapping.compiler.command import read_command

    command = read_command(words)
    target, obstacle = _target(command, bundle)
    data = b"" if obstacle else _read(command)
    if obstacle or not data:
        _run_as_it_is(command, b"", obstacle or f"{command.model} cannot be read, or is empty")
        return None
    from_stdin = command.model == "-"
    name = "<stdin>" if from_stdin else command.model
    own_folder = () if from_stdin else (Path(command.model).parent,)
    request = dataclasses.replace(
        request.of_model(data, Path(name).name, target, own_folder),
        name_for_compiler=name,
        compiler=command.compiler,
        force=request.force or bundle is None,
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
    if command.model == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(command.model).read_bytes()
    except OSError:
        return b""  # iree-compile itself says best what is wrong


def _run_as_it_is(command: CompileCommand, data: bytes, why: str) -> None:
    from tracemap.mapping.compiler.command import NO_MODEL

    status = _run(command, data)
    if status != 0:
        sys.exit(status)
    if why != NO_MODEL:  # it only asked for a version or help
        click.echo(f"tracemap: warning: no bundle: {why} [not-traced]", err=True)


def _run(command: CompileCommand, data: bytes) -> int:
    """Run the command with the standard streams that tracemap was given; returns its status as a shell would."""
    sys.stdout.flush()
    taken = data if data and command.model == "-" else None  # standard input can be read only once
    try:
        done = subprocess.run([str(command.program), *command.arguments], check=False, input=taken)
    except OSError as error:
        raise ToolMissing(f"{command.program}: cannot be started: {error.strerror}") from error
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _echo(said: str, name: str) -> None:
    """Pass on what the compiler said; places in the model go by the model's name."""
    if said:
        click.echo(said if not said.startswith("-:") else name + said[1:], err=True)


def _check_folder(output: str) -> None:
    folder = Path(output).parent
    if output != "-" and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise TargetUnwritable(f"{output}: the folder {folder} does not exist or may not be written")


def _hand_over(module: Path, output: str) -> None:
    """Put the module where the command wanted it: whole, or not at all.

    Raises:
        TargetUnwritable: it cannot be written there.
    """
    target = Path(output)
    if output == "-":
        sys.stdout.buffer.write(module.read_bytes())
        sys.stdout.buffer.flush()
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(module.read_bytes())
            return
        shutil.copyfile(module, temporary)
        temporary.replace(target)
    except OSError as error:
        raise TargetUnwritable(f"{output}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
