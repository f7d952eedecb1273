"""The table of ops: a row for every op of the model, with its lines and its costs."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.attribution.model import MetricTotal, OpCost
from tracemap.graph.ops import Frame, Op
from tracemap.reports.costed import CostedMap
from tracemap.reports.labels import file_line, or_dash
from tracemap.reports.page.amounts import amount, spread
from tracemap.reports.page.model import Amount, LineLink, OpCostRow, OpRow, SourcePage
from tracemap.units import UNKNOWN, Integer, Text, Unknown


def op_rows(costed: CostedMap, sources: Sequence[SourcePage]) -> tuple[OpRow, ...]:
    """A row for every op of the model, in their order."""
    links = _Links(costed, sources)
    return tuple(_op_row(costed, op, links) for op in costed.graph.ops)


class _Links:
    """Turns file and line into text and anchor; only lines that are on the page have one."""

    def __init__(self, costed: CostedMap, sources: Sequence[SourcePage]) -> None:
        self._index = costed.source_index
        self._lengths = [len(source.lines) for source in sources]

    def of(self, file: Text, line: Integer) -> LineLink:
        text = file_line(file, line)
        index = UNKNOWN if isinstance(file, Unknown) else self._index.get(file, UNKNOWN)
        # Only lines of the kept text have an anchor; a link to any other would lead nowhere.
        if isinstance(index, Unknown) or isinstance(line, Unknown) or not 1 <= line <= self._lengths[index]:
            return LineLink(text, "")
        return LineLink(text, f"F{index}L{line}")

    def of_python(self, stack: Sequence[Frame]) -> LineLink:
        """The innermost frame whose file is kept, else the innermost."""
        frames = [frame for frame in stack if frame.file in self._index] or stack
        return self.of(frames[0].file, frames[0].line) if frames else LineLink("", "")


def _op_row(costed: CostedMap, op: Op, links: _Links) -> OpRow:
    sites = costed.graph.sites_of_op.get(op.id, ())
    result = costed.op_results.get(op.id)
    return OpRow(
        id=op.id,
        name=op.name,
        line=links.of(op.file, op.line),
        python=links.of_python(costed.frames_of(op)),
        function=or_dash(op.function),
        scope=costed.scope_of(op),
        fate=op.fate.value,
        reason_slug=op.reason.slug,
        reason=op.reason.text,
        kernels=tuple(dict.fromkeys(costed.graph.site_by_id[site].kernel for site in sites)),
        sites=sites,
        calls=result.calls if result else UNKNOWN,
        costs={metric.name: _op_cost(result.metrics[metric.name], metric) for metric in costed.metrics}
        if result
        else {},
    )


def _op_cost(cost: OpCost, metric: MetricTotal) -> OpCostRow:
    return OpCostRow(
        attributed=amount(cost.attributed, metric),
        inclusive=amount(cost.inclusive, metric),
        low=amount(cost.low, metric),
        high=amount(cost.high, metric),
        per_call=spread(cost.per_call, metric),
        sampled=_sampled(cost, metric),
    )


def _sampled(cost: OpCost, metric: MetricTotal) -> tuple[Amount, Amount] | None:
    if isinstance(cost.sampled_low, Unknown) or isinstance(cost.sampled_high, Unknown):
        return None
    return amount(cost.sampled_low, metric), amount(cost.sampled_high, metric)
