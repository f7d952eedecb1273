"""Comparisons and benches in Python and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tracemap.comparison import model as compared
from tracemap.errors import QueryInvalid
from tracemap.experiments import model
from tracemap.options.option import text_of
from tracemap.options.results import DiffOptions
from tracemap.results.display import AsTable, Columns, Value, heading, known, shown, table
from tracemap.units import format_ns, plural

# ---- bench
#
# Kernels run alone, to go on with: as a table and in notebooks.


_TOP = 10


class Bench(model.Bench, AsTable, frozen=True):
    """What `tracemap.bench` returns.

    Example:
        >>> made = tracemap.bench("model.tracemap", kernel=["*_2_*"], repetitions=3, min_time=1, no_verify=True)
        >>> [(kernel.sites, kernel.time_ns.median > 0) for kernel in made.kernels]
        [(('site2', 'site3'), True)]
    """

    @classmethod
    def of(cls, made: model.Bench) -> Bench:
        """A bench with ways to show it."""
        return cls(**{name: getattr(made, name) for name in made.__struct_fields__ if name in _FIELDS})

    def _columns(self) -> Columns:
        """A row for each kernel and kind of work; times are medians of a call."""
        every = self.kernels
        times = [(each.time_ns, each.cold_ns) for each in every]
        return {
            "kernel": [each.kernel for each in every],
            "operation": [each.operation for each in every],
            "sites": [" ".join(each.sites) for each in every],
            "verified": [each.verification.status.value for each in every],
            "time_ns": [None if warm is None else warm.median for warm, _ in times],
            "cold_ns": [None if cold is None else cold.median for _, cold in times],
            "operations": [known(each.operations) for each in every],
            "bytes": [known(each.bytes) for each in every],
            "operations_per_s": [each.operations_per_s for each in every],
            "bytes_per_s": [each.bytes_per_s for each in every],
            "attainable_share": [each.attainable_share for each in every],
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                each.kernel,
                each.operation,
                each.verification.status.value,
                "" if each.time_ns is None else format_ns(round(each.time_ns.median)),
                "" if each.attainable_share is None else f"{100 * each.attainable_share:.0f} %",
            )
            for each in self.kernels[:_TOP]
        ]
        return heading(f"{plural(len(self.kernels), 'kernel')} alone, device {self.device}") + table(
            ("kernel", "operation", "verified", "a call", "of attainable"), rows, 3
        )


_FIELDS = {each.name for each in structs.fields(model.Bench)}


# ---- comparison
#
# A comparison to go on with: ops before and after as a table, what is found in notebooks, and the page.


_MOST_CHANGES = 10


class Comparison(compared.Comparison, AsTable, frozen=True):
    """What `tracemap.diff` returns; `paths`, those of either side, and `options`: of what it was made.

    Example:
        >>> made = tracemap.diff("model.tracemap", "model.tracemap")
        >>> made.findings, made.regrouped, len(made.ops)
        ((), (), 10)
    """

    paths: tuple[Sequence[Path], Sequence[Path]] | None = None
    options: DiffOptions | None = None

    @classmethod
    def of(
        cls, made: compared.Comparison, before: Sequence[Path], after: Sequence[Path], options: DiffOptions
    ) -> Comparison:
        """A comparison with what it is of."""
        fields = {name: getattr(made, name) for name in made.__struct_fields__ if name in _COMPARISON_FIELDS}
        return cls(**fields, paths=(before, after), options=options)

    def op(self, what: str) -> compared.OpDifference:
        """An op by its id after, `op12`, or by that before where there is no such op after.

        Raises:
            tracemap.errors.QueryInvalid: neither side has it.

        Example:
            >>> tracemap.diff("model.tracemap", "model.tracemap").op("op2").line_after
            15
        """
        for side in ("after", "before"):
            for each in self.ops:
                if getattr(each, side) == what:
                    return each
        raise QueryInvalid(f"{text_of('what', what)}: is no op of either side; ids are such as op12")

    def show(self, output: Path | str | None = None, *, browser: bool = True) -> Path:
        """Open the page of it; returns its file, which goes with the process unless it is named.

        Raises:
            tracemap.errors.TargetExists, tracemap.errors.TargetUnwritable: the page cannot be written.

        Example:
            >>> tracemap.diff("model.tracemap", "model.tracemap").show("page.html", browser=False).name
            'page.html'
        """
        if self.paths is None or self.options is None:
            raise QueryInvalid("this comparison does not know what it is of; get it by tracemap.diff")
        paths, asked = self.paths, replace(self.options, output=None)
        return shown(lambda file: _write(paths, replace(asked, html=file)), output, browser=browser)

    def _columns(self) -> Columns:
        """A row for each op that is there before, after or both; of each metric a column for either."""
        columns: dict[str, list[Value]] = {
            name: [known(getattr(op, name)) for op in self.ops]
            for name in ("before", "after", "how", "edited", "name_before", "name", "line_before", "line_after")
        }
        columns["scope"] = ["/".join(op.scope) for op in self.ops]
        columns |= {
            name: [known(getattr(op, name)) for op in self.ops] for name in ("fate_before", "fate_after", "code")
        }
        for metric in self.metrics:
            amounts = [op.amounts.get(metric.name) for op in self.ops]
            columns[f"{metric.name}_before"] = [each.before if each else None for each in amounts]
            columns[f"{metric.name}_after"] = [each.after if each else None for each in amounts]
        return columns

    def _repr_html_(self) -> str:
        names = f"{self.before.bundle} → {self.after.bundle}"
        matched = f"{self.matched_percent:.1f} % of ops are matched"
        if not self.findings:
            return heading(f"{names}: no finding beyond {self.threshold_percent:g} %; {matched}")
        rows = [_row(each) for each in self.findings[:_MOST_CHANGES]]
        more = len(self.findings) - len(rows)
        said = heading(f"{names}: {len(self.findings)} findings; {matched}")
        headings = ("what", "op", "name", "line", "times", "before", "after")
        return said + table(headings, rows, 4) + (heading(f"… {more} more") if more > 0 else "")


def _write(paths: tuple[Sequence[Path], Sequence[Path]], asked: DiffOptions) -> None:
    from tracemap.session.diff import diff

    diff(*paths, asked)


def _row(each: compared.Finding) -> tuple[str, ...]:
    ids = " → ".join(dict.fromkeys(str(known(side)) for side in (each.before, each.after) if known(side)))
    medians = ["" if known(time) is None else format_ns(time) for time in (each.median_before, each.median_after)]
    line = known(each.line)
    return (
        each.kind,
        ids,
        each.name,
        "" if line is None else str(line),
        f"{each.ratio:.2f}" * bool(each.ratio),
        *medians,
    )


_COMPARISON_FIELDS = {each.name for each in structs.fields(compared.Comparison)}
"""What `Comparison` has besides what it is of."""
