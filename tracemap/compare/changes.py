"""Changes other than costs: fusion, kernels' code, remarks, conditions of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from tracemap.attribution.model import split_rule_text
from tracemap.compare.model import (
    Amount,
    FusionChange,
    KernelCode,
    KernelDifference,
    Match,
    MemoryDifference,
    OpMemory,
    RemarkDifference,
    SettingDifference,
    total,
)
from tracemap.compare.sides import Side
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, split_by_largest_remainder
from tracemap.map.bundle_documents import STATISTICS_PASSES, Remark
from tracemap.map.memory_use import MemoryUse
from tracemap.map.model import OpId, sort_ops
from tracemap.runs.model import RunHeader, differing_inputs, niceness_of

# ---- remarks


_OpRemark = tuple[str, Text, str]
"""A remark on an op: the op's common name on both sides, the pass, the text."""


def remark_differences(before: Side, after: Side, matches: Sequence[Match]) -> tuple[RemarkDifference, ...] | None:
    """New remarks, then gone ones; None: a bundle has no remarks.

    Remarks are the same if op, pass and text are equal. Kernel name, line, and other ops of the kernel do not matter.
    Remarks that only count something are left out, since any change affects them.
    """
    if before.remarks is None or after.remarks is None:
        return None
    to_after = {match.before: match.after for match in matches}
    before_side = _Side(before.remarks.remarks, lambda op: to_after.get(op, f"gone {op}"))
    after_side = _Side(after.remarks.remarks, str)
    return (*_more("new", after_side, before_side), *_more("gone", before_side, after_side))


class _Side:
    """Remarks of each op with their counts; `name_of` gives an op's common name on both sides."""

    def __init__(self, remarks: Sequence[Remark], name_of: Callable[[OpId], str]) -> None:
        self.counts: Counter[_OpRemark] = Counter()
        self.first: dict[_OpRemark, tuple[int, OpId]] = {}
        """The first remark with this text, by index, and its op."""
        self.remarks = remarks
        for index, remark in enumerate(remarks):
            if remark.pass_name not in STATISTICS_PASSES:
                for op in remark.ops:
                    op_remark = (name_of(op), remark.pass_name, remark.text)
                    self.counts[op_remark] += remark.count
                    self.first.setdefault(op_remark, (index, op))


def _more(kind: Literal["new", "gone"], side: _Side, other: _Side) -> Iterator[RemarkDifference]:
    """Remarks that are more frequent on this side. Ops of one remark are listed together."""
    ops: dict[tuple[int, int], list[OpId]] = {}
    for op_remark, (index, op) in side.first.items():
        more = side.counts[op_remark] - other.counts[op_remark]
        if more > 0:
            ops.setdefault((index, more), []).append(op)
    for (index, more), op_ids in sorted(ops.items(), key=lambda item: item[0]):
        remark = side.remarks[index]
        yield RemarkDifference(kind, remark.kernel, remark.line, tuple(op_ids), remark.pass_name, remark.text, more)


# ---- changes


def regrouped(before: Side, after: Side, matches: Sequence[Match]) -> Iterator[FusionChange]:
    """Ops that share dispatch sites with other ops than before, or with ops that did not exist."""
    if before.map_sha256 == after.map_sha256:
        return
    to_after: Mapping[OpId, OpId] = {match.before: match.after for match in matches}
    to_before = {new: old for old, new in to_after.items()}

    @cache  # ops of a kernel have equal sets, and there may be thousands of ops
    def changed(ops_before: frozenset[OpId], ops_after: frozenset[OpId]) -> tuple[tuple[OpId, ...], tuple[OpId, ...]]:
        left = sort_ops([op for op in ops_before if to_after.get(op) not in ops_after])
        return left, sort_ops([op for op in ops_after if to_before.get(op) not in ops_before])

    for match in matches:
        partners_before, partners_after = before.partners_of.get(match.before), after.partners_of.get(match.after)
        if partners_before and partners_after:
            left, joined = changed(partners_before, partners_after)
        else:
            # It has sites on one side only.
            left = sort_ops(partners_before - {match.before}) if partners_before else ()
            joined = sort_ops(partners_after - {match.after}) if partners_after else ()
        if left or joined or (partners_before is None) != (partners_after is None):
            yield FusionChange(
                match.before,
                match.after,
                after.graph.op_by_id[match.after].name,
                joined,
                left,
                before.kernels_of.get(match.before, ()),
                after.kernels_of.get(match.after, ()),
            )


def memory_differences(
    before: tuple[Side, Sequence[MemoryUse]], after: tuple[Side, Sequence[MemoryUse]], matches: Sequence[Match]
) -> Iterator[MemoryDifference]:
    """Memory peaks of the functions that both sides have, with the ops whose bytes there changed."""
    after_of = {match.before: match.after for match in matches}
    before_of = {new: old for old, new in after_of.items()}
    uses = {use.function: use for use in after[1]}
    for old in before[1]:
        if (new := uses.get(old.function)) is None:
            continue
        bytes_before, bytes_after = _bytes_of_ops(old), _bytes_of_ops(new)
        pairs: dict[tuple[OpId | Unknown, OpId | Unknown], Amount] = {}
        for op, size in bytes_before.items():
            match = after_of.get(op)
            pairs[op, match or UNKNOWN] = _amount(size, bytes_after.get(match, 0) if match else 0)
        for op, size in bytes_after.items():
            if before_of.get(op) not in bytes_before:
                pairs[before_of.get(op, UNKNOWN), op] = _amount(0, size)
        changed = [
            OpMemory(first, second, _name(before[0], after[0], first, second), amount)
            for (first, second), amount in pairs.items()
            if amount.change
        ]
        changed.sort(key=lambda op: (-abs(op.held.change), str(op.after), str(op.before)))
        peak, known = _amount(old.peak_bytes, new.peak_bytes), total([op.held for op in changed])
        others = _amount(peak.before - known.before, peak.after - known.after)
        yield MemoryDifference(old.function, peak, tuple(changed), others)


def _bytes_of_ops(use: MemoryUse) -> dict[OpId, int]:
    """The bytes of each op's results at the peak; ops of one value have equal parts of it."""
    found: Counter[OpId] = Counter()
    for value in use.held:
        if value.ops:
            found.update(
                dict(zip(value.ops, split_by_largest_remainder(value.bytes, [1] * len(value.ops)), strict=True))
            )
    return dict(found)


def _amount(before: int, after: int) -> Amount:
    return Amount(before, after, after - before)


def _name(before: Side, after: Side, first: OpId | Unknown, second: OpId | Unknown) -> str:
    if not isinstance(second, Unknown):
        return after.graph.op_by_id[second].name
    return "" if isinstance(first, Unknown) else before.graph.op_by_id[first].name


def kernel_differences(before: Side, after: Side, matches: Sequence[Match]) -> Iterator[KernelDifference]:
    """Kernels with changed code, and kernels without a counterpart. Counterparts share most ops."""
    if before.graph.module.sha256 == after.graph.module.sha256:
        return
    counterparts = counterparts_of(before, after, matches)
    for kernel in after.graph.kernels:
        counterpart = counterparts.get(kernel.name)
        if counterpart is None:
            yield KernelDifference(UNKNOWN, kernel.name, KernelCode(), after.figures(kernel.name))
        elif before.code(counterpart) != after.code(kernel.name):
            yield KernelDifference(counterpart, kernel.name, before.figures(counterpart), after.figures(kernel.name))
    used = set(counterparts.values())
    for kernel in before.graph.kernels:
        if kernel.name not in used:
            yield KernelDifference(kernel.name, UNKNOWN, before.figures(kernel.name), KernelCode())


def counterparts_of(before: Side, after: Side, matches: Sequence[Match]) -> dict[str, str]:
    """For kernels after, the kernel before that shares most ops. Each is assigned once."""
    common: Counter[tuple[str, str]] = Counter()
    for match in matches:
        for new in after.kernels_of.get(match.after, ()):
            for old in before.kernels_of.get(match.before, ()):
                common[old, new] += 1
    counterparts: dict[str, str] = {}
    used: set[str] = set()
    for (old, new), _ in sorted(common.items(), key=lambda item: (-item[1], item[0][0] != item[0][1], item[0])):
        if old not in used and new not in counterparts:
            counterparts[new] = old
            used.add(old)
    return counterparts


def setting_differences(before: Side, after: Side, matches: Sequence[Match]) -> Iterator[SettingDifference]:
    """Differing versions, flags and conditions of the runs, then differing lowering configurations of kernels."""
    first, second = _settings(before), _settings(after)
    for name in dict.fromkeys((*first, *second)):
        values = first.get(name, UNKNOWN), second.get(name, UNKNOWN)
        of_runs = name not in _BUILD_SETTINGS and not name.startswith("-")
        if values[0] != values[1] and not (of_runs and UNKNOWN in values):
            yield SettingDifference(UNKNOWN, name, *values)
    if before.graph.module.sha256 == after.graph.module.sha256:
        return
    counterparts = counterparts_of(before, after, matches)
    for kernel in after.graph.kernels:
        old, new = (
            before.configuration_of.get(counterparts.get(kernel.name, "")),
            after.configuration_of.get(kernel.name),
        )
        if old is not None and new is not None:
            for name in dict.fromkeys((*old, *new)):
                if old.get(name) != new.get(name):
                    yield SettingDifference(kernel.name, name, old.get(name, UNKNOWN), new.get(name, UNKNOWN))


_BUILD_SETTINGS: Final = ("compiler",)


def _settings(side: Side) -> dict[str, Text]:
    """Settings of the build and of the runs, by name; flags that are given several times have all their values."""
    settings: dict[str, Text] = {"compiler": side.graph.module.iree_compiler}
    for flag in side.graph.module.flags:
        name, equals, value = flag.partition("=")
        earlier = settings.get(name)
        settings[name] = (f"{earlier} " if earlier else "") + (value if equals else "true")
    headers = [attribution.run for attribution in side.attributions]
    values: Sequence[tuple[str, Callable[[RunHeader], Integer | Text]]] = (
        ("tools", lambda run: ", ".join(run.tools) or UNKNOWN),
        ("host", lambda run: run.machine.host),
        ("processor", lambda run: run.machine.cpu_model),
        ("device", lambda run: run.device),
        ("workers", lambda run: run.workers),
        ("function", lambda run: run.function),
    )
    for name, value_of in values if headers else ():
        text = _distinct(map(value_of, headers))
        settings[name] = UNKNOWN if text == _UNKNOWN else text
    return settings


def settings_differ(before: Side, after: Side, *, same_model: bool) -> Iterator[Diagnostic]:
    """Differences between the conditions of runs on which costs depend.

    Inputs are compared for the same model only, since those of an edited model differ anyway.
    """
    headers_before, headers_after = ([attribution.run for attribution in side.attributions] for side in (before, after))
    if not headers_before or not headers_after:
        return
    settings: Sequence[tuple[str, Callable[[RunHeader], Integer | Text]]] = (
        ("device", lambda run: run.device),
        ("number of workers", lambda run: run.workers),
        ("function", lambda run: run.function),
        ("cache line size of the last level", lambda run: run.line_bytes),
        ("clock", lambda run: run.clock.value),
        ("niceness", lambda run: niceness_of(run.command)),
    )
    unknown: dict[str, list[str]] = {"before": [], "after": []}
    for setting, value_of in settings:
        first, second = _distinct(map(value_of, headers_before)), _distinct(map(value_of, headers_after))
        if first == second:
            continue
        if _UNKNOWN in {first, second}:
            unknown["before" if first == _UNKNOWN else "after"].append(setting)
        else:
            yield Diagnostic("settings-differ", f"the runs differ in {setting}: {first} before, {second} after")
    for side, names in unknown.items():
        if names:
            text = f"conditions of the runs {side} are unknown and may differ: {', '.join(names)}"
            yield Diagnostic("settings-differ", text)
    if same_model:
        inputs = differing_inputs((run.inputs for run in headers_before), (run.inputs for run in headers_after))
        for number, first, second in inputs[:1]:
            text = f"the runs have different inputs: argument {number} is {first} before, {second} after"
            yield Diagnostic("settings-differ", text)
    rules = [_distinct(map(split_rule_text, side.attributions)) for side in (before, after)]
    if rules[0] != rules[1]:
        text = (
            f"kernels are split by different rules ({rules[0]} before, {rules[1]} after), which changes the shares "
            f"of ops; choose a rule that both runs allow with --rule"
        )
        yield Diagnostic("rules-differ", text)


_UNKNOWN: Final = "unknown"


def _distinct(values: Iterable[Integer | Text]) -> str:
    return " and ".join(dict.fromkeys(_UNKNOWN if isinstance(value, Unknown) else str(value) for value in values))
