"""The environment that all templates are rendered in: everything that they insert is escaped."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def asset(name: str) -> str:
    """The text of a file in `reports/assets`, which pages are made of."""
    return resources.files("tracemap.reports").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Templates by their names in `reports/assets`; a name that is not there is an error, not an empty text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    # Tags of the template leave no lines behind: a page has as many as its sources.
    return Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
