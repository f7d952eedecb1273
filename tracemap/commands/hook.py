"""`tracemap hook`: what to preload into programs that tracemap does not start."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from tracemap.commands.framework import HelpContext, options_command
from tracemap.commands.streams import print_result_line
from tracemap.core.errors import TargetUnwritable, ToolMissing, UsageInvalid
from tracemap.core.files import has_mark
from tracemap.options.measure import HookEnvOptions


class _Group(click.Group):
    context_class = HelpContext


class _Command(click.Command):
    context_class = HelpContext


@click.group(name="hook", cls=_Group)
def command() -> None:
    """Record every workgroup call in your own program, on the stock IREE runtime.

    `path` prints the path of the hook's library. Preload it, or load it as an IREE plugin (--executable_plugin=PATH).
    `env` prints environment variables that preload it and select what to record. In Python, call
    tracemap.hook.attach(FOLDER) instead.

    \b
    Example:
      tracemap hook path
      mkdir calls
      env $(tracemap hook env -o calls) \\
        iree-run-module --module=model.tracemap/module.vmfb
      tracemap stats calls
    """


@command.command(name="path", cls=_Command)
def path() -> None:
    """Print the path of the hook's library.

    \b
    Example:
      tracemap hook path
    """
    print_result_line(str(_library()))


def _library() -> Path:
    from tracemap.hook import HookUnavailable, library_path

    try:
        return library_path()
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error


@options_command("env", HookEnvOptions)
def env(options: HookEnvOptions) -> None:
    """Print environment variables to record a program: words for `env` or, with --export, lines for a shell.

    These environment variables of IREE's own hook set defaults: IREE_HOOK_FILTER_NAME, _SKIP_START_MS and
    _PERF_EVENT_TYPES.

    \b
    Example:
      eval "$(tracemap hook env -o calls --filter '*matmul*' --export)"
    """
    output = options.output
    if output and not os.path.isdir(output):  # noqa: PTH112 - Path.is_dir raises OSError for names that are too long
        raise TargetUnwritable(f"{output}: is not a folder; make it first")
    _print_variables(_cuda_variables(options) if options.device == "cuda" else _variables(options), options)


def _variables(options: HookEnvOptions) -> dict[str, str]:
    from tracemap.hook import debug_info_environment

    if options.seconds:
        raise UsageInvalid("--seconds works with --device cuda only: limit calls with --calls")
    if options.jitdump and not options.debug_info:
        raise UsageInvalid("--jitdump needs --debug-info, a folder that `tracemap debug-info` wrote")
    if options.output is None and not options.debug_info:
        raise UsageInvalid("-o is missing: name a folder for the record files, or pass --debug-info")
    _library()
    debug_info = {}
    if options.debug_info:
        for folder in options.debug_info:
            _check_debug_info(folder)
        debug_info = debug_info_environment(options.debug_info, options.jitdump)
    return {**debug_info, **(_recording_variables(options, options.output) if options.output else {})}


def _check_debug_info(folder: Path) -> None:
    if not has_mark(folder / "debug-info.json"):
        raise UsageInvalid(f"{folder}: has no debug information; write it with `tracemap debug-info -o {folder}`")
    if ":" in str(folder.resolve()):
        raise UsageInvalid(f"{folder}: the variable separates folders by colons; name a path without one")


def _recording_variables(options: HookEnvOptions, output: Path) -> dict[str, str]:
    from tracemap.capture.counters import events_to_count
    from tracemap.hook import HookSettings, environment

    settings = HookSettings(
        filter=options.filter,
        skip_ms=options.skip_ms,
        calls=options.calls,
        every=options.every,
        thread_bytes=options.thread_mb << 20,
        keep=options.keep,
        events=tuple(event.setting for event in events_to_count(options.counters)),
    )
    return environment(output, settings)


def _cuda_variables(options: HookEnvOptions) -> dict[str, str]:
    from tracemap.hook import HookUnavailable
    from tracemap.hook.cuda import CudaSettings, cuda_environment

    if options.output is None:
        raise UsageInvalid("-o is missing: name a folder for the record files")
    given = {
        "--debug-info": options.debug_info,
        "--filter": options.filter,
        "--calls": options.calls,
        "--every": options.every != 1,
        "--counters": options.counters,
    }
    if name := next((name for name, value in given.items() if value), ""):
        raise UsageInvalid(
            f"{name} works on the CPU only: drop it, or limit the recording with --skip-ms and --seconds"
        )
    settings = CudaSettings(
        megabytes=options.thread_mb, keep=options.keep, skip_ms=options.skip_ms, seconds=options.seconds
    )
    try:
        return cuda_environment(options.output, settings)
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error


def _print_variables(variables: dict[str, str], options: HookEnvOptions) -> None:
    if options.export:
        for name, value in variables.items():
            print_result_line(f"export {name}={shlex.quote(value)}")
        return
    for name, value in variables.items():
        if any(mark.isspace() or mark in "*?[" for mark in value):
            raise UsageInvalid(f"{name} is {value!r}, which a shell would split; pass --export and use eval")
    for name, value in variables.items():
        print_result_line(f"{name}={value}")  # also empty values, to override variables of the shell


env.short_help = "Print environment variables to record a program."
command.add_command(env)
