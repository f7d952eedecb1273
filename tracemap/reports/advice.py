"""The basis of a report's numbers, reasons to doubt them, and advice on what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tracemap.attribution.advice.program import invocation_ns
from tracemap.attribution.advice.rules import fastest_device, is_faster_device
from tracemap.attribution.model import Advice, Attribution, MetricTotal
from tracemap.attribution.program_metrics import STATIC_METRICS
from tracemap.attribution.scan.connection import IN_MILLIONTHS, MILLIONTHS
from tracemap.core.diagnostics import BUDGET_SPENT, NOISY, WINDOW, above_result, has_slug
from tracemap.core.units import (
    UNKNOWN,
    Integer,
    Unknown,
    format_bytes,
    format_count,
    format_mean,
    format_ns,
    format_share,
    join_names,
    plural,
)
from tracemap.map.model import Outcome
from tracemap.options.results import Rule
from tracemap.reports.cost_lookup import MapCosts, default_metric
from tracemap.reports.escaping import or_dash
from tracemap.runs.model import DeviceTime, RunHeader

if TYPE_CHECKING:
    from tracemap.compare.model import Comparison, MemoryDifference, OpDifference, OpMemory

# ---- basis of numbers: means per invocation, or sums of the run


def divisor(metric: MetricTotal, *, totals: bool) -> int:
    """The number to divide sums of a metric by: its invocations; 1 for sums or an unknown number."""
    return 1 if totals else known_invocations(metric) or 1


def known_invocations(metric: MetricTotal) -> int:
    """The number of invocations of a metric; 0 if unknown."""
    return 0 if isinstance(metric.invocations, Unknown) else metric.invocations


def display_unit(metric: MetricTotal) -> tuple[str, int]:
    """The display unit of a metric, and the number of its own units in one of them."""
    return scaled_unit(metric.unit)


def format_amount(amount: int, metric: MetricTotal) -> str:
    """Format an amount of a metric."""
    unit, scale = display_unit(metric)
    return format_mean(amount, scale, unit)


def scaled_unit(unit: str) -> tuple[str, int]:
    """The display unit of a unit, and the number of units in one of them."""
    return ("count", MILLIONTHS) if unit == IN_MILLIONTHS else (unit, 1)


def basis(metrics: Sequence[MetricTotal], *, totals: bool) -> str:
    """The basis of the numbers of these metrics, in words.

    If times, samples and simulated counts have different numbers of invocations, the text lists them. Metrics of the
    program that do not depend on invocations do not count.
    """
    metrics = [metric for metric in metrics if metric.name not in STATIC_METRICS]
    counts = [*dict.fromkeys(map(known_invocations, metrics))]
    if not counts:
        return "of the program"
    if counts == [0]:
        return "sums of the whole run" + ("" if totals else ", not per invocation")
    if len(counts) == 1:
        return f"sums of {plural(counts[0], 'invocation')}" if totals else f"per invocation, mean of {counts[0]:,}"
    names = {count: [metric.name for metric in metrics if known_invocations(metric) == count] for count in counts}
    first = next(count for count in counts if count)
    texts = {count: _sum_text(count, count == first) if totals else _mean_text(count) for count in counts}
    parts = "; ".join(f"{', '.join(metric_names)} {texts[count]}" for count, metric_names in names.items())
    return f"{'sums' if totals else 'per invocation'}: {parts}"


def _sum_text(invocations: int, is_first: bool) -> str:
    if not invocations:
        return "in all"
    return f"of {plural(invocations, 'invocation')}" if is_first else f"of {invocations:,}"


def _mean_text(invocations: int) -> str:
    if not invocations:
        return "in all"
    return f"mean of {invocations:,}" if invocations > 1 else "of 1"


def invocations_note(metric: MetricTotal, metrics: Sequence[MetricTotal]) -> str:
    """The number of invocations of a metric, in words, if it differs between the metrics; else empty."""
    if len({*map(known_invocations, metrics)}) < 2:
        return ""
    invocations = known_invocations(metric)
    return f"of {plural(invocations, 'invocation')}" if invocations else "of an unknown number of invocations"


def mean_elapsed_ns(attribution: Attribution) -> Integer:
    """The mean elapsed time of an invocation; unknown if its inputs are, or if several functions ran."""
    run = attribution.run
    if isinstance(run.elapsed_ns, Unknown) or isinstance(run.iterations, Unknown) or not run.iterations:
        return UNKNOWN
    return run.elapsed_ns // run.iterations if len(attribution.functions) <= 1 else UNKNOWN


def invocations_text(run: RunHeader) -> str:
    """The number of measured invocations, and of launches if there were several.

    The number of launches in a window is unknown.
    """
    launches_known = run.launches > 1 and not has_slug(run.diagnostics, WINDOW)
    launches = f" in {run.launches} launches" if launches_known else ""
    return f"{format_count(run.iterations)}{launches}"


def elapsed_text(attribution: Attribution) -> str:
    """Mean and median elapsed time of an invocation; the total if the mean is unknown.

    Mean and median differ if a few invocations take far longer than the others.
    """
    mean_ns, invocation = mean_elapsed_ns(attribution), attribution.run.invocation
    if isinstance(mean_ns, Unknown):
        total = format_ns(attribution.run.elapsed_ns)
        return f"{total} in all" if len(attribution.functions) > 1 else total
    median = with_interval(invocation.median_ns, invocation.low_ns, invocation.high_ns)
    median_text = "" if isinstance(invocation.median_ns, Unknown) else f", median {median}"
    return f"{format_ns(mean_ns)} per invocation (mean){median_text}"


def with_interval(median_ns: Integer, low_ns: Integer, high_ns: Integer) -> str:
    """A median with its 95 % interval, which needs several values.

    >>> with_interval(311_000, 305_000, 320_000), with_interval(5, UNKNOWN, UNKNOWN)
    ('311 µs (95 %: 305 to 320 µs)', '5 ns (too few for an interval)')
    """
    if isinstance(low_ns, Unknown) or isinstance(high_ns, Unknown):
        return f"{format_ns(median_ns)} (too few for an interval)"
    low, high = format_ns(low_ns), format_ns(high_ns)
    unit = high.rpartition(" ")[2]
    return f"{format_ns(median_ns)} (95 %: {low.removesuffix(f' {unit}')} to {high})"


def basis_text(comparison: Comparison) -> str:
    """Whether times are as recorded or corrected for the machine's speed, in a sentence; "" without costs."""
    if not comparison.metrics:
        return ""
    ratio, unchanged = comparison.drift.ratio, f"{plural(comparison.drift.ops, 'op')} with unchanged code"
    if comparison.basis == "raw":
        why = ", since the runs differ in more than code" if has_slug(comparison.diagnostics, "settings-differ") else ""
        return f"times are as recorded, not corrected for the machine's speed{why}"
    if ratio == 1:
        return f"times are as recorded: {unchanged} ran equally fast"
    speed = f"{_factor(1 / ratio)} faster" if ratio < 1 else f"{_factor(ratio)} slower"
    return (
        f"times are corrected for the machine's speed: {unchanged} ran {speed} after, so all times after are divided "
        f"by {ratio:.4g} (--raw: as recorded)"
    )


def _factor(value: float) -> str:
    return f"{value:.2f}x" if value >= _NOTABLE else f"{100 * (value - 1):.2g} %"


_NOTABLE: Final = 1.01


def settings_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """A row per setting that differs: `build`, `runs` or the kernel, the setting, and its values before and after."""
    rows = []
    for setting in comparison.settings:
        of_build = setting.name == "compiler" or setting.name.startswith("-")
        owner = setting.kernel if isinstance(setting.kernel, str) else "build" if of_build else "runs"
        rows.append((owner, setting.name, or_dash(setting.before), or_dash(setting.after)))
    return rows


def same_settings_text(comparison: Comparison) -> str:
    """A sentence on two sides without a differing setting."""
    if comparison.before.module_sha256 != comparison.after.module_sha256:
        text = "compiler, flags and kernel configurations are the same; the compiled modules differ"
        return text + (f", but {SAME_CODE}" if has_same_code(comparison) else "")
    if is_unchanged(comparison):
        return "no change: both sides are the same build" + (" with the same costs" if comparison.metrics else "")
    return "both sides are the same build: compiler, flags, kernels and their configurations are the same"


def without_metrics_text(comparison: Comparison) -> str:
    """A sentence on two sides whose costs cannot be compared."""
    if UNKNOWN in (comparison.before.run, comparison.after.run):
        return "only the maps are compared, since not both sides have a run"
    return "the runs have no metric in common: only the maps are compared"


SAME_CODE: Final = "all kernels have the same code"


def has_same_code(comparison: Comparison) -> bool:
    """Whether the modules differ, but no kernel, as far as the code of all ops in kernels is known."""
    ends = [(op.outcome_before, op.outcome_after, op.code) for op in comparison.ops]
    codes = {code for before, after, code in ends if Outcome.DISPATCHED in (before, after)}
    modules = {side.module_sha256 for side in (comparison.before, comparison.after)}
    return len(modules) > 1 and not comparison.kernels and codes == {"same"}


def is_unchanged(comparison: Comparison) -> bool:
    """Whether both sides have the same map and the same costs, such as one run compared with itself."""
    amounts = [row.amounts for row in comparison.ops] + [row.amounts for row in comparison.unattributed]
    changes = (amount.change for of_row in amounts for amount in of_row.values())
    return comparison.before.map_sha256 == comparison.after.map_sha256 and not any(changes)


# ---- memory peaks of a comparison


def changed_memory(comparison: Comparison) -> Iterator[MemoryDifference]:
    """The functions whose memory peak changed, or whose ops hold more or less there."""
    return (memory for memory in comparison.memory if memory.peak.change or memory.ops)


def memory_op_id(op: OpMemory) -> str:
    """The op's id after, or before if it is gone."""
    return or_dash(op.before if isinstance(op.after, Unknown) else op.after)


def byte_change(change: int) -> str:
    """Format a number of bytes with its sign."""
    return f"{'−' if change < 0 else '+'}{format_bytes(abs(change))}" if change else "0 B"


def memory_text(comparison: Comparison, memory: MemoryDifference) -> str:
    """A sentence on the memory peak of a function, with the largest change in its direction and its cause."""
    peak = memory.peak
    change = "the same" if not peak.change else byte_change(peak.change)
    text = (
        f"memory peak of {memory.function}: {change} ({format_bytes(peak.before)} before, "
        f"{format_bytes(peak.after)} after)"
    )
    largest = next((op for op in memory.ops if op.held.change * peak.change > 0), None)
    if largest is None:
        return text
    fusion = next((own for own in comparison.regrouped if own.after == largest.after), None)
    grew = largest.held.change > 0
    if isinstance(largest.before, Unknown):
        cause = "is new"
    elif isinstance(largest.after, Unknown):
        cause = "is gone"
    elif fusion is not None and grew and fusion.left:
        partners = [op for op in comparison.ops if op.before in fusion.left]
        cause = f"is no longer fused with {join_names(list(map(_named, partners)))}"
    elif fusion is not None and not grew and fusion.joined:
        partners = [op for op in comparison.ops if op.after in fusion.joined]
        cause = f"is now fused with {join_names(list(map(_named, partners)))}"
    else:
        cause = f"holds {format_bytes(abs(largest.held.change))} {'more' if grew else 'less'}"
    return f"{text}: {memory_op_id(largest)} {largest.name} {cause}"


def _named(op: OpDifference) -> str:
    return f"{op.before} {op.name}, which is gone" if isinstance(op.after, Unknown) else f"{op.after} {op.name}"


# ---- advice


MOST_ADVICE: Final = 3
"""Most pieces of advice in a terminal."""


def gain_text(advice: Advice, attribution: Attribution) -> str:
    """The gain of advice as a share of the invocation, with its bounds: `61 % (53 to 69)`."""
    before_ns = invocation_ns(attribution)
    gain, low, high = (_percent(100 * ns / before_ns) for ns in (advice.gain_ns, advice.low_ns, advice.high_ns))
    return f"{gain} % ({low} to {high})"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= _WHOLE_PERCENT else f"{value:.1f}"


_WHOLE_PERCENT: Final = 9.5
"""Least percentage without decimals."""


def advice_lines(attribution: Attribution) -> tuple[str, ...]:
    """The advice with the largest gains for a terminal, a line each."""
    return tuple(
        f"advice: {advice.text}; gain {gain_text(advice, attribution)}: {advice.command}"
        for advice in attribution.advice[:MOST_ADVICE]
    )


# ---- devices


def device_comparison_text(devices: Sequence[DeviceTime]) -> str:
    """The median call on each compared device, and the fastest device; empty without a comparison."""
    if not devices:
        return ""
    times = (f"{device.device} {with_interval(device.median_ns, device.low_ns, device.high_ns)}" for device in devices)
    fastest = fastest_device(devices)
    others = [device for device in devices if device is not fastest]
    is_significant = bool(others) and all(is_faster_device(fastest, other) for other in others)
    result = f"{fastest.device} is faster" if is_significant else "no significant difference (intervals overlap)"
    # Earlier releases timed groups of calls. The median of their means is not the median of calls.
    label = "median call" if all(device.calls == 1 for device in devices) else "median of means of several calls"
    return f"{label}: {', '.join(times)}; {result}"


# ---- notices


_UNCERTAIN: Final = 0.1
"""Least part of the attributed cost in uncertain ops for a notice."""


def notices(costed: MapCosts) -> tuple[str, ...]:
    """Reasons to doubt the costs: a noisy, short or incomplete run, and ops with uncertain shares."""
    attribution = costed.attribution
    if attribution is None:
        return ()
    texts = [diagnostic.message for diagnostic in above_result(attribution.diagnostics)]
    texts += [diagnostic.message for diagnostic in attribution.diagnostics if diagnostic.slug == BUDGET_SPENT]
    metric = costed.metrics[default_metric(costed.metrics)]
    costs = [result.metrics[metric.name] for result in costed.op_results.values()]
    uncertain = sum(cost.attributed for cost in costs if cost.uncertain)
    if uncertain > _UNCERTAIN * metric.attributed:
        # Estimates from machine code stay uncertain on an idle machine; noise has its own notice.
        noisy = has_slug(attribution.diagnostics, NOISY)
        remedy = "record again on an idle machine" if noisy else "record longer"
        if attribution.rule is Rule.CODE:
            remedy = "record with --sample to measure"
        share = format_share(uncertain, metric.attributed)
        texts.append(f"uncertain: {share} of {metric.name} is in ops whose cost may be off by half; {remedy}")
    return tuple(dict.fromkeys(texts))
