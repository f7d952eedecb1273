"""The page of a lowering: model and stages next to each other."""

from __future__ import annotations

from tracemap.codec import Record
from tracemap.graph.lowering import Lowering, OpPlace, SourceOp, Stage
from tracemap.reports.escaping import for_markup, for_script, line_and_column, lines_of, or_question_mark
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html.document import Kind, block_sizes, in_blocks, render
from tracemap.units import Unknown, plural

# ---- words
#
# How a lowering is put into words, in the terminal and on the page.


_PARTS_NAMED = 4
"""Loops and operations of an op that are named; the JSON names all."""
_GONE = "gone"
_INLINED = "inlined"


def whereabouts(found: OpPlace, stage: Stage) -> str:
    """Where an op is in a stage: `loop2`, `loop2, linalg.fill at 7`, `inlined` or `gone (dead)`; of many the first."""
    if found.is_gone:
        return _GONE if isinstance(found.reason, Unknown) else f"{_GONE} ({found.reason.slug})"
    outside = [stage.remainders[number] for number in found.remainders]
    parts = [*found.loops, *(f"{item.name} at {or_question_mark(item.line)}" for item in outside)]
    if len(parts) > _PARTS_NAMED:
        parts = [*parts[:_PARTS_NAMED], f"{len(parts) - _PARTS_NAMED} more"]
    return ", ".join([*parts, _INLINED] if found.inlined else parts)


def heading(stage: Stage, number: int) -> str:
    """What a stage is called."""
    return f"stage {number}: " + (stage.pipeline or "the model")


# ---- page
#
# The page of a lowering: the model and the IR of each stage side by side, loops and ops linked by click; one file.


_KIND = Kind(
    template="lowering/lowering.html.j2",
    styles=("shared/source.css", "shared/details.css", "lowering/lowering.css"),
    scripts=(
        "shared/data.js",
        "shared/highlight.js",
        "shared/blocks.js",
        "shared/details.js",
        "shared/keys.js",
        "lowering/lowering.js",
    ),
)


class PaneLine(Record, frozen=True):
    """A line of a stage's text.

    `band` tells neighbouring outermost loops apart: 0 outside, else 1 or 2; `label` is the loop's id where it begins.
    """

    number: int
    text: str
    label: str
    band: int


class Pane(Record, frozen=True):
    """A stage's text. `columns` is the width of its widest line; `summary` counts its loops and the ops in them."""

    number: int
    title: str
    pipeline: str
    summary: str
    columns: int
    lines: tuple[PaneLine, ...]


class OpLine(Record, frozen=True):
    """An op: where it is in the model, and whereabouts in each stage, the model itself first."""

    id: str
    name: str
    position: str
    whereabouts: tuple[str, ...]


class LoweringPage(Record, frozen=True):
    """A whole page."""

    title: str
    compiler: str
    panes: tuple[Pane, ...]
    ops: tuple[OpLine, ...]


def build_lowering_page(lowering: Lowering) -> LoweringPage:
    """The data of the page of a lowering."""
    return LoweringPage(
        title=lowering.model,
        compiler=lowering.compiler,
        panes=tuple(_pane(stage, number) for number, stage in enumerate(lowering.stages)),
        ops=tuple(_op_line(op, lowering) for op in lowering.ops),
    )


def _op_line(op: SourceOp, lowering: Lowering) -> OpLine:
    found = zip(lowering.places_of(op.id), lowering.stages, strict=True)
    return OpLine(op.id, op.name, line_and_column(op), tuple(whereabouts(place, stage) for place, stage in found))


def _data(page: LoweringPage, lowering: Lowering) -> object:
    """What the script works on."""
    return {
        "lexer": rules_of_mlir(),
        "ops": page.ops,
        "stages": [{"loops": each.loops, "rest": each.remainders} for each in lowering.stages],
    }


def render_lowering_page(lowering: Lowering) -> str:
    """The whole HTML text of the page; the same lowering gives the same bytes."""
    page = build_lowering_page(lowering)
    return render(
        _KIND,
        page,
        sizes=block_sizes({f"S{pane.number}": (pane.columns, len(pane.lines)) for pane in page.panes}),
        data=(for_script(_data(page, lowering)),),
        in_blocks=in_blocks,
        markup=for_markup,
    )


def _pane(stage: Stage, number: int) -> Pane:
    bands = _bands(stage)
    begins = {loop.line: loop.id for loop in stage.loops}
    lines = tuple(
        PaneLine(line, text, begins.get(line, ""), bands.get(line, 0))
        for line, text in enumerate(lines_of(stage.text), start=1)
    )
    columns = max((len(line.text) for line in lines), default=0)
    return Pane(number, heading(stage, number), stage.pipeline, _summary(stage), columns, lines)


def _summary(stage: Stage) -> str:
    if not stage.loops:
        return "no loops"
    linked = len({link.op for loop in stage.loops for link in loop.links})
    return f"{plural(len(stage.loops), 'loop')}, {plural(linked, 'op')} in them"


def _bands(stage: Stage) -> dict[int, int]:
    """The band of each line that is in an outermost loop; of several loops on one line the first counts."""
    found: dict[int, int] = {}
    for number, loop in enumerate(stage.loops):
        if not isinstance(loop.line, Unknown) and not isinstance(loop.last_line, Unknown):
            # Two bands in turn tell loops apart that follow on one another without a line between.
            for line in range(loop.line, loop.last_line + 1):
                found.setdefault(line, 1 + number % 2)
    return found
