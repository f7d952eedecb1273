"""What the commands that make and read runs can be asked."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracemap.options.option import BEHIND_DASHES, Options, option, required
from tracemap.units import UNKNOWN, Integer, Text

DEFAULT_HZ: Final = 251
"""Samples per second and thread: with some 20 us each in a virtual machine this adds about half a percent. A prime, so
that it does not fall into step with what the program does."""


@dataclass(frozen=True, slots=True)
class RecordOptions(Options):
    """How to run a bundle's module, and what to measure of it."""

    output: Path | None = option(
        None,
        "The run to write: Parquet, or CSV if it ends in .csv.  [default: BUNDLE/runs/run-NNN.parquet]",
        "-o",
        "--output",
    )
    function: Text = option(UNKNOWN, "The entry point to call.  [default: the only one]", metavar="F")
    inputs: tuple[str, ...] = option(
        (),
        "An input as IREE writes it (4x4xf32=0.5, 7, @x.npy), one per argument.  [default: made up]",
        "--input",
        metavar="SPEC",
    )
    dim: Integer = option(UNKNOWN, "The size of every `?` in made-up inputs.", metavar="N", at_least=0)
    flagfile: Path | None = option(None, "A flag file of IREE: function, inputs, parameters.", metavar="F")
    serial: bool = option(False, "One worker instead of all cores.")
    iterations: int = option(20, "Measured calls.", at_least=1)
    warmup: int = option(3, "Calls before them, which are marked and left out of reports.", at_least=0)
    counters: tuple[str, ...] = option(
        (),
        "Events to count in further executions, such as page-faults,cache-misses; see tracemap events.",
        metavar="A,B",
        split=True,
    )
    counters_per_pass: int = option(
        0,
        "Count so many events in an execution.  [default: as many as the processor counts at a time]",
        metavar="N",
        at_least=1,
    )
    sample_hz: int = option(
        0,
        "Sample the program counter so often per second and thread, for time per op in kernels.  "
        f"[without HZ: {DEFAULT_HZ}]",
        "--sample",
        metavar="HZ",
        at_least=1,
        at_most=20_000,
        bare=DEFAULT_HZ,
    )
    cache_sim: bool = option(
        False, "Simulate one call under valgrind, for instructions and cache misses by step of the kernels."
    )
    cache_geometry: tuple[str, ...] = option(
        (),
        "A cache to simulate, I1, D1 or LL: D1=32768,8,64.  [default: this machine's]",
        metavar="CACHE=BYTES,WAYS,LINE",
    )
    force: bool = option(False, "Replace the output if it exists.")
    runtime_flags: tuple[str, ...] = option(
        (), "Flags for iree-benchmark-module.", BEHIND_DASHES, metavar="[-- RUNTIME FLAGS]"
    )


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
    format: Literal["text", "json", "csv"] = option("text", "What to print.")
    output: Path | None = option(None, "Write there instead of standard output.", "-o", "--output")
    html: Path | None = option(None, "Write the annotated page too.", metavar="PAGE")
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the report says so.")
    all: bool = option(False, "List all ops in the table, not only the most expensive.")
    force: bool = option(False, "Replace outputs that exist.")


@dataclass(frozen=True, slots=True)
class ReportOptions(Options):
    """Where the annotated page goes, and how runs are joined for it."""

    output: Path = required("The page.", "-o", "--output", metavar="PAGE.html")
    rule: Rule | None = option(None, RULE_HELP)
    allow_mismatch: bool = option(False, "Join a run of another module all the same; the page says so.")
    force: bool = option(False, "Replace PAGE.html if it exists.")


@dataclass(frozen=True, slots=True)
class EventsOptions(Options):
    """Which events to list, and how."""

    all: bool = option(False, "Also the raw events of AMD's processors, where this is one.")
    format: Literal["text", "json"] = option("text", "A table, or JSON with what the hook is told of each event.")
