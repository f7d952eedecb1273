"""The page of a comparison: content and HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Final

from tracemap.compare.model import (
    Amount,
    ComparedSide,
    Comparison,
    Finding,
    MemoryDifference,
    MetricDifference,
    match_counts,
    total,
)
from tracemap.compare.sides import Side
from tracemap.core.units import Unknown, format_bytes, format_count, format_mean, format_ns, format_share, plural
from tracemap.map.bundle import Bundle
from tracemap.map.model import Site, SourceFile
from tracemap.reports.advice import (
    basis_text,
    byte_change,
    changed_memory,
    memory_op_id,
    memory_text,
    notices,
    same_settings_text,
    scaled_unit,
    settings_rows,
    without_metrics_text,
)
from tracemap.reports.cost_lookup import MapCosts, default_metric
from tracemap.reports.diff.rows import (
    DiffBox,
    DiffFact,
    DiffGroup,
    DiffLine,
    DiffMemory,
    DiffMemoryRow,
    DiffMetric,
    DiffOp,
    DiffPage,
    DiffRemark,
    DiffScope,
    DiffSetting,
    DiffSource,
    FindingRow,
    OutcomeChange,
    Rows,
    SideTexts,
    anchor_of,
    changed_kernels,
    remarks_of,
    same_models,
    sources_of,
)
from tracemap.reports.escaping import for_script, or_dash
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html import APPLICATION, PageKind, block_sizes, markup_of_lines, render, write_page
from tracemap.reports.page.model import Basis
from tracemap.reports.page.source_tabs import KernelSources, kernels_of

# ---- fusion changes: connected dispatch sites before and after that do not have the same ops


_Node = tuple[int, str]
"""A dispatch site: 0 (before) or 1 (after), and its id."""


def groups_of(rows: Rows) -> tuple[DiffGroup, ...]:
    """Fusion changes, sorted by the change of the first metric, with links to groups of the same shape.

    An op in several sites of a side, such as a constant, does not connect them.
    """
    changed = {rows.row_after[str(op.after)] for op in rows.comparison.regrouped}
    groups = []
    for before, after in _connected_sites(rows):
        ops = {op for box in (*before, *after) for op in box.ops}
        if not changed.isdisjoint(ops):
            groups.append((before, after, rows.amounts(sorted(ops))))
    groups.sort(key=lambda group: -abs(group[2][0][1] - group[2][0][0]) if group[2] else 0)
    shapes: dict[object, list[int]] = defaultdict(list)
    for index, (before, after, _) in enumerate(groups):
        shapes[_shape(rows, before, after)].append(index)
    alike = {index: tuple(indices) for indices in shapes.values() for index in indices}
    return tuple(DiffGroup(*group, alike[index]) for index, group in enumerate(groups))


def _connected_sites(rows: Rows) -> Iterator[tuple[tuple[DiffBox, ...], tuple[DiffBox, ...]]]:
    """Dispatch sites that share ops, as connected components, in the order of the program."""
    sides = [_sites_of(side, known) for side, known in ((rows.before, rows.row_before), (rows.after, rows.row_after))]
    sites_of_row: dict[int, list[_Node]] = defaultdict(list)
    for number, sites in enumerate(sides):
        works: dict[int, list[str]] = defaultdict(list)
        for site, (_, ops) in sites.items():
            for op in ops:
                works[op].append(site)
        for op, ids in works.items():
            if len(ids) == 1:
                sites_of_row[op].append((number, ids[0]))
    for nodes in _components([(number, site) for number in (1, 0) for site in sides[number]], sites_of_row.values()):
        boxes: tuple[list[DiffBox], list[DiffBox]] = ([], [])
        for number, site in sorted(nodes, key=lambda node: sides[node[0]][node[1]][0].ordinal):
            record, ops = sides[number][site]
            boxes[number].append(DiffBox(site, record.kernel, ops))
        yield tuple(boxes[0]), tuple(boxes[1])


def _sites_of(side: Side, known: Mapping[str, int]) -> dict[str, tuple[Site, tuple[int, ...]]]:
    """Dispatch sites with the rows of their ops, by id."""
    return {
        site.id: (site, tuple(known[op] for op in dict.fromkeys(member.op for member in site.members) if op in known))
        for site in side.graph.sites
    }


def _components(nodes: Sequence[_Node], links: Iterable[Sequence[_Node]]) -> Iterator[list[_Node]]:
    """Connected components by union-find, in the order of their first nodes."""
    root = {node: node for node in nodes}

    def find(node: _Node) -> _Node:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for link in links:
        for node in link[1:]:
            root[find(node)] = find(link[0])
    components: dict[_Node, list[_Node]] = defaultdict(list)
    for node in nodes:
        components[find(node)].append(node)
    yield from components.values()


def _shape(rows: Rows, *sides: Sequence[DiffBox]) -> object:
    """Shape of a group without ids: the names of its ops, and their boxes."""
    numbers: dict[int, int] = {}
    return tuple(
        tuple(
            tuple((rows.comparison.ops[op].name, numbers.setdefault(op, len(numbers))) for op in box.ops)
            for box in boxes
        )
        for boxes in sides
    )


# ---- build


@dataclass(frozen=True, slots=True)
class PageSide:
    """A side with its source texts and kernels."""

    compared: Side
    source_text: Callable[[SourceFile], str]
    kernels: KernelSources
    folder: PurePath = field(default_factory=PurePath)
    """Parent folder of the bundle, for the title of two bundles with the same name."""


def build_diff_page(comparison: Comparison, before: PageSide, after: PageSide) -> DiffPage:
    """Make the content of the page of a comparison."""
    texts = tuple(SideTexts(side.compared, side.source_text) for side in (before, after))
    texts_before, texts_after = texts
    rows = Rows(comparison, before.compared, after.compared, same_models(texts))
    metrics = tuple(_metric(metric, comparison) for metric in comparison.metrics)
    return DiffPage(
        title=_title(comparison, before, after),
        notices=tuple(_notices(before.compared, after.compared)),
        matched=matched_words(comparison),
        settings=tuple(DiffSetting(*row) for row in settings_rows(comparison)),
        same_settings=_sentence(same_settings_text(comparison)),
        facts=tuple(_facts(before.compared, after.compared)),
        findings=tuple(_finding(rows, finding) for finding in comparison.findings),
        nothing_found=_nothing_found(comparison),
        machine=_sentence(basis_text(comparison)),
        metric=default_metric(comparison.metrics),
        metrics=metrics,
        ops=rows.ops(),
        sources=sources_of(rows, (texts_before, texts_after)),
        groups=groups_of(rows),
        kernels=changed_kernels(rows, before.kernels, after.kernels),
        remarks=remarks_of(rows),
        scopes=tuple(
            DiffScope(group.name, group.ops, tuple(pair or (0, 0) for pair in rows.of_metrics(group.amounts)))
            for group in comparison.scopes
        ),
        memory=tuple(_memory(rows, memory) for memory in changed_memory(comparison)),
        outcomes=tuple(_outcomes(comparison)),
        diagnostics=comparison.diagnostics,
    )


def _notices(before: Side, after: Side) -> Iterator[str]:
    """Reasons to doubt the costs, each with the sides that have it; of several runs, with their names."""
    sides_of: dict[str, list[str]] = defaultdict(list)
    for label, side in (("before", before), ("after", after)):
        for run, attribution in zip(side.runs, side.attributions, strict=True):
            where = label if len(side.runs) == 1 else f"{label} ({run})"
            for text in notices(MapCosts(side.graph, attribution)):
                sides_of[text].append(where)
    for text, labels in sides_of.items():
        yield f"{' and '.join(labels)}: {text}"


def _title(comparison: Comparison, before: PageSide, after: PageSide) -> str:
    """The names of both bundles; if they are equal, with the runs or with the folders that differ."""
    sides = (comparison.before, comparison.after)
    names = [side.bundle.removesuffix(".tracemap") for side in sides]
    runs = [or_dash(side.run) for side in sides]
    if names[0] == names[1] and runs[0] != runs[1]:
        names = [f"{name} ({run})" for name, run in zip(names, runs, strict=True)]
    elif names[0] == names[1]:
        names = [f"{folder}{name}" for folder, name in zip(_unlike(before.folder, after.folder), names, strict=True)]
    return " → ".join(names)


def _unlike(one: PurePath, other: PurePath) -> tuple[str, str]:
    """The ends of two folders from their last different part on, with a slash; twice "" if they are equal."""
    first, second = one.parts[::-1], other.parts[::-1]
    count = next((index + 1 for index, (a, b) in enumerate(zip_longest(first, second)) if a != b), 0)
    return _end_of(first[:count]), _end_of(second[:count])


def _end_of(parts: Sequence[str]) -> str:
    return "".join(f"{part}/" for part in reversed(parts) if part != "/")


def _metric(of: MetricDifference, comparison: Comparison) -> DiffMetric:
    unit, scale = scaled_unit(of.unit)
    known = not isinstance(comparison.invocations, Unknown)
    divisor, basis = (comparison.invocations, "per invocation") if known else (1, "sums of the whole runs")
    assert isinstance(divisor, int)
    shown = Basis(divisor * scale, basis)
    return DiffMetric(of.name, of.unit, unit, scale, (shown, shown), known, of.whole.before, of)


# ---- texts


def matched_words(comparison: Comparison) -> str:
    """How ops were matched, with numbers."""
    if comparison.same_model:
        return f"Same model: all {plural(comparison.after.ops, 'op')} matched by identity."
    by_way = ", ".join(f"{format_count(count)} {way}" for way, count in match_counts(comparison.ops))
    gone, new = (sum(isinstance(getattr(op, end), Unknown) for op in comparison.ops) for end in ("after", "before"))
    edited = sum(op.edited for op in comparison.ops)
    return (
        f"{comparison.matched_percent:.1f} % of the ops of both models are matched: {by_way or 'none'}. "
        f"Edited: {format_count(edited)}; gone: {format_count(gone)}; new: {format_count(new)}."
    )


def _nothing_found(comparison: Comparison) -> str:
    if not comparison.metrics:
        return _sentence(without_metrics_text(comparison))
    return f"No significant change (> {comparison.threshold_percent:g} %)."


def _finding(rows: Rows, finding: Finding) -> FindingRow:
    before, after = finding.before, finding.after
    ids = " → ".join(dict.fromkeys(side for side in (before, after) if not isinstance(side, Unknown)))
    row = rows.row_before[str(before)] if isinstance(after, Unknown) else rows.row_after[str(after)]
    return FindingRow(finding, anchor_of(rows.comparison.ops[row]), ids, f"line {or_dash(finding.line)}")


def _memory(rows: Rows, memory: MemoryDifference) -> DiffMemory:
    shown = memory.ops[:_MOST_MEMORY]
    found = []
    for op in shown:
        row = rows.row_before[str(op.before)] if isinstance(op.after, Unknown) else rows.row_after[str(op.after)]
        found.append(_memory_row(rows.anchor(row), memory_op_id(op), op.name, op.held))
    rest = memory.ops[_MOST_MEMORY:]
    others = total([memory.others, *(op.held for op in rest)])
    sums = _memory_row("", "", "all other values", others), _memory_row("", "", "peak", memory.peak)
    return DiffMemory(_sentence(memory_text(rows.comparison, memory)), tuple(found), len(rest), sums)


def _memory_row(anchor: str, op: str, name: str, held: Amount) -> DiffMemoryRow:
    sizes = format_bytes(held.before), format_bytes(held.after), byte_change(held.change)
    return DiffMemoryRow(anchor, op, name, *sizes, held.change > 0)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


# ---- facts on both sides


def _facts(before: Side, after: Side) -> Iterator[DiffFact]:
    for (label, fact_before), (_, fact_after) in zip(_facts_of(before), _facts_of(after), strict=True):
        if fact_before != "–" or fact_after != "–":
            yield DiffFact(label, fact_before, fact_after)


def _facts_of(side: Side) -> Iterator[tuple[str, str]]:
    said: ComparedSide = side.said
    run = side.attributions[0].run if side.attributions else None
    yield "bundle", said.bundle
    yield "runs" if len(said.runs) > 1 else "run", ", ".join(said.runs) or or_dash(said.run)
    yield "invocations", "–" if isinstance(said.iterations, Unknown) else format_count(said.iterations)
    yield (
        "median invocation, as recorded",
        "–" if isinstance(said.invocation_ns, Unknown) else format_ns(said.invocation_ns),
    )
    yield "device", or_dash(run.device) if run else "–"
    yield "workers", or_dash(run.workers) if run else "–"
    parts = (side.graph.ops, side.graph.sites, side.graph.kernels)
    yield "ops, dispatches, kernels", ", ".join(format_count(len(records)) for records in parts)
    yield "compiler", side.graph.module.iree_compiler
    yield "flags", " ".join(side.graph.module.flags) or "–"
    yield "compile time", format_ns(said.compile_ns) if isinstance(said.compile_ns, int) else "–"
    yield "compiler's CPU time", format_ns(said.compile_cpu_ns) if isinstance(said.compile_cpu_ns, int) else "–"
    yield "SHA-256 of the module", said.module_sha256


def _outcomes(comparison: Comparison) -> Iterator[OutcomeChange]:
    """Changes of outcomes, those of most ops first."""
    rows_of_change: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, op in enumerate(comparison.ops):
        before, after = op.outcome_before, op.outcome_after
        if isinstance(before, str) and isinstance(after, str) and before != after:
            rows_of_change[before, after].append(row)
    for (before, after), rows in sorted(rows_of_change.items(), key=lambda item: (-len(item[1]), item[0])):
        yield OutcomeChange(before, after, tuple(rows))


# ---- render


_KIND: Final = PageKind(
    template="diff/diff.html.j2",
    styles=(
        "shared/source.css",
        "shared/details.css",
        "shared/kernels.css",
        "shared/splitter.css",
        "shared/search.css",
        "pictures/pictures.css",
        "diff/diff.css",
    ),
    libraries=("vendor/charts.js",),
    scripts=(
        *APPLICATION,
        "diff/state.js",
        "shared/amounts.js",
        "diff/changes.js",
        "diff/sources.js",
        "diff/groups.js",
        "diff/cards.js",
        "shared/table.js",
        "shared/columns.js",
        "diff/tables.js",
        "diff/names.js",
        "shared/search.js",
        "diff/overview.js",
        "diff/kernels.js",
        "shared/moving.js",
        "diff/start.js",
    ),
)
MOST_FINDINGS: Final = 20
"""Significant changes shown before the reader unfolds the rest."""
_MOST_MEMORY: Final = 12
"""Ops shown by memory peak."""
_MOST_SETTINGS: Final = 30
"""Settings that differ, shown in the same way."""
_LISTED: Final = (DiffOp, DiffLine, DiffBox, DiffGroup, DiffRemark, DiffScope)
"""Records that the script gets as lists of field values."""


def write_diff_page(
    comparison: Comparison,
    before: tuple[Bundle, Side],
    after: tuple[Bundle, Side],
    target: Path,
    *,
    force: bool,
) -> None:
    """Write the page of a comparison.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    sides = [
        PageSide(compared, bundle.source_text, kernels_of(bundle), bundle.path.resolve().parent)
        for bundle, compared in (before, after)
    ]
    write_page(render_diff_page(build_diff_page(comparison, *sides)), target, force=force)


def render_diff_page(page: DiffPage) -> str:
    """The HTML text of a page; deterministic."""
    return render(
        _KIND,
        page,
        sizes=block_sizes(dict(_sizes(page))),
        data=(for_script(diff_json(page)),),
        markup_of_lines=markup_of_lines,
        text=amount_text,
        most_findings=MOST_FINDINGS,
        most_settings=_MOST_SETTINGS,
        share=format_share,
        time=lambda value: "–" if isinstance(value, Unknown) else format_ns(value),
    )


def amount_text(value: int, metric: DiffMetric) -> str:
    """Format an amount."""
    return format_mean(value, metric.shown[0].divisor, metric.shown_unit) if value else "0"


def _sizes(page: DiffPage) -> Iterator[tuple[str, tuple[int, int]]]:
    for source in page.sources:
        for text in source.texts:
            yield f"{text.side}{source.index}", (text.columns, len(text.rows))


def diff_json(page: DiffPage) -> dict[str, object]:
    """The data of the page's script, without what is in the markup."""
    return {
        "fields": {kind.__name__: kind.__struct_fields__ for kind in _LISTED},
        "lexer": rules_of_mlir(),
        "metrics": page.metrics,
        "metric": page.metric,
        "totals": False,
        "sources": [_source_json(source) for source in page.sources],
        "ops": page.ops,
        "groups": page.groups,
        "kernels": page.kernels,
        "remarks": page.remarks,
        "scopes": page.scopes,
        "outcomes": page.outcomes,
    }


def _source_json(source: DiffSource) -> Mapping[str, object]:
    texts = [{"side": text.side, "colours": text.colours, "uses": text.uses} for text in source.texts]
    return {"label": source.label, "language": source.language, "same": source.same, "texts": texts}
