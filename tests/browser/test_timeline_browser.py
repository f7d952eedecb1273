"""The timeline in a real Chromium: zoom by keys and wheel, what the address keeps, ways to sites, hostile names."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import Open, settle, unfold
from tests.browser.test_reports_browser import EVIL, find, go, press, texts, view
from tests.pages import render_page
from tests.timelines import SITES, events, layers, page_of_run, written
from tracemap.attribution.model import MOST_SLOWEST
from tracemap.core.units import format_ns
from tracemap.reports.html import write_page

CALLS, SPANS = 12, 400
LONGEST, MEDIAN = 0, 6
"""Numbers of calls: the first takes longest."""


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the timeline of a dozen calls."""
    folder = tmp_path_factory.mktemp("timeline")
    page = page_of_run(layers(), written(folder / "run.csv", CALLS, SPANS))
    write_page(render_page(page), folder / "timed.html", force=False)
    return folder / "timed.html"


def drawn(browser: Chrome) -> dict[str, list[float]]:
    """By style the left ends and widths of what is drawn, as the paths say it, in turn."""
    script = """
    const paths = [...document.querySelectorAll("#spans path.span")];
    return paths.map((path) => [path.getAttribute("class"), path.getAttribute("d")]);
    """
    settle(browser)
    found: dict[str, list[float]] = {}
    for style, path in browser.execute_script(script):
        found[style.split()[1]] = [
            float(part) for each in re.findall(r"M([-\d.]+),\d+h([-\d.]+)", path) for part in each
        ]
    return found


def axis(browser: Chrome) -> list[str]:
    return texts(browser, "#spans .axis text")


def picture(browser: Chrome) -> Any:  # noqa: ANN401 - an element
    return find(browser, "#spans svg")


def said(browser: Chrome) -> str:
    return find(browser, "#spans-said").text


def address(browser: Chrome, part: str) -> str:
    """The address, once it has the part: what is in view is told when it has not changed for a moment."""
    time.sleep(0.4)
    WebDriverWait(browser, 5).until(lambda _: part in browser.current_url)
    return browser.current_url


@pytest.mark.long
def test_a_call_is_drawn_in_the_colours_of_scopes(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    assert view(browser) == "timeline"
    assert texts(browser, "#spans-legend .key") == [*(f"layer{number}" for number in range(5)), "submission"]
    assert [text.split("\n")[0] for text in texts(browser, "#spans .span-names text")] == [
        "submissions worker",
        "kernels worker0",
        "kernels worker1",
    ]
    found = drawn(browser)
    assert set(found) == {*(f"scope-{number}" for number in range(5)), "span-queue"}
    assert len(found["span-queue"]) == 2
    assert Select(find(browser, "#call")).first_selected_option.text.startswith(f"invocation {MEDIAN}: ")
    press(browser, Keys.ESCAPE)
    find(browser, "[data-spans=kind]").click()
    assert set(drawn(browser)) == {"kind-other", "span-queue"}
    assert "spans=kind" in browser.current_url


@pytest.mark.long
def test_keys_zoom_and_move_and_the_address_restores_what_is_in_view(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    before = drawn(browser)
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, "w", "+")
    nearer = drawn(browser)
    # Twice by one and a half: what lies in view is so much wider.
    assert max(nearer["scope-0"][1::2]) == pytest.approx(2.25 * max(before["scope-0"][1::2]), rel=0.2)
    assert sum(map(len, nearer.values())) < sum(map(len, before.values()))
    press(browser, "d")
    moved = drawn(browser)
    assert moved != nearer
    ranged = address(browser, "range=")
    ticks = axis(browser)
    again = open_page(timed, "#" + ranged.split("#")[1])
    restored = drawn(again)  # of times in whole nanoseconds
    assert restored.keys() == moved.keys()
    assert all(restored[style] == pytest.approx(moved[style], abs=0.5) for style in moved)
    assert axis(again) == ticks
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, "0")
    assert drawn(browser) == before
    WebDriverWait(browser, 5).until(lambda _: "range=" not in browser.current_url)
    assert view(browser) == "timeline"


@pytest.mark.long
def test_the_wheel_zooms_where_it_stands_and_dragging_moves(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    svg = picture(browser)
    before = axis(browser)
    origin = ScrollOrigin.from_element(svg, x_offset=100)
    ActionChains(browser).scroll_from_origin(origin, 0, -400).perform()
    nearer = axis(browser)
    assert nearer != before
    first = drawn(browser)
    ActionChains(browser).move_to_element(svg).click_and_hold().move_by_offset(-120, 0).release().perform()
    assert view(browser) == "timeline"  # what was dragged is not clicked
    dragged = drawn(browser)
    assert dragged != first
    assert max(dragged["scope-1"][1::2]) == pytest.approx(max(first["scope-1"][1::2]), rel=0.5)
    assert "range=" in address(browser, "range=")


@pytest.mark.long
def test_spans_say_their_op_and_line_and_fill_the_height(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, *"w" * 12)
    labels = texts(browser, "#spans .span-labels text")
    assert "generic" in labels
    assert any(re.fullmatch(r"(model\.mlir)?:\d+", label) for label in labels)
    bottom = "const box = document.getElementById('spans'); return [box.scrollHeight, box.clientHeight]"
    full, shown = browser.execute_script(bottom)
    assert full <= shown
    ends = "((path) => path.getBBox().y + path.getBBox().height)"
    lowest = max(browser.execute_script(f"return [...document.querySelectorAll('#spans path.span')].map{ends}"))
    assert lowest > 0.9 * shown


def test_a_range_is_summed(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    total = find(browser, "#spans-sum").text
    match = re.match(r"In view .+ from 0 ns: (\d+) kernel calls, .+ in kernels\. Top ops: ", total)
    assert match
    assert "Drag with Shift to sum a range." in total
    svg = picture(browser)
    drag = ActionChains(browser).move_to_element(svg).key_down(Keys.SHIFT).click_and_hold()
    drag.move_by_offset(120, 0).release().key_up(Keys.SHIFT).perform()
    assert view(browser) == "timeline"
    selected = find(browser, "#spans-sum").text
    part = re.match(r"Selected .+: (\d+) kernel calls?, ", selected)
    assert part
    assert 0 < int(part[1]) < int(match[1])
    shares = [float(number) for number in re.findall(r"\(([\d.]+) %\)", selected)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, Keys.ESCAPE)
    assert find(browser, "#spans-sum").text == total
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).key_up(
        Keys.SHIFT
    ).perform()
    assert find(browser, "#spans-sum").text.startswith("Selected ")


@pytest.mark.long
def test_arrows_choose_spans_and_enter_leads_to_the_site(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, Keys.ARROW_RIGHT)
    assert said(browser).startswith("execute · ")
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    _, kernel, place, *_, duration, _ = [event for event in events(CALLS, SPANS) if event[3] == MEDIAN][3]
    words = said(browser)
    assert words.startswith(f"{place} · {kernel} · ")
    assert f"of invocation {MEDIAN}" in words
    assert "op2 linalg.generic 100.0 %" in words
    assert f" · {format_ns(duration)} at " in words
    press(browser, Keys.ENTER)
    assert view(browser) == "F0"
    assert find(browser, "#inspector h2").text == place
    browser.back()
    assert view(browser) == "timeline"


@pytest.mark.long
def test_choosing_spans_moves_no_farther_than_it_must(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    width = max(drawn(browser)["span-queue"])
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, "w", "w")
    ticks = axis(browser)
    press(browser, Keys.ARROW_RIGHT)  # the submission, which is longer than what is in view
    assert axis(browser) == ticks
    press(browser, Keys.ARROW_DOWN)  # the kernel that ran at the beginning of what is in view
    assert axis(browser)[1:-1] == ticks[1:-1]
    for _ in range(150):
        browser.execute_script(
            "document.querySelector('#spans svg').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
        )
    moved = axis(browser)
    assert moved != ticks
    (mark,) = browser.find_elements(By.CSS_SELECTOR, "#spans .mark.focused")
    assert 0 < float(str(mark.get_attribute("x"))) < width + 200


@pytest.mark.long
def test_a_click_leads_to_the_site_under_it(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    for _ in range(12):
        browser.execute_script("document.querySelector('#spans svg').focus()")
        press(browser, "w")
    svg = picture(browser)
    ActionChains(browser).move_to_element_with_offset(svg, 0, 0).perform()
    label = find(browser, "#spans .span-labels text:nth-child(2)")
    ActionChains(browser).move_to_element(label).perform()
    place = said(browser).split(" · ")[0]
    assert label.text == "generic"
    assert place.startswith("site")
    ActionChains(browser).click().perform()
    assert find(browser, "#inspector h2").text == place


@pytest.mark.long
def test_calls_can_be_compared_and_all_shown(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#timeline")
    Select(find(browser, "#beside")).select_by_value(f"1-{LONGEST}")
    titles = [text.split("\n")[0] for text in texts(browser, "#spans .span-names .title")]
    assert [title.split(",")[0] for title in titles] == [f"invocation {MEDIAN}", f"invocation {LONGEST}"]
    queue = drawn(browser)["span-queue"]
    assert queue[0] == queue[2]
    assert queue[1] < queue[3]
    Select(find(browser, "#call")).select_by_value("1-all")
    assert len(drawn(browser)["span-queue"]) == 2 * CALLS
    again = open_page(timed, "#" + browser.current_url.split("#")[1])
    assert Select(find(again, "#call")).first_selected_option.text == "all invocations"
    assert len(drawn(again)["span-queue"]) == 2 * CALLS


def test_a_slowest_call_of_a_site_is_shown_in_the_timeline(open_page: Open, timed: Path) -> None:
    browser = unfold(open_page(timed, "#site3"))
    row = find(browser, "#inspector details tr")
    assert f"invocation {LONGEST}" in row.text
    row.find_element(By.TAG_NAME, "button").click()
    assert view(browser) == "timeline"
    assert Select(find(browser, "#call")).first_selected_option.text.startswith(f"invocation {LONGEST}: ")
    assert said(browser).startswith("site3 · kernel3 · ")
    assert f"at {longest_start(3)}" in said(browser)


def longest_start(number: int) -> str:
    """When the slowest call of a site began, in its call of the function, as the page writes it."""
    of_call = [event for event in events(CALLS, SPANS) if event[3] == LONGEST]
    began = min(event[5] for event in of_call)
    slowest = max((event for event in of_call if event[2] == f"site{number}"), key=lambda event: (event[6], -event[5]))
    return format_ns(slowest[5] - began)


def test_the_histogram_of_a_site_leads_to_its_slowest_calls(open_page: Open, timed: Path) -> None:
    browser = open_page(timed, "#site3")
    titles = [str(bar.get_property("textContent")) for bar in browser.find_elements(By.CSS_SELECTOR, ".lengths rect")]
    counts = [int(re.search(r": ([\d,]+) calls?$", title)[1].replace(",", "")) for title in titles]  # type: ignore[index]
    assert sum(counts) == CALLS * SPANS // SITES
    marks = browser.find_elements(By.CSS_SELECTOR, "#inspector .card.selected .slow.linked")
    assert len(marks) == MOST_SLOWEST
    marks[0].send_keys(Keys.ENTER)
    assert view(browser) == "timeline"
    assert said(browser).startswith("site3 · kernel3 · ")
    assert f"at {longest_start(3)}" in said(browser)


def test_how_measures_of_a_sites_calls_go_together(open_page: Open, tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    rows = [f"kernel3,{1000 + call},{3 * call},{call % 2}" for call in range(64)]
    table.write_text("\n".join([f"kernel,duration_ns,misses,{EVIL}", *rows]) + "\n")
    write_page(render_page(page_of_run(layers(), table)), tmp_path / "page.html", force=False)
    browser = unfold(open_page(tmp_path / "page.html", "#site3"))
    matrix = browser.find_elements(By.CSS_SELECTOR, ".card.selected .matrix tbody tr")
    assert [row.text for row in matrix] == ["duration_ns 1 1.00 0.03", "misses 1.00 1 0.03", f"{EVIL} 0.03 0.03 1"]
    heat = [row.text for row in browser.find_elements(By.CSS_SELECTOR, ".card.selected .heat tbody tr")]
    assert heat == [" ".join([str(row), *("100" if row == column else "0" for column in range(8))]) for row in range(8)]
    # Of two values each, all quantiles of the one are in the first of the other: the second value is in the last edge.
    find(browser, ".matrix tbody tr:nth-child(3) button").click()
    assert f"given {EVIL} quantile" in find(browser, ".card.selected .together").text
    columns = browser.find_elements(By.CSS_SELECTOR, ".card.selected .heat tbody tr:first-child td")
    assert len(columns) == 8


@pytest.mark.long
def test_what_is_not_in_the_timeline_is_not_linked(open_page: Open, tmp_path: Path) -> None:
    page = page_of_run(layers(), written(tmp_path / "run.csv", CALLS, SPANS), most=SPANS + 1)
    write_page(render_page(page), tmp_path / "page.html", force=False)
    browser = unfold(open_page(tmp_path / "page.html", "#site3"))
    row = find(browser, "#inspector details tr")
    assert f"invocation {LONGEST}" in row.text
    assert "not in the timeline" in row.text
    assert browser.find_elements(By.CSS_SELECTOR, ".slow.linked") == []
    assert row.find_elements(By.TAG_NAME, "button") == []
    go(browser, "timeline")
    assert f"1 of {CALLS} invocations are shown" in find(browser, "#timeline").text


@pytest.mark.long
def test_hostile_names_and_addresses_are_inert(open_page: Open, tmp_path: Path) -> None:
    page = page_of_run(layers(EVIL), written(tmp_path / "run.csv", 2, 30, EVIL, EVIL))
    write_page(render_page(page), tmp_path / "evil.html", force=False)
    browser = open_page(tmp_path / "evil.html", f"#timeline?call={EVIL}&beside={EVIL}&range={EVIL}&spans={EVIL}")
    assert EVIL in str(find(browser, "#spans .span-names title").get_property("textContent"))
    browser.execute_script("document.querySelector('#spans svg').focus()")
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert EVIL in said(browser)
    assert drawn(browser)
    go(browser, "site3")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".card.selected .lengths rect")) == 2  # on a short axis
    assert "of all sites" not in find(browser, ".card.selected").text
    for anchor in ("#timeline?range=5-3", "#timeline?range=0-99999999999999999", "#timeline?call=1-99&beside=7-all"):
        go(browser, anchor)
        assert drawn(browser)
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert "owned" not in browser.title


@pytest.mark.long
def test_twenty_thousand_spans_stay_fluid(open_page: Open, tmp_path: Path) -> None:
    """What is drawn is bounded by pixels; speed itself is measured by `benchmarks/timeline.py`."""
    page = page_of_run(layers(), written(tmp_path / "run.csv", 1, 19_999))
    write_page(render_page(page), tmp_path / "many.html", force=False)
    browser = open_page(tmp_path / "many.html", "#timeline")
    width = browser.execute_script("return document.querySelector('#spans').clientWidth")
    assert 200 < sum(map(len, drawn(browser).values())) / 2 < 3 * width
    assert "events are left out" not in find(browser, "#timeline").text
