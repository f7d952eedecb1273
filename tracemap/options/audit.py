"""What `tracemap audit` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.options.option import Options, option
from tracemap.units import UNKNOWN, Unknown


@dataclass(frozen=True, slots=True)
class AuditOptions(Options):
    """How to print what became of ops, what to find out besides, and when to fail."""

    format: Literal["text", "json"] = option("text", "Tables, or JSON that names every op.")
    fail_under: float | Unknown = option(
        UNKNOWN,
        "End with status 1, and a list, where fewer ops than this have a location of their own in the model.",
        metavar="PERCENT",
        at_least=0,
        at_most=100,
    )
    ops: tuple[str, ...] = option(
        (),
        "Compile again, printing IR around passes, and name the pass that lost this op.  [repeatable]",
        "--pass",
        metavar="OP",
    )
