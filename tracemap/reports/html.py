"""Page data to one self-contained HTML file.

Nothing in it comes from or goes to the network, and a Content-Security-Policy says so: only the page's own script and
style, named by their hashes, may take effect. Text from models is escaped in markup (Jinja's autoescape) and in the
embedded JSON. The same page gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.outputs import check_file, write_text
from tracemap.reports.page.data import bar_width, heat_level, page_json
from tracemap.reports.page.model import PageData, SourceLine, SourcePage
from tracemap.units import format_count

if TYPE_CHECKING:
    from jinja2 import Template

CHUNK_LINES = 100
"""Lines of source per block; browsers lay out only the blocks that are in view."""

_JSON_ESCAPES = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def write_page(page: PageData, target: Path, *, force: bool) -> None:
    """Write a page to `target`, whole or not at all.

    Raises:
        TargetExists: `target` is there already and `force` is false.
        TargetUnwritable: `target` cannot be written.
    """
    check_file(target, force=force)
    write_text(render_page(page), target)


def render_page(page: PageData) -> str:
    """The whole HTML text of a page."""
    style = asset("page.css") + _source_styles(page)
    early, script = asset("early.js"), asset("page.js") + asset("kernels.js")
    return _template().render(
        page=page,
        chunks=[_chunks(source) for source in page.sources],
        style=style,
        early=early,
        script=script,
        policy=content_policy(style, early, script),
        data=embedded_json(page_json(page)),
        measured={metric.name: metric.measured.exact for metric in page.metrics},
        count=format_count,
        level=heat_level,
        bar=bar_width,
    )


def embedded_json(value: object) -> str:
    """JSON that may stand inside a `script` element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char, escape in _JSON_ESCAPES:
        text = text.replace(char, escape)
    return text


def content_policy(style: str, *scripts: str) -> str:
    """The Content-Security-Policy of a page that consists of itself alone: one style and these scripts."""
    own = f"style-src {_hash_source(style)}; script-src {' '.join(map(_hash_source, scripts))}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _source_styles(page: PageData) -> str:
    """Sizes of source files and blocks: those out of view need them, and style attributes are against the policy."""
    widths = [f"#F{source.index} .code {{ --columns: {source.columns} }}\n" for source in page.sources]
    lengths = sorted({len(chunk) for source in page.sources for chunk in _chunks(source)})
    return "".join(widths + [f".n{length} {{ --lines: {length} }}\n" for length in lengths])


def _chunks(source: SourcePage) -> list[tuple[SourceLine, ...]]:
    return [source.lines[start : start + CHUNK_LINES] for start in range(0, len(source.lines), CHUNK_LINES)]


def asset(name: str) -> str:
    """The text of a file that pages are made of."""
    return resources.files("tracemap.reports").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(asset("page.html.j2"))
