"""The group of all commands; it imports a command's module only when the command is used."""

from __future__ import annotations

import gc
import importlib
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from tracemap.commands.framework import WIDEST, HelpContext, verbosity_options
from tracemap.commands.streams import (
    flush_output,
    give_back_terminal,
    give_up_output,
    open_streams,
    warn_in_lines,
)
from tracemap.core.errors import SystemLimit, TracemapError, UsageInvalid, limit_reached, speak_of_options
from tracemap.core.process.signals import (
    EndedBySignal,
    die_of_signal,
    end_on_signals,
    hold_signals,
    is_signal_confirmed,
    pending_signal,
    run_exit_handlers,
)
from tracemap.core.sanitize import for_terminal
from tracemap.core.units import suggest_names

# ---- shell limits
#
# Limits of the shell that would end the program without a message: checked at start-up and reported.


ENOUGH_STACK: Final = 8 << 20
"""Usual stack limit in bytes, which compilers and deep models need."""
LEAST_STACK: Final = 512 << 10
"""Minimum stack in bytes; with less, a program may end with a segmentation fault."""
CPU_LIMIT: Final = "the limit of CPU time is reached; raise it: `ulimit -t` shows it in seconds"


def check_stack() -> None:
    """Restart with a larger stack if the limit can be raised; exit if the allowed stack is too small.

    The restart is needed because threads get the stack limit of the program's start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_STACK:
        return
    allowed = ENOUGH_STACK if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_STACK)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_STACK, (allowed, hard))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if allowed < LEAST_STACK:
        sys.stderr.write(
            f"tracemap: error: the stack is limited to {allowed >> 10} kB, and {LEAST_STACK >> 10} kB are needed; "
            "raise the limit: `ulimit -s` shows it [system-limit]\n"
        )
        sys.exit(2)


def expect_cpu_limit() -> None:
    """Lower the soft CPU limit, so that SIGXCPU arrives before the system kills this process or its compiler.

    If soft and hard limit are equal, as `ulimit -t` sets them, the system kills without a signal to handle.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and hard > 1 and (soft == resource.RLIM_INFINITY or soft >= hard):
        resource.setrlimit(resource.RLIMIT_CPU, (hard - 1, hard))


# ---- command line


_NAME = "tracemap"
_LONG_VALUE = re.compile("'([^']{60})[^']{100,}'")
"""A long value in click's message."""

# Name and one line of help per command, in workflow order. They are here so that `tracemap --help` imports no command.
COMMANDS = {
    "profile": "Build TARGET, record it, and show which of its source lines cost the most time.",
    "build": "Compile MODEL into a bundle that traces its ops to dispatches and kernels.",
    "show": "Print the map of a bundle: all of it, or one line, op, dispatch, kernel or scope.",
    "audit": "Show where each op went, and which compiler phase lost its location.",
    "lower": "Run pass pipelines over MODEL and link its ops to the resulting loops.",
    "run": "Run a bundle's functions, and print, write or compare their outputs.",
    "benchmark": "Time a bundle's functions with IREE's own benchmark, without profiling.",
    "record": "Profile a bundle's module and write the measurements as a run.",
    "attribute": "Show what each op costs, from a run and its bundle.",
    "what-if": "Show what the program gains if an op, line or kernel gets faster, or with other workers.",
    "memory": "Show how much memory a program allocates, and which ops hold it at the peak.",
    "numerics": "Check the results of every dispatch: rounding errors, NaN, and which op is wrong.",
    "remarks": "Show the compiler's remarks on the code of each op, the most expensive op first.",
    "diff": "Compare two runs or bundles op by op: changes in cost and fusion.",
    "check": "Fail if a new build is worse than its baseline, for continuous integration.",
    "bisect": "Find the compiler flags that make a build slower or larger.",
    "reduce": "Write the smallest part of a model that still shows a problem.",
    "export": "Write costs in the formats of other tools: pprof, flame graphs, traces and others.",
    "mcp": "Serve bundles and runs to coding agents, over the Model Context Protocol.",
    "debug-info": "Write debug information, so that perf, gdb and valgrind show the model's lines.",
    "bench": "Run each kernel alone: how long it takes, and whether its results are correct.",
    "swap": "Replace kernels with edited ones, and report what changes.",
    "tune": "Search for better tile and vector sizes for kernels, and write a tuning spec.",
    "sweep": "Generate operations in many sizes, types and configurations; verify and time them.",
    "doctor": "Check which features work on this machine, and say how to enable the others.",
    "events": "List events that this machine can count: page faults, cache misses, cycles.",
    "stats": "Print statistics of recorded kernel calls, per thread, as IREE's own hook does.",
    "hook": "Record kernel calls in your own programs, with a library to preload.",
    "report": "Write the annotated page of a bundle and its runs.",
    "lsp": "Show costs in an editor, above the lines of models and Python files.",
    "store": "Keep runs from many machines and nights in one store, and query all of them.",
}


class CommandGroup(click.Group):
    """A group whose commands live in `tracemap.commands.<name>` (`_` for `-`), each as a click command `command`."""

    context_class = HelpContext

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in workflow order instead of alphabetical order."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the command's module, and only this one."""
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"tracemap.commands.{name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one, suggest similar names, which click does only for imported commands."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            message = error.message.rstrip(".") + suggest_names(args[0], COMMANDS)
            raise click.UsageError(message, context) from error

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(context: click.Context, _option: click.Parameter, is_set: bool) -> None:
    if is_set and not context.resilient_parsing:
        from tracemap.commands.doctor import versions

        click.echo(f"{_NAME}, version {versions()}")
        context.exit()


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the versions of tracemap and of IREE's packages, and exit.",
)
def group() -> None:
    """Find out which operation, on which line of your model, costs the time and the cache misses.

    \b
    Example:
      tracemap build model.mlir
      tracemap record model.tracemap -o run.csv
      tracemap attribute run.csv --html page.html
    """


group.params += verbosity_options()


def main() -> None:
    """Run the program. Errors that a user can fix become one sentence and an exit code."""
    # Commands create many small objects and end soon. Frequent garbage collection would take a tenth of their time.
    gc.set_threshold(5_000_000, 50, 100)
    speak_of_options()
    end_on_signals(_end_by)
    open_streams(_end_by_sigpipe)
    try:
        sys.exit(_run())
    except BaseException as error:
        if not pending_signal():
            raise
        _end_by(pending_signal(), error)


def _run() -> int:
    """Run the command; return the exit status of the program."""
    try:
        try:
            status = _call()
            flush_output()
        except click.exceptions.NoArgsIsHelpError as error:
            warn_in_lines(error.format_message())
            return error.exit_code
        except click.ClickException as error:
            raise _usage_error(error) from error
    except TracemapError as error:
        give_up_output()
        if is_signal_confirmed():
            sentence = _with_names_escaped(str(error)) if error.shows_program else for_terminal(str(error))
            _print_message(f"error: {sentence}", _notes_of(error), f" [{error.slug}]")
        return error.exit_code
    return status if isinstance(status, int) else 0


def _call() -> object:
    """Call the command; return its result or exit status."""
    try:
        return group.main(prog_name=_NAME, standalone_mode=False)
    except SystemExit as ended:
        return ended.code
    except Exception as error:
        if limit := limit_reached(error):
            raise SystemLimit(limit) from error
        if isinstance(error, FileNotFoundError):
            try:
                Path.cwd()
            except FileNotFoundError:
                raise UsageInvalid("the current folder was deleted; change to a folder that exists") from error
        raise


def _usage_error(error: click.ClickException) -> UsageInvalid:
    """Convert click's error about options into `UsageInvalid`, which names the command."""
    context = getattr(error, "ctx", None)
    command = _NAME if context is None else context.command_path
    message = " ".join(map(str.strip, error.format_message().rstrip(".").splitlines()))  # lists have one item per line
    message = _LONG_VALUE.sub(r"'\1…'", message)
    return UsageInvalid(f"{command}: {message}{' See' if message.endswith('?') else '; see'} {command} --help")


def _end_by_sigpipe() -> None:
    """End by SIGPIPE without a message, as other programs do when the reader of their output has closed the pipe."""
    from tracemap.core.process.children import clear_all

    hold_signals()
    clear_all()
    give_up_output()
    die_of_signal(signal.SIGPIPE)


def _end_by(number: int, error: BaseException | None = None) -> None:
    """Clean up, and end by the received signal; `error`: the exception that the signal raised, if any."""
    from tracemap.core.process.children import clear_all

    hold_signals()
    if not is_signal_confirmed():
        message, slug = str(EndedBySignal(number)), ""
        if number == signal.SIGXCPU:
            message, slug = f"error: {CPU_LIMIT}", f" [{SystemLimit.slug}]"
        _print_message(message, [*_notes_of(error), *run_exit_handlers()], slug)
    clear_all()
    if error is not None:  # otherwise the signal may have interrupted a write to this stream
        with suppress(OSError, ValueError, TracemapError):
            sys.stdout.flush()
    give_back_terminal()
    if number == signal.SIGXCPU:
        os._exit(SystemLimit.exit_code)
    die_of_signal(number)


def _notes_of(error: BaseException | None) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _with_names_escaped(message: str) -> str:
    """Escape control characters in arguments of the command line, but keep the line breaks of a program's output."""
    for word in sys.argv[1:]:
        for name in (word, Path(word).name):
            if not name.isprintable():
                message = message.replace(name, for_terminal(name))
    return message


def _print_message(sentence: str, notes: Sequence[str], slug: str = "") -> None:
    """Print an error in one line, except for the line breaks of a program's output."""
    warn_in_lines(f"tracemap: {'; '.join([sentence, *map(for_terminal, notes)])}{slug}")
