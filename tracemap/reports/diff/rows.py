"""Rows of the page that compares two runs."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracemap.compare.model import (
    Amount,
    Comparison,
    Finding,
    KernelCode,
    KernelDifference,
    MetricDifference,
    OpDifference,
    total,
)
from tracemap.compare.neighbourhoods import longest_rising
from tracemap.compare.sides import Side
from tracemap.core.codec import Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import Integer, Text, Unknown
from tracemap.map.model import Op, SourceFile
from tracemap.map.query import stack_of
from tracemap.reports.escaping import file_line, lines_of, or_dash, short_name
from tracemap.reports.highlight import Coloured, colours_of_python
from tracemap.reports.page.model import Basis, KernelPage, LineLink
from tracemap.reports.page.source_tabs import MOST_CODE_BYTES, KernelSources, PageCode, kernel_page

# ---- model
#
# Content of the page of a comparison, as frozen records for templates and tests.
#
# Amounts are integers per 1,000 invocations or of the whole runs, before and after. Tuples per metric are in the order
# of the page's metrics. Ops are identified by their row number. The anchor of an op is its id after, `op7`; of a
# removed op `was-op3`.


BeforeAfter = tuple[int, int]


class DiffMetric(Record, frozen=True):
    """A metric of both sides; `shown`, `shown_unit` and `scale` as in `page.model.MetricBalance`.

    `work`: base of shares, the total before.
    """

    name: str
    unit: str
    shown_unit: str
    scale: int
    shown: tuple[Basis, Basis]
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
    outcome_before: str
    outcome_after: str
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


Block = tuple[int, int, int, int]
"""A difference of two texts: begin and end before, begin and end after, as indices of lines."""


class DiffKernel(Record, frozen=True):
    """A kernel whose code changed, or that is new or gone (None on the other side).

    `ops` are in the kernel on either side; `amounts` are their costs. `lines_differ`, `code_differs`: the differences
    of final IR and machine code, in order; None if a side lacks them, or they are too long to compare.
    """

    before: KernelPage | None
    after: KernelPage | None
    code_before: KernelCode
    code_after: KernelCode
    ops: tuple[int, ...]
    amounts: tuple[BeforeAfter, ...]
    lines_differ: tuple[Block, ...] | None = None
    code_differs: tuple[Block, ...] | None = None


class DiffSetting(Record, frozen=True):
    """A setting of a kernel, of the build or of the runs (`owner`) that differs."""

    owner: str
    name: str
    before: str
    after: str


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


class DiffMemoryRow(Record, frozen=True):
    """Bytes at a memory peak, of an op or in sum: before, after and change, as texts; `grew`: whether they are more."""

    anchor: str
    op: str
    name: str
    before: str
    after: str
    change: str
    grew: bool


class DiffMemory(Record, frozen=True):
    """The memory peak of a function: a sentence on its change, the ops that changed it, and sums.

    `hidden`: the number of further ops that changed it.
    """

    text: str
    ops: tuple[DiffMemoryRow, ...]
    hidden: int
    sums: tuple[DiffMemoryRow, ...]


class OutcomeChange(Record, frozen=True):
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
    """The content of the page; `metric` is the index of the metric shown first, -1 without metrics.

    `notices`: reasons to doubt the costs of a side, for the top of the page.
    """

    title: str
    notices: tuple[str, ...]
    matched: str
    settings: tuple[DiffSetting, ...]
    same_settings: str
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
    memory: tuple[DiffMemory, ...]
    outcomes: tuple[OutcomeChange, ...]
    diagnostics: tuple[Diagnostic, ...]


# ---- ops


@dataclass(frozen=True)
class Rows:
    """The ops of a comparison by row number; `same_text`: the page shows the model's text once for both sides."""

    comparison: Comparison
    before: Side
    after: Side
    same_text: bool

    @cached_property
    def row_before(self) -> Mapping[str, int]:
        """Row numbers by the id before."""
        return {str(op.before): row for row, op in enumerate(self.comparison.ops) if not isinstance(op.before, Unknown)}

    @cached_property
    def row_after(self) -> Mapping[str, int]:
        """Row numbers by the id after."""
        return {str(op.after): row for row, op in enumerate(self.comparison.ops) if not isinstance(op.after, Unknown)}

    def anchor(self, row: int) -> str:
        """The anchor of an op."""
        return anchor_of(self.comparison.ops[row])

    def amounts(self, rows: Iterable[int]) -> tuple[BeforeAfter, ...]:
        """Summed costs of ops, by metric."""
        of_ops = [self.comparison.ops[row].amounts for row in rows]
        return tuple(map(_sum, ([amounts[name] for amounts in of_ops if name in amounts] for name in self.names)))

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of the metrics."""
        return [metric.name for metric in self.comparison.metrics]

    def of_metrics(self, amounts: Mapping[str, Amount]) -> tuple[BeforeAfter | None, ...]:
        """Amounts in the order of the metrics."""
        ordered = (amounts.get(name) for name in self.names)
        return tuple((amount.before, amount.after) if amount else None for amount in ordered)

    def ops(self) -> tuple[DiffOp, ...]:
        """The rows of the table of ops."""
        kinds = {(finding.before, finding.after): finding.kind for finding in self.comparison.findings}
        return tuple(self._row(op, kinds.get((op.before, op.after), "")) for op in self.comparison.ops)

    def _row(self, op: OpDifference, finding: str) -> DiffOp:
        op_before, op_after = _op(self.before, op.before), _op(self.after, op.after)
        how = "gone" if op_after is None else "new" if op_before is None else str(op.how)
        return DiffOp(
            before=_text(op.before),
            after=_text(op.after),
            how=how,
            edited=op.edited,
            name=op.called,
            line_before=self._link("A", self.before, op_before),
            line_after=self._link("B", self.after, op_after),
            scope="/".join(op.scope),
            outcome_before=_text(op.outcome_before),
            outcome_after=_text(op.outcome_after),
            code=_text(op.code),
            kernels_before=self.before.kernels_of.get(op_before.id, ()) if op_before else (),
            kernels_after=self.after.kernels_of.get(op_after.id, ()) if op_after else (),
            amounts=self.of_metrics(op.amounts),
            ratio=_ratio(op),
            finding=finding,
        )

    def _link(self, letter: str, side: Side, op: Op | None) -> LineLink:
        """The line of an op in the model; if both sides have the same text, the anchor is of side B."""
        if op is None:
            return LineLink("", "")
        shown = "B" if self.same_text else letter
        model = side.graph.sources[0].name if side.graph.sources else None
        has_anchor = op.file == model and not isinstance(op.line, Unknown)
        return LineLink(file_line(op.file, op.line), f"{shown}0L{op.line}" if has_anchor else "")


def anchor_of(op: OpDifference) -> str:
    """The anchor of an op: its id after, or `was-` and its id before."""
    return f"was-{op.before}" if isinstance(op.after, Unknown) else str(op.after)


def _op(side: Side, name: Text) -> Op | None:
    return None if isinstance(name, Unknown) else side.graph.op_by_id[name]


def _ratio(op: OpDifference) -> tuple[float, float, float] | None:
    return None if op.ratio is None else (op.ratio.ratio, op.ratio.ratio_low, op.ratio.ratio_high)


def _sum(amounts: Sequence[Amount]) -> BeforeAfter:
    whole = total(list(amounts))
    return whole.before, whole.after


def _text(value: Text | Integer) -> str:
    return "" if isinstance(value, Unknown) else str(value)


# ---- kernels whose code changed, and remarks


class _Views:
    """Makes the kernel views of one side, up to half of a page's machine code."""

    def __init__(self, side: Side, sources: KernelSources) -> None:
        self._side = side
        self._sources = sources
        room = "no disassembly: the page is full of kernels with larger changes"
        self._code = PageCode(sources, MOST_CODE_BYTES // 2, room)

    def view(self, name: Text) -> KernelPage | None:
        """The view of a kernel; None if it does not exist on this side."""
        kernel = None if isinstance(name, Unknown) else self._side.graph.kernel_by_name.get(name)
        if kernel is None:
            return None
        images, no_code = self._code.images_of(kernel.name)
        sass = None if images else self._code.sass_of(kernel.name)
        return kernel_page(kernel, self._sources.text(kernel), images, no_code=no_code, sass=sass)


def changed_kernels(rows: Rows, before: KernelSources, after: KernelSources) -> tuple[DiffKernel, ...]:
    """Kernels whose code changed, sorted by the change of the first metric of their ops."""
    kernels = []
    for kernel in rows.comparison.kernels:
        ops = tuple(sorted(_ops_of(rows, kernel)))
        kernels.append((kernel, ops, rows.amounts(ops)))
    kernels.sort(key=lambda entry: -abs(entry[2][0][1] - entry[2][0][0]) if entry[2] else 0)
    views_before, views_after = _Views(rows.before, before), _Views(rows.after, after)
    return tuple(
        _kernel(views_before.view(kernel.before), views_after.view(kernel.after), kernel, ops, amounts)
        for kernel, ops, amounts in kernels
    )


def _kernel(
    before: KernelPage | None,
    after: KernelPage | None,
    kernel: KernelDifference,
    ops: tuple[int, ...],
    amounts: tuple[BeforeAfter, ...],
) -> DiffKernel:
    lines = code = None
    if before is not None and after is not None:
        lines = differences(*([_VALUE.sub("%", line) for line in view.lines] for view in (before, after)))
        if before.code and after.code:
            code = differences(*([_without_addresses(text) for *_, text in view.code] for view in (before, after)))
    return DiffKernel(before, after, kernel.code_before, kernel.code_after, ops, amounts, lines, code)


_VALUE: Final = re.compile(r"%[\w$.-]+(?:[:#]\d+)?")
"""The name of a value, whose number depends on all lines above."""
_RELATIVE: Final = re.compile(r"\brip [+-] 0x[0-9a-f]+")
_ADDRESS: Final = re.compile(r"#?0x[0-9a-f]+$")
_BRANCHES: Final = ("j", "call", "b", "cb", "tb", "adr")
"""The first letters of instructions whose last operand is an address."""


def _without_addresses(instruction: str) -> str:
    """The text of an instruction without addresses of code and constants, which move with any code ahead of them."""
    if instruction.startswith("nop"):  # padding
        return "nop"
    text = _RELATIVE.sub("rip", instruction)
    return _ADDRESS.sub("", text) if text.startswith(_BRANCHES) else text


MOST_COMPARED: Final = 20_000
"""Most lines of a text to compare."""
_MOST_PAIRS: Final = 300_000
"""Most pairs of equal lines to compare one by one. With more, lines that are very frequent are no evidence."""


def differences(before: Sequence[str], after: Sequence[str]) -> tuple[Block, ...] | None:
    """The blocks of lines that differ between two texts, in order; None if they are too long to compare."""
    if max(len(before), len(after)) > MOST_COMPARED:
        return None
    counts = Counter(before)
    pairs = sum(counts[line] for line in after)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=pairs > _MOST_PAIRS)
    return tuple((a, b, c, d) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal")


def _ops_of(rows: Rows, kernel: KernelDifference) -> Iterator[int]:
    """The rows of ops in a kernel, before or after, without duplicates."""
    names = ((rows.before, rows.row_before, kernel.before), (rows.after, rows.row_after, kernel.after))
    yield from {
        known[op]
        for side, known, name in names
        if not isinstance(name, Unknown)
        for op in side.ops_of_kernel.get(name, ())
        if op in known
    }


def remarks_of(rows: Rows) -> tuple[DiffRemark, ...]:
    """New remarks, then remarks that disappeared."""
    return tuple(
        DiffRemark(
            kind=remark.kind,
            kernel=or_dash(remark.kernel),
            line=0 if isinstance(remark.line, Unknown) else remark.line,
            ops=tuple((rows.row_after if remark.kind == "new" else rows.row_before)[op] for op in remark.ops),
            pass_name=or_dash(remark.pass_name),
            text=remark.text,
            count=remark.count,
        )
        for remark in rows.comparison.remarks or ()
    )


# ---- sources, aligned line by line


GAP = 0
"""In place of a line number: the line of the other side has no match."""
Places = Mapping[tuple[str, int], list[int]]
"""Rows of ops by file and line."""


def aligned(
    before: Sequence[str], after: Sequence[str], matched: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Align two texts: pairs of line numbers from 1, or `GAP`.

    Anchors are the `matched` lines and equal lines that are unique in both texts, reduced to the longest sequence that
    rises on both sides. Equal lines directly before and after anchors match, too.
    """
    last = (0, 0)
    for pair in (*_in_order({*matched, *_equal(before, after)}), (len(before) + 1, len(after) + 1)):
        yield from _between(before, after, last, pair)
        if pair[0] <= len(before):
            yield pair
        last = pair


def _equal(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    counts = Counter(before), Counter(after)
    line_after = {text: line for line, text in enumerate(after, 1)}
    for line, text in enumerate(before, 1):
        if counts[0][text] == counts[1][text] == 1:
            yield line, line_after[text]


def _in_order(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest sequence of pairs that rises on both sides."""
    return longest_rising(sorted(pairs, key=lambda pair: (pair[0], -pair[1])))


def _between(
    before: Sequence[str], after: Sequence[str], low: tuple[int, int], high: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """The pairs between two anchors: equal lines at both ends, and edited or unmatched lines in the middle."""
    lines_before, lines_after = list(range(low[0] + 1, high[0])), list(range(low[1] + 1, high[1]))
    front = _equal_run(before, after, lines_before, lines_after)
    back = _equal_run(before, after, lines_before[front:][::-1], lines_after[front:][::-1])
    yield from zip(lines_before[:front], lines_after[:front], strict=True)
    only_before = lines_before[front : len(lines_before) - back]
    only_after = lines_after[front : len(lines_after) - back]
    if len(only_before) == len(only_after):  # the same lines, edited
        yield from zip(only_before, only_after, strict=True)
    else:
        yield from ((line, GAP) for line in only_before)
        yield from ((GAP, line) for line in only_after)
    yield from zip(lines_before[len(lines_before) - back :], lines_after[len(lines_after) - back :], strict=True)


def _equal_run(
    before: Sequence[str], after: Sequence[str], lines_before: Sequence[int], lines_after: Sequence[int]
) -> int:
    """Number of equal lines at the beginning."""
    run = 0
    while (
        run < min(len(lines_before), len(lines_after)) and before[lines_before[run] - 1] == after[lines_after[run] - 1]
    ):
        run += 1
    return run


@dataclass(frozen=True)
class SideTexts:
    """A side with its source texts; `places`: rows of ops by line of the model and of the user's Python."""

    compared: Side
    text: Callable[[SourceFile], str]
    places: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def place(self, rows: Mapping[str, int]) -> None:
        """Fill `places` with these rows, which are by op id."""
        for op in self.compared.graph.ops:
            if op.id in rows:
                for place in self._places_of(op):
                    self.places[place].append(rows[op.id])

    def _places_of(self, op: Op) -> Iterator[tuple[str, int]]:
        if not isinstance(op.file, Unknown) and not isinstance(op.line, Unknown):
            yield op.file, op.line
        frames = stack_of(self.compared.graph, op)
        if frames:
            yield frames[0].file, frames[0].line

    def lines(self, source: SourceFile) -> list[str]:
        """The lines of a source."""
        return lines_of(self.text(source))


def same_models(sides: Sequence[SideTexts]) -> bool:
    """Whether both sides have the same model text."""
    models = [side.compared.graph.sources[:1] for side in sides]
    texts = [side.text(model[0]) for side, model in zip(sides, models, strict=True) if model]
    return len(texts) == 2 and texts[0] == texts[1]


def sources_of(rows: Rows, sides: tuple[SideTexts, SideTexts]) -> tuple[DiffSource, ...]:
    """The sources of both sides: the models, then files of the same name, then files of one side."""
    sides[0].place(rows.row_before)
    sides[1].place(rows.row_after)
    return tuple(
        _source(rows, sides, index, pair) for index, pair in enumerate(_paired(*(side.compared for side in sides)))
    )


Pair = tuple[SourceFile | None, SourceFile | None]


def _paired(before: Side, after: Side) -> Iterator[Pair]:
    sources_before, sources_after = list(before.graph.sources), list(after.graph.sources)
    if sources_before and sources_after:
        yield sources_before.pop(0), sources_after.pop(0)
    by_name = {source.name: source for source in sources_before}
    for source in sources_after:
        yield by_name.pop(source.name, None), source
    for source in by_name.values():
        yield source, None


def _source(rows: Rows, sides: tuple[SideTexts, SideTexts], index: int, pair: Pair) -> DiffSource:
    before, after = ([] if source is None else side.lines(source) for side, source in zip(sides, pair, strict=True))
    shown = pair[1] or pair[0]
    assert shown is not None
    same = None not in pair and before == after
    alignment = list(zip(range(1, len(after) + 1), range(1, len(after) + 1), strict=True)) if same else []
    alignment = alignment or list(aligned(before, after, _lines_matched(sides, pair)))
    texts = [
        _diff_text(rows, side, source, letter, [lines_of_row[index] for lines_of_row in alignment], lines)
        for index, (side, source, letter, lines) in enumerate(zip(sides, pair, "AB", (before, after), strict=True))
        if source is not None and not (same and letter == "A")
    ]
    return DiffSource(index, short_name(shown.name), shown.language, same, tuple(texts))


def _lines_matched(sides: tuple[SideTexts, SideTexts], pair: Pair) -> Iterator[tuple[int, int]]:
    """Pairs of lines with common ops: a line before with the line after that has most of its ops."""
    lines = [
        {row: line for (file, line), ops in side.places.items() if source and file == source.name for row in ops}
        for side, source in zip(sides, pair, strict=True)
    ]
    common_ops = Counter((line, lines[1][row]) for row, line in lines[0].items() if row in lines[1])
    paired: set[int] = set()
    for (before, after), _ in sorted(common_ops.items(), key=lambda item: (-item[1], item[0])):
        if before not in paired:
            paired.add(before)
            yield before, after


def _diff_text(
    rows: Rows, side: SideTexts, source: SourceFile, letter: str, numbers: Sequence[int], lines: Sequence[str]
) -> DiffText:
    uses = {line: ops for (file, line), ops in side.places.items() if file == source.name}
    return DiffText(
        side=letter,
        name=source.name,
        rows=tuple(None if number == GAP else lines[number - 1] for number in numbers),
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        colours=colours_of_python(lines) if source.language == "python" else (),
        uses={
            line: DiffLine(tuple(ops), rows.amounts(ops))
            for line, ops in sorted(uses.items())
            if 1 <= line <= len(lines)
        },
    )
