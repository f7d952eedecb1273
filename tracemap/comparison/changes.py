"""Changes other than costs: fusion, code of kernels, remarks, conditions of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from tracemap.attribution.model import split_by
from tracemap.comparison.model import KernelCode, KernelDifference, Match, Regrouped, RemarkDifference
from tracemap.comparison.sides import Compared
from tracemap.diagnostics import Diagnostic
from tracemap.graph.documents import FIGURES, Remark
from tracemap.graph.model import OpId, in_order
from tracemap.measurements.model import RunHeader, differing_inputs, niceness_said
from tracemap.units import UNKNOWN, Integer, Text, Unknown

# ---- remarks
#
# Remarks of the compiler that are there on one side only, op by op.


_Said = tuple[str, Text, str]
"""What is said of an op: its name on both sides, the pass, the words."""


def remark_differences(
    before: Compared, after: Compared, matches: Sequence[Match]
) -> tuple[RemarkDifference, ...] | None:
    """Remarks that are new, then those that are gone; None where a bundle keeps none.

    An op has the same remark that is of the same pass and in the same words, whatever its kernel is called, wherever
    the step stands and whichever ops share it. What only counts is left out: it changes with everything.
    """
    if before.remarks is None or after.remarks is None:
        return None
    to_after = {match.before: match.after for match in matches}
    ones = _Side(before.remarks.remarks, lambda op: to_after.get(op, f"gone {op}"))
    twos = _Side(after.remarks.remarks, str)
    return (*_more("new", twos, ones), *_more("gone", ones, twos))


class _Side:
    """What is said of each op, and how often; `named`: what an op is called on both sides."""

    def __init__(self, remarks: Sequence[Remark], named: Callable[[OpId], str]) -> None:
        self.counts: Counter[_Said] = Counter()
        self.first: dict[_Said, tuple[int, OpId]] = {}
        """The first remark that says it, by its number, and the op there."""
        self.remarks = remarks
        for number, remark in enumerate(remarks):
            if remark.pass_name not in FIGURES:
                for op in remark.ops:
                    said = (named(op), remark.pass_name, remark.text)
                    self.counts[said] += remark.count
                    self.first.setdefault(said, (number, op))


def _more(kind: Literal["new", "gone"], there: _Side, other: _Side) -> Iterator[RemarkDifference]:
    """What is there more often than on the other side, ops of one remark together."""
    ops: dict[tuple[int, int], list[OpId]] = {}
    for said, (number, op) in there.first.items():
        more = there.counts[said] - other.counts[said]
        if more > 0:
            ops.setdefault((number, more), []).append(op)
    for (number, more), of in sorted(ops.items(), key=lambda item: item[0]):
        remark = there.remarks[number]
        yield RemarkDifference(kind, remark.kernel, remark.line, tuple(of), remark.pass_name, remark.text, more)


# ---- changes
#
# What has changed besides costs: which ops share kernels, the code of kernels, and what runs were made with.


def regrouped(before: Compared, after: Compared, matches: Sequence[Match]) -> Iterator[Regrouped]:
    """Ops that share sites with others than before, or with ones that were not there."""
    if before.map_sha256 == after.map_sha256:
        return
    changed = _changes(matches)
    for match in matches:
        one, two = before.partners_of.get(match.before), after.partners_of.get(match.after)
        if one and two:
            left, joined = changed(one, two)
        else:
            left, joined = _others(one, match.before), _others(two, match.after)
        if left or joined or (one is None) != (two is None):
            yield Regrouped(
                match.before,
                match.after,
                after.graph.op_by_id[match.after].name,
                joined,
                left,
                before.kernels_of.get(match.before, ()),
                after.kernels_of.get(match.after, ()),
            )


_Ops = tuple[OpId, ...]


def _others(partners: frozenset[OpId] | None, op: OpId) -> _Ops:
    """Whom an op shares its sites with, where it has any on this side alone."""
    return in_order(partners - {op}) if partners else ()


def _changes(matches: Sequence[Match]) -> Callable[[frozenset[OpId], frozenset[OpId]], tuple[_Ops, _Ops]]:
    """Tells of those who share sites, before and after, who is not there any more, and who was not there."""
    to_after: Mapping[OpId, OpId] = {match.before: match.after for match in matches}
    to_before = {two: one for one, two in to_after.items()}

    @cache  # ops of a kernel have the same sets, and there may be thousands of these
    def changed(ones: frozenset[OpId], twos: frozenset[OpId]) -> tuple[_Ops, _Ops]:
        left = in_order([op for op in ones if to_after.get(op) not in twos])
        return left, in_order([op for op in twos if to_before.get(op) not in ones])

    return changed


def kernel_differences(before: Compared, after: Compared, matches: Sequence[Match]) -> Iterator[KernelDifference]:
    """Kernels that have other code, and those without a counterpart; of each its counterpart by the ops they share."""
    if before.graph.module.sha256 == after.graph.module.sha256:
        return
    partner = _counterparts(before, after, matches)
    for kernel in after.graph.kernels:
        one = partner.get(kernel.name)
        if one is None:
            yield KernelDifference(UNKNOWN, kernel.name, KernelCode(), after.figures(kernel.name))
        elif before.code(one) != after.code(kernel.name):
            yield KernelDifference(one, kernel.name, before.figures(one), after.figures(kernel.name))
    taken = set(partner.values())
    for kernel in before.graph.kernels:
        if kernel.name not in taken:
            yield KernelDifference(kernel.name, UNKNOWN, before.figures(kernel.name), KernelCode())


def _counterparts(before: Compared, after: Compared, matches: Sequence[Match]) -> dict[str, str]:
    """Kernels after, each with the one before that it has most ops in common with; each is taken once."""
    common: Counter[tuple[str, str]] = Counter()
    for match in matches:
        for two in after.kernels_of.get(match.after, ()):
            for one in before.kernels_of.get(match.before, ()):
                common[one, two] += 1
    found: dict[str, str] = {}
    taken: set[str] = set()
    for (one, two), _ in sorted(common.items(), key=lambda item: (-item[1], item[0][0] != item[0][1], item[0])):
        if one not in taken and two not in found:
            found[two] = one
            taken.add(one)
    return found


def settings_differ(before: Compared, after: Compared, *, same_model: bool) -> Iterator[Diagnostic]:
    """What runs were made with and that costs depend on, where it differs.

    Inputs are what the same model was called with; those of an edited one are others by themselves.
    """
    ones, twos = ([each.run for each in side.attributions] for side in (before, after))
    if not ones or not twos:
        return
    of_each: Sequence[tuple[str, Callable[[RunHeader], Integer | Text]]] = (
        ("device", lambda run: run.device),
        ("number of workers", lambda run: run.workers),
        ("function", lambda run: run.function),
        ("line of the last-level cache", lambda run: run.line_bytes),
        ("clock", lambda run: run.clock.value),
        ("niceness", lambda run: niceness_said(run.command)),
    )
    untold: dict[str, list[str]] = {"before": [], "after": []}
    for word, of in of_each:
        first, second = _told(map(of, ones)), _told(map(of, twos))
        if first == second:
            continue
        if _NOT_TOLD in {first, second}:
            untold["before" if first == _NOT_TOLD else "after"].append(word)
        else:
            yield Diagnostic("settings-differ", f"the runs are of another {word}: {first} before, {second} after")
    for side, words in untold.items():
        if words:
            yield Diagnostic("settings-differ", f"what the runs {side} do not tell may be another: {', '.join(words)}")
    if same_model:
        inputs = differing_inputs((run.inputs for run in ones), (run.inputs for run in twos))
        for number, first, second in inputs[:1]:
            text = f"the runs are of other inputs: argument {number} is {first} before, {second} after"
            yield Diagnostic("settings-differ", text)
    rules = [_told(map(split_by, side.attributions)) for side in (before, after)]
    if rules[0] != rules[1]:
        text = (
            f"kernels are split by different rules ({rules[0]} before, {rules[1]} after): shares of ops differ for "
            f"that; choose one that both can go by with --rule"
        )
        yield Diagnostic("rules-differ", text)


_NOT_TOLD: Final = "unknown"


def _told(values: Iterable[Integer | Text]) -> str:
    """What the runs of a side say, each thing once."""
    return " and ".join(dict.fromkeys(_NOT_TOLD if isinstance(each, Unknown) else str(each) for each in values))
