"""The JSON of `tracemap attribute`: what ops and sites cost, what has no op, and what was seen inside of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap.attribution.model import (
    Attribution,
    Disagreement,
    MetricTotal,
    OpResult,
    ResidualReason,
    SiteCost,
    SlowCall,
)
from tracemap.codec import Count, Document, Record, view
from tracemap.diagnostics import Diagnostic
from tracemap.measurements.circumstances import DeviceTime
from tracemap.measurements.model import ElapsedParts
from tracemap.options.attribute import Rule
from tracemap.units import Integer, Text

ATTRIBUTION_VERSION: Final = 5
"""Version of the JSON.

1: first. 2: metrics say in how many invocations they were measured, and what of it is `work`; ops have
`per_invocation` in place of `per_call`; sites have `disturbance`, `tiles`, `imbalance_percent` and `slowest` calls.
3: `duration_ns` counts what submissions and their dispatches have both once; the profiler's own work is a part of the
elapsed time; the run has `devices` and `functions`; costs of ops tell if samples leave half of them open (`uncertain`).
4: `calls` are null where a run has samples alone, which tell of none.
5: `likely_low` and `likely_high` in place of `sampled_low` and `sampled_high`, for estimates too; `disagreements`.
"""


class ShownRun(Record, frozen=True):
    """What the headers of the runs say of them."""

    functions: Annotated[
        tuple[Text, ...],
        Meta(description="What the runs called, each function once; null where a run does not tell."),
    ]
    elapsed_ns: Integer
    iterations: Integer
    workers: Integer
    device: Text
    elapsed: ElapsedParts
    devices: tuple[DeviceTime, ...]


class ShownSiteResult(Record, frozen=True):
    """A site: how often it ran, and its cost by metric name."""

    site: str
    calls: Integer
    tiles: Annotated[Integer, Meta(description="Workgroups of all calls.")]
    imbalance_percent: Annotated[
        Integer,
        Meta(description="Workers times wall time, of CPU time: 100 where all of them always worked."),
    ]
    metrics: Mapping[str, SiteCost]
    slowest: Annotated[tuple[SlowCall, ...], Meta(description="The slowest single calls, the slowest first.")]


class ShownResidual(Record, frozen=True):
    """A cost that has no op: why, and how much by metric name."""

    reason: ResidualReason
    metrics: Mapping[str, int]


class ShownStep(Record, frozen=True):
    """What was seen at a line of a kernel's text, over all its sites; line 0: machine code without a line."""

    kernel: str
    line: Count
    metrics: Mapping[str, int]


class ShownAttribution(Document, frozen=True, kw_only=True):
    """What the ops of a model cost in a run. For each metric: measured = attributed + residual."""

    schema_version: Literal[5] = ATTRIBUTION_VERSION
    kind: Literal["attribution"] = "attribution"
    map_sha256: str
    rule: Rule
    run: ShownRun
    metrics: tuple[MetricTotal, ...]
    ops: tuple[OpResult, ...]
    sites: tuple[ShownSiteResult, ...]
    residual: tuple[ShownResidual, ...]
    diagnostics: tuple[Diagnostic, ...]
    steps: Annotated[tuple[ShownStep, ...], Meta(description="Samples, or simulated counts, inside of kernels.")]
    disagreements: Annotated[
        tuple[Disagreement, ...],
        Meta(description="Kernels whose ops have other shares by samples, simulated instructions and machine code."),
    ]


def shown_attribution(attribution: Attribution) -> ShownAttribution:
    """The attribution as `tracemap attribute --format json` prints it."""
    return view(
        ShownAttribution,
        attribution,
        run=view(ShownRun, attribution.run, functions=attribution.functions),
        sites=tuple(view(ShownSiteResult, site) for site in attribution.sites),
        residual=tuple(view(ShownResidual, row) for row in attribution.residual),
        steps=tuple(
            ShownStep(result.kernel, line, seen)
            for result in attribution.kernels
            for line, seen in result.lines.items()
        ),
    )
