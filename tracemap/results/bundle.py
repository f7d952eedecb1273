"""Result of `tracemap.build` and `tracemap.load`: ops as a table, ops of a line or scope, and the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracemap.core.units import format_bytes, plural
from tracemap.map import bundle as stored
from tracemap.map.model import Op
from tracemap.map.query import ops_in_scope, ops_of, python_frame, resolve, scope_text
from tracemap.options.option import check_string
from tracemap.results.display import AsTable, Columns, bar, cell_of, heading, show_page, table

_TOP = 10


@dataclass(frozen=True, slots=True)
class Bundle(stored.Bundle, AsTable):
    """A bundle, as `tracemap.build` and `tracemap.load` return it.

    Example:
        >>> bundle = tracemap.load("model.tracemap")
        >>> bundle.path.name, len(bundle.graph.ops), len(bundle.graph.sites), len(bundle.graph.kernels)
        ('model.tracemap', 10, 4, 3)
    """

    @classmethod
    def of(cls, bundle: stored.Bundle) -> Bundle:
        """Extend a bundle with tables, lookups and pages."""
        return cls(bundle.path, bundle.graph, bundle.map_sha256)

    @property
    def module_bytes(self) -> int:
        """Size of the compiled module in bytes.

        Example:
            >>> tracemap.load("model.tracemap").module_bytes > 1000
            True
        """
        return self.module_path.stat().st_size

    def op(self, what: str) -> tuple[Op, ...]:
        """Ops of a line (`31`, `model.mlir:31`, `layers.py:40`), a function, a scope, an ONNX node, an id or a name.

        Raises:
            tracemap.core.errors.QueryInvalid: nothing in the map has this name.

        Example:
            >>> [op.name for op in tracemap.load("model.tracemap").op("model.py:11")]
            ['stablehlo.tanh', 'stablehlo.add']
        """
        return ops_of(self.graph, resolve(self.graph, check_string("what", what), self.source_text).names)

    def scope(self, path: str) -> tuple[Op, ...]:
        """Ops of a scope such as `h0/attn` with everything below it; empty if there is no such scope.

        Example:
            >>> [op.id for op in tracemap.load("model.tracemap").scope("h0/attn")]
            ['op2', 'op3', 'op4']
        """
        selected = set(ops_in_scope(self.graph, tuple(filter(None, check_string("path", path).split("/")))))
        return tuple(op for op in self.graph.ops if op.id in selected)

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the annotated page without costs; return its file, which is temporary unless `output` names one.

        Raises:
            tracemap.core.errors.TargetExists, tracemap.core.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.load("model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.commands.report import report
        from tracemap.options.reports import ReportOptions

        return show_page(lambda file: report(self, [], ReportOptions(output=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """One row per op of the model."""
        graph = self.graph
        ops = graph.ops
        frames = [python_frame(graph, op) for op in ops]
        return {
            "op": [str(op.id) for op in ops],
            "name": [op.name for op in ops],
            "file": [cell_of(op.file) for op in ops],
            "line": [cell_of(op.line) for op in ops],
            "column": [cell_of(op.column) for op in ops],
            "function": [cell_of(op.function) for op in ops],
            "scope": [scope_text(graph, op) for op in ops],
            "python": [f"{frame.file}:{frame.line}" if frame else None for frame in frames],
            "outcome": [op.outcome.value for op in ops],
            "reason": [op.reason.text for op in ops],
            "sites": [len(graph.sites_of_op.get(op.id, ())) for op in ops],
        }

    def _repr_html_(self) -> str:
        graph = self.graph
        counts = ", ".join([plural(len(graph.ops), "op"), plural(len(graph.sites), "dispatch")])
        title = f"{self.name}: {counts}, {plural(len(graph.kernels), 'kernel')}, {format_bytes(self.module_bytes)}"
        outcomes: dict[str, int] = {}
        for op in graph.ops:
            outcomes[op.outcome.value] = outcomes.get(op.outcome.value, 0) + 1
        rows = [(kernel.name, str(len(kernel.sites))) for kernel in graph.kernels[:_TOP]]
        more = len(graph.kernels) - len(rows)
        rest = heading(f"… {plural(more, 'more kernel')}") if more > 0 else ""
        ranked = sorted(outcomes.items(), key=lambda item: -item[1])
        return heading(title) + bar(ranked, len(graph.ops)) + table(("kernel", "dispatches"), rows, 1) + rest
