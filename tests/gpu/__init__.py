"""What was recorded on a GPU, for tests: files of NVIDIA's tools, what they say, and the bundles of their programs."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from tests.support import ROOT, Json
from tracemap.map.bundle import load

FILES = ROOT / "tests" / "programs" / "foreign"
MISSES = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
Rows = list[dict[str, str]]
OnGpu = Callable[[str], Path]
"""A sample model -> its bundle for the GPU."""


def table(name: str, first: str) -> Rows:
    """The rows of a file below the head, which begins with a text; up to an empty line."""
    lines = (FILES / name).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    return list(csv.DictReader(itertools.takewhile(str.strip, lines[start:])))


def launches_of(name: str) -> list[tuple[str, int, int]]:
    """Kernel, duration and misses of each launch of a file, in order."""
    if name.startswith("nsys"):
        rows = [row for row in table(name, "Start") if not row["Name"].startswith("[")]
        return [(row["Name"], int(row["Duration (ns)"]), 0) for row in rows]
    rows = table(name, '"ID"')

    def number(text: str) -> int:
        return int(text.replace(",", ""))

    if "gpu__time_duration.sum" in rows[0]:
        return [(r["Kernel Name"], number(r["gpu__time_duration.sum"]), number(r[MISSES])) for r in rows if r["ID"]]
    told: dict[str, dict[str, str]] = {}
    for row in rows:
        told.setdefault(row["ID"], {"kernel": row["Kernel Name"]})[row["Metric Name"]] = row["Metric Value"]
    return [
        (each["kernel"], number(each.get("gpu__time_duration.sum") or each["Duration"]), number(each.get(MISSES, "0")))
        for each in told.values()
    ]


def sites_in_order(bundle: Path) -> list[str]:
    """The sites of a program without branches, as it dispatches them."""
    made = load(bundle).graph
    (schedule,) = made.schedules
    buffers, place = [], schedule.first
    while place:
        (number,) = place
        buffers += [made.command_buffers[ordinal] for ordinal in schedule.submissions[number].buffers]
        place = schedule.submissions[number].next
    return [str(command.site) for buffer in buffers for command in buffer.commands if command.kind == "dispatch"]


def sums_by_site(result: Json, metric: str = "duration_ns") -> dict[str, int]:
    return {site["site"]: site["metrics"][metric]["total"] for site in result["sites"] if site["calls"]}


def slugs(result: Json) -> set[str]:
    return {told["slug"] for told in result["diagnostics"]}


def changed(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    file = tmp_path / name
    file.write_text(change((FILES / name).read_text(encoding="utf-8")), encoding="utf-8")
    return file


def without(pattern: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if not re.search(pattern, line))
