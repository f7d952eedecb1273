"""Amounts in a real Chromium: per invocation or of the whole run, told from a run's rows and written as in Python."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest
from msgspec import structs
from selenium.webdriver import Chrome

from tests.browser.conftest import MODEL_NAME, Open, unfold
from tests.browser.test_reports_browser import find, first_cells, go, press, texts
from tests.builders import attribution
from tests.checks import measured_of_run, sum_of_run
from tests.conftest import Built, Recorded
from tests.pages import render_page
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS, page_of
from tests.support import check_cli
from tests.tables import amount
from tracemap.core.units import UNKNOWN, format_mean, format_share
from tracemap.reports.html import asset, write_page

CALLS = 2
"""Of each site of the small graph, once in each invocation."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the small graph, whose sums are known: two invocations."""
    target = tmp_path_factory.mktemp("pages") / "small.html"
    costs = attribution(GRAPH, TOTALS, calls=CALLS, executes=EXECUTES)
    write_page(render_page(page_of(GRAPH, costs)), target, force=False)
    return target


def choose(browser: Chrome, value: str) -> None:
    """Choose whether amounts are of one invocation ("0") or of the whole run ("1")."""
    browser.execute_script(
        "const at = document.getElementById('basis'); at.value = arguments[0]; at.dispatchEvent(new Event('change'))",
        value,
    )


def titles(browser: Chrome, selector: str) -> list[str]:
    return [str(cell.get_attribute("title")) for cell in browser.find_elements("css selector", selector)]


def column(browser: Chrome, panel: str, label: str) -> str:
    """What selects the cells of a column of a table, sorted or not."""
    labels = [text.rstrip(" ▲▼") for text in texts(browser, f"#{panel} thead th")]
    return f"#{panel} tbody td:nth-child({labels.index(label) + 1})"


def as_number(text: str) -> tuple[Fraction, Fraction]:
    """An amount of time in nanoseconds, and half of its last digit."""
    value, unit = text.split(" ")
    return amount(f"cpu {unit}", value)


@pytest.mark.long
def test_every_view_is_of_one_invocation_and_says_so(open_page: Open, small: Path) -> None:
    """op3 has 50 ns of site0 and all 100 ns of site1; all cost 280 ns, 9 of them of a submission."""
    browser = unfold(open_page(small, "#overview"))
    assert texts(browser, "#balance td:nth-child(2)") == ["140 ns", "16.5 ns"]
    assert texts(browser, "#balance small") == ["per invocation, mean of 2"] * 2
    assert texts(browser, "#unattributed td:nth-child(2)") == ["0.500"]
    assert texts(browser, "#unattributed td span") == ["4.50 ns", "2.50 ns"]
    assert texts(browser, "#top-ops td:nth-child(2)")[0] == "75 ns"
    assert "5.00 µs per invocation (mean); 10.0 µs in all" in find(browser, "#overview").text
    go(browser, "#F0L4")
    assert [find(browser, f"#F0L4 .{name}").text for name in "asik"] == ["75 ns", "53.6 %", "100 ns", "2"]
    assert find(browser, "#F0 .head small").text == "cpu_ns, per invocation, mean of 2"
    inspector = find(unfold(browser), "#inspector").text
    assert "cpu_ns, per invocation, mean of 2" in inspector
    assert "2 calls per invocation" in inspector
    go(browser, "#ops")
    assert texts(browser, column(browser, "ops", "attributed"))[:4] == ["75 ns", "25.5 ns", "17.5 ns", "17.5 ns"]
    assert "cpu_ns, per invocation, mean of 2" in find(browser, "#ops .filter").text
    about = [title for title in titles(browser, "#ops thead th") if title.endswith("cpu_ns, per invocation, mean of 2")]
    assert len(about) == 4
    go(browser, "#scopes")
    assert texts(browser, column(browser, "scopes", "inclusive")) == ["17.5 ns", "118 ns", "100 ns"]


@pytest.mark.long
@pytest.mark.parametrize(("panel", "cost", "about"), [("ops", "attributed", "function"), ("sites", "total", "path")])
def test_costs_stand_before_what_describes(panel: str, cost: str, about: str, open_page: Open, small: Path) -> None:
    browser = open_page(small, "#overview")
    browser.find_element("id", f"tab-{panel}").click()
    labels = [text.split("\n")[0].rstrip(" ▲▼") for text in texts(browser, f"#{panel} thead th")]
    assert labels.index(cost) < labels.index(about)


@pytest.mark.long
def test_the_whole_run_is_a_choice_that_changes_no_share(open_page: Open, small: Path) -> None:
    browser = unfold(open_page(small, "#F0L4"))
    before = titles(browser, "#F0 .a[title]"), texts(browser, "#F0 .s"), bars(browser)
    press(browser, "i")
    assert find(browser, "#basis").get_attribute("value") == "1"
    assert [find(browser, f"#F0L4 .{name}").text for name in "asik"] == ["150 ns", "53.6 %", "201 ns", "4"]
    assert (titles(browser, "#F0 .a[title]"), texts(browser, "#F0 .s"), bars(browser)) == before
    assert "cpu_ns, sums of 2 invocations" in find(browser, "#inspector").text
    assert "4 calls" in find(unfold(browser), "#inspector").text
    go(browser, "#ops")
    assert texts(browser, column(browser, "ops", "attributed"))[:4] == ["150 ns", "51 ns", "35 ns", "35 ns"]
    ranked = first_cells(browser, "ops")
    go(browser, "#overview")
    assert texts(browser, "#balance td:nth-child(2)") == ["280 ns", "33 ns"]
    assert texts(browser, "#balance small") == ["sums of 2 invocations"] * 2
    assert texts(browser, "#unattributed td span") == ["9 ns", "5 ns"]
    choose(browser, "0")
    assert texts(browser, "#balance td:nth-child(2)") == ["140 ns", "16.5 ns"]
    go(browser, "#ops")
    assert first_cells(browser, "ops") == ranked


def bars(browser: Chrome) -> list[str]:
    return [str(bar.get_attribute("class")) for bar in browser.find_elements("css selector", "#F0 .bar")]


@pytest.mark.long
def test_a_page_of_sums_begins_with_them(open_page: Open, built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, target = recorded(MODEL_NAME), tmp_path / "sums.html"
    check_cli("report", built(MODEL_NAME), run, "--totals", "-o", target)
    browser = unfold(open_page(target, "#overview"))
    assert find(browser, "#basis").get_attribute("value") == "1"
    for place, metric in enumerate(("cpu_ns", "duration_ns")):
        shown, slack = as_number(texts(browser, "#balance td:nth-child(2)")[place])
        assert abs(shown - measured_of_run(run, metric)) <= slack


@pytest.mark.long
def test_amounts_are_those_of_the_rows_of_the_run(open_page: Open, real: Path, recorded: Recorded) -> None:
    """Recomputed in plain SQL: what is measured, its part in dispatches, and how often sites were called."""
    run = recorded(MODEL_NAME)
    with duckdb.connect() as connection:
        asked = f"SELECT count(DISTINCT invocation), count(*) FROM '{run}' WHERE NOT warmup AND kind = 'dispatch'"
        found = connection.execute(asked).fetchone()
    assert found
    invocations, calls = found
    browser = unfold(open_page(real, "#overview"))
    for place, metric in enumerate(("cpu_ns", "duration_ns")):
        shown, slack = as_number(texts(browser, "#balance td:nth-child(2)")[place])
        assert abs(shown - Fraction(measured_of_run(run, metric), invocations)) <= slack
    assert texts(browser, "#balance small") == [f"per invocation, mean of {invocations}"] * 2
    go(browser, "#sites")
    cells = [column(browser, "sites", label) for label in ("total", "outliers")]
    sums = [int(title.removesuffix(" ns in all")) for cell in cells for title in titles(browser, cell) if title]
    assert sum(sums) == sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    shown_times = [as_number(text) for cell in cells for text in texts(browser, cell) if text not in {"–", ""}]
    total, slack = (sum(parts, Fraction()) for parts in zip(*shown_times, strict=True))
    assert abs(total - Fraction(sum(sums), invocations)) <= slack
    called = [text for text in texts(browser, column(browser, "sites", "calls")) if text != "not measured"]
    assert sum(map(Fraction, called)) == Fraction(calls, invocations)


def test_where_the_invocations_are_unknown_sums_are_shown_and_named(open_page: Open, tmp_path: Path) -> None:
    costs = attribution(GRAPH, TOTALS, executes=EXECUTES)
    runs_left_out = replace(
        costs, metrics=tuple(structs.replace(metric, invocations=UNKNOWN) for metric in costs.metrics)
    )
    target = tmp_path / "untold.html"
    write_page(render_page(page_of(GRAPH, runs_left_out)), target, force=False)
    browser = unfold(open_page(target, "#overview"))
    assert texts(browser, "#balance td:nth-child(2)") == ["280 ns", "33 ns"]
    assert texts(browser, "#balance small") == ["sums of the whole run, not per invocation"] * 2
    assert not find(browser, "#basis").is_enabled()
    press(browser, "i", "m")
    assert find(browser, "#basis").get_attribute("value") == "1"
    go(browser, "#F0L4")
    assert find(browser, "#F0L4 .a").text == "15 ns"
    assert find(browser, "#F0L4 .k").text == "4"


def test_the_script_writes_amounts_as_the_markup_has_them(browser: Chrome) -> None:
    """Ties, the edges of units, and what is next to nothing are written the same by both."""
    chance = random.Random(11)
    means = [
        (total, count) for count in (1, 2, 3, 8, 1000) for total in (0, 1, 5, 999, 1999, 2469, 9995, 99950, 999500)
    ]
    means += [(1023 * 1024 + 512, 1), (999_499, 1), (999_999_500, 1000), (1, 338), (1, 100_000), (-3, 2), (-5, 100_000)]
    means += [(int(10 ** chance.uniform(0, 15)), chance.randint(1, 5000)) for _ in range(3000)]
    asked = [(total, count, unit) for total, count in means for unit in ("ns", "bytes", "count", "Ir")]
    script = "const data = { totals: false };" + asset("shared/amounts.js")
    browser.get("about:blank")
    shown = browser.execute_script(script + "return arguments[0].map(([t, c, unit]) => quantity(t / c, unit))", asked)
    for (total, count, unit), text in zip(asked, shown, strict=True):
        assert text == format_mean(total, count, unit), (total, count, unit)
    shares = [(part, whole) for whole in (0, 8, 400, 2000) for part in range(0, whole + 1)]
    shown = browser.execute_script(script + "return arguments[0].map(([part, of]) => share(part, of))", shares)
    assert shown == [format_share(part, whole) for part, whole in shares]
