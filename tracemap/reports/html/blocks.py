"""Long texts in blocks of lines: browsers lay out only the blocks that are in view, if they know the sizes of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

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
