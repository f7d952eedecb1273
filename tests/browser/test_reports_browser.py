"""The annotated page in a real Chromium: views, tables, links between lines, keys, themes, hostile text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.attribution.test_kernel_lines import measured, stepped
from tests.browser.conftest import Open, log, settle, unfold
from tests.builders import MODEL, attribution, graph, op, site
from tests.pages import build_page, render_page
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS, page_of
from tracemap.map.model import SourceFile
from tracemap.reports.html import write_page


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the small graph whose numbers are known."""
    target = tmp_path_factory.mktemp("pages") / "small.html"
    write_page(render_page(page_of(GRAPH, attribution(GRAPH, TOTALS, executes=EXECUTES))), target, force=False)
    return target


def find(browser: Chrome, selector: str) -> WebElement:
    settle(browser)
    return browser.find_element(By.CSS_SELECTOR, selector)


def texts(browser: Chrome, selector: str) -> list[str]:
    settle(browser)
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def view(browser: Chrome) -> str:
    """Id of the only view that is shown."""
    settle(browser)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('[role=tabpanel]')].filter((p) => p.offsetParent).map((p) => p.id)"
    )
    assert len(shown) == 1
    (selected,) = browser.find_elements(By.CSS_SELECTOR, "[role=tab][aria-selected=true]")
    assert selected.get_attribute("aria-controls") == shown[0]
    return str(shown[0])


def press(browser: Chrome, *keys: str) -> None:
    for key in keys:
        browser.switch_to.active_element.send_keys(key)
        settle(browser)


def go(browser: Chrome, anchor: str) -> None:
    browser.execute_script("location.hash = arguments[0]", anchor)
    settle(browser)


def ids(browser: Chrome, selector: str) -> set[str]:
    settle(browser)
    return {str(element.get_attribute("id")) for element in browser.find_elements(By.CSS_SELECTOR, selector)}


def first_cells(browser: Chrome, panel: str) -> list[str]:
    return texts(browser, f"#{panel} tbody td:first-child")


def header(browser: Chrome, panel: str, label: str) -> WebElement:
    (cell,) = [
        cell
        for cell in browser.find_elements(By.CSS_SELECTOR, f"#{panel} thead th")
        if str(cell.get_property("textContent")) == label
    ]
    return cell


def test_the_overview_says_what_it_went_for_and_folds_the_rest(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    assert view(browser) == "overview"
    assert "9 ops" not in find(browser, "#overview").text
    overview = find(unfold(browser), "#overview").text
    assert "4 of 5 dispatches (5 kernels) are traced to ops. The model has 9 ops." in overview
    assert "not measured" in overview
    assert "submission-and-queue" in find(browser, "#unattributed").text
    assert "something is odd" in overview
    named = [text.split()[0] for text in texts(browser, "#top-ops tr td:first-child")]
    assert named == ["op3", "op2", "op5", "op6"]


@pytest.mark.long
def test_tables_sort_both_ways_and_say_so(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#ops")
    assert first_cells(browser, "ops")[:4] == ["op3", "op2", "op5", "op6"]
    cell = header(browser, "ops", "attributed")
    assert cell.get_attribute("aria-sort") == "descending"
    cell.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert cell.get_attribute("aria-sort") == "ascending"
    assert first_cells(browser, "ops")[:4] == ["op5", "op6", "op2", "op3"]
    by_id = header(browser, "ops", "op")
    by_id.find_element(By.TAG_NAME, "button").click()
    assert (by_id.get_attribute("aria-sort"), cell.get_attribute("aria-sort")) == ("ascending", "none")
    assert first_cells(browser, "ops") == [f"op{number}" for number in range(9)]


def test_tables_filter_by_words(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#ops")
    press(browser, "/")
    press(browser, "attn DISPATCHED")
    assert set(first_cells(browser, "ops")) == {"op2", "op3"}
    assert find(browser, "#ops [role=status]").text == "2 of 9 shown, 7 filtered out (25.0 % of the cost)"
    press(browser, Keys.ESCAPE)
    press(browser, "5" if view(browser) == "F1" else "1")
    assert view(browser) == "overview"


@pytest.mark.long
def test_a_click_leads_from_a_line_to_its_sites_to_the_lines_of_their_members(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0")
    find(browser, "#F0L3 code").click()
    assert ids(browser, ".l.selected") == {"F0L3"}
    assert ids(browser, ".l.related") == {"F0L3", "F0L4", "F1L1"}
    details = find(browser, "#inspector")
    assert details.is_displayed()
    assert "site0" in details.text
    assert browser.current_url.endswith("#F0L3")
    (member,) = details.find_elements(By.LINK_TEXT, "model.mlir:4")
    member.click()
    assert ids(browser, ".l.selected") == {"F0L4"}
    find(browser, "#inspector").find_element(By.LINK_TEXT, "site1").click()
    assert find(browser, "#inspector h2").text == "site1"
    assert ids(browser, ".l.related") == {"F0L4", "F1L1"}
    press(browser, Keys.ESCAPE)
    assert not find(browser, "#inspector").is_displayed()
    assert ids(browser, ".l.selected, .l.related") == set()


@pytest.mark.long
@pytest.mark.parametrize(
    ("anchor", "shown", "title"), [("#F1L4", "F1", "net.py:4"), ("#op5", "F0", "op5"), ("#site0", "F0", "site0")]
)
def test_addresses_open_what_they_name(open_page: Open, small: Path, anchor: str, shown: str, title: str) -> None:
    browser = open_page(small, anchor)
    assert view(browser) == shown
    assert find(browser, "#inspector h2").text == title


def test_the_error_of_sampling_stands_beside_the_cost(open_page: Open, tmp_path: Path) -> None:
    """Of 200 samples of site0 150 are of op1, 50 of op2; op3 is alone in its site, so its cost is certain."""
    target = tmp_path / "sampled.html"
    result = measured(tmp_path, ("k0", 0, 2, 150), ("k0", 0, 3, 50))
    write_page(render_page(build_page(stepped(), result, lambda _: "\n".join("abcdefgh"))), target, force=False)
    browser = open_page(target, "#op1")
    assert "95 % interval of the samples: 549 ns – 646 ns" in find(browser, "#inspector").text
    go(browser, "#op3")
    assert find(browser, "#inspector h2").text == "op3"
    assert "95 %" not in find(browser, "#inspector").text
    go(browser, "#overview")
    assert find(browser, "#overview").text.count("shares-are-occupancy") == 1


def test_an_address_that_names_nothing_opens_the_overview(open_page: Open, small: Path) -> None:
    assert view(open_page(small, "#F7L1")) == "overview"
    assert view(open_page(small, "#%E0%A4%A")) == "overview"


def test_tabs_move_by_arrow_keys(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    find(browser, "#tab-overview").send_keys(Keys.ARROW_RIGHT)
    assert view(browser) == "F0"
    assert browser.switch_to.active_element.get_attribute("id") == "tab-F0"
    press(browser, Keys.END)
    assert view(browser) == "scopes"
    press(browser, Keys.ARROW_RIGHT)
    assert view(browser) == "overview"
    focusable = browser.find_elements(By.CSS_SELECTOR, "[role=tab][tabindex='0']")
    assert [tab.get_attribute("id") for tab in focusable] == ["tab-overview"]


@pytest.mark.long
def test_keys_walk_the_hottest_lines(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0")
    walked: list[str] = []
    for key in ("n", "n", "n", "n", "n", "p"):
        press(browser, key)
        walked.extend(ids(browser, ".l.selected"))
    assert walked == ["F0L4", "F0L3", "F0L7", "F0L8", "F0L4", "F0L8"]
    press(browser, "k")
    assert ids(browser, ".l.selected") == {"F0L7"}


def test_keys_are_explained(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    press(browser, "?")
    assert find(browser, "#keys").is_displayed()
    assert "next, previous hottest line" in find(browser, "#keys").text
    find(browser, "#keys-close").click()
    assert not find(browser, "#keys").is_displayed()


def test_every_metric_can_be_chosen(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0L4")
    assert find(browser, "#F0L4 .a").text == "75 ns"
    press(browser, "m")
    assert find(browser, "#F0L4 .a").text == "7.50 ns"
    assert find(browser, "#F0L4 .i").text == "10.5 ns"
    assert "7.50 ns" in find(browser, "#inspector").text
    press(browser, "4")
    assert "7.50 ns" in find(browser, "#ops tbody tr").text


def colours(browser: Chrome) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body.parentElement).backgroundColor"))


def prefer(browser: Chrome, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def keeps_theme(browser: Chrome, colour: str) -> bool:
    """Whether the theme that the button gives is there after a reload.

    A Chromium that has just begun with a new profile now and then loses what a page stored an instant before a reload.
    """
    find(browser, "#theme").click()
    assert colours(browser) == colour
    browser.refresh()
    return colours(browser) == colour


def test_themes_follow_the_system_and_the_reader(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0")
    prefer(browser, "dark")
    dark = colours(browser)
    dark_picture = browser.get_screenshot_as_png()
    prefer(browser, "light")
    light = colours(browser)
    assert dark != light
    assert browser.get_screenshot_as_png() != dark_picture
    WebDriverWait(browser, 20).until(lambda shown: keeps_theme(shown, dark), "the reader's theme is forgotten")
    press(browser, "t")
    assert colours(browser) == light


CONTRASTS = """
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const pixel = (colours) => {
  paint.fillStyle = "#fff"; paint.fillRect(0, 0, 1, 1);
  for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
  return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = [];
for (const element of document.querySelectorAll(arguments[0])) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility()) continue;
  const backs = [];
  for (let at = element; at; at = at.parentElement) backs.unshift(getComputedStyle(at).backgroundColor);
  const [a, b] = [pixel(backs), pixel([...backs, getComputedStyle(element).color])].map(luminance);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.push([ratio, element.className, element.textContent.slice(0, 30)]);
}
return found.sort((x, y) => x[0] - y[0]);
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("anchor", ["", "#F0", "#F1", "#hottest", "#ops", "#sites", "#scopes"])
def test_text_is_readable_on_every_heat(open_page: Open, real: Path, scheme: str, anchor: str) -> None:
    browser = open_page(real, anchor if anchor != "#hottest" else "#F0")
    prefer(browser, scheme)
    if anchor == "#hottest":
        press(browser, "n")
    found: list[list[Any]] = browser.execute_script(CONTRASTS, "body *")
    prefer(browser, "light")
    assert len(found) > 20
    assert [entry for entry in found if entry[0] < 4.5] == []


@pytest.mark.long
def test_every_link_leads_somewhere(open_page: Open, real: Path) -> None:
    browser = open_page(real)
    for panel in ("ops", "sites", "scopes"):
        find(browser, f"#tab-{panel}").click()
    press(browser, "n")
    assert view(browser) == "F0"
    targets = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('a')].map((a) => a.getAttribute('href')))]"
    )
    assert all(target.startswith("#") for target in targets)
    lines = browser.execute_script("return arguments[0].filter((t) => !document.getElementById(t.slice(1)))", targets)
    rest = {target for target in lines if target not in {"#ops", "#sites", "#scopes"}}
    inside = {target for target in rest if target.startswith("#kernel")}
    for target in sorted(inside)[:5]:
        go(browser, target)
        assert view(browser) == "kernels"
        assert texts(browser, "#kernel-ops button.on")[0].split()[0] == target.partition("-")[2]
    rest -= inside
    assert {target.rstrip("0123456789") for target in rest} == {"#op", "#site"}
    for target in sorted(rest)[:: max(1, len(rest) // 25)]:
        go(browser, target)
        assert find(browser, "#inspector h2").text == target[1:]


@pytest.mark.long
def test_real_pages_show_cost_on_model_and_python_lines(open_page: Open, real: Path) -> None:
    browser = open_page(real)
    labels = texts(browser, "[role=tab]")
    assert "jax_mlp.mlir" in labels
    assert "jax_models.py" in labels
    for source in ("F0", "F1"):
        go(browser, f"#{source}")
        press(browser, "n")
        hot = browser.find_elements(By.CSS_SELECTOR, f"#{source} .h10 .a")
        assert len(hot) >= 1
    go(browser, "#F0")
    press(browser, "n")
    assert view(browser) == "F0"
    assert find(browser, ".l.selected .g").get_attribute("class") == "g h10"
    assert find(browser, "#inspector").is_displayed()


EVIL = "</script><img src=x onerror=\"document.title='owned'\">"


def test_hostile_text_is_inert(open_page: Open, tmp_path: Path) -> None:
    ops = (op(0, 1, name=EVIL, scope=(EVIL,), frames=[(EVIL, 1)], function=EVIL, reason=EVIL),)
    map_ = graph(ops, (site(0, 0, kernel=EVIL, path=[0]),), sources=(MODEL, SourceFile(EVIL, "x", "python")), name=EVIL)
    target = tmp_path / "evil.html"
    page = build_page(map_, attribution(map_, {EVIL: {"site0": 3}}), lambda _: f'{EVIL}\n"{EVIL}"')
    write_page(render_page(page), target, force=False)
    browser = open_page(target)
    for anchor in ("#ops", "#sites", "#scopes", "#F0L1", "#F1L1", "#site0", "#op0", "#" + EVIL):
        go(browser, anchor)
        assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.title == f"{MODEL.name} – tracemap"
    assert EVIL in find(browser, "#inspector").text


def test_the_policy_stops_what_would_run_or_load(open_page: Open, small: Path) -> None:
    """Were text ever to slip through unescaped, the page's own policy would still stop it."""
    browser = open_page(small)
    image = '<img src="data:image/png;base64,AAAA" onerror="document.title=1">'
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", image)
    refused = [entry["message"] for entry in log(browser, "browser")]
    assert any("Content Security Policy" in message for message in refused)
    assert browser.title != "1"
    log(browser, "performance")  # the attempt stands there, though nothing was loaded


def test_sources_can_be_read_without_scripts(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(small.as_uri() + "?plain")
        assert browser.find_element(By.CSS_SELECTOR, "#F0L4 code").is_displayed()
        assert browser.find_element(By.CSS_SELECTOR, "#F1L4").is_displayed()
        assert browser.find_element(By.CSS_SELECTOR, "#F0L4").text == "line 4"
        assert "75 ns" in browser.find_element(By.CSS_SELECTOR, "#top-ops").text
        assert not browser.find_element(By.CSS_SELECTOR, "#ops").is_displayed()
        assert "need JavaScript" in browser.find_element(By.CSS_SELECTOR, "#overview").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        log(browser, "performance")


@pytest.mark.long
def test_ten_thousand_lines_stay_fluid(open_page: Open, tmp_path: Path) -> None:
    count = 10_000
    ops = [op(number, number + 1, scope=(f"h{number % 50}",)) for number in range(count)]
    sites = [site(index, *range(index * 4, index * 4 + 4)) for index in range(count // 4)]
    map_ = graph(ops, sites)
    costs = attribution(map_, {"cpu_ns": {entry.id: entry.ordinal + 1 for entry in sites}})
    text = "".join(f"  %{n} = stablehlo.add %a, %b : tensor<64x256xf32> loc(#loc{n})\n" for n in range(count))
    target = tmp_path / "long.html"
    write_page(render_page(build_page(map_, costs, lambda _: text)), target, force=False)
    browser = open_page(target, "#F0L9000")
    assert view(browser) == "F0"
    assert find(browser, "#F0L9000").is_displayed()
    spent = browser.execute_script(
        "const start = performance.now(); const panel = document.getElementById('F0');"
        "for (let at = 0; at < panel.scrollHeight; at += 20000) { panel.scrollTop = at; panel.scrollHeight; }"
        "return [performance.now() - start, panel.scrollHeight]"
    )
    assert spent[0] < 5000
    assert spent[1] > count * 18
    for anchor in ("#ops", "#sites", "#F0"):
        go(browser, anchor)
        assert view(browser) == anchor[1:]


@pytest.mark.long
def test_long_tables_have_the_rows_in_view(open_page: Open, tmp_path: Path) -> None:
    count = 3_000
    map_ = graph([op(number, number + 1, name=f"odd.name{number}") for number in range(count)], [site(0, 0)])
    target = tmp_path / "long.html"
    write_page(render_page(build_page(map_, None, lambda _: "x\n" * count)), target, force=False)
    browser = open_page(target, "#ops?ops.sort=op")
    scroll = "const panel = document.getElementById('ops'); panel.scrollTop = arguments[0] * panel.scrollHeight"
    for part in (0.0, 0.5, 0.25, 1.0):
        browser.execute_script(scroll, part)
        settle(browser)
        in_view = browser.execute_script(
            "const panel = document.getElementById('ops').getBoundingClientRect();"
            "return [...document.querySelectorAll('#ops tbody tr:not(.space)')].filter((row) => {"
            "  const { top, bottom } = row.getBoundingClientRect(); return top >= panel.top && bottom <= panel.bottom;"
            "}).map((row) => row.cells[0].textContent)"
        )
        numbers = [int(text.removeprefix("op")) for text in in_view]
        assert len(numbers) > 25
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] == pytest.approx(min(part * count, count - len(numbers)), abs=4)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#ops tbody tr")) < 200
    # On paper all rows are, and in the view behind it as few as before.
    seen = "document.querySelectorAll('#ops tbody tr:not(.space)').length"
    browser.execute_script(f"addEventListener('beforeprint', () => {{ window.printed = {seen} }})")
    browser.execute_cdp_cmd("Page.printToPDF", {"pageRanges": "1"})
    assert browser.execute_script(f"return [window.printed, {seen} < 200]") == [count, True]
    press(browser, "/", "name2999")
    assert first_cells(browser, "ops") == ["op2999"]


def test_a_narrow_window_has_all_within_its_width(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        settle(browser)
        assert browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [400, 400]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
