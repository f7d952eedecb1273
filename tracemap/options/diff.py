"""What `tracemap diff` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.attribute import DISPATCH_HELP, KEEP_DISTURBED_HELP, RULE_HELP, Rule, memory_option
from tracemap.options.option import Options, option
from tracemap.units import UNKNOWN, Unknown


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
