"""Pages in a browser, of files that go with the process unless they are given a name."""

from __future__ import annotations

import atexit
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tracemap.options.handed import path_of
from tracemap.owned.home import temporary_folder

_LASTING = ExitStack()
"""The folders of files without a name."""
atexit.register(_LASTING.close)


def lasting_folder() -> Path:
    """A folder of its own that stays for as long as the process runs.

    Raises:
        TargetUnwritable: there is no room for it.
    """
    return _LASTING.enter_context(temporary_folder())


def shown(write: Callable[[Path], None], output: Path | str | None, *, browser: bool) -> Path:
    """Write a page and open it in the browser; returns where it lies."""
    target = path_of("output", output) if output is not None else lasting_folder() / "page.html"
    write(target)
    if browser:
        webbrowser.open(target.resolve().as_uri())
    return target
