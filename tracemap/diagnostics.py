"""What a reader must know before trusting a map, a run or a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracemap.codec import Record


class Diagnostic(Record, frozen=True):
    """Something lost or doubtful: a stable slug and a sentence."""

    slug: str
    message: str


DISTURBED: Final = "disturbed"
"""Of a run while which other programs held the processors."""

PAUSED: Final = "paused"
"""Of a run that was paused by Ctrl-Z."""

INTERRUPTED: Final = "interrupted"
"""Of a run without all that was to be measured besides times, as the user pressed Ctrl-C before."""

MEANS_ONLY: Final = "means-only"
"""Of a run that tells only sums of calls: each has the mean, so that nothing tells which of them waited."""

RECORDS_LOST: Final = "records-lost"
"""Of a run of which the runtime dropped events: what it cost is more than its rows tell."""

TRANSFERS_UNTIMED: Final = "transfers-untimed"
"""Of copies and fills that are executed together with kernels, and have no rows."""

WINDOW: Final = "window"
"""Of some of a run's calls."""

FOREMOST: Final = (WINDOW, RECORDS_LOST, PAUSED, DISTURBED, "few-samples")
"""What is to be known before anything else: it stands above a result, not behind it."""


def tells(diagnostics: Iterable[Diagnostic], slug: str) -> bool:
    """Whether one of them is of this kind."""
    return any(each.slug == slug for each in diagnostics)


def foremost(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those that stand above a result."""
    return [item for item in diagnostics if item.slug in FOREMOST]


def others(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those that stand behind it: each is said once."""
    return [item for item in diagnostics if item.slug not in FOREMOST]
