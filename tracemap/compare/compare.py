"""Two models compared op by op, corrected for a machine that was slower."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.attribution.model import Attribution
from tracemap.compare.changes import (
    kernel_differences,
    regrouped,
    remark_differences,
    setting_differences,
    settings_differ,
)
from tracemap.compare.findings import NO_CORRECTION, Machine, MeasuredOp, MedianInterval, findings, machine_of, op_ratio
from tracemap.compare.model import (
    BASIS,
    MODELS_DIFFER,
    Amount,
    Comparison,
    GroupedCost,
    Match,
    MatchKind,
    MetricDifference,
    OpDifference,
    UnattributedDifference,
    total,
)
from tracemap.compare.sides import UNKNOWN_WORK, Costs, Side, amount, are_per_invocation, common_metrics, costs
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Text, Unknown
from tracemap.map.build_cost import BuildCostChanges, cost_changes
from tracemap.map.model import Op, OpId
from tracemap.map.query import python_frame, scope_text
from tracemap.runs.model import TIME_METRICS
from tracemap.runs.statistics import FEWEST_VALUES, median_ranks

# ---- drift correction


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = npt.NDArray[np.float64]

LEAST_UNCHANGED: Final = 3
"""With fewer unchanged ops, drift is unknown."""
MOST_UNCHANGED: Final = 256
"""Number of unchanged ops that estimate drift, the most expensive ones. More would not change their median."""
_FEW: Final = 32
"""Up to this number, an unchanged op is corrected by the others alone, since it moves the median of a few itself."""
Unchanged = Sequence[tuple[OpId, float]]
"""Ops of a side with unchanged code, with their costs in the first run before."""


class CorrectedRun:
    """A run with an estimate of the machine's slowdown in each invocation, from ops with unchanged code.

    `unchanged`: for each such op, its cost in each invocation relative to its cost in the first run before, and that
    cost.
    """

    def __init__(self, run: Attribution, metric: str, unchanged: Mapping[OpId, tuple[Values, float]]) -> None:
        self._run, self._metric, self._unchanged = run, metric, unchanged
        self._slowness = _medians(list(unchanged.values()))

    def spread_of(self, op: OpId) -> MedianInterval | None:
        """Median of an op's corrected cost per invocation, with its interval; None if unknown."""
        import numpy as np

        values = self._run.series.of(op, self._metric)
        if values is None:
            return None
        low, high = median_ranks(len(values))
        slowness = self._slowness
        if op in self._unchanged and len(self._unchanged) <= _FEW:
            others = [values_and_cost for other, values_and_cost in self._unchanged.items() if other != op]
            slowness = _medians(others)
        corrected = np.sort(values / slowness)
        middle = (len(values) + 1) // 2
        return MedianInterval(*(float(corrected[rank - 1]) for rank in (middle, low, high)))


def correct_drift(run: Attribution, metric: str, unchanged: Unchanged) -> CorrectedRun | None:
    """Correct a run for drift in each invocation; None if drift is unknown."""
    unchanged_values: dict[OpId, tuple[Values, float]] = {}
    for op, cost in sorted(unchanged, key=lambda pair: (-pair[1], pair[0].number))[:MOST_UNCHANGED]:
        values = run.series.of(op, metric)
        if values is not None and len(values) >= FEWEST_VALUES and cost > 0 and values.min() > 0:
            unchanged_values[op] = (values / cost, cost)
    return CorrectedRun(run, metric, unchanged_values) if len(unchanged_values) >= LEAST_UNCHANGED else None


def _medians(weighted: Sequence[tuple[Values, float]]) -> Values:
    """Weighted median of the values in each invocation, interpolated between the two nearest to half the weight."""
    import numpy as np

    values, weights = np.array([row for row, _ in weighted]), np.array([weight for _, weight in weighted])
    order = np.argsort(values, axis=0, kind="stable")
    ordered, sorted_weights = np.take_along_axis(values, order, axis=0), weights[order]
    middles = np.cumsum(sorted_weights, axis=0) - sorted_weights / 2
    half = weights.sum() / 2
    columns = range(values.shape[1])
    return np.array([np.interp(half, middles[:, column], ordered[:, column]) for column in columns])


def corrected_spreads(
    runs: Sequence[Attribution], metric: str, unchanged: Unchanged, ops: Sequence[OpId]
) -> Mapping[OpId, tuple[MedianInterval, ...]]:
    """Corrected costs of ops, for each run of a side; without ops that a run lacks, and empty if drift is unknown."""
    results = [correct_drift(run, metric, unchanged) for run in runs]
    corrected_runs = [run for run in results if run is not None]
    if len(corrected_runs) < len(runs):
        return {}
    spreads_by_op: dict[OpId, tuple[MedianInterval, ...]] = {}
    for op in ops:
        spreads = [spread for run in corrected_runs if (spread := run.spread_of(op)) is not None]
        if len(spreads) == len(runs):
            spreads_by_op[op] = tuple(spreads)
    return spreads_by_op


# ---- comparing


SAME: Final = "same"
CHANGED: Final = "changed"
_FEW_MATCHED: Final = 40
"""Percent of matched ops below which two models seem to have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An op before and after with its match; one of the two may be missing."""

    before: Op | None
    after: Op | None
    match: Match | None

    @property
    def shown(self) -> Op:
        """The op that names the pair: the one after, if it exists."""
        op = self.after or self.before
        assert op is not None
        return op


def _in_time(line: str, pair: Pair) -> str:
    """A line with the suffix "(before)" if the op is gone, since another op may stand there after."""
    return line if pair.after else f"{line} (before)"


def match_by_identity(before: Side, after: Side) -> tuple[Match, ...]:
    """Match ops by identity, for two maps of the same model."""
    known = after.graph.op_by_id
    return tuple(Match(op.id, op.id, MatchKind.IDENTITY, edited=False) for op in before.graph.ops if op.id in known)


def compare(
    before: Side, after: Side, matches: Sequence[Match], *, same_model: bool, threshold: float, raw: bool = False
) -> Comparison:
    """Compare two sides with matched ops; `threshold` in percent, `raw`: without correction for the machine's speed.

    Raises:
        Unbalanced: the changes do not add up.
    """
    return _Comparing(before, after, matches, same_model, threshold, raw).comparison()


@dataclass(frozen=True)
class _Comparing:
    before: Side
    after: Side
    matches: Sequence[Match]
    same_model: bool
    threshold: float
    raw: bool

    def comparison(self) -> Comparison:
        machine, measured = self._measured
        ratios = [machine.ratio_of(op) for op in measured] or [None] * len(self.differences)
        return Comparison(
            before=self.before.said,
            after=self.after.said,
            same_model=self.same_model,
            matched_percent=self._matched_percent,
            invocations=BASIS if self._per_invocation and self.metrics else UNKNOWN,
            threshold_percent=self.threshold,
            settings=tuple(setting_differences(self.before, self.after, self.matches)),
            drift=machine.drift,
            basis="corrected" if machine.drift.ops else "raw",
            findings=findings(measured, self._time, self.threshold, machine),
            metrics=tuple(self._metric(name, unit) for name, unit in self.metrics),
            ops=tuple(
                difference if ratio is None else structs.replace(difference, ratio=op_ratio(ratio))
                for difference, ratio in zip(self.differences, ratios, strict=True)
            ),
            scopes=self._groups(lambda pair: self._scope(pair) or "(no scope)"),
            lines=self._groups(self._line),
            sources=self._groups(self._source),
            python=self._groups(lambda pair: self._python(pair) or "(no Python line)"),
            unattributed=tuple(self._unattributed()),
            regrouped=tuple(regrouped(self.before, self.after, self.matches)),
            kernels=tuple(kernel_differences(self.before, self.after, self.matches)),
            remarks=remark_differences(self.before, self.after, self.matches),
            building=self._building(),
            diagnostics=tuple(self._diagnostics()),
        )

    def _building(self) -> BuildCostChanges | None:
        """The costs of building, if both bundles have the compiler's time."""
        before, after = self.before.cost, self.after.cost
        if before is None or after is None:
            return None
        kernels = [(own.before, own.after) for own in kernel_differences(self.before, self.after, self.matches)]
        return cost_changes(before, after, [(own.before, own.after) for own in self.differences], kernels)

    @cached_property
    def metrics(self) -> tuple[tuple[str, str], ...]:
        return common_metrics(self.before.attributions, self.after.attributions)

    @cached_property
    def _per_invocation(self) -> bool:
        return are_per_invocation(self.before.attributions, self.after.attributions)

    @cached_property
    def _costs(self) -> tuple[Costs, Costs]:
        before, after = (
            costs(side.attributions, self.metrics, per_invocation=self._per_invocation, slowdown=slowdown)
            for side, slowdown in ((self.before, 1), (self.after, self._measured[0].drift.ratio))
        )
        return before, after

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Matched and new ops in the order of the model after, then gone ops."""
        ops = self.before.graph.op_by_id
        match_of = {match.after: match for match in self.matches}
        pairs = [
            Pair(ops[match_of[op.id].before], op, match_of[op.id]) if op.id in match_of else Pair(None, op, None)
            for op in self.after.graph.ops
        ]
        matched = {match.before for match in self.matches}
        return (*pairs, *(Pair(op, None, None) for op in self.before.graph.ops if op.id not in matched))

    # ---- costs

    @cached_property
    def differences(self) -> tuple[OpDifference, ...]:
        return tuple(map(self._difference, self.pairs, self._codes))

    @cached_property
    def _codes(self) -> tuple[Text, ...]:
        return tuple(map(self._code, self.pairs))

    def _difference(self, pair: Pair, code: Text) -> OpDifference:
        old, new, match = pair.before, pair.after, pair.match
        return OpDifference(
            before=old.id if old else UNKNOWN,
            after=new.id if new else UNKNOWN,
            how=match.how.value if match else UNKNOWN,
            edited=match is not None and match.edited,
            name_before=old.name if old else UNKNOWN,
            name=pair.shown.name,
            line_before=old.line if old else UNKNOWN,
            line_after=new.line if new else UNKNOWN,
            scope=tuple(filter(None, self._scope(pair).split("/"))),
            outcome_before=old.outcome.value if old else UNKNOWN,
            outcome_after=new.outcome.value if new else UNKNOWN,
            code=code,
            amounts=self._amounts(pair),
        )

    def _scope(self, pair: Pair) -> str:
        return scope_text((self.after if pair.after else self.before).graph, pair.shown)

    def _line(self, pair: Pair) -> str:
        """The line of an op in the model."""
        op = pair.shown
        if isinstance(op.file, Unknown) or isinstance(op.line, Unknown):
            return "(unknown)"
        return _in_time(f"{op.file}:{op.line}", pair)

    def _source(self, pair: Pair) -> str:
        """The source line of an op: the user's own line of Python, else its ONNX node, else its line in the model."""
        return self._python(pair) or (_in_time(pair.shown.node, pair) if pair.shown.node else self._line(pair))

    def _python(self, pair: Pair) -> str:
        """The innermost line of an op in the user's own Python; "" if it has none."""
        frame = python_frame((self.after if pair.after else self.before).graph, pair.shown)
        return _in_time(f"{frame.file}:{frame.line}", pair) if frame else ""

    def _amounts(self, pair: Pair) -> Mapping[str, Amount]:
        before, after = self._costs
        amounts = {}
        for name, _ in self.metrics:
            old = before.ops[name].get(pair.before.id) if pair.before else None
            new = after.ops[name].get(pair.after.id) if pair.after else None
            if old is not None or new is not None:
                amounts[name] = amount(old or 0, new or 0)
        return amounts

    def _code(self, pair: Pair) -> Text:
        """Whether an op's kernels have the same code, under any name."""
        if pair.before is None or pair.after is None:
            return UNKNOWN
        before_kernels = self.before.kernels_of.get(pair.before.id, ())
        after_kernels = self.after.kernels_of.get(pair.after.id, ())
        if not before_kernels or not after_kernels:
            return UNKNOWN
        if self.before.graph.module.sha256 == self.after.graph.module.sha256:
            return SAME
        before_codes = {self.before.code(name) for name in before_kernels}
        after_codes = {self.after.code(name) for name in after_kernels}
        if () in before_codes or () in after_codes:
            return UNKNOWN
        return SAME if before_codes == after_codes else CHANGED

    def _metric(self, name: str, unit: str) -> MetricDifference:
        before, after = self._costs
        kinds: dict[str, list[Amount]] = defaultdict(list)
        for difference in self.differences:
            kind = "new" if difference.before is UNKNOWN else "gone" if difference.after is UNKNOWN else "matched"
            kinds[kind] += [difference.amounts[name]] if name in difference.amounts else []
        return MetricDifference(
            name=name,
            unit=unit,
            whole=amount(before.wholes[name], after.wholes[name]),
            unattributed=total([row.amounts[name] for row in self._unattributed()]),
            **{kind: total(kinds[kind]) for kind in ("matched", "gone", "new")},
        )

    def _unattributed(self) -> Iterator[UnattributedDifference]:
        before, after = self._costs
        names = [name for name, _ in self.metrics]
        reasons = dict.fromkeys(
            reason for side in (before, after) for name in names for reason in side.unattributed[name]
        )
        for reason in sorted(reasons):
            amounts = {
                name: amount(before.unattributed[name].get(reason, 0), after.unattributed[name].get(reason, 0))
                for name in names
            }
            yield UnattributedDifference(reason, amounts)

    def _groups(self, key: Callable[[Pair], str]) -> tuple[GroupedCost, ...]:
        members: dict[str, list[OpDifference]] = defaultdict(list)
        for pair, difference in zip(self.pairs, self.differences, strict=True):
            if difference.amounts:
                members[key(pair)].append(difference)
        names = [name for name, _ in self.metrics]
        return tuple(
            GroupedCost(
                group, len(ops), {name: total([op.amounts[name] for op in ops if name in op.amounts]) for name in names}
            )
            for group, ops in sorted(members.items())
        )

    # ---- findings

    @property
    def _time(self) -> str:
        """The time metric of the findings; "": there is none."""
        names = [name for name, _ in self.metrics]
        return next((name for name in TIME_METRICS if name in names), "")

    @cached_property
    def _measured(self) -> tuple[Machine, Sequence[MeasuredOp]]:
        """The machine's drift, and the costs of all differences; empty if there is no time metric."""
        metric = self._time
        if not metric:
            return NO_CORRECTION, ()
        # If runs were recorded under different conditions, unchanged code may well cost more or less.
        comparable = not (self.raw or any(settings_differ(self.before, self.after, same_model=self.same_model)))
        before, after = self.before.spreads(metric), self.after.spreads(metric)
        work_before, work_after = self.before.work_of(metric), self.after.work_of(metric)
        measured = [
            MeasuredOp(
                *(old, new),
                pair.shown.name,
                pair.shown.line,
                before.get(old, ()),
                after.get(new, ()),
                same_code=comparable
                and code == SAME
                and work_before.get(old, UNKNOWN_WORK).is_that_of(work_after.get(new, UNKNOWN_WORK)),
            )
            for pair, code in zip(self.pairs, self._codes, strict=True)
            for old, new in [(pair.before.id if pair.before else UNKNOWN, pair.after.id if pair.after else UNKNOWN)]
        ]
        machine = machine_of(measured)
        # A single run per side shows nothing of the variation between runs. A correction within it would make its
        # interval too narrow for a statement on the bundle.
        if machine.drift.ops and min(len(side.attributions) for side in (self.before, self.after)) > 1:
            measured = self._with_correction(measured, metric)
            machine = machine_of(measured)
        return machine, measured

    def _with_correction(self, measured: Sequence[MeasuredOp], metric: str) -> list[MeasuredOp]:
        """Add the costs after correction for drift in each invocation."""
        unchanged = [op for op in measured if op.same_code and op.old_costs and op.new_costs]
        spreads_of_sides = []
        for side, end in ((self.before, "before"), (self.after, "after")):
            unchanged_costs = [(OpId(getattr(op, end)), op.old_costs[0].median) for op in unchanged]
            ops = [OpId(name) for op in measured if isinstance(name := getattr(op, end), str)]
            spreads_of_sides.append(corrected_spreads(side.attributions, metric, unchanged_costs, ops))
        old, new = spreads_of_sides
        pairs = [(old.get(OpId(str(op.before)), ()), new.get(OpId(str(op.after)), ())) for op in measured]
        return [replace(op, corrected=pair) if all(pair) else op for op, pair in zip(measured, pairs, strict=True)]

    @cached_property
    def _matched_percent(self) -> float:
        ops = len(self.before.graph.ops) + len(self.after.graph.ops)
        return round(200 * len(self.matches) / ops, 2) if ops else 100.0

    def _diagnostics(self) -> Iterator[Diagnostic]:
        if not self.same_model and self._matched_percent < _FEW_MATCHED:
            text = f"only {self._matched_percent:.1f} % of the ops match, so these look like different models"
            yield Diagnostic(MODELS_DIFFER, f"{text}; compare builds of the same model")
        for side, word in ((self.before, "before"), (self.after, "after")):
            messages_by_slug: dict[str, list[str]] = defaultdict(list)
            for diagnostic in (diagnostic for run in side.attributions for diagnostic in run.diagnostics):
                messages_by_slug[diagnostic.slug].append(diagnostic.message)
            for slug, messages in messages_by_slug.items():
                more = f" (and {len(messages) - 1} more such notes)" if len(messages) > 1 else ""
                yield Diagnostic(slug, f"{word}: {messages[0]}{more}")
        yield from settings_differ(self.before, self.after, same_model=self.same_model)
        same_module = self.before.graph.module.sha256 == self.after.graph.module.sha256
        for side, word in ((self.before, "before"), (self.after, "after")):
            if side.graph.kernels and not (same_module or side.configuration_of):
                text = f"tile sizes and pipelines of kernels {word} are not compared: they need IREE's compiler"
                yield Diagnostic("configurations-unknown", text)
        if self.metrics and not self._per_invocation:
            text = "the number of invocations of a run is unknown, so amounts are sums over whole runs"
            yield Diagnostic("invocations-unknown", text)
