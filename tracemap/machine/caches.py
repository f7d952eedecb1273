"""Caches of a core, which estimates of a kernel's time need."""

from __future__ import annotations

from typing import Final, NamedTuple

LINE_BYTES: Final = 64


class Cache(NamedTuple):
    """A cache: size in bytes, and hundredths of a cycle to bring a line from the level below it."""

    bytes: int
    line_hundredths: int


Caches = tuple[Cache, ...]
"""The caches of a core, from the first level on."""

DEFAULT_CACHES: Final[Caches] = (Cache(32 << 10, 200), Cache(1 << 20, 400), Cache(32 << 20, 1000))
"""The caches of one core of a present-day server, for machines that were not measured."""
