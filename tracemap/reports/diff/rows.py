"""The rows of the ops of a comparison, and what all parts of its page ask about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tracemap.comparison.model import Amount, Comparison, OpDifference, total
from tracemap.comparison.sides import Compared
from tracemap.graph.ops import Op
from tracemap.reports.diff.model import BeforeAfter, DiffOp
from tracemap.reports.labels import file_line
from tracemap.reports.page.model import LineLink
from tracemap.units import Integer, Text, Unknown


@dataclass(frozen=True)
class Rows:
    """The ops of a comparison by the numbers of their rows; `same_text`: the page has the model's text once."""

    made: Comparison
    before: Compared
    after: Compared
    same_text: bool

    @cached_property
    def row_before(self) -> Mapping[str, int]:
        """Rows by the id before."""
        return {str(op.before): row for row, op in enumerate(self.made.ops) if not isinstance(op.before, Unknown)}

    @cached_property
    def row_after(self) -> Mapping[str, int]:
        """Rows by the id after."""
        return {str(op.after): row for row, op in enumerate(self.made.ops) if not isinstance(op.after, Unknown)}

    def anchor(self, row: int) -> str:
        """The address of an op."""
        return anchor_of(self.made.ops[row])

    def amounts(self, rows: Iterable[int]) -> tuple[BeforeAfter, ...]:
        """What ops cost together, by metric."""
        found = [self.made.ops[row].amounts for row in rows]
        return tuple(map(_sum, ([each[name] for each in found if name in each] for name in self.names)))

    @cached_property
    def names(self) -> Sequence[str]:
        """Those of the metrics."""
        return [metric.name for metric in self.made.metrics]

    def of_metrics(self, amounts: Mapping[str, Amount]) -> tuple[BeforeAfter | None, ...]:
        """Amounts in the order of the metrics."""
        found = (amounts.get(name) for name in self.names)
        return tuple((each.before, each.after) if each else None for each in found)

    def ops(self) -> tuple[DiffOp, ...]:
        """The rows."""
        found_of = {(each.before, each.after): each.kind for each in self.made.findings}
        return tuple(self._row(op, found_of.get((op.before, op.after), "")) for op in self.made.ops)

    def _row(self, op: OpDifference, found: str) -> DiffOp:
        one, two = _op(self.before, op.before), _op(self.after, op.after)
        how = "gone" if two is None else "new" if one is None else str(op.how)
        return DiffOp(
            before=_text(op.before),
            after=_text(op.after),
            how=how,
            edited=op.edited,
            name=op.called,
            line_before=self._link("A", self.before, one),
            line_after=self._link("B", self.after, two),
            scope="/".join(op.scope),
            fate_before=_text(op.fate_before),
            fate_after=_text(op.fate_after),
            code=_text(op.code),
            kernels_before=self.before.kernels_of.get(one.id, ()) if one else (),
            kernels_after=self.after.kernels_of.get(two.id, ()) if two else (),
            amounts=self.of_metrics(op.amounts),
            ratio=_ratio(op),
            finding=found,
        )

    def _link(self, side: str, of: Compared, op: Op | None) -> LineLink:
        """Where an op stands in the model; where both have the same text the page has that after."""
        if op is None:
            return LineLink("", "")
        shown = "B" if self.same_text else side
        model = of.graph.sources[0].name if of.graph.sources else None
        is_there = op.file == model and not isinstance(op.line, Unknown)
        return LineLink(file_line(op.file, op.line), f"{shown}0L{op.line}" if is_there else "")


def anchor_of(op: OpDifference) -> str:
    """The address of an op: that of its id after, of what is gone that before."""
    return f"was-{op.before}" if isinstance(op.after, Unknown) else str(op.after)


def _op(side: Compared, name: Text) -> Op | None:
    return None if isinstance(name, Unknown) else side.graph.op_by_id[name]


def _ratio(op: OpDifference) -> tuple[float, float, float] | None:
    return None if op.ratio is None else (op.ratio.ratio, op.ratio.ratio_low, op.ratio.ratio_high)


def _sum(amounts: Sequence[Amount]) -> BeforeAfter:
    whole = total(list(amounts))
    return whole.before, whole.after


def _text(value: Text | Integer) -> str:
    return "" if isinstance(value, Unknown) else str(value)
