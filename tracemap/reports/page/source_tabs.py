"""The tabs of source files: lines with their costs, or the reason for none.

In the model, an op's cost is on its own line, so attributed costs of lines add up. In Python files, it is on the lines
of its call stack, as in a Python profiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracemap.graph.model import Fate, Frame, OpId, SourceFile
from tracemap.reports.cost_lookup import NOTHING, CostedMap, added, heat
from tracemap.reports.escaping import short_name
from tracemap.reports.highlight import colours_of_python
from tracemap.reports.page.model import HEAT_LEVELS, LineCost, SourceLine, SourcePage, SourceRows
from tracemap.units import UNKNOWN, Unknown, sum_of


@dataclass(slots=True)
class LineUse:
    """Ops and costs of a line. Dicts serve as ordered sets, for deterministic output.

    Attributes:
        ops: ops located on the line.
        part_ops: ops with only a part on the line.
        works: dispatch sites and transfers of the ops.
        attributed: costs by metric name, as in `LineCost`.
        inclusive: costs by metric name, as in `LineCost`.
    """

    ops: dict[OpId, None] = field(default_factory=dict)
    part_ops: dict[OpId, None] = field(default_factory=dict)
    works: dict[str, None] = field(default_factory=dict)
    attributed: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    inclusive: Mapping[str, int] = field(default_factory=lambda: NOTHING)


def model_lines(costed: CostedMap, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source with ops or parts of ops."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for op in costed.graph.ops:
        if isinstance(op.file, Unknown) or costed.source_index.get(op.file) != index:
            continue
        if not isinstance(op.line, Unknown):
            use = uses[op.line]
            use.ops[op.id] = None
            use.works.update(dict.fromkeys(costed.works_of(op)))
            use.attributed = added(use.attributed, costed.attributed(op.id))
        for part in op.parts:
            if not isinstance(part.line, Unknown) and part.line != op.line:
                uses[part.line].part_ops[op.id] = None
    for use in uses.values():
        for work in use.works:  # once per work, also if it has several ops of the line
            use.inclusive = added(use.inclusive, costed.total(work))
    return uses


def python_lines(costed: CostedMap, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source in call stacks: of ops per call path, and of ops without a dispatch."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for reached in costed.reached:
        # Only frames on the page count, so the cost of library code belongs to its caller.
        for depth, frame in enumerate(kept_frames(costed, reached.frames)):
            if costed.source_index[frame.file] == index:
                use = uses[frame.line]
                use.ops[reached.op.id] = use.works[reached.work] = None
                use.inclusive = added(use.inclusive, reached.attributed)
                if depth == 0:
                    use.attributed = added(use.attributed, reached.attributed)
    for op in costed.graph.ops:
        if op.id not in costed.reached_by_op:
            for frame in kept_frames(costed, costed.frames_of(op)):
                if costed.source_index[frame.file] == index:
                    uses[frame.line].ops[op.id] = None
    return uses


def kept_frames(costed: CostedMap, frames: Sequence[Frame]) -> list[Frame]:
    """The frames whose file is on the page; lines that occur several times in a recursion count once."""
    by_line = {(frame.file, frame.line): frame for frame in reversed(frames) if frame.file in costed.source_index}
    return list(reversed(by_line.values()))


MOST_IN_MARKUP: Final = 4_000_000
"""Most characters of a text in the markup. Longer texts would dominate the page, and are stored compressed (1/10)."""
_MARKUP_OF_LINE: Final = 50


def source_page(index: int, source: SourceFile, lines: Sequence[str]) -> SourcePage:
    """The `index`-th source file, with its lines."""
    return SourcePage(
        index=index,
        name=source.name,
        label=short_name(source.name),
        language=source.language,
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        text=tuple(lines),
        in_markup=sum(len(line) + _MARKUP_OF_LINE for line in lines) <= MOST_IN_MARKUP,
        colours=colours_of_python(lines) if source.language == "python" else (),
    )


def source_rows(costed: CostedMap, index: int, source: SourceFile, count: int) -> SourceRows:
    """The rows of the `index`-th source file; `count` is its number of lines."""
    uses = (python_lines if source.language == "python" else model_lines)(costed, index)
    hottest = [_hottest(uses, metric.name) for metric in costed.metrics]
    peaks = [max((use.attributed.get(metric.name, 0) for use in uses.values()), default=0) for metric in costed.metrics]
    # Locations may name lines after the end, as files change after models are made of them.
    return SourceRows(
        lines={number: _line(costed, use, peaks) for number, use in sorted(uses.items()) if 1 <= number <= count},
        hottest=tuple(tuple(line for line in numbers if line <= count) for numbers in hottest),
    )


def _hottest(uses: Mapping[int, LineUse], metric: str) -> tuple[int, ...]:
    # The first line wins ties, for deterministic output.
    hot = [(-use.attributed.get(metric, 0), number) for number, use in uses.items()]
    return tuple(number for cost, number in sorted(hot) if cost)


def _line(costed: CostedMap, use: LineUse, peaks: Sequence[int]) -> SourceLine:
    results = [costed.results[work] for work in use.works if work in costed.results]
    return SourceLine(
        ops=tuple(map(str, use.ops)),
        part_ops=tuple(map(str, use.part_ops)),
        sites=_sites(costed, use.works),
        calls=sum_of([result.calls for result in results]) if results else UNKNOWN,
        remark="" if results else _remark(costed, use),
        costs=_costs(costed, use, peaks) if results else (),
    )


def _sites(costed: CostedMap, works: Iterable[str]) -> tuple[str, ...]:
    """The dispatch sites among works, in the order of the program."""
    by_id = costed.graph.site_by_id
    sites = [work for work in works if work in by_id]
    if len(sites) > 1:
        sites.sort(key=lambda site: by_id[site].ordinal)
    return tuple(sites)


def _remark(costed: CostedMap, use: LineUse) -> str:
    """The reason for a line without cost."""
    ops, sites = costed.graph.op_by_id, costed.graph.site_by_id
    at_load = any(ops[op].fate is Fate.LOAD_TIME for op in use.ops) or any(
        sites[work].initializer for work in use.works if work in sites
    )
    if at_load and costed.attribution:
        return "not measured"
    if not use.ops:
        return "part of " + ", ".join(use.part_ops)
    present = {ops[op].fate for op in use.ops}
    return ", ".join(fate.value for fate in (Fate if len(present) > 1 else present) if fate in present)


def _costs(costed: CostedMap, use: LineUse, peaks: Sequence[int]) -> tuple[LineCost, ...]:
    costs = []
    for metric, peak in zip(costed.metrics, peaks, strict=True):
        attributed = use.attributed.get(metric.name, 0)
        costs.append(LineCost(attributed, use.inclusive.get(metric.name, 0), heat_level(heat(attributed, peak))))
    return tuple(costs)


def heat_level(heat: float) -> int:
    """Heat as a level; every heat above 0 is at least 1."""
    return max(1, round(heat * HEAT_LEVELS)) if heat else 0
