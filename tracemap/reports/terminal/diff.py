"""What `diff` prints: the few findings first, then what every row costs before and after, then what else changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import structs

from tracemap.comparison.model import (
    Amount,
    Comparison,
    Finding,
    Group,
    KernelDifference,
    MetricDifference,
    OpDifference,
    RemarkDifference,
    ways_of,
)
from tracemap.options.results import DiffOptions
from tracemap.reports.advice import scaled_unit
from tracemap.reports.escaping import or_dash, or_question_mark
from tracemap.reports.terminal.tables import Heading, console, number, print_diagnostics, print_table, say
from tracemap.units import Integer, Unknown, format_mean, format_ns, format_share, plural

if TYPE_CHECKING:
    from rich.console import Console

_MOST: Final = 10
"""Regrouped ops and kernels that are printed where nothing else is asked for."""
_REMARKS = (
    Heading("ops", least=8),
    Heading("kernel", leave=20, least=16),
    Heading("pass"),
    number("times", leave=30),
    Heading("remark", least=30, words=True),
)
_COSTS = (number("before"), number("after"), number("change"), number("of the whole", leave=10))


def print_diff(made: Comparison, out: TextIO, options: DiffOptions) -> None:
    """Print a comparison."""
    to = console(out)
    _print_head(to, made)
    _print_findings(to, made)
    metric = _chosen(made, options.metric)
    if metric is not None:
        _print_costs(to, made, metric, options)
    _print_ops(to, made, options)
    _print_regrouped(to, made, options)
    _print_kernels(to, made.kernels, options)
    _print_remarks(to, made.remarks or (), options)
    print_diagnostics(to, made.diagnostics)


def _print_head(to: Console, made: Comparison) -> None:
    for word, side in (("before", made.before), ("after", made.after)):
        run = "no run" if isinstance(side.run, Unknown) else side.run
        calls = "" if isinstance(side.iterations, Unknown) else f", {plural(side.iterations, 'invocation')}"
        time = "" if isinstance(side.invocation_ns, Unknown) else f" of {format_ns(side.invocation_ns)}"
        say(to, f"{word}: {side.bundle}, {run}{calls}{time}, {plural(side.ops, 'op')}")
    if said := compile_times(made):
        say(to, f"compile time: {said}")
    if made.same_model:
        say(to, "same model: ops are matched by identity")
        return
    gone, new = (sum(isinstance(getattr(op, end), Unknown) for op in made.ops) for end in ("after", "before"))
    edited = sum(op.edited for op in made.ops)
    said = ", ".join(f"{plural(count, 'op')} {way}" for way, count in ways_of(made.ops))
    say(
        to,
        f"{made.matched_percent:.1f} % of ops are matched: {said or 'none'}; {edited} edited, {gone} gone, {new} new",
    )


def compile_times(made: Comparison) -> str:
    """What the compiler took before and after; "" where a bundle does not tell."""
    times = [(side.compile_ns, side.compile_cpu_ns) for side in (made.before, made.after)]
    if any(isinstance(each, Unknown) for each, _ in times):
        return ""
    wall, cpu = (" → ".join(map(format_ns, each)) for each in zip(*times, strict=True))
    return f"{wall}, of processors {cpu}"


# ---- findings


def _print_findings(to: Console, made: Comparison) -> None:
    if not made.metrics:
        say(to, "there is no metric that both have: maps alone are compared")
        return
    say(to, "")
    if made.drift.ops:
        count = plural(made.drift.ops, "op")
        say(
            to, f"{count} with unchanged code took {made.drift.ratio:.2f} times as long: the machine's part, taken away"
        )
    if not made.findings:
        say(to, f"no finding: no op takes another time, by more than {made.threshold_percent:g} % and beyond chance")
    for finding in made.findings:
        say(to, finding_text(finding), "bold")


def finding_text(finding: Finding) -> str:
    """A finding in a line."""
    place = "" if isinstance(finding.line, Unknown) else f" line {finding.line}"
    what = f"{_ids(finding)} {finding.name}{place}"
    before, after = format_ns(finding.median_before), format_ns(finding.median_after)
    if finding.kind == "new":
        return f"{what}: {'new' if isinstance(finding.before, Unknown) else 'runs now'}, {after} per invocation"
    if finding.kind == "gone":
        return f"{what}: {'gone' if isinstance(finding.after, Unknown) else 'no longer runs'}, {before} per invocation"
    bounds = f"{finding.ratio_low:.2f} to {finding.ratio_high:.2f}"
    return f"{what}: {finding.kind}, {finding.ratio:.2f} times ({bounds}), {before} → {after} per invocation"


def _ids(each: Finding | OpDifference) -> str:
    ids = [side for side in (each.before, each.after) if not isinstance(side, Unknown)]
    return " → ".join(dict.fromkeys(ids))


# ---- costs


def _chosen(made: Comparison, name: str | None) -> MetricDifference | None:
    """The metric that is asked for, else the first time, else the first."""
    by_name = {metric.name: metric for metric in made.metrics}
    wanted = [name] if name is not None else ["cpu_ns", "duration_ns", *by_name]
    return next((by_name[each] for each in wanted if each in by_name), None)


def _print_costs(to: Console, made: Comparison, metric: MetricDifference, options: DiffOptions) -> None:
    basis = "of the runs" if isinstance(made.invocations, Unknown) else "per invocation"
    rows: dict[str, Sequence[OpDifference | Group]] = {"op": made.ops, "scope": made.scopes, "line": made.lines}
    costing = [row for row in rows[options.by] if metric.name in row.amounts]
    costing.sort(key=lambda row: -abs(row.amounts[metric.name].change))
    shown = costing[: options.top or None]
    first = {
        "op": (Heading("op"), number("line", leave=8), Heading("name", leave=20, least=12), Heading("how", leave=30)),
        "scope": (Heading("scope", least=16), number("ops")),
        "line": (Heading("line", least=16), number("ops")),
    }[options.by]
    cells = [[*_about(row), *_figures(row.amounts[metric.name], made, metric)] for row in shown]
    blank = [""] * (len(first) - 1)
    for name, amount in _sums(made, metric):
        cells.append([name, *blank, *_figures(amount, made, metric)])
    more = len(costing) - len(shown)
    title = f"{metric.name} {basis}, the largest changes first" + (f" ({more} more rows)" if more else "")
    print_table(to, title, (*first, *_COSTS), cells)


def _about(row: OpDifference | Group) -> list[object]:
    if isinstance(row, Group):
        return [row.name, row.ops]
    line = row.line_before if isinstance(row.line_after, Unknown) else row.line_after
    how = "gone" if isinstance(row.after, Unknown) else "new" if isinstance(row.before, Unknown) else str(row.how)
    return [_ids(row), or_question_mark(line), row.called, how + ", edited" * row.edited]


def _sums(made: Comparison, metric: MetricDifference) -> Iterator[tuple[str, Amount]]:
    """What all rows add up to, and how: matched, gone and new ops, and the residual, are the whole."""
    if not made.same_model:
        yield from (("(matched)", metric.matched), ("(gone)", metric.gone), ("(new)", metric.new))
    else:
        yield "(ops)", metric.matched
    yield "(residual)", metric.residual
    yield "(whole)", metric.whole


def _figures(amount: Amount, made: Comparison, metric: MetricDifference) -> list[object]:
    texts = [_text(value, made.invocations, metric.unit) for value in (amount.before, amount.after, amount.change)]
    texts[2] = ("+" if amount.change > 0 else "") + texts[2]
    return [*texts, format_share(amount.change, metric.whole.before)]


def _text(value: int, invocations: Integer, unit: str) -> str:
    shown, scale = scaled_unit(unit)
    if isinstance(invocations, Unknown):
        return format_mean(value, scale, shown)
    return format_mean(value, invocations * scale, shown) if value else "0"


# ---- what else changed


def _print_ops(to: Console, made: Comparison, options: DiffOptions) -> None:
    """Ops that are on one side only, and those with another fate."""
    gone = [op for op in made.ops if isinstance(op.after, Unknown)]
    new = [op for op in made.ops if isinstance(op.before, Unknown)]
    on_both = (op for op in made.ops if not isinstance(op.how, Unknown))
    changed = [op for op in on_both if op.fate_before != op.fate_after]
    headings = (Heading("op"), number("line"), Heading("name", least=12), Heading("fate before"), Heading("fate after"))
    for title, ops in (("Ops that are gone", gone), ("New ops", new), ("Ops with another fate", changed)):
        if ops:
            shown = ops[: _rows(options)]
            cells = [
                [_ids(op), _about(op)[1], op.called, or_dash(op.fate_before), or_dash(op.fate_after)] for op in shown
            ]
            print_table(to, title + _more(ops, shown), headings, cells)


def _rows(options: DiffOptions) -> int | None:
    return min(options.top, _MOST) or None


def _more(all_of_them: Sequence[object], shown: Sequence[object]) -> str:
    return f" ({len(all_of_them) - len(shown)} more)" if len(all_of_them) > len(shown) else ""


def _print_regrouped(to: Console, made: Comparison, options: DiffOptions) -> None:
    if not made.regrouped:
        return
    shown = made.regrouped[: _rows(options)]
    headings = (
        Heading("op"),
        Heading("name", least=12),
        Heading("with, now", least=10),
        Heading("no longer with", least=10),
        Heading("kernels before", leave=20, least=16),
        Heading("kernels after", leave=19, least=16),
    )
    cells = [
        [each.after, each.name, *map(" ".join, (each.joined, each.left, each.kernels_before, each.kernels_after))]
        for each in shown
    ]
    print_table(to, "Ops that share kernels with others than before" + _more(made.regrouped, shown), headings, cells)


def _print_kernels(to: Console, kernels: Sequence[KernelDifference], options: DiffOptions) -> None:
    if not kernels:
        return
    shown = kernels[: _rows(options)]
    headings = (
        Heading("kernel before", least=16),
        Heading("kernel after", least=16),
        *(number(name) for name in ("instructions", "loops", "vector bits", "spills")),
    )
    cells = [[or_dash(each.before), or_dash(each.after), *changed_code(each)] for each in shown]
    print_table(to, "Kernels that are other code" + _more(kernels, shown), headings, cells)


def changed_code(each: KernelDifference) -> Iterator[str]:
    """Instructions, loops, bits of vectors and spills of a kernel, before and after: `812 → 640`, one where equal."""
    for one, two in zip(structs.astuple(each.code_before), structs.astuple(each.code_after), strict=True):
        yield or_dash(one) if one == two else f"{or_dash(one)} → {or_dash(two)}"


def _print_remarks(to: Console, remarks: Sequence[RemarkDifference], options: DiffOptions) -> None:
    for kind in ("new", "gone"):
        found = [each for each in remarks if each.kind == kind]
        shown = found[: _rows(options)]
        if shown:
            print_table(
                to, f"{kind.title()} remarks of the compiler" + _more(found, shown), _REMARKS, map(_cells, shown)
            )


def _cells(each: RemarkDifference) -> tuple[object, ...]:
    place = f"{or_dash(each.kernel)}:{or_dash(each.line)}"
    return " ".join(each.ops[:3]), place, or_dash(each.pass_name), each.count, each.text
