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
from tests.browser.terminal_gallery import take_terminals
from tests.support import ROOT, SAMPLES, check_cli

GALLERY: Final = ROOT / "docs" / "gallery"
SIZE: Final = {"width": 1280, "height": 860, "deviceScaleFactor": 1, "mobile": False}


@dataclass(frozen=True, slots=True)
class View:
    """A screenshot: of the page of which model, at which address, and in which theme.

    `flags`: of the compiler; with some it is the page that compares the model with what they make of it.
    """

    model: str
    address: str
    scheme: str
    flags: tuple[str, ...] = ()


FUSED: Final = ("--iree-opt-level=O3", "--iree-dispatch-creation-enable-aggressive-fusion")
VIEWS: Final[Mapping[str, View]] = {
    "overview": View("torch_resnet18_small", "#overview?colour=attainable", "light"),
    "overview-dark": View("jax_gpt2_4l", "#overview?tree=source", "dark"),
    "source": View("jax_gpt2_4l", "#F1L11", "light"),
    "timeline": View("torch_resnet18_small", "#timeline", "light"),
    "kernel": View("jax_gpt2_4l", "#kernel0", "dark"),
    "diff": View("jax_gpt2_4l", "#regrouped", "light", FUSED),
}


def make_page(view: View, folder: Path) -> Path:
    """The page of a sample with a run of its flag file, sampled; or of two builds of it, with a run of each."""
    page, one = folder / f"{view.model}{len(view.flags)}.html", _recorded(view.model, (), folder)
    if view.flags:
        check_cli("diff", one, _recorded(view.model, view.flags, folder), "--html", page)
    else:
        check_cli("report", one, next((one / "runs").glob("run-*")), "-o", page)
    return page


def _recorded(model: str, flags: tuple[str, ...], folder: Path) -> Path:
    """A bundle of a sample with a run of its flag file."""
    bundle, file = folder / f"{model}{'-fused' if flags else ''}.tracemap", SAMPLES / "models" / f"{model}.mlir"
    if not bundle.exists():
        check_cli("build", file, "--source-root", SAMPLES / "sources", "-o", bundle, "--", *flags)
        asked = SAMPLES / "flags" / f"{model}.flags"
        check_cli("record", bundle, "--flagfile", asked, "--seconds", "2", "--sample", "1000", cwd=SAMPLES)
    return bundle


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
        views = {(view.model, view.flags): view for view in VIEWS.values()}
        pages = {key: make_page(view, Path(made)) for key, view in views.items()}
        with started_chrome(*found, Path(profile)) as browser:
            for name, view in VIEWS.items():
                take(browser, pages[view.model, view.flags], view, GALLERY / f"{name}.png")
                print(GALLERY / f"{name}.png")
            for picture in take_terminals(browser, Path(made), GALLERY):
                print(picture)


if __name__ == "__main__":
    main()
