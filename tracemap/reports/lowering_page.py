"""The page of a lowering: model and stages next to each other."""

from __future__ import annotations

from tracemap.core.codec import Record
from tracemap.core.units import Unknown, plural
from tracemap.map.lowering import Lowering, OpPosition, SourceOp, Stage
from tracemap.reports.escaping import for_markup, for_script, line_and_column, lines_of, or_question_mark
from tracemap.reports.highlight import rules_of_mlir
from tracemap.reports.html import PageKind, block_sizes, in_blocks, render

# ---- texts of the terminal and the page


_PARTS_NAMED = 4
"""Most loops and operations named for an op; the JSON names all."""
_GONE = "gone"
_INLINED = "inlined"


def place_text(place: OpPosition, stage: Stage) -> str:
    """The place of an op in a stage: `loop2`, `loop2, linalg.fill at 7`, `inlined` or `gone (dead)`; the first few."""
    if place.is_gone:
        return _GONE if isinstance(place.reason, Unknown) else f"{_GONE} ({place.reason.slug})"
    outside = [stage.remainders[index] for index in place.remainders]
    parts = [*place.loops, *(f"{operation.name} at {or_question_mark(operation.line)}" for operation in outside)]
    if len(parts) > _PARTS_NAMED:
        parts = [*parts[:_PARTS_NAMED], f"{len(parts) - _PARTS_NAMED} more"]
    return ", ".join([*parts, _INLINED] if place.inlined else parts)


def heading(stage: Stage, number: int) -> str:
    """The title of a stage."""
    return f"stage {number}: " + (stage.pipeline or "the model")


# ---- page
#
# One file: the model next to the IR of each stage. A click on a loop or an op highlights its counterparts.


_KIND = PageKind(
    template="lowering/lowering.html.j2",
    styles=("shared/source.css", "shared/details.css", "shared/splitter.css", "lowering/lowering.css"),
    scripts=(
        "shared/data.js",
        "shared/highlight.js",
        "shared/blocks.js",
        "shared/splitter.js",
        "shared/details.js",
        "shared/keys.js",
        "lowering/lowering.js",
    ),
)


class PaneLine(Record, frozen=True):
    """A line of a stage's text.

    `band` distinguishes adjacent outermost loops: 0 outside of loops, else 1 or 2. `label` is the loop's id on its
    first line.
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
    """An op: its position in the model, and its place in each stage, the model itself first."""

    id: str
    name: str
    position: str
    places: tuple[str, ...]


class LoweringPage(Record, frozen=True):
    """The content of the page."""

    title: str
    compiler: str
    panes: tuple[Pane, ...]
    ops: tuple[OpLine, ...]


def build_lowering_page(lowering: Lowering) -> LoweringPage:
    """Make the content of the page of a lowering."""
    return LoweringPage(
        title=lowering.model,
        compiler=lowering.compiler,
        panes=tuple(_pane(stage, number) for number, stage in enumerate(lowering.stages)),
        ops=tuple(_op_line(op, lowering) for op in lowering.ops),
    )


def _op_line(op: SourceOp, lowering: Lowering) -> OpLine:
    places = zip(lowering.places_of(op.id), lowering.stages, strict=True)
    return OpLine(op.id, op.name, line_and_column(op), tuple(place_text(place, stage) for place, stage in places))


def _script_data(page: LoweringPage, lowering: Lowering) -> object:
    """Data for the page's script."""
    return {
        "lexer": rules_of_mlir(),
        "ops": page.ops,
        "stages": [{"loops": stage.loops, "rest": stage.remainders} for stage in lowering.stages],
    }


def render_lowering_page(lowering: Lowering) -> str:
    """The HTML text of the page; deterministic."""
    page = build_lowering_page(lowering)
    return render(
        _KIND,
        page,
        sizes=block_sizes({f"S{pane.number}": (pane.columns, len(pane.lines)) for pane in page.panes}),
        data=(for_script(_script_data(page, lowering)),),
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
    """The band of each line in an outermost loop; the first loop wins where several share a line."""
    bands: dict[int, int] = {}
    for index, loop in enumerate(stage.loops):
        if not isinstance(loop.line, Unknown) and not isinstance(loop.last_line, Unknown):
            # Alternate two bands to distinguish loops without a line between them.
            for line in range(loop.line, loop.last_line + 1):
                bands.setdefault(line, 1 + index % 2)
    return bands
