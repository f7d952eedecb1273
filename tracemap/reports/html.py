"""HTML documents: templates, assets, and the policy that blocks everything else."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tracemap.core.codec import Record
from tracemap.core.files import check_file, write_text
from tracemap.core.sanitize import without_controls
from tracemap.reports.escaping import for_markup

if TYPE_CHECKING:
    from jinja2 import Environment


# ---- blocks of lines
#
# Browsers lay out only the blocks in view, if the sizes of all blocks are known.
#
# A line is an element with plain text, so that the browser's search and links work with and without scripts. For very
# long texts, the script makes the lines (`assets/page/texts.js`). The script adds colours and gutters to blocks near
# the view (`assets/shared/blocks.js`).


LINES_PER_BLOCK = 100

Line = TypeVar("Line")


def in_blocks(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """Split lines into blocks of `LINES_PER_BLOCK`."""
    return [lines[start : start + LINES_PER_BLOCK] for start in range(0, len(lines), LINES_PER_BLOCK)]


def block_sizes(texts: Mapping[str, tuple[int, int]]) -> str:
    """Style rules for the sizes of texts and their blocks; the content security policy forbids style attributes.

    Args:
        texts: id of a text's element -> width of its widest line, number of lines.
    """
    widths = [f"#{anchor} .code {{ --columns: {columns} }}\n" for anchor, (columns, _) in texts.items()]
    lengths = sorted({len(block) for _, count in texts.values() for block in in_blocks(range(count))})
    return "".join(widths + [f".n{length} {{ --lines: {length} }}\n" for length in lengths])


def markup_of_lines(lines: Sequence[str | None], anchor: str) -> str:
    """The elements of lines, with ids such as `F0L1` for the anchor `F0`; None is a gap."""
    return "".join(_markup(lines, anchor))


def _markup(lines: Sequence[str | None], anchor: str) -> Iterator[str]:
    number = 0
    for block in in_blocks(lines):
        yield f'<div class="chunk n{len(block)}">\n'
        # Escape per block, as escaping per line would be slow.
        texts = iter(for_markup("\n".join(line for line in block if line is not None)).split("\n"))
        for line in block:
            if line is None:
                yield '<div class="l gap"></div>\n'
                continue
            number += 1
            text = next(texts)
            yield f'<div class="l" id="{anchor}L{number}"><code>{text}</code></div>\n'
        yield "</div>\n"


# ---- shades of probabilities and tints of correlations, in text and pages


SHADES: Final = (
    *("  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃"),
    *("▄▃", "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"),
)
"""From probability 0 to 1."""
TINTS: Final = 10
"""Number of tints from correlation 0 to 1, and from 0 to -1."""


def shade_level(probability: float, gamma: float) -> int:
    """Index in `SHADES` of a probability."""
    return min(len(SHADES) - 1, math.floor(math.pow(probability, gamma) * len(SHADES)))


def tints() -> str:
    """Style rules for the strengths of shades and tints; the content security policy forbids style attributes."""
    shades = [f".q{level} {{ --p: {round(100 * level / (len(SHADES) - 1))}% }}\n" for level in range(len(SHADES))]
    return "".join(shades + [f".r{level} {{ --p: {6 * level}% }}\n" for level in range(TINTS + 1)])


# ---- document
#
# A page is one HTML file that neither loads nor sends anything. Its bytes are deterministic. Templates escape
# everything that they insert.


def content_policy(style: str, *scripts: str) -> str:
    """A content security policy: nothing may be loaded; only this style and these scripts, by hash, take effect."""
    # Without 'unsafe-inline' and URLs, even unescaped text could not run, load or send anything.
    own = f"style-src {_hash_source(style)}; script-src {' '.join(map(_hash_source, scripts))}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """The text of a file in `reports/assets`."""
    return resources.files("tracemap.reports").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """The Jinja environment of the templates in `reports/assets`; undefined names are errors."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    # Template tags leave no blank lines.
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
    """Remove control and reordering characters from inserted text; keep markup unchanged."""
    return "\n".join(map(without_controls, value.split("\n"))) if type(value) is str else value


class PageKind(Record, frozen=True):
    """The files in `reports/assets` of a kind of page, without those that all pages share.

    `scripts` are concatenated in this order into one script. A part may use earlier declarations immediately, and later
    ones after all parts have run. `libraries` come first, as separate scripts.
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
    "shared/splitter.js",
    "shared/details.js",
    "shared/keys.js",
    "shared/address.js",
    "shared/rows.js",
    "shared/records.js",
)
"""The first scripts of pages with sources, tables and a search."""


def render(
    kind: PageKind,
    page: object,
    *,
    sizes: str = "",
    data: Sequence[Callable[[], str]] = (),
    **values: object,
) -> str:
    """The HTML text of a page.

    Args:
        kind: the files of the page.
        page: the content, for the template.
        sizes: further style rules that depend on the content.
        data: data for the script, encoded by `for_script`; empty if the markup has everything.
        values: further values for the template, by name.
    """
    # The policy has the hashes of these exact texts, so each is assembled once.
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


def _script(kind: PageKind) -> str:
    """All parts in one async function, so that their names do not clash with the browser's.

    It waits for decompression. The document gets the class `ready` when all parts have run.
    """
    parts = "\n".join(map(asset, ("shared/elements.js", *kind.scripts)))
    return f'"use strict";\n(async () => {{\n{parts}document.documentElement.classList.add("ready");\n}})();\n'


def write_page(text: str, target: Path, *, force: bool) -> None:
    """Write a page to `target` atomically.

    Raises:
        TargetExists: `target` exists and `force` is false.
        TargetUnwritable: `target` cannot be written.
    """
    check_file(target, force=force)
    write_text(text, target)
