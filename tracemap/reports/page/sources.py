"""The source files of a page: which ops and sites stand behind each line, and what the line costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.graph.model import Fate, Frame, SourceFile
from tracemap.reports.highlight.lines import highlighted_lines, lines_of
from tracemap.reports.page.join import Joined, amount, heat, short_name
from tracemap.reports.page.model import LineCost, SourceLine, SourcePage
from tracemap.units import UNKNOWN, Unknown

MEASURED = "measured"
NOT_MEASURED = "not_measured"
"""States of a line; see `SourceLine.state`."""


@dataclass(slots=True)
class _Use:
    """What a line has to do with; dicts instead of sets, because their order is not left to chance.

    `own` are the ops whose cost is a model line's own; `ops` all that name the line; `self` and `inclusive` are the
    costs of a Python line by metric name.
    """

    ops: dict[str, None] = field(default_factory=dict)
    own: dict[str, None] = field(default_factory=dict)
    part_ops: dict[str, None] = field(default_factory=dict)
    sites: dict[str, None] = field(default_factory=dict)
    self: dict[str, int] = field(default_factory=dict)
    inclusive: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Cost of a line by metric name."""

    attributed: Mapping[str, int]
    inclusive: Mapping[str, int]


def source_page(joined: Joined, index: int, source: SourceFile, text: str) -> SourcePage:
    """The page of the `index`-th source file, whose text is `text`."""
    python = source.language == "python"
    uses = _python_uses(joined, index) if python else _model_uses(joined, index)
    sums = {number: _sums(joined, use, python=python) for number, use in sorted(uses.items())}
    hottest = {metric.name: _hottest(sums, metric.name) for metric in joined.metrics}
    peaks = {name: sums[lines[0]].attributed[name] if lines else 0 for name, lines in hottest.items()}
    lines = lines_of(text)
    return SourcePage(
        index=index,
        name=source.name,
        label=short_name(source.name),
        language=source.language,
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        lines=tuple(
            _line(joined, number, html, uses[number], _line_costs(joined, sums[number], peaks))
            if number in uses
            else SourceLine(number, html, (), (), (), UNKNOWN, "", "", {})
            for number, html in enumerate(highlighted_lines(text, source.language), start=1)
        ),
        hottest={name: tuple(line for line in numbers if line <= len(lines)) for name, numbers in hottest.items()},
    )


def _model_uses(joined: Joined, index: int) -> dict[int, _Use]:
    uses: dict[int, _Use] = {}
    for op in joined.graph.ops:
        if isinstance(op.file, Unknown) or joined.source_index.get(op.file) != index:
            continue
        if not isinstance(op.line, Unknown):
            use = uses.setdefault(op.line, _Use())
            use.ops[op.id] = use.own[op.id] = None
            use.sites.update(dict.fromkeys(joined.sites_of(op)))
        for part in op.parts:
            if not isinstance(part.line, Unknown) and part.line != op.line:
                uses.setdefault(part.line, _Use()).part_ops[op.id] = None
    return uses


def _python_uses(joined: Joined, index: int) -> dict[int, _Use]:
    """Lines of frames: of every membership as it is reached, and of the ops that work in no site."""
    uses: dict[int, _Use] = {}
    for reached in joined.reached:
        for position, frame in enumerate(_kept(joined, reached.frames)):
            if joined.source_index[frame.file] == index:
                use = uses.setdefault(frame.line, _Use())
                use.ops[reached.op.id] = use.sites[reached.site.id] = None
                _add(use.inclusive, reached.attributed)
                if position == 0:
                    _add(use.self, reached.attributed)
    for op in joined.graph.ops:
        if op.id not in joined.graph.sites_of_op:
            for frame in _kept(joined, op.frames):
                if joined.source_index[frame.file] == index:
                    uses.setdefault(frame.line, _Use()).ops[op.id] = None
    return uses


def _kept(joined: Joined, frames: Sequence[Frame]) -> list[Frame]:
    """The frames whose file is on the page; a line that a recursion passes more than once counts once."""
    kept = {(frame.file, frame.line): frame for frame in reversed(frames) if frame.file in joined.source_index}
    return list(reversed(kept.values()))


def _add(sums: dict[str, int], values: Mapping[str, int]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0) + value


def _sums(joined: Joined, use: _Use, *, python: bool) -> _Sums:
    names = [metric.name for metric in joined.metrics]
    if python:
        return _Sums(
            {name: use.self.get(name, 0) for name in names}, {name: use.inclusive.get(name, 0) for name in names}
        )
    attributed = {name: joined.attributed(use.own, name) for name in names}
    return _Sums(attributed, {name: joined.inclusive(use.sites, name) for name in names})


def _hottest(sums: Mapping[int, _Sums], metric: str) -> tuple[int, ...]:
    hot = [(-line.attributed[metric], number) for number, line in sums.items() if line.attributed[metric] > 0]
    return tuple(number for _, number in sorted(hot))


def _line(joined: Joined, number: int, html: str, use: _Use, costs: Mapping[str, LineCost]) -> SourceLine:
    results = [joined.site_results[site] for site in use.sites if site in joined.site_results]
    state = MEASURED if results else _unmeasured_state(joined, use)
    return SourceLine(
        number=number,
        html=html,
        ops=tuple(use.ops),
        part_ops=tuple(use.part_ops),
        sites=tuple(sorted(use.sites, key=lambda site: joined.graph.site_by_id[site].ordinal)),
        calls=sum(result.calls for result in results) if results else UNKNOWN,
        state=state,
        note=_note(joined, use, state),
        costs=costs if results else {},
    )


def _unmeasured_state(joined: Joined, use: _Use) -> str:
    ops = joined.graph.op_by_id
    at_load = any(ops[op].fate is Fate.LOAD_TIME for op in use.ops) or any(
        joined.graph.site_by_id[site].initializer for site in use.sites
    )
    return NOT_MEASURED if at_load and joined.attribution else ""


def _note(joined: Joined, use: _Use, state: str) -> str:
    if state == MEASURED:
        return ""
    if state == NOT_MEASURED:
        return "not measured"
    if not use.ops:
        return "part of " + ", ".join(use.part_ops)
    present = {joined.graph.op_by_id[op].fate for op in use.ops}
    return ", ".join(fate.value for fate in Fate if fate in present)


def _line_costs(joined: Joined, sums: _Sums, peaks: Mapping[str, int]) -> dict[str, LineCost]:
    return {
        metric.name: LineCost(
            amount(sums.attributed[metric.name], metric),
            amount(sums.inclusive[metric.name], metric),
            heat(sums.attributed[metric.name], peaks[metric.name]),
        )
        for metric in joined.metrics
    }
