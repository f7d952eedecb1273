"""Releases of IREE: which there are, and an environment for each, to build and run programs with another release.

An environment has its own compiler and runtime, and sees all other packages of this one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import venv
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from tracemap.core.errors import TargetUnwritable, ToolFailed, ToolMissing
from tracemap.core.toolchain import Progress, check_tool, run_tool

NEWEST_TRIED: Final = (3, 13)
"""The newest release that tracemap was tried with; `make compat` tries releases."""
_PACKAGES: Final = ("iree-base-compiler", "iree-base-runtime")
_SITE: Final = "site"
_NUMBER: Final = re.compile(r"\d+\.\d+\.\d+")
_LISTED: Final = re.compile(r"^Available versions: (.*)$", re.MULTILINE)


def release_of(version: str) -> str:
    """The release of a compiler's version; its own text if it does not begin with a release.

    >>> release_of("3.13.0rc20261016")
    '3.13.0'
    """
    found = _NUMBER.match(version)
    return found[0] if found else version


def own_release() -> str:
    """The release of the compiler that is installed here.

    Raises:
        ToolMissing: none is.
    """
    try:
        return release_of(metadata.version(_PACKAGES[0]))
    except metadata.PackageNotFoundError as error:
        raise ToolMissing(f"IREE's compiler is not installed; install it with: pip install {_PACKAGES[0]}") from error


def is_untried(release: str) -> bool:
    """Whether a release is newer than all that tracemap was tried with.

    >>> is_untried("3.13.2"), is_untried("3.14.0rc20261101"), is_untried("3.14.0")
    (False, True, True)
    """
    number = _NUMBER.match(release)
    return number is not None and _order(number[0])[:2] > NEWEST_TRIED


def releases_on_index() -> tuple[str, ...]:
    """All releases on the package index, the oldest first; none if it cannot be reached."""
    listing = run_tool([sys.executable, "-m", "pip", "index", "versions", _PACKAGES[0]])
    listed = _LISTED.search(listing.stdout)
    names = listed[1].split(", ") if listed else []
    return tuple(sorted((name for name in names if _NUMBER.fullmatch(name)), key=_order))


def releases_between(first: str, last: str) -> tuple[str, ...]:
    """All releases on the package index from one to another, these included, in this order.

    Raises:
        ToolMissing: the index cannot be reached, or lacks one of them.
    """
    known = releases_on_index()
    if first not in known or last not in known:
        raise ToolMissing(
            f"the releases of IREE between {first} and {last} are unknown, since the package index does not list both; "
            "name them in order with --releases"
        )
    ordered = list(known)
    if _order(first) > _order(last):
        ordered.reverse()
    return tuple(ordered[ordered.index(first) : ordered.index(last) + 1])


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def is_at_least(release: str, first: tuple[int, ...]) -> bool:
    """Whether a release is not older than another.

    >>> is_at_least("3.9.0", (3, 12))
    False
    """
    return not _NUMBER.fullmatch(release) or _order(release) >= first


@cache
def environment(release: str, progress: Progress) -> Path:
    """The interpreter of an environment with a release of IREE, in the user's cache folder; installed on first use.

    Raises:
        ToolMissing: the release cannot be installed.
        TargetUnwritable: the cache folder cannot be written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracemap"
    folder = cache / f"iree-{release}-python{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        _see_packages_of_this(python)
        return python
    progress(f"installing IREE {release} into {folder}")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
    except OSError as error:
        raise TargetUnwritable(f"{folder}: cannot be written: {error.strerror}") from error
    try:
        # Before this environment's packages are visible: pip must not count them as installed.
        check_tool([python, "-m", "pip", "install", "--quiet", *(f"{name}=={release}" for name in _PACKAGES)])
    except ToolFailed as error:
        raise ToolMissing(f"IREE {release} cannot be installed into {folder}: {error}") from error
    _see_packages_of_this(python)
    (folder / "complete").touch()
    return python


def _see_packages_of_this(python: Path) -> None:
    """Let an environment see tracemap and all packages of this one, after its own."""
    purelib = Path(check_tool([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    own = Path(__file__).parents[2]
    # The import statement makes Python run the line (https://docs.python.org/3/library/site.html).
    lines = [str(own), *(f"import {_SITE}; {_SITE}.addsitedir({folder!r})" for folder in folders)]
    (purelib / "tracemap-packages.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_with(python: Path, words: Sequence[str | Path]) -> str:
    """Run a command of tracemap with an environment's interpreter; returns its output.

    Raises:
        ToolFailed: it failed; the message is its own.
    """
    done = run_tool([python, "-m", "tracemap", *words])
    if done.returncode != 0:
        raise ToolFailed(done.stderr.strip().removeprefix("tracemap: error: ") or f"status {done.returncode}")
    return done.stdout
