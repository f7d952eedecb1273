"""Printed tables, read back: cells by heading, and numbers with what their rounding leaves open."""

from __future__ import annotations

import os
import re
from fractions import Fraction

UNITS = {
    **{"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9},
    **{"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    **{"%": 1, "M": 10**6, "G": 10**9, "T": 10**12},
}
TIMES = ("ns", "µs", "ms", "s")


def printed_table(printed: str, title: str) -> list[dict[str, str]]:
    """The rows below a title, up to an empty line or what stands below a table: cells by heading.

    Columns are told apart by what is blank in every line; so one that has no heading is `""`.
    """
    lines = printed.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 1
    end = next(number for number in range(start, len(lines)) if number > start and _ends(lines[number]))
    table = lines[start:end]
    width = max(map(len, table))
    padded = [line.ljust(width) for line in table]
    used = "".join("x" if any(line[at] != " " for line in padded) else " " for at in range(width))
    spans = [found.span() for found in re.finditer(r"x(?: ?x)*", used)]
    heads, *rows = ([line[begin:end].strip() for begin, end in spans] for line in padded)
    return [dict(zip(heads, row, strict=True)) for row in rows]


_BELOW = re.compile(r"\s*$|…|\(no room|~ |balance of |[\w-]+: measured ")
"""What stands below a table: nothing, what is left out of it, what its marks mean, or the books."""


def _ends(line: str) -> bool:
    return _BELOW.match(line) is not None


def amount(heading: str, cell: str) -> tuple[Fraction, Fraction]:
    """A printed number in the base unit of its heading, and by how much rounding may have changed it."""
    words = re.split(r"[ /]", heading)
    size = next((UNITS[word] for word in reversed(words) if word in UNITS), 1)
    small = cell.startswith("<")
    text = cell.lstrip("<").replace(",", "")
    step = Fraction(1, 10 ** len(text.partition(".")[2]))
    value = Fraction(text) * size
    # Less than the last digit, but not nothing: somewhere between.
    return (value / 2, value / 2) if small else (value, step * size / 2)


def all_of_terminal(leader: int) -> bytes:
    """All that is written to a terminal until everybody has closed it; this, its other end, is closed too."""
    chunks = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # nobody has it open any more
        pass
    os.close(leader)
    return b"".join(chunks)
