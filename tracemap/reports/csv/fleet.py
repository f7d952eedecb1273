"""Many runs as CSV: one row a run; one row for each op, group and metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracemap.inert import csv_line, without_controls
from tracemap.store.changed import FleetComparison, FleetName, FleetTrends
from tracemap.store.model import FleetCalls, FleetCosts, FleetGroup, FleetRun, FleetRuns, SiteCalls
from tracemap.units import UNKNOWN, Integer, Text, Unknown

_OF_COSTS: Final = ("op", "name", "file", "line", "scope", "runs", "metric", "amount", "invocations")


def runs_csv(found: FleetRuns) -> str:
    """The runs, with a header line; unknown values are empty cells, tags are `K=V` with blanks between them."""
    names = FleetRun.__struct_fields__
    lines = [csv_line(names)]
    for run in found.runs:
        tags = " ".join(f"{name}={value}" for name, value in sorted(run.tags.items()))
        lines.append(csv_line([_cell(tags if name == "tags" else getattr(run, name)) for name in names]))
    return "".join(lines)


def costs_csv(found: FleetCosts) -> str:
    """The costs, with a header line: rows without an op have the reason in the column `name`, as `attribute` has it."""
    columns = ("model", *found.group_by, *_OF_COSTS)
    rows = (csv_line([_cell(cell) for cell in row]) for group in found.groups for row in _rows(group))
    return "".join([csv_line(columns), *rows])


def _rows(group: FleetGroup) -> Iterator[list[Integer | Text]]:
    about: list[Integer | Text] = [group.model, *group.group.values()]
    for metric in group.metrics:
        figures: list[Integer | Text] = [metric.invocations]
        for op in group.ops:
            told: list[Integer | Text] = [op.op, op.name, op.file, op.line, op.scope, op.runs]
            yield [*about, *told, metric.name, op.amounts[metric.name], *figures]
        for row in group.residual:
            nothing: list[Integer | Text] = [UNKNOWN] * 3
            yield [*about, "", row.reason, *nothing, group.runs, metric.name, row.amounts[metric.name], *figures]


def sites_csv(found: FleetCalls) -> str:
    """Percentiles of the calls of sites, with a header line; an empty site stands for several of its kernel."""
    names = SiteCalls.__struct_fields__
    lines = [csv_line(("model", *found.group_by, "map", "runs", "metric", *names))]
    for group in found.groups:
        about = [_cell(each) for each in (group.model, *group.group.values(), group.map, group.runs, found.metric)]
        lines += [csv_line([*about, *(_cell(getattr(site, name)) for name in names)]) for site in group.sites]
    return "".join(lines)


_OF_OP: Final = ("op", "name", "file", "line", "scope")
_FIGURES: Final = ("ratio", "ratio_low", "ratio_high", "before", "after", "hosts", "chance")


def trends_csv(found: FleetTrends) -> str:
    """The changes, with a header line; an empty processor or host is all of them."""
    names = ("kind", "night", "night_low", "night_high", "cpu_model", "host", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OF_OP))]
    for model in found.models:
        for each in model.changes:
            figures = (_figure(getattr(each, name)) for name in names)
            lines.append(csv_line([model.model, _cell(model.function), _cell(model.inputs), *figures, *_op(each.op)]))
    return "".join(lines)


def comparison_csv(found: FleetComparison) -> str:
    """The differences, with a header line; an empty processor is all of them."""
    names = ("kind", "cpu_model", *_FIGURES)
    lines = [csv_line(("model", "function", "inputs", *names, *_OF_OP))]
    for model in found.models:
        for each in model.differences:
            figures = (_figure(getattr(each, name)) for name in names)
            lines.append(csv_line([model.model, _cell(model.function), _cell(model.inputs), *figures, *_op(each.op)]))
    return "".join(lines)


def _op(op: FleetName) -> list[int | str]:
    return [_cell(getattr(op, name)) for name in _OF_OP]


def _figure(value: Integer | Text | float) -> int | str:
    return f"{value:.6g}" if isinstance(value, float) else _cell(value)


def _cell(value: Integer | Text) -> int | str:
    if isinstance(value, Unknown):
        return ""
    return without_controls(value) if isinstance(value, str) else value
