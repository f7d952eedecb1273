"""Options of `attribute`, `export`, `report` and `diff`."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from tracemap.errors import UsageInvalid
from tracemap.options.option import Options, option, required
from tracemap.units import UNKNOWN, Unknown

# ---- attribute
#
# What `tracemap attribute` can be asked.


RULE_HELP = (
    "How a kernel's cost is split over its ops.  [default: measured where a RUN has 100 samples or counts, else code; "
    "model where a kernel has no machine code]"
)

LEAST_MEMORY_MB, MOST_MEMORY_MB = 128, 1500
"""With less, sorting and grouping end for want of memory instead of spilling; more is taken only if asked for."""
_LARGEST_MEMORY_MB = 1_000_000_000
"""More than any machine has; in bytes it fits into 64 bits by far."""
_MEMORY_HELP = (
    "Megabytes of memory for the rows of runs; the rest goes to disk.  "
    f"[default: half of what is free, at most {MOST_MEMORY_MB}]"
)


def memory_option() -> int:
    """The option of all that read runs: how much memory their rows may take, 0: as much as is good."""
    return option(
        0, _MEMORY_HELP, metavar="MB", at_least=LEAST_MEMORY_MB, at_most=_LARGEST_MEMORY_MB, variable="TRACEMAP_MEMORY"
    )


FROM_HELP = "Only calls that began so many seconds after the first one of the run, or later.  [default: all]"
TO_HELP = "Only calls that began before so many seconds after it.  [default: all]"
KEEP_DISTURBED_HELP = "Split what calls take beyond the fence of calls like them over ops, too."
DISPATCH_HELP = "The kernel that the calls of a CSV file of IREE's hook are of, which names none."


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, in seconds since the first measured call of a run began; the end is not part of it."""

    begin_s: float = 0.0
    end_s: float = math.inf

    def __post_init__(self) -> None:
        if self.begin_s >= self.end_s:
            raise UsageInvalid(f"a window {self} has nothing in it; it must end behind where it begins")

    def __str__(self) -> str:
        """As it is said to a reader."""
        return f"from {self.begin_s:g} s" + (f" to {self.end_s:g} s" if math.isfinite(self.end_s) else "")


ALL: Final = Window()
"""Nothing is left out."""


class Windowed:
    """What options have that name a window of runs; they declare `begin` and `end` in their own places."""

    __slots__ = ()
    begin: float
    end: float

    @property
    def window(self) -> Window:
        """The calls that are looked at."""
        return Window(self.begin, self.end)


class Rule(enum.StrEnum):
    """How a site's cost is split over its members."""

    MEASURED = "measured"
    """By what was seen of their steps: samples of the program counter, or simulated counts."""
    CODE = "code"
    """By the machine code: how often each op's instructions run, how long they keep a core busy, and what they load."""
    MODEL = "model"
    """By the roofline time of each membership: the larger of operations over peak and bytes over bandwidth."""
    ROOT = "root"
    """All to the root."""
    EQUAL = "equal"
    """The same to each member."""


@dataclass(frozen=True, slots=True)
class AttributeOptions(Options, Windowed):
    """How to join runs onto their bundle, and where the result goes."""

    map: Path | None = option(None, "The runs' bundle.", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--to", "--until", metavar="S", above=0)
    format: Literal["text", "json", "csv"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Write the annotated page too.", metavar="PAGE")
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the report says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    by: Literal["op", "line", "python", "caller", "scope", "kernel", "site", "name"] = option(
        "op", "What a row of the text's table is; a caller is the innermost Python line outside of shared helpers."
    )
    metrics: tuple[str, ...] = option(
        (),
        "Metrics of the text, the first to rank by.  [default: time, and up to three others]",
        "--metric",
        metavar="A,B…",
        split=True,
    )
    totals: bool = option(False, "Sums over all invocations in text and page, not the mean of one.")
    top: int = option(20, "Rows of the text's table; 0: all.", metavar="N", at_least=0)
    sort: str | None = option(None, "The column to sort the text's rows by.  [default: cost]", metavar="COLUMN")
    columns: tuple[str, ...] = option(
        (), "Columns of the text's table, in this order.  [default: those that fit]", metavar="A,B…", split=True
    )
    filters: tuple[str, ...] = option(
        (),
        "Only rows with a text that matches, such as `*dot*` or `scope=h0/*`; give it again for rows that match both.",
        "--filter",
        metavar="[COLUMN=]PATTERN",
    )
    memory: int = memory_option()
    force: bool = option(False, "Replace outputs that exist.")


# ---- export
#
# What `tracemap export` can be asked.


Format = Literal[
    "pprof",
    "callgrind",
    "speedscope",
    "perfetto",
    "model-explorer",
    "graphml",
    "dot",
    "csv",
    "parquet",
    "google-benchmark",
]
Callers = Literal["scope", "python"]
SelfCost = Literal["ops", "kernels"]


@dataclass(frozen=True, slots=True)
class ExportOptions(Options, Windowed):
    """Which format to write, what of the costs, and how runs are joined for it."""

    to: Format = required(f"The format: {', '.join(get_args(Format))}.", metavar="FORMAT")
    output: Path = required("The file; `-` prints formats that are text.", "-o", "--output", metavar="FILE")
    map: Path | None = option(None, "The runs' bundle.", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--until", metavar="S", above=0)
    allow_mismatch: bool = option(False, "Join a run of another module all the same.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    metrics: tuple[str, ...] = option(
        (), "Metrics, in this order.  [default: all, times first]", "--metric", metavar="A,B…", split=True
    )
    callers: Callers = option(
        "scope", "What leads to an op in stacks: its scopes, or the lines of Python that made it."
    )
    self_cost: SelfCost = option(
        "ops", "Of callgrind, which lines have the cost: those of the model or of its kernels."
    )
    invocations: tuple[int, ...] = option(
        (),
        "Of timelines, the call to draw, warm-up counted; give it again for several.  [default: a median one]",
        "--invocation",
        metavar="N",
        at_least=0,
    )
    all_invocations: bool = option(False, "Of timelines, draw all measured calls.")
    no_data_flow: bool = option(False, "Of graphs, leave out which op uses whose result; nothing is parsed then.")
    memory: int = memory_option()
    force: bool = option(False, "Replace outputs that exist.")


# ---- report
#
# What `tracemap report` can be asked.


@dataclass(frozen=True, slots=True)
class ReportOptions(Options, Windowed):
    """Where the annotated page goes, and how runs are joined for it."""

    output: Path = required("The page.", "-o", "--output", metavar="PAGE.html")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--to", "--until", metavar="S", above=0)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the page says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    totals: bool = option(False, "Begin with sums over all invocations, not the mean of one.")
    memory: int = memory_option()
    force: bool = option(False, "Replace PAGE.html if it exists.")


# ---- diff
#
# What `tracemap diff` can be asked.


@dataclass(frozen=True, slots=True)
class DiffOptions(Options):
    """How to compare two runs or bundles, and where the result goes."""

    baseline: Path | None = option(
        None, "Compare each of the others with this bundle or run; as text, JSON, or a page for each.", metavar="BASE"
    )
    map_a: Path | None = option(None, "The bundle of A.", metavar="BUNDLE")
    map_b: Path | None = option(None, "The bundle of B.", metavar="BUNDLE")
    threshold: float = option(
        3.0, "Name what changed by more than this, beyond chance, in percent.", metavar="PERCENT", at_least=0
    )
    fail_over: float | Unknown = option(
        UNKNOWN,
        "End with status 1 where something costs more by over this, beyond chance; it is named, whatever --threshold.",
        metavar="PERCENT",
        at_least=0,
    )
    by: Literal["op", "scope", "line"] = option("op", "What a row of the text's table is.")
    metric: str | None = option(None, "The metric of the text's table.  [default: time]", metavar="NAME")
    top: int = option(20, "Rows of the text's tables; 0: all.", metavar="N", at_least=0)
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the result says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json", "csv"] = option("text", "What to print.")
    html: Path | None = option(None, "Write a page too: both sources side by side.", metavar="PAGE")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    memory: int = memory_option()
    force: bool = option(False, "Replace the output if it exists.")
