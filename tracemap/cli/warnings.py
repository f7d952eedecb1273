"""Diagnostics, said on standard error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracemap.cli.streams import warn_of

if TYPE_CHECKING:
    from tracemap.diagnostics import Diagnostic


def warn(diagnostics: Iterable[Diagnostic]) -> None:
    """Say what a reader must know before trusting the result: a line each, with its slug."""
    for item in diagnostics:
        warn_of(f"tracemap: warning: {item.message} [{item.slug}]")
