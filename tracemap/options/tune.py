"""What `tracemap tune` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.call import CallOptions
from tracemap.options.option import option


@dataclass(frozen=True, slots=True)
class TuneOptions(CallOptions):
    """Which kernels of a bundle to tune, how long to look, and how the result is tried in the application."""

    op: tuple[str, ...] = option((), "Tune the kernels that an op works in: op12.", metavar="OP")
    kernel: tuple[str, ...] = option((), "Tune kernels whose name is like this.", metavar="GLOB")
    top: int = option(
        0, "Tune the N that cost the most in the newest run.  [default: what is named]", metavar="N", at_least=1
    )
    candidates: int = option(
        24, "Try at most so many configurations of a kernel.", metavar="N", at_least=1, at_most=10_000
    )
    time_limit: float = option(60.0, "Measure a kernel no longer than this.", metavar="S", above=0, at_most=86_400)
    output: Path | None = option(None, "The tuning spec.  [default: BUNDLE's name, with .spec.mlir]", "-o", "--output")
    work: Path | None = option(
        None,
        "Keep candidates and results here, to go on after an end.  [default: OUTPUT.work; BUNDLE's name if printed]",
    )
    write_for_amdsharktuner: Path | None = option(
        None, "For AMD GPUs: write the kernels into this folder, for amdsharktuner to tune.", metavar="DIR"
    )
    pairs: int = option(
        6, "Record the application before and after so often, in turn; 0: not at all.", metavar="N", at_least=0
    )
    seconds: float = option(1.0, "Measure no longer than this in each recording.", metavar="S", above=0, at_most=86_400)
    threshold: float = option(3.0, "A gain is more than this, in percent.", metavar="PERCENT", at_least=0)
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json"] = option("text", "What to print.")
