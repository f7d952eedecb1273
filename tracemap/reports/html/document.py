"""Puts a page together: one HTML file that neither loads nor sends anything. The same page gives the same bytes.

Everything that its template inserts is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.codec import Record
from tracemap.inert import without_controls
from tracemap.outputs import check_file, write_text

if TYPE_CHECKING:
    from jinja2 import Environment


def content_policy(style: str, *scripts: str) -> str:
    """Nothing may be loaded, and only this style and these scripts, named by their hashes, take effect."""
    # Neither 'unsafe-inline' nor a URL: text that slipped through unescaped would still not run, load or send anything.
    own = f"style-src {_hash_source(style)}; script-src {' '.join(map(_hash_source, scripts))}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _shown(value: object) -> object:
    """What a template inserts: texts without characters that steer a terminal or reorder text; markup as it is."""
    return "\n".join(map(without_controls, value.split("\n"))) if type(value) is str else value


class Kind(Record, frozen=True):
    """What pages of a kind are made of: files in `reports/assets`, besides those that all kinds share.

    Scripts are parts of one script and stand in this order: a part may use what an earlier one declares at once, and
    what a later one declares once all have run. Before them stand `libraries`, each a script of its own.
    """

    template: str
    styles: Sequence[str]
    scripts: Sequence[str]
    libraries: Sequence[str] = ()


APPLICATION: Final = (
    "shared/data.js",
    "shared/highlight.js",
    "shared/blocks.js",
    "shared/views.js",
    "shared/details.js",
    "shared/keys.js",
    "shared/address.js",
    "shared/rows.js",
    "shared/records.js",
)
"""The first scripts of pages with sources, tables and a search."""


def render(
    kind: Kind,
    page: object,
    *,
    sizes: str = "",
    data: Sequence[Callable[[], str]] = (),
    **values: object,
) -> str:
    """The whole HTML text of a page.

    Args:
        kind: of what it is made.
        page: the page data that its template loops over, as `page`.
        sizes: further style rules, those that depend on the page.
        data: the parts of what its script works on, as `for_script` makes them; none where that stands in the markup.
        values: what else its template needs, by name.
    """
    # The policy names the hashes of the very texts that are written, so each is put together once.
    style = "".join(map(asset, ("shared/look.css", *kind.styles))) + sizes
    early, script, libraries = asset("shared/early.js"), _script(kind), list(map(asset, kind.libraries))
    return (
        environment()
        .get_template(kind.template)
        .render(
            page=page,
            style=style,
            early=early,
            script=script,
            libraries=libraries,
            policy=content_policy(style, early, *libraries, script),
            data=data,
            **values,
        )
    )


def _script(kind: Kind) -> str:
    """The parts in one function, so that nothing that they declare is in the way of the browser's own names.

    It may wait, for what is compressed; the document is `ready` when all parts have run.
    """
    parts = "\n".join(map(asset, ("shared/elements.js", *kind.scripts)))
    return f'"use strict";\n(async () => {{\n{parts}document.documentElement.classList.add("ready");\n}})();\n'


def write_page(text: str, target: Path, *, force: bool) -> None:
    """Write a page to `target`, whole or not at all.

    Raises:
        TargetExists: `target` is there already and `force` is false.
        TargetUnwritable: `target` cannot be written.
    """
    check_file(target, force=force)
    write_text(text, target)
