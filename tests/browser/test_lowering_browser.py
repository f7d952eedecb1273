"""The page of `tracemap lower` in a real browser: from op to loops and back by click, in all stages and both themes."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Open
from tests.commands.test_lower import AFFINE, AFFINE_FUSION, HOSTILE, LOOPS_OF_SCF
from tests.support import ROOT
from tracemap.map.build.lowering_stages import lower
from tracemap.reports.html import write_page
from tracemap.reports.lowering_page import render_lowering_page

PROGRAMS = ROOT / "tests" / "programs" / "lower"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product, its fill and an elementwise op: the model, a loop nest for each, and one fused nest."""
    path = PROGRAMS / "matmul_bias_relu.mlir"
    target = tmp_path_factory.mktemp("lowered") / "page.html"
    write_page(render_lowering_page(lower(path.read_bytes(), path.name, (AFFINE, AFFINE_FUSION))), target, force=False)
    return target


def lit(browser: Chrome, stage: int) -> set[int]:
    """The lines of a stage that are lit as those of selected ops."""
    rows = browser.find_elements(By.CSS_SELECTOR, f"#S{stage} .l.selected")
    return {int(str(row.get_attribute("id")).split("L")[1]) for row in rows}


def click_line(browser: Chrome, stage: int, line: int) -> None:
    browser.find_element(By.CSS_SELECTOR, f"#S{stage}L{line} code").click()


def cards(browser: Chrome) -> list[str]:
    return [card.text for card in browser.find_elements(By.CSS_SELECTOR, "#inspector .card h3 span")]


def test_a_line_of_the_model_lights_its_loops_in_every_stage(page: Path, open_page: Open) -> None:
    browser = open_page(page)
    click_line(browser, 0, 5)
    assert lit(browser, 0) == {5}
    assert lit(browser, 1) == set(range(9, 18))
    assert lit(browser, 2) == set(range(7, 14))
    assert cards(browser) == ["op5 linalg.matmul"]
    assert "loop1" in browser.find_element(By.ID, "inspector").text
    assert browser.find_element(By.ID, "op5").get_attribute("class") == "selected t0"


def test_the_head_of_a_fused_loop_lights_all_its_ops(page: Path, open_page: Open) -> None:
    browser = open_page(page)
    click_line(browser, 2, 4)
    assert cards(browser) == ["op3 linalg.fill", "op5 linalg.matmul", "op9 linalg.generic"]
    assert lit(browser, 0) == {4, 5, 6, 11, 12}
    tints = {str(browser.find_element(By.ID, f"S0L{line}").get_attribute("class")).split()[-1] for line in (4, 5, 6)}
    assert len(tints) == 3
    assert "15 operations" in browser.find_element(By.ID, "inspector").text


@pytest.mark.long
def test_a_line_within_a_loop_lights_only_its_own_op(page: Path, open_page: Open) -> None:
    browser = open_page(page)
    click_line(browser, 2, 13)
    assert cards(browser) == ["op5 linalg.matmul"]
    assert lit(browser, 0) == {5}


def test_rows_anchors_and_keys_select_ops(page: Path, open_page: Open) -> None:
    browser = open_page(page, "#op9")
    assert cards(browser) == ["op9 linalg.generic"]
    browser.find_element(By.CSS_SELECTOR, "#op3 td").click()
    assert cards(browser) == ["op3 linalg.fill"]
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("j")
    assert cards(browser) == ["op5 linalg.matmul"]
    body.send_keys("k")
    assert cards(browser) == ["op3 linalg.fill"]
    body.send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.ID, "inspector").is_displayed()
    assert lit(browser, 1) == set()
    body.send_keys("?")
    assert browser.find_element(By.ID, "keys").is_displayed()


def test_both_themes_are_readable(page: Path, open_page: Open) -> None:
    browser = open_page(page)
    colours = set()
    for _ in range(2):
        browser.find_element(By.ID, "theme").click()
        click_line(browser, 0, 5)
        row = browser.find_element(By.ID, "S0L5")
        back = row.value_of_css_property("background-color")
        text = row.find_element(By.TAG_NAME, "code").value_of_css_property("color")
        assert back != text
        colours.add((back, text))
    assert len(colours) == 2


@pytest.mark.long
def test_stages_that_are_out_of_view_scroll_to_the_op(tmp_path: Path, open_page: Open) -> None:
    path = ROOT / "samples" / "models" / "hand_repeat12.mlir"
    target = tmp_path / "long.html"
    pipelines = ("builtin.module(one-shot-bufferize{bufferize-function-boundaries})", AFFINE)
    lowering = lower(path.read_bytes(), path.name, pipelines)
    write_page(render_lowering_page(lowering), target, force=False)
    browser = open_page(target)
    last = lowering.ops[-1]
    click_line(browser, 0, int(str(last.line)))
    (first, *_) = lowering.stages[2].loops[-1].links[0].lines
    pane = browser.find_element(By.ID, "S2").rect
    row = browser.find_element(By.ID, f"S2L{first}").rect
    assert pane["y"] < row["y"] < pane["y"] + pane["height"]


def test_text_of_a_model_takes_no_effect(tmp_path: Path, open_page: Open) -> None:
    target = tmp_path / "hostile.html"
    write_page(render_lowering_page(lower(HOSTILE.encode(), "<i>m</i>.mlir", (LOOPS_OF_SCF,))), target, force=False)
    browser = open_page(target)
    click_line(browser, 0, 4)
    assert cards(browser) == ["op2 linalg.generic"]
    assert "</script><script>alert(1)</script>" in browser.find_element(By.ID, "S0L1").text
    assert not browser.find_elements(By.TAG_NAME, "img")
