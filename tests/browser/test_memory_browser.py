"""The memory in the overview, in a real Chromium: its curve, the values at the peak, and the ways to their ops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from tests.browser.conftest import MODEL_NAME, Open, settle
from tests.browser.test_reports_browser import find, texts, view
from tests.conftest import Built
from tests.support import json_cli


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 700])
def test_the_curve_and_the_values_at_the_peak_are_drawn(open_page: Open, real: Path, built: Built, width: int) -> None:
    browser = open_page(real, "#overview")
    size = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        settle(browser)
        curve = find(browser, ".memory svg")
        assert 0 < curve.size["width"] < width
        assert browser.execute_script("return document.body.scrollWidth <= innerWidth")
        (function,) = json_cli("memory", built(MODEL_NAME))["functions"]
        assert curve.get_dom_attribute("viewBox") == f"0 0 {len(function['curve'])} 100"
        assert find(browser, ".memory .peak").get_dom_attribute("x") == str(function["step"])
        ops = texts(browser, ".memory tbody td:nth-child(2)")
        assert ops == [" ".join(value["ops"]) for value in function["held"]]
        link = browser.find_element(By.CSS_SELECTOR, ".memory tbody a")
        browser.execute_script("arguments[0].scrollIntoView()", link)
        link.click()
        settle(browser)
        assert re.search(rf"#{ops[0].split()[0]}\b", browser.current_url)
        assert view(browser) != "overview" or find(browser, "#inspector").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
