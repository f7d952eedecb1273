"""Display of results in Python: tables, charts for notebooks, and pages in a browser."""

from __future__ import annotations

import atexit
import importlib
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.core.errors import ToolMissing
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import Unknown
from tracemap.options.option import check_path
from tracemap.reports.escaping import for_markup

if TYPE_CHECKING:
    import pandas
    import pyarrow


# ---- tables


Value = int | float | str | bool | None
"""A cell; None if the value is unknown or missing."""
Columns = Mapping[str, Sequence[Value]]


class AsTable:
    """Mixin that converts a result to a table; subclasses define `_columns`."""

    __slots__ = ()

    def _columns(self) -> Columns:
        """Columns of the table, of equal length."""
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """Convert to an Arrow table with the same rows as `to_pandas`; unknown values are null.

        Raises:
            tracemap.core.errors.ToolMissing: pyarrow is not installed.

        Example:
            >>> table = tracemap.load("model.tracemap").to_arrow()
            >>> table.num_rows, table.column_names[:3]
            (10, ['op', 'name', 'file'])
        """
        table: pyarrow.Table = _package("pyarrow").table(dict(self._columns()))
        return table

    def to_pandas(self) -> pandas.DataFrame:
        """Convert to a pandas data frame with one row per op, event or kernel; column names contain the units.

        Raises:
            tracemap.core.errors.ToolMissing: pandas is not installed.

        Example:
            >>> frame = tracemap.attribute("run.parquet", "model.tracemap").to_pandas()
            >>> frame.groupby("scope")["cpu_ns"].sum().idxmax() in {"h0/attn", "h0/ffn"}
            True
        """
        frame: pandas.DataFrame = _package("pandas").DataFrame(dict(self._columns()))
        return frame


def cell_of(value: object) -> Value:
    """Convert a value that may be UNKNOWN to a cell."""
    if value is None or isinstance(value, Unknown):
        return None
    return value if isinstance(value, (int, float, str)) else str(value)


def _package(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ToolMissing(f"{name} is not installed: pip install 'tracemap[pandas]'") from error


# ---- progress


@contextmanager
def shown_progress(title: str) -> Iterator[Progress]:
    """Yield a `Progress` that shows the phase: in a notebook below the cell, on a terminal on standard error."""
    from tracemap.commands.streams import show_phases

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel"):
        with show_phases(title) as progress:
            yield progress
        return
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)
    try:
        yield lambda phase: handle.update(HTML(f"<small>{for_markup(f'{title}: {phase} …')}</small>"))
    finally:
        handle.update(HTML(""))


# ---- showing
#
# Pages in a browser. Files without a name are temporary: they are deleted when the process ends.


_TEMPORARY_FOLDERS = ExitStack()
"""Temporary folders of this process."""
atexit.register(_TEMPORARY_FOLDERS.close)


def process_temporary_folder() -> Path:
    """Create a temporary folder that is deleted when the process ends.

    Raises:
        TargetUnwritable: the folder cannot be created.
    """
    return _TEMPORARY_FOLDERS.enter_context(temporary_folder())


def show_page(write: Callable[[Path], object], output: Path | str | None, *, browser: bool) -> Path:
    """Write a page, open it in the browser, and return its path."""
    target = check_path("output", output) if output is not None else process_temporary_folder() / "page.html"
    write(target)
    if browser:
        webbrowser.open(target.resolve().as_uri())
    return target


# ---- pictures
#
# Charts and tables for notebooks: HTML without scripts, links or external resources; all text is escaped.


_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f", "#bab0ac")
_WIDTH, _HEIGHT = 640, 22


def bar(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """Stacked bar with a legend. Parts after the first eight are summed up as "others", in the last colour."""
    if whole <= 0:
        return ""
    shown = [*parts[: len(_COLOURS) - 1]]
    rest = sum(amount for _, amount in parts[len(shown) :])
    shown += [("others", rest)] if rest else []
    pieces, legend, begin = [], [], 0.0
    for (name, amount), colour in zip(shown, _COLOURS, strict=False):
        width, label = _WIDTH * amount / whole, f"{name}: {100 * amount / whole:.1f} %"
        pieces.append(
            f'<rect x="{begin:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}" fill="{colour}">'
            f"<title>{for_markup(label)}</title></rect>"
        )
        legend.append(f'<span style="color:{colour}">&#9632;</span> {for_markup(label)}')
        begin += width
    svg = f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(pieces)}</svg>'
    return f"<div>{svg}<br><small>{' &nbsp; '.join(legend)}</small></div>"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """HTML table. The first `texts` columns are texts, the others are numbers."""
    sides = ["left" if index < texts else "right" for index in range(len(headings))]
    head = "".join(_cell("th", text, side) for text, side in zip(headings, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, side) for text, side in zip(row, sides, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def heading(text: str) -> str:
    """Heading above a table."""
    return f"<div><b>{for_markup(text)}</b></div>"


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align:{side}">{for_markup(text)}</{tag}>'
