"""Display in Python: tables, small pictures for notebooks, pages in a browser."""

from __future__ import annotations

import atexit
import importlib
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.errors import ToolMissing
from tracemap.options.option import path_of
from tracemap.owned.home import temporary_folder
from tracemap.reports.escaping import for_markup
from tracemap.units import Unknown

if TYPE_CHECKING:
    import pandas
    import pyarrow


# ---- tables
#
# Tables of results for Arrow and pandas: columns by their names, which carry the units.


Value = int | float | str | bool | None
"""A cell; None where it is unknown or there is none."""
Columns = Mapping[str, Sequence[Value]]


class AsTable:
    """Ways to have a result as a table; it says its columns in `_columns`."""

    __slots__ = ()

    def _columns(self) -> Columns:
        """The columns of the table, of equal length."""
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """The table of Arrow: a row for each thing that `to_pandas` has one for, nulls where a value is unknown.

        Raises:
            tracemap.errors.ToolMissing: pyarrow is not installed.

        Example:
            >>> table = tracemap.load("model.tracemap").to_arrow()
            >>> table.num_rows, table.column_names[:3]
            (10, ['op', 'name', 'file'])
        """
        table: pyarrow.Table = _package("pyarrow").table(dict(self._columns()))
        return table

    def to_pandas(self) -> pandas.DataFrame:
        """The table of pandas, with a row for each op, event or kernel; names of columns carry the units.

        Raises:
            tracemap.errors.ToolMissing: pandas is not installed.

        Example:
            >>> frame = tracemap.attribute("run.parquet", "model.tracemap").to_pandas()
            >>> frame.groupby("scope")["cpu_ns"].sum().idxmax() in {"h0/attn", "h0/ffn"}
            True
        """
        frame: pandas.DataFrame = _package("pandas").DataFrame(dict(self._columns()))
        return frame


def known(value: object) -> Value:
    """A cell of a value that may be unknown."""
    if value is None or isinstance(value, Unknown):
        return None
    return value if isinstance(value, (int, float, str)) else str(value)


def _package(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ToolMissing(f"{name} is not installed; install it with: pip install 'tracemap[pandas]'") from error


# ---- showing
#
# Pages in a browser, of files that go with the process unless they are given a name.


_LASTING = ExitStack()
"""The folders of files without a name."""
atexit.register(_LASTING.close)


def lasting_folder() -> Path:
    """A folder of its own that stays for as long as the process runs.

    Raises:
        TargetUnwritable: there is no room for it.
    """
    return _LASTING.enter_context(temporary_folder())


def shown(write: Callable[[Path], None], output: Path | str | None, *, browser: bool) -> Path:
    """Write a page and open it in the browser; returns where it lies."""
    target = path_of("output", output) if output is not None else lasting_folder() / "page.html"
    write(target)
    if browser:
        webbrowser.open(target.resolve().as_uri())
    return target


# ---- pictures
#
# Small pictures and tables for notebooks: HTML without scripts, links or anything fetched; all text is escaped.


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
