"""The causes that `tracemap bisect` found, for people."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TextIO

from tracemap.compare.bisection import RATIOS, Bisection, Cause, HitOp, Value
from tracemap.core.units import Unknown, format_ns, plural
from tracemap.reports.terminal.tables import console, say

_NAMES = {"flag": "flag", "release": "release of IREE", "edit": "edit"}


def print_bisection(result: Bisection, out: TextIO) -> None:
    """Print the causes, and the commands that show what they change."""
    terminal = console(out)
    kinds = Counter[str](each.kind for each in result.differences)
    counts = " and ".join(f"{plural(kinds[kind], name)}" for kind, name in _NAMES.items() if kinds[kind])
    verb = "differs" if len(result.differences) == 1 else "differ"
    what = result.metric if isinstance(result.op, Unknown) else f"{result.metric} of {result.op}"
    change = f"{_shown(result, result.good_value)} → {_shown(result, result.bad_value)}"
    failed = f", {result.failed} of them failed" if result.failed else ""
    say(terminal, f"{what}: {change}; {counts} {verb}, {plural(result.builds, 'build')}{failed}")
    if not result.causes:
        say(terminal, "No cause: the second build is not significantly worse.")
    if len(result.causes) > 1:
        say(terminal, f"{len(result.causes)} causes; each makes it worse without the others.")
    for number, cause in enumerate(result.causes, 1):
        title = "Cause" if len(result.causes) == 1 else f"Cause {number} of {len(result.causes)}"
        together = " (only together)" if len(cause.differences) > 1 else ""
        doubt = "" if cause.certain else ", uncertain: the times overlap"
        say(terminal, "")
        say(terminal, f"{title}{together}: {_shown(result, cause.value)}{doubt}")
        _print_cause(result, cause, out)


def _print_cause(result: Bisection, cause: Cause, out: TextIO) -> None:
    terminal = console(out)
    for difference in cause.differences:
        say(terminal, f"  {difference.text}")
    if cause.ops:
        say(terminal, "  Ops:")
    for op in cause.ops:
        say(terminal, f"    {_op(result, op)}")
    if cause.message:
        for line in cause.message.splitlines():
            say(terminal, f"  {line}")
    for words in (cause.diff, cause.reproduce):
        if words:
            say(terminal, f"  {shlex.join(words)}")


def _op(result: Bisection, op: HitOp) -> str:
    where = "" if isinstance(op.line, Unknown) else f" at line {op.line}"
    where += f", {op.python}" if op.python else ""
    name = "only in GOOD:" if isinstance(op.op, Unknown) else op.op
    if isinstance(op.change, Unknown):
        change = ""
    elif result.metric in RATIOS:
        change = f" +{format_ns(op.change)}"
    else:
        change = f" +{op.change:,} bytes"
    return f"{name} {op.name}{where}{change}"


def _shown(result: Bisection, value: Value) -> str:
    if result.metric in RATIOS:
        return f"{value.value:.3f}x" + ("" if value.is_exact else f" ({value.low:.3f} to {value.high:.3f})")
    if result.metric == "outputs":
        return "others than GOOD's" if value.value else "as GOOD's"
    if result.metric == "crash":
        return "cannot be compiled" if value.value else "compiles"
    return f"{int(value.value):,} bytes"
