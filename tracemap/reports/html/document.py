"""Puts a page together: one HTML file that neither loads nor sends anything. The same page gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.outputs import check_file, write_text
from tracemap.reports.escaping import for_script
from tracemap.reports.html.environment import asset, environment
from tracemap.reports.html.policy import content_policy

_STYLE = "shared/look.css"
_EARLY = "shared/early.js"
_SCRIPTS = ("shared/elements.js",)


@dataclass(frozen=True, slots=True)
class Kind:
    """What pages of a kind are made of: files in `reports/assets`, besides those that all kinds share.

    Scripts are parts of one script and stand in this order: a part may use what an earlier one declares at once, and
    what a later one declares once all have run.
    """

    template: str
    styles: Sequence[str]
    scripts: Sequence[str]


def render(kind: Kind, page: object, *, sizes: str = "", data: object = None, **values: object) -> str:
    """The whole HTML text of a page.

    Args:
        kind: of what it is made.
        page: the page data that its template loops over, as `page`.
        sizes: further style rules, those that depend on the page.
        data: what its script works on; None where that stands in the markup.
        values: what else its template needs, by name.
    """
    # The policy names the hashes of the very texts that are written, so each is put together once.
    style = "".join(map(asset, (_STYLE, *kind.styles))) + sizes
    early, script = asset(_EARLY), _script(kind)
    return (
        environment()
        .get_template(kind.template)
        .render(
            page=page,
            style=style,
            early=early,
            script=script,
            policy=content_policy(style, early, script),
            data="" if data is None else for_script(data),
            **values,
        )
    )


def _script(kind: Kind) -> str:
    """The parts in one function, so that nothing that they declare is in the way of the browser's own names."""
    parts = "\n".join(map(asset, (*_SCRIPTS, *kind.scripts)))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def write_page(text: str, target: Path, *, force: bool) -> None:
    """Write a page to `target`, whole or not at all.

    Raises:
        TargetExists: `target` is there already and `force` is false.
        TargetUnwritable: `target` cannot be written.
    """
    check_file(target, force=force)
    write_text(text, target)
