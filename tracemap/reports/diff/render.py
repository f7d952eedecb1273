"""The page of a comparison: its data, and the HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Final

from tracemap.comparison.model import ComparedSide, Comparison, Finding, MetricDifference, ways_of
from tracemap.comparison.sides import Compared
from tracemap.graph.bundle import Bundle
from tracemap.graph.model import Site, SourceFile
from tracemap.reports.advice import scaled_unit
from tracemap.reports.cost_lookup import default_metric
from tracemap.reports.diff.model import (
    DiffBox,
    DiffFact,
    DiffGroup,
    DiffLine,
    DiffMetric,
    DiffOp,
    DiffPage,
    DiffRemark,
    DiffScope,
    DiffSource,
    FateChange,
    FindingRow,
)
from tracemap.reports.diff.rows import Rows, SideTexts, anchor_of, changed_kernels, remarks_of, same_models, sources_of
from tracemap.reports.escaping import for_script, or_dash
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html.document import APPLICATION, Kind, block_sizes, markup_of_lines, render, write_page
from tracemap.reports.page.kernels_tab import KernelSources, kernels_of
from tracemap.reports.page.model import Shown
from tracemap.units import Unknown, format_count, format_mean, format_ns, format_share, plural

# ---- groups
#
# Sites that have other ops than before, with those that they share ops with: what was fused, split or absorbed.


_Node = tuple[int, str]
"""A site: 0 before, 1 after; and its id."""


def groups_of(rows: Rows) -> tuple[DiffGroup, ...]:
    """The groups, those first whose cost changed most of the first metric; each knows those of its shape.

    An op that works in several sites of a side, such as a constant, holds no sites together.
    """
    changed = {rows.row_after[str(each.after)] for each in rows.made.regrouped}
    found = []
    for before, after in _together(rows):
        ops = {op for box in (*before, *after) for op in box.ops}
        if not changed.isdisjoint(ops):
            found.append((before, after, rows.amounts(sorted(ops))))
    found.sort(key=lambda each: -abs(each[2][0][1] - each[2][0][0]) if each[2] else 0)
    shapes: dict[object, list[int]] = defaultdict(list)
    for number, (before, after, _) in enumerate(found):
        shapes[_shape(rows, before, after)].append(number)
    alike = {number: tuple(numbers) for numbers in shapes.values() for number in numbers}
    return tuple(DiffGroup(*each, alike[number]) for number, each in enumerate(found))


def _together(rows: Rows) -> Iterator[tuple[tuple[DiffBox, ...], tuple[DiffBox, ...]]]:
    """Sites that hang together by ops, in the order of the program."""
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
    for nodes in _joined([(number, site) for number in (1, 0) for site in sides[number]], sites_of_row.values()):
        boxes: tuple[list[DiffBox], list[DiffBox]] = ([], [])
        for number, site in sorted(nodes, key=lambda node: sides[node[0]][node[1]][0].ordinal):
            of, ops = sides[number][site]
            boxes[number].append(DiffBox(site, of.kernel, ops))
        yield tuple(boxes[0]), tuple(boxes[1])


def _sites_of(side: Compared, known: Mapping[str, int]) -> dict[str, tuple[Site, tuple[int, ...]]]:
    """Sites with the rows of their ops."""
    return {
        site.id: (site, tuple(known[op] for op in dict.fromkeys(member.op for member in site.members) if op in known))
        for site in side.graph.sites
    }


def _joined(nodes: Sequence[_Node], links: Iterable[Sequence[_Node]]) -> Iterator[list[_Node]]:
    """Nodes that links hold together, in the order of the first of each."""
    root = {node: node for node in nodes}

    def find(node: _Node) -> _Node:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for several in links:
        for node in several[1:]:
            root[find(node)] = find(several[0])
    found: dict[_Node, list[_Node]] = defaultdict(list)
    for node in nodes:
        found[find(node)].append(node)
    yield from found.values()


def _shape(rows: Rows, *sides: Sequence[DiffBox]) -> object:
    """What two groups have in common that differ in their ids alone: the names of ops, and which op goes where."""
    numbers: dict[int, int] = {}
    return tuple(
        tuple(tuple((rows.made.ops[op].name, numbers.setdefault(op, len(numbers))) for op in box.ops) for box in boxes)
        for boxes in sides
    )


# ---- build
#
# Builds the data of the page of a comparison.


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
        kernels=changed_kernels(rows, before.kernels, after.kernels),
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


# ---- render
#
# Data of a comparison to its page, one HTML file, and to the data that its script works on.


_KIND: Final = Kind(
    template="diff/diff.html.j2",
    styles=(
        "shared/source.css",
        "shared/details.css",
        "shared/kernels.css",
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
"""That stand unfolded."""
_LISTED: Final = (DiffOp, DiffLine, DiffBox, DiffGroup, DiffRemark, DiffScope)
"""Records that the script gets as lists of their fields."""


def write_diff_page(
    made: Comparison, before: tuple[Bundle, Compared], after: tuple[Bundle, Compared], target: Path, *, force: bool
) -> None:
    """Write the page of a comparison.

    Raises:
        TargetExists, TargetUnwritable: the page cannot be written.
    """
    sides = [
        PageSide(compared, bundle.source_text, kernels_of(bundle), bundle.path.resolve().parent)
        for bundle, compared in (before, after)
    ]
    write_page(render_diff_page(build_diff_page(made, *sides)), target, force=force)


def render_diff_page(page: DiffPage) -> str:
    """The whole HTML text of a page; the same comparison gives the same bytes."""
    return render(
        _KIND,
        page,
        sizes=block_sizes(dict(_sizes(page))),
        data=(for_script(diff_json(page)),),
        markup_of_lines=markup_of_lines,
        text=amount_text,
        most_findings=MOST_FINDINGS,
        share=format_share,
        time=lambda value: "–" if isinstance(value, Unknown) else format_ns(value),
    )


def amount_text(value: int, metric: DiffMetric) -> str:
    """An amount for people."""
    return format_mean(value, metric.shown[0].divisor, metric.shown_unit) if value else "0"


def _sizes(page: DiffPage) -> Iterator[tuple[str, tuple[int, int]]]:
    for source in page.sources:
        for text in source.texts:
            yield f"{text.side}{source.index}", (text.columns, len(text.rows))


def diff_json(page: DiffPage) -> dict[str, object]:
    """All that the script needs; what stands in the markup already is left out."""
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
        "fates": page.fates,
    }


def _source_json(source: DiffSource) -> Mapping[str, object]:
    texts = [{"side": text.side, "colours": text.colours, "uses": text.uses} for text in source.texts]
    return {"label": source.label, "language": source.language, "same": source.same, "texts": texts}
