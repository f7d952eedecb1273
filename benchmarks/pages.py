"""How fluid a page is in a Chromium without a window: until it can be used, and while one types or scrolls.

A step is the work of the page's script and the layout that follows, on the browser's main thread; it has to fit into a
frame. What the machine's other programs take is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from selenium.webdriver import Chrome

from benchmarks.measure import Figure, targeted
from tests.browser.conftest import find_chrome, is_ready, settle, started_chrome

REPEATS: Final = 3
FRAME_MS: Final = 50.0
_TYPED: Final = """
const input = document.querySelector("#ops .filter input");
return [...arguments[0]].map((_, at) => {
  const began = performance.now();
  input.value = arguments[0].slice(0, at + 1);
  input.dispatchEvent(new Event("input"));
  document.body.offsetHeight;
  return performance.now() - began;
});
"""
_SCROLLED: Final = """
const panel = document.querySelector(arguments[0]);
return Array.from({ length: 30 }, (_, at) => {
  const began = performance.now();
  panel.scrollTop = (panel.scrollHeight * at) / 30;
  panel.dispatchEvent(new Event("scroll"));
  panel.offsetHeight;
  return performance.now() - began;
});
"""


@contextmanager
def browser_of(folder: Path) -> Iterator[Chrome | None]:
    """A browser with a profile of its own; None where none is installed."""
    found = find_chrome()
    if found is None:
        print("  chromium and chromedriver are not installed: how fluid the page is is not measured")
        yield None
        return
    with started_chrome(*found, folder) as browser:
        yield browser


def until_interactive(browser: Chrome, page: Path, anchor: str, shown: str) -> list[float]:
    """Seconds until the page shows what its address names; the first time is not counted.

    Raises:
        SystemExit: it does not show it.
    """
    return [_seconds_to_open(browser, page, anchor, shown) for _ in range(REPEATS + 1)][1:]


def _seconds_to_open(browser: Chrome, page: Path, anchor: str, shown: str) -> float:
    browser.get("about:blank")
    began = time.perf_counter()
    browser.get(f"{page.as_uri()}#{anchor}")
    while not is_ready(browser):
        time.sleep(0.01)
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    seconds = time.perf_counter() - began
    if not browser.find_element("css selector", shown).is_displayed():
        raise SystemExit(f"{anchor} of the page is not shown")
    return seconds


def frames(browser: Chrome, words: str) -> list[Figure]:
    """Of the page that is open: typing words into the filter of its ops, and scrolling its ops and its first source."""
    browser.execute_script("location.hash = 'ops'")
    settle(browser)
    time.sleep(2)  # what a page prepares when nobody does anything
    figures = [targeted("typing a filter, a letter", browser.execute_script(_TYPED, words), "ms", FRAME_MS)]
    browser.execute_script(_TYPED, " ")
    for panel, name in (("#ops", "ops"), ("#F0", "the source")):
        browser.execute_script("location.hash = arguments[0]", panel)
        settle(browser)
        steps = browser.execute_script(_SCROLLED, panel)
        figures.append(targeted(f"scrolling {name}, a step", steps, "ms", FRAME_MS))
    return figures
