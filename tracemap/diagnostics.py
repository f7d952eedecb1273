"""What a reader must know before trusting a map, a run or a result."""

from __future__ import annotations

from tracemap.codec import Record


class Diagnostic(Record, frozen=True):
    """Something lost or doubtful: a stable slug and a sentence."""

    slug: str
    message: str
