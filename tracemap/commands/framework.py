"""Click commands made from the records of options, their help, and the options that all commands have."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tracemap.commands.streams import be_brief, be_quiet, be_verbose, is_brief
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.options.option import FLAGS_AFTER_DASHES, AnyOptions, DeclaredOption, Options, declared_options

# ---- help
#
# Layout of help texts: up to 100 columns, without line breaks at hyphens.


WIDEST: Final = 100
"""Maximum number of columns, even if the terminal is wider."""
_HYPHEN: Final = "\ue000"
"""Placeholder for hyphens during wrapping, so that options and file names are not broken there."""


class _Formatter(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, _without_breaks(args), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(_without_breaks(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(_without_breaks(term), _without_breaks(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


def _without_breaks(text: str) -> str:
    return text.replace("-", _HYPHEN)


class HelpContext(click.Context):
    """Click context with this layout of help texts."""

    formatter_class = _Formatter


# ---- verbosity


def verbosity_options() -> list[click.Option]:
    """Options for the verbosity of standard error."""

    def quiet(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            be_quiet()

    def verbose(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            be_verbose()

    declarations = (
        ("-q", "--quiet", quiet, "Print only warnings and errors on standard error."),
        ("-v", "--verbose", verbose, "Print how long each phase takes and which programs are started."),
    )
    return [
        click.Option([short, long], is_flag=True, expose_value=False, callback=callback, help=text)
        for short, long, callback, text in declarations
    ]


def _brief_option() -> click.Option:
    """Option of all commands with JSON: its brief form."""

    def brief(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            be_brief()

    text = "Print JSON of at most 4 KB: key figures and next commands."
    return click.Option(["--brief"], is_flag=True, expose_value=False, callback=brief, help=text)


# ---- options
#
# Click commands derived from options records: the fields become options, and the command receives the record.
#
# Defaults stay in the records. Click gets only the defaults that its help shows.


PATH: click.Path = click.Path(path_type=Path)


class _Folder(click.Path):
    """An existing folder. Click's own type also accepts pipes and devices."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        path = super().convert(value, param, ctx)
        if not os.path.isdir(path):  # noqa: PTH112 - the path may be of any type
            self.fail(f"{value} is not a folder", param, ctx)
        return path


class _Name(click.types.StringParamType):
    """A text or a comma-separated list. Empty values are rejected: most often, a shell variable is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        text = super().convert(value, param, ctx)
        if not text.strip(", "):
            self.fail("the value is empty; pass a value, or leave the option out", param, ctx)
        return text


NAME: click.ParamType[str] = _Name()
_KINDS_OF_PATH = {
    "any": PATH,
    "file": click.Path(exists=True, dir_okay=False, path_type=Path),
    "folder": _Folder(exists=True, file_okay=False, path_type=Path),
    "address": click.Path(),
}


def options_command(
    name: str, kind: type[AnyOptions], *, takes_script: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Turn a function into a command. The function receives its arguments, and `options`, a record of this kind.

    `takes_script`: all words after a Python script are the script's own.
    """
    flags_option = next((declared for declared in declared_options(kind) if FLAGS_AFTER_DASHES in declared.names), None)

    def decorate(function: Callable[..., None]) -> click.Command:
        command = click.command(name, cls=_OptionsCommand)(function)
        assert isinstance(command, _OptionsCommand)
        command.kind, command.flags_option, command.takes_script = kind, flags_option, takes_script
        command.params += [_click_option(option) for option in declared_options(kind) if option is not flags_option]
        if _has_json(kind):
            command.params.append(_brief_option())
        command.params += verbosity_options()
        return command

    return decorate


def _has_json(kind: type[Options]) -> bool:
    """Whether a command has the format JSON."""
    return any(declared.name == "format" and "json" in declared.choices for declared in declared_options(kind))


SCRIPT: Final = re.compile(r"(?P<file>.+\.py)(?::(?P<function>\w+))?", re.DOTALL)
"""A Python script, and maybe one of its functions."""


def _place_of_script(words: Sequence[str]) -> int | None:
    """Index of the first word that names a Python script."""
    return next((index for index, word in enumerate(words) if SCRIPT.fullmatch(word)), None)


_FLAGS_OF_IREE: Final = {
    "flags": re.compile(r"--?(?:iree|mlir|llvm|x86)-"),
    "runtime_flags": re.compile(r"--(?:task|device|benchmark)_"),
}
"""Start of a flag of IREE's programs, which the user may have written before `--`, by the option that takes it."""


def _with_flags_at_end(words: Sequence[str], flag: re.Pattern[str], flags: Sequence[str]) -> str:
    """The command to type, with IREE's flags and their values after `--`; `flags`: those that are there already."""
    own, misplaced = list[str](), list[str]()
    for before, word in pairwise(["", *words]):
        is_value = flag.match(before) and "=" not in before and word.isalnum()
        (misplaced if flag.match(word) or is_value else own).append(word)
    return shlex.join([*own, FLAGS_AFTER_DASHES, *misplaced, *flags])


class _OptionsCommand(click.Command):
    """A command whose options become one record; one option may take all words after the first `--`."""

    context_class = HelpContext
    kind: type[Any]
    flags_option: DeclaredOption | None
    takes_script: bool = False
    """Whether all words after a Python script are the script's own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the first `--`, and keep the others unchanged."""
        flags: list[str] = []
        if self.takes_script and (index := _place_of_script(args)) is not None:
            args, flags = args[: index + 1], args[index + 1 :]
        elif self.flags_option is not None and FLAGS_AFTER_DASHES in args:
            index = args.index(FLAGS_AFTER_DASHES)
            args, flags = args[:index], args[index + 1 :]
        words = list(args)  # click empties its list
        try:
            rest = super().parse_args(context, args)
        except click.NoSuchOption as error:
            flag = None if self.flags_option is None else _FLAGS_OF_IREE[self.flags_option.name]
            if flag is None or not flag.match(error.option_name):
                raise
            command = _with_flags_at_end([*context.command_path.split(), *words], flag, flags)
            raise UsageInvalid(
                f"{context.command_path}: No such option '{error.option_name}'; IREE's flags go after `--`: {command}"
            ) from error
        if self.flags_option is not None:
            context.params[self.flags_option.name] = tuple(flags)
        return rest

    def invoke(self, context: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Call the function with the record instead of the single options."""
        if is_brief() and _has_json(self.kind):
            form = context.params["format"]
            if form not in (None, "json") and context.get_parameter_source("format") is ParameterSource.COMMANDLINE:
                raise UsageInvalid(f"--brief prints JSON: leave --format {form} out")
            context.params["format"] = "json"
        names = [option.name for option in declared_options(self.kind)]
        context.params["options"] = self.kind(**{name: context.params.pop(name) for name in names})
        return super().invoke(context)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """Add the flags after `--` to the usage line."""
        pieces = super().collect_usage_pieces(context)
        return pieces if self.flags_option is None else [*pieces, self.flags_option.option.metavar]


def _click_option(declared: DeclaredOption) -> click.Option:
    option = declared.option
    settings: dict[str, Any] = {"help": option.help, "multiple": declared.many and not option.split}
    if declared.item is bool:
        settings["is_flag"] = True
    else:
        settings["type"] = _click_type(declared)
    if option.bare is not None:
        settings |= {"is_flag": False, "flag_value": option.bare}
    if _shows_default(declared):
        settings |= {"default": declared.default, "show_default": True}
    return click.Option(
        [*declared.names, declared.name],
        metavar=option.metavar or None,
        envvar=option.variable or None,
        required=declared.required,
        **settings,
    )


class _BareOrNumber(click.IntRange):
    """A number, or the option's value if its name is typed without a number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        """Convert the value for the options record."""
        return value if value is UNKNOWN else super().convert(value, param, ctx)


def _shows_default(declared: DeclaredOption) -> bool:
    """Whether click's help should show the default: for numbers and choices, unless the help text explains it."""
    in_text = "[default: " in declared.option.help or "[without " in declared.option.help
    plain = bool(declared.choices) or declared.item in {int, float}
    return plain and isinstance(declared.default, (str, int, float)) and not in_text


def _click_type(declared: DeclaredOption) -> click.ParamType[Any]:
    option, item = declared.option, declared.item
    if declared.choices:
        return click.Choice(declared.choices)
    if item is Path or option.path == "address":
        return _KINDS_OF_PATH[option.path]
    if item is int:
        least, most = (None if limit is None else int(limit) for limit in (option.at_least, option.at_most))
        return (click.IntRange if option.bare is None else _BareOrNumber)(least, most)
    if item is float:
        least_or_above = option.at_least if option.above is None else option.above
        return click.FloatRange(least_or_above, option.at_most, min_open=option.above is not None)
    # Options with an environment variable may be empty, to override the variable.
    return click.STRING if option.variable or (declared.many and not option.split) else NAME
