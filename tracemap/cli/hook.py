"""`tracemap hook`: what to preload into programs that tracemap does not start."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from tracemap.errors import TargetUnwritable, ToolMissing, UsageInvalid


@click.group(name="hook")
def command() -> None:
    """Record every call of a workgroup in a program of your own, on the stock runtime.

    `path` prints the library: preload it, or load it as a plugin of IREE (--executable_plugin=). `env` prints the
    variables that preload it and say what to record. Inside Python, call tracemap.hook.attach(FOLDER) instead.

    \b
    Example:
      tracemap hook path
      mkdir calls
      env $(tracemap hook env -o calls) iree-run-module --module=model.tracemap/module.vmfb
      tracemap stats calls
    """


@command.command(name="path")
def path() -> None:
    """Print the path of the hook's library.

    \b
    Example:
      tracemap hook path
    """
    click.echo(_library())


def _library() -> Path:
    from tracemap.hook import HookUnavailable, library_path

    try:
        return library_path()
    except HookUnavailable as error:
        raise ToolMissing(str(error)) from error


@command.command(name="env")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder for the record files; it must exist. Each process adds files of its own.",
)
@click.option(
    "--filter",
    "pattern",
    default="",
    metavar="GLOB",
    envvar="IREE_HOOK_FILTER_NAME",
    help="Only kernels whose name fits.  [default: all]",
)
@click.option(
    "--skip-ms",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    envvar="IREE_HOOK_SKIP_START_MS",
    help="Pass over each thread's first milliseconds, from its first call.",
)
@click.option(
    "--calls", type=click.IntRange(min=0), default=0, help="Record so many calls in all.  [default: no limit]"
)
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="Record one call in so many.")
@click.option(
    "--counters",
    default="",
    metavar="A,B",
    envvar="IREE_HOOK_PERF_EVENT_TYPES",
    help="Events to count around each call; see tracemap events.",
)
@click.option("--export", is_flag=True, help="Print lines for a shell to source, not words for env.")
def env(output: Path, pattern: str, skip_ms: int, calls: int, every: int, counters: str, export: bool) -> None:
    """Print the variables under which a program is recorded, as words for `env` or, with --export, for a shell.

    The variables of IREE's own hook stand for options that are not given: IREE_HOOK_FILTER_NAME, _SKIP_START_MS and
    _PERF_EVENT_TYPES.

    \b
    Example:
      eval "$(tracemap hook env -o calls --filter '*matmul*' --counters page-faults --export)"
    """
    from tracemap.capture.counters.choosing import events_to_count
    from tracemap.hook import HookSettings, environment
    from tracemap.options.option import split_names

    if not output.is_dir():
        raise TargetUnwritable(f"{output}: is no folder; make it first")
    _library()
    events = tuple(event.setting for event in events_to_count(split_names(counters)))
    settings = HookSettings(filter=pattern, skip_ms=skip_ms, calls=calls, every=every, events=events)
    variables = environment(output, settings, os.environ.get("LD_PRELOAD", ""))
    if export:
        click.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
        return
    for name, value in variables.items():
        if any(mark.isspace() or mark in "*?[" for mark in value):
            raise UsageInvalid(f"{name} is {value!r}, which a shell would take apart; pass --export and use eval")
    click.echo("\n".join(f"{name}={value}" for name, value in variables.items() if value))
