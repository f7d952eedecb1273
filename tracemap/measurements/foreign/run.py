"""What a file of another tool becomes: the header and the events of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

    from tracemap.measurements.model import RunHeader


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A run that is still to be written: `events` is read when it is, on the connection that it is of."""

    header: RunHeader
    events: duckdb.DuckDBPyRelation
