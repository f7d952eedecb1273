"""What `tracemap report` can be asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

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
