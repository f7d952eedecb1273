"""Rows of the comparison page: ops, kernels and source lines of both sides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tracemap.comparison.model import Amount, Comparison, KernelDifference, OpDifference, total
from tracemap.comparison.neighbourhoods import rising
from tracemap.comparison.sides import Compared
from tracemap.graph.model import Op, SourceFile
from tracemap.graph.query import stack_of
from tracemap.machine.images import Image
from tracemap.reports.diff.model import BeforeAfter, DiffKernel, DiffLine, DiffOp, DiffRemark, DiffSource, DiffText
from tracemap.reports.escaping import file_line, lines_of, or_dash, short_name
from tracemap.reports.highlight import colours_of_python
from tracemap.reports.page.kernels_tab import MOST_INSTRUCTIONS, KernelSources, kernel_page
from tracemap.reports.page.model import KernelPage, LineLink
from tracemap.units import Integer, Text, Unknown

# ---- rows
#
# The rows of the ops of a comparison, and what all parts of its page ask about them.


@dataclass(frozen=True)
class Rows:
    """The ops of a comparison by the numbers of their rows; `same_text`: the page has the model's text once."""

    made: Comparison
    before: Compared
    after: Compared
    same_text: bool

    @cached_property
    def row_before(self) -> Mapping[str, int]:
        """Rows by the id before."""
        return {str(op.before): row for row, op in enumerate(self.made.ops) if not isinstance(op.before, Unknown)}

    @cached_property
    def row_after(self) -> Mapping[str, int]:
        """Rows by the id after."""
        return {str(op.after): row for row, op in enumerate(self.made.ops) if not isinstance(op.after, Unknown)}

    def anchor(self, row: int) -> str:
        """The address of an op."""
        return anchor_of(self.made.ops[row])

    def amounts(self, rows: Iterable[int]) -> tuple[BeforeAfter, ...]:
        """What ops cost together, by metric."""
        found = [self.made.ops[row].amounts for row in rows]
        return tuple(map(_sum, ([each[name] for each in found if name in each] for name in self.names)))

    @cached_property
    def names(self) -> Sequence[str]:
        """Those of the metrics."""
        return [metric.name for metric in self.made.metrics]

    def of_metrics(self, amounts: Mapping[str, Amount]) -> tuple[BeforeAfter | None, ...]:
        """Amounts in the order of the metrics."""
        found = (amounts.get(name) for name in self.names)
        return tuple((each.before, each.after) if each else None for each in found)

    def ops(self) -> tuple[DiffOp, ...]:
        """The rows."""
        found_of = {(each.before, each.after): each.kind for each in self.made.findings}
        return tuple(self._row(op, found_of.get((op.before, op.after), "")) for op in self.made.ops)

    def _row(self, op: OpDifference, found: str) -> DiffOp:
        one, two = _op(self.before, op.before), _op(self.after, op.after)
        how = "gone" if two is None else "new" if one is None else str(op.how)
        return DiffOp(
            before=_text(op.before),
            after=_text(op.after),
            how=how,
            edited=op.edited,
            name=op.called,
            line_before=self._link("A", self.before, one),
            line_after=self._link("B", self.after, two),
            scope="/".join(op.scope),
            fate_before=_text(op.fate_before),
            fate_after=_text(op.fate_after),
            code=_text(op.code),
            kernels_before=self.before.kernels_of.get(one.id, ()) if one else (),
            kernels_after=self.after.kernels_of.get(two.id, ()) if two else (),
            amounts=self.of_metrics(op.amounts),
            ratio=_ratio(op),
            finding=found,
        )

    def _link(self, side: str, of: Compared, op: Op | None) -> LineLink:
        """Where an op stands in the model; where both have the same text the page has that after."""
        if op is None:
            return LineLink("", "")
        shown = "B" if self.same_text else side
        model = of.graph.sources[0].name if of.graph.sources else None
        is_there = op.file == model and not isinstance(op.line, Unknown)
        return LineLink(file_line(op.file, op.line), f"{shown}0L{op.line}" if is_there else "")


def anchor_of(op: OpDifference) -> str:
    """The address of an op: that of its id after, of what is gone that before."""
    return f"was-{op.before}" if isinstance(op.after, Unknown) else str(op.after)


def _op(side: Compared, name: Text) -> Op | None:
    return None if isinstance(name, Unknown) else side.graph.op_by_id[name]


def _ratio(op: OpDifference) -> tuple[float, float, float] | None:
    return None if op.ratio is None else (op.ratio.ratio, op.ratio.ratio_low, op.ratio.ratio_high)


def _sum(amounts: Sequence[Amount]) -> BeforeAfter:
    whole = total(list(amounts))
    return whole.before, whole.after


def _text(value: Text | Integer) -> str:
    return "" if isinstance(value, Unknown) else str(value)


# ---- kernels
#
# Kernels that are other code than before: the texts and the machine code of both, beside each other.


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


def changed_kernels(rows: Rows, before: KernelSources, after: KernelSources) -> tuple[DiffKernel, ...]:
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


# ---- sources
#
# The sources of both sides beside each other: rows of lines that match, and what each line costs.


GAP = 0
"""In place of the number of a line, where the other side has one that matches none."""
Places = Mapping[tuple[str, int], list[int]]
"""By file and line: the rows of the ops there."""


def aligned(
    before: Sequence[str], after: Sequence[str], matched: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The rows of two texts beside each other, as numbers of lines from 1, or `GAP`.

    Lines that belong together (`matched`, and equal ones that occur once in both) and stand in the same order on both
    sides are one row (as many as can be: the longest common order); so are equal lines in front of them and behind.
    """
    last = (0, 0)
    for pair in (*_in_order({*matched, *_equal(before, after)}), (len(before) + 1, len(after) + 1)):
        yield from _between(before, after, last, pair)
        if pair[0] <= len(before):
            yield pair
        last = pair


def _equal(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    counts = Counter(before), Counter(after)
    place = {text: number for number, text in enumerate(after, 1)}
    for number, text in enumerate(before, 1):
        if counts[0][text] == counts[1][text] == 1:
            yield number, place[text]


def _in_order(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs that rises on both sides."""
    return rising(sorted(pairs, key=lambda pair: (pair[0], -pair[1])))


def _between(
    before: Sequence[str], after: Sequence[str], low: tuple[int, int], high: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """The rows between two that match: equal ones at both ends, in the middle edited ones or those of one side."""
    ones, twos = list(range(low[0] + 1, high[0])), list(range(low[1] + 1, high[1]))
    front = _equal_run(before, after, ones, twos)
    back = _equal_run(before, after, ones[front:][::-1], twos[front:][::-1])
    yield from zip(ones[:front], twos[:front], strict=True)
    only_one, only_two = ones[front : len(ones) - back], twos[front : len(twos) - back]
    if len(only_one) == len(only_two):  # the same lines, edited
        yield from zip(only_one, only_two, strict=True)
    else:
        yield from ((one, GAP) for one in only_one)
        yield from ((GAP, two) for two in only_two)
    yield from zip(ones[len(ones) - back :], twos[len(twos) - back :], strict=True)


def _equal_run(before: Sequence[str], after: Sequence[str], ones: Sequence[int], twos: Sequence[int]) -> int:
    run = 0
    while run < min(len(ones), len(twos)) and before[ones[run] - 1] == after[twos[run] - 1]:
        run += 1
    return run


@dataclass(frozen=True)
class SideTexts:
    """A side with the texts of its sources; `places`: of its ops, in the model and in the user's Python."""

    compared: Compared
    text: Callable[[SourceFile], str]
    places: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def place(self, rows: Mapping[str, int]) -> None:
        """Note which rows stand on which line."""
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
    """Whether the page has the text of the model once."""
    models = [side.compared.graph.sources[:1] for side in sides]
    texts = [side.text(model[0]) for side, model in zip(sides, models, strict=True) if model]
    return len(texts) == 2 and texts[0] == texts[1]


def sources_of(rows: Rows, sides: tuple[SideTexts, SideTexts]) -> tuple[DiffSource, ...]:
    """The sources of both sides: the models, then files of the same name, then what only one side has."""
    sides[0].place(rows.row_before)
    sides[1].place(rows.row_after)
    return tuple(
        _source(rows, sides, index, pair) for index, pair in enumerate(_paired(*(side.compared for side in sides)))
    )


Pair = tuple[SourceFile | None, SourceFile | None]


def _paired(before: Compared, after: Compared) -> Iterator[Pair]:
    ones, twos = list(before.graph.sources), list(after.graph.sources)
    if ones and twos:
        yield ones.pop(0), twos.pop(0)
    names = {source.name: source for source in ones}
    for source in twos:
        yield names.pop(source.name, None), source
    for source in names.values():
        yield source, None


def _source(rows: Rows, sides: tuple[SideTexts, SideTexts], index: int, pair: Pair) -> DiffSource:
    one, two = ([] if source is None else side.lines(source) for side, source in zip(sides, pair, strict=True))
    shown = pair[1] or pair[0]
    assert shown is not None
    same = None not in pair and one == two
    numbered = list(zip(range(1, len(two) + 1), range(1, len(two) + 1), strict=True)) if same else []
    numbered = numbered or list(aligned(one, two, _lines_matched(sides, pair)))
    texts = [
        _diff_text(rows, side, source, letter, [numbers[number] for numbers in numbered], lines)
        for number, (side, source, letter, lines) in enumerate(zip(sides, pair, "AB", (one, two), strict=True))
        if source is not None and not (same and letter == "A")
    ]
    return DiffSource(index, short_name(shown.name), shown.language, same, tuple(texts))


def _lines_matched(sides: tuple[SideTexts, SideTexts], pair: Pair) -> Iterator[tuple[int, int]]:
    """Lines on which the same ops stand: each with that on which most of its ops stand."""
    lines = [
        {row: line for (file, line), found in side.places.items() if source and file == source.name for row in found}
        for side, source in zip(sides, pair, strict=True)
    ]
    together = Counter((line, lines[1][row]) for row, line in lines[0].items() if row in lines[1])
    taken: set[int] = set()
    for (one, two), _ in sorted(together.items(), key=lambda item: (-item[1], item[0])):
        if one not in taken:
            taken.add(one)
            yield one, two


def _diff_text(
    rows: Rows, side: SideTexts, source: SourceFile, letter: str, numbers: Sequence[int], lines: Sequence[str]
) -> DiffText:
    uses = {line: found for (file, line), found in side.places.items() if file == source.name}
    return DiffText(
        side=letter,
        name=source.name,
        rows=tuple(None if number == GAP else lines[number - 1] for number in numbers),
        columns=max((len(line.expandtabs(8)) for line in lines), default=0),
        colours=colours_of_python(lines) if source.language == "python" else (),
        uses={
            line: DiffLine(tuple(found), rows.amounts(found))
            for line, found in sorted(uses.items())
            if 1 <= line <= len(lines)
        },
    )
