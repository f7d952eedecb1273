"""A reader of the files of a stopwatch: a line `stopwatch 1`, then one line per call: kernel, space, microseconds."""

from __future__ import annotations

import csv
from pathlib import Path

_MARK = "stopwatch 1"


def recognizes(head: bytes, name: str, /) -> bool:
    """Recognize a stopwatch's file."""
    return name.endswith(".sw") and head.startswith(_MARK.encode())


def convert(source: Path, target: Path, /) -> None:
    """Write the calls as a table of a run."""
    with source.open() as lines, target.open("w", newline="") as file:
        next(lines)
        table = csv.writer(file)
        table.writerow(("kernel", "duration_ns"))
        for number, line in enumerate(lines, 2):
            kernel, _, microseconds = line.strip().rpartition(" ")
            if not kernel:
                raise ValueError(f"line {number} has no time")
            table.writerow((kernel, round(1000 * float(microseconds))))
