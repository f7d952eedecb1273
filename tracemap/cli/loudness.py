"""The options by which every command is told how much to say; `tracemap --help` imports no more than this for them."""

from __future__ import annotations

import click

from tracemap.cli.streams import be_quiet


def how_loud() -> list[click.Option]:
    """The options of all commands: how much is said on standard error."""

    def quiet(_context: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted:
            be_quiet()

    def verbose(_context: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted:
            from tracemap.cli.streams import be_verbose

            be_verbose()

    made = (
        ("-q", "--quiet", quiet, "Say nothing on standard error but warnings and errors."),
        ("-v", "--verbose", verbose, "Say how long each phase takes, and which programs are started."),
    )
    return [
        click.Option([short, long], is_flag=True, expose_value=False, callback=callback, help=text)
        for short, long, callback, text in made
    ]
