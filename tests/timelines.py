"""Runs of small maps whose events say when they began, and pages with their timelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.builders import graph, op, site
from tests.pages import build_page
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.timeline import excerpt
from tracemap.core.sanitize import csv_line
from tracemap.map.model import TraceGraph
from tracemap.options.results import Rule
from tracemap.reports.page.model import Page
from tracemap.runs.runfile import read_run

SITES = 40
COLUMNS = ("kind", "kernel", "site", "invocation", "thread", "start_ns", "duration_ns", "cpu_ns")
Event = tuple[str, str, str, int, str, int, int, int]
"""Cells of these columns."""


def layers(names: str = "kernel") -> TraceGraph:
    """A map of sites in five layers of a model, the names of whose kernels begin with this text."""
    ops = [op(number, number + 1, scope=(f"layer{number // 8}",)) for number in range(SITES)]
    return graph(ops, [site(number, number, kernel=f"{names}{number}") for number in range(SITES)])


def events(calls: int, spans: int, names: str = "kernel", thread: str = "worker") -> Iterator[Event]:
    """Events of calls of the function, on two threads: each has a submission and so many dispatches, whose times vary.

    Invocation 0 takes longest, each later one less.
    """
    now = 1_000_000
    for call in range(calls):
        durations = [1 + (977 * (each + 1)) % 5_003 + 9 * (calls - call) for each in range(spans)]
        whole = sum(durations) // 2 + max(durations) + 200
        yield "execute", "", "", call, thread, now, whole, 0
        starts = [now + 100, now + 150]
        for each, duration in enumerate(durations):
            number, lane = each % SITES, each % 2
            kernel, place = f"{names}{number}", f"site{number}"
            yield "dispatch", kernel, place, call, f"{thread}{lane}", starts[lane], duration, duration
            starts[lane] += duration + 7
        now = max(*starts, now + whole) + 5_000


def written(table: Path, calls: int, spans: int, names: str = "kernel", thread: str = "worker") -> Path:
    """A table of such events."""
    lines = [csv_line(COLUMNS), *(csv_line(event) for event in events(calls, spans, names, thread))]
    table.write_text("".join(lines), encoding="utf-8")
    return table


def page_of_run(map_: TraceGraph, table: Path, most: int = 20_000) -> Page:
    """The page of a run, whose timeline has at most so many spans."""
    run = read_run(table)
    made = attribute(Request(map_, "cd" * 32, [run], Rule.EQUAL))
    text = "\n".join(f"line {number}" for number in range(1, SITES + 1))
    return build_page(map_, made, lambda _: text, excerpts=[excerpt(map_, run, most)])
