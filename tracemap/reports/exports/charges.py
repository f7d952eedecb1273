"""Costs by op and call stack, the common input of all exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tracemap.attribution.model import Attribution, BalanceError, MetricTotal, SiteResult, UnattributedReason
from tracemap.core.errors import ToolMissing, UsageInvalid
from tracemap.core.sanitize import without_controls
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text, Unknown
from tracemap.map.model import Frame, Kernel, Op, OpId, TraceGraph
from tracemap.map.query import frames_of, scope_of, user_frames
from tracemap.options.reports import Callers
from tracemap.reports.cost_lookup import parts_of

# ---- extras: optional dependencies of single formats


@contextmanager
def from_extra(form: str) -> Iterator[None]:
    """Wrap imports of a format's optional dependencies; the extra has the format's name.

    Raises:
        ToolMissing: a dependency is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ToolMissing(
            f"{form} needs the package {error.name}, which is not installed: pip install tracemap[{form}]"
        ) from error


# ---- charges: the shares of ops in their dispatch sites and transfers, and unattributed costs with their reasons


NANOSECONDS = "ns"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A stack frame of an export: an op, or an enclosing scope, function or line of Python.

    Control characters, and characters that reorder text, are escaped in `name` and `file`.
    """

    name: str
    file: Text = UNKNOWN
    line: Integer = UNKNOWN


@dataclass(frozen=True, slots=True)
class Charge:
    """A part of the measured cost, with its call stack.

    Attributes:
        frame: an op, or the reason of an unattributed cost.
        enclosing: enclosing frames, outermost first; the last one is the source line of the op.
        op: the op; None for unattributed costs.
        work: id of the dispatch site or transfer; "" for unattributed costs.
        kernel: kernel of the site or kind of the transfer; "" for unattributed costs.
        kernel_frame: the innermost frame, for the kernel or transfer; None for unattributed costs.
        calls: executions of the site or transfer.
        amounts: costs in the order of the ledger's metrics.
    """

    frame: StackFrame
    enclosing: tuple[StackFrame, ...]
    op: Op | None
    work: str
    kernel: str
    kernel_frame: StackFrame | None
    calls: int
    amounts: tuple[int, ...]

    @property
    def stack(self) -> tuple[StackFrame, ...]:
        """All frames, outermost first."""
        kernel = () if self.kernel_frame is None else (self.kernel_frame,)
        return (*self.enclosing, self.frame, *kernel)


@dataclass(frozen=True)
class Ledger:
    """The charges of an attribution in some of its metrics, without charges that are 0 in all of them.

    Raises:
        BalanceError: the charges of a metric do not add up to its measurement.
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
        """Sums by metric."""
        return sum_columns(charge.amounts for charge in self.charges) or (0,) * len(self.metrics)

    def check_range(self, form: str, *, negative: bool) -> None:
        """Check that a format can hold all amounts: 64 bits, and no negative numbers unless `negative`.

        Raises:
            UsageInvalid: an amount is out of range.
        """
        for index, metric in enumerate(self.metrics):
            amounts = [charge.amounts[index] for charge in self.charges]
            if not negative and min(amounts, default=0) < 0:
                raise UsageInvalid(
                    f"{metric.name} has negative amounts, which {form} cannot hold; select other metrics with --metric"
                )
            if sum(map(abs, amounts)) > MAX_INTEGER:
                raise UsageInvalid(
                    f"{metric.name} adds up to more than 64 bits, which {form} cannot hold; "
                    "select other metrics with --metric"
                )


LedgerExport = Callable[[Ledger], str | bytes]
"""An export of another package: the content of its file (docs/extending.md)."""


def sum_columns(rows: Iterator[tuple[int, ...]]) -> tuple[int, ...]:
    """Sums by column; empty without rows."""
    return tuple(map(sum, zip(*rows, strict=True)))


def unattributed_name(reason: UnattributedReason) -> str:
    """The name of an unattributed cost in all formats."""
    return f"(unattributed) {reason.value}"


def op_label(op: Op) -> str:
    """The label of an op in all formats: its id, for `tracemap show`, and its name."""
    return f"{op.id} {without_controls(op.name)}"


def selected_metrics(attribution: Attribution, names: Sequence[str]) -> tuple[MetricTotal, ...]:
    """The named metrics in this order; without names, all metrics, times first.

    Raises:
        UsageInvalid: the run lacks a named metric.
    """
    by_name = {metric.name: metric for metric in attribution.metrics}
    for name in names:
        if name not in by_name:
            raise UsageInvalid(f"the run has no metric {name!r}; it has: {', '.join(by_name)}")
    if names:
        return tuple(by_name[name] for name in dict.fromkeys(names))
    return tuple(sorted(by_name.values(), key=lambda metric: metric.unit != NANOSECONDS))


def ledger_of(graph: TraceGraph, attribution: Attribution, callers: Callers, metrics: Sequence[str]) -> Ledger:
    """Make the charges of an attribution; `callers` selects scopes or lines of Python as enclosing frames.

    Raises:
        UsageInvalid: the run lacks a named metric.
    """
    selected = selected_metrics(attribution, metrics)
    builder = _ChargeBuilder(graph, attribution, callers, tuple(metric.name for metric in selected))
    charges = (charge for charge in builder.charges() if any(charge.amounts))
    return Ledger(graph, attribution, selected, tuple(charges))


def _count(calls: Integer) -> int:
    """A number of calls for formats without unknown values: 0 if unknown."""
    return 0 if isinstance(calls, Unknown) else calls


@dataclass(frozen=True)
class _ChargeBuilder:
    """Makes charges in the order of the attribution's sites, transfers and unattributed costs."""

    graph: TraceGraph
    attribution: Attribution
    callers: Callers
    metrics: tuple[str, ...]

    def charges(self) -> Iterator[Charge]:
        for site_result in self.attribution.sites:
            yield from self._site_charges(site_result)
        for result in self.attribution.transfers:
            transfer = self.graph.transfer_by_id[result.transfer]
            for share in result.shares:
                frame, enclosing = self._stack(share.op, (), transfer.function)
                op, amounts = self.graph.op_by_id[share.op], self._amounts(share.attributed)
                kernel, calls = StackFrame(transfer.kind), _count(result.calls)
                yield Charge(frame, enclosing, op, transfer.id, transfer.kind, kernel, calls, amounts)
        for row in self.attribution.unattributed:
            frame = StackFrame(unattributed_name(row.reason))
            yield Charge(frame, (), None, "", "", None, _count(row.events), self._amounts(row.metrics))

    def _site_charges(self, result: SiteResult) -> Iterator[Charge]:
        site = self.graph.site_by_id[result.site]
        kernel, calls = without_controls(site.kernel), _count(result.calls)
        kernel_frame = frame_of_kernel(self.graph.kernel_by_name[site.kernel])
        # A site without ops has no shares; its cost is unattributed.
        for member, share in zip(site.members if result.shares else (), result.shares, strict=True):
            op = self.graph.op_by_id[member.op]
            for path, part in zip(member.paths, parts_of(share.attributed, len(member.paths)), strict=True):
                frame, enclosing = self._stack(member.op, path, site.function)
                yield Charge(frame, enclosing, op, site.id, kernel, kernel_frame, calls, self._amounts(part))

    def _amounts(self, costs: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(costs[name] for name in self.metrics)

    def _stack(self, op_id: OpId, path: Sequence[OpId], function: Text) -> tuple[StackFrame, tuple[StackFrame, ...]]:
        """The frame of an op, and its enclosing frames for a call path."""
        op = self.graph.op_by_id[op_id]
        frame = StackFrame(op_label(op), escape_controls(op.file), op.line)
        return frame, (*self._entry(op.function if function is UNKNOWN else function), *self._enclosing(op, path))

    def _enclosing(self, op: Op, path: Sequence[OpId]) -> Iterator[StackFrame]:
        """The scopes of an op and its source line, or its lines of Python; outermost first.

        Without Python, the source is the op's ONNX node, else its line in the model.
        """
        python = user_frames(self.graph, frames_of(self.graph, op, path))
        if self.callers == "scope":
            scope = [without_controls(part) for part in scope_of(self.graph, op, path)]
            for depth in range(1, len(scope) + 1):
                yield StackFrame("/".join(scope[:depth]))
            python = python[:1]
        if python:
            yield from map(_python_frame, reversed(python))
        elif op.node:
            yield StackFrame(without_controls(op.node), escape_controls(op.file), op.line)
        elif op.file is not UNKNOWN and op.line is not UNKNOWN:
            file = without_controls(op.file)
            yield StackFrame(f"{file}:{op.line}", file, op.line)

    def _entry(self, function: Text) -> Iterator[StackFrame]:
        if function is not UNKNOWN:
            yield self._entries.get(function) or StackFrame(without_controls(function))

    @cached_property
    def _entries(self) -> Mapping[Text, StackFrame]:
        """Functions of the model with their first lines, by name."""
        return {
            op.function: StackFrame(without_controls(op.function), escape_controls(op.file), op.line)
            for op in reversed(self.graph.ops)
            if op.name.endswith(".func") and op.function is not UNKNOWN
        }


def _python_frame(frame: Frame) -> StackFrame:
    file = without_controls(frame.file)
    function = "" if frame.function is UNKNOWN else f" {without_controls(frame.function)}"
    return StackFrame(f"{file}:{frame.line}{function}", file, frame.line)


def frame_of_kernel(kernel: Kernel) -> StackFrame:
    """The frame of a kernel, with its file in the bundle."""
    file: Text = UNKNOWN if isinstance(kernel.text, Unknown) else without_controls(f"kernels/{kernel.text}")
    return StackFrame(f"kernel {without_controls(kernel.name)}", file)


def escape_controls(text: Text) -> Text:
    """Escape control characters of a text that may be unknown."""
    return UNKNOWN if text is UNKNOWN else without_controls(text)
