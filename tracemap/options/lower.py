"""What `tracemap lower` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.option import Options, option, required


@dataclass(frozen=True, slots=True)
class LowerOptions(Options):
    """Which pass pipelines to run over a model, and where the result goes."""

    pipelines: tuple[str, ...] = required(
        "A pass pipeline as iree-opt takes it, builtin.module(…); the next one goes on from its result.  [repeatable]",
        "--pipeline",
        metavar="PIPELINE",
    )
    format: Literal["text", "json"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Write the page of stages too.", metavar="PAGE")
    force: bool = option(False, "Replace outputs that exist.")
