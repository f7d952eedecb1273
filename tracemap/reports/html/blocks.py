"""Long texts in blocks of lines: browsers lay out only the blocks that are in view, if they know the sizes of all.

A line is an element with its plain text, so that the browser finds it and links lead to it, with scripts and without
(a page's script makes those of very long texts: `assets/page/texts.js`). What else it shows, colours too, the script
adds to blocks that are near the view (`assets/shared/blocks.js`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from tracemap.reports.escaping import for_markup

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
