"""Small comparisons, of two graphs whose ops are matched by hand, and their pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

from tests.builders import MODEL, attribution, graph, op, site
from tracemap.compare.compare import compare
from tracemap.compare.model import Comparison, Match, MatchKind, RemarkDifference
from tracemap.compare.sides import Side
from tracemap.map.model import OpId, Outcome, SourceFile, TraceGraph
from tracemap.reports.diff.render import PageSide, build_diff_page, render_diff_page
from tracemap.reports.diff.rows import DiffPage
from tracemap.reports.html import write_page
from tracemap.reports.page.source_tabs import KernelSources

NET = SourceFile("net.py", "net.py", "python")
BEFORE_TEXT = "module {\n  %a = first\n  %b = second\n  %c = third\n  %d = old\n}\n"
AFTER_TEXT = "module {\n  %a = first\n  %new = sine\n  %x = second\n  %y = third\n}\n"
"""Lines 3 and 4 have become 4 and 5; line 3 is new, and what stood on line 5 is gone."""
NET_TEXT = "x = first()\ny = second(x)\n"


def before_graph() -> TraceGraph:
    """Ops 1 and 2 share a kernel, 3 and 4 have one each; costs are 40, 60, 100 and 10."""
    ops = (
        op(0, 1, name="builtin.module", outcome=Outcome.STRUCTURAL),
        op(1, 2, name="a.first", scope=("h0",), frames=[("net.py", 1)]),
        op(2, 3, name="a.second", scope=("h0",), frames=[("net.py", 2)]),
        op(3, 4, name="a.third", scope=("h1",), frames=[("net.py", 2)]),
        op(4, 5, name="a.old"),
    )
    sites = (site(0, 1, 2, kernel="k_a"), site(1, 3, kernel="k_b"), site(2, 4, kernel="k_c"))
    return graph(ops, sites, sources=(MODEL, NET), name="one")


def after_graph() -> TraceGraph:
    """Op 1 is alone now, 3 and 4 (which were 2 and 3) share a kernel, 2 is new; `builtin.module` is folded."""
    ops = (
        op(0, 1, name="builtin.module", outcome=Outcome.FOLDED),
        op(1, 2, name="a.first", scope=("h0",), frames=[("net.py", 1)]),
        op(2, 3, name="a.sine"),
        op(3, 4, name="a.second", scope=("h0",), frames=[("net.py", 2)]),
        op(4, 5, name="a.third", scope=("h1",), frames=[("net.py", 2)]),
    )
    sites = (site(0, 1, kernel="k_a"), site(1, 3, 4, kernel="k_d"), site(2, 2, kernel="k_e"))
    return graph(ops, sites, sources=(MODEL, NET), name="two")


MATCHED = ((0, 0), (1, 1), (2, 3), (3, 4))
TOTALS: tuple[Mapping[str, Mapping[str, int]], ...] = (
    {"cpu_ns": {"site0": 200_000, "site1": 100_000, "site2": 20_000}},
    {"cpu_ns": {"site0": 50_000, "site1": 300_000, "site2": 80_000}},
)
"""Of two invocations."""


def side(name: str, of: TraceGraph, totals: Mapping[str, Mapping[str, int]] | None) -> Side:
    """A side without machine code."""
    run = attribution(of, totals) if totals else None
    return Side(name, name[0] * 64, of, ("run.csv",) if run else (), (run,) if run else (), tuple)


def compared(*, measured: bool = True) -> tuple[Comparison, Side, Side]:
    """The comparison of the two graphs, with a remark that is new."""
    totals = TOTALS if measured else (None, None)
    one, two = side("old.tracemap", before_graph(), totals[0]), side("new.tracemap", after_graph(), totals[1])
    matches = [Match(OpId.of(a), OpId.of(b), MatchKind.STRUCTURE, edited=a == 3) for a, b in MATCHED]
    return compare(one, two, matches, same_model=False, threshold=3.0), one, two


REMARK = RemarkDifference("new", "k_d", 1, (OpId.of(3),), "regalloc", "12 spills generated in function", 2)


def text_of(model: str, source: SourceFile) -> str:
    """The texts of the small graphs."""
    return model if source is MODEL else NET_TEXT


def page_of(
    made: Comparison,
    one: Side,
    two: Side,
    texts: tuple[str, str] = (BEFORE_TEXT, AFTER_TEXT),
    folders: tuple[str, str] = ("", ""),
) -> DiffPage:
    """The data of a page whose kernels have a line each."""
    kernels = KernelSources(lambda kernel: f"func @{kernel.name}\n  return", tuple)
    sides = [
        PageSide(each, lambda source, text=text: text_of(text, source), kernels, PurePath(folder))  # type: ignore[misc]
        for each, text, folder in zip((one, two), texts, folders, strict=True)
    ]
    return build_diff_page(made, *sides)


def write_small_page(target: Path, page: DiffPage) -> Path:
    """Write a page; returns its path."""
    write_page(render_diff_page(page), target, force=False)
    return target
