"""Answers about many runs. Each is a document of its own, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from tracemap.codec import Count, Document, Record
from tracemap.units import Integer, Text


class SkippedFile(Record, frozen=True):
    """A file of the store that was left out, and why."""

    file: str
    why: str


class Looked(Record, frozen=True):
    """What was looked at: how many runs, which files were left out, and how many runs were not there whole yet."""

    runs: Count
    skipped: tuple[SkippedFile, ...]
    unfinished: Annotated[Count, msgspec.Meta(description="Runs that a process was adding, and has not ended.")]
    ahead: Annotated[
        Count, msgspec.Meta(description="Runs whose clock was ahead of that of who added them, by over a minute.")
    ]


class FleetMetric(Record, frozen=True):
    """A metric over the runs of a group: measured = attributed + residual, to the last unit.

    `invocations` is how many calls of the function the runs that have it measured; unknown as soon as one's are.
    """

    name: str
    measured: int
    attributed: int
    residual: int
    invocations: Integer


class FleetOp(Record, frozen=True):
    """An op of a model over all runs of a group, whatever it is called in the maps of its compilations.

    `op` is its id in the first of these that was stored, with the map's beginning where that is not the oldest one;
    `runs`: in how many it has a cost. `amounts` by metric; `per_invocation` likewise, of the group's invocations.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text
    runs: Count
    amounts: Mapping[str, int]


class FleetResidual(Record, frozen=True):
    """What has no op, by metric."""

    reason: str
    amounts: Mapping[str, int]


class FleetGroup(Record, frozen=True):
    """Runs of one model that have the same values in the columns that were asked for."""

    model: str
    group: Annotated[Mapping[str, Text], msgspec.Meta(description="By column; null: not known.")]
    runs: Count
    metrics: tuple[FleetMetric, ...]
    ops: tuple[FleetOp, ...]
    residual: tuple[FleetResidual, ...]


class FleetCosts(Document, frozen=True, kw_only=True):
    """What ops cost over many runs."""

    schema_version: Literal[1] = 1
    kind: Literal["fleet-costs"] = "fleet-costs"
    group_by: tuple[str, ...]
    added_up: Annotated[
        Literal["summaries", "calls"],
        msgspec.Meta(description="What was added up: what runs came to when they were added, or their single calls."),
    ]
    groups: tuple[FleetGroup, ...]
    looked: Looked


class AddedRun(Record, frozen=True):
    """A run that was named: its file, its name in the store, and its model; `added`: it was not there before."""

    file: str
    run: str
    model: str
    added: bool


class FleetAdded(Document, frozen=True, kw_only=True):
    """What `tracemap store add` did."""

    schema_version: Literal[1] = 1
    kind: Literal["fleet-added"] = "fleet-added"
    runs: tuple[AddedRun, ...]


class FleetRun(Record, frozen=True):
    """A run of a store, as its header tells it; the columns are described in docs/store.md."""

    run: str
    model: str
    map: str
    module: Text
    bundle: Text
    compiler: Text
    flags: Text
    function: Text
    host: Text
    cpu_model: Text
    processors: Integer
    device: Text
    workers: Integer
    clock: Text
    date: Text
    recorded_ns: Integer
    added_ns: Integer
    tools: Text
    rule: Text
    iterations: Integer
    warmup: Integer
    elapsed_ns: Integer
    median_ns: Integer
    low_ns: Integer
    high_ns: Integer
    tool_ns: Integer
    waiting_ns: Integer
    stolen_ns: Integer
    disturbance_ns: Integer
    calls: Integer
    tags: Mapping[str, str]


class FleetRuns(Document, frozen=True, kw_only=True):
    """The runs of a store, by when they were recorded."""

    schema_version: Literal[1] = 1
    kind: Literal["fleet-runs"] = "fleet-runs"
    runs: tuple[FleetRun, ...]
    looked: Looked
