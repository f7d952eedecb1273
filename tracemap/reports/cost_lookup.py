"""Costs of a run, looked up by op, dispatch site, kernel and line of the map."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from tracemap.attribution.model import (
    Attribution,
    MetricTotal,
    OpResult,
    Overhead,
    OverheadPlace,
    SiteResult,
    TransferResult,
)
from tracemap.attribution.overhead import overhead_by_op
from tracemap.attribution.what_if import (
    TWICE,
    Change,
    Gain,
    ProgramModel,
    TargetGain,
    costly_ops,
    program_model,
    ranked_gains,
)
from tracemap.core.codec import Record
from tracemap.core.errors import QueryInvalid
from tracemap.core.units import ASSUMED_SIZE, UNKNOWN, Text, Unknown, format_share, split_by_largest_remainder
from tracemap.map.model import CallPath, Frame, Op, OpId, Site, TraceGraph, Transfer
from tracemap.map.query import (
    PASSES,
    Texts,
    frames_of,
    pass_of,
    plain_scope,
    resolve,
    same_file,
    scope_of,
    scope_text,
    stack_of,
    user_frames,
    user_frames_first,
)
from tracemap.reports.escaping import file_line, op_line, or_dash
from tracemap.runs.model import UNKNOWN_PARTS

if TYPE_CHECKING:
    from tracemap.compare.model import MetricDifference


DEFAULT_METRIC = "cpu_ns"
"""The default metric: CPU time summed over workers, so it adds up."""

SPLIT_EVENLY = "the run names only kernels: the cost is split evenly over the kernel's dispatches"
ASSUMED_SIZES = f"shapes are dynamic: the cost is split over the fused ops as if dynamic sizes were {ASSUMED_SIZE}"
EQUAL_MEMBERS = "the work of the fused ops is unknown: the cost is split evenly over them"
AT_LOAD = "runs once, at load time: not measured"
NO_MEMBERS = "made by the compiler: no op of the model is in this dispatch"


def default_metric(metrics: Sequence[MetricTotal | MetricDifference]) -> int:
    """The index of the metric to show first: `cpu_ns` if present, else 0; -1 without metrics."""
    names = [metric.name for metric in metrics]
    return names.index(DEFAULT_METRIC) if DEFAULT_METRIC in names else min(0, len(names) - 1)


def called_functions(attribution: Attribution) -> str:
    """The functions that the runs called: `function main`, `functions a, b`."""
    names = attribution.functions or (attribution.run.function,)
    return f"{'function' if len(names) == 1 else 'functions'} {', '.join(map(or_dash, names))}"


def elapsed_breakdown_text(attribution: Attribution) -> str:
    """The shares of kernels, queue, host and others in the elapsed time; if unknown, the share of all events.

    The share of events is over 100 % if calls overlap. Empty if the elapsed time is unknown.
    """
    elapsed, parts = attribution.run.elapsed_ns, attribution.run.elapsed
    if not isinstance(elapsed, Unknown) and elapsed and parts != UNKNOWN_PARTS:
        shown = zip(ELAPSED_PARTS, parts.values(), strict=True)
        shares = [f"{name} {format_share(part, elapsed)}" for name, part in shown if isinstance(part, int) and part]
        return ", ".join(shares)
    duration = next((metric for metric in attribution.metrics if metric.name == "duration_ns"), None)
    if isinstance(elapsed, Unknown) or duration is None:
        return ""
    return f"events cover {format_share(duration.measured, elapsed)}"


OVERHEAD_LABELS: Final[Mapping[OverheadPlace, str]] = {
    OverheadPlace.LOOP: "loop",
    OverheadPlace.CONDITIONAL: "conditional",
    OverheadPlace.SUBMISSION: "between submissions",
    OverheadPlace.DISPATCH: "between dispatches",
    OverheadPlace.TRANSFER: "copies and fills",
    OverheadPlace.CALL: "call boundary",
    OverheadPlace.OUTLIERS: "outliers",
    OverheadPlace.PROFILER: "profiler",
    OverheadPlace.UNEXPLAINED: "not explained",
}
"""Short names of the places of overhead."""

OVERHEAD_PARTS: Final = ("transfer", "allocation", "launch", "queue", "host", "other")
"""Labels of the parts of an `Overhead`, in order."""

KERNELS: Final = "kernels"
ELAPSED_PARTS = (KERNELS, "transfers", "queue", "host", "profiler", "not explained")
"""Labels of the parts of elapsed time, in the order of `ElapsedParts`."""


def heat(value: int, peak: int) -> float:
    """Colour intensity from 0 to 1: the square root of value / peak, so that a hundredth still shows as a tenth."""
    return math.sqrt(value / peak) if value > 0 and peak > 0 else 0.0


def remarks(site: Site, result: SiteResult | None) -> Iterable[str]:
    """Remarks on a dispatch site's cost and its split over ops."""
    if site.initializer and result is None:
        yield AT_LOAD
    if not site.members:
        yield NO_MEMBERS
    if result and result.split_evenly:
        yield SPLIT_EVENLY
    if result and result.assumed_sizes:
        yield ASSUMED_SIZES
    if result and result.equal_members:
        yield EQUAL_MEMBERS


def add_costs(sums: Mapping[str, int], values: Mapping[str, int]) -> Mapping[str, int]:
    """The sums by name of two mappings; copies neither if one is enough, as most sums have one summand."""
    if not sums:
        return values
    return {**sums, **{name: sums.get(name, 0) + value for name, value in values.items()}}


def parts_of(costs: Mapping[str, int], count: int) -> Sequence[Mapping[str, int]]:
    """Split costs by metric name evenly into `count` parts: integers that add up exactly."""
    if count == 1:
        return (costs,)
    split = {name: split_by_largest_remainder(cost, [1] * count) for name, cost in costs.items()}
    return [{name: parts[index] for name, parts in split.items()} for index in range(count)]


NO_COSTS: Final[Mapping[str, int]] = MappingProxyType({})
"""The empty sum."""


Place = tuple[OpId, str, tuple[str, ...]]
"""The op, the work and the scope of an occurrence."""


class OpOccurrence(Record, frozen=True):
    """An op in one of its dispatch sites or transfers, with one call path that leads there.

    If several call paths lead to the op in the same site, each path gets an equal part of the op's share, since calls
    of one function do the same work.

    Attributes:
        op: the op.
        work: id of the site or transfer.
        scope: the op's scope after that of the calls.
        frames: the op's frames, then those of the calls.
        attributed: the op's share of the site's cost, by metric name.
    """

    op: Op
    work: str
    scope: tuple[str, ...]
    frames: tuple[Frame, ...]
    attributed: Mapping[str, int]

    @property
    def place(self) -> Place:
        """The op, its site or transfer, and the scope of the call path."""
        return self.op.id, self.work, self.scope


class ElapsedShare(Record, frozen=True):
    """A part of the elapsed time of all measured invocations.

    `kind`: `kernels`, `outliers`, or the place of overhead; `name`: the same for people, with the line of a loop.
    """

    kind: str
    name: str
    ns: int


_NOTABLE_OVERHEAD: Final = 0.02
"""Least part of the elapsed time that the overhead of an op must have for a column of its own."""


def parts_by_work(occurrences: Iterable[OpOccurrence]) -> dict[str, frozenset[OpId]]:
    """The ops of occurrences, by dispatch site or transfer."""
    parts: dict[str, set[OpId]] = defaultdict(set)
    for reached in occurrences:
        parts[reached.work].add(reached.op.id)
    return {work: frozenset(ops) for work, ops in parts.items()}


class MapCosts(msgspec.Struct, frozen=True, dict=True):
    """A map and, optionally, the costs of a run.

    A *work* is the id of a dispatch site or of a transfer (a copy or fill of an op). Only works that run in every
    invocation are measured and have results; others run at load time.
    """

    graph: TraceGraph
    attribution: Attribution | None
    passes: tuple[str, ...] = ()
    """Patterns; only occurrences of ops in a pass that matches all of them count."""
    only: frozenset[Place] | None = None
    """The places whose occurrences of ops count; None: all."""

    @property
    def _is_part(self) -> bool:
        """Whether only some occurrences of ops count."""
        return bool(self.passes) or self.only is not None

    @cached_property
    def metrics(self) -> tuple[MetricTotal, ...]:
        """The metrics of the run; empty without a run."""
        return self.attribution.metrics if self.attribution else ()

    @cached_property
    def op_results(self) -> Mapping[OpId, OpResult]:
        """Results of ops in at least one measured dispatch site or transfer."""
        results = self.attribution.ops if self.attribution else ()
        # Leave out ops that run at load time only: they are not measured, and a cost of 0 would be wrong.
        measurable = set(self.results)
        return {
            result.op: result
            for result in results
            if measurable.intersection(self._works_of_op.get(result.op, ()))
            and (not self._is_part or result.op in self.reached_by_op)
        }

    @cached_property
    def site_results(self) -> Mapping[str, SiteResult]:
        """Results of measured dispatch sites: those of every invocation, and those at load time that the run has."""
        return {result.site: result for result in (self.attribution.sites if self.attribution else ())}

    @cached_property
    def unmeasured_sites(self) -> tuple[str, ...]:
        """Dispatch sites at load time that the run lacks, since profiles of the stock tools do not contain them."""
        at_load = (site.id for site in self.graph.sites if site.initializer)
        return tuple(site for site in at_load if site not in self.site_results)

    @cached_property
    def _transfer_results(self) -> Mapping[str, TransferResult]:
        results = self.attribution.transfers if self.attribution else ()
        return {result.transfer: result for result in results}

    @cached_property
    def results(self) -> Mapping[str, SiteResult | TransferResult]:
        """Results by work; with `only`, of the works that it names."""
        results: Mapping[str, SiteResult | TransferResult] = {**self.site_results, **self._transfer_results}
        if self.only is None:
            return results
        works = {work for _, work, _ in self.only}
        return {work: result for work, result in results.items() if work in works}

    @cached_property
    def _transfers(self) -> tuple[Transfer, ...]:
        """The transfers of the host program, and those in command buffers that the device timed."""
        timed = (own for own in self.graph.buffer_transfers.values() if own.id in self._transfer_results)
        return (*self.graph.transfers, *timed)

    @cached_property
    def _works_of_op(self) -> Mapping[OpId, tuple[str, ...]]:
        works: dict[OpId, list[str]] = defaultdict(list)
        for op, sites in self.graph.sites_of_op.items():
            works[op].extend(sites)
        for transfer in self._transfers:
            for op in transfer.ops:
                works[op].append(transfer.id)
        return {op: tuple(ids) for op, ids in works.items()}

    @cached_property
    def _works_through(self) -> Mapping[OpId, tuple[str, ...]]:
        """Works by the call ops on their path and by the function ops that enclose path and ops."""
        function_ops = {op.function: op.id for op in self.graph.ops if op.name.endswith(".func")}
        through: dict[OpId, list[str]] = defaultdict(list)
        for site in self.graph.sites:
            inside = [*site.calls, *(member.op for member in site.members)]
            for op in dict.fromkeys([*site.calls, *self._functions(site.function, inside, function_ops)]):
                through[op].append(site.id)
        for transfer in self._transfers:
            for op in dict.fromkeys(self._functions(transfer.function, transfer.ops, function_ops)):
                through[op].append(transfer.id)
        return {op: tuple(works) for op, works in through.items()}

    def _functions(self, function: Text, inside: Iterable[OpId], function_ops: Mapping[Text, OpId]) -> list[OpId]:
        names = [function, *(self.graph.op_by_id[op].function for op in inside if op in self.graph.op_by_id)]
        return [function_ops[name] for name in names if name in function_ops]

    def works_of(self, op: Op) -> tuple[str, ...]:
        """The works of an op; for call ops and functions, those inside the called function."""
        # Calls and functions do no work of their own. Their lines show the work inside them.
        return self._works_of_op.get(op.id) or self._works_through.get(op.id, ())

    def attributed(self, op: OpId) -> Mapping[str, int]:
        """The attributed cost of an op by metric name; empty without a result."""
        return self._attributed.get(op, {})

    @cached_property
    def _attributed(self) -> Mapping[OpId, Mapping[str, int]]:
        if self._is_part:
            sums: dict[OpId, Mapping[str, int]] = {}
            for reached in self.reached:
                sums[reached.op.id] = add_costs(sums.get(reached.op.id, NO_COSTS), reached.attributed)
            return sums
        return {
            op: {name: cost.attributed for name, cost in result.metrics.items()}
            for op, result in self.op_results.items()
        }

    def total(self, work: str) -> Mapping[str, int]:
        """The whole cost of a site or transfer by metric name; empty without a result."""
        return self._totals.get(work, {})

    @cached_property
    def _totals(self) -> Mapping[str, Mapping[str, int]]:
        return {
            work: {name: cost.total for name, cost in result.metrics.items()} for work, result in self.results.items()
        }

    @cached_property
    def source_index(self) -> Mapping[str, int]:
        """Index of a source file by its name in locations and by its path in the bundle."""
        indices: dict[str, int] = {}
        for index, source in enumerate(self.graph.sources):
            indices.setdefault(source.name, index)
            indices.setdefault(source.path, index)
        return indices

    @cached_property
    def reached(self) -> tuple[OpOccurrence, ...]:
        """Every op of every dispatch site and transfer, per call path that leads there."""
        paths = [(site.id, member.op, member.paths) for site in self.graph.sites for member in site.members]
        # The map has no call paths of transfers, as the host program submits them.
        paths += [(transfer.id, op, ((),)) for transfer in self._transfers for op in transfer.ops]
        shares = {
            (work, share.op): share.attributed for work, result in self.results.items() for share in result.shares
        }
        reached = (
            self._reach(work, op, path, part)
            for work, op, call_paths in paths
            for path, part in zip(call_paths, parts_of(shares.get((work, op), {}), len(call_paths)), strict=True)
        )
        return tuple(
            occurrence
            for occurrence in reached
            if all(fnmatchcase(pass_of(occurrence.scope), pattern) for pattern in self.passes)
            and (self.only is None or occurrence.place in self.only)
        )

    @cached_property
    def is_from_framework(self) -> bool:
        """Whether ops have lines of a Python program, or are nodes of ONNX."""
        graph = self.graph
        return any(op.name.startswith("onnx.") or user_frames(graph, op.frames) for op in graph.ops)

    def _reach(self, work: str, op_id: OpId, path: CallPath, attributed: Mapping[str, int]) -> OpOccurrence:
        graph, op = self.graph, self.graph.op_by_id[op_id]
        frames = user_frames_first(graph, frames_of(graph, op, path))
        return OpOccurrence(op, work, scope_of(graph, op, path), frames, attributed)

    @cached_property
    def reached_by_op(self) -> Mapping[OpId, tuple[OpOccurrence, ...]]:
        """`reached` by op; only ops with a dispatch site or transfer have an entry."""
        by_op: dict[OpId, list[OpOccurrence]] = defaultdict(list)
        for reached in self.reached:
            by_op[reached.op.id].append(reached)
        return {op: tuple(entries) for op, entries in by_op.items()}

    @cached_property
    def ranked_gains(self) -> tuple[TargetGain, ...]:
        """Gains of the program if an op is twice as fast, the largest first; empty if unknown."""
        return ranked_gains(self.graph, self.attribution) if self.attribution else ()

    @cached_property
    def _model(self) -> ProgramModel | None:
        """The model of an invocation; None if the runs lack times or invocations."""
        return None if self.attribution is None else program_model(self.graph, self.attribution)

    def gain_of(self, occurrences: Iterable[OpOccurrence]) -> Gain | None:
        """Gain of the program if these are all twice as fast; None if unknown."""
        return None if self._model is None else self._model.gain(Change(parts_by_work(occurrences), TWICE))

    @cached_property
    def _costly_ops(self) -> frozenset[OpId]:
        return frozenset(result.op for result in costly_ops(self.attribution)) if self.attribution else frozenset()

    def gain_of_op(self, op: OpId) -> Gain | None:
        """Gain of the program if an op is twice as fast; None if unknown, or if the op takes little time."""
        return self.gain_of(self.reached_by_op.get(op, ())) if op in self._costly_ops else None

    def occurrences(self, what: str, texts: Texts | None = None) -> list[OpOccurrence]:
        """The occurrences of what a text names (see `map.query.resolve`).

        Those of a line are of its ops, and of ops with this line in their call stack.

        Raises:
            QueryInvalid: nothing in the map has this name.
        """
        target = resolve(self.graph, what, texts)

        def matches(reached: OpOccurrence) -> bool:
            at_line = (frame for frame in reached.frames if frame.line == target.line)
            site = self.graph.site_by_id.get(reached.work)
            places = {reached.op.id, *((site.id, site.kernel) if site else ())}
            return not places.isdisjoint(target.names) or any(same_file(frame.file, target.file) for frame in at_line)

        return [reached for reached in self.reached if matches(reached)]

    def occurrences_in_scope(self, path: str) -> list[OpOccurrence]:
        """The occurrences in a scope such as `h0/attn` with everything below it, forward and backward.

        Raises:
            QueryInvalid: there are none.
        """
        prefix = tuple(filter(None, path.split("/")))
        found = [
            reached
            for reached in self.reached
            if prefix in (reached.scope[: len(prefix)], plain_scope(reached.scope)[: len(prefix)])
        ]
        if not found:
            raise QueryInvalid(f"{path}: no op of the run is in a scope of this name")
        return found

    def passes_of(self, op: Op, metric: str = "") -> Mapping[str, int]:
        """Cost of an op in each pass of a training step; 0 without a metric."""
        sums: dict[str, int] = defaultdict(int)
        for reached in self.reached_by_op.get(op.id, ()):
            sums[pass_of(reached.scope)] += reached.attributed.get(metric, 0)
        return sums

    def pass_text(self, op: Op) -> str:
        """The passes of an op for tables, joined with `+` if several calls lead to it; "" if unknown."""
        passes = {pass_of(reached.scope) for reached in self.reached_by_op.get(op.id, ())} or {pass_of(op.scope)}
        return "+".join(name for name in PASSES if name in passes)

    def scope_of(self, op: Op) -> str:
        """The scope of an op for tables: the first, and the number of others if several calls lead to the op."""
        return scope_text(self.graph, op)

    def line_of(self, op: Op, frames: Sequence[Frame] | None = None) -> tuple[str, str]:
        """The source line of an op and its function: of Python, else the node of ONNX, else the line of the model.

        `frames`: those of one call path that leads to it; None: of the first.
        """
        frames = user_frames(self.graph, self.frames_of(op) if frames is None else frames)
        if frames:
            return file_line(frames[0].file, frames[0].line), or_dash(frames[0].function)
        return op.node or op_line(op), ""

    @cached_property
    def overhead_of_op(self) -> Mapping[OpId, int]:
        """Elapsed time without a kernel that belongs to an op, in ns."""
        return overhead_by_op(self.attribution.overhead) if self.attribution else {}

    @property
    def has_notable_overhead(self) -> bool:
        """Whether a notable part of the elapsed time is overhead of a single op."""
        elapsed_ns = self.attribution.run.elapsed_ns if self.attribution else UNKNOWN
        largest = max(self.overhead_of_op.values(), default=0)
        return isinstance(elapsed_ns, int) and largest > _NOTABLE_OVERHEAD * elapsed_ns

    def overhead_label(self, row: Overhead) -> str:
        """The place of an overhead in a few words; with the line of a loop or conditional."""
        label = OVERHEAD_LABELS[row.place]
        if row.place in (OverheadPlace.LOOP, OverheadPlace.CONDITIONAL) and row.ops:
            return f"{label} {self.line_of(self.graph.op_by_id[row.ops[0]])[0]}"
        return label

    def elapsed_shares(self) -> tuple[ElapsedShare, ...]:
        """The elapsed time by kernels and the places of overhead, kernels first; empty if it is unknown."""
        if self.attribution is None or not isinstance(self.attribution.run.elapsed.kernels_ns, int):
            return ()
        shares = Counter[tuple[str, str]]()
        for row in self.attribution.overhead:
            shares[row.place.value, self.overhead_label(row)] += row.total_ns
        kernels = ElapsedShare(KERNELS, KERNELS, self.attribution.run.elapsed.kernels_ns)
        return (kernels, *(ElapsedShare(kind, name, ns) for (kind, name), ns in shares.most_common()))

    def frames_of(self, op: Op) -> tuple[Frame, ...]:
        """The frames of an op, including the first call path that leads to it; the user's own frames come first."""
        return stack_of(self.graph, op)
