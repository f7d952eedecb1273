"""Options of `attribute`, and what options of other commands that read runs share with them."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.core.errors import UsageInvalid
from tracemap.options.option import Options, count, name_list, option

RULE_HELP = (
    "How to split a kernel's cost over its ops.  [default: measured if the runs have simulated counts or "
    "at least 100 samples, else code; model if a kernel has no machine code]"
)

LEAST_MEMORY_MB, MOST_MEMORY_MB = 128, 1500
"""Below the minimum, sorting and grouping run out of memory instead of spilling. The maximum is only a default."""
_LARGEST_MEMORY_MB = 1_000_000_000
"""More than any machine has; its number of bytes still fits into 64 bits."""
_MEMORY_HELP = (
    "Memory limit for reading runs, in megabytes; more data spills to disk.  "
    f"[default: half of the free memory, at most {MOST_MEMORY_MB}]"
)


def memory_option() -> int:
    """Memory limit option of all commands that read runs; 0: the default limit."""
    return option(
        0, _MEMORY_HELP, metavar="MB", at_least=LEAST_MEMORY_MB, at_most=_LARGEST_MEMORY_MB, variable="TRACEMAP_MEMORY"
    )


FROM_HELP = "Only invocations that began at least S seconds after the first measured one.  [default: all]"
TO_HELP = "Only invocations that began less than S seconds after the first measured one.  [default: all]"
KEEP_OUTLIERS_HELP = "Attribute the time of outliers (preemption, noise) to ops, instead of reporting it separately."
DISPATCH_HELP = "Kernel of the recorded calls, if the run is a CSV file of IREE's hook: such files do not name it."


@dataclass(frozen=True, slots=True)
class Window:
    """Time window in seconds since the first measured invocation of a run began; the end is exclusive."""

    begin_s: float = 0.0
    end_s: float = math.inf

    def __post_init__(self) -> None:
        if self.begin_s >= self.end_s:
            raise UsageInvalid(f"the time window {self} is empty; it must end after it begins")

    def __str__(self) -> str:
        """The window in words."""
        return f"from {self.begin_s:g} s" + (f" to {self.end_s:g} s" if math.isfinite(self.end_s) else "")


WHOLE_RUN: Final = Window()
"""The whole run."""


class Windowed:
    """Mixin for options with a time window; subclasses declare `begin` and `end`."""

    __slots__ = ()
    begin: float
    end: float

    @property
    def window(self) -> Window:
        """Time window of the invocations to include."""
        return Window(self.begin, self.end)


class Rule(enum.StrEnum):
    """How to split a dispatch's cost over its ops."""

    MEASURED = "measured"
    """Samples of the program counter, or simulated counts, per line of kernel IR."""
    CODE = "code"
    """The machine code: how often an op's instructions run, how long they occupy a core, and how much they load."""
    MODEL = "model"
    """The roofline time of each op in the dispatch: the larger of operations over peak and bytes over bandwidth."""
    ROOT = "root"
    """All to the root op."""
    EQUAL = "equal"
    """Equal parts for all ops in the dispatch."""


@dataclass(frozen=True, slots=True)
class AttributeOptions(Options, Windowed):
    """Options of `attribute`: how to join runs onto their bundle, and outputs."""

    map: Path | None = option(None, "Bundle of the runs.  [default: found from the first RUN]", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--to", "--until", metavar="S", above=0)
    format: Literal["text", "json", "csv"] = option("text", "Output format.")
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Also write the annotated page.", metavar="PAGE")
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the report carries a warning.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    by: (
        Literal[
            "op",
            "line",
            "source",
            "python",
            "function",
            "caller",
            "scope",
            "pass",
            "kernel",
            "site",
            "name",
            "overhead",
        ]
        | None
    ) = option(
        None,
        "Rows of the text table: op, line, source (lines of your Python, or nodes of ONNX), python, function, caller "
        "(your innermost line outside shared helper functions), scope, pass (forward, backward), kernel, `site`, name, "
        "or overhead (loops and other places between kernels).  [default: source for JAX, torch and ONNX, else op]",
        metavar="VIEW",
    )
    metrics: tuple[str, ...] = name_list(
        "Metrics of the text table; the first one ranks the rows. Those of the program are in JSON, CSV and the page "
        "only if named: bytes_read, bytes_written, bytes_moved, live_bytes_at_peak, compile_ns, module_bytes.  "
        "[default: time and up to three others]",
        "--metric",
        metavar="A,B…",
    )
    totals: bool = option(False, "Show sums over all invocations in text and page, instead of means per invocation.")
    balance: bool = option(False, "Print the whole balance after the text table: all metrics and reasons, exact sums.")
    notes: bool = option(False, "Print all notes on the result, not only the three most important.")
    top: int = count(20, "Rows of the text table; 0: all.", at_least=0)
    sort: str | None = option(None, "Column to sort the text table by.  [default: cost]", metavar="COLUMN")
    columns: tuple[str, ...] = name_list(
        "Columns of the text table, in this order.  [default: those that fit]", metavar="A,B…"
    )
    filters: tuple[str, ...] = option(
        (),
        "Only rows in which some text, or the given column, matches this pattern: `*dot*`, `scope=h0/*`. If "
        "repeated, rows must match all patterns.",
        "--filter",
        metavar="[COLUMN=]PATTERN",
    )
    only: str | None = option(
        None,
        "Only rows of the ops that WHAT names, as in `tracemap show`: a line, a scope, an op, a kernel.",
        metavar="WHAT",
    )
    memory: int = memory_option()
    force: bool = option(False, "Overwrite outputs that tracemap did not write.")
