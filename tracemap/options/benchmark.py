"""What `tracemap benchmark` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracemap.options.call import MOST_CALLS, CallOptions
from tracemap.options.option import option
from tracemap.units import UNKNOWN, Integer


@dataclass(frozen=True, slots=True)
class BenchmarkOptions(CallOptions):
    """Which functions to time, how often, and how it is told."""

    repetitions: int = option(
        1, "Time the calls so often, each time anew.", metavar="N", at_least=1, at_most=MOST_CALLS
    )
    min_time: float = option(0.5, "Make calls for at least so many seconds.", metavar="S", above=0, at_most=86_400)
    iterations: Integer = option(
        UNKNOWN,
        "Make so many calls, exactly.  [default: as --min-time asks for]",
        metavar="N",
        at_least=1,
        at_most=MOST_CALLS,
    )
    dispatch_repeat: int = option(
        1,
        "Run each kernel so often in a call, and divide the time by it, so that what surrounds kernels counts less: "
        "the module is compiled again for it.",
        metavar="N",
        at_least=1,
        at_most=100_000,
    )
    time_unit: Literal["ms", "us", "ns"] = option("ms", "The unit of times in the table and in JSON.")
    format: Literal["text", "json"] = option("text", "The table of Google Benchmark, or its JSON.")
