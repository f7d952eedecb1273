"""Tables of results for Arrow and pandas: columns by their names, which carry the units."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracemap.errors import ToolMissing
from tracemap.units import Unknown

if TYPE_CHECKING:
    import pandas
    import pyarrow

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
