"""The sources of both sides beside each other: rows of lines that match, and what each line costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracemap.comparison.ordering import rising
from tracemap.comparison.sides import Compared
from tracemap.graph.model import SourceFile
from tracemap.graph.ops import Op
from tracemap.graph.query import stack_of
from tracemap.reports.diff.model import DiffLine, DiffSource, DiffText
from tracemap.reports.diff.rows import Rows
from tracemap.reports.highlight.colours import colours_of_python
from tracemap.reports.labels import lines_of, short_name
from tracemap.units import Unknown

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
        _text(rows, side, source, letter, [numbers[number] for numbers in numbered], lines)
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


def _text(
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
