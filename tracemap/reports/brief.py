"""Brief forms of JSON documents: at most 4 KB, with the figures that matter and the commands that go on from there.

`SHAPES` declares for each kind of document which figures and rows its brief form keeps, and which commands follow. A
document that does not fit loses texts and rows, and says how many.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from tracemap.attribution.model import Attribution
from tracemap.compare.model import BASIS, Amount, Comparison, FusionChange, GroupedCost
from tracemap.core.codec import Count, Document, encode, record_from
from tracemap.core.sanitize import json_without_controls, without_controls
from tracemap.core.units import Unknown
from tracemap.map.model import Op, TraceGraph
from tracemap.map.query import python_frame
from tracemap.options.reports import DiffOptions
from tracemap.options.results import AttributeOptions
from tracemap.reports.cost_lookup import MapCosts, default_metric
from tracemap.reports.escaping import file_line, op_line
from tracemap.reports.json_documents import ShownRun
from tracemap.reports.views.costs import PERCENT, Cell, Column
from tracemap.reports.views.selection import select_from_view, selected_costs

LIMIT_BYTES: Final = 4096
"""Most bytes of a brief form, with the line break at its end."""

Figure = str | int | float | bool | None
Row = Mapping[str, Figure]


class Brief(Document, frozen=True, kw_only=True):
    """The figures of another document that matter most, in at most 4,096 bytes.

    Texts are cut, and control characters in them escaped. A list of texts is one text: the first ones, and `+N` for the
    others. A list of records that has no place here is its length.
    """

    schema_version: Literal[1] = 1
    kind: Literal["brief"] = "brief"
    of: Annotated[str, Meta(description="The kind of the whole document, which --format json prints.")]
    figures: Annotated[Mapping[str, Figure], Meta(description="By the path of the figure in the whole document.")]
    rows: Annotated[Mapping[str, tuple[Row, ...]], Meta(description="Lists of the document, the most important first.")]
    left_out: Annotated[Mapping[str, Count], Meta(description="Number of rows, figures or commands that did not fit.")]
    next: Annotated[tuple[tuple[str, ...], ...], Meta(description="Commands that go on from here, as arguments.")]


# ---- what brief forms keep


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of a document, and the fields of its rows.

    Attributes:
        path: path of the list; rows of a list in a list can have fields of both.
        fields: paths of fields; `name=path` gives one another name. Empty: all fields.
        skip: a field and the value of rows to leave out, such as results that are right.
        largest: sort by this field, the largest first; empty: the order of the document.
    """

    path: str
    fields: str
    skip: tuple[str, str] = ("", "")
    largest: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a kind of document that its brief form keeps.

    `figures` are paths of numbers and texts, or of mappings to numbers. `counts` are paths whose values are counted.
    `next` are commands; `{name}` stands for the words of this name, or for the first value of a row's field
    (`{ops.op}`). A command without all of its words is left out.
    """

    figures: str = ""
    counts: str = ""
    rows: tuple[Rows, ...] = ()
    next: tuple[str, ...] = ()


GOOGLE_BENCHMARK: Final = "google-benchmark"
"""The kind of Google Benchmark's documents, which do not name one."""
_KERNEL_TIMES: Final = "before_ns=before_ns.median after_ns=after_ns.median"
_OP_CHANGES: Final = Rows(
    "ops", "op name line before_ns after_ns ratio=ratio.median ratio_low=ratio.low ratio_high=ratio.high"
)
_SHOW: Final = "show {bundle} {%s} --brief"
_DIAGNOSTICS: Final = Rows("diagnostics", "slug message")

SHAPES: Final[Mapping[str, Shape]] = {
    "map": Shape(
        "module.name coverage.ops coverage.sites coverage.by_outcome",
        rows=(
            Rows("ops", "op=id name line scope outcome reason=reason.text sites"),
            Rows("sites", "site=id kernel function ops=members"),
            Rows("kernels", "kernel=name sites"),
            Rows("remarks", "kernel ops kind name text"),
        ),
        next=(
            "attribute {recorded} --only {what} --brief",
            "attribute {recorded} --brief",
            "record {unrecorded}",
            "show {bundle} {sites.kernel} --brief",
            "memory {bundle} --brief",
        ),
    ),
    "attribution": Shape(
        "by ranked_by rule run.functions run.device run.workers run.iterations run.elapsed_ns invocation_ns",
        rows=(
            Rows("costs", ""),
            Rows("metrics", "name unit measured attributed unattributed invocations"),
            Rows("advice", "rule text ops command gain_ns"),
            Rows("unattributed", "reason metrics"),
            _DIAGNOSTICS,
        ),
        next=(
            _SHOW % "costs.op",
            _SHOW % "costs.kernel",
            _SHOW % "costs.line",
            "what-if {runs} --op {costs.op} --brief",
            "attribute {runs} --by kernel --brief",
            "memory {bundle} --brief",
        ),
    ),
    "what-if": Shape(
        "before_ns",
        rows=(Rows("changes", "target ops factor after_ns low_ns high_ns reason"),),
        next=(_SHOW % "changes.op", "attribute {runs} --brief"),
    ),
    "memory": Shape(
        "allocated.run allocated.peak_bytes",
        rows=(
            Rows("functions", "function peak_bytes kept_bytes unused_bytes is_estimate", largest="peak_bytes"),
            Rows("functions.held", "function ops bytes resource written_by read_by peak_without", largest="bytes"),
            Rows("kept", "ops bytes resource", largest="bytes"),
            _DIAGNOSTICS,
        ),
        next=(_SHOW % "held.op", "memory {bundle} --without {held.op} --brief"),
    ),
    "remarks": Shape(
        "run metric elsewhere",
        rows=(Rows("remarks", "ops kernel kernel_line=line kind name text count cost_share"), _DIAGNOSTICS),
        next=(_SHOW % "remarks.op", "attribute {recorded} --brief"),
    ),
    "numerics": Shape(
        "function against culprit.site culprit.kernel culprit.ops culprit.reason",
        counts="sites.verdict",
        rows=(
            Rows("first_bad", "site kernel ops kind=number.kind operation=number.operation"),
            Rows("sites", "site kernel verdict reason ops explanation", skip=("verdict", "right")),
            Rows("departures", "site ops other_site rms_rel departs", largest="rms_rel"),
            _DIAGNOSTICS,
        ),
        next=(_SHOW % "first_bad.op", _SHOW % "sites.op", "show {bundle} --brief"),
    ),
    "audit": Shape(
        "module.name locations.ops locations.own not_followed",
        rows=(
            Rows("phases", "phase located lost"),
            Rows("losses", "op name line phase outcome reason=reason.text"),
            Rows("spots", "op phase pass=pass_name argument anchor"),
        ),
        next=(_SHOW % "losses.op", "show {bundle} --brief"),
    ),
    "diff": Shape(
        "ranked_by same_model matched_percent threshold_percent basis drift.ratio "
        "before.bundle before.run before.invocation_ns after.bundle after.run after.invocation_ns",
        rows=(
            Rows("changes", ""),
            Rows("scopes", ""),
            Rows("sources", ""),
            Rows("settings", "name before after"),
            Rows("metrics", "name unit amounts=whole"),
            _DIAGNOSTICS,
        ),
        next=(
            "show {after_bundle} {changes.op} --brief",
            "show {before_bundle} {changes.op_before} --brief",
            "attribute {after} --brief",
            "diff {sides} --by scope --brief",
            "show {after_bundle} --brief",
        ),
    ),
    "bisect": Shape(
        "metric op differences good_value.value bad_value.value builds failed",
        rows=(
            Rows("causes", "differences bundle value=value.value certain message"),
            Rows("causes.differences", "bundle kind text"),
            Rows("causes.ops", "bundle op name model_line=line line=python change"),
        ),
        next=(
            "diff {good} {causes.bundle} --brief",
            "diff {good} {bad} --brief",
        ),
    ),
    "diffs": Shape(
        rows=(
            Rows("comparisons", "bundle=after.bundle run=after.run invocation_ns=after.invocation_ns changes=findings"),
            Rows("comparisons.findings", "bundle=after.bundle kind op=after name line metric ratio"),
        ),
        next=("diff {baseline} {first_side} --brief",),
    ),
    "stats": Shape(
        "buckets",
        rows=(Rows("threads", "thread calls"), Rows("threads.series", "thread name mean"), _DIAGNOSTICS),
        next=("stats {runs} --format json",),
    ),
    "doctor": Shape(
        "tracemap python platform ok",
        counts="abilities.state",
        rows=(Rows("abilities", "name state found remedy needed", skip=("state", "works")),),
        next=("events --brief",),
    ),
    "events": Shape(
        counts="events.opens",
        rows=(Rows("events", "name opens unit mode reason", largest="opens"),),
        next=("doctor --brief",),
    ),
    GOOGLE_BENCHMARK: Shape(
        rows=(Rows("benchmarks", "name iterations real_time cpu_time time_unit"),),
        next=("record {bundle}", "show {bundle} --brief"),
    ),
    "bench": Shape(
        "device run processes",
        counts="kernels.verification.status",
        rows=(
            Rows(
                "kernels",
                "kernel sites time_ns=time_ns.median cold_ns=cold_ns.median roofline_share "
                "status=verification.status reason=verification.reason not_measured",
                largest="time_ns",
            ),
            _DIAGNOSTICS,
        ),
        next=(_SHOW % "kernels.kernel", "tune {bundle} --kernel {kernels.kernel} --brief"),
    ),
    "swap": Shape(
        "original bundle pairs whole.median whole.low whole.high",
        rows=(
            Rows("replaced", "kernels stage file"),
            Rows("kernels", f"kernel status=verification.status reason=verification.reason {_KERNEL_TIMES}"),
            Rows("functions", "function failure outputs"),
            _OP_CHANGES,
            _DIAGNOSTICS,
        ),
        next=("show {output} {ops.op} --brief", "show {bundle} --brief"),
    ),
    "tune": Shape(
        "bundle spec pairs application.median application.low application.high",
        rows=(
            Rows("kernels", "kernel tried failed configuration=best.configuration ratio=best.ratio.median obstacle"),
            _OP_CHANGES,
            _DIAGNOSTICS,
        ),
        next=(_SHOW % "kernels.kernel", "show {bundle} --brief"),
    ),
    "debug-info": Shape(
        "bundle lines",
        rows=(
            Rows("executables", "architecture kernels instructions instructions_with_op debug_file code_file"),
            _DIAGNOSTICS,
        ),
        next=("show {bundle} --brief",),
    ),
    "lowering": Shape(
        "model iree_compiler",
        rows=(
            Rows("stages", "pipeline loops remainders"),
            Rows("ops", "op=id name function model_line=line"),
        ),
        next=("build {model}",),
    ),
    "store-added": Shape(
        rows=(Rows("runs", "file run model added"),),
        next=("store list --store {store} --brief", "store query --store {store} --brief"),
    ),
    "store-runs": Shape(
        "looked.runs looked.skipped looked.unfinished",
        rows=(Rows("runs", "run model function host cpu_model compiler date device iterations median_ns"),),
        next=("store query --store {store} --brief", "store trend --store {store} --brief"),
    ),
    "store-costs": Shape(
        "group_by added_up looked.runs looked.skipped",
        rows=(
            Rows("groups", "model group runs"),
            Rows("groups.metrics", "model group name measured attributed unattributed invocations"),
            Rows("groups.ops", "model group op name line scope amounts"),
        ),
        next=("store sites --store {store} --brief", "store trend --store {store} --brief"),
    ),
    "store-calls": Shape(
        "metric group_by error_percent looked.runs looked.skipped",
        rows=(Rows("groups.sites", "model group site kernel calls p10 median p90 p99 most", largest="median"),),
        next=("store query --store {store} --brief",),
    ),
    "store-trends": Shape(
        "metric over looked.runs looked.skipped",
        rows=(
            Rows("models", "model function nights hosts series changes outliers"),
            Rows(
                "models.changes",
                "model kind op=op.op name=op.name line=op.line scope=op.scope night ratio ratio_low ratio_high "
                "cpu_model hosts",
            ),
            Rows("models.outliers", "model host cpu_model op=op.op ratio"),
        ),
        next=("store query --store {store} --brief",),
    ),
    "store-comparison": Shape(
        "metric before.runs after.runs",
        rows=(
            Rows("models", "model function compared unpaired differences"),
            Rows(
                "models.differences",
                "model kind op=op.op name=op.name line=op.line scope=op.scope ratio ratio_low ratio_high cpu_model",
            ),
        ),
        next=("store query --store {store} --brief", "store trend --store {store} --brief"),
    ),
}
"""The shape of the brief form of each kind of document."""


# ---- reading documents


_MOST_ITEMS: Final = 3
_DIGITS: Final = 4


def _value(record: object, path: str) -> object:
    """The value at a path; None where the document has none."""
    for name in path.split("."):
        record = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
    return record


def _figure(value: object) -> Figure:
    """A value as a figure: lists as texts, numbers with four digits after the point."""
    if value is None or isinstance(value, (Unknown, bool, int)):
        return None if isinstance(value, Unknown) else value
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value == value else None  # noqa: PLR0124 - NaN, which JSON lacks
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_figure(item)}" for name, item in value.items())
    if isinstance(value, (tuple, list)):
        return joined(value) if all(isinstance(item, str) for item in value) else len(value)
    if isinstance(value, Struct):
        return ", ".join(f"{name}: {_figure(getattr(value, name))}" for name in value.__struct_fields__)
    return str(value)


def joined(texts: Sequence[str]) -> str:
    """The first texts of a list, and the number of others: `op1, op2, op3 +9`."""
    shown = ", ".join(texts[:_MOST_ITEMS])
    return shown + (f" +{len(texts) - _MOST_ITEMS}" if len(texts) > _MOST_ITEMS else "")


def _names(fields: str) -> Iterator[tuple[str, str]]:
    for name in fields.split():
        key, _, path = name.rpartition("=")
        yield key or path, path


def _records(record: object, path: str) -> Iterator[Mapping[str, object]]:
    """The records of a list, each with the fields of the records that it lies in."""
    name, _, rest = path.partition(".")
    for item in _value(record, name) or ():  # type: ignore[attr-defined] # a list, by the table above
        own = dict(item) if isinstance(item, Mapping) else {key: getattr(item, key) for key in item.__struct_fields__}
        if rest:
            yield from (ChainMap(dict(inner), own) for inner in _records(item, rest))
        else:
            yield own


def _rows(document: object, rows: Rows) -> list[dict[str, object]]:
    """The rows of a list with their fields; those without a value are left out."""
    field_name, value = rows.skip
    found = []
    for record in _records(document, rows.path):
        row = {key: _value(record, path) for key, path in _names(rows.fields)} if rows.fields else dict(record)
        if not field_name or _figure(row[field_name]) != value:
            found.append(row)
    if rows.largest:
        found.sort(key=lambda row: -_number(row[rows.largest]))
    return found


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


# ---- ops


def line_of(graph: TraceGraph, op: Op) -> str:
    """The source line of an op: of the user's Python, else the node of ONNX, else the line of the model."""
    frame = python_frame(graph, op)
    return file_line(frame.file, frame.line) if frame else op.node or op_line(op)


def _with_op(row: dict[str, object], graph: TraceGraph | None) -> dict[str, object]:
    """The row of an op, or of several, with the first op's name, line and kernel."""
    if isinstance(row.get("scope"), tuple):
        row["scope"] = "/".join(row["scope"])  # type: ignore[arg-type] # names of scopes
    ops = row.pop("ops", ())
    if isinstance(ops, (tuple, list)) and ops and isinstance(ops[0], str):
        row = {"op": ops[0], **row} | ({"ops": len(ops)} if len(ops) > 1 else {})
    elif ops and not isinstance(ops, (tuple, list)):
        row["ops"] = ops
    elif isinstance(ops, (tuple, list)) and ops:  # the fused ops of a dispatch, the root first
        members = [member.op for member in sorted(ops, key=lambda member: not member.root)]
        row |= {"op": members[0], "ops": len(members)}
    op = graph.op_by_id.get(str(row.get("op"))) if graph is not None else None
    if graph is None or op is None:
        return row
    sites = graph.sites_of_op.get(op.id, ())
    kernels = list(dict.fromkeys(graph.site_by_id[site].kernel for site in sites))
    row.pop("python", None)  # `line` has it
    own: dict[str, object] = {"name": op.name, "line": line_of(graph, op), "model_line": op.line}
    if not row.get("kernel") and kernels:
        own["kernel"] = joined(kernels)
    if own["line"] == op_line(op):
        del own["model_line"]
    return {**row, **{key: value for key, value in own.items() if key == "line" or not row.get(key)}}


# ---- costs and changes
#
# Rows that documents do not have in this form: those of the views of `tracemap attribute`, and the changes of ops.


_LAST_COLUMN: Final = 59
"""Columns that narrow terminals drop before this one, such as percentiles, are not in brief forms."""


def attribution_with_costs(costed: MapCosts, attribution: Attribution, options: AttributeOptions) -> dict[str, object]:
    """The document of an attribution with the list `costs`: the rows that the options select, per invocation.

    Raises:
        UsageInvalid: an option names an unknown metric or column.
    """
    by = options.by or "op"
    costs = selected_costs(attribution, options)
    chosen = select_from_view(costed, costs, dataclasses.replace(options, by=by))
    columns = [
        column
        for column in chosen.columns
        if chosen.asked or (column.leave <= _LAST_COLUMN and column.heading) or column.key == options.sort
    ]
    rows = [{_key(column): _cell(row, column) for column in columns} for row in chosen.rows]
    ops = {str(row.get("op")) for row in rows} if by == "op" else set()
    advice = sorted(attribution.advice, key=lambda item: ops.isdisjoint(item.ops))
    metrics = [{name: getattr(metric, name) for name in metric.__struct_fields__} for metric in attribution.metrics]
    unattributed = [
        {"reason": row.reason, "metrics": {costs.first.name: row.metrics[costs.first.name]}}
        for row in attribution.unattributed
        if row.metrics[costs.first.name]
    ]
    return {
        "kind": "attribution",
        "rule": attribution.rule,
        "run": record_from(ShownRun, attribution.run, functions=attribution.functions),
        "by": by,
        "ranked_by": costs.first.name,
        "invocation_ns": attribution.run.invocation.median_ns,
        "costs": rows,
        "hidden": {"costs": chosen.hidden},
        "metrics": metrics,
        "advice": advice,
        "unattributed": unattributed,
        "diagnostics": attribution.diagnostics,
    }


def _key(column: Column) -> str:
    """The key of a column with the unit of its numbers, such as `share_percent`."""
    suffix = {PERCENT: "_percent", "ns": "_ns", "bytes": "_bytes"}.get(column.unit, "")
    return column.key if column.key.endswith(suffix) else column.key + suffix


def _cell(row: Mapping[str, Cell], column: Column) -> object:
    """A cell in the unit of its metric, such as ns; shares are in percent."""
    cell = row.get(column.key)
    return float(Fraction(cell) / column.divisor) if isinstance(cell, (int, Fraction)) else cell


def comparison_with_changes(comparison: Comparison, options: DiffOptions) -> dict[str, object]:
    """The document of a comparison with the lists `changes`, `scopes` and `lines`, the largest change first.

    A change is a significant change of an op with all that is known about it; without significant changes, ops whose
    fusion or outcome changed. Amounts are per 1000 invocations in the document, and per invocation here.
    """
    metric = options.metric or _metric_of(comparison)
    findings = {
        finding.after if isinstance(finding.after, str) else finding.before: finding for finding in comparison.findings
    }
    regrouped: dict[str, FusionChange] = {change.after: change for change in comparison.regrouped}
    changes: list[dict[str, object]] = []
    for op in comparison.ops:
        name = op.after if isinstance(op.after, str) else op.before
        finding, fusion = findings.get(name), regrouped.get(str(op.after))
        is_edited = options.only is None and (op.edited or op.outcome_before != op.outcome_after)
        if finding is None and fusion is None and not is_edited:
            continue
        amount = op.amounts.get(metric)
        changes.append(
            {
                "op": op.after,
                "op_before": op.before,
                "change": finding.kind if finding is not None else "no significant change of cost",
                "name": op.called,
                "model_line": op.line_after if isinstance(op.after, str) else op.line_before,
                "scope": "/".join(op.scope),
                "ratio": None if finding is None else finding.ratio,
                **_amount(metric, amount),
                "code": op.code,
                "edited": op.edited or None,
                "outcome_before": op.outcome_before if op.outcome_before != op.outcome_after else None,
                "outcome": op.outcome_after if op.outcome_before != op.outcome_after else None,
                "kernels_before": None if fusion is None else fusion.kernels_before,
                "kernels": None if fusion is None else fusion.kernels_after,
                "is_significant": finding is not None,
                "size": abs(amount.change) if amount is not None else 0,
            }
        )
    changes.sort(key=lambda row: (not row.pop("is_significant"), -_number(row.pop("size"))))
    fields = {name: getattr(comparison, name) for name in comparison.__struct_fields__}
    groups = {
        name: [
            {"name": group.name, "ops": group.ops, **_amount(metric, group.amounts[metric])}
            for group in sorted(getattr(comparison, name), key=lambda group: -abs(_change(group, metric)))
            if _change(group, metric)
        ]
        for name in ("scopes", "sources")
    }
    return {**fields, "ranked_by": metric, "changes": changes, **groups}


def _metric_of(comparison: Comparison) -> str:
    index = default_metric(comparison.metrics)
    return comparison.metrics[index].name if index >= 0 else ""


def _amount(metric: str, amount: Amount | None) -> dict[str, object]:
    """A cost per invocation before and after."""
    if amount is None:
        return {}
    return {f"{metric}_before": amount.before / BASIS, f"{metric}_after": amount.after / BASIS}


def _change(group: GroupedCost, metric: str) -> int:
    return group.amounts[metric].change if metric in group.amounts else 0


# ---- making brief forms


@dataclass(frozen=True, slots=True)
class Context:
    """The facts of a command that its document lacks.

    Attributes:
        graph: the map, for names and lines of ops.
        words: words of the next commands by name, such as `bundle`.
        focus: ids and names that the user asked for; their rows come first.
    """

    graph: TraceGraph | None = None
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    focus: Collection[str] = ()


def brief(document: object, context: Context) -> Brief:
    """The brief form of a JSON document.

    Args:
        document: a record of the JSON, or what the JSON is made of.
        context: the map, and words of the next commands.
    """
    kind = str(_figure(_value(document, "kind")) or GOOGLE_BENCHMARK)
    shape = SHAPES[kind]
    records = {listed.path.rpartition(".")[2]: _rows(document, listed) for listed in shape.rows}
    rows = {name: _finished(own, context) for name, own in records.items() if own}
    excluded = _value(document, "hidden") or {}
    assert isinstance(excluded, Mapping)
    hidden = {name: len(records[name]) - len(own) + excluded.get(name, 0) for name, own in rows.items()}
    words = {**context.words, **_first_values(rows)}
    return fitted(kind, _figures(document, shape), rows, list(_commands(shape.next, words)), hidden)


def _figures(document: object, shape: Shape) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in shape.figures.split():
        value = _value(document, name)
        if isinstance(value, Mapping):
            figures |= {f"{name}.{_figure(key)}": _figure(item) for key, item in value.items() if item}
        elif _figure(value) is not None:
            figures[name] = _figure(value)
    for name in shape.counts.split():
        path, _, key = name.partition(".")
        counts = Counter(_text(_figure(_value(record, key))) for record in _records(document, path))
        figures |= {f"{name}.{value}": count for value, count in sorted(counts.items())}
    return figures


def _text(figure: Figure) -> str:
    return str(figure).lower() if isinstance(figure, bool) else str(figure)


def _finished(rows: Sequence[Mapping[str, object]], context: Context) -> list[dict[str, Figure]]:
    """The first rows as figures, with the facts of their ops; rows of the focus come first."""
    if context.focus:
        rows = sorted(rows, key=lambda row: not _is_in_focus(row, context.focus))
    figures = (
        {key: _figure(value) for key, value in _with_op(dict(row), context.graph).items()} for row in rows[:_MOST_ROWS]
    )
    return [{key: value for key, value in row.items() if value not in (None, "")} for row in figures]


def _is_in_focus(row: Mapping[str, object], focus: Collection[str]) -> bool:
    ops = row.get("ops")
    names = [row.get("op"), row.get("site"), row.get("kernel"), *(ops if isinstance(ops, (tuple, list)) else ())]
    return any(name in focus for name in names if isinstance(name, str))


def _first_values(rows: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[str]]:
    """Words for the next commands: the first value of each field that can be an argument, as `list.field`."""
    words: dict[str, Sequence[str]] = {}
    for name, own in rows.items():
        for row in own:
            for key, value in row.items():
                if isinstance(value, str) and _IS_WORD.fullmatch(value):
                    words.setdefault(f"{name}.{key}", (value,))
    return words


_IS_WORD: Final = re.compile(r"[\w.$/][\w.$/:()<>-]{0,199}")
"""Names and lines that are arguments as they are; those of hostile models may look like options."""


def _commands(templates: Iterable[str], words: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """The commands whose words are all known; `{name}` may stand for several words."""
    for template in templates:
        command: list[str] = ["tracemap"]
        for word in template.split():
            name = word.removeprefix("{").removesuffix("}")
            command += [word] if name == word else words.get(name, ())
            if name != word and not words.get(name):
                break
        else:
            yield tuple(command)


# ---- fitting


_TEXT_LIMITS: Final = (160, 100, 60)
"""Most characters of a text, tried in turn while a document is too large with five rows per list."""
_MOST_ROWS, _FEWEST_ROWS = 12, 4
_MOST_COMMAND_BYTES: Final = 1200


def fitted(
    kind: str,
    figures: Mapping[str, Figure],
    rows: Mapping[str, Sequence[Row]],
    commands: Sequence[tuple[str, ...]] = (),
    hidden: Mapping[str, int] = MappingProxyType({}),
    limit_bytes: int = LIMIT_BYTES,
    whole: Collection[str] = (),
) -> Brief:
    """A brief form within the limit: first with fewer rows, then with shorter texts, then with even fewer rows.

    Args:
        kind: the kind of the whole document.
        figures: the figures.
        rows: lists of rows, the most important list and row first.
        commands: the next commands.
        hidden: number of rows that are left out already, by list.
        limit_bytes: most bytes of the JSON.
        whole: fields of rows whose texts are never cut.
    """
    kept_commands = list(commands)
    while len(encode(kept_commands)) > _MOST_COMMAND_BYTES:
        kept_commands.pop()
    for limit in _TEXT_LIMITS:
        fewest = _FEWEST_ROWS if limit > _TEXT_LIMITS[-1] else 0
        shown = {name: [_cut_row(row, limit, whole) for row in own] for name, own in rows.items()}
        shown_figures = _cut_row(figures, limit)
        while True:
            left_out = {name: len(own) - len(shown[name]) + hidden.get(name, 0) for name, own in rows.items()}
            left_out["figures"] = len(figures) - len(shown_figures)
            left_out["next"] = len(commands) - len(kept_commands)
            made = Brief(
                of=kind,
                figures=shown_figures,
                rows={name: tuple(own) for name, own in shown.items() if own},
                left_out={name: count for name, count in left_out.items() if count},
                next=tuple(kept_commands),
            )
            if len(brief_json(made).encode()) <= limit_bytes:
                return made
            longest = max(
                shown, key=lambda name: len(encode(shown[name])) if len(shown[name]) > fewest else -1, default=""
            )
            if longest and len(shown[longest]) > fewest:
                shown[longest].pop()
            elif fewest:
                break
            elif kept_commands:
                kept_commands.pop()
            else:
                shown_figures.popitem()
    raise AssertionError("a brief form without figures, rows and commands fits")


def _cut_row(row: Row, limit: int, whole: Collection[str] = ()) -> dict[str, Figure]:
    return {
        key: cut(value, sys.maxsize if key in whole else limit) if isinstance(value, str) else value
        for key, value in row.items()
    }


def cut(text: str, limit: int) -> str:
    """The beginning of a text, with control characters escaped and an ellipsis if there is more."""
    escaped = without_controls(text)
    return escaped if len(escaped) <= limit else escaped[: limit - 1] + "…"


def brief_json(document: Brief) -> str:
    """A brief form as one line of JSON."""
    return json_without_controls(encode(document).decode()) + "\n"
