"""HTML documents: one file each, with blocks of long text, and colours."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tracemap.codec import Record
from tracemap.outputs import check_file, write_text
from tracemap.reports.escaping import for_markup
from tracemap.sanitize import without_controls

if TYPE_CHECKING:
    from jinja2 import Environment


# ---- blocks
#
# Long texts in blocks of lines: browsers lay out only the blocks that are in view, if they know the sizes of all.
#
# A line is an element with its plain text, so that the browser finds it and links lead to it, with scripts and without
# (a page's script makes those of very long texts: `assets/page/texts.js`). What else it shows, colours too, the script
# adds to blocks that are near the view (`assets/shared/blocks.js`).


LINES_PER_BLOCK = 100

Line = TypeVar("Line")


def in_blocks(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """The lines, `LINES_PER_BLOCK` at a time."""
    return [lines[start : start + LINES_PER_BLOCK] for start in range(0, len(lines), LINES_PER_BLOCK)]


def block_sizes(texts: Mapping[str, tuple[int, int]]) -> str:
    """Style rules for the sizes of texts and their blocks, as style attributes are against the policy.

    Args:
        texts: the id of each text's element -> columns of its widest line, number of its lines.
    """
    widths = [f"#{anchor} .code {{ --columns: {columns} }}\n" for anchor, (columns, _) in texts.items()]
    lengths = sorted({len(block) for _, count in texts.values() for block in in_blocks(range(count))})
    return "".join(widths + [f".n{length} {{ --lines: {length} }}\n" for length in lengths])


def markup_of_lines(lines: Sequence[str | None], anchor: str) -> str:
    """The elements of a text's lines: those of the text `F0` have the ids `F0L1`, `F0L2` and so on; None is a gap."""
    return "".join(_markup(lines, anchor))


def _markup(lines: Sequence[str | None], anchor: str) -> Iterator[str]:
    number = 0
    for block in in_blocks(lines):
        yield f'<div class="chunk n{len(block)}">\n'
        # Escaping takes no time to speak of, but by the line it would.
        there = iter(for_markup("\n".join(line for line in block if line is not None)).split("\n"))
        for line in block:
            if line is None:
                yield '<div class="l gap"></div>\n'
                continue
            number += 1
            text = next(there)
            yield f'<div class="l" id="{anchor}L{number}"><code>{text}</code></div>\n'
        yield "</div>\n"


# ---- shades
#
# Probabilities as shades and correlations as tints, which text and pages have alike.


SHADES: Final = (
    *("  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃"),
    *("▄▃", "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"),
)
"""From probability 0 to 1."""
TINTS: Final = 10
"""From correlation 0 to 1, or to -1."""


def shade_level(probability: float, gamma: float) -> int:
    """Which of `SHADES` a probability has."""
    return min(len(SHADES) - 1, math.floor(math.pow(probability, gamma) * len(SHADES)))


def tints() -> str:
    """The strength of each shade and tint, in percent, as rules: style attributes are against the pages' policy."""
    shades = [f".q{level} {{ --p: {round(100 * level / (len(SHADES) - 1))}% }}\n" for level in range(len(SHADES))]
    return "".join(shades + [f".r{level} {{ --p: {6 * level}% }}\n" for level in range(TINTS + 1)])


# ---- document
#
# Puts a page together: one HTML file that neither loads nor sends anything. The same page gives the same bytes.
#
# Everything that its template inserts is escaped.


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
