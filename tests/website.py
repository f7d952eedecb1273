"""Check the rendered documentation: `python -m tests.website FOLDER`.

The folder must be complete by itself: pages open from disk, without a server or the network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, the targets of its links, and the files that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in {"href", "src"} and value:
                (self.links if tag == "a" else self.loaded).append(value)


def main() -> None:
    """Read the command line; ends with status 1 if a link is dead or the index is missing."""
    (folder,) = map(Path, sys.argv[1:])
    pages = read_pages(folder)
    faults = list(dead_links(folder, pages))
    if not (folder / "index.html").is_file():
        faults.append("index.html is missing")
    if faults:
        sys.exit("\n".join(faults))
    links = sum(len(page.links) + len(page.loaded) for page in pages.values())
    print(f"{len(pages)} pages, {links:,} links, none is dead; open {folder / 'index.html'}")


def read_pages(folder: Path) -> dict[Path, Page]:
    """Read all pages below a folder."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in folder.resolve().rglob("*.html")}


def dead_links(folder: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """Links to files or anchors that the folder lacks, and files that a page would load from elsewhere."""
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    yield f"{path.name}: loads {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            inside = target.is_relative_to(folder.resolve()) and target.is_file()
            anchor = unquote(parts.fragment)
            if not inside or (anchor and target in pages and anchor not in pages[target].ids):
                yield f"{path.name}: {link}"


if __name__ == "__main__":
    main()
