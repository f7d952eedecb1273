"""Pages in a browser, of files that go with the process unless they are given a name."""

from __future__ import annotations

import atexit
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tracemap.owned.home import temporary_folder

_PAGES = ExitStack()
"""The folders of pages without a name, which stay for as long as the process runs."""
atexit.register(_PAGES.close)


def shown(write: Callable[[Path], None], output: Path | str | None, *, browser: bool) -> Path:
    """Write a page and open it in the browser; returns where it lies."""
    target = Path(output) if output is not None else _PAGES.enter_context(temporary_folder()) / "page.html"
    write(target)
    if browser:
        webbrowser.open(target.resolve().as_uri())
    return target
