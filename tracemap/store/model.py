"""JSON documents of the store's queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from tracemap.core.codec import Count, Document, Record
from tracemap.core.units import Integer, Text, Unknown

# ---- runs and costs
#
# Query results over many runs. Each is a JSON document.


class SkippedFile(Record, frozen=True):
    """A skipped file of the store; `why`: the fault."""

    file: str
    why: str


class QueryScope(Record, frozen=True):
    """The runs and files that the query read.

    `runs`: number of runs; `skipped`: damaged files that were left out.
    """

    runs: Count
    skipped: tuple[SkippedFile, ...]
    unfinished: Annotated[Count, msgspec.Meta(description="Runs that another process began to add and has not ended.")]
    ahead: Annotated[
        Count,
        msgspec.Meta(
            description="Runs whose clock was over a minute ahead of the clock of the machine that added them."
        ),
    ]


class StoreMetric(Record, frozen=True):
    """A metric over the runs of a group: measured = attributed + unattributed, to the last unit.

    `invocations`: measured invocations of the function, over the runs that have the metric. It is unknown if it is
    unknown for a run, or if the runs called different functions. Simulated counts have one invocation a run.
    """

    name: str
    measured: int
    attributed: int
    unattributed: int
    invocations: Integer


class StoreOp(Record, frozen=True):
    """Costs of an op over all runs of a group, whatever its id in their maps.

    `op`: its id in the first stored map of its model, with the map's first digits unless that map is the oldest;
    `runs`: number of runs in which it has a cost; `amounts`: its costs over all runs, by metric.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text
    runs: Count
    amounts: Mapping[str, int]


class StoreUnattributed(Record, frozen=True):
    """Unattributed costs; `amounts`: their sums, by metric."""

    reason: str
    amounts: Mapping[str, int]


class StoreGroup(Record, frozen=True):
    """Runs of one model with equal values in the --group-by columns.

    `model`: the model's name; `runs`: number of runs.
    """

    model: str
    group: Annotated[Mapping[str, Text], msgspec.Meta(description="Value of each column; null: unknown.")]
    runs: Count
    metrics: tuple[StoreMetric, ...]
    ops: tuple[StoreOp, ...]
    unattributed: tuple[StoreUnattributed, ...]


class StoreCosts(Document, frozen=True, kw_only=True):
    """Costs of ops over many runs; `group_by`: the columns that form groups."""

    schema_version: Literal[1] = 1
    kind: Literal["store-costs"] = "store-costs"
    group_by: tuple[str, ...]
    added_up: Annotated[
        Literal["summaries", "calls"],
        msgspec.Meta(description="Source of the sums: the totals stored with each run, or single calls (--calls)."),
    ]
    groups: tuple[StoreGroup, ...]
    looked: QueryScope


class AddedRun(Record, frozen=True):
    """A run given to `store add`.

    `file`: its path; `run`: its name in the store; `model`: the model's name; `added`: false if the store already had
    it.
    """

    file: str
    run: str
    model: str
    added: bool


class StoreAdded(Document, frozen=True, kw_only=True):
    """Result of `tracemap store add`."""

    schema_version: Literal[1] = 1
    kind: Literal["store-added"] = "store-added"
    runs: tuple[AddedRun, ...]


class StoreRun(Record, frozen=True):
    """A run of the store, from its header.

    `run`: its name; `model`: the model's name; `map`: the SHA-256 of the bundle's map; `module`: the SHA-256 of the
    module that ran; `bundle`: the bundle's name; `compiler`: the release of IREE's compiler; `flags`: the compiler's
    flags; `function`: the invoked function; `host`: the machine's name; `cpu_model`: the processor's model name;
    `processors`: number of processors; `device`: IREE's device; `workers`: threads that share a dispatch; `clock`:
    the clock of the times; `date`: the day (UTC) of `recorded_ns`; `recorded_ns`: time of recording, by the
    recording machine's clock; `added_ns`: time of adding, by the adding machine's clock; `tools`: names and versions;
    `rule`: the rule that split costs of dispatches; `iterations`: measured invocations; `warmup`: invocations before
    them; `elapsed_ns`: wall time of the measured invocations; `median_ns`: the median invocation; `low_ns`: the lower
    end of its 95 % interval; `high_ns`: the upper end of it; `tool_ns`: the profiler's own work; `waiting_ns`: time
    ready to run without a processor; `stolen_ns`: time that a virtual machine's host gave to others;
    `outliers_ns`: outliers, the time above the outlier threshold; `calls`: number of events; `tags`: the tags
    given to `store add`.
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
    outliers_ns: Integer
    calls: Integer
    tags: Mapping[str, str]


class StoreRuns(Document, frozen=True, kw_only=True):
    """The runs of a store, in order of recording time."""

    schema_version: Literal[1] = 1
    kind: Literal["store-runs"] = "store-runs"
    runs: tuple[StoreRun, ...]
    looked: QueryScope


class SiteCalls(Record, frozen=True):
    """Percentiles of the calls of a dispatch site, in the unit of the metric.

    `site`: the dispatch site, null if the calls may belong to several sites of their kernel; `kernel`: the called
    kernel; `calls`: number of calls; `p10`: 10th percentile; `median`: 50th percentile; `p90`: 90th percentile; `p99`:
    99th percentile; `most`: the longest call.
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
    """Calls in runs of one map with equal values in the --group-by columns.

    `model`: the model's name; `group`: value of each column, null if unknown; `map`: the SHA-256 of the map; `runs`:
    number of runs; `sites`: dispatch sites, the most expensive first.
    """

    model: str
    group: Mapping[str, Text]
    map: str
    runs: Count
    sites: tuple[SiteCalls, ...]


class StoreCalls(Document, frozen=True, kw_only=True):
    """Percentiles of single calls over many runs.

    `metric`: the metric of the calls; `group_by`: the columns that form groups; `error_percent`: the largest possible
    error of a percentile, 0 if percentiles are exact.
    """

    schema_version: Literal[1] = 1
    kind: Literal["store-calls"] = "store-calls"
    metric: str
    group_by: tuple[str, ...]
    error_percent: float
    groups: tuple[GroupCalls, ...]
    looked: QueryScope


# ---- trends and comparisons
#
# Changes over time, and between two sets of runs. Each is a JSON document.


class StoreOpName(Record, frozen=True):
    """An op of a model, across the maps of several compilations; `op`: its key in the store, or `all ops`.

    `name`: the operation's name; `file`: its source file; `line`: its source line; `scope`: its scope.
    """

    op: str
    name: Text
    file: Text
    line: Integer
    scope: Text


class StorePoint(Record, frozen=True):
    """A point of a series: an op's cost per invocation, as the median over the hosts of a night.

    For all ops it is the sum of these medians, over the ops that have a cost in every night of the series.

    `night`: the date, or the compiler; `cost`: in the unit of the metric.
    """

    night: str
    cost: int


class StoreChange(Record, frozen=True):
    """An op became slower or faster.

    `kind`: `slower` or `faster`; `op`: the op; `cpu_model`: the affected processor model, null if all are affected;
    `host`: the only affected host, null if all hosts with the processor are affected; `night`: the first night with the
    new cost; `night_low`: the earliest night in the 95 % interval of `night`; `night_high`: the latest night in this
    interval; `ratio`: new cost over old cost; `ratio_low`: the lower end of its interval, which covers the ratio in
    about 85 of 100 cases; `ratio_high`: the upper end of this interval; `before`: old cost per invocation; `after`: new
    cost per invocation; `hosts`: number of hosts with data; `hosts_agree`: number of hosts that show the change on
    their own; `nights_before`: number of nights before the change; `nights_after`: number of nights since; `chance`:
    p-value, corrected for all series; `series`: cost per night, empty for all ops if no op has a cost in every night.
    """

    kind: Literal["slower", "faster"]
    op: StoreOpName
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
    series: tuple[StorePoint, ...]


class StoreHost(Record, frozen=True):
    """A host that differs from others with its processor model.

    `host`: its name; `cpu_model`: its processor model; `op`: the op in which it differs, beyond its difference in all
    ops; `ratio`: its cost over that of the others; `z`: the difference in robust standard deviations; `hosts`: number
    of hosts with the processor model; `chance`: p-value, corrected for all hosts and ops.
    """

    host: str
    cpu_model: str
    op: StoreOpName
    ratio: float
    z: float
    hosts: Count
    chance: float


class StoreSeries(Record, frozen=True):
    """Cost of an op per night: `op`: the op; `cpu_model`: the processor model; `points`: one per night."""

    op: StoreOpName
    cpu_model: str
    points: tuple[StorePoint, ...]


class StoreTrend(Record, frozen=True):
    """Changes in the runs of a model's function, the most significant first, and hosts that differ from others.

    `model`: the model's name; `function`: the invoked function; `inputs`: the types of its arguments, null if unknown
    (costs of different functions or sizes are not compared); `nights`: number of dates, or compilers; `hosts`: number
    of hosts; `cpu_models`: number of processor models; `series`: number of series that were searched for changes;
    `runs_left_out`: runs left out because their time or host is unknown; `changes`: ops that became slower or faster;
    `outliers`: hosts that differ from others; `most_expensive`: cost per night of the most expensive ops, on each
    processor model; `in_order`: dates in order, or compilers in order of first use; `program`: cost per night of all
    ops that have a cost in every night, on each processor model.
    """

    model: str
    function: Text
    inputs: Text
    nights: Count
    hosts: Count
    cpu_models: Count
    series: Count
    runs_left_out: Count
    changes: tuple[StoreChange, ...]
    outliers: tuple[StoreHost, ...]
    most_expensive: tuple[StoreSeries, ...]
    in_order: tuple[str, ...]
    program: tuple[StoreSeries, ...]


class StoreTrends(Document, frozen=True, kw_only=True):
    """Changes of costs over time.

    `metric`: the metric of the costs; `over`: the time axis; `models`: the findings of each model.
    Version 2 separates functions of a model, version 3 sizes of inputs. Version 4 has `in_order`, and its series of all
    ops are sums. Version 6 has `program`.
    """

    schema_version: Literal[6] = 6
    kind: Literal["store-trends"] = "store-trends"
    metric: str
    over: Literal["date", "compiler"]
    models: tuple[StoreTrend, ...]
    looked: QueryScope


class StoreDifference(Record, frozen=True):
    """An op costs more or less in one set of runs than in the other.

    `kind`: `slower` or `faster`; `op`: the op; `cpu_model`: the processor model, null if all are affected; `ratio`: new
    cost over old cost; `ratio_low`: the lower end of its 95 % interval; `ratio_high`: the upper end of this interval;
    `before`: old cost per invocation; `after`: new cost per invocation; `hosts`: number of hosts in both sets; `runs`:
    number of runs on these hosts; `chance`: p-value, corrected for all ops and processor models.
    """

    kind: Literal["slower", "faster"]
    op: StoreOpName
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
    """Differences in the runs of a model's function.

    `model`: the model's name; `function`: the invoked function; `inputs`: the types of its arguments; `compared`: pairs
    of op and processor model with hosts in both sets; `unpaired`: pairs without such hosts; `runs_left_out`: runs
    without a known host; `differences`: the most significant first.
    """

    model: str
    function: Text
    inputs: Text
    compared: Count
    unpaired: Count
    runs_left_out: Count
    differences: tuple[StoreDifference, ...]


class StoreComparison(Document, frozen=True, kw_only=True):
    """Costs of ops in two sets of runs.

    `metric`: the metric of the costs; `models`: the findings of each model; `before`: runs and files of the first set;
    `after`: runs and files of the second set. Version 2 separates functions of a model, version 3 sizes of inputs.
    """

    schema_version: Literal[4] = 4
    kind: Literal["store-comparison"] = "store-comparison"
    metric: str
    models: tuple[ModelDifferences, ...]
    before: QueryScope
    after: QueryScope


def model_headings(models: Sequence[StoreTrend] | Sequence[ModelDifferences]) -> list[str]:
    """Headings of models in a report, with function and inputs if a model occurs several times."""
    headings = []
    for model in models:
        others = [other for other in models if other.model == model.model]
        function = f", function {_text(model.function)}" if len({other.function for other in others}) > 1 else ""
        inputs = {other.inputs for other in others if other.function == model.function}
        headings.append(model.model + function + (f", inputs {_text(model.inputs)}" if len(inputs) > 1 else ""))
    return headings


def _text(value: Text) -> str:
    return "–" if isinstance(value, Unknown) else value
