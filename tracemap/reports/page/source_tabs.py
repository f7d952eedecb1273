"""The page's tabs of sources: the model, Python, and kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from tracemap.attribution.model import KernelResult
from tracemap.core.errors import ModuleInvalid
from tracemap.core.units import UNKNOWN, Text, Unknown, sum_of
from tracemap.machine.images import Image, kernel_images
from tracemap.machine.sass import SassReader
from tracemap.map.bundle import Bundle
from tracemap.map.bundle_documents import STATISTICS_PASSES, Remark, StoredEstimates
from tracemap.map.model import Frame, Kernel, OpId, Outcome, SourceFile, TraceGraph, entry_name
from tracemap.map.query import user_frames
from tracemap.reports.cost_lookup import NO_COSTS, MapCosts, add_costs, default_metric, heat
from tracemap.reports.escaping import or_dash, short_name
from tracemap.reports.highlight import colours_of_python
from tracemap.reports.kernels import KernelLoop, sort_remarks, view_kernel
from tracemap.reports.page.model import HEAT_LEVELS, KernelPage, LineCost, LoopRow, SourceLine, SourcePage, SourceRows

# ---- source tabs
#
# The tabs of source files: lines with their costs, or the reason for none.
#
# In the model, an op's cost is on its own line, so attributed costs of lines add up. In Python files, it is on the
# lines of its call stack, as in a Python profiler.


@dataclass(slots=True)
class LineUse:
    """Ops and costs of a line. Dicts serve as ordered sets, for deterministic output.

    Attributes:
        ops: ops located on the line.
        part_ops: ops with only a part on the line.
        works: dispatch sites and transfers of the ops.
        attributed: costs by metric name, as in `LineCost`.
        inclusive: costs by metric name, as in `LineCost`.
        overhead_ns: elapsed time without a kernel that belongs to the line.
    """

    ops: dict[OpId, None] = field(default_factory=dict)
    part_ops: dict[OpId, None] = field(default_factory=dict)
    works: dict[str, None] = field(default_factory=dict)
    attributed: Mapping[str, int] = field(default_factory=lambda: NO_COSTS)
    inclusive: Mapping[str, int] = field(default_factory=lambda: NO_COSTS)
    overhead_ns: int = 0


def model_lines(costed: MapCosts, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source with ops or parts of ops."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for op in costed.graph.ops:
        if isinstance(op.file, Unknown) or costed.source_index.get(op.file) != index:
            continue
        if not isinstance(op.line, Unknown):
            use = uses[op.line]
            use.ops[op.id] = None
            use.works.update(dict.fromkeys(costed.works_of(op)))
            use.attributed = add_costs(use.attributed, costed.attributed(op.id))
            use.overhead_ns += costed.overhead_of_op.get(op.id, 0)
        for part in op.parts:
            if not isinstance(part.line, Unknown) and part.line != op.line:
                uses[part.line].part_ops[op.id] = None
    for use in uses.values():
        for work in use.works:  # once per work, also if it has several ops of the line
            use.inclusive = add_costs(use.inclusive, costed.total(work))
    return uses


def python_lines(costed: MapCosts, index: int) -> Mapping[int, LineUse]:
    """Lines of the `index`-th source in call stacks: of ops per call path, and of ops without a dispatch."""
    uses: dict[int, LineUse] = defaultdict(LineUse)
    for reached in costed.reached:
        # Only frames on the page count, so the cost of library code belongs to its caller.
        for depth, frame in enumerate(frames_on_page(costed, reached.frames)):
            if costed.source_index[frame.file] == index:
                use = uses[frame.line]
                use.ops[reached.op.id] = use.works[reached.work] = None
                use.inclusive = add_costs(use.inclusive, reached.attributed)
                if depth == 0:
                    use.attributed = add_costs(use.attributed, reached.attributed)
    for op in costed.graph.ops:
        if op.id not in costed.reached_by_op:
            for frame in frames_on_page(costed, costed.frames_of(op)):
                if costed.source_index[frame.file] == index:
                    uses[frame.line].ops[op.id] = None
    for op_id, overhead_ns in costed.overhead_of_op.items():
        own = user_frames(costed.graph, costed.frames_of(costed.graph.op_by_id[op_id]))
        for frame in frames_on_page(costed, own)[:1]:
            if costed.source_index[frame.file] == index:
                uses[frame.line].overhead_ns += overhead_ns
    return uses


def frames_on_page(costed: MapCosts, frames: Sequence[Frame]) -> list[Frame]:
    """The frames whose file is on the page; lines that occur several times in a recursion count once."""
    by_line = {(frame.file, frame.line): frame for frame in reversed(frames) if frame.file in costed.source_index}
    return list(reversed(by_line.values()))


def order_of_sources(costed: MapCosts) -> tuple[int, ...]:
    """Indices of the source files in the order of their tabs.

    The user's Python file with the highest cost of its own lines comes first, then the model, then other files.
    """
    graph = costed.graph
    own = dict.fromkeys((frame.file for op in graph.ops for frame in user_frames(graph, costed.frames_of(op))), 0)
    metric = costed.metrics[default_metric(costed.metrics)].name if costed.metrics else ""
    for reached in costed.reached:
        for frame in frames_on_page(costed, user_frames(graph, reached.frames))[:1]:
            own[frame.file] += reached.attributed.get(metric, 0)
    files = {costed.source_index[file]: cost for file, cost in own.items() if file in costed.source_index}
    python = [index for index in files if graph.sources[index].language == "python"]
    first = sorted(python, key=lambda index: (-files[index], index))[:1]
    return tuple(dict.fromkeys((*first, *range(len(graph.sources)))))


MOST_IN_MARKUP: Final = 4_000_000
"""Most characters of a text in the markup. Longer texts would dominate the page, and are stored compressed (1/10)."""
_MARKUP_OF_LINE: Final = 50


def source_page(index: int, source: SourceFile, lines: Sequence[str]) -> SourcePage:
    """The `index`-th source file, with its lines."""
    return SourcePage(
        index=index,
        name=source.name,
        label=short_name(source.name),
        language=source.language,
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        text=tuple(lines),
        in_markup=sum(len(line) + _MARKUP_OF_LINE for line in lines) <= MOST_IN_MARKUP,
        colours=colours_of_python(lines) if source.language == "python" else (),
    )


def source_rows(costed: MapCosts, index: int, source: SourceFile, count: int) -> SourceRows:
    """The rows of the `index`-th source file; `count` is its number of lines."""
    uses = (python_lines if source.language == "python" else model_lines)(costed, index)
    peaks = [max((use.attributed.get(metric.name, 0) for use in uses.values()), default=0) for metric in costed.metrics]
    # Locations may name lines after the end, as files change after models are made of them.
    return SourceRows(
        lines={number: _line(costed, use, peaks) for number, use in sorted(uses.items()) if 1 <= number <= count},
        hottest=tuple(_hottest(uses, metric.name, count) for metric in costed.metrics),
    )


def _hottest(uses: Mapping[int, LineUse], metric: str, count: int) -> tuple[int, ...]:
    # The first line wins ties, for deterministic output.
    hot = [(-use.attributed.get(metric, 0), number) for number, use in uses.items() if number <= count]
    return tuple(number for cost, number in sorted(hot) if cost)


def _line(costed: MapCosts, use: LineUse, peaks: Sequence[int]) -> SourceLine:
    results = [costed.results[work] for work in use.works if work in costed.results]
    return SourceLine(
        ops=tuple(map(str, use.ops)),
        part_ops=tuple(map(str, use.part_ops)),
        sites=_sites(costed, use.works),
        calls=sum_of([result.calls for result in results]) if results else UNKNOWN,
        remark="" if results else _remark(costed, use),
        costs=_costs(costed, use, peaks) if results else (),
        overhead_ns=use.overhead_ns,
    )


def _sites(costed: MapCosts, works: Iterable[str]) -> tuple[str, ...]:
    """The dispatch sites among works, in the order of the program."""
    by_id = costed.graph.site_by_id
    sites = [work for work in works if work in by_id]
    if len(sites) > 1:
        sites.sort(key=lambda site: by_id[site].ordinal)
    return tuple(sites)


def _remark(costed: MapCosts, use: LineUse) -> str:
    """The reason for a line without cost."""
    ops, sites = costed.graph.op_by_id, costed.graph.site_by_id
    at_load = any(ops[op].outcome is Outcome.LOAD_TIME for op in use.ops) or any(
        sites[work].initializer for work in use.works if work in sites
    )
    if at_load and costed.attribution:
        return "not measured"
    if not use.ops:
        return "part of " + ", ".join(use.part_ops)
    present = {ops[op].outcome for op in use.ops}
    return ", ".join(outcome.value for outcome in (Outcome if len(present) > 1 else present) if outcome in present)


def _costs(costed: MapCosts, use: LineUse, peaks: Sequence[int]) -> tuple[LineCost, ...]:
    costs = []
    for metric, peak in zip(costed.metrics, peaks, strict=True):
        attributed = use.attributed.get(metric.name, 0)
        costs.append(LineCost(attributed, use.inclusive.get(metric.name, 0), heat_level(heat(attributed, peak))))
    return tuple(costs)


def heat_level(heat: float) -> int:
    """Heat as a level; every heat above 0 is at least 1."""
    return max(1, round(heat * HEAT_LEVELS)) if heat else 0


# ---- kernels tab
#
# The kernels tab: final IR, ops of its lines, samples, counts or estimates, and machine code.
#
# All kernels have their final IR with links. Machine code is larger, so a page has it up to a limit, for the most
# expensive kernels first.


MOST_CODE_BYTES: Final = 200_000
"""Most bytes of machine code whose instructions a page shows; an instruction of five bytes takes ten in the page."""
_ESTIMATE: Final = "estimated cycles"
"""The event of kernels without samples and counts: what their lines cost, by the machine code."""


@dataclass(frozen=True, slots=True)
class KernelSources:
    """Readers of a page's kernels: texts, machine code, remarks and estimates, read only if needed."""

    text: Callable[[Kernel], str]
    images: Callable[[], Sequence[Image]]
    remarks: Callable[[], Sequence[Remark]] = tuple
    estimates: Callable[[], StoredEstimates] = StoredEstimates
    sass: SassReader | None = None


def kernels_of(bundle: Bundle) -> KernelSources:
    """Readers of a bundle's kernels."""
    sass = SassReader(bundle.module_path)
    remarks = (lambda: bundle.remarks().remarks) if bundle.has_remarks else tuple
    return KernelSources(bundle.kernel_text, bundle.images, remarks, bundle.estimates, sass)


@dataclass(slots=True)
class PageCode:
    """The machine code of a page's kernels, up to `left` bytes; read at the first request."""

    sources: KernelSources
    left: int
    no_room: str = "no disassembly: more expensive kernels fill the page"
    _images: Sequence[Image] | None = None
    _failure: str = ""

    def images_of(self, kernel: str) -> tuple[Sequence[Image], str]:
        """The images with a kernel's code, and the reason if they are left out."""
        if self._images is None:
            try:
                self._images = self.sources.images()
            except ModuleInvalid as error:  # the page is worth writing without machine code
                self._images, self._failure = (), str(error)
        found = kernel_images(self._images, kernel)
        if not found:
            return (), self._failure
        image, function = found[0]
        size = function.high - function.low
        if size > self.left:
            return (), self.no_room
        self.left -= size
        return (image,), ""

    def sass_of(self, kernel: str) -> SassReader | None:
        """The reader of a CUDA kernel's code, if the page has room for it; only then it is compiled."""
        if self.left <= 0 or self.sources.sass is None:
            return None
        code, _ = self.sources.sass.code_of(entry_name(kernel))
        self.left -= sum(instruction.size for instruction in code)
        return self.sources.sass


def kernel_pages(costed: MapCosts, sources: KernelSources) -> tuple[KernelPage, ...]:
    """Kernels with IR, the most expensive first; those that run only at load time come last."""
    results = {result.kernel: result for result in costed.attribution.kernels} if costed.attribution else {}
    remarks: dict[Text, list[Remark]] = defaultdict(list)
    for remark in sort_remarks(sources.remarks()):
        remarks[remark.kernel].append(remark)
    estimates = _estimates(costed.graph, sources.estimates()) if costed.attribution else {}
    code = PageCode(sources, MOST_CODE_BYTES)
    pages = []
    for kernel in _by_cost(costed):
        if not (text := sources.text(kernel)):
            continue
        images, no_code = code.images_of(kernel.name)
        sass = None if images else code.sass_of(kernel.name)
        page = kernel_page(kernel, text, images, results.get(kernel.name), no_code=no_code, sass=sass)
        if not page.seen and (estimated := estimates.get(kernel.name)):
            page = structs.replace(page, seen={_ESTIMATE: estimated})
        pages.append(structs.replace(page, remarks=tuple(_remark_rows(remarks.get(kernel.name, ())))))
    return tuple(pages)


def _by_cost(costed: MapCosts) -> Sequence[Kernel]:
    """The kernels by falling cost in the metric shown first; ties in the order of the map."""
    metric = costed.metrics[default_metric(costed.metrics)].name if costed.metrics else ""

    def key(kernel: Kernel) -> tuple[bool, int]:
        runs_at_load = all(costed.graph.site_by_id[site].initializer for site in kernel.sites)
        return runs_at_load, -sum(costed.total(site).get(metric, 0) for site in kernel.sites)

    return sorted(costed.graph.kernels, key=key)


def _estimates(graph: TraceGraph, stored: StoredEstimates) -> Mapping[str, Mapping[int, int]]:
    """Estimated costs by line, of each kernel in its most expensive call; empty if the module has changed."""
    by_kernel: dict[str, Mapping[int, int]] = {}
    for estimate in stored.kernels if stored.module_sha256 == graph.module.sha256 else ():
        lines = {line.line: line.hundredths for line in estimate.lines if line.hundredths}
        if sum(lines.values()) > sum(by_kernel.get(estimate.kernel, {}).values()):
            by_kernel[estimate.kernel] = lines
    return by_kernel


def _remark_rows(remarks: Sequence[Remark]) -> Iterator[tuple[int, str, int, str]]:
    """Remarks on optimisations, without remarks that only count."""
    for remark in remarks:
        if remark.pass_name not in STATISTICS_PASSES:
            line = remark.line if isinstance(remark.line, int) else 0
            yield line, or_dash(remark.pass_name), remark.count, remark.text


def kernel_page(
    kernel: Kernel,
    text: str,
    images: Sequence[Image],
    result: KernelResult | None = None,
    *,
    no_code: str = "",
    sass: SassReader | None = None,
) -> KernelPage:
    """A kernel for pages; `no_code`: reason for no machine code, or ""; `sass`: its reader for CUDA."""
    view = view_kernel(kernel, text, images, sass)
    index_of = {instruction.address: index for index, instruction in enumerate(view.instructions)}
    addresses = result.addresses if result else {}
    seen_at = {index_of[address]: seen for address, seen in addresses.items() if address in index_of}
    return KernelPage(
        name=view.kernel.name,
        sites=view.kernel.sites,
        lines=tuple(line.text for line in view.lines),
        ops={line.line: line.ops for line in view.lines if line.ops},
        seen=_by_metric(result.lines) if result else {},
        code=tuple(
            (f"{instruction.address:x}", instruction.line, f"{instruction.mnemonic} {instruction.operands}".strip())
            for instruction in view.instructions
        ),
        seen_at=_by_metric(seen_at),
        loops=tuple(_loop_row(loop, index_of) for loop in view.loops),
        no_code=(no_code or view.no_code) if not view.instructions else "",
    )


def _loop_row(loop: KernelLoop, index_of: Mapping[int, int]) -> LoopRow:
    starts = sorted(index_of)
    ranges = tuple((bisect_left(starts, low), bisect_left(starts, high)) for low, high in loop.ranges)
    return LoopRow(loop.parent, index_of[loop.address], loop.instructions, loop.ops, loop.lines, ranges)


def _by_metric(seen: Mapping[int, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    by_metric: dict[str, dict[int, int]] = defaultdict(dict)
    for position, values in seen.items():
        for name, value in values.items():
            if value:
                by_metric[name][position] = value
    return by_metric
