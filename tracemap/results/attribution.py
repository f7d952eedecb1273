"""Result of `tracemap.attribute`: costs of ops as a table, sums per line or scope, and the page."""

from __future__ import annotations

import webbrowser
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.attribution import model
from tracemap.attribution.what_if import Gain
from tracemap.core.errors import QueryInvalid, UsageInvalid
from tracemap.core.units import UNKNOWN, format_ns, format_share
from tracemap.map.query import python_frame
from tracemap.options.option import check_string, merge_options
from tracemap.options.reports import WhatIfOptions
from tracemap.results.bundle import Bundle
from tracemap.results.display import AsTable, Columns, Value, bar, cell_of, heading, show_page, table

if TYPE_CHECKING:
    from tracemap.reports.cost_lookup import MapCosts, OpOccurrence
    from tracemap.results.sql import QueryResult

_TOP = 10


@dataclass(frozen=True, slots=True)
class Cost(Mapping[str, int]):
    """Cost of a part of a program, summed over the run, by metric name. The names contain the units.

    `ops`: ids of the ops; `work`: total work by metric, which shares refer to.

    Example:
        >>> cost = tracemap.attribute("run.parquet", "model.tracemap").op("op2")
        >>> sorted(cost), cost.ops, 0 < cost["cpu_ns"] <= cost.work["cpu_ns"]
        (['cpu_ns', 'duration_ns'], ('op2',), True)
    """

    what: str
    ops: tuple[str, ...]
    sums: Mapping[str, int]
    work: Mapping[str, int]

    def __getitem__(self, metric: str) -> int:
        return self.sums[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums)

    def __len__(self) -> int:
        return len(self.sums)

    def share(self, metric: str) -> float:
        """Share of the total work, from 0 to 1.

        Example:
            >>> result = tracemap.attribute("run.parquet", "model.tracemap")
            >>> round(sum(result.scope(part).share("cpu_ns") for part in ("h0/attn", "h0/ffn")), 9)
            1.0
        """
        return self.sums[metric] / self.work[metric] if self.work[metric] else 0.0

    def __repr__(self) -> str:
        sums = (f"{name}={value} ({format_share(value, self.work[name])})" for name, value in self.sums.items())
        return f"Cost({self.what!r}, {len(self.ops)} ops, {', '.join(sums)})"


@dataclass(frozen=True, repr=False)
class Attribution(model.Attribution, AsTable):
    """An attribution, as `tracemap.attribute` returns it.

    `bundle`: the bundle with the ops; `paths`: the runs.

    Example:
        >>> result = tracemap.attribute("run.parquet", "model.tracemap")
        >>> [metric.name for metric in result.metrics], len(result.ops), len(result.sites)
        (['cpu_ns', 'duration_ns'], 8, 4)
    """

    bundle: Bundle | None = None
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, attribution: model.Attribution, bundle: Bundle, paths: tuple[Path, ...]) -> Attribution:
        """Extend an attribution with its bundle and runs."""
        inherited = {field.name: getattr(attribution, field.name) for field in fields(attribution)}
        return cls(**inherited, bundle=bundle, paths=paths)

    def op(self, what: str) -> Cost:
        """Cost of a line (`31`, `model.mlir:31`, `layers.py:40`), a function, a scope, an ONNX node, an id or a name.

        The cost of a line is that of its ops, and of ops with this line in their call stack.

        Raises:
            tracemap.core.errors.QueryInvalid: nothing in the map has this name.

        Example:
            >>> result = tracemap.attribute("run.parquet", "model.tracemap")
            >>> result.op("model.py:14").ops, result.op("model.mlir:25").ops
            (('op5', 'op8', 'op9'), ('op5',))
        """
        costed = self._costed()
        return self._sum(what, costed.occurrences(check_string("what", what), self._opened().source_text))

    def scope(self, path: str) -> Cost:
        """Cost of a scope such as `h0/attn` with everything below it, forward and backward.

        Ops of called functions have the caller's scope.

        Raises:
            tracemap.core.errors.QueryInvalid: no op with a cost is in this scope.

        Example:
            >>> tracemap.attribute("run.parquet", "model.tracemap").scope("h0/attn").ops
            ('op2', 'op4', 'op3')
        """
        return self._sum(path, self._costed().occurrences_in_scope(check_string("path", path)))

    def what_if(self, options: WhatIfOptions | None = None, **changes: object) -> Gain:
        """Gain of the mean time of an invocation by a change, which the options of `tracemap what-if` name.

        Args:
            options: options that name an op, line, scope, kernel, the overhead or a number of workers.
            changes: options by name.

        Raises:
            tracemap.core.errors.QueryInvalid: nothing in the map has the name.
            tracemap.core.errors.UsageInvalid: no change is named, or the runs lack times or invocations.

        Example:
            >>> gain = tracemap.attribute("run.parquet", "model.tracemap").what_if(op="op2", faster="2x")
            >>> gain.low_ns <= gain.after_ns <= gain.high_ns, gain.after_ns < gain.before_ns, gain.reason
            (True, True, '')
        """
        from tracemap.commands.what_if import check_options, gains

        asked = merge_options(WhatIfOptions, options, changes)
        check_options(asked)
        if not asked.names_change:
            raise UsageInvalid("what_if needs a change: name an op, line, scope, kernel, overhead or workers")
        return gains(self._costed(), self._opened(), asked).changes[0].gain

    def sql(self, query: str) -> QueryResult:
        """Query the map, the costs and the runs' events in DuckDB's SQL; docs/sql.md has the tables.

        Raises:
            tracemap.core.errors.QueryInvalid: the query is wrong, or a number in a table has more than 64 bits.

        Example:
            >>> result = tracemap.attribute("run.parquet", "model.tracemap")
            >>> query = "SELECT kernel, sum(total) FROM dispatches JOIN dispatch_costs USING (dispatch) GROUP BY ALL"
            >>> sorted(kernel for kernel, total in result.sql(query) if total > 0)[0]
            'main_dispatch_0_matmul_24x16x16_f32'
        """
        from tracemap.results import sql

        return sql.query(self._opened().graph, self, self.paths, check_string("query", query))

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the page with these costs; return its file, which is temporary unless `output` names one.

        Raises:
            tracemap.core.errors.TargetExists, tracemap.core.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.attribute("run.parquet", "model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.commands.report import report
        from tracemap.options.reports import ReportOptions

        bundle, paths, rule = self._opened(), self.paths, self.rule
        return show_page(
            lambda file: report(bundle, paths, ReportOptions(output=file, rule=rule)), output, browser=browser
        )

    def _opened(self) -> Bundle:
        if self.bundle is None:
            raise QueryInvalid("this attribution has no bundle; create it with tracemap.attribute")
        return self.bundle

    def _costed(self) -> MapCosts:
        from tracemap.reports.cost_lookup import MapCosts

        return MapCosts(self._opened().graph, self)

    def _sum(self, what: str, occurrences: Iterable[OpOccurrence]) -> Cost:
        sums = {metric.name: 0 for metric in self.metrics}
        ops: dict[str, None] = {}
        for reached in occurrences:
            ops[str(reached.op.id)] = None
            for name, value in reached.attributed.items():
                sums[name] += value
        return Cost(what, tuple(ops), sums, {metric.name: metric.work for metric in self.metrics})

    def _columns(self) -> Columns:
        """One row per op with a cost; two columns per metric: the share and the inclusive cost.

        `gain_ns`: time that an invocation saves if the op is twice as fast, with its interval. `error_ulps` and
        `accumulated_ulps`: errors of the op's dispatches, if `tracemap.numerics` stored them in the bundle.
        """
        costed = self._costed()
        by_id = costed.graph.op_by_id
        ops = [by_id[result.op] for result in self.ops]
        frames = [python_frame(costed.graph, op) for op in ops]
        columns: dict[str, list[Value]] = {
            "op": [str(op.id) for op in ops],
            "name": [op.name for op in ops],
            "file": [cell_of(op.file) for op in ops],
            "line": [cell_of(op.line) for op in ops],
            "scope": [costed.scope_of(op) for op in ops],
            "pass": [costed.pass_text(op) or None for op in ops],
            "python": [f"{frame.file}:{frame.line}" if frame else None for frame in frames],
            "outcome": [op.outcome.value for op in ops],
            "calls": [cell_of(result.calls) for result in self.ops],
        }
        for metric in self.metrics:
            columns[metric.name] = [result.metrics[metric.name].attributed for result in self.ops]
            columns[f"inclusive_{metric.name}"] = [result.metrics[metric.name].inclusive for result in self.ops]
        of_ops = [costed.gain_of_op(result.op) for result in self.ops]
        if any(of_ops):
            columns["gain_ns"] = [gain.saved_ns if gain else None for gain in of_ops]
            columns["gain_low_ns"] = [gain.before_ns - gain.high_ns if gain else None for gain in of_ops]
            columns["gain_high_ns"] = [gain.before_ns - gain.low_ns if gain else None for gain in of_ops]
        errors = [result.errors for result in self.ops]
        if any(error != model.UNKNOWN_ERRORS for error in errors):
            columns["error_ulps"] = [cell_of(error.isolated_ulps) for error in errors]
            columns["accumulated_ulps"] = [cell_of(error.accumulated_ulps) for error in errors]
        return columns

    def _repr_html_(self) -> str:
        from tracemap.reports.advice import format_amount
        from tracemap.reports.cost_lookup import default_metric

        costed = self._costed()
        metric = self.metrics[default_metric(self.metrics)]
        scopes: dict[str, int] = defaultdict(int)
        for reached in costed.reached:
            scopes["/".join(reached.scope) or reached.op.name] += reached.attributed[metric.name]
        ranked = sorted(scopes.items(), key=lambda item: (-item[1], item[0]))
        facts = [f"{format_amount(metric.attributed, metric)} of {metric.name} in ops"]
        median_ns, device = self.run.invocation.median_ns, self.run.device
        facts += [] if median_ns is UNKNOWN else [f"median invocation {format_ns(median_ns)}"]
        facts += [] if device is UNKNOWN else [f"device {device}"]
        title = f"{costed.graph.module.name}: {', '.join(facts)}"
        return heading(title) + bar(ranked, metric.attributed) + self._top(costed, metric)

    def _top(self, costed: MapCosts, metric: model.MetricTotal) -> str:
        from tracemap.reports.advice import format_amount

        hottest = sorted(self.ops, key=lambda result: -result.metrics[metric.name].attributed)[:_TOP]
        rows = []
        for result in hottest:
            op, value = costed.graph.op_by_id[result.op], result.metrics[metric.name].attributed
            own = python_frame(costed.graph, op)
            place = f"{Path(own.file).name}:{own.line}" if own else f"{cell_of(op.file)}:{cell_of(op.line)}"
            amount = format_amount(value, metric), format_share(value, metric.work)
            rows.append((str(op.id), place, op.name, costed.scope_of(op), *amount))
        more = len(self.ops) - len(rows)
        rest = heading(f"… {more} more") if more > 0 else ""
        return table(("op", "line", "name", "scope", metric.name, "share"), rows, 4) + rest


# ---- profile


@dataclass(frozen=True, repr=False)
class Profile(AsTable):
    """A profile, as `tracemap.profile` returns it; `print` shows what `tracemap profile` prints.

    `attribution`: costs of ops; `run`: the run's file; `page`: the annotated page; `text`: the printed summary.

    Example:
        >>> profile = tracemap.profile("model.tracemap", seconds=0.2)
        >>> "Page: model.html" in str(profile), profile.attribution.op("op2")["cpu_ns"] > 0
        (True, True)
    """

    attribution: Attribution
    run: Path
    page: Path
    text: str

    def __str__(self) -> str:
        return self.text

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the page, or a copy of it in a file `output`; return its path.

        Raises:
            tracemap.core.errors.TargetExists, tracemap.core.errors.TargetUnwritable: the copy cannot be written.

        Example:
            >>> tracemap.profile("model.tracemap", seconds=0.2).show(browser=False).name
            'model.html'
        """
        if output is not None:
            return self.attribution.show(output, browser=browser)
        if browser:
            webbrowser.open(self.page.resolve().as_uri())
        return self.page

    def _columns(self) -> Columns:
        return self.attribution._columns()

    def _repr_html_(self) -> str:
        return self.attribution._repr_html_()

    def __repr__(self) -> str:
        return f"Profile({str(self.page)!r})"
