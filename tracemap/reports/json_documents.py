"""Results as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from tracemap.attribution.model import (
    Attribution,
    Disagreement,
    MetricTotal,
    OpResult,
    ResidualReason,
    SiteCost,
    SlowCall,
)
from tracemap.codec import Count, Document, Positive, Record, view
from tracemap.diagnostics import Diagnostic
from tracemap.experiments.model import Bench, KernelBench, Spread
from tracemap.graph.audit import Audit, Loss, PhaseCount, Spot
from tracemap.graph.documents import Remark
from tracemap.graph.lowering import Loop, Lowering, OpPlace, Remainder
from tracemap.graph.model import Evidence, Fate, Frame, Kernel, ModuleInfo, OpId, Reason, Step, TraceGraph
from tracemap.graph.query import Selection, everything
from tracemap.machine.code import OUTSIDE, Instruction
from tracemap.measurements.hook.stats import ThreadStats
from tracemap.measurements.model import DeviceTime, ElapsedParts
from tracemap.options.results import Rule
from tracemap.reports.kernels import KernelView
from tracemap.units import UNKNOWN, Integer, Text, Unknown

# ---- attribution
#
# The JSON of `tracemap attribute`: what ops and sites cost, what has no op, and what was seen inside of kernels.


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


# ---- google benchmark
#
# A bench as Google Benchmark's JSON, which `compare.py` of its tools reads (google/benchmark, docs/tools.md).


def google_benchmark(made: Bench) -> dict[str, Any]:
    """The document: a benchmark for each kernel that was timed, and one with `/cold` where caches were cold."""
    rows = [each for kernel in made.kernels for each in _of_kernel(kernel)]
    return document("tracemap bench", {"module_sha256": made.module_sha256, "device": made.device}, rows)


def document(executable: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A document of these benchmarks, which get their numbers; `about` goes to the context."""
    context = {
        "executable": executable,
        "num_cpus": os.cpu_count() or 1,
        **about,
        "library_build_type": "release",
        "caches": [],
    }
    return {"context": context, "benchmarks": [{**row, "family_index": number} for number, row in enumerate(rows)]}


def benchmark(name: str, iterations: int, real_ns: float, cpu_ns: float) -> dict[str, Any]:
    """An entry; times are of one iteration."""
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


def _of_kernel(kernel: KernelBench) -> list[dict[str, Any]]:
    name = kernel.kernel if not kernel.sites else f"{kernel.kernel}/{kernel.sites[0]}"
    timed = [(name, kernel.time_ns), (f"{name}/cold", kernel.cold_ns)]
    return [_benchmark(name, spread, kernel) for name, spread in timed if spread is not None]


def _benchmark(name: str, spread: Spread, kernel: KernelBench) -> dict[str, Any]:
    """One entry; times are of one call."""
    return {
        **benchmark(name, spread.batch * spread.repetitions, spread.median, spread.median),
        **_rates(spread, kernel),
        "label": kernel.verification.status.value,
    }


def _rates(spread: Spread, kernel: KernelBench) -> dict[str, float]:
    """What is done in a second at the speed of this entry; the kernel's own rates are those of its warm calls."""
    rates = {"items_per_second": kernel.operations_per_s, "bytes_per_second": kernel.bytes_per_s}
    if kernel.time_ns is None or not spread.median:
        return {}
    slower = kernel.time_ns.median / spread.median
    return {name: rate * slower for name, rate in rates.items() if rate is not None}


# ---- lowering
#
# The JSON of `tracemap lower`: the loops of every stage, the ops that work in them, and the text of every stage.


class ShownPlace(Record, frozen=True):
    """Where an op is in a stage: outermost loops, places among the remainders, or gone, and why if that is told."""

    loops: tuple[str, ...]
    remainders: tuple[Count, ...]
    inlined: bool
    gone: bool
    reason: Reason | None


class LoweredOp(Record, frozen=True):
    """An op of the model, and where it is in each stage."""

    id: OpId
    name: str
    function: Text
    line: Integer
    column: Integer
    constant: bool
    stages: tuple[ShownPlace, ...]


class ShownStage(Record, frozen=True):
    """The model after a pipeline; the pipeline is null for the model as it is."""

    pipeline: Text
    loops: tuple[Loop, ...]
    remainders: tuple[Remainder, ...]
    text: str


class ShownLowering(Document, frozen=True, kw_only=True):
    """The loops that pass pipelines made of a model, stage by stage, and the ops that work in them."""

    schema_version: Literal[1] = 1
    kind: Literal["lowering"] = "lowering"
    model: Annotated[str, Meta(description="The name of the model's file.")]
    iree_compiler: str
    ops: Annotated[
        tuple[LoweredOp, ...], Meta(description="Without functions, returns and globals; in the order of the text.")
    ]
    stages: Annotated[
        tuple[ShownStage, ...],
        Meta(min_length=2, description="The model itself, then what each pipeline made of the stage before it."),
    ]


def shown_lowering(lowering: Lowering) -> ShownLowering:
    """The lowering as `tracemap lower --format json` prints it."""
    return ShownLowering(
        model=lowering.model,
        iree_compiler=lowering.compiler,
        ops=tuple(view(LoweredOp, op, stages=tuple(map(_place, lowering.places_of(op.id)))) for op in lowering.ops),
        stages=tuple(view(ShownStage, stage, pipeline=stage.pipeline or UNKNOWN) for stage in lowering.stages),
    )


def _place(place: OpPlace) -> ShownPlace:
    reason = None if isinstance(place.reason, Unknown) else place.reason
    return view(ShownPlace, place, gone=place.is_gone, reason=reason)


# ---- show
#
# The JSON of `tracemap show`: what readers of a map need, and of kernels the inside where it is asked for.


class ShownReason(Record, frozen=True):
    """Why an op has its fate: a stable slug and a sentence for people."""

    slug: str
    text: str


class ShownOp(Record, frozen=True):
    """An operation of the model as the user wrote it, and the sites that it is a member of."""

    id: OpId
    name: str
    function: Text
    file: Text
    line: Integer
    column: Integer
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    fate: Fate
    reason: ShownReason
    sites: tuple[str, ...]


class ShownMember(Record, frozen=True):
    """An op that does work in a site: how that is known, and what the work is estimated to be."""

    op: OpId
    evidence: Evidence
    root: bool
    operations: Integer
    bytes: Integer


class ShownSite(Record, frozen=True):
    """One place in the host program that calls a kernel."""

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
    """A loop of a kernel's machine code: the loop around it, by its place, and the ops that have code in it."""

    parent: Integer
    address: Count
    instructions: Count
    ops: tuple[OpId, ...]
    lines: tuple[Positive, ...]


class ShownInstruction(Record, frozen=True):
    """An instruction, and the line of the kernel's text that it is of."""

    address: Count
    line: Integer
    text: str


class ShownKernel(Record, frozen=True):
    """A compiled dispatch function. Loops and instructions are null where they were not asked for."""

    name: str
    sites: tuple[str, ...]
    text: Text
    steps: tuple[Step, ...]
    loops: tuple[ShownLoop, ...] | None
    instructions: tuple[ShownInstruction, ...] | None


class FateCounts(dict[Fate, int]):
    """How many ops have each fate; all fates are there."""

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """All fates, and nothing else."""
        counts = {fate.value: {"type": "integer", "minimum": 0} for fate in Fate}
        return {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False}


class Coverage(Record, frozen=True):
    """How far the map reaches: ops by fate, and sites that have members."""

    ops: Count
    by_fate: FateCounts
    sites: Count
    sites_with_members: Count


class ShownMap(Document, frozen=True, kw_only=True):
    """The map of a model: its ops, the sites of its program, the kernels they call."""

    schema_version: Literal[1] = 1
    kind: Literal["map"] = "map"
    module: ModuleInfo
    ops: tuple[ShownOp, ...]
    sites: tuple[ShownSite, ...]
    kernels: tuple[ShownKernel, ...]
    remarks: Annotated[
        tuple[Remark, ...] | None, Meta(description="What the compiler remarked; null where it was not asked for.")
    ]
    coverage: Annotated[Coverage, Meta(description="Of the whole map, also where only a part of it is shown.")]


def shown_map(
    graph: TraceGraph,
    selection: Selection | None = None,
    views: Sequence[KernelView] = (),
    *,
    assembly: bool = False,
    remarks: tuple[Remark, ...] | None = None,
) -> ShownMap:
    """The map as `tracemap show --format json` prints it; with a selection only its ops, sites and kernels.

    Kernels of which there is a view have their loops and, where they are asked for, instructions.
    """
    chosen = selection or everything(graph)
    view_of = {view.kernel.name: view for view in views if not view.no_code}
    return ShownMap(
        module=graph.module,
        ops=tuple(
            view(ShownOp, op, reason=view(ShownReason, op.reason), sites=graph.sites_of_op.get(op.id, ()))
            for op in chosen.ops
        ),
        sites=tuple(
            view(ShownSite, site, members=tuple(view(ShownMember, member) for member in site.members))
            for site in chosen.sites
        ),
        kernels=tuple(_kernel(kernel, view_of.get(kernel.name), assembly) for kernel in chosen.kernels),
        remarks=remarks,
        coverage=_coverage(graph),
    )


def _kernel(kernel: Kernel, inside: KernelView | None, assembly: bool) -> ShownKernel:
    if inside is None:
        return view(ShownKernel, kernel, loops=None, instructions=None)
    loops = (view(ShownLoop, loop, parent=UNKNOWN if loop.parent == OUTSIDE else loop.parent) for loop in inside.loops)
    instructions = tuple(map(_instruction, inside.instructions)) if assembly else None
    return view(ShownKernel, kernel, loops=tuple(loops), instructions=instructions)


def _instruction(each: Instruction) -> ShownInstruction:
    return ShownInstruction(each.address, each.line or UNKNOWN, f"{each.mnemonic} {each.operands}".strip())


def _coverage(graph: TraceGraph) -> Coverage:
    found = Counter(op.fate for op in graph.ops)
    by_fate = FateCounts({fate: found[fate] for fate in Fate})
    return Coverage(len(graph.ops), by_fate, len(graph.sites), sum(1 for site in graph.sites if site.members))


# ---- audit
#
# The JSON of `tracemap audit`: where each op went, and which phase or pass lost its location.


class AuditedOp(Record, frozen=True):
    """An op of the model, and where it stands."""

    op: OpId
    name: str
    file: Text
    line: Integer
    column: Integer


class Locations(Record, frozen=True):
    """Which ops the model itself gives a location: how many there are, how many have one, and those that have none."""

    ops: Count
    own: Count
    without: tuple[AuditedOp, ...]


class ShownLoss(AuditedOp, frozen=True):
    """An op, the first phase that does not locate it any more, and what became of it."""

    phase: str
    fate: Fate
    reason: ShownReason


class ShownSpot(Record, frozen=True):
    """The pass that lost an op, the operation that it ran on, and the lines around the op before and after.

    What belongs to the pass is null where no print shows the loss.
    """

    op: OpId
    phase: str
    pass_name: Text = field(name="pass")
    argument: Text
    number: Annotated[Integer, Meta(description="Its place among the passes that changed anything, from 1.")]
    anchor: Text
    before: str
    after: Text


class ShownAudit(Document, frozen=True, kw_only=True):
    """Where each op of a model went, and which phase of the compiler lost its location."""

    schema_version: Literal[1] = 1
    kind: Literal["audit"] = "audit"
    module: ModuleInfo
    locations: Locations
    phases: Annotated[tuple[PhaseCount, ...], Meta(description="In the order in which the compiler runs them.")]
    not_followed: Annotated[Count, Meta(description="Ops of which the bundle does not say how far they get.")]
    losses: Annotated[tuple[ShownLoss, ...], Meta(description="Each lost op once, in the order of phases.")]
    spots: Annotated[tuple[ShownSpot, ...], Meta(description="Of the ops asked for with --pass.")]


def shown_audit(graph: TraceGraph, audit: Audit) -> ShownAudit:
    """The audit as `tracemap audit --format json` prints it."""
    without = tuple(view(AuditedOp, op, op=op.id) for op in audit.without_location)
    return ShownAudit(
        module=graph.module,
        locations=Locations(audit.ops, audit.ops - len(without), without),
        phases=audit.phases,
        not_followed=audit.unknown,
        losses=tuple(map(_loss, audit.losses)),
        spots=tuple(map(_spot, audit.spots)),
    )


def _loss(loss: Loss) -> ShownLoss:
    return view(ShownLoss, loss.op, op=loss.op.id, phase=loss.phase, reason=view(ShownReason, loss.op.reason))


def _spot(spot: Spot) -> ShownSpot:
    found = bool(spot.pass_name)
    return view(
        ShownSpot,
        spot,
        pass_name=spot.pass_name or UNKNOWN,
        argument=spot.argument or UNKNOWN,
        number=spot.number if found else UNKNOWN,
        anchor=spot.anchor or UNKNOWN,
        after=spot.after if found else UNKNOWN,
    )


# ---- stats
#
# The JSON of `tracemap stats`: of each thread the means of its series, their quantiles, and how they go together.


Number = Annotated[float | None, Meta(description="null: of nothing, such as the mean of an empty quantile.")]
"""The codec writes NaN as null, which is how statistics say that there is no number."""


class ShownCpu(Record, frozen=True):
    """A processor, and how many calls ran on it."""

    cpu: int
    calls: Count


class ShownSeries(Record, frozen=True):
    """A series (durations, or an event): its mean, and those of its quantiles, the lowest first."""

    name: str
    mean: Number
    bucket_means: tuple[Number, ...]


class ShownPair(Record, frozen=True):
    """Two series: Pearson's correlation, and P(quantile of `of`, a row | quantile of `given`, a column)."""

    of: str
    given: str
    correlation: Annotated[float | None, Meta(description="null: one of them is constant.")]
    probabilities: tuple[tuple[float, ...], ...]


class ShownThread(Record, frozen=True):
    """A thread's calls; `pairs` are each series with every earlier one."""

    thread: str
    calls: Count
    cpus: tuple[ShownCpu, ...]
    series: tuple[ShownSeries, ...]
    pairs: tuple[ShownPair, ...]


class ShownStats(Document, frozen=True, kw_only=True):
    """The statistics of recorded calls, thread by thread."""

    schema_version: Literal[1] = 1
    kind: Literal["stats"] = "stats"
    buckets: Annotated[Count, Meta(description="How many quantiles.")]
    diagnostics: tuple[Diagnostic, ...]
    threads: tuple[ShownThread, ...]


def shown_stats(threads: Sequence[ThreadStats], diagnostics: Sequence[Diagnostic], buckets: int) -> ShownStats:
    """The statistics as `tracemap stats --format json` prints them."""
    return ShownStats(buckets=buckets, diagnostics=tuple(diagnostics), threads=tuple(map(_thread, threads)))


def _thread(thread: ThreadStats) -> ShownThread:
    return view(
        ShownThread,
        thread,
        cpus=tuple(ShownCpu(cpu, calls) for cpu, calls in thread.calls_of_cpu),
        series=tuple(view(ShownSeries, series) for series in thread.series),
        pairs=tuple(
            view(ShownPair, pair, probabilities=tuple(map(tuple, pair.table.tolist()))) for pair in thread.pairs
        ),
    )
