"""Builds the data of the page of a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import PurePath

from tracemap.comparison.model import ComparedSide, Comparison, Finding, MetricDifference, ways_of
from tracemap.comparison.sides import Compared
from tracemap.graph.model import SourceFile
from tracemap.reports.basis import scaled_unit
from tracemap.reports.costed import default_metric
from tracemap.reports.diff.groups import groups_of
from tracemap.reports.diff.kernels import kernels_of, remarks_of
from tracemap.reports.diff.model import (
    DiffFact,
    DiffMetric,
    DiffPage,
    DiffScope,
    FateChange,
    FindingRow,
)
from tracemap.reports.diff.rows import Rows, anchor_of
from tracemap.reports.diff.sources import SideTexts, same_models, sources_of
from tracemap.reports.labels import or_dash
from tracemap.reports.page.kernels_tab import KernelSources
from tracemap.reports.page.model import Shown
from tracemap.units import Unknown, format_count, format_ns, plural


@dataclass(frozen=True, slots=True)
class PageSide:
    """A side with the texts that the page shows of it."""

    compared: Compared
    source_text: Callable[[SourceFile], str]
    kernels: KernelSources
    folder: PurePath = field(default_factory=PurePath)
    """Where the bundle lies, for the title of two that have one name."""


def build_diff_page(made: Comparison, before: PageSide, after: PageSide) -> DiffPage:
    """The data of the page of a comparison."""
    texts = tuple(SideTexts(side.compared, side.source_text) for side in (before, after))
    one, two = texts
    rows = Rows(made, before.compared, after.compared, same_models(texts))
    metrics = tuple(_metric(each, made) for each in made.metrics)
    return DiffPage(
        title=_title(made, before, after),
        matched=matched_words(made),
        facts=tuple(_facts(before.compared, after.compared)),
        findings=tuple(_finding(rows, each) for each in made.findings),
        nothing_found=_nothing_found(made),
        machine=_machine(made),
        metric=default_metric(made.metrics),
        metrics=metrics,
        ops=rows.ops(),
        sources=sources_of(rows, (one, two)),
        groups=groups_of(rows),
        kernels=kernels_of(rows, before.kernels, after.kernels),
        remarks=remarks_of(rows),
        scopes=tuple(
            DiffScope(group.name, group.ops, tuple(each or (0, 0) for each in rows.of_metrics(group.amounts)))
            for group in made.scopes
        ),
        fates=tuple(_fates(made)),
        diagnostics=made.diagnostics,
    )


def _title(made: Comparison, before: PageSide, after: PageSide) -> str:
    """The names of both: of the bundles, or of the runs where these are called the same, or with their folders."""
    sides = (made.before, made.after)
    names = [side.bundle.removesuffix(".tracemap") for side in sides]
    runs = [or_dash(side.run) for side in sides]
    if names[0] == names[1] and runs[0] != runs[1]:
        names = [f"{name} ({run})" for name, run in zip(names, runs, strict=True)]
    elif names[0] == names[1]:
        names = [f"{folder}{name}" for folder, name in zip(_unlike(before.folder, after.folder), names, strict=True)]
    return " → ".join(names)


def _unlike(one: PurePath, other: PurePath) -> tuple[str, str]:
    """The ends of two folders from the last part on that differs, each with a slash; "" twice where none does."""
    first, second = one.parts[::-1], other.parts[::-1]
    count = next((at + 1 for at, (a, b) in enumerate(zip_longest(first, second)) if a != b), 0)
    return _end_of(first[:count]), _end_of(second[:count])


def _end_of(parts: Sequence[str]) -> str:
    return "".join(f"{part}/" for part in reversed(parts) if part != "/")


def _metric(of: MetricDifference, made: Comparison) -> DiffMetric:
    unit, scale = scaled_unit(of.unit)
    known = not isinstance(made.invocations, Unknown)
    divisor, basis = (made.invocations, "per invocation") if known else (1, "sums of the whole runs")
    assert isinstance(divisor, int)
    shown = Shown(divisor * scale, basis)
    return DiffMetric(of.name, of.unit, unit, scale, (shown, shown), known, of.whole.before, of)


# ---- words


def matched_words(made: Comparison) -> str:
    """How ops were matched, and how many."""
    if made.same_model:
        return f"It is the same model: all {plural(made.after.ops, 'op')} are matched by identity."
    by_way = ", ".join(f"{format_count(count)} {way}" for way, count in ways_of(made.ops))
    gone, new = (sum(isinstance(getattr(op, end), Unknown) for op in made.ops) for end in ("after", "before"))
    edited = sum(op.edited for op in made.ops)
    return (
        f"{made.matched_percent:.1f} % of the ops of both models are matched: {by_way or 'none'}. "
        f"Edited: {format_count(edited)}; gone: {format_count(gone)}; new: {format_count(new)}."
    )


def _nothing_found(made: Comparison) -> str:
    if not made.metrics:
        return "There is no metric that both have: the maps alone are compared."
    return f"Nothing changed by more than {made.threshold_percent:g} % beyond chance."


def _machine(made: Comparison) -> str:
    if not made.drift.ops:
        return ""
    count = plural(made.drift.ops, "op")
    return f"{count} with unchanged code took {made.drift.ratio:.2f} times as long: the machine's part, taken away."


def _finding(rows: Rows, each: Finding) -> FindingRow:
    ids = " → ".join(dict.fromkeys(side for side in (each.before, each.after) if not isinstance(side, Unknown)))
    row = rows.row_before[str(each.before)] if isinstance(each.after, Unknown) else rows.row_after[str(each.after)]
    return FindingRow(each, anchor_of(rows.made.ops[row]), ids, f"line {or_dash(each.line)}")


# ---- what is said of both sides


def _facts(before: Compared, after: Compared) -> Iterator[DiffFact]:
    for (label, one), (_, two) in zip(_facts_of(before), _facts_of(after), strict=True):
        if one != "–" or two != "–":
            yield DiffFact(label, one, two)


def _facts_of(side: Compared) -> Iterator[tuple[str, str]]:
    said: ComparedSide = side.said
    run = side.attributions[0].run if side.attributions else None
    yield "bundle", said.bundle
    yield "runs" if len(said.runs) > 1 else "run", ", ".join(said.runs) or or_dash(said.run)
    yield "invocations", "–" if isinstance(said.iterations, Unknown) else format_count(said.iterations)
    yield "median call", "–" if isinstance(said.invocation_ns, Unknown) else format_ns(said.invocation_ns)
    yield "device", or_dash(run.device) if run else "–"
    yield "workers", or_dash(run.workers) if run else "–"
    yield "ops, sites, kernels", ", ".join(format_count(len(each)) for each in _parts(side))
    yield "compiler", side.graph.module.iree_compiler
    yield "flags", " ".join(side.graph.module.flags) or "–"
    yield "compile time, on the wall", format_ns(said.compile_ns) if isinstance(said.compile_ns, int) else "–"
    yield "of processors", format_ns(said.compile_cpu_ns) if isinstance(said.compile_cpu_ns, int) else "–"
    yield "SHA-256 of the module", said.module_sha256


def _parts(side: Compared) -> tuple[tuple[object, ...], ...]:
    return side.graph.ops, side.graph.sites, side.graph.kernels


def _fates(made: Comparison) -> Iterator[FateChange]:
    """Fates that are others than before, those of most ops first."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, op in enumerate(made.ops):
        one, two = op.fate_before, op.fate_after
        if isinstance(one, str) and isinstance(two, str) and one != two:
            found[one, two].append(row)
    for (one, two), rows in sorted(found.items(), key=lambda each: (-len(each[1]), each[0])):
        yield FateChange(one, two, tuple(rows))
