"""Answers about many runs, as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from tracemap.codec import Count, Document, Record
from tracemap.units import Integer, Text, Unknown

# ---- model
#
# Answers about many runs. Each is a document of its own, as JSON has it.


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


# ---- changed
#
# Answers about what changed in a fleet: over time, and between two sets of its runs. Each is a document of its own.


class FleetName(Record, frozen=True):
    """An op of a model in the maps of several compilations; `op` is its key, or `all ops`.

    `name`: of the operation; `file`: where it stands in the model; `line`: its line there; `scope`: its scope.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text


class FleetPoint(Record, frozen=True):
    """A point of a series: what an op costs in an invocation, the median over the hosts of a night.

    Of all ops it is the sum of these medians, over the ops that cost something in all nights of the series.

    `night`: the date, or the compiler; `cost`: in the unit of the metric.
    """

    night: str
    cost: int


class FleetChange(Record, frozen=True):
    """An op became slower or faster.

    `kind`: `slower` or `faster`; `op`: which; `cpu_model`: on which processors, null: on all; `host`: on which host
    alone, null: on all that have the processor; `night`: the first one with the new cost; `night_low`: the first
    one that it may have been, with 95 %; `night_high`: the last one; `ratio`: the new cost by the old one;
    `ratio_low`: the lower end of its interval, which holds it in about 85 of 100 cases; `ratio_high`: the upper end
    of it; `before`: what it cost in an invocation; `after`: what it costs since; `hosts`: how many tell of it;
    `hosts_agree`: how many show it by themselves; `nights_before`: how many nights it rests on before;
    `nights_after`: how many since; `chance`: how often chance makes as much of a change anywhere, corrected for all
    that was looked at; `series`: its nights, none of all ops where no op costs something in all of them.
    """

    kind: Literal["slower", "faster"]
    op: FleetName
    cpu_model: Text
    host: Text
    night: str
    night_low: str
    night_high: str
    ratio: float
    ratio_low: float
    ratio_high: float
    before: Integer
    after: Integer
    hosts: Count
    hosts_agree: Count
    nights_before: Count
    nights_after: Count
    chance: float
    series: tuple[FleetPoint, ...]


class FleetHost(Record, frozen=True):
    """A host that is unlike others of its processor.

    `host`: its name; `cpu_model`: its processor; `op`: in which op, beyond what it is in all of them; `ratio`: its
    cost by that of the others; `z`: by how many robust standard deviations; `hosts`: how many have the processor;
    `chance`: how often chance makes as much of a difference anywhere.
    """

    host: str
    cpu_model: str
    op: FleetName
    ratio: float
    z: float
    hosts: Count
    chance: float


class FleetSeries(Record, frozen=True):
    """What an op costs on a processor: `op`: which; `cpu_model`: its processor; `points`: its nights."""

    op: FleetName
    cpu_model: str
    points: tuple[FleetPoint, ...]


class FleetTrend(Record, frozen=True):
    """What changed in the runs of a model's function, the least likely by chance first, and hosts unlike others.

    `model`: what it is called; `function`: what was called of it; `inputs`: the types of its arguments, null: not
    known; costs of other functions and sizes are not laid beside these;
    `nights`: how many dates, or compilers; `hosts`: how many; `cpu_models`: how many processors; `series`: in how many
    series changes were looked for; `untold`: runs left out, as they do not tell when or where they were recorded;
    `changes`: what became slower or faster; `outliers`: hosts that are unlike others; `dearest`: the ops that cost
    most, night by night, on each processor; `in_order`: the dates in their order, or the compilers in that in which
    they came into use.
    """

    model: str
    function: Text
    inputs: Text
    nights: Count
    hosts: Count
    cpu_models: Count
    series: Count
    untold: Count
    changes: tuple[FleetChange, ...]
    outliers: tuple[FleetHost, ...]
    dearest: tuple[FleetSeries, ...]
    in_order: tuple[str, ...]


class FleetTrends(Document, frozen=True, kw_only=True):
    """What changed in a fleet.

    `metric`: which costs were looked at; `over`: what grows with time; `models`: the findings of each model.
    Version 2 tells functions of a model apart, version 3 sizes of inputs, version 4 in which order nights are;
    series of all ops are sums in it.
    """

    schema_version: Literal[4] = 4
    kind: Literal["fleet-trends"] = "fleet-trends"
    metric: str
    over: Literal["date", "compiler"]
    models: tuple[FleetTrend, ...]
    looked: Looked


class FleetDifference(Record, frozen=True):
    """An op costs more or less in one set of runs than in another.

    `kind`: `slower` or `faster`; `op`: which; `cpu_model`: on which processors, null: on all; `ratio`: the new cost
    by the old one; `ratio_low`: the lower end of its 95 % interval; `ratio_high`: the upper end of it; `before`:
    what it cost in an invocation; `after`: what it costs; `hosts`: how many are on both sides; `runs`: how many of
    theirs there are; `chance`: how often chance makes as much of a difference anywhere.
    """

    kind: Literal["slower", "faster"]
    op: FleetName
    cpu_model: Text
    ratio: float
    ratio_low: float
    ratio_high: float
    before: Integer
    after: Integer
    hosts: Count
    runs: Count
    chance: float


class ModelDifferences(Record, frozen=True):
    """What differs in the runs of a model's function.

    `model`: what it is called; `function`: what was called of it; `inputs`: the types of its arguments; `compared`:
    pairs of op and processor that hosts of both sides have; `lonely`: those that none has; `untold`: runs left out, as
    they do not tell where they were recorded; `differences`: the least likely by chance first.
    """

    model: str
    function: Text
    inputs: Text
    compared: Count
    lonely: Count
    untold: Count
    differences: tuple[FleetDifference, ...]


class FleetComparison(Document, frozen=True, kw_only=True):
    """What ops cost in one set of runs and in another.

    `metric`: which costs were looked at; `models`: the findings of each model; `before`: what was looked at of one
    side; `after`: of the other. Version 2 tells functions of a model apart, version 3 sizes of inputs.
    """

    schema_version: Literal[3] = 3
    kind: Literal["fleet-comparison"] = "fleet-comparison"
    metric: str
    models: tuple[ModelDifferences, ...]
    before: Looked
    after: Looked


def titles(models: Sequence[FleetTrend] | Sequence[ModelDifferences]) -> list[str]:
    """What models are called in a report, with the function and the inputs where there are several of one."""
    found = []
    for each in models:
        others = [other for other in models if other.model == each.model]
        function = f", function {_shown(each.function)}" if len({other.function for other in others}) > 1 else ""
        inputs = {other.inputs for other in others if other.function == each.function}
        found.append(each.model + function + (f", inputs {_shown(each.inputs)}" if len(inputs) > 1 else ""))
    return found


def _shown(said: Text) -> str:
    return "–" if isinstance(said, Unknown) else said
