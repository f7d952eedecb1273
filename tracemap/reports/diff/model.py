"""Content of the page of a comparison, as frozen records for templates and tests.

Amounts are integers per 1,000 invocations or of the whole runs, before and after. Tuples per metric are in the order of
the page's metrics. Ops are identified by their row number. The anchor of an op is its id after, `op7`; of a removed op
`was-op3`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.codec import Record
from tracemap.comparison.model import Finding, KernelCode, MetricDifference
from tracemap.diagnostics import Diagnostic
from tracemap.reports.highlight import Coloured
from tracemap.reports.page.model import KernelPage, LineLink, Shown

BeforeAfter = tuple[int, int]


class DiffMetric(Record, frozen=True):
    """A metric of both sides; `shown`, `shown_unit` and `scale` as in `page.model.MetricBalance`.

    `work`: base of shares, the total before.
    """

    name: str
    unit: str
    shown_unit: str
    scale: int
    shown: tuple[Shown, Shown]
    known_invocations: bool
    work: int
    of: MetricDifference


class DiffOp(Record, frozen=True, array_like=True):
    """A row of the table of ops: matched and new ops in the order of the model after, then removed ops.

    Missing texts are "".

    Attributes:
        how: how the op was matched, or `new` or `gone`.
        ratio: ratio of the medians per invocation, and its interval, corrected for drift; None if unknown.
        finding: kind of its significant change, or "".
    """

    before: str
    after: str
    how: str
    edited: bool
    name: str
    line_before: LineLink
    line_after: LineLink
    scope: str
    fate_before: str
    fate_after: str
    code: str
    kernels_before: tuple[str, ...]
    kernels_after: tuple[str, ...]
    amounts: tuple[BeforeAfter | None, ...]
    ratio: tuple[float, float, float] | None
    finding: str


class DiffLine(Record, frozen=True, array_like=True):
    """A line of a source: its ops, and the sum of their costs."""

    ops: tuple[int, ...]
    amounts: tuple[BeforeAfter, ...]


class DiffText(Record, frozen=True):
    """One side of a source. Rows of both sides match; None is a gap.

    `side` is `A` (before) or `B` (after). Anchors consist of side, index of the source and line: `A0L12`.
    """

    side: str
    name: str
    rows: tuple[str | None, ...]
    columns: int
    colours: Sequence[Sequence[Coloured]]
    uses: Mapping[int, DiffLine]


class DiffSource(Record, frozen=True):
    """A source of both sides or of one. If both texts are equal, `texts` has one entry with costs before and after."""

    index: int
    label: str
    language: str
    same: bool
    texts: tuple[DiffText, ...]


class DiffBox(Record, frozen=True, array_like=True):
    """A dispatch site, its kernel, and the rows of its ops."""

    site: str
    kernel: str
    ops: tuple[int, ...]


class DiffGroup(Record, frozen=True, array_like=True):
    """A fusion change: dispatch sites before and after that share some of their ops.

    `alike`: indices of all groups of the same shape; the first is drawn by default.
    """

    before: tuple[DiffBox, ...]
    after: tuple[DiffBox, ...]
    amounts: tuple[BeforeAfter, ...]
    alike: tuple[int, ...]


class DiffKernel(Record, frozen=True):
    """A kernel whose code changed, or that is new or gone (None on the other side).

    `ops` are in the kernel on either side; `amounts` are their costs.
    """

    before: KernelPage | None
    after: KernelPage | None
    code_before: KernelCode
    code_after: KernelCode
    ops: tuple[int, ...]
    amounts: tuple[BeforeAfter, ...]


class DiffRemark(Record, frozen=True, array_like=True):
    """A compiler remark that is new or gone; `line` is 0 if unknown."""

    kind: str
    kernel: str
    line: int
    ops: tuple[int, ...]
    pass_name: str
    text: str
    count: int


class DiffScope(Record, frozen=True, array_like=True):
    """A scope and the costs of its ops."""

    name: str
    ops: int
    amounts: tuple[BeforeAfter, ...]


class DiffFact(Record, frozen=True):
    """A fact on both sides, such as the device."""

    label: str
    before: str
    after: str


class FateChange(Record, frozen=True):
    """Ops whose outcome changed, with both outcomes."""

    before: str
    after: str
    ops: tuple[int, ...]


class FindingRow(Record, frozen=True):
    """A significant change, the anchor of its op, and a text for its line."""

    of: Finding
    anchor: str
    ids: str
    line: str


class DiffPage(Record, frozen=True):
    """The content of the page; `metric` is the index of the metric shown first, -1 without metrics."""

    title: str
    matched: str
    facts: tuple[DiffFact, ...]
    findings: tuple[FindingRow, ...]
    nothing_found: str
    machine: str
    metric: int
    metrics: tuple[DiffMetric, ...]
    ops: tuple[DiffOp, ...]
    sources: tuple[DiffSource, ...]
    groups: tuple[DiffGroup, ...]
    kernels: tuple[DiffKernel, ...]
    remarks: tuple[DiffRemark, ...]
    scopes: tuple[DiffScope, ...]
    fates: tuple[FateChange, ...]
    diagnostics: tuple[Diagnostic, ...]
