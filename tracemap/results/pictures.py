"""Small pictures and tables for notebooks: HTML without scripts, links or anything fetched; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from tracemap.reports.escaping import for_markup

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f", "#bab0ac")
_WIDTH, _HEIGHT = 640, 22


def bar(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """One bar for a whole, with a piece for each part, the last colour for all beyond the first eight, and a legend."""
    if whole <= 0:
        return ""
    shown = [*parts[: len(_COLOURS) - 1]]
    rest = sum(amount for _, amount in parts[len(shown) :])
    shown += [("others", rest)] if rest else []
    pieces, legend, begin = [], [], 0.0
    for (name, amount), colour in zip(shown, _COLOURS, strict=False):
        width, said = _WIDTH * amount / whole, f"{name}: {100 * amount / whole:.1f} %"
        pieces.append(
            f'<rect x="{begin:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}" fill="{colour}">'
            f"<title>{for_markup(said)}</title></rect>"
        )
        legend.append(f'<span style="color:{colour}">&#9632;</span> {for_markup(said)}')
        begin += width
    svg = f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(pieces)}</svg>'
    return f"<div>{svg}<br><small>{' &nbsp; '.join(legend)}</small></div>"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table; the first columns, so many, are texts, the others numbers."""
    sides = ["left" if place < texts else "right" for place in range(len(headings))]
    head = "".join(_cell("th", text, side) for text, side in zip(headings, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, side) for text, side in zip(row, sides, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def heading(text: str) -> str:
    """A line above a table."""
    return f"<div><b>{for_markup(text)}</b></div>"


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align:{side}">{for_markup(text)}</{tag}>'
