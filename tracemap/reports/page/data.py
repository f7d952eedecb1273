"""The data that a page's script works on: the page as plain JSON values, short where there is one per op or line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracemap.reports.page.kernels import kernel_page_json
from tracemap.reports.page.model import (
    Amount,
    LineCost,
    MemberRow,
    OpCostRow,
    OpRow,
    PageData,
    ScopeRow,
    SiteCostRow,
    SiteRow,
    SourceLine,
    SourcePage,
    Spread,
)
from tracemap.units import Integer, Unknown, format_count

Json = dict[str, Any]
"""A JSON object: what `json.dumps` takes."""


def page_json(page: PageData) -> Json:
    """All that the script needs; per-metric lists are in the order of `metrics`, amounts are `[exact, text, share]`."""
    measured = {metric.name: metric.measured.exact for metric in page.metrics}
    names = list(measured)
    return {
        "metrics": [
            {"name": metric.name, "unit": metric.unit, "measured": metric.measured.exact} for metric in page.metrics
        ],
        "metric": names.index(page.metric) if page.metric else -1,
        "sources": [_source(source, names, measured) for source in page.sources],
        "ops": [_op(row, names) for row in page.ops],
        "sites": [_site(row, names) for row in page.sites],
        "scopes": [_scope(row, names) for row in page.scopes],
        "kernels": [kernel_page_json(kernel) for kernel in page.kernels],
    }


def _amount(value: Amount) -> list[Any]:
    return [value.exact, value.text, value.share]


def _amounts(values: Mapping[str, Amount], names: list[str]) -> list[Any]:
    return [_amount(values[name]) for name in names] if values else []


def _calls(value: Integer) -> list[Any] | None:
    return None if isinstance(value, Unknown) else [value, format_count(value)]


def _source(source: SourcePage, names: list[str], measured: Mapping[str, int]) -> Json:
    return {
        "name": source.name,
        "label": source.label,
        "language": source.language,
        "hottest": [source.hottest[name] for name in names],
        "lines": {str(line.number): _line(line, names, measured) for line in source.lines if line.ops or line.part_ops},
    }


def heat_level(cost: LineCost) -> int:
    """Heat in eleven levels, 0 (none) to 10: each is a class in the style sheet."""
    return 0 if cost.heat == 0 else max(1, round(cost.heat * 10))


def bar_width(exact: int, measured: int) -> int:
    """A share in steps of a twentieth of the bar, 0 to 20; whatever is not nothing shows."""
    if exact <= 0 or measured <= 0:
        return 0
    return min(20, max(1, round(20 * exact / measured)))


def _line(line: SourceLine, names: list[str], measured: Mapping[str, int]) -> Json:
    costs = [_line_cost(line.costs[name], measured[name]) for name in names] if line.costs else []
    return {
        "ops": line.ops,
        "parts": line.part_ops,
        "sites": line.sites,
        "calls": _calls(line.calls),
        "state": line.state,
        "costs": costs,
    }


def _line_cost(cost: LineCost, measured: int) -> list[Any]:
    bars = [bar_width(cost.attributed.exact, measured), bar_width(cost.inclusive.exact, measured)]
    return [_amount(cost.attributed), _amount(cost.inclusive), heat_level(cost), *bars]


def _spread(spread: Spread | None) -> list[Any] | None:
    return None if spread is None else [_amount(spread.median), _amount(spread.p10), _amount(spread.p90)]


def _op(row: OpRow, names: list[str]) -> Json:
    return {
        "id": row.id,
        "name": row.name,
        "place": [row.place.text, row.place.anchor],
        "python": [row.python.text, row.python.anchor],
        "function": row.function,
        "scope": row.scope,
        "fate": row.fate,
        "reason": row.reason,
        "slug": row.reason_slug,
        "kernels": row.kernels,
        "sites": row.sites,
        "calls": _calls(row.calls),
        "costs": [_op_cost(row.costs[name]) for name in names] if row.costs else [],
    }


def _op_cost(cost: OpCostRow) -> Json:
    return {
        "attributed": _amount(cost.attributed),
        "inclusive": _amount(cost.inclusive),
        "low": _amount(cost.low),
        "high": _amount(cost.high),
        "spread": _spread(cost.per_call),
        "sampled": None if cost.sampled is None else [_amount(bound) for bound in cost.sampled],
    }


def _site(row: SiteRow, names: list[str]) -> Json:
    return {
        "id": row.id,
        "kernel": row.kernel,
        "function": row.function,
        "path": row.path,
        "command": row.command,
        "load": row.load_time,
        "members": [_member(member, names) for member in row.members],
        "notes": row.notes,
        "calls": _calls(row.calls),
        "costs": [_site_cost(row.costs[name]) for name in names] if row.costs else [],
    }


def _site_cost(cost: SiteCostRow) -> Json:
    return {"total": _amount(cost.total), "spread": _spread(cost.per_call)}


def _member(member: MemberRow, names: list[str]) -> Json:
    return {
        "op": member.op,
        "evidence": member.evidence,
        "root": member.root,
        "operations": member.operations,
        "bytes": member.bytes,
        "costs": _amounts(member.attributed, names),
    }


def _scope(row: ScopeRow, names: list[str]) -> Json:
    return {
        "path": row.path,
        "ops": row.ops,
        "attributed": _amounts(row.attributed, names),
        "inclusive": _amounts(row.inclusive, names),
    }
