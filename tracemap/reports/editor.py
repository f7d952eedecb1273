"""Costs per source line for editors: a short text above a line, and details for a pop-up window.

In the model, an op's cost is on its own line. In Python files, the cost of an op is on its innermost line of the
user's program; lines that call it have it as inclusive cost.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal

from msgspec import Meta

from tracemap.attribution.model import Advice, MetricTotal
from tracemap.core.codec import Document, Positive, Record
from tracemap.core.units import Unknown, format_mean, format_share, join_names
from tracemap.map.model import Op, OpId
from tracemap.map.query import user_frames
from tracemap.reports.advice import divisor, format_amount, known_invocations, mean_elapsed_ns
from tracemap.reports.cost_lookup import MapCosts, OpOccurrence, called_functions, default_metric
from tracemap.reports.escaping import or_dash, short_name
from tracemap.reports.page.source_tabs import LineUse, frames_on_page, model_lines, python_lines
from tracemap.reports.views.costs import CLOCKS, shown_metrics
from tracemap.reports.views.ops import without_dialect
from tracemap.runs.model import STEP_METRICS

EDITOR_VERSION: Final = 1
"""Version of the JSON of `tracemap lsp --print`."""


class LineCosts(Record, frozen=True):
    """Costs of a source line, in words."""

    line: Positive
    lens: Annotated[str, Meta(description="Text above the line; empty for lines below 1 % of the program.")]
    details: Annotated[tuple[str, ...], Meta(description="Sentences: all costs, ops, kernels, advice.")]


class FileCosts(Record, frozen=True):
    """Lines with costs of a source file."""

    name: Annotated[str, Meta(description="The path that locations state.")]
    path: Annotated[str, Meta(description="The path of its text below the bundle's `source/`.")]
    lines: tuple[LineCosts, ...]


class BundleCosts(Document, frozen=True, kw_only=True):
    """Costs of a bundle's source lines, for editors."""

    schema_version: Literal[1] = EDITOR_VERSION
    kind: Literal["lsp"] = "lsp"
    runs: Annotated[tuple[str, ...], Meta(description="Names of the runs.")]
    files: tuple[FileCosts, ...]


def bundle_costs(costed: MapCosts, bundle: str, runs: Sequence[str]) -> BundleCosts:
    """The lines with costs of all source files of a map.

    Args:
        costed: the map with its costs.
        bundle: the bundle, for commands.
        runs: names of the runs.
    """
    if not costed.metrics:
        return BundleCosts(runs=tuple(runs), files=())
    files = []
    for index, source in enumerate(costed.graph.sources):
        lines = _Lines(costed, index, bundle, ", ".join(runs))
        files.append(FileCosts(source.name, source.path, tuple(lines.texts())))
    return BundleCosts(runs=tuple(runs), files=tuple(files))


_LEAST_SHARE: Final = 0.01
"""Least share of the program's time for a text above a line. Smaller costs would be noise to a reader."""


@dataclass(frozen=True)
class _Lines:
    """The lines of the `index`-th source file."""

    costed: MapCosts
    index: int
    bundle: str
    runs: str

    def texts(self) -> Iterator[LineCosts]:
        """Lines with a cost, in order."""
        for line, use in sorted(self._uses.items()):
            own, whole = self._own_cost(use), self._inclusive_cost(use)
            if line >= 1 and (own or whole or use.overhead_ns):
                has_lens = max(own, whole) >= _LEAST_SHARE * self.first.work > 0
                details = tuple(self._details(line, use, has_gain=has_lens))
                yield LineCosts(line, self._lens(use) if has_lens else "", details)

    @cached_property
    def _is_python(self) -> bool:
        return self.costed.graph.sources[self.index].language == "python"

    @cached_property
    def _uses(self) -> Mapping[int, LineUse]:
        return (python_lines if self._is_python else model_lines)(self.costed, self.index)

    @cached_property
    def first(self) -> MetricTotal:
        """The metric that ranks lines."""
        return self.costed.metrics[default_metric(self.costed.metrics)]

    @cached_property
    def _counter(self) -> MetricTotal | None:
        """The first hardware or software counter of the run."""
        names = (*CLOCKS, *STEP_METRICS)
        return next((metric for metric in shown_metrics(self.costed.metrics, ())[1:] if metric.name not in names), None)

    def _own_cost(self, use: LineUse) -> int:
        return use.attributed.get(self.first.name, 0)

    def _inclusive_cost(self, use: LineUse) -> int:
        """The cost with everything that the line calls; 0 for the model, where it is the cost of whole dispatches."""
        return use.inclusive.get(self.first.name, 0) if self._is_python else 0

    def _lens(self, use: LineUse) -> str:
        own, inclusive = self._own_cost(use), self._inclusive_cost(use)
        parts = []
        if own:
            parts += [self._mean(own, self.first), self._share(own)]
            if self._counter is not None:
                parts.append(self._counted(use.attributed, self._counter))
        if inclusive > own:
            parts.append(f"with calls {self._mean(inclusive, self.first)}, {self._share(inclusive)}")
        return " · ".join(parts)

    def _mean(self, amount: int, metric: MetricTotal) -> str:
        if not known_invocations(metric):
            return f"{format_amount(amount, metric)} in all"
        unit = metric.unit
        return format_mean(amount, divisor(metric, totals=False), unit)

    def _share(self, amount: int) -> str:
        return f"{format_share(amount, self.first.work)} of {_clock(self.first)}"

    def _counted(self, amounts: Mapping[str, int], metric: MetricTotal) -> str:
        name = CLOCKS.get(metric.name, metric.name)
        return f"{self._mean(amounts.get(metric.name, 0), metric)} {name}"

    def _details(self, line: int, use: LineUse, *, has_gain: bool) -> Iterator[str]:
        own, inclusive = self._own_cost(use), self._inclusive_cost(use)
        shown = shown_metrics(self.costed.metrics, ())
        if own:
            others = ", ".join(self._counted(use.attributed, metric) for metric in shown[1:])
            yield f"{self._share(own)}: {self._counted(use.attributed, self.first)}{', ' if others else ''}{others}"
        if inclusive > own:
            yield f"with the functions that it calls: {self._share(inclusive)}: {self._mean(inclusive, self.first)}"
        if use.overhead_ns and (elapsed := self._elapsed_share(use.overhead_ns)):
            yield elapsed
        occurrences = self._occurrences.get(line, ())
        yield from self._work(line, occurrences)
        if has_gain and (gain := self.costed.gain_of(occurrences)) is not None and gain.saved_ns > 0:
            yield f"if twice as fast: the program gains {gain.percent(gain.after_ns):.1f} %"
        own_ops = self._own_ops.get(line, frozenset())
        for advice in self._advice:
            if not own_ops.isdisjoint(advice.ops):
                yield f"advice ({advice.rule}): {advice.text}. Try: {advice.command}"
        yield self._run
        place = f"{short_name(self.costed.graph.sources[self.index].name)}:{line}"
        yield f"more: {shlex.join(('tracemap', 'show', self.bundle, place))}"

    def _elapsed_share(self, overhead_ns: int) -> str:
        run = self.costed.attribution.run if self.costed.attribution else None
        if run is None or isinstance(run.elapsed_ns, Unknown) or isinstance(run.iterations, Unknown):
            return ""
        mean = format_mean(overhead_ns, max(1, run.iterations), "ns")
        return f"overhead without a kernel: {mean}, {format_share(overhead_ns, run.elapsed_ns)} of the elapsed time"

    def _work(self, line: int, occurrences: Sequence[OpOccurrence]) -> Iterator[str]:
        """The ops of the line, and their kernels, the most expensive first."""
        graph, metric = self.costed.graph, self.first.name
        ops = {self.costed.graph.op_by_id[op]: 0 for op in self._own_ops.get(line, ())}
        kernels: Counter[str] = Counter()
        for reached in occurrences:
            ops[reached.op] = ops.get(reached.op, 0) + reached.attributed.get(metric, 0)
            site = graph.site_by_id.get(reached.work)
            name = site.kernel if site else graph.transfer_by_id[reached.work].kind
            kernels[name] += reached.attributed.get(metric, 0)
        if ops:
            yield f"ops: {join_names(_named(ops))}"
        if kernels:
            names = [f"{name} ({self._share(cost)})" for name, cost in sorted(kernels.items(), key=_largest_first)]
            yield f"{'kernels' if len(kernels) > 1 else 'kernel'}: {join_names(names)}"

    @cached_property
    def _own_ops(self) -> Mapping[int, frozenset[OpId]]:
        """The ops whose own line each line is."""
        lines: dict[int, set[OpId]] = defaultdict(set)
        for op in self.costed.graph.ops:
            for line in self._own_lines(op):
                lines[line].add(op.id)
        return {line: frozenset(ops) for line, ops in lines.items()}

    def _own_lines(self, op: Op) -> Iterator[int]:
        if not self._is_python:
            is_here = not isinstance(op.file, Unknown) and self.costed.source_index.get(op.file) == self.index
            if is_here and not isinstance(op.line, Unknown):
                yield op.line
            return
        stacks = [reached.frames for reached in self.costed.reached_by_op.get(op.id, ())]
        own = user_frames(self.costed.graph, self.costed.frames_of(op))
        for frames in stacks or [own]:
            for frame in frames_on_page(self.costed, frames)[:1]:
                if self.costed.source_index[frame.file] == self.index:
                    yield frame.line

    @cached_property
    def _occurrences(self) -> Mapping[int, Sequence[OpOccurrence]]:
        """Occurrences of ops by their own line; in Python, each call path has its own."""
        lines: dict[int, list[OpOccurrence]] = defaultdict(list)
        for reached in self.costed.reached:
            if self._is_python:
                frames = frames_on_page(self.costed, reached.frames)[:1]
                own = [frame.line for frame in frames if self.costed.source_index[frame.file] == self.index]
            else:
                own = list(self._own_lines(reached.op))
            for line in own:
                lines[line].append(reached)
        return lines

    @property
    def _advice(self) -> Sequence[Advice]:
        return self.costed.attribution.advice if self.costed.attribution else ()

    @cached_property
    def _run(self) -> str:
        attribution = self.costed.attribution
        assert attribution is not None
        elapsed = mean_elapsed_ns(attribution)
        mean = "" if isinstance(elapsed, Unknown) else f", {format_mean(elapsed, 1, 'ns')} per invocation"
        device = or_dash(attribution.run.device)
        return f"run: {self.runs}, {called_functions(attribution)} on {device}{mean}"


def _clock(metric: MetricTotal) -> str:
    return CLOCKS.get(metric.name, metric.name)


def _largest_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _named(ops: Mapping[Op, int]) -> list[str]:
    """The names of ops with their number, the most expensive first: `dot_general ×3`."""
    costs, counts = Counter[str](), Counter[str]()
    for op, cost in ops.items():
        name = without_dialect(op.name)
        costs[name] += cost
        counts[name] += 1
    ordered = sorted(costs.items(), key=_largest_first)
    return [name if counts[name] == 1 else f"{name} ×{counts[name]}" for name, _ in ordered]
