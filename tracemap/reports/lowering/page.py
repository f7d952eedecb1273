"""The page of a lowering: the model and the IR of each stage side by side, loops and ops linked by click; one file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.graph.lowering import Link, Loop, Lowering, Stage
from tracemap.outputs import check_file, write_text
from tracemap.reports.highlight.lines import highlighted_lines, lines_of
from tracemap.reports.html import CHUNK_LINES, asset, content_policy, embedded_json
from tracemap.reports.lowering.text import heading, place_text, position
from tracemap.units import Unknown, plural

if TYPE_CHECKING:
    from jinja2 import Template

Json = dict[str, Any]


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

    @property
    def chunks(self) -> list[tuple[PaneLine, ...]]:
        """The lines in blocks; browsers lay out only the blocks that are in view."""
        return [self.lines[start : start + CHUNK_LINES] for start in range(0, len(self.lines), CHUNK_LINES)]


@dataclass(frozen=True, slots=True)
class OpLine:
    """A row of the table of ops: where the op is in each stage after the model itself."""

    id: str
    name: str
    position: str
    places: tuple[str, ...]


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
        ops=tuple(
            OpLine(
                op.id,
                op.name,
                position(op),
                tuple(
                    place_text(place, stage)
                    for place, stage in list(zip(lowering.places_of(op.id), lowering.stages, strict=True))[1:]
                ),
            )
            for op in lowering.ops
        ),
    )


def write_lowering_page(lowering: Lowering, target: Path, *, force: bool) -> None:
    """Write the page of a lowering to `target`, whole or not at all.

    Raises:
        TargetExists: `target` is there already and `force` is false.
        TargetUnwritable: `target` cannot be written.
    """
    check_file(target, force=force)
    write_text(render_lowering_page(lowering), target)


def render_lowering_page(lowering: Lowering) -> str:
    """The whole HTML text of the page; the same lowering gives the same bytes."""
    page = build_lowering_page(lowering)
    style = asset("page.css") + asset("lowering.css") + _pane_styles(page)
    early, script = asset("early.js"), asset("lowering.js")
    return _template().render(
        page=page,
        style=style,
        early=early,
        script=script,
        policy=content_policy(style, early, script),
        data=embedded_json(_script_data(lowering)),
    )


def _pane(stage: Stage, number: int) -> Pane:
    loop_of = _loop_of_lines(stage)
    bands = {loop.id: 1 + place % 2 for place, loop in enumerate(stage.loops)}
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


def _script_data(lowering: Lowering) -> Json:
    """What the script needs: ops with where they are, and of each stage its loops and remainders with their links."""
    return {
        "ops": [
            {
                "id": op.id,
                "name": op.name,
                "position": position(op),
                "places": [
                    place_text(place, stage)
                    for place, stage in zip(lowering.places_of(op.id), lowering.stages, strict=True)
                ],
            }
            for op in lowering.ops
        ],
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


def _pane_styles(page: LoweringPage) -> str:
    """Sizes of panes and blocks: those out of view need them, and style attributes are against the policy."""
    widths = [f"#S{pane.number} .code {{ --columns: {pane.columns} }}\n" for pane in page.panes]
    lengths = sorted({len(chunk) for pane in page.panes for chunk in pane.chunks})
    return "".join(widths + [f".n{length} {{ --lines: {length} }}\n" for length in lengths])


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(asset("lowering.html.j2"))
