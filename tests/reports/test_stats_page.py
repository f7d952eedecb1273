"""The statistics page: data, escaping, limits, command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.hook.test_stats import calls_file
from tests.support import run_cli
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import TargetExists, UsageInvalid
from tracemap.options.measure import StatsOptions
from tracemap.reports.stats_page import StatsPage, build_stats_page, render_stats_page
from tracemap.runs.hook.stats import ThreadCalls, ThreadedCalls, read_calls, thread_stats

EVIL = "</script><img src=x onerror=alert(1)>\u2028&amp;\"'"


def page_of(found: ThreadedCalls, buckets: int = 8, kernel: str = "", title: str = "calls") -> StatsPage:
    stats = [thread_stats(calls, buckets) for calls in found.threads]
    return build_stats_page(found, stats, title, StatsOptions(kernel=kernel, buckets=buckets))


def hostile() -> ThreadedCalls:
    """Names that would take effect in markup: of a thread, of an event, in a diagnostic."""
    zeros = np.zeros(4, dtype=np.int64)
    series = (np.array([1, 2, 3, 4.5], dtype=np.float32), np.array([0, 1, 0, 2], dtype=np.float32))
    calls = ThreadCalls(EVIL, zeros, zeros, ("duration_us", EVIL), series)
    return ThreadedCalls((calls,), (Diagnostic("program-killed", EVIL),))


def test_every_figure_is_that_of_the_statistics(tmp_path: Path) -> None:
    found = read_calls(calls_file(tmp_path / "calls.csv", 3000), StatsOptions())
    (thread,) = page_of(found).threads
    (stats,) = [thread_stats(calls, 8) for calls in found.threads]
    assert [panel.name for panel in thread.series] == [series.name for series in stats.series]
    assert all(sum(bar.count for bar in panel.plot.bars) == stats.calls == 3000 for panel in thread.series)
    assert len(thread.heat_maps) == len(stats.pairs) == 6
    for shown, pair in zip(thread.heat_maps, stats.pairs, strict=True):
        assert (shown.of.name, shown.given.name) == (pair.of, pair.given)
        assert np.array([[float(cell.exact) for cell in row] for row in shown.rows]) == pytest.approx(
            pair.table, abs=1e-6
        )
        percents = [[cell.percent for cell in row] for row in shown.rows]
        for column, cells in zip(pair.table.T, zip(*percents, strict=True), strict=True):
            assert all(cell == "" for cell in cells) == (not column.any())
    constant = [shown for shown in thread.heat_maps if shown.given.name == "constant"]
    assert [shown.correlation for shown in constant] == ["none, as a series is constant"] * 3
    for row in range(4):
        assert [cell.text for cell in thread.correlations[row]] == [line[row].text for line in thread.correlations]


def test_hostile_names_are_text() -> None:
    text = render_stats_page(page_of(hostile(), kernel=EVIL, title=EVIL))
    assert "<img" not in text
    assert text.count("</script>") == 2  # those of the page itself
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))
    assert not re.search(r"\sstyle=|(?:src|srcset|action|poster)\s*=\s*[\"']|@import|url\(|https?:", text)


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    text = render_stats_page(page_of(read_calls(calls_file(tmp_path / "calls.csv", 50), StatsOptions())))
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]*)"', text))
    assert len(links) > 6
    assert links <= set(ids)


def test_the_same_calls_give_the_same_bytes(tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", 300)
    assert render_stats_page(page_of(read_calls(csv, StatsOptions()))) == render_stats_page(
        page_of(read_calls(csv, StatsOptions()))
    )


def test_more_cells_than_a_browser_can_show_are_refused(tmp_path: Path) -> None:
    csv = calls_file(tmp_path / "calls.csv", 2000)
    with pytest.raises(UsageInvalid, match=r"--buckets"):
        page_of(read_calls(csv, StatsOptions()), buckets=512)
    done = run_cli("stats", csv, "--buckets", "512", "--html", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["calls.csv"]
    assert run_cli("stats", csv, "--buckets", "512", "--no-table", "--html", tmp_path / "page.html").returncode == 0


def test_the_command_writes_the_page_beside_what_it_prints(tmp_path: Path) -> None:
    csv, page = calls_file(tmp_path / "calls.csv", 300), tmp_path / "page.html"
    plain = run_cli("stats", csv, "--format", "json")
    done = run_cli("stats", csv, "--format", "json", "--html", page)
    assert json.loads(done.stdout) == json.loads(plain.stdout)
    assert plain.stderr == ""
    assert done.stderr == f"page: {page}\n"
    first = page.read_bytes()
    page.write_text("of another program")
    again = run_cli("stats", csv, "--html", page)
    assert again.returncode == 2
    assert again.stderr.endswith(f"[{TargetExists.slug}]\n")
    assert run_cli("stats", csv, "--html", page, "--force").returncode == 0
    assert page.read_bytes() == first
