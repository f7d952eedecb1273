"""Click's commands, made of the records of options: the fields are the options, and the command gets the record.

Defaults stay in the records; click is told only those that its help shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tracemap.cli.help import HelpContext
from tracemap.cli.loudness import how_loud
from tracemap.options.option import BEHIND_DASHES, AnyOptions, DeclaredOption, declared_options
from tracemap.units import UNKNOWN

PATH: click.Path = click.Path(path_type=Path)


class _Folder(click.Path):
    """A folder that exists; click takes a pipe or a device for one, of which nothing would be read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        path = super().convert(value, param, ctx)
        if not os.path.isdir(path):  # noqa: PTH112 - of any kind of path
            self.fail(f"{value} is no folder", param, ctx)
        return path


class _Name(click.types.StringParamType):
    """A text, or names with commas between them; an empty one is most often that of a variable that is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        text = super().convert(value, param, ctx)
        if not text.strip(", "):
            self.fail("it is empty; name something, or leave it out", param, ctx)
        return text


NAME: click.ParamType[str] = _Name()
_KINDS_OF_PATH = {
    "any": PATH,
    "file": click.Path(exists=True, dir_okay=False, path_type=Path),
    "folder": _Folder(exists=True, file_okay=False, path_type=Path),
    "address": click.Path(),
}


def options_command(name: str, kind: type[AnyOptions]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command: it takes its arguments, and `options`, a record of this kind."""
    behind = next((made for made in declared_options(kind) if BEHIND_DASHES in made.names), None)

    def decorate(function: Callable[..., None]) -> click.Command:
        made = click.command(name, cls=_OptionsCommand)(function)
        assert isinstance(made, _OptionsCommand)
        made.kind, made.behind = kind, behind
        made.params += [_click_option(option) for option in declared_options(kind) if option is not behind]
        made.params += how_loud()
        return made

    return decorate


class _OptionsCommand(click.Command):
    """A command whose options become one record; one of them may take what stands behind the first `--`."""

    context_class = HelpContext
    kind: type[Any]
    behind: DeclaredOption | None

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before the first `--`; keep the rest as it is, whatever it looks like."""
        behind: list[str] = []
        if self.behind is not None and BEHIND_DASHES in args:
            place = args.index(BEHIND_DASHES)
            args, behind = args[:place], args[place + 1 :]
        rest = super().parse_args(context, args)
        if self.behind is not None:
            context.params[self.behind.name] = tuple(behind)
        return rest

    def invoke(self, context: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Call the function with the record in place of the single options."""
        names = [option.name for option in declared_options(self.kind)]
        context.params["options"] = self.kind(**{name: context.params.pop(name) for name in names})
        return super().invoke(context)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """The usage names what may stand behind the `--`."""
        pieces = super().collect_usage_pieces(context)
        return pieces if self.behind is None else [*pieces, self.behind.option.metavar]


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
    """A number, or what the option is where its name is typed without one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        """The value as the record of options takes it."""
        return value if value is UNKNOWN else super().convert(value, param, ctx)


def _shows_default(declared: DeclaredOption) -> bool:
    """Whether the help names the default: numbers and choices that have one, unless the text tells what it means."""
    told = "[default: " in declared.option.help or "[without " in declared.option.help
    plain = bool(declared.choices) or declared.item in {int, float}
    return plain and isinstance(declared.default, (str, int, float)) and not told


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
    # Empty, an option that a variable stands for says that there is none: it takes the variable's place.
    return click.STRING if option.variable or (declared.many and not option.split) else NAME
