"""Libraries that only one format needs: extras of the package, imported where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tracemap.errors import ToolMissing


@contextmanager
def from_extra(form: str) -> Iterator[None]:
    """Around imports of what a format's extra installs; the extra is called as the format.

    Raises:
        ToolMissing: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ToolMissing(
            f"{form} needs a package that is not installed ({error.name}): pip install tracemap[{form}]"
        ) from error
