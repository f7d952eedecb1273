"""The annotated page in a real Chromium: views, tables, links between lines, keys, themes, hostile text."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.attribution.test_kernel_lines import measured, stepped
from tests.browser.conftest import MODEL_NAME, Open, log, settle, unfold
from tests.builders import MODEL, attribution, graph, op, site
from tests.conftest import Built, Recorded
from tests.pages import build_page, render_page
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS, page_of
from tests.support import check_cli, json_cli
from tracemap.map.model import Outcome, SourceFile
from tracemap.reports.html import write_page
from tracemap.reports.page.model import OpRow


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
    browser = open_page(small, "#overview")
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
    press(browser, "3")
    assert view(browser) == "overview"


@pytest.mark.long
def test_a_click_leads_from_a_line_to_its_sites_to_the_lines_of_their_members(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F0")
    find(browser, "#F0L3 code").click()
    assert ids(browser, ".l.selected") == {"F0L3"}
    assert ids(browser, ".l.related") == {"F0L3", "F0L4", "F1L1"}
    details = find(unfold(browser), "#inspector")
    assert details.is_displayed()
    assert "site0" in details.text
    assert browser.current_url.endswith("#F0L3")
    (member,) = details.find_elements(By.LINK_TEXT, "model.mlir:4")
    member.click()
    assert ids(browser, ".l.selected") == {"F0L4"}
    find(unfold(browser), "#inspector").find_element(By.LINK_TEXT, "site1").click()
    assert find(browser, "#inspector h2").text == "site1"
    assert ids(browser, ".l.related") == {"F0L4", "F1L1"}
    press(browser, Keys.ESCAPE)
    assert not find(browser, "#inspector").is_displayed()
    assert ids(browser, ".l.selected, .l.related") == set()


@pytest.mark.long
@pytest.mark.parametrize(
    ("anchor", "shown", "title"), [("#F1L4", "F1", "net.py:4"), ("#op5", "F1", "op5"), ("#site0", "F1", "site0")]
)
def test_addresses_open_what_they_name(open_page: Open, small: Path, anchor: str, shown: str, title: str) -> None:
    browser = open_page(small, anchor)
    assert view(browser) == shown
    assert find(browser, "#inspector h2").text == title


@pytest.mark.long
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


@pytest.mark.long
def test_an_address_that_names_nothing_opens_the_users_source(open_page: Open, small: Path) -> None:
    for anchor in ("", "#F7L1", "#%E0%A4%A"):
        browser = open_page(small, anchor)
        assert view(browser) == "F1"
    assert texts(browser, "[role=tab]")[:3] == ["net.py", "model.mlir", "Overview"]
    assert browser.title == "net.py: model – tracemap"


def test_tabs_move_by_arrow_keys(open_page: Open, small: Path) -> None:
    browser = open_page(small)
    find(browser, "#tab-F1").send_keys(Keys.ARROW_RIGHT)
    assert view(browser) == "F0"
    assert browser.switch_to.active_element.get_attribute("id") == "tab-F0"
    press(browser, Keys.END)
    assert view(browser) == "scopes"
    press(browser, Keys.ARROW_RIGHT)
    assert view(browser) == "F1"
    focusable = browser.find_elements(By.CSS_SELECTOR, "[role=tab][tabindex='0']")
    assert [tab.get_attribute("id") for tab in focusable] == ["tab-F1"]


def test_two_clicks_lead_from_the_page_to_the_code_of_the_hottest_line(open_page: Open, real: Path) -> None:
    """The run has no samples."""
    browser = open_page(real)
    assert view(browser) == "F1"
    hottest = find(browser, "#F1 .h10 .a")
    cost = hottest.text
    hottest.click()
    assert find(browser, "#inspector tr").text.split("\n")[0].startswith(f"total {cost}")
    find(browser, "#inspector a[href^='#kernel']").click()
    assert view(browser) == "kernels"
    in_view = """
        const pane = document.getElementById("kernel-code").getBoundingClientRect();
        return [...document.querySelectorAll("#kernel-code .kr.related")].map((row) => row.getBoundingClientRect())
            .filter(({ top, bottom }) => top >= pane.top && bottom <= pane.bottom).length;
    """
    settle(browser)
    assert browser.execute_script(in_view) > 0
    assert not find(browser, "#inspector").is_displayed()
    browser.back()
    assert view(browser) == "F1"
    assert find(browser, "#inspector").is_displayed()


@pytest.mark.long
def test_a_lines_panel_begins_with_its_total_and_its_kernels(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F1L4")
    rows = [text.replace("\n", " ") for text in texts(browser, "#inspector tr")]
    assert rows[:2] == ["total 118 ns 84.3 %", "self 0 ns 0.0 %"]
    assert [tuple(row.split(" ", 1)) for row in rows[2:5]] == [
        ("main$async_dispatch_0", "50.5 ns 42.8 %"),
        ("k1", "50 ns 42.4 %"),
        ("k2", "17.5 ns 14.8 %"),
    ]
    assert texts(browser, "#inspector > details > summary") == ["3 ops", "3 dispatches"]
    assert browser.find_elements(By.CSS_SELECTOR, "#inspector details[open]") == []
    assert texts(browser, "#inspector > p") == ["cpu_ns, per invocation, mean of 2", "Click a kernel for its code."]
    go(browser, "#F0L2")  # a call: the whole cost of the dispatch inside
    assert texts(browser, "#inspector tr")[0].replace("\n", " ") == "total 35 ns 25.0 %"


def test_forward_and_backward_follow_the_total_where_ops_say_their_pass(
    open_page: Open, small: Path, tmp_path: Path
) -> None:
    """A page whose ops have passes."""
    place = OpRow.__struct_fields__.index("pass_name")
    passes = {"op2": "forward", "op3": "backward", "op5": "forward"}

    def with_passes(match: re.Match[str]) -> str:
        data = json.loads(zlib.decompress(base64.b64decode(match[1])))
        for row in data.get("ops", ()):
            row[place] = passes.get(row[0], "")
        return match[0].replace(match[1], base64.b64encode(zlib.compress(json.dumps(data).encode())).decode())

    text = re.sub(r'class="data">(.*?)</script>', with_passes, small.read_text(encoding="utf-8"))
    (tmp_path / "passes.html").write_text(text, encoding="utf-8")
    browser = open_page(tmp_path / "passes.html", "#F1L4")
    rows = [text.replace("\n", " ") for text in texts(browser, "#inspector .totals tr")]
    assert rows == ["total 118 ns 84.3 %", "forward 43 ns 30.7 %", "backward 75 ns 53.6 %", "self 0 ns 0.0 %"]
    go(browser, "#ops")
    assert header(browser, "ops", "pass").is_displayed()


def test_before_the_script_has_run_the_first_view_alone_is_shown(browser: Chrome, small: Path, tmp_path: Path) -> None:
    text = small.read_text(encoding="utf-8")
    halted = tmp_path / "halted.html"
    halted.write_text(text[: text.rindex("<script>")] + "</body></html>", encoding="utf-8")
    browser.get(halted.as_uri())
    shown = "return [...document.querySelectorAll('main > *')].filter((e) => e.offsetHeight).map((e) => e.id)"
    assert browser.execute_script("return document.documentElement.className") == "js"
    assert browser.execute_script(shown) == ["F1"]
    log(browser, "browser")
    log(browser, "performance")


def test_nodes_of_onnx_models_come_first(open_page: Open, tmp_path: Path) -> None:
    ops = (op(0, 1, name="onnx.Relu"), op(1, 2, name="onnx.Gemm", scope=("mlp", "up")), op(2, 3, name="util.global"))
    map_ = graph(ops, (site(0, 0), site(1, 1, kernel="k1")))
    page = build_page(map_, attribution(map_, {"cpu_ns": {"site0": 2, "site1": 6}}), lambda _: "a\nb\nc\n")
    write_page(render_page(page), tmp_path / "onnx.html", force=False)
    browser = open_page(tmp_path / "onnx.html")
    assert view(browser) == "nodes"
    assert first_cells(browser, "nodes") == ["mlp/up/Gemm", "Relu (op0)"]
    find(browser, "#nodes td a").click()
    assert (view(browser), find(browser, "#inspector h2").text) == ("F0", "op1")


@pytest.fixture
def resize(browser: Chrome) -> Iterator[Callable[[int], None]]:
    """Sets the width of the window, and restores it afterwards."""

    def set_width(width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        settle(browser)

    yield set_width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of named ONNX nodes: two in one kernel, and one without cost."""
    ops = (
        op(0, 1, name="onnx.Relu", node="act<b>", outcome=Outcome.CONSTANT),
        op(1, 2, name="onnx.Conv", scope=("down",), node="down/conv5x5"),
        op(2, 3, name="onnx.Add", scope=("down",), node="down/bias"),
    )
    map_ = graph(ops, (site(0, 1, 2, kernel="main_graph$async_dispatch_0_conv_1x64x64x3x5x5x16_f32"),))
    page = build_page(map_, attribution(map_, {"cpu_ns": {"site0": 8}}), lambda _: "a\nb\nc\n")
    target = tmp_path_factory.mktemp("pages") / "nodes.html"
    write_page(render_page(page), target, force=False)
    return target


@pytest.mark.long
def test_onnx_nodes_have_their_names_everywhere(open_page: Open, nodes: Path) -> None:
    browser = open_page(nodes)
    assert sorted(first_cells(browser, "nodes")[:2]) == ["down/bias", "down/conv5x5"]
    assert first_cells(browser, "nodes")[2] == "act<b>"
    assert find(browser, "#nodes tbody tr:nth-child(3).first-free")
    press(browser, "s")
    browser.switch_to.active_element.send_keys("conv5", Keys.ENTER)
    settle(browser)
    assert find(browser, "#inspector h2").text == "op1"
    assert "down/conv5x5" in find(browser, "#inspector .card.selected").text
    go(browser, "#overview")
    assert "down/conv5x5" in find(browser, "#top-ops").text
    assert "down/conv5x5" in find(browser, "#worth").text
    assert "down/conv5x5" in find(browser, "#icicle").text


@pytest.mark.long
def test_few_columns_of_nodes_are_shown_at_first(open_page: Open, nodes: Path, resize: Callable[[int], None]) -> None:
    browser = open_page(nodes)
    resize(1280)
    assert texts(browser, "#nodes th")[:3] == ["node", "attributed", "share of work"]
    assert "inclusive" not in texts(browser, "#nodes th")
    hidden = "const panel = document.getElementById('nodes'); return panel.scrollWidth - panel.clientWidth"
    assert browser.execute_script(hidden) == 0
    find(browser, "#nodes .filter button").click()
    settle(browser)
    assert "inclusive" in texts(browser, "#nodes th")
    browser = open_page(nodes, "#nodes?nodes.sort=-inclusive")  # a hidden column
    assert find(browser, "#nodes th[aria-sort=descending]").text == "inclusive"
    assert find(browser, "#nodes .filter button").text == "fewer columns"


@pytest.mark.long
def test_the_title_and_the_tabs_fit_narrow_windows(
    open_page: Open, real: Path, nodes: Path, resize: Callable[[int], None]
) -> None:
    for page in (real, nodes):
        browser = open_page(page)
        resize(500)
        assert find(browser, "h1").size["height"] < 50  # two lines and padding
        resize(1280)
        tops = {tab.rect["y"] for tab in browser.find_elements(By.CSS_SELECTOR, "nav a")}
        assert len(tops) == 1
        go(browser, "#scopes")
        tab, bar = find(browser, "nav [aria-selected=true]").rect, find(browser, "nav").rect
        assert bar["x"] <= tab["x"]
        assert tab["x"] + tab["width"] <= bar["x"] + bar["width"] + 1


def test_the_first_column_stays_and_every_heading_is_explained(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#ops")
    script = """
        const panel = document.getElementById(arguments[0]);
        panel.scrollLeft = 400;
        const left = (element) => element.getBoundingClientRect().left - panel.getBoundingClientRect().left;
        const cells = [...panel.querySelectorAll("thead th")];
        const untitled = cells.filter((cell) => !cell.title).map((cell) => cell.textContent);
        return [panel.scrollLeft, left(cells[0]), left(panel.querySelector("tbody td")), untitled];
    """
    size = {"width": 900, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for panel in ("ops", "sites", "scopes"):
            go(browser, f"#{panel}")
            scrolled, head, cell, untitled = browser.execute_script(script, panel)
            assert (head, cell, untitled) == (0, 0, []), panel
            assert scrolled or panel == "scopes"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_details_have_a_handle(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#F1L4")
    handle = find(browser, "main > .splitter")
    before = find(browser, "#inspector").size["width"]
    handle.send_keys(Keys.ARROW_LEFT)
    assert find(browser, "#inspector").size["width"] == before + 24
    press(browser, Keys.ESCAPE)
    assert not handle.is_displayed()


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
    assert view(browser) == "F1"
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
        _, _, chosen = target.partition("-")
        assert [text.split()[0] for text in texts(browser, "#kernel-ops button.on")] == ([chosen] if chosen else [])
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
        (notice,) = browser.find_elements(By.CSS_SELECTOR, "noscript p")
        assert notice.text.startswith("JavaScript is off: this page shows the overview and the text of the sources")
        tops = [browser.find_element(By.CSS_SELECTOR, f"#{name}").rect["y"] for name in ("overview", "F1", "F0")]
        assert notice.rect["y"] < tops[0]
        assert tops == sorted(tops)
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


@pytest.mark.long
def test_errors_are_columns_once_numerics_stored_them(
    open_page: Open, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(built(MODEL_NAME), tmp_path / "model.tracemap"))
    found = json_cli("numerics", bundle)
    page = tmp_path / "page.html"
    check_cli("report", bundle, recorded(MODEL_NAME), "-o", page)
    browser = open_page(page, "#sites")
    settle(browser)
    at = texts(browser, "#sites thead th").index("error ulps") + 1
    shown = dict(
        zip(
            texts(browser, "#sites tbody td:first-child"),
            texts(browser, f"#sites tbody td:nth-child({at})"),
            strict=True,
        )
    )
    assert shown == {site["site"]: str(math.ceil(site["isolated"]["max_ulps"])) for site in found["sites"]}
