"""Accessibility by axe-core: no page, in no state and no theme, has a serious finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from selenium.webdriver import Chrome

from tests.browser.conftest import Open, settle, unfold
from tests.browser.test_reports_browser import go, prefer, press
from tests.diffs import REMARK, compared, page_of, write_small_page
from tests.support import ROOT, SAMPLES
from tracemap.map.build.lowering_stages import lower
from tracemap.reports.html import write_page
from tracemap.reports.lowering_page import render_lowering_page

AXE = ROOT / "tests" / "browser" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
COLOURS = ("color-contrast", "link-in-text-block")


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; tests/browser/setup.sh installs it")
    return AXE.read_text(encoding="utf-8")


def findings(browser: Chrome, axe: str, *rules: str) -> list[str]:
    """What is serious, by all rules or by some: the rule, what it asks for, and the first elements it is of."""
    settle(browser)
    browser.execute_script(axe)
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = browser.execute_async_script("axe.run(document, arguments[0]).then(arguments[1])", options)
    return [
        f"{each['id']}: {each['help']}: " + "; ".join(node["html"][:200] for node in each["nodes"][:3])
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_no_view_of_the_page_has_a_serious_finding(open_page: Open, real: Path, axe: str, scheme: str) -> None:
    browser = unfold(open_page(real))
    prefer(browser, scheme)
    rules = COLOURS if scheme == "dark" else ()  # all else is the same in both
    try:
        tabs = [str(tab.get_attribute("aria-controls")) for tab in browser.find_elements("css selector", "[role=tab]")]
        for tab in (*tabs, "op1", "site0", "overview?colour=attainable&roof=kernel&zoom=source-1"):
            go(browser, f"#{tab}")
            assert findings(browser, axe, *rules) == [], tab
        press(browser, "s")
        browser.switch_to.active_element.send_keys("stablehlo")
        assert findings(browser, axe, *rules) == [], "search"
    finally:
        prefer(browser, "")


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_stage_of_a_lowering_has_a_serious_finding(open_page: Open, tmp_path: Path, axe: str, scheme: str) -> None:
    target, model = tmp_path / "page.html", SAMPLES / "models" / "hand_mlp.mlir"
    write_page(render_lowering_page(lower(model.read_bytes(), model.name, ())), target, force=False)
    browser = open_page(target)
    prefer(browser, scheme)
    try:
        assert findings(browser, axe) == []
    finally:
        prefer(browser, "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_of_a_comparison_has_a_serious_finding(open_page: Open, tmp_path: Path, axe: str, scheme: str) -> None:
    made, one, two = compared()
    page = page_of(structs.replace(made, remarks=(REMARK,)), one, two)
    browser = open_page(write_small_page(tmp_path / "page.html", page))
    prefer(browser, scheme)
    rules = COLOURS if scheme == "dark" else ()
    try:
        for anchor in ("overview", "op4", "ops", "regrouped", "remarks"):
            go(browser, f"#{anchor}")
            assert findings(browser, axe, *rules) == [], anchor
    finally:
        prefer(browser, "")
