"""Diagnostics: remarks on how far to trust a map, a run or a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracemap.core.codec import Record


class Diagnostic(Record, frozen=True):
    """A remark on lost or doubtful data: a stable slug and a sentence."""

    slug: str
    message: str


NOISY: Final = "noisy"
"""Noisy run: other programs kept the measured one waiting for a CPU."""

PAUSED: Final = "paused"
"""The recording was paused by Ctrl-Z."""

BUDGET_SPENT: Final = "budget-spent"
"""The time for measuring ended before the median was known within the precision."""

INTERRUPTED: Final = "interrupted"
"""The user pressed Ctrl-C after the timing, so that optional measurements are missing."""

MEANS_ONLY: Final = "means-only"
"""The run has only sums over calls. Every call has the mean time, so outliers cannot be found."""

RECORDS_LOST: Final = "records-lost"
"""The runtime dropped events of the run, so the costs are higher than the sum of the rows."""

BEGINS_LATE: Final = "begins-late"
"""The recording of a GPU lacks the program's first work, so the first invocation may be incomplete."""

TRANSFERS_UNTIMED: Final = "transfers-untimed"
"""Copies and fills run in one submission with kernels, and have no rows of their own."""

LOAD_TIME: Final = "load-time-not-measured"
"""Dispatches ran when the module was loaded, which the run does not measure."""

SHARES_ESTIMATED: Final = "shares-are-estimates"
"""The shares of ops within kernels are estimated from machine code or rooflines."""

RELEASES_MISSING: Final = "releases-missing"
"""The run lacks releases of memory, so that its allocated peak is an upper limit."""

WINDOW: Final = "window"
"""The result covers only some of the run's invocations."""

ABOVE_RESULT: Final = (WINDOW, RECORDS_LOST, PAUSED, NOISY, "few-samples")
"""The most important diagnostics: reports print them above a result, not below it."""


def has_slug(diagnostics: Iterable[Diagnostic], slug: str) -> bool:
    """Whether the diagnostics contain this slug."""
    return any(diagnostic.slug == slug for diagnostic in diagnostics)


def above_result(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics to print above a result."""
    return [item for item in diagnostics if item.slug in ABOVE_RESULT]


def below_result(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics to print below a result."""
    return [item for item in diagnostics if item.slug not in ABOVE_RESULT]
