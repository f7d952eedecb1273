"""Results as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from tracemap.attribution.model import (
    Advice,
    Attribution,
    Disagreement,
    Errors,
    MetricTotal,
    OpResult,
    Overhead,
    SiteCost,
    SlowCall,
    UnattributedReason,
)
from tracemap.attribution.what_if import ProgramGains, TargetGain, factor_name
from tracemap.core.codec import Count, Document, Positive, Record, record_from
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.kernels.model import Bench, KernelBench, Spread
from tracemap.machine.code import OUTSIDE, Instruction
from tracemap.map.build_cost import BuildCost
from tracemap.map.bundle_documents import Remark
from tracemap.map.lowering import Loop, Lowering, OperationOutsideLoops, OpPosition
from tracemap.map.memory_use import HeldValue, MemoryUse
from tracemap.map.model import Evidence, Frame, Kernel, KernelLine, ModuleInfo, OpId, Outcome, Reason, TraceGraph
from tracemap.map.query import Audit, LosingPass, Loss, PhaseCount, Selection, select_all
from tracemap.options.results import Rule
from tracemap.reports.kernels import KernelView
from tracemap.runs.allocations import AllocatedMemory
from tracemap.runs.hook.stats import ThreadStats
from tracemap.runs.model import DeviceTime, ElapsedParts

# ---- what-if


WHAT_IF_VERSION: Final = 1
"""Version of the JSON of `tracemap what-if`."""


class ShownChange(Record, frozen=True):
    """Gain of a program by one change: mean time of an invocation after it, with its interval."""

    target: Annotated[str, Meta(description="What changes: an op, line, scope or kernel, overhead, workers.")]
    ops: tuple[OpId, ...]
    factor: Annotated[str, Meta(description="How fast it gets: `2x`, `roofline` or `removed`.")]
    after_ns: Count
    low_ns: Count
    high_ns: Count
    reason: Annotated[str, Meta(description="Why there is no gain; empty if there is one.")]


class ShownGains(Document, frozen=True, kw_only=True):
    """Gains of a program if work gets faster: mean time of an invocation before and after changes."""

    schema_version: Literal[1] = WHAT_IF_VERSION
    kind: Literal["what-if"] = "what-if"
    before_ns: Count
    changes: Annotated[tuple[ShownChange, ...], Meta(description="The largest gain first.")]


def shown_gains(gains: ProgramGains) -> ShownGains:
    """The document of `tracemap what-if --format json`."""
    return ShownGains(before_ns=gains.before_ns, changes=tuple(map(shown_change, gains.changes)))


def shown_change(change: TargetGain) -> ShownChange:
    """A change with its gain."""
    factor = factor_name(change.factor)
    return record_from(ShownChange, change.gain, target=change.target, ops=change.ops, factor=factor)


# ---- memory


MEMORY_USE_VERSION: Final = 3
"""Version of the JSON of `tracemap memory`.

1: first. 2: `allocated`, `diagnostics` and `kept`; functions have `needed` and `lasting_bytes`, values `reading_ops`.
3: `is_estimate`.
"""


class ShownMemory(Document, frozen=True, kw_only=True):
    """The memory of a program's functions at their peaks, and at each step.

    `kept`: the constants and variables that the module holds as long as it is loaded, the largest first.
    """

    schema_version: Literal[3] = MEMORY_USE_VERSION
    kind: Literal["memory"] = "memory"
    functions: tuple[MemoryUse, ...]
    kept: tuple[HeldValue, ...]
    allocated: Annotated[AllocatedMemory | None, Meta(description="What the run allocated.")]
    diagnostics: tuple[Diagnostic, ...]


def shown_memory(
    functions: Sequence[MemoryUse],
    kept: Sequence[HeldValue],
    allocated: AllocatedMemory | None,
    diagnostics: Sequence[Diagnostic],
) -> ShownMemory:
    """The document of `tracemap memory --format json`; `allocated`: the memory of a run, None without one."""
    return ShownMemory(
        functions=tuple(functions), kept=tuple(kept), allocated=allocated, diagnostics=tuple(diagnostics)
    )


# ---- attribution


ATTRIBUTION_VERSION: Final = 7
"""Version of the JSON.

1: first. 2: metrics have their number of invocations and `work`; ops have `per_invocation` instead of `per_call`;
sites have `outliers`, `tiles`, `imbalance_percent` and `slowest` calls.
3: `duration_ns` counts time of both submissions and their dispatches once; the elapsed time has the profiler's own
work as a part; the run has `devices` and `functions`; costs of ops have `uncertain`.
4: `calls` are null if a run has only samples.
5: `likely_low` and `likely_high` instead of `sampled_low` and `sampled_high`, also for estimates; `disagreements`.
6: `unattributed` instead of `residual`, `outliers` instead of `disturbance`, `outcome` instead of `fate`.
7: reasons of metrics of the program: `memory-layout`, `values-of-no-measured-op`, `untimed-copies`.
"""


class ShownRun(Record, frozen=True):
    """Facts on the runs from their headers."""

    functions: Annotated[
        tuple[Text, ...],
        Meta(description="The functions that the runs called; null if a run does not record it."),
    ]
    elapsed_ns: Integer
    iterations: Integer
    workers: Integer
    device: Text
    elapsed: ElapsedParts
    devices: tuple[DeviceTime, ...]


class ShownSiteResult(Record, frozen=True):
    """A dispatch site: its number of calls, and its cost by metric name."""

    site: str
    calls: Integer
    tiles: Annotated[Integer, Meta(description="Workgroups of all calls.")]
    imbalance_percent: Annotated[
        Integer,
        Meta(description="Workers times wall time, over CPU time, in percent: 100 if all workers always worked."),
    ]
    metrics: Mapping[str, SiteCost]
    errors: Errors
    slowest: Annotated[tuple[SlowCall, ...], Meta(description="The slowest single calls, the slowest first.")]


class ShownUnattributed(Record, frozen=True):
    """Unattributed cost: its reason, and its amount by metric name."""

    reason: UnattributedReason
    metrics: Mapping[str, int]


class ShownStep(Record, frozen=True):
    """Samples and counts at a line of a kernel's IR, over all its dispatch sites; line 0: code without a line."""

    kernel: str
    line: Count
    metrics: Mapping[str, int]


class ShownAttribution(Document, frozen=True, kw_only=True):
    """Costs of the ops of a model in a run. For every metric: measured = attributed + unattributed (`unattributed`)."""

    schema_version: Literal[7] = ATTRIBUTION_VERSION
    kind: Literal["attribution"] = "attribution"
    map_sha256: str
    rule: Rule
    run: ShownRun
    metrics: tuple[MetricTotal, ...]
    ops: tuple[OpResult, ...]
    sites: tuple[ShownSiteResult, ...]
    unattributed: tuple[ShownUnattributed, ...]
    diagnostics: tuple[Diagnostic, ...]
    steps: Annotated[tuple[ShownStep, ...], Meta(description="Samples, or simulated counts, inside kernels.")]
    what_if: Annotated[
        tuple[ShownChange, ...],
        Meta(description="Gain of the program if an op is twice as fast, the largest first; empty if unknown."),
    ]
    disagreements: Annotated[
        tuple[Disagreement, ...],
        Meta(description="Kernels whose ops' shares differ between samples, simulated instructions and machine code."),
    ]
    advice: Annotated[tuple[Advice, ...], Meta(description="What to change next, the largest gain first.")] = ()
    overhead: Annotated[
        tuple[Overhead, ...],
        Meta(description="Elapsed time without a kernel, by place: it adds up to `elapsed_ns` minus `kernels_ns`."),
    ]


def shown_attribution(attribution: Attribution, gains: Sequence[TargetGain] = ()) -> ShownAttribution:
    """The document of `tracemap attribute --format json`; `gains`: those of ops that are twice as fast."""
    return record_from(
        ShownAttribution,
        attribution,
        run=record_from(ShownRun, attribution.run, functions=attribution.functions),
        sites=tuple(record_from(ShownSiteResult, site) for site in attribution.sites),
        unattributed=tuple(record_from(ShownUnattributed, row) for row in attribution.unattributed),
        steps=tuple(
            ShownStep(result.kernel, line, seen)
            for result in attribution.kernels
            for line, seen in result.lines.items()
        ),
        what_if=tuple(map(shown_change, gains)),
    )


# ---- Google Benchmark's JSON, for its `compare.py` (google/benchmark, docs/tools.md)


def google_benchmark(bench: Bench) -> dict[str, Any]:
    """A document with a benchmark per timed kernel, and one named `/cold` for cold caches."""
    rows = [row for kernel in bench.kernels for row in _kernel_benchmarks(kernel)]
    return document("tracemap bench", {"module_sha256": bench.module_sha256, "device": bench.device}, rows)


def document(executable: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A document of numbered benchmarks; `about` goes into the context."""
    context = {
        "executable": executable,
        "num_cpus": os.cpu_count() or 1,
        **about,
        "library_build_type": "release",
        "caches": [],
    }
    return {"context": context, "benchmarks": [{**row, "family_index": number} for number, row in enumerate(rows)]}


def benchmark(name: str, iterations: int, real_ns: float, cpu_ns: float) -> dict[str, Any]:
    """An entry; times are per iteration."""
    return {
        "name": name,
        "family_index": 0,
        "per_family_instance_index": 0,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": 1,
        "iterations": iterations,
        "real_time": real_ns,
        "cpu_time": cpu_ns,
        "time_unit": "ns",
    }


def _kernel_benchmarks(kernel: KernelBench) -> list[dict[str, Any]]:
    name = kernel.kernel if not kernel.sites else f"{kernel.kernel}/{kernel.sites[0]}"
    spreads = [(name, kernel.time_ns), (f"{name}/cold", kernel.cold_ns)]
    return [_benchmark(name, spread, kernel) for name, spread in spreads if spread is not None]


def _benchmark(name: str, spread: Spread, kernel: KernelBench) -> dict[str, Any]:
    """An entry; times are per call."""
    return {
        **benchmark(name, spread.batch * spread.repetitions, spread.median, spread.median),
        **_rates(spread, kernel),
        "label": kernel.verification.status.value,
    }


def _rates(spread: Spread, kernel: KernelBench) -> dict[str, float]:
    """Rates of an entry, scaled from the kernel's rates, which are those of warm calls."""
    rates = {"items_per_second": kernel.operations_per_s, "bytes_per_second": kernel.bytes_per_s}
    if kernel.time_ns is None or not spread.median:
        return {}
    speed = kernel.time_ns.median / spread.median
    return {name: rate * speed for name, rate in rates.items() if rate is not None}


# ---- lowering


class ShownPlace(Record, frozen=True):
    """The place of an op in a stage: outermost loops, indices of remainders, or gone, with the reason if known."""

    loops: tuple[str, ...]
    remainders: tuple[Count, ...]
    inlined: bool
    gone: bool
    reason: Reason | None


class LoweredOp(Record, frozen=True):
    """An op of the model, and its place in every stage."""

    id: OpId
    name: str
    function: Text
    line: Integer
    column: Integer
    constant: bool
    stages: tuple[ShownPlace, ...]


class ShownStage(Record, frozen=True):
    """The model after a pipeline; the pipeline is null for the original model."""

    pipeline: Text
    loops: tuple[Loop, ...]
    remainders: tuple[OperationOutsideLoops, ...]
    text: str


class ShownLowering(Document, frozen=True, kw_only=True):
    """Loops of a model after pass pipelines, stage by stage, and the ops in them."""

    schema_version: Literal[1] = 1
    kind: Literal["lowering"] = "lowering"
    model: Annotated[str, Meta(description="The name of the model's file.")]
    iree_compiler: str
    ops: Annotated[
        tuple[LoweredOp, ...], Meta(description="In the order of the text; without functions, returns and globals.")
    ]
    stages: Annotated[
        tuple[ShownStage, ...],
        Meta(min_length=2, description="The model itself, then the result of every pipeline on the previous stage."),
    ]


def shown_lowering(lowering: Lowering) -> ShownLowering:
    """The document of `tracemap lower --format json`."""
    return ShownLowering(
        model=lowering.model,
        iree_compiler=lowering.compiler,
        ops=tuple(
            record_from(LoweredOp, op, stages=tuple(map(_place, lowering.places_of(op.id)))) for op in lowering.ops
        ),
        stages=tuple(record_from(ShownStage, stage, pipeline=stage.pipeline or UNKNOWN) for stage in lowering.stages),
    )


def _place(place: OpPosition) -> ShownPlace:
    reason = None if isinstance(place.reason, Unknown) else place.reason
    return record_from(ShownPlace, place, gone=place.is_gone, reason=reason)


# ---- show


class ShownReason(Record, frozen=True):
    """The reason for an op's outcome: a stable slug and a sentence."""

    slug: str
    text: str


class ShownOp(Record, frozen=True):
    """An operation of the model as the user wrote it, and its dispatch sites."""

    id: OpId
    name: str
    function: Text
    file: Text
    line: Integer
    column: Integer
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    outcome: Outcome
    reason: ShownReason
    sites: tuple[str, ...]


class ShownMember(Record, frozen=True):
    """An op in a dispatch: the evidence, and its estimated work."""

    op: OpId
    evidence: Evidence
    root: bool
    operations: Integer
    bytes_read: Integer
    bytes_written: Integer


class ShownSite(Record, frozen=True):
    """A dispatch site: a place in the compiled program that launches a kernel."""

    id: str
    ordinal: Count
    function: Text
    path: tuple[OpId, ...]
    kernel: str
    initializer: bool
    command_buffer: Integer
    command_index: Integer
    members: tuple[ShownMember, ...]


class ShownLoop(Record, frozen=True):
    """A loop in a kernel's machine code: the index of the enclosing loop, and the ops with code in it."""

    parent: Integer
    address: Count
    instructions: Count
    ops: tuple[OpId, ...]
    lines: tuple[Positive, ...]


class ShownInstruction(Record, frozen=True):
    """An instruction, and its line of the kernel's IR."""

    address: Count
    line: Integer
    text: str


class ShownKernel(Record, frozen=True):
    """A kernel. Loops and instructions are null unless requested."""

    name: str
    sites: tuple[str, ...]
    text: Text
    steps: tuple[KernelLine, ...]
    loops: tuple[ShownLoop, ...] | None
    instructions: tuple[ShownInstruction, ...] | None


class OutcomeCounts(dict[Outcome, int]):
    """Numbers of ops by outcome, for all outcomes."""

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """A schema that requires all outcomes and allows no other keys."""
        counts = {outcome.value: {"type": "integer", "minimum": 0} for outcome in Outcome}
        return {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False}


class Coverage(Record, frozen=True):
    """Coverage of the map: ops by outcome, and dispatch sites traced to ops."""

    ops: Count
    by_outcome: OutcomeCounts
    sites: Count
    sites_with_members: Count


SHOW_VERSION: Final = 3
"""Version of the JSON of `tracemap show`.

1: first. 2: the cost of building. 3: `bytes_read` and `bytes_written` instead of `bytes`.
"""


class ShownMap(Document, frozen=True, kw_only=True):
    """The map of a model: its ops, dispatch sites and kernels."""

    schema_version: Literal[3] = SHOW_VERSION
    kind: Literal["map"] = "map"
    module: ModuleInfo
    ops: tuple[ShownOp, ...]
    sites: tuple[ShownSite, ...]
    kernels: tuple[ShownKernel, ...]
    remarks: Annotated[tuple[Remark, ...] | None, Meta(description="Compiler remarks; null unless requested.")]
    cost: Annotated[BuildCost | None, Meta(description="Cost of building; null unless requested.")]
    coverage: Annotated[Coverage, Meta(description="Of the whole map, also if only a part is shown.")]


def shown_map(
    graph: TraceGraph,
    selection: Selection | None = None,
    views: Sequence[KernelView] = (),
    *,
    assembly: bool = False,
    remarks: tuple[Remark, ...] | None = None,
    cost: BuildCost | None = None,
) -> ShownMap:
    """The document of `tracemap show --format json`; `selection` limits ops, sites and kernels.

    Kernels with a view have their loops and, with `assembly`, their instructions.
    """
    chosen = selection or select_all(graph)
    view_of = {record_from.kernel.name: record_from for record_from in views if not record_from.no_code}
    return ShownMap(
        module=graph.module,
        ops=tuple(
            record_from(ShownOp, op, reason=record_from(ShownReason, op.reason), sites=graph.sites_of_op.get(op.id, ()))
            for op in chosen.ops
        ),
        sites=tuple(
            record_from(ShownSite, site, members=tuple(record_from(ShownMember, member) for member in site.members))
            for site in chosen.sites
        ),
        kernels=tuple(_kernel(kernel, view_of.get(kernel.name), assembly) for kernel in chosen.kernels),
        remarks=remarks,
        cost=cost,
        coverage=_coverage(graph),
    )


def _kernel(kernel: Kernel, inside: KernelView | None, assembly: bool) -> ShownKernel:
    if inside is None:
        return record_from(ShownKernel, kernel, loops=None, instructions=None)
    loops = (
        record_from(ShownLoop, loop, parent=UNKNOWN if loop.parent == OUTSIDE else loop.parent) for loop in inside.loops
    )
    instructions = tuple(map(_instruction, inside.instructions)) if assembly else None
    return record_from(ShownKernel, kernel, loops=tuple(loops), instructions=instructions)


def _instruction(instruction: Instruction) -> ShownInstruction:
    text = f"{instruction.mnemonic} {instruction.operands}".strip()
    return ShownInstruction(instruction.address, instruction.line or UNKNOWN, text)


def _coverage(graph: TraceGraph) -> Coverage:
    counts = Counter(op.outcome for op in graph.ops)
    by_outcome = OutcomeCounts({outcome: counts[outcome] for outcome in Outcome})
    return Coverage(len(graph.ops), by_outcome, len(graph.sites), sum(1 for site in graph.sites if site.members))


# ---- audit


class AuditedOp(Record, frozen=True):
    """An op of the model, and its location."""

    op: OpId
    name: str
    file: Text
    line: Integer
    column: Integer


class Locations(Record, frozen=True):
    """Locations in the model itself: number of ops, number with a location, and the ops without one."""

    ops: Count
    own: Count
    without: tuple[AuditedOp, ...]


class ShownLoss(AuditedOp, frozen=True):
    """An op, the first phase that lost its location, and its outcome."""

    phase: str
    outcome: Outcome
    reason: ShownReason


class ShownSpot(Record, frozen=True):
    """The pass that lost an op's location, the operation that it ran on, and the IR near the op before and after.

    Fields of the pass are null if no printed pass shows the loss.
    """

    op: OpId
    phase: str
    pass_name: Text = field(name="pass")
    argument: Text
    number: Annotated[Integer, Meta(description="Its number among the passes with changes, from 1.")]
    anchor: Text
    before: str
    after: Text


class ShownAudit(Document, frozen=True, kw_only=True):
    """Outcomes of the ops of a model, and the compiler phases that lost their locations."""

    schema_version: Literal[1] = 1
    kind: Literal["audit"] = "audit"
    module: ModuleInfo
    locations: Locations
    phases: Annotated[tuple[PhaseCount, ...], Meta(description="In the order of compilation.")]
    not_followed: Annotated[Count, Meta(description="Ops whose last phase the bundle does not record.")]
    losses: Annotated[tuple[ShownLoss, ...], Meta(description="Ops with a lost location, in the order of phases.")]
    spots: Annotated[tuple[ShownSpot, ...], Meta(description="For the ops of --pass.")]


def shown_audit(graph: TraceGraph, audit: Audit) -> ShownAudit:
    """The document of `tracemap audit --format json`."""
    without = tuple(record_from(AuditedOp, op, op=op.id) for op in audit.without_location)
    return ShownAudit(
        module=graph.module,
        locations=Locations(audit.ops, audit.ops - len(without), without),
        phases=audit.phases,
        not_followed=audit.unknown,
        losses=tuple(map(_loss, audit.losses)),
        spots=tuple(map(_spot, audit.spots)),
    )


def _loss(loss: Loss) -> ShownLoss:
    return record_from(
        ShownLoss, loss.op, op=loss.op.id, phase=loss.phase, reason=record_from(ShownReason, loss.op.reason)
    )


def _spot(spot: LosingPass) -> ShownSpot:
    has_pass = bool(spot.pass_name)
    return record_from(
        ShownSpot,
        spot,
        pass_name=spot.pass_name or UNKNOWN,
        argument=spot.argument or UNKNOWN,
        number=spot.number if has_pass else UNKNOWN,
        anchor=spot.anchor or UNKNOWN,
        after=spot.after if has_pass else UNKNOWN,
    )


# ---- stats


Number = Annotated[float | None, Meta(description="null: no value, such as the mean of an empty quantile.")]
"""Statistics use NaN for a missing number, which the codec writes as null."""


class ShownCpu(Record, frozen=True):
    """A CPU and its number of calls."""

    cpu: int
    calls: Count


class ShownSeries(Record, frozen=True):
    """A series (durations or an event): its mean, and the means of its quantiles, lowest first."""

    name: str
    mean: Number
    bucket_means: tuple[Number, ...]


class ShownPair(Record, frozen=True):
    """Two series: Pearson's correlation, and P(quantile of `of`, a row | quantile of `given`, a column)."""

    of: str
    given: str
    correlation: Annotated[float | None, Meta(description="null: a series is constant.")]
    probabilities: tuple[tuple[float, ...], ...]


class ShownThread(Record, frozen=True):
    """Statistics of a thread's calls; `pairs` has every series with all earlier ones."""

    thread: str
    calls: Count
    cpus: tuple[ShownCpu, ...]
    series: tuple[ShownSeries, ...]
    pairs: tuple[ShownPair, ...]


class ShownStats(Document, frozen=True, kw_only=True):
    """Statistics of recorded calls by thread."""

    schema_version: Literal[1] = 1
    kind: Literal["stats"] = "stats"
    buckets: Annotated[Count, Meta(description="Number of quantiles.")]
    diagnostics: tuple[Diagnostic, ...]
    threads: tuple[ShownThread, ...]


def shown_stats(threads: Sequence[ThreadStats], diagnostics: Sequence[Diagnostic], buckets: int) -> ShownStats:
    """The document of `tracemap stats --format json`."""
    return ShownStats(buckets=buckets, diagnostics=tuple(diagnostics), threads=tuple(map(_thread, threads)))


def _thread(thread: ThreadStats) -> ShownThread:
    return record_from(
        ShownThread,
        thread,
        cpus=tuple(ShownCpu(cpu, calls) for cpu, calls in thread.calls_of_cpu),
        series=tuple(record_from(ShownSeries, series) for series in thread.series),
        pairs=tuple(
            record_from(ShownPair, pair, probabilities=tuple(map(tuple, pair.table.tolist()))) for pair in thread.pairs
        ),
    )
