"""Two sides compared: costs by op, scope and line; what is found; what is regrouped; kernels that are other code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from msgspec import structs

from tracemap.comparison.changes import kernel_differences, regrouped, remark_differences, settings_differ
from tracemap.comparison.costs import Costs, amount, are_per_invocation, common_metrics, costs
from tracemap.comparison.drift_correction import steady_spreads
from tracemap.comparison.findings import STEADY, Machine, Measured, findings, machine_of, told
from tracemap.comparison.model import (
    BASIS,
    Amount,
    Comparison,
    Group,
    How,
    Match,
    MetricDifference,
    OpDifference,
    ResidualDifference,
    total,
)
from tracemap.comparison.sides import UNTOLD, Compared
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import Op, OpId
from tracemap.graph.query import scope_text, stack_of
from tracemap.measurements.model import TIME_METRICS
from tracemap.units import UNKNOWN, Text, Unknown

SAME: Final = "same"
CHANGED: Final = "changed"


@dataclass(frozen=True, slots=True)
class Pair:
    """An op before and after, and how that is known; one of the two may be missing."""

    before: Op | None
    after: Op | None
    match: Match | None

    @property
    def shown(self) -> Op:
        """The op by which it is called: the one after, where there is one."""
        found = self.after or self.before
        assert found is not None
        return found


def identical(before: Compared, after: Compared) -> tuple[Match, ...]:
    """The matches of two maps of the same model."""
    known = after.graph.op_by_id
    return tuple(Match(op.id, op.id, How.IDENTITY, edited=False) for op in before.graph.ops if op.id in known)


def compare(
    before: Compared, after: Compared, matches: Sequence[Match], *, same_model: bool, threshold: float
) -> Comparison:
    """Compare two sides whose ops are matched; `threshold` in percent.

    Raises:
        Unbalanced: what is found does not add up.
    """
    return _Comparing(before, after, matches, same_model, threshold).comparison()


@dataclass(frozen=True)
class _Comparing:
    before: Compared
    after: Compared
    matches: Sequence[Match]
    same_model: bool
    threshold: float

    def comparison(self) -> Comparison:
        machine, measured = self._measured
        return Comparison(
            before=self.before.said,
            after=self.after.said,
            same_model=self.same_model,
            matched_percent=self._percent(),
            invocations=BASIS if self._per_invocation and self.metrics else UNKNOWN,
            threshold_percent=self.threshold,
            drift=machine.drift,
            findings=findings(measured, self._time, self.threshold, machine),
            metrics=tuple(self._metric(name, unit) for name, unit in self.metrics),
            ops=tuple(self._with_ratios()),
            scopes=self._groups(lambda pair: self._scope(pair) or "(no scope)"),
            lines=self._groups(self._line),
            residual=tuple(self._residual()),
            regrouped=tuple(regrouped(self.before, self.after, self.matches)),
            kernels=tuple(kernel_differences(self.before, self.after, self.matches)),
            remarks=remark_differences(self.before, self.after, self.matches),
            diagnostics=tuple(self._diagnostics()),
        )

    @cached_property
    def metrics(self) -> tuple[tuple[str, str], ...]:
        return common_metrics(self.before.attributions, self.after.attributions)

    @cached_property
    def _per_invocation(self) -> bool:
        return are_per_invocation(self.before.attributions, self.after.attributions)

    @cached_property
    def _costs(self) -> tuple[Costs, Costs]:
        sides, per_invocation = (self.before, self.after), self._per_invocation
        one, two = (costs(side.attributions, self.metrics, per_invocation=per_invocation) for side in sides)
        return one, two

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Matched ops and new ones in the order of the model after, then those that are gone."""
        ops = self.before.graph.op_by_id
        match_of = {match.after: match for match in self.matches}
        found = [
            Pair(ops[match_of[op.id].before], op, match_of[op.id]) if op.id in match_of else Pair(None, op, None)
            for op in self.after.graph.ops
        ]
        matched = {match.before for match in self.matches}
        return (*found, *(Pair(op, None, None) for op in self.before.graph.ops if op.id not in matched))

    def _percent(self) -> float:
        ops = len(self.before.graph.ops) + len(self.after.graph.ops)
        return round(200 * len(self.matches) / ops, 2) if ops else 100.0

    # ---- costs

    @cached_property
    def differences(self) -> tuple[OpDifference, ...]:
        return tuple(map(self._difference, self.pairs))

    def _difference(self, pair: Pair) -> OpDifference:
        one, two, match = pair.before, pair.after, pair.match
        return OpDifference(
            before=one.id if one else UNKNOWN,
            after=two.id if two else UNKNOWN,
            how=match.how.value if match else UNKNOWN,
            edited=match is not None and match.edited,
            name_before=one.name if one else UNKNOWN,
            name=pair.shown.name,
            line_before=one.line if one else UNKNOWN,
            line_after=two.line if two else UNKNOWN,
            scope=tuple(filter(None, self._scope(pair).split("/"))),
            fate_before=one.fate.value if one else UNKNOWN,
            fate_after=two.fate.value if two else UNKNOWN,
            code=self._code(pair),
            amounts=self._amounts(pair),
        )

    def _scope(self, pair: Pair) -> str:
        return scope_text((self.after if pair.after else self.before).graph, pair.shown)

    def _line(self, pair: Pair) -> str:
        """The line of the user's program that made an op: of Python where that is known, else of the model.

        Another op may stand there after: of an op that is gone it is said to be the line before.
        """
        op = pair.shown
        frames = stack_of((self.after if pair.after else self.before).graph, op)
        file, line = (frames[0].file, frames[0].line) if frames else (op.file, op.line)
        if isinstance(file, Unknown) or isinstance(line, Unknown):
            return "(unknown)"
        return f"{file}:{line}" + (" (before)" if pair.after is None else "")

    def _amounts(self, pair: Pair) -> Mapping[str, Amount]:
        one, two = self._costs
        found = {}
        for name, _ in self.metrics:
            first = one.ops[name].get(pair.before.id) if pair.before else None
            second = two.ops[name].get(pair.after.id) if pair.after else None
            if first is not None or second is not None:
                found[name] = amount(first or 0, second or 0)
        return found

    def _code(self, pair: Pair) -> Text:
        """Whether what an op works in is the same code, be it in kernels of other names."""
        if pair.before is None or pair.after is None:
            return UNKNOWN
        first = self.before.kernels_of.get(pair.before.id, ())
        second = self.after.kernels_of.get(pair.after.id, ())
        if not first or not second:
            return UNKNOWN
        if self.before.graph.module.sha256 == self.after.graph.module.sha256:
            return SAME
        ones, twos = {self.before.code(name) for name in first}, {self.after.code(name) for name in second}
        if () in ones or () in twos:
            return UNKNOWN
        return SAME if ones == twos else CHANGED

    def _metric(self, name: str, unit: str) -> MetricDifference:
        one, two = self._costs
        kinds: dict[str, list[Amount]] = defaultdict(list)
        for each in self.differences:
            kind = "new" if each.before is UNKNOWN else "gone" if each.after is UNKNOWN else "matched"
            kinds[kind] += [each.amounts[name]] if name in each.amounts else []
        return MetricDifference(
            name=name,
            unit=unit,
            whole=amount(one.wholes[name], two.wholes[name]),
            residual=total([row.amounts[name] for row in self._residual()]),
            **{kind: total(kinds[kind]) for kind in ("matched", "gone", "new")},
        )

    def _residual(self) -> Iterator[ResidualDifference]:
        one, two = self._costs
        names = [name for name, _ in self.metrics]
        reasons = dict.fromkeys(reason for each in (one, two) for name in names for reason in each.residual[name])
        for reason in sorted(reasons):
            amounts = {
                name: amount(one.residual[name].get(reason, 0), two.residual[name].get(reason, 0)) for name in names
            }
            yield ResidualDifference(reason, amounts)

    def _groups(self, key: Callable[[Pair], str]) -> tuple[Group, ...]:
        members: dict[str, list[OpDifference]] = defaultdict(list)
        for pair, difference in zip(self.pairs, self.differences, strict=True):
            if difference.amounts:
                members[key(pair)].append(difference)
        names = [name for name, _ in self.metrics]
        return tuple(
            Group(
                group, len(ops), {name: total([op.amounts[name] for op in ops if name in op.amounts]) for name in names}
            )
            for group, ops in sorted(members.items())
        )

    # ---- what is found

    @property
    def _time(self) -> str:
        """The metric of which findings are; "": there is no time."""
        names = [name for name, _ in self.metrics]
        return next((name for name in TIME_METRICS if name in names), "")

    @cached_property
    def _measured(self) -> tuple[Machine, Sequence[Measured]]:
        """What the machine was slower in each run, and what each of the differences cost; nothing without a time."""
        metric = self._time
        if not metric:
            return STEADY, ()
        # Where runs were made otherwise, code that is the same is no reason to cost the same.
        comparable = not any(settings_differ(self.before, self.after, same_model=self.same_model))
        sides = (self.before, self.after)
        (one, two), (work, more) = ([side.spreads(metric) for side in sides], [side.work_of(metric) for side in sides])
        measured = [
            Measured(
                difference.before,
                difference.after,
                difference.name,
                pair.shown.line,
                one.get(difference.before, ()),
                two.get(difference.after, ()),
                same_code=comparable
                and difference.code == SAME
                and work.get(difference.before, UNTOLD).is_that_of(more.get(difference.after, UNTOLD)),
            )
            for pair, difference in zip(self.pairs, self.differences, strict=True)
        ]
        machine = machine_of(measured)
        # Of one run on a side nothing tells how runs differ: surer of that run, it would be too sure of the bundle.
        if machine.drift.ops and min(len(side.attributions) for side in (self.before, self.after)) > 1:
            measured = self._steadied(measured, metric)
            machine = machine_of(measured)
        return machine, measured

    def _with_ratios(self) -> Iterator[OpDifference]:
        """The differences, each with the ratio by which it is a finding or none."""
        machine, measured = self._measured
        ratios = [machine.ratio_of(op) for op in measured] or [None] * len(self.differences)
        for each, ratio in zip(self.differences, ratios, strict=True):
            yield each if ratio is None else structs.replace(each, ratio=told(ratio))

    def _steadied(self, measured: Sequence[Measured], metric: str) -> list[Measured]:
        """The same, with what ops cost without what the machine was slower in each invocation."""
        unchanged = [op for op in measured if op.same_code and op.one and op.two]
        of_sides = []
        for side, end in ((self.before, "before"), (self.after, "after")):
            known = [(OpId(getattr(op, end)), op.one[0].median) for op in unchanged]
            ops = [OpId(name) for op in measured if isinstance(name := getattr(op, end), str)]
            of_sides.append(steady_spreads(side.attributions, metric, known, ops))
        ones, twos = of_sides
        pairs = [(ones.get(OpId(str(op.before)), ()), twos.get(OpId(str(op.after)), ())) for op in measured]
        return [replace(op, steady=pair) if all(pair) else op for op, pair in zip(measured, pairs, strict=True)]

    def _diagnostics(self) -> Iterator[Diagnostic]:
        for side, word in ((self.before, "before"), (self.after, "after")):
            found: dict[str, list[str]] = defaultdict(list)
            for run in side.attributions:
                for each in run.diagnostics:
                    found[each.slug].append(each.message)
            for slug, messages in found.items():
                more = f" (the first of {len(messages)} such notes)" if len(messages) > 1 else ""
                yield Diagnostic(slug, f"{word}: {messages[0]}{more}")
        yield from settings_differ(self.before, self.after, same_model=self.same_model)
        if self.metrics and not self._per_invocation:
            text = "a run does not tell of how many invocations it is: amounts are of the whole runs"
            yield Diagnostic("invocations-unknown", text)
