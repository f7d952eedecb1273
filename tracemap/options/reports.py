"""Options of the commands that report on attributed runs, such as `what-if`, `export`, `report` and `diff`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from tracemap.core.files import STANDARD_OUTPUT
from tracemap.core.units import UNKNOWN, Unknown
from tracemap.options.option import Options, count, duration, name_list, option, percentage, required
from tracemap.options.results import (
    DISPATCH_HELP,
    FROM_HELP,
    KEEP_OUTLIERS_HELP,
    RULE_HELP,
    TO_HELP,
    Rule,
    Windowed,
    memory_option,
)


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
