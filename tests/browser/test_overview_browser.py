"""The overview in a real Chromium: from the icicle to the op, its line and its kernel and back; addresses; search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.browser.conftest import MODEL_NAME, Open, settle
from tests.browser.test_amounts_browser import as_number
from tests.browser.test_reports_browser import EVIL, find, first_cells, go, ids, press, texts, view
from tests.builders import MODEL, attribution, graph, op, site
from tests.checks import measured_of_run
from tests.conftest import Built, Recorded
from tests.pages import build_page, render_page
from tests.reports.test_page import EXECUTES, GRAPH, TOTALS, page_of
from tests.support import check_cli
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.model import SourceFile
from tracemap.reports.html import write_page
from tracemap.runs.model import Peaks, UnitPeak


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the small graph: op3 has 150 ns, op2 51, op5 and op6 35 each, and 9 are of no op."""
    target = tmp_path_factory.mktemp("pages") / "small.html"
    write_page(render_page(page_of(GRAPH, attribution(GRAPH, TOTALS, executes=EXECUTES))), target, force=False)
    return target


def cells(browser: Chrome) -> dict[str, WebElement]:
    """The cells of the icicle by what a screen reader says of them, up to the colon before the amount."""
    settle(browser)
    found = browser.find_elements(By.CSS_SELECTOR, "#icicle g.cell")
    return {str(cell.get_attribute("aria-label")).rpartition(": ")[0]: cell for cell in found}


def width(cell: WebElement) -> float:
    return float(str(cell.find_element(By.TAG_NAME, "rect").get_attribute("width"))) + 1


def back(browser: Chrome) -> None:
    browser.back()
    settle(browser)


def test_cells_are_as_wide_as_their_cost(open_page: Open, small: Path) -> None:
    shown = cells(open_page(small, "#overview"))
    whole = width(shown["all"])
    expected = {"h0": 236, "attn": 201, "linalg.generic :4": 150, "linalg.generic :8": 35, "no op": 9}
    for label, cost in expected.items():
        assert width(shown[label]) == pytest.approx(whole * cost / 280, abs=0.1), label
    assert shown["h0"].get_attribute("aria-label") == "h0: 118 ns, 84.3 %"


@pytest.mark.long
def test_from_a_cell_to_the_op_to_its_line_to_its_kernel_and_back(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#overview")
    browser.find_element(By.CSS_SELECTOR, "[data-tree=source]").click()
    around = next(cell for cell in cells(browser).values() if "py:" in str(cell.get_attribute("aria-label")))
    label = str(around.get_attribute("aria-label")).rpartition(": ")[0]
    around.click()
    assert width(cells(browser)[label]) == pytest.approx(width(cells(browser)["all"]), abs=0.1)
    assert texts(browser, "#icicle .path button")[-1] == label
    zoomed = browser.current_url
    dot = next(cell for name, cell in cells(browser).items() if name.startswith("dot_general"))
    line = str(dot.get_attribute("aria-label")).partition(" :")[2].partition(":")[0]
    dot.click()
    assert view(browser) == "F0"
    assert ids(browser, ".l.selected") == {f"F0L{line}"}
    assert find(browser, "#inspector h2").text.startswith("op")
    find(browser, "#inspector a[href^='#kernel']").click()
    assert view(browser) == "kernels"
    back(browser)
    assert view(browser) == "F0"
    back(browser)
    assert (view(browser), browser.current_url) == ("overview", zoomed)
    assert label in cells(browser)
    back(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "#icicle .path button:not([aria-current])") == []


@pytest.mark.long
def test_ops_say_what_the_program_gains(open_page: Open, real: Path) -> None:
    browser = open_page(real, "#ops")
    at = texts(browser, "#ops th").index("gain if 2x faster")
    gains = [cell for cell in texts(browser, f"#ops td:nth-child({at + 1})") if cell != "–"]
    assert gains[0] == max(gains, key=lambda gain: float(gain.removesuffix(" %")))
    go(browser, "op2")
    (said,) = [fact for fact in texts(browser, "#inspector .facts") if fact.startswith("if 2x faster")]
    assert said.startswith(f"if 2x faster, the program gains {gains[0]} (")


@pytest.mark.long
def test_the_icicle_can_be_walked_by_keys_alone(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#overview")
    browser.execute_script("document.querySelector('#icicle g.cell[tabindex=\"0\"]').focus()")

    def focused() -> str:
        settle(browser)
        return str(browser.switch_to.active_element.get_attribute("aria-label")).rpartition(": ")[0]

    walk = [(Keys.ARROW_DOWN, "h0"), (Keys.ARROW_RIGHT, "(no scope)"), (Keys.ARROW_LEFT, "h0"), (Keys.ENTER, "h0")]
    for key, expected in walk:
        press(browser, key)
        assert focused() == expected
    assert texts(browser, "#icicle .path button") == ["all", "h0"]
    assert find(browser, "#icicle .said").text == "h0: 118 ns, 84.3 %"
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert focused() == "linalg.generic :3"
    press(browser, Keys.BACKSPACE)
    assert focused() == "all"
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert view(browser) == "F0"
    assert ids(browser, ".l.selected") == {"F0L3"}


@pytest.mark.long
def test_an_address_restores_all_that_was_chosen(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#overview")
    cells(browser)["h0"].click()
    browser.find_element(By.CSS_SELECTOR, "[data-colour=attainable]").click()
    browser.find_element(By.CSS_SELECTOR, "[data-roof=kernel]").click()
    press(browser, "m", "i")
    go(browser, "#ops")
    press(browser, "/", "attn")
    browser.find_elements(By.CSS_SELECTOR, "#ops thead button")[0].click()
    settle(browser)
    address = browser.current_url
    assert "metric=duration_ns" in address

    def state() -> list[object]:
        go(browser, "#ops")
        rows = first_cells(browser, "ops")
        go(browser, "#overview")
        chosen = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#overview [aria-pressed=true]")]
        amounts = [find(browser, f"#{name}").get_attribute("value") for name in ("metric", "basis")]
        return [rows, chosen, amounts, texts(browser, "#icicle .path button"), texts(browser, "#worth tr")]

    before = state()
    assert before[0] == ["op2", "op3"]
    assert before[1:4] == [["by scope", "% of roofline", "kernels"], ["1", "1"], ["all", "h0"]]
    old = browser.current_window_handle
    browser.switch_to.new_window("window")
    try:
        browser.get(address)
        assert state() == before
        assert find(browser, "#ops .filter input").get_attribute("value") == "attn"
    finally:
        browser.close()
        browser.switch_to.window(old)


@pytest.mark.long
@pytest.mark.parametrize(
    "choices",
    [
        "metric=%3Cimg%3E&tree=__proto__&zoom=scope-999&colour=x&roof=constructor&ops.sort=-nothing",
        "zoom=toString-1&amounts=constructor&__proto__=1",
        "%E0%A4%A=%&=&&?",
    ],
)
def test_an_address_that_asks_for_what_is_not_there_changes_nothing(open_page: Open, small: Path, choices: str) -> None:
    browser = open_page(small, "#overview?" + choices)
    assert view(browser) == "overview"
    assert texts(browser, "#icicle .path button") in ([], [""])
    assert find(browser, "#metric").get_attribute("value") == "0"
    assert len(cells(browser)) > 5


@pytest.mark.long
def test_the_icicle_of_a_real_run_has_all_that_was_measured(
    open_page: Open, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    """Against DuckDB, which adds up the rows of the run."""
    run, target = recorded(MODEL_NAME), tmp_path / "sums.html"
    check_cli("report", built(MODEL_NAME), run, "--totals", "--keep-outliers", "-o", target)
    browser = open_page(target, "#overview")
    for metric in ("cpu_ns", "duration_ns"):
        go(browser, f"#overview?metric={metric}")
        said = str(cells(browser)["all"].get_attribute("aria-label"))
        shown, slack = as_number(said.removeprefix("all: ").removesuffix(", 100.0 %"))
        assert abs(shown - measured_of_run(run, metric)) <= slack


@pytest.mark.long
def test_search_finds_whatever_has_a_name(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#overview")
    press(browser, "s")
    browser.switch_to.active_element.send_keys("op3")
    settle(browser)
    assert texts(browser, "#search-found li")[0].startswith("op op3 linalg.generic")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert find(browser, "#inspector h2").text == "op3"
    for words, first, shown in (
        ("site1", "dispatch site1", "F0"),
        ("net.py:2", "line net.py:2", "F1"),
        ("net.py", "file net.py", "F1"),
        ("h0/attn", "scope h0/attn", "scopes"),
    ):
        field = search_for(browser, words)
        settle(browser)
        rows = texts(browser, "#search-found li")
        at = next(number for number, row in enumerate(rows) if row.startswith(first))
        field.send_keys(*[Keys.ARROW_DOWN] * at, Keys.ENTER)
        assert view(browser) == shown, words
    assert [text.strip() for text in first_cells(browser, "scopes")] == ["attn"]


def search_for(browser: Chrome, words: str) -> WebElement:
    """Open the search and type the words; returns its field."""
    press(browser, Keys.ESCAPE, "s")
    field = browser.switch_to.active_element
    field.clear()
    field.send_keys(words)
    return field


@pytest.mark.long
def test_search_finds_functions_lines_and_nodes_by_parts_of_their_names(open_page: Open, tmp_path: Path) -> None:
    python = SourceFile("net.py", "python/0-net.py", "python")
    ops = (op(0, 2, name="onnx.Gemm", scope=("mlp", "up"), frames=[("net.py", 2)]),)
    map_ = graph(ops, (site(0, 0, kernel="main_dispatch_0_matmul_64"),), sources=(MODEL, python))
    texts_of = {"model.mlir": "func.func @decode_step(%a: f32) {\n  gemm\n}", "net.py": "def linear(p):\n    return p"}
    page = build_page(map_, None, lambda source: texts_of[source.name])
    write_page(render_page(page), tmp_path / "names.html", force=False)
    browser = open_page(tmp_path / "names.html")
    for words, first, shown in (
        ("inea", "function linear net.py:1", "F1"),
        ("code_st", "function decode_step model.mlir:1", "F0"),
        ("turn p", "line net.py:2 return p", "F1"),
        ("up/ge", "node mlp/up/Gemm", "F1"),
        ("atmul", "dispatch site0", "F1"),
    ):
        field = search_for(browser, words)
        assert texts(browser, "#search-found li")[0].startswith(first), words
        field.send_keys(Keys.ENTER)
        assert view(browser) == shown, words


@pytest.mark.parametrize(
    ("operations", "sentence"),
    [
        (UNKNOWN, "Headroom is unknown: no op has a known amount of work"),
        (10**15, "1 op is above 2x the roofline (op0 linalg.generic): data stays in a cache, or the work"),
    ],
)
def test_work_that_is_unknown_or_impossible_is_named(
    operations: Integer, sentence: str, open_page: Open, tmp_path: Path
) -> None:
    place = site(0, 0)
    members = tuple(structs.replace(member, operations=operations) for member in place.members)
    map_ = graph((op(0, 2),), (structs.replace(place, members=members),))
    page = build_page(map_, attribution(map_, {"cpu_ns": {"site0": 80}}, executes=EXECUTES), lambda _: "a\nb\n")
    write_page(render_page(page), tmp_path / "work.html", force=False)
    browser = open_page(tmp_path / "work.html", "#overview")
    assert sentence in find(browser, "#worth").text
    drawn = browser.find_elements(By.CSS_SELECTOR, "#roofline svg")
    assert bool(drawn) is (operations is not UNKNOWN)
    assert drawn or find(browser, "#roofline").text == "Nothing to draw: the amount of work is unknown."


def test_roofline_of_a_gpu_has_the_peaks_of_other_types(open_page: Open, tmp_path: Path) -> None:
    map_ = graph((op(0, 2),), (site(0, 0),))
    costs = attribution(map_, {"duration_ns": {"site0": 80}}, executes=EXECUTES)
    units = (UnitPeak("f16", 2 * 10**14), UnitPeak("tensor f16", 10**15))
    costs = replace(costs, run=structs.replace(costs.run, peaks=Peaks(10**14, 3 * 10**12, "specified", units=units)))
    write_page(render_page(build_page(map_, costs, lambda _: "a\nb\n")), tmp_path / "gpu.html", force=False)
    browser = open_page(tmp_path / "gpu.html", "#overview")
    names = [text.text for text in browser.find_elements(By.CSS_SELECTOR, "#roofline .axis-name")]
    assert names == ["operations per byte →", "↑ operations per second on the GPU", "f16", "tensor f16"]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#roofline .roof.unit")) == 2
    height = [find(browser, f"#roofline .roof{kind}").rect["y"] for kind in (":not(.unit)", ".unit")]
    assert height[1] < height[0]


@pytest.mark.long
def test_search_says_how_much_it_found(open_page: Open, small: Path) -> None:
    browser = open_page(small, "#overview")
    find(browser, "#search-open").click()
    browser.switch_to.active_element.send_keys("linalg.generic")
    settle(browser)
    assert find(browser, "#search-count").text == "6 found"
    browser.switch_to.active_element.send_keys(" nowhere")
    settle(browser)
    assert find(browser, "#search-count").text == "0 found"


def test_hostile_names_are_inert_in_pictures_and_search(open_page: Open, tmp_path: Path) -> None:
    odd = "\u202eeman\x1b[31m" + EVIL
    ops = (op(0, 1, name=odd, scope=(odd,), function=odd),)
    map_ = graph(ops, (site(0, 0, kernel=odd),), name=odd)
    target = tmp_path / "evil.html"
    page = build_page(map_, attribution(map_, {"cpu_ns": {"site0": 3}}), lambda _: odd)
    write_page(render_page(page), target, force=False)
    browser = open_page(target, "#overview")
    shown = cells(browser)
    assert any("⟨U+202E⟩eman" in label for label in shown)
    press(browser, "s")
    browser.switch_to.active_element.send_keys("<img")
    settle(browser)
    assert len(texts(browser, "#search-found li")) >= 2
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.title == "model.mlir – tracemap"
