"""The tabs of sources in a real Chromium: what has no cost is folded away and back, and the map of heat leads there."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By

from tests.browser.conftest import Open, settle
from tests.browser.test_reports_browser import find, go, ids, press, texts
from tests.builders import attribution, graph, op, site
from tests.pages import build_page, render_page
from tracemap.reports.html import write_page
from tracemap.reports.page import source_tabs

LINES = 1200
HOT = {300: 7, 301: 1, 330: 2, 900: 90}
"""Lines with a cost; all others have none."""


@pytest.fixture(scope="module", params=["in the markup", "by the script"])
def long(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A page of many lines, which stand in its markup, or which its script makes."""
    target = tmp_path_factory.mktemp("pages") / "long.html"
    ops = [op(number, line) for number, line in enumerate(HOT)]
    map_ = graph(ops, [site(number, number, kernel=f"k{number}") for number in range(len(HOT))])
    costs = attribution(map_, {"cpu_ns": {f"site{number}": cost for number, cost in enumerate(HOT.values())}})
    text = "".join(f"line {number}\n" for number in range(1, LINES + 1))
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "by the script":
            patched.setattr(source_tabs, "MOST_IN_MARKUP", 0)
        write_page(render_page(build_page(map_, costs, lambda _: text)), target, force=False)
    return target


HOSTILE = "</script><script>alert(1)</script>"
ODD = ("<b>&amp;</b>", "", "  two\ttabs\t", "\u202eedoc", "a\rb\0c", HOSTILE, "\U0001f600")
ROWS = """
return [...document.querySelectorAll("#F0 .chunk")].map((block) => [
  block.className,
  [...block.children].map((row) => [row.id, row.className, row.lastElementChild.outerHTML]),
]);
"""


def test_lines_are_the_same_whoever_makes_them(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_ = graph([op(0, 1)], [site(0, 0)])
    text = "\n".join(ODD[number % len(ODD)] for number in range(250))
    found = []
    for most in (1_000_000, 0):
        monkeypatch.setattr(source_tabs, "MOST_IN_MARKUP", most)
        page = render_page(build_page(map_, None, lambda _: text))
        assert ("alert(1)" in page) == (most > 0)
        assert ("Showing this file (250 lines) needs JavaScript." in page) == (most == 0)
        write_page(page, tmp_path / f"{most}.html", force=False)
        browser = open_page(tmp_path / f"{most}.html", "#F0L201")
        found.append(browser.execute_script(ROWS))
        assert ids(browser, ".l.selected") == {"F0L201"}
        top = "return document.getElementById('F0L201').getBoundingClientRect().top"
        assert 0 < browser.execute_script(top) < browser.execute_script("return innerHeight")
    assert found[0] == found[1]
    assert len(found[0]) == 3


def shown_lines(browser: Chrome) -> list[int]:
    settle(browser)
    found = browser.execute_script(
        "return [...document.querySelectorAll('#F0 .chunk .l[id]:not([hidden])')].map((row) => Number(row.id.slice(3)))"
    )
    return [int(number) for number in found]


@pytest.mark.long
def test_what_has_no_cost_is_folded_away(open_page: Open, long: Path) -> None:
    browser = open_page(long, "#F0")
    assert len(shown_lines(browser)) == LINES
    press(browser, "f")
    around = {number + by for number in HOT for by in range(-2, 3)}
    assert set(shown_lines(browser)) == around
    said = texts(browser, "#F0 .fold")
    folded = [int(text.split()[1]) for text in said]
    assert sum(folded) == LINES - len(around)
    assert said[0] == "… 297 lines without cost"
    assert browser.current_url.endswith("#F0?fold=1")
    height = browser.execute_script("return document.getElementById('F0').scrollHeight")
    assert height < 2000
    find(browser, "#F0 .fold button").click()
    assert set(shown_lines(browser)) == around | set(range(1, 298))
    press(browser, "f")
    assert len(shown_lines(browser)) == LINES
    assert browser.find_elements(By.CSS_SELECTOR, ".fold") == []


@pytest.mark.long
def test_a_link_to_what_is_folded_opens_it(open_page: Open, long: Path) -> None:
    browser = open_page(long, "#F0L600?fold=1")
    assert find(browser, "#F0L600").is_displayed()
    assert ids(browser, ".l.selected") == {"F0L600"}
    assert 599 in shown_lines(browser)
    assert 100 not in shown_lines(browser)
    press(browser, "n")
    assert ids(browser, ".l.selected") == {"F0L900"}
    assert find(browser, "#F0L900 .a").text == "45 ns"


@pytest.mark.long
def test_the_map_of_heat_leads_to_the_line(open_page: Open, long: Path) -> None:
    browser = open_page(long, "#F0")
    heat = find(browser, "#F0 .minimap .map")
    assert heat.value_of_css_property("background-image").count("color") > 0
    top = int(browser.execute_script("return document.getElementById('F0').scrollTop"))
    assert top == 0
    share = browser.execute_script(
        "const row = document.getElementById('F0L900'), panel = document.getElementById('F0');"
        "return (row.getBoundingClientRect().top - panel.getBoundingClientRect().top) / panel.scrollHeight"
    )
    height = heat.size["height"]
    ActionChains(browser).move_to_element_with_offset(heat, 0, round((share - 0.5) * height)).click().perform()
    settle(browser)
    assert browser.execute_script(
        "const row = document.getElementById('F0L900').getBoundingClientRect();"
        "return row.top > 0 && row.bottom < innerHeight"
    )


@pytest.mark.long
def test_a_bar_names_what_it_is_of(open_page: Open, long: Path) -> None:
    browser = open_page(long, "#F0L900")
    words = str(find(browser, "#F0L900 .bar").get_attribute("title")).split("\n")
    assert words == ["op3 linalg.generic 45 ns", "of site3 45 ns"]
    go(browser, "#F0L330")
    assert str(find(browser, "#F0L330 .bar").get_attribute("title")).startswith("op2 linalg.generic")
