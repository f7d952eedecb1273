"""The trace graph as `map.json`: columns of fields, and the versions of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice, repeat
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import FieldInfo, fields

from tracemap.codec import Count, Document, OtherVersion, Record, decode_document, view
from tracemap.codec import encode as encode_record
from tracemap.diagnostics import Diagnostic
from tracemap.functions import Function
from tracemap.graph.model import (
    LIBRARY,
    ROWS_VERSION,
    CommandBuffer,
    Kernel,
    ModuleInfo,
    Op,
    OpId,
    Schedule,
    Site,
    SourceFile,
    TraceGraph,
    Transfer,
)
from tracemap.units import UNKNOWN, Integer, Text

# ---- columns
#
# Column storage of records.
#
# A table is an object with a column for each field. A column is a list of values, one for each record, in their order,
# or
#
# * `{"values": column, "at": [...]}` for repeated values: each value once, and for each record the index of its value;
# * `{"lengths": [...], "items": column}` for fields with lists: the length for each record, and all items in a row;
# * a table, for fields that are records themselves.
#
# Ids of ops are stored as numbers. Reading checks the types of the fields, like everything that the codec reads.


_R = TypeVar("_R", bound=Record)

_OpNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]

_STORED_AS: Final[Mapping[Any, Any]] = {OpId: _OpNumber, Integer: Count | None, Text: str | None}
"""Stored types for types that JSON lacks; lists of JSON's own types are read without a call for each item."""

_PLAIN: Final = (int, bool, Integer, OpId)
"""Types whose values are no longer than an index, so they are always stored in place."""

_ITEMS_PER_BYTE: Final = 16
"""The most items in unfolded lists for each byte of a map, since indices could repeat a list without end."""


class Table(dict[str, Any]):
    """The columns of records of one kind, which a subclass names."""

    of: ClassVar[type[Record]]

    @classmethod
    def from_json(cls, value: object) -> Table:
        """The columns as decoded; a `Reader` checks them.

        Raises:
            ValueError: the value is not an object.
        """
        if not isinstance(value, dict):
            raise ValueError("Expected `object`")
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """The JSON Schema of the tables that a `Reader` accepts."""
        return _schema_of_table(cls.of)

    @classmethod
    def holding(cls, rows: Sequence[Record]) -> Table:
        """The table with the columns of records."""
        return cls(_table(cls.of, rows))


@cache
def field_types(kind: type[Record]) -> Mapping[str, Any]:
    """The fields of a record and their types, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def _items_of(kind: object) -> Any:  # noqa: ANN401 - any type of a record's field
    """The item type of a tuple; None for other types."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _list_of(kind: Any) -> Any:  # noqa: ANN401 - as above
    """The type of a list of values, as stored."""
    return GenericAlias(list, (_STORED_AS.get(kind, kind),))


def _may_repeat(kind: object) -> bool:
    return (get_args(kind)[0] if get_origin(kind) is Annotated else kind) not in _PLAIN


def _table(kind: type[Record], rows: Sequence[Record]) -> dict[str, object]:
    return {
        name: _column(field_kind, list(map(attrgetter(name), rows))) for name, field_kind in field_types(kind).items()
    }


def _column(kind: object, values: Sequence[Any]) -> object:
    if _may_repeat(kind):
        indices: dict[Any, int] = {}
        at = [indices.setdefault(value, len(indices)) for value in values]
        if 0 < 2 * len(indices) <= len(at):
            return {"values": _in_place(kind, list(indices)), "at": at}
    return _in_place(kind, values)


def _in_place(kind: Any, values: Sequence[Any]) -> object:  # noqa: ANN401 - as above
    """A column with all values in place."""
    if kind is OpId:
        return [value.number for value in values]
    if _is_record(kind):
        return _table(kind, values)
    items = _items_of(kind)
    if items is None:
        return values
    return {"lengths": list(map(len, values)), "items": _column(items, list(chain.from_iterable(values)))}


@dataclass
class Reader:
    """Makes records from tables. Each op has one id object, however often it is named.

    `items`: the number of list items that may still be unfolded.
    """

    items: int
    _ids: dict[int, OpId] = field(default_factory=dict)

    @classmethod
    def of(cls, encoded: bytes) -> Reader:
        """The reader for a map of this size."""
        return cls(_ITEMS_PER_BYTE * len(encoded))

    def rows(self, kind: type[_R], table: object, where: str) -> tuple[_R, ...]:
        """The records of a table.

        Raises:
            ValueError: the table is damaged; the message says where.
        """
        types = field_types(kind)
        if not isinstance(table, dict):
            raise _fault("Expected `object`", where)
        for name in sorted(table.keys() - types.keys()):
            raise _fault(f"Object contains unknown field `{name}`", where)
        columns = {name: self._column(types[name], column, f"{where}.{name}") for name, column in table.items()}
        if len({len(column) for column in columns.values()}) != 1:
            raise _fault("Expected columns of equal length", where)
        return tuple(
            map(kind, *[columns[info.name] if info.name in columns else _default(info, where) for info in fields(kind)])
        )

    def _column(self, kind: Any, column: object, where: str) -> Sequence[Any]:  # noqa: ANN401 - as above
        if not (isinstance(column, dict) and "at" in column and _may_repeat(kind)):
            return self._in_place(kind, column, where)
        values, at = self._in_place(kind, *_pair_member(column, "values", where)), _counts(column, "at", where)
        if max(at, default=-1) >= len(values):
            raise _fault("Expected indices of values", f"{where}.at")
        if _items_of(kind) is not None:
            lengths = list(map(len, values))
            self._unfold(sum([lengths[index] for index in at]), where)
        return [values[index] for index in at]

    def _in_place(self, kind: Any, column: object, where: str) -> Sequence[Any]:  # noqa: ANN401 - as above
        if _is_record(kind):
            return self.rows(kind, column, where)
        items = _items_of(kind)
        if items is not None:
            return self._lists(items, column, where)
        values = _checked(_list_of(kind), column, where)
        if kind is OpId:
            return self._ids_of(values)
        return [UNKNOWN if value is None else value for value in values] if kind in _STORED_AS else values

    def _lists(self, kind: Any, column: object, where: str) -> list[tuple[Any, ...]]:  # noqa: ANN401 - as above
        if not isinstance(column, dict):
            raise _fault("Expected `object`", where)
        lengths, items = _counts(column, "lengths", where), self._column(kind, *_pair_member(column, "items", where))
        if sum(lengths) != len(items):
            raise _fault("Expected as many items as the lengths add up to", where)
        self._unfold(len(items), where)
        rest = iter(items)
        return [tuple(islice(rest, length)) if length else () for length in lengths]

    def _unfold(self, items: int, where: str) -> None:
        self.items -= items
        if self.items < 0:
            raise _fault("Expected shorter lists for a map of this size", where)

    def _ids_of(self, numbers: Iterable[int]) -> list[OpId]:
        ids = self._ids
        return [ids.get(number) or ids.setdefault(number, OpId.of(number)) for number in numbers]


def _default(info: FieldInfo, where: str) -> Iterable[Any]:
    """The column for a missing field that has a default."""
    if info.required:
        raise _fault(f"Object missing required field `{info.name}`", where)
    return repeat(info.default)


def _pair_member(column: Mapping[str, object], name: str, where: str) -> tuple[object, str]:
    """A member of an object with two fields, and its JSON path."""
    if name not in column or len(column) != 2:
        raise _fault(f"Expected an object with `{name}` and one other field", where)
    return column[name], f"{where}.{name}"


def _counts(column: Mapping[str, object], name: str, where: str) -> list[int]:
    return list(_checked(list[Count], *_pair_member(column, name, where)))


def _checked(kind: Any, column: object, where: str) -> Any:  # noqa: ANN401 - as above
    try:
        return msgspec.convert(column, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise _fault(message, where + place.removesuffix("`")) from error


def _fault(what: str, where: str) -> ValueError:
    return ValueError(f"{what} - at `{where}`")


def _schema_of_table(kind: type[Record]) -> dict[str, object]:
    columns = {name: _schema_of_column(field_kind) for name, field_kind in field_types(kind).items()}
    return {"type": "object", "properties": columns, "required": list(columns), "additionalProperties": False}


def _schema_of_column(kind: object) -> dict[str, object]:
    whole = _schema_of_whole(kind)
    # Repeated values have the same kinds of column; to nest the full schema would double its size at each depth.
    values = whole if whole["type"] == "array" else {"type": "object"}
    return {"anyOf": [whole, _schema_of_two("values", values, "at")]} if _may_repeat(kind) else whole


def _schema_of_whole(kind: Any) -> dict[str, object]:  # noqa: ANN401 - as above
    if _is_record(kind):
        return _schema_of_table(kind)
    items = _items_of(kind)
    if items is not None:
        return _schema_of_two("items", _schema_of_column(items), "lengths")
    (schema,), components = msgspec.json.schema_components([_STORED_AS.get(kind, kind)])
    return {"type": "array", "items": next(iter(components.values()), schema)}  # an enum is named


def _schema_of_two(name: str, column: object, counts: str) -> dict[str, object]:
    (count,), _ = msgspec.json.schema_components([list[Count]])
    return {
        "type": "object",
        "properties": {name: column, counts: count},
        "required": [name, counts],
        "additionalProperties": False,
    }


# ---- stored
#
# Encoding and decoding of `map.json`, and its versions.


MAP_VERSION: Final = 5
"""Version of `map.json`.

1: first; 2: kernels have texts, steps have parents; 3: no coverage, ops do not name sites; 4: tables by column;
5: an op may have several call paths in one site.
"""

_SINGLE_PATH_VERSION: Final = 4

READ_VERSIONS: Final = (ROWS_VERSION, _SINGLE_PATH_VERSION, MAP_VERSION)
"""The versions that tracemap reads."""


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
    """The content of a bundle's `map.json`: large lists by column, all else by record."""

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


class _SinglePathMap(StoredMap, frozen=True, kw_only=True):
    """Version 4, in which memberships have only one path."""

    schema_version: Literal[4] = _SINGLE_PATH_VERSION  # type: ignore[assignment] # only the version differs


def encode(graph: TraceGraph) -> bytes:
    """Encode a graph as `map.json`; the same graph always gives the same bytes."""
    tables = {name: kind.holding(getattr(graph, name)) for name, kind in _TABLES.items()}
    return encode_record(view(StoredMap, graph, schema_version=MAP_VERSION, **tables)) + b"\n"


def decode(encoded: bytes) -> TraceGraph:
    """Decode a `map.json`.

    Raises:
        OtherVersion: tracemap does not read its version.
        ValueError: it is damaged, or something else.
    """
    try:
        stored = decode_document(encoded, StoredMap)
    except OtherVersion as error:
        if error.version == ROWS_VERSION:
            return decode_document(encoded, TraceGraph)
        if error.version != _SINGLE_PATH_VERSION:
            raise
        stored = decode_document(encoded, _SinglePathMap)
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
