"""Costs by op and call stack, for all stack-based exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tracemap.attribution.model import Attribution, BalanceError, MetricTotal, ResidualReason, SiteResult
from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.graph.model import Frame, Op, OpId, TraceGraph
from tracemap.graph.query import frames_of, scope_of, users_own
from tracemap.options.results import Callers
from tracemap.reports.cost_lookup import parts_of
from tracemap.sanitize import without_controls
from tracemap.units import INTEGER_LIMIT, UNKNOWN, Integer, Text, Unknown

# ---- extras
#
# Libraries that only one format needs: extras of the package, imported where they are used.


@contextmanager
def from_extra(form: str) -> Iterator[None]:
    """Around imports of what a format's extra installs; the extra is called as the format.

    Raises:
        ToolMissing: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ToolMissing(
            f"{form} needs a package that is not installed ({error.name}): pip install tracemap[{form}]"
        ) from error


# ---- charges
#
# Who is charged with what: each op in each site or transfer with its share, and each residual with its reason.
#
# All formats are made of these. A ledger that does not add up to what was measured is refused by its constructor.


NANOSECONDS = "ns"


@dataclass(frozen=True, slots=True)
class Place:
    """A line with a name: of an op, or of what it stands in or is called from.

    `name` and `file` are inert: control characters and those that reorder text are escapes.
    """

    name: str
    file: Text = UNKNOWN
    line: Integer = UNKNOWN


@dataclass(frozen=True, slots=True)
class Charge:
    """A part of what was measured that has one owner.

    `around`: what leads to the owner, outermost first; `work`: the id of the site or transfer, `kernel` its kernel or
    the kind of transfer, both "" of a residual, which has no `op`; `calls`: how often the work ran; `amounts`: in the
    order of the ledger's metrics.
    """

    place: Place
    around: tuple[Place, ...]
    op: Op | None
    work: str
    kernel: str
    calls: int
    amounts: tuple[int, ...]


@dataclass(frozen=True)
class Ledger:
    """The charges of an attribution, in some of its metrics; what is nothing in all of them is left out.

    Raises:
        BalanceError: the charges do not add up to what was measured, for any metric.
    """

    graph: TraceGraph
    attribution: Attribution
    metrics: tuple[MetricTotal, ...]
    charges: tuple[Charge, ...]

    def __post_init__(self) -> None:
        for metric, total in zip(self.metrics, self.totals, strict=True):
            if total != metric.measured:
                raise BalanceError(f"{metric.name}: measured {metric.measured}, exported {total}")

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """The sum of each metric."""
        return added(charge.amounts for charge in self.charges) or (0,) * len(self.metrics)

    def check_range(self, form: str, *, negative: bool) -> None:
        """Refuse amounts that a format cannot hold: more than 64 bits, or where it has none, negative ones.

        Raises:
            UsageInvalid: there are such.
        """
        for number, metric in enumerate(self.metrics):
            amounts = [charge.amounts[number] for charge in self.charges]
            if not negative and min(amounts, default=0) < 0:
                raise UsageInvalid(
                    f"{metric.name} has negative amounts, which {form} cannot hold; choose others with --metric"
                )
            if sum(map(abs, amounts)) > INTEGER_LIMIT:
                raise UsageInvalid(
                    f"{metric.name} adds up to more than the 64 bits of a number in {form}; choose others with --metric"
                )


def added(rows: Iterator[tuple[int, ...]]) -> tuple[int, ...]:
    """The sums of columns; empty without rows."""
    return tuple(map(sum, zip(*rows, strict=True)))


def residual_name(reason: ResidualReason) -> str:
    """What a cost without an op is called in all formats."""
    return f"(residual) {reason.value}"


def op_label(op: Op) -> str:
    """What an op is called in all formats: its id, by which `show` finds it, and its name."""
    return f"{op.id} {without_controls(op.name)}"


def chosen_metrics(attribution: Attribution, wanted: Sequence[str]) -> tuple[MetricTotal, ...]:
    """Metrics that are asked for, in that order; else all of them, times first.

    Raises:
        UsageInvalid: the run has no such metric.
    """
    by_name = {metric.name: metric for metric in attribution.metrics}
    for name in wanted:
        if name not in by_name:
            raise UsageInvalid(f"the run has no metric {name!r}; it has: {', '.join(by_name)}")
    if wanted:
        return tuple(by_name[name] for name in dict.fromkeys(wanted))
    return tuple(sorted(by_name.values(), key=lambda metric: metric.unit != NANOSECONDS))


def ledger_of(graph: TraceGraph, attribution: Attribution, callers: Callers, metrics: Sequence[str]) -> Ledger:
    """The charges of an attribution.

    Raises:
        UsageInvalid: the run has no such metric.
    """
    chosen = chosen_metrics(attribution, metrics)
    maker = _Maker(graph, attribution, callers, tuple(metric.name for metric in chosen))
    charges = (charge for charge in maker.charges() if any(charge.amounts))
    return Ledger(graph, attribution, chosen, tuple(charges))


def _count(calls: Integer) -> int:
    """A number of calls as formats have it that know no unknown one: 0, as of what no call was seen of."""
    return 0 if isinstance(calls, Unknown) else calls


@dataclass(frozen=True)
class _Maker:
    """Goes through an attribution, in the order of its sites, transfers and residuals."""

    graph: TraceGraph
    attribution: Attribution
    callers: Callers
    metrics: tuple[str, ...]

    def charges(self) -> Iterator[Charge]:
        for result in self.attribution.sites:
            yield from self._of_site(result)
        for transfer in self.attribution.transfers:
            made = self.graph.transfer_by_id[transfer.transfer]
            for share in transfer.shares:
                place, around = self._places(share.op, (), made.function)
                op, amounts = self.graph.op_by_id[share.op], self._amounts(share.attributed)
                yield Charge(place, around, op, made.id, made.kind, _count(transfer.calls), amounts)
        for row in self.attribution.residual:
            place = Place(residual_name(row.reason))
            yield Charge(place, (), None, "", "", _count(row.events), self._amounts(row.metrics))

    def _of_site(self, result: SiteResult) -> Iterator[Charge]:
        site = self.graph.site_by_id[result.site]
        kernel = without_controls(site.kernel)
        # A site without members has no shares: what it cost is residual.
        for member, share in zip(site.members if result.shares else (), result.shares, strict=True):
            op = self.graph.op_by_id[member.op]
            for path, part in zip(member.paths, parts_of(share.attributed, len(member.paths)), strict=True):
                place, around = self._places(member.op, path, site.function)
                yield Charge(place, around, op, site.id, kernel, _count(result.calls), self._amounts(part))

    def _amounts(self, costs: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(costs[name] for name in self.metrics)

    def _places(self, op_id: OpId, path: Sequence[OpId], function: Text) -> tuple[Place, tuple[Place, ...]]:
        """Where an op stands, and what is around it where these calls lead to it."""
        op = self.graph.op_by_id[op_id]
        place = Place(op_label(op), inert(op.file), op.line)
        return place, (*self._entry(op.function if function is UNKNOWN else function), *self._around(op, path))

    def _around(self, op: Op, path: Sequence[OpId]) -> Iterator[Place]:
        if self.callers == "python":
            yield from map(_of_frame, reversed(users_own(self.graph, frames_of(self.graph, op, path))))
            return
        scope = [without_controls(part) for part in scope_of(self.graph, op, path)]
        for depth in range(1, len(scope) + 1):
            yield Place("/".join(scope[:depth]))

    def _entry(self, function: Text) -> Iterator[Place]:
        if function is not UNKNOWN:
            yield self._entries.get(function) or Place(without_controls(function))

    @cached_property
    def _entries(self) -> Mapping[Text, Place]:
        """Functions of the model by name, where they begin."""
        return {
            op.function: Place(without_controls(op.function), inert(op.file), op.line)
            for op in reversed(self.graph.ops)
            if op.name.endswith(".func") and op.function is not UNKNOWN
        }


def _of_frame(frame: Frame) -> Place:
    file = without_controls(frame.file)
    name = f"{file}:{frame.line}" if frame.function is UNKNOWN else without_controls(frame.function)
    return Place(name, file, frame.line)


def inert(text: Text) -> Text:
    """A text that may be unknown, without what could take effect."""
    return UNKNOWN if text is UNKNOWN else without_controls(text)
