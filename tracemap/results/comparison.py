"""Results of `tracemap.diff` and `tracemap.bench`, for Python and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

from tracemap.compare import model as compared
from tracemap.core.errors import QueryInvalid
from tracemap.core.units import format_ns, plural
from tracemap.kernels import model
from tracemap.options.option import check_string
from tracemap.options.reports import DiffOptions
from tracemap.results.display import AsTable, Columns, Value, cell_of, heading, show_page, table

# ---- bench
#
# Kernels run alone, as a table and in notebooks.


_TOP = 10


class Bench(model.Bench, AsTable, frozen=True):
    """Result of `tracemap.bench`.

    Example:
        >>> made = tracemap.bench("model.tracemap", kernel=["*_2_*"], repetitions=3, min_time=1, no_verify=True)
        >>> [(kernel.sites, kernel.time_ns.median > 0) for kernel in made.kernels]
        [(('site2', 'site3'), True)]
    """

    @classmethod
    def of(cls, bench: model.Bench) -> Bench:
        """Extend a bench with tables and a notebook view."""
        return cls(**{name: getattr(bench, name) for name in model.Bench.__struct_fields__})

    def _columns(self) -> Columns:
        """One row per kernel and operation; times are medians per call."""
        kernels = self.kernels
        times = [(kernel.time_ns, kernel.cold_ns) for kernel in kernels]
        return {
            "kernel": [kernel.kernel for kernel in kernels],
            "operation": [kernel.operation for kernel in kernels],
            "sites": [" ".join(kernel.sites) for kernel in kernels],
            "verified": [kernel.verification.status.value for kernel in kernels],
            "time_ns": [None if warm is None else warm.median for warm, _ in times],
            "cold_ns": [None if cold is None else cold.median for _, cold in times],
            "operations": [cell_of(kernel.operations) for kernel in kernels],
            "bytes": [cell_of(kernel.bytes) for kernel in kernels],
            "operations_per_s": [kernel.operations_per_s for kernel in kernels],
            "bytes_per_s": [kernel.bytes_per_s for kernel in kernels],
            "roofline_share": [kernel.roofline_share for kernel in kernels],
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                kernel.kernel,
                kernel.operation,
                kernel.verification.status.value,
                "" if kernel.time_ns is None else format_ns(round(kernel.time_ns.median)),
                "" if kernel.roofline_share is None else f"{100 * kernel.roofline_share:.0f} %",
            )
            for kernel in self.kernels[:_TOP]
        ]
        return heading(f"{plural(len(self.kernels), 'kernel')} alone, device {self.device}") + table(
            ("kernel", "operation", "verified", "time per call", "% of roofline"), rows, 3
        )


# ---- comparison
#
# A comparison: ops before and after as a table, findings in notebooks, and the page.


_MOST_CHANGES = 10


class Comparison(compared.Comparison, AsTable, frozen=True):
    """Result of `tracemap.diff`. `paths`: paths of both sides; `options`: options of the comparison.

    Example:
        >>> made = tracemap.diff("model.tracemap", "model.tracemap")
        >>> made.findings, made.regrouped, len(made.ops)
        ((), (), 10)
    """

    paths: tuple[Sequence[Path], Sequence[Path]] | None = None
    options: DiffOptions | None = None

    @classmethod
    def of(
        cls, comparison: compared.Comparison, before: Sequence[Path], after: Sequence[Path], options: DiffOptions
    ) -> Comparison:
        """Extend a comparison with its paths and options."""
        fields = {name: getattr(comparison, name) for name in compared.Comparison.__struct_fields__}
        return cls(**fields, paths=(before, after), options=options)

    def __str__(self) -> str:
        from tracemap.reports.terminal.diff import print_diff

        out = StringIO()
        print_diff(self, out, self.options or DiffOptions())
        return out.getvalue().rstrip()

    def __repr__(self) -> str:
        return f"Comparison({plural(len(self.findings), 'finding')}, {plural(len(self.ops), 'op')})"

    def op(self, what: str) -> compared.OpDifference:
        """Find an op by its id after the change, such as `op12`, or else by its id before the change.

        Raises:
            tracemap.core.errors.QueryInvalid: neither side has it.

        Example:
            >>> tracemap.diff("model.tracemap", "model.tracemap").op("op2").line_after
            15
        """
        for side in ("after", "before"):
            for op in self.ops:
                if getattr(op, side) == what:
                    return op
        raise QueryInvalid(f"{check_string('what', what)}: neither side has such an op; name an op such as op12")

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the comparison's page; return its file, which is temporary unless `output` names one.

        Raises:
            tracemap.core.errors.TargetExists, tracemap.core.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.diff("model.tracemap", "model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        from tracemap.commands.diff import diff

        if self.paths is None or self.options is None:
            raise QueryInvalid("this comparison has no paths; create it with tracemap.diff")
        paths, asked = self.paths, replace(self.options, output=None)
        return show_page(lambda file: diff(*paths, replace(asked, html=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """One row per op of either side; two columns per metric, before and after."""
        columns: dict[str, list[Value]] = {
            name: [cell_of(getattr(op, name)) for op in self.ops]
            for name in ("before", "after", "how", "edited", "name_before", "name", "line_before", "line_after")
        }
        columns["scope"] = ["/".join(op.scope) for op in self.ops]
        columns |= {
            name: [cell_of(getattr(op, name)) for op in self.ops]
            for name in ("outcome_before", "outcome_after", "code")
        }
        for metric in self.metrics:
            amounts = [op.amounts.get(metric.name) for op in self.ops]
            columns[f"{metric.name}_before"] = [amount.before if amount else None for amount in amounts]
            columns[f"{metric.name}_after"] = [amount.after if amount else None for amount in amounts]
        return columns

    def _repr_html_(self) -> str:
        names = f"{self.before.bundle} → {self.after.bundle}"
        matched = f"{self.matched_percent:.1f} % of ops are matched"
        if not self.findings:
            return heading(f"{names}: no significant change (> {self.threshold_percent:g} %); {matched}")
        rows = [_row(finding) for finding in self.findings[:_MOST_CHANGES]]
        more = len(self.findings) - len(rows)
        title = heading(f"{names}: {plural(len(self.findings), 'significant change')}; {matched}")
        headings = ("change", "op", "name", "line", "ratio", "before", "after")
        return title + table(headings, rows, 4) + (heading(f"… {more} more") if more > 0 else "")


def _row(finding: compared.Finding) -> tuple[str, ...]:
    ids = " → ".join(dict.fromkeys(str(cell_of(side)) for side in (finding.before, finding.after) if cell_of(side)))
    times = finding.median_before, finding.median_after
    medians = ["" if cell_of(time) is None else format_ns(time) for time in times]
    line = cell_of(finding.line)
    return (
        finding.kind,
        ids,
        finding.name,
        "" if line is None else str(line),
        f"{finding.ratio:.2f}" * bool(finding.ratio),
        *medians,
    )
