"""What `tracemap remarks` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.attribute import DISPATCH_HELP, KEEP_DISTURBED_HELP, RULE_HELP, Rule, memory_option
from tracemap.options.option import Options, option


@dataclass(frozen=True, slots=True)
class RemarksOptions(Options):
    """Which remarks to print, by which cost they are ranked, and where they go."""

    metric: str | None = option(None, "The metric to rank by.  [default: time]", metavar="NAME")
    top: int = option(40, "Rows of the text's table; 0: all.", metavar="N", at_least=0)
    figures: bool = option(False, "List what only counts, too: instructions, bytes of the stack.")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, KEEP_DISTURBED_HELP)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the result says so.")
    dispatch: str = option("", DISPATCH_HELP, metavar="KERNEL")
    format: Literal["text", "json"] = option("text", "A table, or JSON with all remarks.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    memory: int = memory_option()
    force: bool = option(False, "Replace the output if it exists.")
