"""What `tracemap export` can be asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tracemap.options.attribute import (
    DISPATCH_HELP,
    FROM_HELP,
    KEEP_DISTURBED_HELP,
    RULE_HELP,
    TO_HELP,
    Rule,
    Windowed,
    memory_option,
)
from tracemap.options.option import Options, option, required

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
