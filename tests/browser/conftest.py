"""A headless Chromium, and pages opened in it that must stay silent and within their file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from tests.conftest import Built, Recorded
from tests.support import check_cli

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,900",
)

MODEL_NAME = "jax_mlp"

Open = Callable[..., Chrome]
"""Path of a page, anchor -> the browser that shows it."""


@pytest.fixture(scope="session")
def real(built: Built, recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a real model, its Python file, and a run, made by the command line."""
    target = tmp_path_factory.mktemp("pages") / "real.html"
    check_cli("report", built(MODEL_NAME), recorded(MODEL_NAME), "-o", target)
    return target


def find_chrome() -> tuple[str, str] | None:
    """The programs of a Chromium and of what drives it; None where they are not installed."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return None if program is None or driver is None else (program, driver)


@contextmanager
def started_chrome(program: str, driver: str, profile: Path) -> Iterator[Chrome]:
    """A browser without a window, with a profile of its own."""
    options = Options()
    options.binary_location = program
    for switch in (*SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser for all tests."""
    found = find_chrome()
    if found is None:
        pytest.skip("chromium and chromedriver are not installed; tests/browser/setup.sh installs them")
    with started_chrome(*found, tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture
def open_page(browser: Chrome) -> Iterator[Open]:
    """Opens pages anew; afterwards: no message on the console, no request but for the page itself."""
    opened: list[str] = []

    def show(path: Path, anchor: str = "") -> Chrome:
        browser.get("about:blank")  # a changed anchor alone would not load the page again
        if not opened:
            log(browser, "browser")
            log(browser, "performance")
        opened.append(path.as_uri())
        browser.get(path.as_uri() + anchor)
        WebDriverWait(browser, 30).until(is_ready, "the page's scripts did not end")
        settle(browser)
        return browser

    yield show
    if opened:
        browser.execute_script("try { localStorage.clear() } catch {}")
    assert [entry["message"] for entry in log(browser, "browser")] == []
    assert {url.split("#")[0] for url in requests(browser)} <= {*opened, "about:blank"}


def is_ready(browser: Chrome) -> bool:
    """Whether the page's script has run: it inflates what it works on, for a moment beyond the page's load."""
    return bool(browser.execute_script("return document.documentElement.classList.contains('ready')"))


def settle(browser: Chrome) -> None:
    """Wait until what was opened, clicked or pressed has had its effect.

    A new address is told to the page a moment later, and what has come into view only when it was drawn: the second
    frame begins after the first was.
    """
    frames = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
    browser.execute_async_script(f"const done = arguments[0]; {frames}")


def unfold(browser: Chrome) -> Chrome:
    """Open all that is folded, so that its text can be read."""
    browser.execute_script("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    return browser


def log(browser: Chrome, kind: str) -> list[dict[str, Any]]:
    """Entries of a log since it was last read."""
    return list(browser.get_log(kind))  # type: ignore[no-untyped-call]  # selenium leaves this one without types


def requests(browser: Chrome) -> list[str]:
    """Addresses that the browser asked for since the log was last read."""
    events: list[dict[str, Any]] = [json.loads(entry["message"])["message"] for entry in log(browser, "performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
