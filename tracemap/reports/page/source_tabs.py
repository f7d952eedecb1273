"""The tabs of source files, the model's and Python's alike: highlighted lines, with what each costs or why nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tracemap.graph.model import SourceFile
from tracemap.graph.ops import Fate
from tracemap.reports.costed import CostedMap, heat
from tracemap.reports.highlight.lines import highlighted_lines
from tracemap.reports.labels import lines_of, short_name
from tracemap.reports.page.amounts import amount
from tracemap.reports.page.line_use import LineUse
from tracemap.reports.page.model import LineCost, SourceLine, SourcePage
from tracemap.reports.page.model_tab import model_lines
from tracemap.reports.page.python_tab import python_lines
from tracemap.units import UNKNOWN

MEASURED = "measured"
NOT_MEASURED = "not_measured"
"""States of a line; see `SourceLine.state`."""


def source_page(costed: CostedMap, index: int, source: SourceFile, text: str) -> SourcePage:
    """The page of the `index`-th source file, whose text is `text`."""
    uses = (python_lines if source.language == "python" else model_lines)(costed, index)
    hottest = {metric.name: _hottest(uses, metric.name) for metric in costed.metrics}
    peaks = {name: uses[numbers[0]].attributed[name] if numbers else 0 for name, numbers in hottest.items()}
    lines = lines_of(text)  # may be fewer than locations name: files change after models are made of them
    return SourcePage(
        index=index,
        name=source.name,
        label=short_name(source.name),
        language=source.language,
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        lines=tuple(
            _line(costed, number, html, uses[number], peaks)
            if number in uses
            else SourceLine(number, html, (), (), (), UNKNOWN, "", "", {})
            for number, html in enumerate(highlighted_lines(text, source.language), start=1)
        ),
        hottest={name: tuple(line for line in numbers if line <= len(lines)) for name, numbers in hottest.items()},
    )


def _hottest(uses: Mapping[int, LineUse], metric: str) -> tuple[int, ...]:
    # Ties fall to the line that comes first, so that the same run gives the same page.
    hot = [(-use.attributed[metric], number) for number, use in uses.items() if use.attributed[metric] > 0]
    return tuple(number for _, number in sorted(hot))


def _line(costed: CostedMap, number: int, html: str, use: LineUse, peaks: Mapping[str, int]) -> SourceLine:
    site_by_id = costed.graph.site_by_id
    results = [costed.results[work] for work in use.works if work in costed.results]
    state = MEASURED if results else _unmeasured_state(costed, use)
    return SourceLine(
        number=number,
        html=html,
        ops=tuple(use.ops),
        part_ops=tuple(use.part_ops),
        sites=tuple(
            sorted((work for work in use.works if work in site_by_id), key=lambda id_: site_by_id[id_].ordinal)
        ),
        calls=sum(result.calls for result in results) if results else UNKNOWN,
        state=state,
        remark=_remark(costed, use, state),
        costs=_costs(costed, use, peaks) if results else {},
    )


def _unmeasured_state(costed: CostedMap, use: LineUse) -> str:
    ops, sites = costed.graph.op_by_id, costed.graph.site_by_id
    at_load = any(ops[op].fate is Fate.LOAD_TIME for op in use.ops) or any(
        sites[work].initializer for work in use.works if work in sites
    )
    return NOT_MEASURED if at_load and costed.attribution else ""


def _remark(costed: CostedMap, use: LineUse, state: str) -> str:
    if state == MEASURED:
        return ""
    if state == NOT_MEASURED:
        return "not measured"
    if not use.ops:
        return "part of " + ", ".join(use.part_ops)
    present = {costed.graph.op_by_id[op].fate for op in use.ops}
    return ", ".join(fate.value for fate in Fate if fate in present)


def _costs(costed: CostedMap, use: LineUse, peaks: Mapping[str, int]) -> dict[str, LineCost]:
    return {
        metric.name: LineCost(
            amount(use.attributed[metric.name], metric),
            amount(use.inclusive[metric.name], metric),
            heat(use.attributed[metric.name], peaks[metric.name]),
        )
        for metric in costed.metrics
    }
