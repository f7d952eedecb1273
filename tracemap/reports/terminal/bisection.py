"""The causes that `tracemap bisect` found, for people."""

from __future__ import annotations

import shlex
from typing import TextIO

from tracemap.compare.bisection import Bisection, Value
from tracemap.core.units import plural
from tracemap.reports.terminal.tables import console, say


def print_bisection(result: Bisection, out: TextIO) -> None:
    """Print the causes, and the commands that show what they change."""
    terminal = console(out)
    count = f"{plural(len(result.differences), 'flag')} of the compiler differ"
    change = f"{_shown(result, result.good_value)} → {_shown(result, result.bad_value)}"
    say(terminal, f"{result.metric}: {change}; {count}, {len(result.builds) + 2} builds measured")
    if not result.causes:
        say(terminal, "No cause: the second build is not significantly worse.")
    for number, cause in enumerate(result.causes, 1):
        title = "Cause" if len(result.causes) == 1 else f"Cause {number} of {len(result.causes)}, each is enough alone"
        together = ", only together" if len(cause.differences) > 1 else ""
        doubt = "" if cause.certain else ", uncertain: the times overlap"
        say(terminal, "")
        say(terminal, f"{title}{together}: {_shown(result, cause.value)}{doubt}")
        for difference in cause.differences:
            say(terminal, f"  {difference}")
        say(terminal, f"  tracemap diff {shlex.quote(str(result.good))} {shlex.quote(str(cause.bundle))}")


def _shown(result: Bisection, value: Value) -> str:
    if result.metric == "time":
        return f"{value.value:.3f}x" + ("" if value.is_exact else f" ({value.low:.3f} to {value.high:.3f})")
    return f"{int(value.value):,} bytes"
