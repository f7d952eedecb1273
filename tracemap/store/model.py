"""Answers about many runs. Each is a document of its own, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from tracemap.codec import Count, Document, Record
from tracemap.units import Integer, Text


class SkippedFile(Record, frozen=True):
    """A file of the store that was left out; `why`: what is wrong with it."""

    file: str
    why: str


class Looked(Record, frozen=True):
    """What was looked at.

    `runs`: how many; `skipped`: the files that were left out.
    """

    runs: Count
    skipped: tuple[SkippedFile, ...]
    unfinished: Annotated[Count, msgspec.Meta(description="Runs that a process was adding, and has not ended.")]
    ahead: Annotated[
        Count, msgspec.Meta(description="Runs whose clock was ahead of that of who added them, by over a minute.")
    ]


class FleetMetric(Record, frozen=True):
    """A metric over the runs of a group: measured = attributed + residual, to the last unit.

    `invocations` is how many calls of the function the runs that have it measured; unknown as soon as one's are, or
    where they called different functions. Of simulated counts it is one of each run.
    """

    name: str
    measured: int
    attributed: int
    residual: int
    invocations: Integer


class FleetOp(Record, frozen=True):
    """An op of a model over all runs of a group, whatever it is called in the maps of its compilations.

    `op` is its id in the first of these that was stored, with the map's beginning where that is not the oldest one;
    `runs`: in how many it has a cost; `amounts`: its costs over all of them, by metric.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text
    runs: Count
    amounts: Mapping[str, int]


class FleetResidual(Record, frozen=True):
    """What has no op; `amounts`: what it comes to, by metric."""

    reason: str
    amounts: Mapping[str, int]


class FleetGroup(Record, frozen=True):
    """Runs of one model that have the same values in the columns that were asked for.

    `model`: what it is called; `runs`: how many there are.
    """

    model: str
    group: Annotated[Mapping[str, Text], msgspec.Meta(description="By column; null: not known.")]
    runs: Count
    metrics: tuple[FleetMetric, ...]
    ops: tuple[FleetOp, ...]
    residual: tuple[FleetResidual, ...]


class FleetCosts(Document, frozen=True, kw_only=True):
    """What ops cost over many runs; `group_by`: the columns by which these are told apart."""

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
    """A run that was named.

    `file`: where it lies; `run`: its name in the store; `model`: what its model is called; `added`: it was not there
    before.
    """

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
    """A run of a store, as its header tells it.

    `run`: its name; `model`: what its model is called; `map`: the SHA-256 of the bundle's map; `module`: that
    of the module that ran; `bundle`: the bundle's name; `compiler`: the release of IREE's compiler; `flags`:
    the compiler's flags; `function`: what was called; `host`: the machine's name; `cpu_model`: what its
    processor calls itself; `processors`: how many it has; `device`: the device of IREE's; `workers`: threads
    that share a dispatch; `clock`: that of the times; `date`: the day (UTC) of `recorded_ns`; `recorded_ns`:
    when it was written, by the recording machine's clock; `added_ns`: when it was added, by the clock of who
    did; `tools`: names and versions; `rule`: how costs of sites are split; `iterations`: measured calls of the
    function; `warmup`: calls before them; `elapsed_ns`: wall time of the measured calls; `median_ns`: the
    median call; `low_ns`: the lower end of its 95 % interval; `high_ns`: the upper end of it; `tool_ns`: the
    profiler's own work; `waiting_ns`: time ready to run without a processor; `stolen_ns`: time that the host of
    a virtual machine gave to others; `disturbance_ns`: what calls took beyond their fences; `calls`: how many
    events it has; `tags`: what was said of it as it was added.
    """

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


class SiteCalls(Record, frozen=True):
    """How long the calls of a site take, in the unit of the metric.

    `site`: which, null: calls that may be of several sites of their kernel; `kernel`: what it calls; `calls`: how
    many; `p10`: what a tenth of them stays below; `median`: the middle one; `p90`: what nine in ten stay below;
    `p99`: what 99 in a hundred do; `most`: the longest.
    """

    site: Text
    kernel: Text
    calls: Count
    p10: int
    median: int
    p90: int
    p99: int
    most: int


class GroupCalls(Record, frozen=True):
    """The calls of runs of one map that have the same values in the columns that were asked for.

    `model`: what it is called; `group`: the values by column, null: not known; `map`: the SHA-256 of the map;
    `runs`: how many there are; `sites`: those that take most time first.
    """

    model: str
    group: Mapping[str, Text]
    map: str
    runs: Count
    sites: tuple[SiteCalls, ...]


class FleetCalls(Document, frozen=True, kw_only=True):
    """Percentiles of single calls over many runs.

    `metric`: what of calls; `group_by`: the columns by which runs are told apart; `error_percent`: by how much, at
    most, a percentile may be wrong: 0 where it is exact.
    """

    schema_version: Literal[1] = 1
    kind: Literal["fleet-calls"] = "fleet-calls"
    metric: str
    group_by: tuple[str, ...]
    error_percent: float
    groups: tuple[GroupCalls, ...]
    looked: Looked
