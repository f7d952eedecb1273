"""The page of a lowering: the model and the IR of each stage side by side, loops and ops linked by click; one file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tracemap.graph.lowering import Link, Loop, Lowering, SourceOp, Stage
from tracemap.reports.highlight.lines import highlighted_lines
from tracemap.reports.html.blocks import block_sizes, in_blocks
from tracemap.reports.html.document import Kind, render
from tracemap.reports.labels import lines_of
from tracemap.reports.lowering.words import heading, line_and_column, whereabouts
from tracemap.units import Unknown, plural

Json = dict[str, Any]

_KIND = Kind(
    template="lowering/lowering.html.j2",
    styles=("shared/source.css", "shared/details.css", "lowering/lowering.css"),
    scripts=("shared/data.js", "shared/details.js", "shared/keys.js", "lowering/lowering.js"),
)


@dataclass(frozen=True, slots=True)
class PaneLine:
    """A line of a stage's text: escaped, highlighted HTML, and the outermost loop that it stands in, "" for none.

    `band` tells neighbouring loops apart: 0 outside, else 1 or 2; `label` is the loop's id where it begins.
    """

    number: int
    html: str
    loop: str
    label: str
    band: int


@dataclass(frozen=True, slots=True)
class Pane:
    """A stage's text. `columns` is the width of its widest line; `summary` counts its loops and the ops in them."""

    number: int
    title: str
    pipeline: str
    summary: str
    columns: int
    lines: tuple[PaneLine, ...]


@dataclass(frozen=True, slots=True)
class OpLine:
    """An op: where it is in the model, and whereabouts in each stage, the model itself first."""

    id: str
    name: str
    position: str
    whereabouts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoweringPage:
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


def render_lowering_page(lowering: Lowering) -> str:
    """The whole HTML text of the page; the same lowering gives the same bytes."""
    page = build_lowering_page(lowering)
    return render(
        _KIND,
        page,
        sizes=block_sizes({f"S{pane.number}": (pane.columns, len(pane.lines)) for pane in page.panes}),
        data=_script_data(page, lowering),
        in_blocks=in_blocks,
    )


def _pane(stage: Stage, number: int) -> Pane:
    loop_of = _loop_of_lines(stage)
    # Two bands in turn tell loops apart that follow on one another without a line between.
    bands = {loop.id: 1 + number % 2 for number, loop in enumerate(stage.loops)}
    begins = {loop.line: loop.id for loop in stage.loops}
    lines = tuple(
        PaneLine(line, html, loop_of.get(line, ""), begins.get(line, ""), bands.get(loop_of.get(line, ""), 0))
        for line, html in enumerate(highlighted_lines(stage.text, "mlir"), start=1)
    )
    columns = max(map(len, lines_of(stage.text)), default=0)
    return Pane(number, heading(stage, number), stage.pipeline, _summary(stage), columns, lines)


def _summary(stage: Stage) -> str:
    if not stage.loops:
        return "no loops"
    linked = len({link.op for loop in stage.loops for link in loop.links})
    return f"{plural(len(stage.loops), 'loop')}, {plural(linked, 'op')} in them"


def _loop_of_lines(stage: Stage) -> dict[int, str]:
    """The outermost loop of each line that is in one; of several on one line the first."""
    found: dict[int, str] = {}
    for loop in stage.loops:
        if not isinstance(loop.line, Unknown) and not isinstance(loop.last_line, Unknown):
            for line in range(loop.line, loop.last_line + 1):
                found.setdefault(line, loop.id)
    return found


def _script_data(page: LoweringPage, lowering: Lowering) -> Json:
    """What the script needs: ops with where they are, and of each stage its loops and remainders with their links."""
    return {
        "ops": [asdict(op) for op in page.ops],
        "stages": [
            {
                "title": heading(stage, number),
                "loops": [_loop(loop) for loop in stage.loops],
                "rest": [[_link(link) for link in remainder.links] for remainder in stage.remainders],
            }
            for number, stage in enumerate(lowering.stages)
        ],
    }


def _loop(loop: Loop) -> Json:
    return {
        "id": loop.id,
        "name": loop.name,
        "depth": loop.depth,
        "line": None if isinstance(loop.line, Unknown) else loop.line,
        "last": None if isinstance(loop.last_line, Unknown) else loop.last_line,
        "operations": loop.operations,
        "untraced": loop.untraced,
        "links": [_link(link) for link in loop.links],
    }


def _link(link: Link) -> list[Any]:
    return [link.op, link.evidence.value, list(link.lines)]
