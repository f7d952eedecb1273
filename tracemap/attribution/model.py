"""The result of attribution: metrics per op and per dispatch site, plus unattributed costs with reasons.

The constructor of `Attribution` raises unless attributed and unattributed cost add up to the measured cost, to the last
unit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.core.codec import Count, Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text, plural
from tracemap.map.model import OpId
from tracemap.options.results import Rule
from tracemap.runs.model import SAMPLES, RunHeader

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class UnattributedReason(enum.StrEnum):
    """Why a cost is unattributed. `UNATTRIBUTED_TEXTS` has the texts for people."""

    COMPILER_MADE = "compiler-made"
    TRANSFER = "transfer-without-op"
    MIGRATION = "managed-memory"
    MEMORY = "memory-management"
    QUEUE = "submission-and-queue"
    KERNEL_OVERHEAD = "kernel-overhead"
    OUTSIDE_KERNELS = "outside-kernels"
    OUTLIERS = "outliers"
    UNMATCHED = "unmatched-event"
    LAYOUT = "memory-layout"
    OTHER_VALUES = "values-of-no-measured-op"
    BUILD = "rest-of-build"
    UNTIMED_COPIES = "untimed-copies"


UNATTRIBUTED_TEXTS: Mapping[UnattributedReason, str] = {
    UnattributedReason.COMPILER_MADE: "dispatches that the compiler added: they contain no op of the model",
    UnattributedReason.TRANSFER: "copies and fills that belong to no op, or whose op is unknown",
    UnattributedReason.MIGRATION: "managed memory that moves to or from a GPU when the program touches it there",
    UnattributedReason.MEMORY: "allocation and release of transient buffers",
    UnattributedReason.QUEUE: "queue: a submission had started, but none of its dispatches was running",
    UnattributedReason.KERNEL_OVERHEAD: "kernel code that belongs to no op: prologue, and code outside the ops' loops",
    UnattributedReason.OUTSIDE_KERNELS: "samples outside kernels: the runtime, waiting for work",
    UnattributedReason.OUTLIERS: "outliers: time above the outlier threshold (preemption, noise)",
    UnattributedReason.UNMATCHED: "dispatch events that match no dispatch site of the map",
    UnattributedReason.LAYOUT: "memory at the peak that holds no value: gaps, and values that are not needed there",
    UnattributedReason.BUILD: "compile time, or bytes of the module, that belong to no op that the run measured",
    UnattributedReason.OTHER_VALUES: "values at the peak that belong to no op that the run measured",
    UnattributedReason.UNTIMED_COPIES: "bytes of copies and fills within command buffers, which no run times",
}


class PerCall(Record, frozen=True):
    """Distribution over calls: median, 10th and 90th percentile.

    Each is a value that occurred; of two middle values, the lower.
    """

    median: int
    p10: int
    p90: int


class PerInvocation(Record, frozen=True):
    """Distribution of an op's cost over the measured invocations; 0 for an invocation in which it did not run.

    The op's cost in an invocation is the sum of its shares of all calls in it. Percentiles are defined as in `PerCall`.
    `median_low` and `median_high` are the bounds of the median's 95 % interval, by order statistics. They are unknown
    with fewer than six invocations. All values are unknown if the runs do not say which invocation an event belongs to,
    and for metrics of `step` rows.
    """

    median: Integer
    median_low: Integer
    median_high: Integer
    p10: Integer
    p90: Integer
    max: Integer


UNKNOWN_PER_INVOCATION: Final = PerInvocation(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


class OpCost(Record, frozen=True):
    """One metric of one op, without outliers.

    `inclusive`: the whole cost of every dispatch site that the op is in (does not add up over ops); `attributed`: the
    op's share by the rule (adds up); `low`/`high`: the bounds that the evidence alone proves; `per_invocation`: the
    distribution of `attributed` over invocations. Events that may belong to several sites are split evenly over them;
    the `high` of every candidate op includes all of them.

    `likely_low`/`likely_high`: the likely range of `attributed`, as if the errors of all sites had the same sign:
    the 95 % interval for samples, the known error for estimates from machine code, `UNKNOWN` otherwise. `uncertain`:
    that range is at least half of `attributed` for samples, or all of it for estimates; or the run was noisy and p10
    and p90 of the op's invocations are at least half of the median apart.
    """

    inclusive: int
    attributed: int
    low: int
    high: int
    likely_low: Integer
    likely_high: Integer
    uncertain: bool
    per_invocation: PerInvocation


class Errors(Record, frozen=True):
    """Errors of floats that dispatches write, in whole units of the last place; the largest of several.

    `isolated_ulps`: on the inputs that the dispatch had; `accumulated_ulps`: against a double-precision run of the
    program. Both are rounded up, and unknown if nothing was compared; the largest integer stands for infinity.
    """

    isolated_ulps: Integer = UNKNOWN
    accumulated_ulps: Integer = UNKNOWN


UNKNOWN_ERRORS: Final = Errors()


class OpResult(Record, frozen=True):
    """An op in a dispatch, or with a transfer that ran: number of calls, and cost by metric name.

    `name`, `file` and `line` come from the map. `calls` is unknown if the runs have only samples. `errors`: the largest
    of its dispatches, as `tracemap numerics` found them.
    """

    op: OpId
    name: str
    file: Text
    line: Integer
    calls: Integer
    metrics: Mapping[str, OpCost]
    errors: Errors = UNKNOWN_ERRORS


class MemberShare(Record, frozen=True):
    """The share of one op in the cost of its dispatch site, by metric name.

    `weight`: the op's fraction of the cost, before rounding to a whole number.
    `likely`: the likely range of the share, by metric; no entry if unknown. `estimated`: from estimates.
    """

    op: OpId
    attributed: Mapping[str, int]
    weight: Mapping[str, Fraction] = {}
    likely: Mapping[str, tuple[int, int]] = {}
    estimated: bool = False


class SiteCost(Record, frozen=True):
    """One metric of one dispatch site: the sum over calls, which its ops share, and the outlier time.

    The part of `total` at code of no op is unattributed (`kernel-overhead`). `outliers` is the outlier time (0 for
    all metrics but times); the measured value is `total` plus `outliers`. `per_call` is the distribution over calls
    as measured; None if there was no call (a measured absence, not an unknown).
    """

    total: int
    outliers: int
    per_call: PerCall | None


MOST_SLOWEST: Final = 5
"""Number of slowest calls that a dispatch site lists."""


class SlowCall(Record, frozen=True):
    """A single call as measured. `run` is the position of its run among the runs, from 1.

    `invocation` is the index of the invocation, warm-up included; `start_ns` is on the run's clock. Both are as in the
    run's rows.
    """

    run: Count
    invocation: Integer
    start_ns: Integer
    duration_ns: Integer
    cpu_ns: Integer

    @property
    def time_ns(self) -> Integer:
        """Wall time, which includes workers' waits; CPU time if the wall time is unknown."""
        return self.cpu_ns if self.duration_ns is UNKNOWN else self.duration_ns


def slowness_key(call: SlowCall) -> tuple[int, ...]:
    """Sort key of calls: the slowest first, the earlier of equal ones first."""
    time, invocation, start = call.time_ns, call.invocation, call.start_ns
    return (
        1 if time is UNKNOWN else -time,
        call.run,
        -1 if invocation is UNKNOWN else invocation,
        -1 if start is UNKNOWN else start,
    )


class PlaceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatch site or transfer: number of calls, cost by metric name, and the shares of its ops.

    `split_evenly`: the events may belong to several places, because they name only a kernel with several sites, or
    one of several equal transfers. Calls, tiles and costs are then this place's even part, and the slowest calls are
    those of all candidates. `calls`: unknown if the runs saw only the inside of kernels, which gives no call counts.
    `tiles`: the workgroups of all calls. `imbalance_percent`: wall time of all workers over the time that they worked,
    100 if all worked from the first tile to the last; unknown for a single worker. `slowest`: by wall time, or by CPU
    time if the wall time is unknown, the slowest first.
    """

    calls: Integer
    metrics: Mapping[str, SiteCost]
    shares: tuple[MemberShare, ...]
    split_evenly: bool
    tiles: Integer = UNKNOWN
    imbalance_percent: Integer = UNKNOWN
    slowest: tuple[SlowCall, ...] = ()


class SiteResult(PlaceResult, frozen=True, kw_only=True):
    """A dispatch site, with its cost split over the ops in it by the rule.

    `assumed_sizes`: the ops' costs depend on dynamic sizes, and were estimated as if each were 128; `equal_members`:
    the ops' costs could not be computed, so each op gets the same.
    """

    site: str
    assumed_sizes: bool
    equal_members: bool
    errors: Errors = UNKNOWN_ERRORS
    nobody: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The cost of kernel code that belongs to no op, by metric."""


class KernelResult(msgspec.Struct, frozen=True):
    """Measurements inside a kernel: sums of the metrics of `step` rows, by metric name.

    `lines`: over all sites of the kernel, by line of kernel IR (0: code without a line); `addresses`: by address in
    the executable's image, if the run has addresses; `sites`: by dispatch site and line.
    """

    kernel: str
    lines: Mapping[int, Mapping[str, int]]
    addresses: Mapping[int, Mapping[str, int]]
    sites: Mapping[str, Mapping[int, Mapping[str, int]]] = msgspec.field(default_factory=dict)


class TransferResult(PlaceResult, frozen=True, kw_only=True):
    """A copy, fill or update outside kernels that ran; its ops have equal shares."""

    transfer: str


class UnattributedRow(msgspec.Struct, frozen=True):
    """An unattributed cost: reason, number of events (unknown in the same cases as `calls`), cost by metric name."""

    reason: UnattributedReason
    events: Integer
    metrics: Mapping[str, int]


class MetricTotal(Record, frozen=True):
    """A metric's balance: measured = attributed + unattributed (`unattributed`).

    `work` is the base of percentages: the measured cost without outliers (`outliers`), and without submission time
    that the rows of dispatches count too.
    `invocations`: number of invocations in which it was measured. It differs between runs, and between metrics of one
    run, because a simulator runs one invocation. Unknown if a run does not say, or if the runs called
    different functions.
    """

    name: str
    unit: str
    aggregation: str
    measured: int
    attributed: int
    unattributed: int
    work: int
    invocations: Integer


EXCLUDED_REASONS: Final = (UnattributedReason.OUTLIERS,)
"""Reasons of unattributed cost that percentages leave out of the total."""


class Basis(enum.StrEnum):
    """Evidence for splitting a kernel's cost over its ops."""

    SAMPLES = "samples"
    SIMULATED = "simulated instructions"
    CODE = "machine code"


class Disagreement(Record, frozen=True):
    """A kernel for which two kinds of evidence disagree by more than their errors.

    `site` and `op` are those with the largest difference. `percent`: the op's share of the kernel by each evidence.
    """

    kernel: str
    site: str
    op: OpId
    percent: Mapping[Basis, Count]


class AdviceRule(enum.StrEnum):
    """Why a program takes longer than it needs to, the most specific causes first."""

    REPEATED_WORK = "repeated-work"
    RECOMPUTED = "recomputed"
    LAYOUT_COPY = "layout-copy"
    MISSED_FUSION = "missed-fusion"
    COLD_WEIGHTS = "cold-weights"
    SPILLING = "spilling"
    NOT_VECTORIZED = "not-vectorized"
    STRIDED_READS = "strided-reads"
    IMBALANCE = "imbalance"
    BELOW_ROOFLINE = "below-roofline"
    TINY_DISPATCHES = "tiny-dispatches"
    OVERHEAD_BOUND = "overhead-bound"


class Advice(Record, frozen=True):
    """Advice on the next change.

    `rule`: a value of `AdviceRule`, or the name of another package's rule; `text`: a sentence with figures; `command`:
    a command for a shell that proves it or does it; `ops`: the ops to change, the most expensive first. `gain_ns`: the
    expected gain in the mean time of an invocation without outliers; `low_ns`: its lower bound; `high_ns`: its upper
    bound.
    """

    rule: str
    text: str
    command: str
    ops: tuple[OpId, ...]
    gain_ns: Count
    low_ns: Count
    high_ns: Count


class OverheadPlace(enum.StrEnum):
    """Where the program was while no kernel ran (docs/attribution.md, "Time between kernels")."""

    LOOP = "loop"
    CONDITIONAL = "conditional"
    SUBMISSION = "submission"
    DISPATCH = "dispatch"
    TRANSFER = "copies-and-fills"
    CALL = "call-boundary"
    OUTLIERS = "outliers"
    PROFILER = "profiler"
    UNEXPLAINED = "unexplained"


class Overhead(Record, frozen=True):
    """Elapsed time without a kernel at one place of the host program, summed over all invocations.

    `ops`: the loop or conditional, the copies and fills, or the op whose dispatch came next; empty if it belongs to no
    op. `count`: number of gaps between kernels, unknown without them. Parts: `transfer_ns` copies and fills; in
    submissions `launch_ns` without a running dispatch; `allocation_ns` allocation and release of transient buffers;
    `queue_ns` work submitted, but not started; `host_ns` nothing submitted: host code or a wait; `other_ns` the rest.
    """

    place: OverheadPlace
    ops: tuple[OpId, ...]
    count: Integer
    transfer_ns: int = 0
    allocation_ns: int = 0
    launch_ns: int = 0
    queue_ns: int = 0
    host_ns: int = 0
    other_ns: int = 0

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts in the order of the fields."""
        return (
            self.transfer_ns, self.allocation_ns, self.launch_ns, self.queue_ns, self.host_ns, self.other_ns
        )  # fmt: skip

    @property
    def total_ns(self) -> int:
        """The sum of the parts."""
        return sum(self.parts)


class BalanceError(AssertionError):
    """Attributed and unattributed cost do not add up to the measured cost: a defect of tracemap, never of its input."""


class Series(msgspec.Struct, frozen=True, eq=False):
    """Costs of ops in each single invocation, for time metrics.

    `values`: costs of event targets by metric and target, in the order of invocations; `weights`: the op's fraction
    of each target, by metric and op.
    """

    values: Mapping[str, Mapping[int, npt.NDArray[np.float64]]]
    weights: Mapping[str, Mapping[OpId, Mapping[int, Fraction]]]

    def of(self, op: OpId, metric: str) -> npt.NDArray[np.float64] | None:
        """An op's cost in each invocation; None if series were not kept, or the op never ran."""
        parts = self.weights.get(metric, {}).get(op)
        if not parts:
            return None
        values = self.values[metric]
        (first, weight), *others = sorted(parts.items())
        total = values[first] * float(weight)
        for target, weight in others:
            total += values[target] * float(weight)
        return total


NO_SERIES: Final = Series({}, {})


class TimedWork(msgspec.Struct, frozen=True, eq=False):
    """When work ran in a sample of whole invocations: events in groups that ran concurrently, groups in stages.

    A *group* is a set of dispatches or transfers without a barrier between them, or that overlap in time. A *stage* is
    the device's work from idle to idle: a submission, or several that overlap. All are in order of time. Times are in
    ns without outlier time.

    Attributes:
        places: the candidate places of each target.
        target: target of each event; negative: no place.
        group: group of each event.
        cpu_ns: time of each event, summed over workers; the wall time if the run has no CPU time.
        tiles: workgroups of each event; 0: unknown.
        wall_ns: time of each group from idle to idle.
        gap_ns: time between a group and the one before it in its stage; 0 for the first.
        stage: stage of each group.
        idle_ns: time of each stage from the end of the stage before it, or from its submission if that was later.
        slack_ns: time by which each stage was submitted before the end of the stage before it; negative: after it.
        is_slack_known: whether the run has the times of submissions.
        invocation: invocation of each stage.
        tail_ns: time of each invocation from the last submission by the host to the end of the device's work.
        scale: number of all events for each event in the sample.
        period_ns: mean time from one invocation to the next, without outlier time; 0: unknown.
    """

    places: tuple[tuple[str, ...], ...]
    target: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    cpu_ns: npt.NDArray[np.float64]
    tiles: npt.NDArray[np.int64]
    wall_ns: npt.NDArray[np.float64]
    gap_ns: npt.NDArray[np.int64]
    stage: npt.NDArray[np.int64]
    idle_ns: npt.NDArray[np.int64]
    slack_ns: npt.NDArray[np.int64]
    is_slack_known: bool
    invocation: npt.NDArray[np.int64]
    tail_ns: npt.NDArray[np.int64]
    scale: float
    period_ns: float


@dataclass(frozen=True, repr=False)
class Attribution:
    """Metrics per op, plus unattributed costs with reasons.

    Raises:
        BalanceError: for some metric or the elapsed time, the parts do not add up to the measured cost.
    """

    map_sha256: str
    rule: Rule
    run: RunHeader
    """The header of the first run. Elapsed time and iterations are sums over all runs, unknown if any run's are. The
    function is unknown if the runs called different ones."""
    metrics: tuple[MetricTotal, ...]
    ops: tuple[OpResult, ...]
    sites: tuple[SiteResult, ...]
    unattributed: tuple[UnattributedRow, ...]
    diagnostics: tuple[Diagnostic, ...]
    transfers: tuple[TransferResult, ...] = ()
    """Transfers that belong to an op; the others are unattributed."""
    kernels: tuple[KernelResult, ...] = ()
    """Kernels with measurements inside them, in the order of the map."""
    series: Series = NO_SERIES
    """Costs of ops in each invocation, if requested and the run is not too long."""
    disagreements: tuple[Disagreement, ...] = ()
    """Kernels for which samples, simulated instructions and machine code disagree."""
    functions: tuple[Text, ...] = ()
    """The distinct functions that the runs called, in order; `UNKNOWN` stands for a run that does not say."""
    advice: tuple[Advice, ...] = ()
    """Advice on the next change, the largest gain first; empty unless requested."""
    timed: TimedWork | None = None
    """When work ran, if requested and the runs have times and invocations."""
    overhead: tuple[Overhead, ...] = ()
    """Elapsed time without a kernel, by place, largest first; it adds up to the elapsed time minus `kernels_ns`."""

    def __post_init__(self) -> None:
        for total in self.metrics:
            attributed = sum(op.metrics[total.name].attributed for op in self.ops)
            unattributed = sum(row.metrics[total.name] for row in self.unattributed)
            shares_of_places = [place.shares for place in (*self.sites, *self.transfers)]
            shares = sum(share.attributed[total.name] for place_shares in shares_of_places for share in place_shares)
            balanced = attributed == total.attributed == shares and unattributed == total.unattributed
            if not balanced or attributed + unattributed != total.measured:
                raise BalanceError(
                    f"{total.name}: measured {total.measured}, attributed {attributed} (shares {shares}), "
                    f"unattributed {unattributed}"
                )
        between_kernels, kernels = sum(row.total_ns for row in self.overhead), self.run.elapsed.kernels_ns
        if self.overhead and isinstance(kernels, int) and between_kernels + kernels != self.run.elapsed_ns:
            raise BalanceError(f"elapsed {self.run.elapsed_ns}, kernels {kernels}, overhead {between_kernels}")

    def __repr__(self) -> str:
        """A summary: the full text would have hundreds of thousands of characters."""
        balances = (f"{total.name} {total.attributed} of {total.measured}" for total in self.metrics)
        counts = (plural(len(self.ops), "op"), plural(len(self.sites), "site"))
        return f"Attribution({', '.join([self.rule.value, *counts, *balances])})"


def split_rule_text(attribution: Attribution) -> str:
    """The rule that splits the costs of kernels, in words; for `measured`, also the evidence.

    Samples and simulated instructions of the same program split a kernel differently: only samples see waiting.
    """
    if attribution.rule is not Rule.MEASURED:
        return attribution.rule.value
    by_samples = any(total.name == SAMPLES and total.measured for total in attribution.metrics)
    return f"{attribution.rule.value} by {'samples' if by_samples else 'simulated instructions'}"
