"""The page of `tracemap stats` in a real browser, of a real recording: pictures, tabs, hostile text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import Open
from tests.hook import support
from tests.reports.test_stats_page import EVIL, hostile, page_of
from tests.support import check_cli
from tracemap.capture.counters import events_to_count
from tracemap.reports.html import write_page
from tracemap.reports.stats_page import render_stats_page

EVENTS = ("page-faults", "minor-faults")
BUCKETS = 6


@pytest.fixture(scope="module")
def recorded_page(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Path]:
    """Calls on the stock runtime under the hook: their page, their statistics as JSON, their table."""
    support.need_compiler()
    place = tmp_path_factory.mktemp("stats")
    folder, page, table = place / "calls", place / "page.html", place / "calls.parquet"
    folder.mkdir()
    settings = tuple(event.setting for event in events_to_count(EVENTS))
    command = support.tool_command("iree-benchmark-module", support.module(made, "embedded"), "local-task")
    support.run(command, support.hooked(support.built_library(made), folder, events=settings))
    options = ("--buckets", str(BUCKETS), "--format", "json", "--html", page, "--calls", table)
    return page, json.loads(check_cli("stats", folder, *options))["threads"], table


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stats") / "hostile.html"
    write_page(render_stats_page(page_of(hostile(), kernel=EVIL, title=EVIL)), target, force=False)
    return target


def shown(browser: Chrome) -> str:
    """Id of the only panel that is in view."""
    (panel,) = (panel for panel in browser.find_elements(By.TAG_NAME, "section") if panel.is_displayed())
    return str(panel.get_attribute("id"))


def bars(browser: Chrome, thread: int) -> list[list[tuple[int, float]]]:
    """Of each histogram of a thread the count and the drawn height of each bar."""
    return [
        [(int(count), float(height)) for count, height in figure]
        for figure in browser.execute_script(
            "return [...document.querySelectorAll(`#T${arguments[0]} svg`)].map((svg) =>"
            " [...svg.querySelectorAll('.bin')].map((bin) =>"
            " [bin.dataset.count, bin.querySelector('.own').height.baseVal.value]))",
            thread,
        )
    ]


@pytest.mark.long
def test_bars_add_up_to_the_calls(recorded_page: tuple[Path, list[dict[str, Any]], Path], open_page: Open) -> None:
    page, threads, table = recorded_page
    browser = open_page(page)
    ((calls,),) = duckdb.connect().execute(f"SELECT count(*) FROM '{table}'").fetchall()
    drawn = [bars(browser, number) for number in range(len(threads))]
    for thread, figures in zip(threads, drawn, strict=True):
        assert len(figures) == 1 + len(EVENTS)
        assert [sum(count for count, _ in figure) for figure in figures] == [thread["calls"]] * len(figures)
        for figure in figures:
            most, tallest = max(figure)
            assert tallest > 50
            for count, height in figure:
                assert height == pytest.approx(max(tallest * count / most, 1.5), abs=0.11)
    assert sum(thread["calls"] for thread in threads) == calls


@pytest.mark.long
def test_heat_maps_are_the_tables_of_the_statistics(
    recorded_page: tuple[Path, list[dict[str, Any]], Path], open_page: Open
) -> None:
    page, threads, _ = recorded_page
    browser = open_page(page)
    for number, thread in enumerate(threads):
        read = browser.execute_script(
            "return [...document.querySelectorAll(`#T${arguments[0]} .map`)].map((map) =>"
            " [...map.querySelectorAll('tbody tr')].map((row) => [...row.querySelectorAll('td')].map((cell) =>"
            " [Number(cell.title), cell.textContent, getComputedStyle(cell).backgroundColor])))",
            number,
        )
        assert len(read) == len(thread["pairs"]) == 3
        for cells, pair in zip(read, thread["pairs"], strict=True):
            values = [[value for value, _, _ in row] for row in cells]
            assert values == [pytest.approx(row, abs=1e-6) for row in pair["probabilities"]]
            colours = {value: colour for row in cells for value, _, colour in row}
            assert len(set(colours.values())) > 1
            # Against the statistics: the six digits of a title may round to another percent (0.5749999).
            percents = [text for row in cells for _, text, _ in row]
            exact = [100 * value for row in pair["probabilities"] for value in row]
            whole = [(int(text), value) for text, value in zip(percents, exact, strict=True) if text.isdigit()]
            assert whole
            assert all(abs(percent - value) <= 0.5 + 1e-9 for percent, value in whole)


def test_correlations_lead_to_heat_maps_and_tabs_to_threads(
    recorded_page: tuple[Path, list[dict[str, Any]], Path], open_page: Open
) -> None:
    page, threads, _ = recorded_page
    browser = open_page(page, "#T0")
    assert shown(browser) == "T0"
    link = browser.find_element(By.CSS_SELECTOR, "#T0 .matrix tbody tr:nth-child(3) td:nth-of-type(1) a")
    link.click()
    figure = browser.find_element(By.ID, "T0-0-2")
    WebDriverWait(browser, 5).until(lambda chrome: chrome.switch_to.active_element == figure)
    assert "duration_us quantile (↓) given minor-faults quantile (→)" in figure.text
    ActionChains(browser).send_keys("j").perform()
    assert shown(browser) == ("T1" if len(threads) > 1 else "overview")
    ActionChains(browser).send_keys("k").send_keys("k").perform()
    assert shown(browser) == "overview"
    browser.find_element(By.ID, "tab-overview").send_keys(Keys.ARROW_RIGHT)
    assert shown(browser) == "T0"
    ActionChains(browser).send_keys("?").perform()
    assert browser.find_element(By.ID, "keys").is_displayed()


def test_each_bar_says_what_it_is(recorded_page: tuple[Path, list[dict[str, Any]], Path], open_page: Open) -> None:
    """On hover by its title; for those who hear the page, in a table."""
    browser = open_page(recorded_page[0], "#T0")
    figure = browser.find_element(By.CSS_SELECTOR, "#T0 .series")
    titles = [str(title.get_attribute("textContent")) for title in figure.find_elements(By.CSS_SELECTOR, ".bin title")]
    figure.find_element(By.TAG_NAME, "summary").click()
    rows = [row.text.split() for row in figure.find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert len(rows) == len(titles) > 1
    for title, row in zip(titles, rows, strict=True):
        assert f": {row[-3]} calls, {row[-2]} %" in title
    assert all(" ns" in title or "µs" in title or " ms" in title for title in titles)


def test_both_themes_are_readable(recorded_page: tuple[Path, list[dict[str, Any]], Path], open_page: Open) -> None:
    browser = open_page(recorded_page[0], "#T0")
    cell = browser.find_element(By.CSS_SELECTOR, "#T0 .heat tbody td.q18, #T0 .heat tbody td:not(.q0)")
    colours = set()
    for _ in range(2):
        browser.find_element(By.ID, "theme").click()
        colours.add((cell.value_of_css_property("background-color"), cell.value_of_css_property("color")))
    assert len(colours) == 2
    assert all(back != text for back, text in colours)


def test_names_take_no_effect(hostile_page: Path, open_page: Open) -> None:
    browser = open_page(hostile_page, "#T0")
    visible = EVIL.replace("\u2028", "?")
    assert browser.find_element(By.CSS_SELECTOR, "#T0 .series:nth-child(2) b").text == visible
    assert visible in browser.find_element(By.CSS_SELECTOR, "#T0 h2").text
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 2
