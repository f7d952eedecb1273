"""The screenshots of the documentation, made anew from the samples: `make gallery`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import find_chrome, is_ready, settle, started_chrome
from tests.support import ROOT, SAMPLES, Corpus, check_cli

GALLERY: Final = ROOT / "docs" / "gallery"
SIZE: Final = {"width": 1280, "height": 860, "deviceScaleFactor": 1, "mobile": False}


@dataclass(frozen=True, slots=True)
class View:
    """A screenshot: of the page of which model, at which address, and in which theme."""

    model: str
    address: str
    scheme: str


VIEWS: Final[Mapping[str, View]] = {
    "overview": View("torch_resnet18_small", "#overview?colour=attainable", "light"),
    "overview-dark": View("jax_gpt2_4l", "#overview?tree=source", "dark"),
    "source": View("jax_gpt2_4l", "#op36", "light"),
    "timeline": View("torch_resnet18_small", "#timeline", "light"),
    "kernel": View("jax_gpt2_4l", "#kernel4", "dark"),
}


def make_page(model: str, folder: Path) -> Path:
    """The page of a sample with a run of its flag file, sampled."""
    bundle, made, page = folder / f"{model}.tracemap", folder / f"{model}.parquet", folder / f"{model}.html"
    Corpus(SAMPLES).build(model, bundle)
    flags = SAMPLES / "flags" / f"{model}.flags"
    check_cli("record", bundle, "--flagfile", flags, "--seconds", "2", "--sample", "1000", "-o", made, cwd=SAMPLES)
    check_cli("report", bundle, made, "-o", page)
    return page


def take(browser: Chrome, page: Path, view: View, target: Path) -> None:
    """Write a screenshot of a view of a page."""
    feature = {"name": "prefers-color-scheme", "value": view.scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
    browser.get("about:blank")
    browser.get(page.as_uri() + view.address)
    WebDriverWait(browser, 30).until(is_ready)
    settle(browser)
    browser.save_screenshot(str(target))


def main() -> None:
    """Write all screenshots.

    Raises:
        SystemExit: there is no browser.
    """
    found = find_chrome()
    if found is None:
        sys.exit("chromium and chromedriver are not installed; tests/browser/setup.sh installs them")
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as profile:
        pages = {model: make_page(model, Path(made)) for model in dict.fromkeys(view.model for view in VIEWS.values())}
        with started_chrome(*found, Path(profile)) as browser:
            for name, view in VIEWS.items():
                take(browser, pages[view.model], view, GALLERY / f"{name}.png")
                print(GALLERY / f"{name}.png")


if __name__ == "__main__":
    main()
