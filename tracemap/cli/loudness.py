"""Options -q and -v of all commands; a module of its own, so that `tracemap --help` imports little."""

from __future__ import annotations

import click

from tracemap.cli.streams import be_quiet


def verbosity_options() -> list[click.Option]:
    """Options for the verbosity of standard error."""

    def quiet(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            be_quiet()

    def verbose(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            from tracemap.cli.streams import be_verbose

            be_verbose()

    declarations = (
        ("-q", "--quiet", quiet, "Print only warnings and errors on standard error."),
        ("-v", "--verbose", verbose, "Print how long each phase takes and which programs are started."),
    )
    return [
        click.Option([short, long], is_flag=True, expose_value=False, callback=callback, help=text)
        for short, long, callback, text in declarations
    ]
