"""The documentation built by Sphinx: no warning, no dead link, an anchor for each error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import DOCS
from tests.examples import RESULTS, api
from tests.support import ROOT
from tests.website import Page, dead_links, read_pages
from tracemap.commands.main import COMMANDS
from tracemap.core.errors import TracemapError


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for builder in ("html", "man"):
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "-b", builder, DOCS, folder / builder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return read_pages(site / "html")


@pytest.mark.long
def test_every_document_is_a_page(pages: dict[Path, Page]) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in pages}


@pytest.mark.long
def test_no_link_is_dead(pages: dict[Path, Page], site: Path) -> None:
    assert sum(len(page.links) for page in pages.values()) > 500
    assert list(dead_links(site / "html", pages)) == []


def test_each_dead_link_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "outside.html").touch()
    (folder / "other.html").write_text("<h1 id='top'></h1>", encoding="utf-8")
    live = '<a href="other.html#top"></a><a href="//x.y"></a><img src="data:,"><a href="#here" id="here"></a>'
    dead = '<a href="gone.html"></a><a href="other.html#gone"></a><img src="../outside.html"><script src="//x.y/z.js">'
    (folder / "index.html").write_text(live + dead, encoding="utf-8")
    assert sorted(dead_links(folder, read_pages(folder))) == [
        "index.html: ../outside.html",
        "index.html: gone.html",
        "index.html: loads //x.y/z.js",
        "index.html: other.html#gone",
    ]


@pytest.mark.long
def test_each_error_has_its_anchor(pages: dict[Path, Page], site: Path) -> None:
    ids = pages[site / "html" / "errors.html"].ids
    assert {kind.slug for kind in TracemapError.__subclasses__()} <= ids


@pytest.mark.long
def test_each_name_of_the_python_api_is_there_with_its_example(pages: dict[Path, Page], site: Path) -> None:
    page = site / "html" / "python.html"
    places = {name: f"tracemap.results.{file}.{name}" for file, names in RESULTS.items() for name in names}
    for name in api():
        first, dot, rest = name.partition(".")
        assert f"{places.get(first, f'tracemap.{first}')}{dot}{rest}" in pages[page].ids
    assert page.read_text(encoding="utf-8").count("&gt;&gt;&gt; ") > len(api())


@pytest.mark.long
def test_each_command_is_in_the_manual(pages: dict[Path, Page], site: Path) -> None:
    manual = (site / "man" / "tracemap.1").read_text(encoding="utf-8")
    ids = pages[site / "html" / "commands.html"].ids
    for name in COMMANDS:
        assert f"tracemap-{name}" in ids
        assert f"tracemap {name}".replace("-", r"\-") in manual
