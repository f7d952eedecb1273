"""The result of attribution: metrics per op and per site, plus a residual with reasons; it always balances.

The constructor of `Attribution` raises when attributed + residual is not what was measured, to the last unit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from tracemap.codec import Count, Record
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import OpId
from tracemap.measurements.model import SAMPLES, RunHeader
from tracemap.options.results import Rule
from tracemap.units import UNKNOWN, Integer, Text, plural

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ResidualReason(enum.StrEnum):
    """Why a cost has no op. The texts for people are in `RESIDUAL_TEXTS`."""

    COMPILER_MADE = "compiler-made"
    TRANSFER = "transfer-without-op"
    MEMORY = "memory-management"
    QUEUE = "submission-and-queue"
    KERNEL_OVERHEAD = "kernel-overhead"
    OUTSIDE_KERNELS = "outside-kernels"
    DISTURBANCE = "disturbance"
    UNMATCHED = "unmatched-event"


RESIDUAL_TEXTS: Mapping[ResidualReason, str] = {
    ResidualReason.COMPILER_MADE: "dispatches that the compiler made up: no op of the model is a member",
    ResidualReason.TRANSFER: "copies and fills without an op of their own",
    ResidualReason.MEMORY: "allocation and release of transient buffers",
    ResidualReason.QUEUE: "submissions (execute) while no dispatch of theirs ran: before, between and behind them",
    ResidualReason.KERNEL_OVERHEAD: "code in kernels that is of no op: prologue, and what stands outside of ops' loops",
    ResidualReason.OUTSIDE_KERNELS: "samples outside of kernels: the runtime, waiting for work",
    ResidualReason.DISTURBANCE: "time that calls take beyond their fence: what a call like them waits for, by chance",
    ResidualReason.UNMATCHED: "dispatch events that match no site of the map",
}


class PerCall(Record, frozen=True):
    """Spread over calls: median, 10th and 90th percentile (each a value that occurred; the lower one of two)."""

    median: int
    p10: int
    p90: int


class PerInvocation(Record, frozen=True):
    """Spread over the measured invocations of what an op has in each: its shares of all calls in it, be it nothing.

    Median, 10th and 90th percentile (as of `PerCall`) and largest value; `median_low` and `median_high` bound the
    median with 95 % by order statistics, and are unknown with fewer than six invocations. All are unknown where the
    runs do not tell which invocation an event belongs to, and of what is seen at steps.
    """

    median: Integer
    median_low: Integer
    median_high: Integer
    p10: Integer
    p90: Integer
    max: Integer


UNKNOWN_PER_INVOCATION: Final = PerInvocation(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


class OpCost(Record, frozen=True):
    """One metric of one op, without what disturbed its sites.

    `inclusive`: the whole of every site it is a member of (never added up over ops); `attributed`: its share by the
    rule (adds up); `low`/`high`: what the evidence alone proves. `per_invocation` is the spread of `attributed`.
    Events that could be of several sites were split evenly over these, but all of them are in the `high` of each op.
    `likely_low`/`likely_high`: between what `attributed` lies by what it rests on, taken as if the errors of all sites
    went the same way: the 95 % interval where samples decide, and how far estimates from machine code are off where
    these do; `UNKNOWN` elsewhere. `uncertain`: that spans half of `attributed` or more for samples, all of it or more
    for estimates; or the run was disturbed, and p10 and p90 of its invocations lie half of the median apart, or more.
    """

    inclusive: int
    attributed: int
    low: int
    high: int
    likely_low: Integer
    likely_high: Integer
    uncertain: bool
    per_invocation: PerInvocation


class OpResult(Record, frozen=True):
    """An op that is a member of a site, or has a transfer that ran: how often they did, and its cost by metric name.

    `name`, `file` and `line` are those of the op in the map. `calls` are unknown where runs have samples alone.
    """

    op: OpId
    name: str
    file: Text
    line: Integer
    calls: Integer
    metrics: Mapping[str, OpCost]


class MemberShare(Record, frozen=True):
    """What a site's member got of the site's cost, by metric name.

    `weight`: the part of it that this is, before it is rounded to a whole number.
    `likely`: between what it lies, by metric; no entry where nothing tells. `estimated`: that is by estimates.
    """

    op: OpId
    attributed: Mapping[str, int]
    weight: Mapping[str, Fraction] = {}
    likely: Mapping[str, tuple[int, int]] = {}
    estimated: bool = False


class SiteCost(Record, frozen=True):
    """One metric of one site: its sum over calls, which its ops share, and what calls took beyond that.

    Of `total`, what was seen at code of no op is nobody's, and in the residual (`kernel-overhead`). `disturbance`
    is the part that is no work (0 for all but times): what was measured is the sum of both. `per_call` is the spread
    over calls as they were measured; None where no call was seen (a measured absence, not an unknown).
    """

    total: int
    disturbance: int
    per_call: PerCall | None


MOST_SLOWEST: Final = 5
"""The slowest calls that are named of a site."""


class SlowCall(Record, frozen=True):
    """A single call as it was measured: the run that it is of, by its place among the runs, from 1, and when it was.

    `invocation` counts calls of the function, warm-up included, `start_ns` is on the clock of the run; both as in its
    rows.
    """

    run: Count
    invocation: Integer
    start_ns: Integer
    duration_ns: Integer
    cpu_ns: Integer

    @property
    def time_ns(self) -> Integer:
        """The time by which it is slow: that on the wall where it is told, as it tells when workers waited, too."""
        return self.cpu_ns if self.duration_ns is UNKNOWN else self.duration_ns


def slowness(call: SlowCall) -> tuple[int, ...]:
    """What calls are sorted by, the slowest first; of equal ones the earlier."""
    time, invocation, start = call.time_ns, call.invocation, call.start_ns
    return (
        1 if time is UNKNOWN else -time,
        call.run,
        -1 if invocation is UNKNOWN else invocation,
        -1 if start is UNKNOWN else start,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceResult:
    """A site or transfer: how often it ran, its cost by metric name, and what its ops got of it.

    `split_evenly`: the events could be of several places (they named only a kernel with several sites, or transfers
    alike), so calls, tiles and costs are this one's even share, and the slowest calls those of all of them.
    `calls`: unknown where the runs have only what was seen inside of kernels, which tells of no calls.
    `tiles`: the workgroups of all calls. `imbalance_percent`: the time on the wall of all workers over the time for
    which they worked, 100 where all worked from the first tile to the last; unknown of a single worker. `slowest`: by
    wall time, or CPU time where that is not told, the slowest first.
    """

    calls: Integer
    metrics: Mapping[str, SiteCost]
    shares: tuple[MemberShare, ...]
    split_evenly: bool
    tiles: Integer = UNKNOWN
    imbalance_percent: Integer = UNKNOWN
    slowest: tuple[SlowCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult(PlaceResult):
    """A site, its cost split over the members by the rule.

    `assumed_sizes`: the members' costs depend on sizes that the program does not know before, and were estimated as if
    each were 128; `equal_members`: they were not computable, so the split over members is even.
    """

    site: str
    assumed_sizes: bool
    equal_members: bool
    nobody: Mapping[str, int] = field(default_factory=dict)
    """What is of no member, by metric: code in the kernel that is of no op."""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What was seen inside of a kernel: sums of the metrics of steps, by metric name.

    `lines`: over all its sites, by line of the kernel's text (0: code without a line); `addresses`: by place in the
    executable's image, where the run tells it; `sites`: the lines again, by site.
    """

    kernel: str
    lines: Mapping[int, Mapping[str, int]]
    addresses: Mapping[int, Mapping[str, int]]
    sites: Mapping[str, Mapping[int, Mapping[str, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResult(PlaceResult):
    """A copy, fill or update of its own that ran; its ops have even shares."""

    transfer: str


@dataclass(frozen=True, slots=True)
class ResidualRow:
    """A cost without an op: the reason, the number of events, unknown as `calls` are, and the cost by metric name."""

    reason: ResidualReason
    events: Integer
    metrics: Mapping[str, int]


class MetricTotal(Record, frozen=True):
    """A metric's balance: measured = attributed + residual.

    `work` is what shares are of: what was measured without what is no work, `disturbance`, and without the time of
    submissions that their dispatches' own rows have.
    `invocations`: how many calls of the function it was measured in; runs differ in that, and so do metrics of one run:
    a simulator runs one call. Unknown where a run does not tell, and where runs are of different functions.
    """

    name: str
    unit: str
    aggregation: str
    measured: int
    attributed: int
    residual: int
    work: int
    invocations: Integer


NO_WORK: Final = (ResidualReason.DISTURBANCE,)
"""Residuals that are no part of the whole that shares are of."""


class Basis(enum.StrEnum):
    """What a kernel's division over its ops can rest on."""

    SAMPLES = "samples"
    SIMULATED = "simulated instructions"
    CODE = "machine code"


class Disagreement(Record, frozen=True):
    """A kernel that two ways divide differently, by more than their errors: the site and op where they differ most.

    `percent`: the op's share of the kernel by each way.
    """

    kernel: str
    site: str
    op: OpId
    percent: Mapping[Basis, Count]


class BalanceError(AssertionError):
    """attributed + residual is not what was measured: a defect of tracemap, never of its input."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """What ops cost in each single invocation, by time metric: what targets of events cost, and what ops have of these.

    `values`: by metric and target, in the order of invocations; `weights`: by metric and op the part of each target.
    """

    values: Mapping[str, Mapping[int, npt.NDArray[np.float64]]]
    weights: Mapping[str, Mapping[OpId, Mapping[int, Fraction]]]

    def of(self, op: OpId, metric: str) -> npt.NDArray[np.float64] | None:
        """What an op costs in each invocation; None where that is not kept, or it never ran."""
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


@dataclass(frozen=True, repr=False)
class Attribution:
    """Metrics per op plus a residual with reasons.

    Raises:
        BalanceError: the parts do not add up to what was measured, for any metric.
    """

    map_sha256: str
    rule: Rule
    run: RunHeader
    """How the first run came about; time elapsed and iterations are those of all, unknown as soon as one run's are, and
    so is the function where runs called others."""
    metrics: tuple[MetricTotal, ...]
    ops: tuple[OpResult, ...]
    sites: tuple[SiteResult, ...]
    residual: tuple[ResidualRow, ...]
    diagnostics: tuple[Diagnostic, ...]
    transfers: tuple[TransferResult, ...] = ()
    """Those that are of an op; the others are residual."""
    kernels: tuple[KernelResult, ...] = ()
    """Those in which anything was seen, in the order of the map."""
    series: Series = NO_SERIES
    """What ops cost in each invocation, where it was asked for, and the run is not too long."""
    disagreements: tuple[Disagreement, ...] = ()
    """Kernels that samples, simulated instructions and machine code divide differently."""
    functions: tuple[Text, ...] = ()
    """What the runs called, in their order, each function once; unknown is one of them where a run does not tell."""

    def __post_init__(self) -> None:
        for total in self.metrics:
            attributed = sum(op.metrics[total.name].attributed for op in self.ops)
            residual = sum(row.metrics[total.name] for row in self.residual)
            parts = [*(site.shares for site in self.sites), *(each.shares for each in self.transfers)]
            shares = sum(share.attributed[total.name] for part in parts for share in part)
            balanced = attributed == total.attributed == shares and residual == total.residual
            if not balanced or attributed + residual != total.measured:
                raise BalanceError(
                    f"{total.name}: measured {total.measured}, attributed {attributed} (shares {shares}), "
                    f"residual {residual}"
                )

    def __repr__(self) -> str:
        """How much there is of what: the whole has hundreds of thousands of letters."""
        balances = (f"{total.name} {total.attributed} of {total.measured}" for total in self.metrics)
        counts = (plural(len(self.ops), "op"), plural(len(self.sites), "site"))
        return f"Attribution({', '.join([self.rule.value, *counts, *balances])})"


def split_by(attribution: Attribution) -> str:
    """What the costs of kernels are split by, in words: the rule, and of `measured` what was seen in kernels.

    Samples and simulated instructions of the same program do not divide a kernel alike: only samples see waiting.
    """
    if attribution.rule is not Rule.MEASURED:
        return attribution.rule.value
    by_samples = any(total.name == SAMPLES and total.measured for total in attribution.metrics)
    return f"{attribution.rule.value} by {'samples' if by_samples else 'simulated instructions'}"
