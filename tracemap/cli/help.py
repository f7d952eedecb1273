"""Layout of help texts: up to 100 columns, without line breaks at hyphens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

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
