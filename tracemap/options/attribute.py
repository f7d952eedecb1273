"""What `tracemap attribute` can be asked."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import Options, option

RULE_HELP = (
    "How a site's cost is split over its ops.  [default: measured where a RUN has samples or counts, else model]"
)


class Rule(enum.StrEnum):
    """How a site's cost is split over its members."""

    MEASURED = "measured"
    """By what was seen of their steps: samples of the program counter, or simulated counts."""
    MODEL = "model"
    """By the roofline time of each membership: the larger of operations over peak and bytes over bandwidth."""
    ROOT = "root"
    """All to the root."""
    EQUAL = "equal"
    """The same to each member."""


@dataclass(frozen=True, slots=True)
class AttributeOptions(Options):
    """How to join runs onto their bundle, and where the result goes."""

    map: Path | None = option(None, "The runs' bundle.", metavar="BUNDLE")
    rule: Rule | None = option(None, RULE_HELP)
    keep_disturbed: bool = option(False, "Split what calls take beyond the fence of calls like them over ops, too.")
    format: Literal["text", "json", "csv"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Write the annotated page too.", metavar="PAGE")
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the report says so.")
    all: bool = option(False, "List all ops in the table, not only the most expensive.")
    force: bool = option(False, "Replace outputs that exist.")
