"""A bundle to go on with: its ops as a table, those of a line or a scope, its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracemap.graph import bundle as stored
from tracemap.graph.model import Op
from tracemap.graph.query import named, ops_in_scope, python_frame, scope_text
from tracemap.options.option import text_of
from tracemap.results.display import AsTable, Columns, bar, heading, known, shown, table
from tracemap.units import format_bytes, plural

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
    def of(cls, made: stored.Bundle) -> Bundle:
        """A bundle with ways to show it."""
        return cls(made.path, made.graph, made.map_sha256)

    @property
    def module_bytes(self) -> int:
        """The size of the compiled module, in bytes.

        Example:
            >>> tracemap.load("model.tracemap").module_bytes > 1000
            True
        """
        return self.module_path.stat().st_size

    def op(self, what: str) -> tuple[Op, ...]:
        """The ops of a place: `model.mlir:31`, `layers.py:40`, `op12`, or a scope and all below it.

        Raises:
            tracemap.errors.QueryInvalid: the map has nothing of that name.

        Example:
            >>> [op.name for op in tracemap.load("model.tracemap").op("model.py:11")]
            ['stablehlo.tanh', 'stablehlo.add']
        """
        wanted = set(named(self.graph, text_of("what", what)))
        return tuple(op for op in self.graph.ops if op.id in wanted)

    def scope(self, path: str) -> tuple[Op, ...]:
        """The ops of a scope such as `h0/attn` and of all below it; none where there is no such scope.

        Example:
            >>> [op.id for op in tracemap.load("model.tracemap").scope("h0/attn")]
            ['op2', 'op3', 'op4']
        """
        wanted = set(ops_in_scope(self.graph, tuple(filter(None, text_of("path", path).split("/")))))
        return tuple(op for op in self.graph.ops if op.id in wanted)

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the annotated page, without costs; returns its file, which goes with the process unless it is named.

        Raises:
            tracemap.errors.TargetExists, tracemap.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.load("model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.options.results import ReportOptions
        from tracemap.session.report import report

        return shown(lambda file: report(self, [], ReportOptions(output=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """A row for each op of the model."""
        graph = self.graph
        ops = graph.ops
        frames = [python_frame(graph, op) for op in ops]
        return {
            "op": [str(op.id) for op in ops],
            "name": [op.name for op in ops],
            "file": [known(op.file) for op in ops],
            "line": [known(op.line) for op in ops],
            "column": [known(op.column) for op in ops],
            "function": [known(op.function) for op in ops],
            "scope": [scope_text(graph, op) for op in ops],
            "python": [f"{frame.file}:{frame.line}" if frame else None for frame in frames],
            "fate": [op.fate.value for op in ops],
            "reason": [op.reason.text for op in ops],
            "sites": [len(graph.sites_of_op.get(op.id, ())) for op in ops],
        }

    def _repr_html_(self) -> str:
        graph = self.graph
        counts = ", ".join([plural(len(graph.ops), "op"), plural(len(graph.sites), "site")])
        said = f"{self.name}: {counts}, {plural(len(graph.kernels), 'kernel')}, {format_bytes(self.module_bytes)}"
        fates: dict[str, int] = {}
        for op in graph.ops:
            fates[op.fate.value] = fates.get(op.fate.value, 0) + 1
        rows = [(kernel.name, str(len(kernel.sites))) for kernel in graph.kernels[:_TOP]]
        more = len(graph.kernels) - len(rows)
        rest = heading(f"… {plural(more, 'more kernel')}") if more > 0 else ""
        ranked = sorted(fates.items(), key=lambda item: -item[1])
        return heading(said) + bar(ranked, len(graph.ops)) + table(("kernel", "sites"), rows, 1) + rest
