"""Kernels that are other code than before: the texts and the machine code of both, beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemap.comparison.model import KernelDifference
from tracemap.comparison.sides import Compared
from tracemap.machine.images import Image
from tracemap.reports.diff.model import DiffKernel, DiffRemark
from tracemap.reports.diff.rows import Rows
from tracemap.reports.labels import or_dash
from tracemap.reports.page.kernels_tab import MOST_INSTRUCTIONS, KernelSources, kernel_page
from tracemap.reports.page.model import KernelPage
from tracemap.units import Text, Unknown


class _Views:
    """Makes the views of one side; of all kernels together it has so many instructions."""

    def __init__(self, side: Compared, sources: KernelSources) -> None:
        self._side = side
        self._sources = sources
        self._images: Sequence[Image] | None = None
        self._left = MOST_INSTRUCTIONS // 2

    def view(self, name: Text) -> KernelPage | None:
        """The view of a kernel; None where there is none of this name."""
        kernel = None if isinstance(name, Unknown) else self._side.graph.kernel_by_name.get(name)
        if kernel is None:
            return None
        if self._images is None:
            self._images = self._sources.images()
        wanted = self._left > 0
        page = kernel_page(
            kernel,
            self._sources.text(kernel),
            self._images if wanted else (),
            no_code="" if wanted else "not read: other kernels, whose cost changed more, fill the page",
        )
        self._left -= len(page.code)
        return page


def kernels_of(rows: Rows, before: KernelSources, after: KernelSources) -> tuple[DiffKernel, ...]:
    """The kernels, those first whose ops' cost changed most of the first metric."""
    found = []
    for each in rows.made.kernels:
        ops = tuple(sorted(_ops_of(rows, each)))
        found.append((each, ops, rows.amounts(ops)))
    found.sort(key=lambda kernel: -abs(kernel[2][0][1] - kernel[2][0][0]) if kernel[2] else 0)
    one, two = _Views(rows.before, before), _Views(rows.after, after)
    return tuple(
        DiffKernel(one.view(each.before), two.view(each.after), each.code_before, each.code_after, ops, amounts)
        for each, ops, amounts in found
    )


def _ops_of(rows: Rows, kernel: KernelDifference) -> Iterator[int]:
    """The rows of ops that work in a kernel, before or after, each once."""
    names = ((rows.before, rows.row_before, kernel.before), (rows.after, rows.row_after, kernel.after))
    yield from {
        known[op]
        for side, known, name in names
        if not isinstance(name, Unknown)
        for op in side.ops_of_kernel.get(name, ())
        if op in known
    }


def remarks_of(rows: Rows) -> tuple[DiffRemark, ...]:
    """The remarks that are new, then those that are gone."""
    return tuple(
        DiffRemark(
            kind=each.kind,
            kernel=or_dash(each.kernel),
            line=0 if isinstance(each.line, Unknown) else each.line,
            ops=tuple((rows.row_after if each.kind == "new" else rows.row_before)[op] for op in each.ops),
            pass_name=or_dash(each.pass_name),
            text=each.text,
            count=each.count,
        )
        for each in rows.made.remarks or ()
    )
