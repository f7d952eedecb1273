"""What `tracemap bench` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracemap.options.call import FunctionOptions
from tracemap.options.option import option


@dataclass(frozen=True, slots=True)
class BenchOptions(FunctionOptions):
    """Which kernels of a bundle to run alone, how, and where the result goes."""

    kernel: tuple[str, ...] = option((), "Only kernels whose name is like this, such as '*matmul*'.", metavar="GLOB")
    op: tuple[str, ...] = option((), "Only kernels that an op works in: op12.", metavar="OP")
    top: int = option(0, "Only so many, those that cost the most in the run.  [default: all]", metavar="N", at_least=1)
    run: Path | None = option(None, "The run to compare with.  [default: the newest in the bundle]", metavar="RUN")
    cold: bool = option(
        False, "Measure with cold caches too.  [default: only where the application takes another time]"
    )
    no_verify: bool = option(False, "Do not compare what kernels compute with a reference.")
    repetitions: int = option(10, "How often a batch of calls is timed.", metavar="N", at_least=1, at_most=10_000)
    processes: int = option(
        5, "So many processes share the repetitions; times differ between them.", metavar="N", at_least=1, at_most=1_000
    )
    min_time: float = option(
        10.0,
        "A batch takes so long at least, and a hundred times as long as its submission.",
        metavar="MS",
        above=0,
        at_most=60_000,
    )
    time_limit: float = option(
        60.0, "Give a kernel up that takes longer in a process.", metavar="S", above=0, at_most=86_400
    )
    seconds: float = option(
        1.0,
        "Where the application takes another time, record it again for so long, on one worker; 0: not at all.",
        metavar="S",
        at_least=0,
        at_most=86_400,
    )
    output: Path | None = option(None, "Write here instead of standard output.", "-o", "--output")
    force: bool = option(False, "Replace the output if it exists.")
    format: Literal["text", "json", "csv", "google-benchmark"] = option("text", "What to print.")
