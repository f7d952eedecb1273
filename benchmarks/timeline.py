"""How fluid the page's timeline is: steps of zoom with 20,000 spans, from the key or wheel to what is drawn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from selenium.webdriver import Chrome

from benchmarks.measure import Figure, print_title, targeted
from tests.browser.conftest import find_chrome, is_ready, settle, started_chrome
from tests.pages import render_page
from tests.timelines import layers, page_of_run, written
from tracemap.reports.html import write_page
from tracemap.reports.page.timeline_tab import MOST_SPANS

STEPS: Final = 40
_ZOOM: Final = """
const done = arguments[0];
const svg = document.querySelector("#spans svg");
const box = svg.getBoundingClientRect();
const at = { clientX: box.left + box.width / 2, clientY: box.top + 40, bubbles: true, cancelable: true };
const frames = () => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
(async () => {
  const spent = [];
  for (let step = 0; step < %d; step++) {
    const began = performance.now();
    const deltaY = step %% 20 < 10 ? -120 : 120;
    svg.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY }));
    await frames();
    spent.push(performance.now() - began);
  }
  done(spent);
})();
"""
"""Half of the steps lead nearer, half back. A step ends behind the frame in which it was drawn."""


def measure(folder: Path) -> list[Figure]:
    """Write a page with one call of 20,000 events, and zoom in it."""
    found = find_chrome()
    if found is None:
        print("  chromium and chromedriver are not installed: zooming is not measured")
        return []
    table, page = folder / "run.csv", folder / "page.html"
    write_page(render_page(page_of_run(layers(), written(table, 1, MOST_SPANS - 1))), page, force=False)
    print_title(f"a timeline of {MOST_SPANS:,} spans")
    with tempfile.TemporaryDirectory(dir=folder) as profile, started_chrome(*found, Path(profile)) as browser:
        browser.get(f"{page.as_uri()}#timeline")
        while not is_ready(browser):
            settle(browser)
        settle(browser)
        return [targeted("zoom step", _steps(browser), "ms", 50.0)]


def _steps(browser: Chrome) -> list[float]:
    before = browser.execute_script("return document.querySelector('#spans .axis').textContent")
    spent: list[float] = browser.execute_async_script(_ZOOM % STEPS)
    browser.execute_async_script(_ZOOM % 3)
    if before == browser.execute_script("return document.querySelector('#spans .axis').textContent"):
        raise SystemExit("the timeline did not zoom")
    return spent
