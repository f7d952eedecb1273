"""The documentation built by Sphinx: no warning, no dead link, an anchor for each error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.documents import DOCS
from tests.examples import RESULTS, api
from tests.support import ROOT
from tracemap.commands.main import COMMANDS
from tracemap.core.errors import TracemapError


class Anchors(HTMLParser):
    """The ids of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in {"href", "src"} and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for builder in ("html", "man"):
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "-b", builder, DOCS, folder / builder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Anchors]:
    return {path: Anchors(path.read_text(encoding="utf-8")) for path in (site / "html").rglob("*.html")}


@pytest.mark.long
def test_every_document_is_a_page(pages: dict[Path, Anchors]) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in pages}


def dead(pages: dict[Path, Anchors]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            inside = pages[target].ids if target in pages and parts.fragment else {unquote(parts.fragment)}
            if not target.is_file() or unquote(parts.fragment) not in inside:
                yield f"{path.name}: {link}"


@pytest.mark.long
def test_no_link_is_dead(pages: dict[Path, Anchors]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 500
    assert list(dead(pages)) == []


@pytest.mark.long
def test_each_error_has_its_anchor(pages: dict[Path, Anchors], site: Path) -> None:
    ids = pages[site / "html" / "errors.html"].ids
    assert {kind.slug for kind in TracemapError.__subclasses__()} <= ids


@pytest.mark.long
def test_each_name_of_the_python_api_is_there_with_its_example(pages: dict[Path, Anchors], site: Path) -> None:
    page = site / "html" / "python.html"
    places = {name: f"tracemap.results.{file}.{name}" for file, names in RESULTS.items() for name in names}
    for name in api():
        first, dot, rest = name.partition(".")
        assert f"{places.get(first, f'tracemap.{first}')}{dot}{rest}" in pages[page].ids
    assert page.read_text(encoding="utf-8").count("&gt;&gt;&gt; ") > len(api())


@pytest.mark.long
def test_each_command_is_in_the_manual(pages: dict[Path, Anchors], site: Path) -> None:
    manual = (site / "man" / "tracemap.1").read_text(encoding="utf-8")
    ids = pages[site / "html" / "commands.html"].ids
    for name in COMMANDS:
        assert f"tracemap-{name}" in ids
        assert f"tracemap {name}".replace("-", r"\-") in manual
