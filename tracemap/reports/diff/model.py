"""What the page of a comparison says, as plain frozen data: tests assert on these, templates only loop over them.

Amounts are those of the comparison: whole numbers, of 1,000 invocations or of the whole runs, before and after. What is
there per metric stands in the order of the page's metrics. Ops are named by the number of their row; their addresses
are those of the op after, `op7`, and of what is gone `was-op3`.
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
    """A metric that both have; `shown`, `shown_unit` and `scale` as those of `page.model.MetricBalance`.

    `work`: what shares are of: the whole before.
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
    """A row of the table of ops: matched ones and new ones in the order of the model after, then those that are gone.

    What is not there is "". `how`: the way of its match, or `new` or `gone`. `ratio`: of the medians in an invocation,
    and its bounds, without the machine's part, where both sides tell; `finding`: what is found of it, or "".
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
    """A line of a source: its ops, and what they cost together."""

    ops: tuple[int, ...]
    amounts: tuple[BeforeAfter, ...]


class DiffText(Record, frozen=True):
    """One side of a source: its lines as rows, None for a gap, so that rows of both sides are those that match.

    `side` is `A` (before) or `B`, with the number of the source the beginning of its anchors: `A0L12`.
    """

    side: str
    name: str
    rows: tuple[str | None, ...]
    columns: int
    colours: Sequence[Sequence[Coloured]]
    uses: Mapping[int, DiffLine]


class DiffSource(Record, frozen=True):
    """A source of both sides, of one, or, where the text is the same, once with what it costs before and after."""

    index: int
    label: str
    language: str
    same: bool
    texts: tuple[DiffText, ...]


class DiffBox(Record, frozen=True, array_like=True):
    """A site, its kernel, and the rows of its ops."""

    site: str
    kernel: str
    ops: tuple[int, ...]


class DiffGroup(Record, frozen=True, array_like=True):
    """Sites before and after that have ops in common, and not the same ones.

    `alike`: the numbers of all groups of the same shape, of which the first one is drawn.
    """

    before: tuple[DiffBox, ...]
    after: tuple[DiffBox, ...]
    amounts: tuple[BeforeAfter, ...]
    alike: tuple[int, ...]


class DiffKernel(Record, frozen=True):
    """A kernel that is other code than before, or new or gone: None where it is not.

    `ops` are those that work in it, on either side; `amounts` what they cost.
    """

    before: KernelPage | None
    after: KernelPage | None
    code_before: KernelCode
    code_after: KernelCode
    ops: tuple[int, ...]
    amounts: tuple[BeforeAfter, ...]


class DiffRemark(Record, frozen=True, array_like=True):
    """A remark of the compiler that is new or gone: `line` is 0 where it is not known."""

    kind: str
    kernel: str
    line: int
    ops: tuple[int, ...]
    pass_name: str
    text: str
    count: int


class DiffScope(Record, frozen=True, array_like=True):
    """A scope and what its ops cost."""

    name: str
    ops: int
    amounts: tuple[BeforeAfter, ...]


class DiffFact(Record, frozen=True):
    """What is said of both sides."""

    label: str
    before: str
    after: str


class FateChange(Record, frozen=True):
    """How many ops have another fate than before, and which."""

    before: str
    after: str
    ops: tuple[int, ...]


class FindingRow(Record, frozen=True):
    """A finding, the address of its op and its line in words."""

    of: Finding
    anchor: str
    ids: str
    line: str


class DiffPage(Record, frozen=True):
    """A whole page; `metric` is the number of the one shown first, -1 where there is none."""

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
