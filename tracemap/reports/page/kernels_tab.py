"""The tab of kernels: their final IR, the ops of its lines, what was seen at them, and machine code.

Reading machine code takes longer than all the rest of a page. It is there for kernels in which something was seen, the
hottest first, up to a limit; the final IR and its links are there for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
"""Of all kernels of a page together."""


@dataclass(frozen=True, slots=True)
class KernelSources:
    """Where a page's kernels come from: their texts, and the machine code, read only where it is needed.

    `remarks`: what the compiler said of any of them.
    """

    text: Callable[[Kernel], str]
    images: Callable[[], Sequence[Image]]
    remarks: Callable[[], Sequence[Remark]] = tuple


def kernels_of(bundle: Bundle) -> KernelSources:
    """The kernels of a bundle."""
    remarks = (lambda: bundle.remarks().remarks) if bundle.has_remarks else tuple
    return KernelSources(bundle.kernel_text, lambda: read_images(bundle.module_path), remarks)


NO_KERNELS = KernelSources(lambda _: "", tuple)
"""A page without the inside of kernels."""


def kernel_pages(graph: TraceGraph, attribution: Attribution | None, sources: KernelSources) -> tuple[KernelPage, ...]:
    """The kernels that have a text, the hottest first; without anything seen, in the order of the map."""
    results = {result.kernel: result for result in attribution.kernels} if attribution else {}
    heat = {name: _heat(result) for name, result in results.items()}
    kernels = sorted(graph.kernels, key=lambda kernel: -heat.get(kernel.name, 0))
    images = sources.images() if results else ()
    remarks: dict[Text, list[Remark]] = {}
    for remark in in_order(sources.remarks()):
        remarks.setdefault(remark.kernel, []).append(remark)
    left = MOST_INSTRUCTIONS
    pages = []
    for kernel in kernels:
        text = sources.text(kernel)
        if not text:
            continue
        wanted = kernel.name in results and left > 0
        no_code = "" if wanted else "not read: the run saw nothing in it, or hotter kernels fill the page"
        page = kernel_page(kernel, text, images if wanted else (), results.get(kernel.name), no_code=no_code)
        left -= len(page.code)
        pages.append(structs.replace(page, remarks=tuple(_remark_rows(remarks.get(kernel.name, ())))))
    return tuple(pages)


def _remark_rows(remarks: Sequence[Remark]) -> Iterator[tuple[int, str, int, str]]:
    """What was done or missed; not what only counts."""
    for remark in remarks:
        if remark.pass_name not in FIGURES:
            line = remark.line if isinstance(remark.line, int) else 0
            yield line, or_dash(remark.pass_name), remark.count, remark.text


def _heat(result: KernelResult) -> int:
    """How hot a kernel is: by the first metric of steps."""
    return sum(next(iter(values.values()), 0) for values in result.lines.values())


def kernel_page(
    kernel: Kernel, text: str, images: Sequence[Image], result: KernelResult | None = None, *, no_code: str = ""
) -> KernelPage:
    """A kernel as pages have it; `no_code`: why its machine code is not read, "" where it is."""
    view = view_kernel(kernel, text, images)
    number_of = {each.address: number for number, each in enumerate(view.instructions)}
    seen_at = {number_of[at]: seen for at, seen in result.addresses.items() if at in number_of} if result else {}
    return KernelPage(
        name=view.kernel.name,
        sites=view.kernel.sites,
        lines=tuple(line.text for line in view.lines),
        ops={line.line: line.ops for line in view.lines if line.ops},
        seen=_by_metric(result.lines) if result else {},
        code=tuple(
            (f"{each.address:x}", each.line, f"{each.mnemonic} {each.operands}".strip()) for each in view.instructions
        ),
        seen_at=_by_metric(seen_at),
        loops=tuple(
            LoopRow(loop.parent, number_of[loop.address], loop.instructions, loop.ops, loop.lines)
            for loop in view.loops
        ),
        no_code=(no_code or view.no_code) if not view.instructions else "",
    )


def _by_metric(seen: Mapping[int, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for where, values in seen.items():
        for name, value in values.items():
            if value:
                found.setdefault(name, {})[where] = value
    return found
