"""The trace graph as `map.json` has it, and back; the versions of that file."""

from __future__ import annotations

from typing import Final, Literal

from tracemap.codec import Document, OtherVersion, decode_document, view
from tracemap.codec import encode as encode_record
from tracemap.diagnostics import Diagnostic
from tracemap.functions import Function
from tracemap.graph.columns import Reader, Table
from tracemap.graph.model import LIBRARY, ROWS_VERSION, ModuleInfo, SourceFile, TraceGraph
from tracemap.graph.ops import Op
from tracemap.graph.program import CommandBuffer, Kernel, Schedule, Site, Transfer

MAP_VERSION: Final = 5
"""Version of `map.json`.

1: first; 2: kernels have texts, steps have parents; 3: no coverage, ops do not name sites; 4: tables by column;
5: an op may be reached in several ways within a site.
"""

_ONE_WAY_VERSION: Final = 4

READ_VERSIONS: Final = (ROWS_VERSION, _ONE_WAY_VERSION, MAP_VERSION)
"""The versions that are read."""


class OpTable(Table):
    """The columns of the ops."""

    of = Op


class SiteTable(Table):
    """The columns of the sites."""

    of = Site


class KernelTable(Table):
    """The columns of the kernels."""

    of = Kernel


class CommandBufferTable(Table):
    """The columns of the command buffers."""

    of = CommandBuffer


class TransferTable(Table):
    """The columns of the transfers."""

    of = Transfer


class StoredMap(Document, frozen=True, kw_only=True):
    """The content of a bundle's `map.json`: what a map has many of stands by column, all else by record."""

    schema_version: Literal[5] = MAP_VERSION
    kind: Literal["map"] = "map"
    module: ModuleInfo
    functions: tuple[Function, ...]
    ops: OpTable
    sites: SiteTable
    kernels: KernelTable
    command_buffers: CommandBufferTable
    transfers: TransferTable
    schedules: tuple[Schedule, ...] = ()
    sources: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    library: tuple[str, ...] = LIBRARY


class _OneWayMap(StoredMap, frozen=True, kw_only=True):
    """The same of version 4, in which memberships have no further paths."""

    schema_version: Literal[4] = _ONE_WAY_VERSION  # type: ignore[assignment] # the stamp is all that differs


def encode(graph: TraceGraph) -> bytes:
    """`map.json` of a graph: the same bytes for the same graph."""
    tables = {name: kind.holding(getattr(graph, name)) for name, kind in _TABLES.items()}
    return encode_record(view(StoredMap, graph, schema_version=MAP_VERSION, **tables)) + b"\n"


def decode(encoded: bytes) -> TraceGraph:
    """The graph of a `map.json`.

    Raises:
        OtherVersion: it is of a version that is not read.
        ValueError: it is damaged, or something else.
    """
    try:
        stored = decode_document(encoded, StoredMap)
    except OtherVersion as error:
        if error.version == ROWS_VERSION:
            return decode_document(encoded, TraceGraph)
        if error.version != _ONE_WAY_VERSION:
            raise
        stored = decode_document(encoded, _OneWayMap)
    reader = Reader.of(encoded)
    rows = {name: reader.rows(kind.of, getattr(stored, name), f"$.{name}") for name, kind in _TABLES.items()}
    return view(TraceGraph, stored, schema_version=ROWS_VERSION, **rows)


_TABLES: Final[dict[str, type[Table]]] = {
    "ops": OpTable,
    "sites": SiteTable,
    "kernels": KernelTable,
    "command_buffers": CommandBufferTable,
    "transfers": TransferTable,
}
