"""How help is laid out: as wide as the terminal, as far as lines are easy to read; no word is broken at a hyphen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

WIDEST: Final = 100
"""Columns of help, however wide the terminal is."""
_HYPHEN: Final = "\ue000"
"""Stands for a hyphen while text is wrapped: options and names of files are not to be broken there."""


class _Formatter(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, _whole(args), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(_whole(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(_whole(term), _whole(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


def _whole(text: str) -> str:
    return text.replace("-", _HYPHEN)


class HelpContext(click.Context):
    """What click lays out the help of a command in."""

    formatter_class = _Formatter
