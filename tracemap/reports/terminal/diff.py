"""Text of `diff`: settings that differ, significant changes, costs before and after, changes of ops and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.compare.model import (
    MODELS_DIFFER,
    RUNS_MISSING,
    Amount,
    Comparison,
    Finding,
    GroupedCost,
    KernelDifference,
    MetricDifference,
    OpDifference,
    RemarkDifference,
    match_counts,
    total,
)
from tracemap.core.diagnostics import ABOVE_RESULT, SHARES_ESTIMATED, Diagnostic, has_slug
from tracemap.core.units import (
    UNKNOWN,
    Integer,
    Unknown,
    format_bytes,
    format_mean,
    format_ns,
    format_share,
    plural,
)
from tracemap.map.model import Outcome
from tracemap.options.reports import DiffOptions
from tracemap.reports.advice import (
    SAME_CODE,
    basis_text,
    byte_change,
    changed_memory,
    has_same_code,
    memory_op_id,
    memory_text,
    same_settings_text,
    scaled_unit,
    settings_rows,
    without_metrics_text,
)
from tracemap.reports.escaping import or_dash, or_question_mark
from tracemap.reports.terminal.build_cost import print_cost_changes
from tracemap.reports.terminal.tables import Heading, console, note_text, number, print_notes, print_table, say

if TYPE_CHECKING:
    from rich.console import Console

_MOST: Final = 10
"""Most rows of the tables of ops, fusion changes, kernels and remarks."""
_REMARKS = (
    Heading("ops", least=8),
    Heading("kernel", leave=20, least=16),
    Heading("pass"),
    number("times", leave=30),
    Heading("remark", least=30, words=True),
)
_COSTS = (number("before"), number("after"), number("change"), number("of total", leave=10))


def print_diff(comparison: Comparison, out: TextIO, options: DiffOptions) -> None:
    """Print a comparison of two bundles."""
    terminal = console(out)
    _print_head(terminal, comparison)
    _print_settings(terminal, comparison, options)
    _print_findings(terminal, comparison)
    metric = _main_metric(comparison, options.metric)
    if metric is not None:
        _print_costs(terminal, comparison, metric, options)
    _print_ops(terminal, comparison, options)
    _print_memory(terminal, comparison, options)
    _print_regrouped(terminal, comparison, options)
    _print_kernels(terminal, comparison.kernels, options)
    _print_remarks(terminal, comparison.remarks or (), options)
    if comparison.building is not None:
        print_cost_changes(terminal, comparison.building, _rows(options))
    notes = [item for item in comparison.diagnostics if item.slug != MODELS_DIFFER]  # which is printed at the top
    print_notes(terminal, _notes(notes), every=options.notes)


_SIDES: Final = ("before: ", "after: ")


def _notes(diagnostics: Sequence[Diagnostic]) -> Iterator[str]:
    """Notes, the most important first; a note on both sides is one note."""
    sides: dict[tuple[str, str], list[str]] = {}
    for item in sorted(diagnostics, key=lambda item: item.slug not in ABOVE_RESULT):
        side = next((prefix for prefix in _SIDES if item.message.startswith(prefix)), "")
        sides.setdefault((item.slug, item.message.removeprefix(side)), []).append(side.removesuffix(": "))
    for (slug, message), names in sides.items():
        where = f"{' and '.join(names)}: " if any(names) else ""
        yield note_text(Diagnostic(slug, f"{where}{message}"))


def _print_head(terminal: Console, comparison: Comparison) -> None:
    for item in comparison.diagnostics:
        if item.slug == MODELS_DIFFER:
            say(terminal, f"warning: {item.message}", "bold")
    unused = {item.message.partition(":")[0] for item in comparison.diagnostics if item.slug == RUNS_MISSING}
    recorded = " as recorded" if comparison.drift.ratio != 1 else ""
    for label, side in (("before", comparison.before), ("after", comparison.after)):
        lack = "runs not used" if label in unused else "no run"
        run = lack if isinstance(side.run, Unknown) else side.run
        invocations = "" if isinstance(side.iterations, Unknown) else f", {plural(side.iterations, 'invocation')}"
        time = "" if isinstance(side.invocation_ns, Unknown) else f" of {format_ns(side.invocation_ns)}{recorded}"
        say(terminal, f"{label}: {side.bundle}, {run}{invocations}{time}, {plural(side.ops, 'op')}")
    if times := compile_times(comparison):
        say(terminal, f"compile time: {times}")
    if comparison.same_model:
        say(terminal, "same model: ops are matched by identity")
        return
    gone, new = (sum(isinstance(getattr(op, end), Unknown) for op in comparison.ops) for end in ("after", "before"))
    edited = sum(op.edited for op in comparison.ops)
    ways = ", ".join(f"{plural(count, 'op')} {way}" for way, count in match_counts(comparison.ops))
    say(
        terminal,
        f"{comparison.matched_percent:.1f} % of ops matched: {ways or 'none'}; {edited} edited, {gone} gone, {new} new",
    )


def compile_times(comparison: Comparison) -> str:
    """Wall and CPU time of the compiler before and after; empty if a bundle does not record them."""
    times = [(side.compile_ns, side.compile_cpu_ns) for side in (comparison.before, comparison.after)]
    if any(isinstance(wall_ns, Unknown) for wall_ns, _ in times):
        return ""
    wall, cpu = (" → ".join(map(format_ns, pair)) for pair in zip(*times, strict=True))
    return f"{wall}, CPU time {cpu}"


# ---- settings


_SETTINGS: Final = (
    Heading("what differs", least=12),
    Heading("setting", least=12),
    Heading("before", least=12, words=True),
    Heading("after", least=12, words=True),
)


def _print_settings(terminal: Console, comparison: Comparison, options: DiffOptions) -> None:
    """Print differing versions, flags and conditions of runs, then the configurations of kernels."""
    if not comparison.settings:
        say(terminal, same_settings_text(comparison))
        return
    kernels = dict.fromkeys(setting.kernel for setting in comparison.settings if isinstance(setting.kernel, str))
    shown = [UNKNOWN, *list(kernels)[: _rows(options)]]
    rows = [row for row in settings_rows(comparison) if row[0] in ("build", "runs", *shown)]
    cells = [["" if row[0] == above[0] else row[0], *row[1:]] for above, row in pairwise([("",), *rows])]
    title = f"Settings that differ ({plural(more, 'more kernel')})" if (more := len(kernels) - len(shown) + 1) else ""
    if not title:
        say(terminal, "")
    print_table(terminal, title, _SETTINGS, cells)
    if has_same_code(comparison):
        say(terminal, SAME_CODE)


# ---- findings


def _print_findings(terminal: Console, comparison: Comparison) -> None:
    if not comparison.metrics:
        say(terminal, without_metrics_text(comparison))
        return
    say(terminal, "")
    say(terminal, basis_text(comparison))
    if not comparison.findings:
        say(terminal, f"no significant change (> {comparison.threshold_percent:g} %)")
    for finding in comparison.findings:
        say(terminal, finding_text(finding), "bold")
    if comparison.findings and comparison.kernels and has_slug(comparison.diagnostics, SHARES_ESTIMATED):
        say(
            terminal,
            "costs of ops within kernels whose code changed are estimates; the intervals do not cover their errors: "
            "record both sides with --sample before you act on one",
        )


def finding_text(finding: Finding) -> str:
    """A significant change in one line."""
    line = "" if isinstance(finding.line, Unknown) else f" line {finding.line}"
    op = f"{_ids(finding)} {finding.name}{line}"
    before, after = format_ns(finding.median_before), format_ns(finding.median_after)
    if finding.kind == "new":
        return f"{op}: {'new' if isinstance(finding.before, Unknown) else 'runs now'}, {after} per invocation"
    if finding.kind == "gone":
        return f"{op}: {'gone' if isinstance(finding.after, Unknown) else 'no longer runs'}, {before} per invocation"
    bounds = f"{finding.ratio_low:.2f} to {finding.ratio_high:.2f}"
    return f"{op}: {finding.kind}, {finding.ratio:.2f}x ({bounds}), {before} → {after} per invocation"


def _ids(row: Finding | OpDifference) -> str:
    ids = [side for side in (row.before, row.after) if not isinstance(side, Unknown)]
    return " → ".join(dict.fromkeys(ids))


# ---- costs


def _main_metric(comparison: Comparison, name: str | None) -> MetricDifference | None:
    """The named metric; without a name, the first time metric, else the first metric."""
    by_name = {metric.name: metric for metric in comparison.metrics}
    candidates = [name] if name is not None else ["cpu_ns", "duration_ns", *by_name]
    return next((by_name[candidate] for candidate in candidates if candidate in by_name), None)


def _print_costs(terminal: Console, comparison: Comparison, metric: MetricDifference, options: DiffOptions) -> None:
    basis = "of the runs" if isinstance(comparison.invocations, Unknown) else "per invocation"
    all_rows: dict[str, Sequence[OpDifference | GroupedCost]] = {
        "op": comparison.ops,
        "scope": comparison.scopes,
        "line": comparison.lines,
        "source": comparison.sources,
        "python": comparison.python,
    }
    by = options.by or ("source" if _is_from_framework(comparison) else "op")
    all_of_metric = [row for row in all_rows[by] if metric.name in row.amounts]
    all_of_metric.sort(key=lambda row: -abs(row.amounts[metric.name].change))
    same = [row for row in all_of_metric if not row.amounts[metric.name].change] if options.top else []
    small = [row for row in all_of_metric if _is_small(row, metric) and row not in same] if options.top else []
    rows = [row for row in all_of_metric if row not in same and row not in small]
    shown = rows[: options.top or None]
    row_headings = {
        "op": (Heading("op"), number("line", leave=8), Heading("name", leave=20, least=12), Heading("match", leave=30)),
        "scope": (Heading("scope", least=16), number("ops")),
    }.get(by, (Heading(by, least=16), number("ops")))
    cells = [[*_about(row), *_figures(row.amounts[metric.name], comparison, metric)] for row in shown]
    blank = [""] * (len(row_headings) - 1)
    kind = {"python": "Python line", "source": "source line"}.get(by, by)
    for folded, why in ((small, f"under {_SMALL:.1%}".replace("%", " %")), (same, "without change")):
        if folded:
            amount = total([row.amounts[metric.name] for row in folded])
            name = f"({plural(len(folded), kind)} {why})"
            cells.append([name, *blank, *_figures(amount, comparison, metric)])
    for name, amount in _sums(comparison, metric):
        cells.append([name, *blank, *_figures(amount, comparison, metric)])
    more = len(rows) - len(shown)
    title = f"{metric.name} {basis}, largest changes first" + (f" ({more} more rows)" if more else "")
    print_table(terminal, title, (*row_headings, *_COSTS), cells)


def _is_from_framework(comparison: Comparison) -> bool:
    """Whether some rows of source lines are lines of Python or nodes of ONNX."""
    return bool({row.name for row in comparison.sources} - {row.name for row in comparison.lines})


_SMALL: Final = 0.001
"""Rows below this share of the total are folded into one."""


def _is_small(row: OpDifference | GroupedCost, metric: MetricDifference) -> bool:
    amount = row.amounts.get(metric.name, Amount(0, 0, 0))
    return max(abs(amount.before), abs(amount.after)) < _SMALL * max(metric.whole.before, metric.whole.after)


def _about(row: OpDifference | GroupedCost) -> list[object]:
    if isinstance(row, GroupedCost):
        return [row.name, row.ops]
    line = row.line_before if isinstance(row.line_after, Unknown) else row.line_after
    how = "gone" if isinstance(row.after, Unknown) else "new" if isinstance(row.before, Unknown) else str(row.how)
    return [_ids(row), or_question_mark(line), row.called, how + ", edited" * row.edited]


def _sums(comparison: Comparison, metric: MetricDifference) -> Iterator[tuple[str, Amount]]:
    """The sums: matched, gone, new and unattributed costs add up to the total."""
    if not comparison.same_model:
        yield "(matched)", metric.matched
        yield from ((name, part) for name, part in (("(gone)", metric.gone), ("(new)", metric.new)) if part.change)
    else:
        yield "(ops)", metric.matched
    yield "(unattributed)", metric.unattributed
    yield "(total)", metric.whole


def _figures(amount: Amount, comparison: Comparison, metric: MetricDifference) -> list[object]:
    texts = [
        _text(value, comparison.invocations, metric.unit) for value in (amount.before, amount.after, amount.change)
    ]
    texts[2] = ("+" if amount.change > 0 else "") + texts[2]
    return [*texts, format_share(amount.change, metric.whole.before)]


def _text(value: int, invocations: Integer, unit: str) -> str:
    shown, scale = scaled_unit(unit)
    if isinstance(invocations, Unknown):
        return format_mean(value, scale, shown)
    return format_mean(value, invocations * scale, shown) if value else "0"


# ---- changes of ops, fusion, kernels and remarks


def _print_ops(terminal: Console, comparison: Comparison, options: DiffOptions) -> None:
    """Print ops of one side only, and ops whose outcome changed."""
    gone = [op for op in comparison.ops if isinstance(op.after, Unknown)]
    new = [op for op in comparison.ops if isinstance(op.before, Unknown)]
    on_both = (op for op in comparison.ops if not isinstance(op.how, Unknown))
    changed = [op for op in on_both if op.outcome_before != op.outcome_after]
    outcomes = (Heading("outcome before"), Heading("outcome after"))
    headings = (Heading("op"), number("line"), Heading("name", least=12), *outcomes)
    metric = _main_metric(comparison, options.metric)
    for title, of_title in (("Removed ops", gone), ("New ops", new), ("Ops whose outcome changed", changed)):
        ops = [op for op in of_title if op in changed or not options.top or _matters(op, metric)]
        folded = len(of_title) - len(ops)
        few = plural(folded, "constant") if metric is None else plural(folded, "constant or op", "constants and ops")
        why = f", without {few}{' under 0.1 %' if metric else ''}" if folded else ""
        if of_title:
            shown = ops[: _rows(options)]
            cells = [
                [_ids(op), _about(op)[1], op.called, or_dash(op.outcome_before), or_dash(op.outcome_after)]
                for op in shown
            ]
            print_table(terminal, title + why + _more(ops, shown), headings, cells)


def _matters(op: OpDifference, metric: MetricDifference | None) -> bool:
    """Whether an op of one side is neither a constant nor structure, and costs something if costs are known."""
    outcome = op.outcome_before if isinstance(op.after, Unknown) else op.outcome_after
    return outcome not in _WITHOUT_WORK and (metric is None or not _is_small(op, metric))


_WITHOUT_WORK: Final = frozenset((Outcome.CONSTANT.value, Outcome.STRUCTURAL.value))


def _rows(options: DiffOptions) -> int | None:
    return min(options.top, _MOST) or None


def _more(rows: Sequence[object], shown: Sequence[object]) -> str:
    return f" ({len(rows) - len(shown)} more)" if len(rows) > len(shown) else ""


def _print_memory(terminal: Console, comparison: Comparison, options: DiffOptions) -> None:
    for memory in changed_memory(comparison):
        say(terminal, "")
        say(terminal, memory_text(comparison, memory))
        shown = memory.ops[: _rows(options)]
        headings = (Heading("op"), Heading("name", least=12), *map(number, ("before", "after", "change")))
        cells = [
            [
                memory_op_id(op),
                op.name,
                format_bytes(op.held.before),
                format_bytes(op.held.after),
                byte_change(op.held.change),
            ]
            for op in shown
        ]
        if cells:
            title = f"Ops whose bytes at the peak of {memory.function} changed{_more(memory.ops, shown)}"
            print_table(terminal, title, headings, cells)


def _print_regrouped(terminal: Console, comparison: Comparison, options: DiffOptions) -> None:
    if not comparison.regrouped:
        return
    shown = comparison.regrouped[: _rows(options)]
    headings = (
        Heading("op"),
        Heading("name", least=12),
        Heading("now fused with", least=10),
        Heading("no longer with", least=10),
        Heading("kernels before", leave=20, least=16),
        Heading("kernels after", leave=19, least=16),
    )
    cells = [
        [op.after, op.name, *map(" ".join, (op.joined, op.left, op.kernels_before, op.kernels_after))] for op in shown
    ]
    print_table(terminal, "Fusion changes" + _more(comparison.regrouped, shown), headings, cells)


def _print_kernels(terminal: Console, kernels: Sequence[KernelDifference], options: DiffOptions) -> None:
    if not kernels:
        return
    shown = kernels[: _rows(options)]
    headings = (
        Heading("kernel before", least=16),
        Heading("kernel after", least=16),
        *(number(name) for name in ("instructions", "loops", "vector bits", "spills")),
    )
    cells = [[or_dash(kernel.before), or_dash(kernel.after), *changed_code(kernel)] for kernel in shown]
    print_table(terminal, "Kernels whose code changed" + _more(kernels, shown), headings, cells)


def changed_code(kernel: KernelDifference) -> Iterator[str]:
    """Instructions, loops, vector bits and spills of a kernel as `812 → 640`; a single number if unchanged."""
    for before, after in zip(structs.astuple(kernel.code_before), structs.astuple(kernel.code_after), strict=True):
        yield or_dash(before) if before == after else f"{or_dash(before)} → {or_dash(after)}"


def _print_remarks(terminal: Console, remarks: Sequence[RemarkDifference], options: DiffOptions) -> None:
    for kind, title in (("new", "New compiler remarks"), ("gone", "Compiler remarks that disappeared")):
        of_kind = [remark for remark in remarks if remark.kind == kind]
        shown = of_kind[: _rows(options)]
        if shown:
            print_table(terminal, title + _more(of_kind, shown), _REMARKS, map(_cells, shown))


def _cells(remark: RemarkDifference) -> tuple[object, ...]:
    place = f"{or_dash(remark.kernel)}:{or_dash(remark.line)}"
    return " ".join(remark.ops[:3]), place, or_dash(remark.pass_name), remark.count, remark.text
