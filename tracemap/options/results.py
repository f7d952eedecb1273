"""Options of `attribute`, `export`, `report` and `diff`."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from tracemap.core.errors import UsageInvalid
from tracemap.core.files import STANDARD_OUTPUT
from tracemap.core.units import UNKNOWN, Unknown
from tracemap.options.option import Options, count, duration, name_list, option, percentage, required

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


@dataclass(frozen=True, slots=True)
class McpOptions(Options):
    """Options of `mcp`: limits of an answer."""

    timeout: float = duration(120.0, "Longest time of an answer, in seconds.")
    depth: int = count(4, "Levels of folders to search for bundles and runs.", at_most=20)


ALL_OVERHEAD: Final = "all"
"""The value of --overhead without OP."""


@dataclass(frozen=True, slots=True)
class WhatIfOptions(Options):
    """Options of `what-if`: what changes, and how to join runs onto their bundle."""

    op: str | None = option(None, "Op (op12), or ops by name (add).", metavar="OP")
    line: str | None = option(None, "Ops of a source line, including calls made on it.", metavar="FILE:LINE")
    scope: str | None = option(None, "Ops of a scope with everything below it.", metavar="SCOPE")
    kernel: str | None = option(None, "Kernel, by the beginning of its name, or what runs in it.", metavar="KERNEL")
    overhead: str | None = option(
        None,
        "Time in which no kernel ran, or the part of it that belongs to what OP names: a loop, a dispatch, a copy.",
        metavar="[OP]",
        bare=ALL_OVERHEAD,
    )
    faster: str = option(
        "2x", "How fast it gets: a factor (2x), `roofline` or `removed`.  [default: 2x]", metavar="FACTOR"
    )
    workers: int | Unknown = count(UNKNOWN, "Number of workers.  [default: as in the run]", at_most=1024)
    map: Path | None = option(None, "Bundle of the runs.  [default: found from the first RUN]", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    top: int = count(20, "Rows of the ranked list; 0: all.", at_least=0)
    format: Literal["text", "json"] = option("text", "Output format.")
    json: bool = option(False, "The same as --format json.")
    memory: int = memory_option()

    @property
    def names_change(self) -> bool:
        """Whether the options name a change, so that no list of all ops is meant."""
        selectors = (self.op, self.line, self.scope, self.kernel, self.overhead)
        return any(what is not None for what in selectors) or self.workers is not UNKNOWN


Format = Literal[
    "pprof",
    "callgrind",
    "speedscope",
    "collapsed",
    "perfetto",
    "chrome-trace",
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
    """Options of `export`: the format, its details, and how to join runs onto their bundle."""

    to: str = required(
        f"The format: {', '.join(get_args(Format))}, or one of another package (docs/extending.md).", metavar="FORMAT"
    )
    output: Path = option(
        Path(STANDARD_OUTPUT),
        "File to write.  [default: standard output, for text formats]",
        "-o",
        "--output",
        metavar="FILE",
    )
    map: Path | None = option(None, "Bundle of the runs.  [default: found from the first RUN]", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--until", metavar="S", above=0)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    metrics: tuple[str, ...] = name_list(
        "Metrics of the run or of the program, in this order; csv and parquet add those of the program.  [default: all "
        "of the run, times first; collapsed: the first of these]",
        "--metric",
        metavar="A,B…",
    )
    callers: Callers = option("scope", "Call stack of an op: its scopes, or the Python lines that created it.")
    self_cost: SelfCost = option(
        "ops", "For callgrind: charge costs to the lines of the model (ops) or of its kernels (kernels)."
    )
    invocations: tuple[int, ...] = count(
        (),
        "For timelines: index of an invocation to draw, from 0, warm-up included.  [repeatable; default: one of "
        "median time]",
        "--invocation",
        at_least=0,
    )
    all_invocations: bool = option(False, "For timelines: draw all measured invocations.")
    no_data_flow: bool = option(
        False, "For graphs: leave out the data flow between ops. Faster, since the model need not be parsed."
    )
    memory: int = memory_option()
    force: bool = option(False, "Overwrite outputs that tracemap did not write.")


@dataclass(frozen=True, slots=True)
class ReportOptions(Options, Windowed):
    """Options of `report`: the page to write, and how to join runs onto their bundle."""

    output: Path | None = option(
        None, "Page to write.  [default: the bundle's name with .html]", "-o", "--output", metavar="PAGE.html"
    )
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    begin: float = option(0.0, FROM_HELP, "--from", metavar="S", at_least=0)
    end: float = option(math.inf, TO_HELP, "--to", "--until", metavar="S", above=0)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the page carries a warning.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    metrics: tuple[str, ...] = name_list(
        "Also show these metrics of the program, such as live_bytes_at_peak.  [default: those of the run]",
        "--metric",
        metavar="A,B…",
    )
    totals: bool = option(False, "Start with sums over all invocations, instead of means per invocation.")
    memory: int = memory_option()
    force: bool = option(False, "Overwrite a page that tracemap did not write.")


@dataclass(frozen=True, slots=True)
class CheckOptions(Options):
    """Options of `check`: what fails, and the files to write."""

    fail_over: float = percentage(5.0, "Fail if a cost or the peak of memory grew significantly by more than this.")
    threshold: float = percentage(3.0, "Warn of statistically significant changes above this percentage.")
    sarif: Path | None = option(None, "Write the problems as SARIF 2.1.0.", metavar="FILE")
    junit: Path | None = option(None, "Write a test suite in JUnit's XML.", metavar="FILE")
    markdown: Path | None = option(
        None, "Write a summary in Markdown.  [default: in GitHub Actions, the summary of the job]", metavar="FILE"
    )
    map_a: Path | None = option(None, "Bundle of BASELINE.", metavar="BUNDLE")
    map_b: Path | None = option(None, "Bundle of NEW.", metavar="BUNDLE")
    raw: bool = option(False, "Compare times as recorded, not corrected for the machine's speed.")
    rule: Rule | None = option(None, RULE_HELP)
    memory: int = memory_option()
    force: bool = option(False, "Overwrite outputs that tracemap did not write.")


@dataclass(frozen=True, slots=True)
class LspOptions(Options):
    """Options of `lsp`: what to do instead of serving."""

    bundle: Path | None = option(
        None,
        "Print the costs that an editor would show for this bundle, as JSON, instead of serving.",
        "--print",
        metavar="BUNDLE",
    )


@dataclass(frozen=True, slots=True)
class DiffOptions(Options):
    """Options of `diff`: how to compare two runs or bundles, and outputs."""

    baseline: Path | None = option(
        None,
        "Compare each argument with this bundle or run, instead of A with B. --html then writes one page per argument.",
        metavar="BASE",
    )
    map_a: Path | None = option(None, "Bundle of A.", metavar="BUNDLE")
    map_b: Path | None = option(None, "Bundle of B.", metavar="BUNDLE")
    threshold: float = percentage(3.0, "Report statistically significant changes above this percentage.")
    fail_over: float | Unknown = percentage(
        UNKNOWN,
        "Exit with status 1 if a cost grew significantly by more than this percentage. Such costs are "
        "listed regardless of --threshold.",
    )
    raw: bool = option(
        False,
        "Compare times as recorded.  [without it: corrected for the machine's speed, which ops with unchanged code "
        "measure]",
    )
    by: Literal["op", "scope", "line", "source", "python"] | None = option(
        None,
        "Rows of the text table. source: your own line of Python, else the ONNX node, else the model's line.  "
        "[default: source for JAX, torch and ONNX, else op]",
    )
    metric: str | None = option(None, "Metric of the text table.  [default: time]", metavar="NAME")
    only: str | None = option(
        None,
        "List only the significant changes and fusion changes of the ops that WHAT names in A or B: a line, a scope, "
        "an op, a kernel.",
        metavar="WHAT",
    )
    top: int = count(20, "Rows of the text tables; 0: all.", at_least=0)
    notes: bool = option(False, "Print all notes on the result, not only the three most important.")
    rule: Rule | None = option(None, RULE_HELP)
    keep_outliers: bool = option(False, KEEP_OUTLIERS_HELP)
    allow_mismatch: bool = option(False, "Accept a run recorded from a different build; the result carries a warning.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json", "csv"] = option("text", "Output format.")
    html: Path | None = option(None, "Also write a page with both sources side by side.", metavar="PAGE")
    output: Path | None = option(None, "Write to this file instead of standard output.", "-o", "--output")
    memory: int = memory_option()
    force: bool = option(False, "Overwrite an output that tracemap did not write.")
