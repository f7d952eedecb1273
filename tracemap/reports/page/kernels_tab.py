"""The kernels tab: final IR, ops of its lines, samples and counts, and machine code.

Disassembly takes longer than the rest of a page. So the page has it only for kernels with samples or counts, the
hottest first, up to a limit. All kernels have their final IR with links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from tracemap.attribution.model import Attribution, KernelResult
from tracemap.graph.bundle import Bundle
from tracemap.graph.documents import FIGURES, Remark
from tracemap.graph.model import Kernel, TraceGraph
from tracemap.machine.images import Image, read_images
from tracemap.reports.escaping import or_dash
from tracemap.reports.kernels import view_kernel
from tracemap.reports.page.model import KernelPage, LoopRow
from tracemap.reports.remarks import in_order
from tracemap.units import Text

MOST_INSTRUCTIONS = 20_000
"""Most instructions of all kernels of a page."""


@dataclass(frozen=True, slots=True)
class KernelSources:
    """Readers of a page's kernels: texts, machine code and compiler remarks, read only if needed."""

    text: Callable[[Kernel], str]
    images: Callable[[], Sequence[Image]]
    remarks: Callable[[], Sequence[Remark]] = tuple


def kernels_of(bundle: Bundle) -> KernelSources:
    """Readers of a bundle's kernels."""
    remarks = (lambda: bundle.remarks().remarks) if bundle.has_remarks else tuple
    return KernelSources(bundle.kernel_text, lambda: read_images(bundle.module_path), remarks)


NO_KERNELS = KernelSources(lambda _: "", tuple)
"""A page without kernels."""


def kernel_pages(graph: TraceGraph, attribution: Attribution | None, sources: KernelSources) -> tuple[KernelPage, ...]:
    """Kernels with IR, the hottest first; without samples and counts, in the order of the map."""
    results = {result.kernel: result for result in attribution.kernels} if attribution else {}
    heat = {name: _heat(result) for name, result in results.items()}
    kernels = sorted(graph.kernels, key=lambda kernel: -heat.get(kernel.name, 0))
    images = sources.images() if results else ()
    remarks: dict[Text, list[Remark]] = {}
    for remark in in_order(sources.remarks()):
        remarks.setdefault(remark.kernel, []).append(remark)
    instructions_left = MOST_INSTRUCTIONS
    pages = []
    for kernel in kernels:
        text = sources.text(kernel)
        if not text:
            continue
        has_code = kernel.name in results and instructions_left > 0
        no_code = "" if has_code else _NO_DISASSEMBLY
        page = kernel_page(kernel, text, images if has_code else (), results.get(kernel.name), no_code=no_code)
        instructions_left -= len(page.code)
        pages.append(structs.replace(page, remarks=tuple(_remark_rows(remarks.get(kernel.name, ())))))
    return tuple(pages)


_NO_DISASSEMBLY: Final = (
    "no disassembly: the run has no samples in this kernel (record with --sample), or hotter kernels fill the page"
)


def _remark_rows(remarks: Sequence[Remark]) -> Iterator[tuple[int, str, int, str]]:
    """Remarks on optimisations, without remarks that only count."""
    for remark in remarks:
        if remark.pass_name not in FIGURES:
            line = remark.line if isinstance(remark.line, int) else 0
            yield line, or_dash(remark.pass_name), remark.count, remark.text


def _heat(result: KernelResult) -> int:
    """The sum of the first metric inside a kernel."""
    return sum(next(iter(values.values()), 0) for values in result.lines.values())


def kernel_page(
    kernel: Kernel, text: str, images: Sequence[Image], result: KernelResult | None = None, *, no_code: str = ""
) -> KernelPage:
    """A kernel for pages; `no_code`: reason for no machine code, or ""."""
    view = view_kernel(kernel, text, images)
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
        loops=tuple(
            LoopRow(loop.parent, index_of[loop.address], loop.instructions, loop.ops, loop.lines) for loop in view.loops
        ),
        no_code=(no_code or view.no_code) if not view.instructions else "",
    )


def _by_metric(seen: Mapping[int, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    by_metric: dict[str, dict[int, int]] = {}
    for position, values in seen.items():
        for name, value in values.items():
            if value:
                by_metric.setdefault(name, {})[position] = value
    return by_metric
