"""An attribution to go on with: costs of ops as a table, of a line or a scope as sums, as picture and as page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.attribution import model
from tracemap.errors import QueryInvalid
from tracemap.graph.query import named, python_frame, same_file
from tracemap.options.option import text_of
from tracemap.results.bundle import Bundle
from tracemap.results.display import AsTable, Columns, Value, bar, heading, known, shown, table
from tracemap.units import UNKNOWN, format_ns, format_share

if TYPE_CHECKING:
    from tracemap.reports.cost_lookup import CostedMap, Reached

_TOP = 10


@dataclass(frozen=True, slots=True)
class Cost(Mapping[str, int]):
    """What a part of a program costs, summed over the run: by the names of metrics, which carry their units.

    `ops`: the ids of the ops; `work`: what shares are of, by metric.

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
        """The part of all work that this is, from 0 to 1.

        Example:
            >>> result = tracemap.attribute("run.parquet", "model.tracemap")
            >>> round(sum(result.scope(part).share("cpu_ns") for part in ("h0/attn", "h0/ffn")), 9)
            1.0
        """
        return self.sums[metric] / self.work[metric] if self.work[metric] else 0.0

    def __repr__(self) -> str:
        told = (f"{name}={value} ({format_share(value, self.work[name])})" for name, value in self.sums.items())
        return f"Cost({self.what!r}, {len(self.ops)} ops, {', '.join(told)})"


@dataclass(frozen=True, repr=False)
class Attribution(model.Attribution, AsTable):
    """An attribution, as `tracemap.attribute` returns it.

    `bundle`: whose ops they are; `paths`: the runs.

    Example:
        >>> result = tracemap.attribute("run.parquet", "model.tracemap")
        >>> [metric.name for metric in result.metrics], len(result.ops), len(result.sites)
        (['cpu_ns', 'duration_ns'], 8, 4)
    """

    bundle: Bundle | None = None
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, made: model.Attribution, bundle: Bundle, paths: tuple[Path, ...]) -> Attribution:
        """An attribution with what it is of."""
        return cls(**{each.name: getattr(made, each.name) for each in fields(made)}, bundle=bundle, paths=paths)

    def op(self, what: str) -> Cost:
        """The cost of an op (`op12`) or of a line, of the model or of its Python: `model.mlir:31`, `layers.py:40`.

        A line has what is attributed to ops of it, or of calls on it.

        Raises:
            tracemap.errors.QueryInvalid: the map has nothing of that name.

        Example:
            >>> result = tracemap.attribute("run.parquet", "model.tracemap")
            >>> result.op("model.py:14").ops, result.op("model.mlir:25").ops
            (('op5', 'op8', 'op9'), ('op5',))
        """
        costed = self._costed()
        wanted = set(named(costed.graph, text_of("what", what)))
        file, _, line = what.rpartition(":")

        def matches(reached: Reached) -> bool:
            if reached.op.id in wanted:
                return True
            at_line = (frame for frame in reached.frames if str(frame.line) == line)
            return bool(file) and any(same_file(frame.file, file) for frame in at_line)

        return self._sum(what, costed, matches)

    def scope(self, path: str) -> Cost:
        """The cost of a scope such as `h0/attn` and of all below it, by the calls that lead there.

        Raises:
            tracemap.errors.QueryInvalid: no op that costs anything is in it.

        Example:
            >>> tracemap.attribute("run.parquet", "model.tracemap").scope("h0/attn").ops
            ('op2', 'op4', 'op3')
        """
        wanted, costed = tuple(filter(None, text_of("path", path).split("/"))), self._costed()
        found = self._sum(path, costed, lambda reached: reached.scope[: len(wanted)] == wanted)
        if not found.ops:
            raise QueryInvalid(f"{path}: no op of the run is in a scope of this name")
        return found

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the page with these costs; returns its file, which goes with the process unless it is named.

        Raises:
            tracemap.errors.TargetExists, tracemap.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.attribute("run.parquet", "model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.options.results import ReportOptions
        from tracemap.session.report import report

        bundle, paths, rule = self._opened(), self.paths, self.rule
        return shown(lambda file: report(bundle, paths, ReportOptions(output=file, rule=rule)), output, browser=browser)

    def _opened(self) -> Bundle:
        if self.bundle is None:
            raise QueryInvalid("this attribution does not know its bundle; get it by tracemap.attribute")
        return self.bundle

    def _costed(self) -> CostedMap:
        from tracemap.reports.cost_lookup import CostedMap

        return CostedMap(self._opened().graph, self)

    def _sum(self, what: str, costed: CostedMap, matches: Callable[[Reached], bool]) -> Cost:
        sums = {metric.name: 0 for metric in self.metrics}
        ops: dict[str, None] = {}
        for reached in costed.reached:
            if matches(reached):
                ops[str(reached.op.id)] = None
                for name, value in reached.attributed.items():
                    sums[name] += value
        return Cost(what, tuple(ops), sums, {metric.name: metric.work for metric in self.metrics})

    def _columns(self) -> Columns:
        """A row for each op that is a member of a site; a column for each metric, and one of what it is part of."""
        costed = self._costed()
        by_id = costed.graph.op_by_id
        ops = [by_id[result.op] for result in self.ops]
        frames = [python_frame(costed.graph, op) for op in ops]
        columns: dict[str, list[Value]] = {
            "op": [str(op.id) for op in ops],
            "name": [op.name for op in ops],
            "file": [known(op.file) for op in ops],
            "line": [known(op.line) for op in ops],
            "scope": [costed.scope_of(op) for op in ops],
            "python": [f"{frame.file}:{frame.line}" if frame else None for frame in frames],
            "fate": [op.fate.value for op in ops],
            "calls": [known(result.calls) for result in self.ops],
        }
        for metric in self.metrics:
            columns[metric.name] = [result.metrics[metric.name].attributed for result in self.ops]
            columns[f"inclusive_{metric.name}"] = [result.metrics[metric.name].inclusive for result in self.ops]
        return columns

    def _repr_html_(self) -> str:
        from tracemap.reports.advice import shown_amount
        from tracemap.reports.cost_lookup import default_metric

        costed = self._costed()
        metric = self.metrics[default_metric(self.metrics)]
        scopes: dict[str, int] = {}
        for reached in costed.reached:
            name = "/".join(reached.scope) or reached.op.name
            scopes[name] = scopes.get(name, 0) + reached.attributed[metric.name]
        ranked = sorted(scopes.items(), key=lambda item: (-item[1], item[0]))
        run = self.run
        told = [f"{shown_amount(metric.attributed, metric)} of {metric.name} in ops"]
        told += [] if run.invocation.median_ns is UNKNOWN else [f"median call {format_ns(run.invocation.median_ns)}"]
        told += [] if run.device is UNKNOWN else [f"device {run.device}"]
        said = f"{costed.graph.module.name}: {', '.join(told)}"
        return heading(said) + bar(ranked, metric.attributed) + self._top(costed, metric)

    def _top(self, costed: CostedMap, metric: model.MetricTotal) -> str:
        from tracemap.reports.advice import shown_amount

        dearest = sorted(self.ops, key=lambda result: -result.metrics[metric.name].attributed)[:_TOP]
        rows = []
        for result in dearest:
            op, value = costed.graph.op_by_id[result.op], result.metrics[metric.name].attributed
            own = python_frame(costed.graph, op)
            place = f"{Path(own.file).name}:{own.line}" if own else f"{known(op.file)}:{known(op.line)}"
            amount = shown_amount(value, metric), format_share(value, metric.work)
            rows.append((str(op.id), place, op.name, costed.scope_of(op), *amount))
        more = len(self.ops) - len(rows)
        rest = heading(f"… {more} more") if more > 0 else ""
        return table(("op", "line", "name", "scope", metric.name, "share"), rows, 4) + rest
