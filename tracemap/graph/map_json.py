"""The trace graph as `map.json` has it: records by field, and the file's versions."""

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
# Records by field, not by record: how a map stores what it has many of.
#
# A table is an object with a column for each field. A column is a list of values, one for each record, in their order,
# or
#
# * `{"values": column, "at": [...]}` where values repeat: each value once, and of each record the place of its own;
# * `{"lengths": [...], "items": column}` of fields that hold several: how many each record has, and all of them in a
#   row;
# * a table, of fields that are records themselves.
#
# Ids of ops are their numbers. What is read is checked by the types of the fields, as all that the codec reads.


_R = TypeVar("_R", bound=Record)

_OpNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]

_STORED_AS: Final[Mapping[Any, Any]] = {OpId: _OpNumber, Integer: Count | None, Text: str | None}
"""What stands for types that JSON does not have: lists of JSON's own types are read without a call for each item."""

_PLAIN: Final = (int, bool, Integer, OpId)
"""Values that are no longer than their places: each is written where it stands."""

_ITEMS_PER_BYTE: Final = 16
"""To how many items lists may unfold for each byte of a map: what stands there once could be named without end."""


class Table(dict[str, Any]):
    """The columns of records of one kind, which a subclass names."""

    of: ClassVar[type[Record]]

    @classmethod
    def from_json(cls, value: object) -> Table:
        """The columns as they were decoded; a `Reader` checks them.

        Raises:
            ValueError: it is no object.
        """
        if not isinstance(value, dict):
            raise ValueError("Expected `object`")
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """What a `Reader` takes."""
        return _schema_of_table(cls.of)

    @classmethod
    def holding(cls, rows: Sequence[Record]) -> Table:
        """The columns of records."""
        return cls(_table(cls.of, rows))


@cache
def field_types(kind: type[Record]) -> Mapping[str, Any]:
    """Of a record its fields and their types, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def _items_of(kind: object) -> Any:  # noqa: ANN401 - any type of a record's field
    """The type of the items of a tuple; None of what is none."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _list_of(kind: Any) -> Any:  # noqa: ANN401 - as above
    """The type of a list of values of a type, as they are stored."""
    return GenericAlias(list, (_STORED_AS.get(kind, kind),))


def _may_repeat(kind: object) -> bool:
    return (get_args(kind)[0] if get_origin(kind) is Annotated else kind) not in _PLAIN


def _table(kind: type[Record], rows: Sequence[Record]) -> dict[str, object]:
    return {name: _column(each, list(map(attrgetter(name), rows))) for name, each in field_types(kind).items()}


def _column(kind: object, values: Sequence[Any]) -> object:
    if _may_repeat(kind):
        places: dict[Any, int] = {}
        at = [places.setdefault(value, len(places)) for value in values]
        if 0 < 2 * len(places) <= len(at):
            return {"values": _whole(kind, list(places)), "at": at}
    return _whole(kind, values)


def _whole(kind: Any, values: Sequence[Any]) -> object:  # noqa: ANN401 - as above
    """A column of values that all stand where they are."""
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
    """Makes records of tables. Of each op there is one id, however often it is named.

    `items`: to how many the lists may yet unfold.
    """

    items: int
    _ids: dict[int, OpId] = field(default_factory=dict)

    @classmethod
    def of(cls, encoded: bytes) -> Reader:
        """The reader of a map."""
        return cls(_ITEMS_PER_BYTE * len(encoded))

    def rows(self, kind: type[_R], table: object, where: str) -> tuple[_R, ...]:
        """The records of a table.

        Raises:
            ValueError: it is damaged; the message says where.
        """
        types = field_types(kind)
        if not isinstance(table, dict):
            raise _fault("Expected `object`", where)
        for name in sorted(table.keys() - types.keys()):
            raise _fault(f"Object contains unknown field `{name}`", where)
        read = {name: self._column(types[name], column, f"{where}.{name}") for name, column in table.items()}
        if len({len(column) for column in read.values()}) != 1:
            raise _fault("Expected columns of one length", where)
        return tuple(
            map(kind, *[read[each.name] if each.name in read else _default(each, where) for each in fields(kind)])
        )

    def _column(self, kind: Any, column: object, where: str) -> Sequence[Any]:  # noqa: ANN401 - as above
        if not (isinstance(column, dict) and "at" in column and _may_repeat(kind)):
            return self._whole(kind, column, where)
        values, at = self._whole(kind, *_member(column, "values", where)), _counts(column, "at", where)
        if max(at, default=-1) >= len(values):
            raise _fault("Expected places of values", f"{where}.at")
        if _items_of(kind) is not None:
            lengths = list(map(len, values))
            self._unfold(sum([lengths[place] for place in at]), where)
        return [values[place] for place in at]

    def _whole(self, kind: Any, column: object, where: str) -> Sequence[Any]:  # noqa: ANN401 - as above
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
        lengths, items = _counts(column, "lengths", where), self._column(kind, *_member(column, "items", where))
        if sum(lengths) != len(items):
            raise _fault("Expected as many items as the lengths say", where)
        self._unfold(len(items), where)
        rest = iter(items)
        return [tuple(islice(rest, length)) if length else () for length in lengths]

    def _unfold(self, items: int, where: str) -> None:
        self.items -= items
        if self.items < 0:
            raise _fault("Expected lists that are not much longer than the map", where)

    def _ids_of(self, numbers: Iterable[int]) -> list[OpId]:
        known = self._ids
        return [known.get(number) or known.setdefault(number, OpId.of(number)) for number in numbers]


def _default(of: FieldInfo, where: str) -> Iterable[Any]:
    """A column that is missing where a record has a default for it."""
    if of.required:
        raise _fault(f"Object missing required field `{of.name}`", where)
    return repeat(of.default)


def _member(column: Mapping[str, object], name: str, where: str) -> tuple[object, str]:
    """A part of a column that is an object of two, and where it stands."""
    if name not in column or len(column) != 2:
        raise _fault(f"Expected an object with `{name}` and one field more", where)
    return column[name], f"{where}.{name}"


def _counts(column: Mapping[str, object], name: str, where: str) -> list[int]:
    return list(_checked(list[Count], *_member(column, name, where)))


def _checked(kind: Any, column: object, where: str) -> Any:  # noqa: ANN401 - as above
    try:
        return msgspec.convert(column, kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        raise _fault(said, where + place.removesuffix("`")) from error


def _fault(what: str, where: str) -> ValueError:
    return ValueError(f"{what} - at `{where}`")


def _schema_of_table(kind: type[Record]) -> dict[str, object]:
    columns = {name: _schema_of_column(each) for name, each in field_types(kind).items()}
    return {"type": "object", "properties": columns, "required": list(columns), "additionalProperties": False}


def _schema_of_column(kind: object) -> dict[str, object]:
    whole = _schema_of_whole(kind)
    # Values of several parts are a column as the one beside: to say it again at each depth would double it each time.
    values = whole if whole["type"] == "array" else {"type": "object"}
    return {"anyOf": [whole, _schema_of_two("values", values, "at")]} if _may_repeat(kind) else whole


def _schema_of_whole(kind: Any) -> dict[str, object]:  # noqa: ANN401 - as above
    if _is_record(kind):
        return _schema_of_table(kind)
    items = _items_of(kind)
    if items is not None:
        return _schema_of_two("items", _schema_of_column(items), "lengths")
    (made,), named = msgspec.json.schema_components([_STORED_AS.get(kind, kind)])
    return {"type": "array", "items": next(iter(named.values()), made)}  # an enum is named


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
# The trace graph as `map.json` has it, and back; the versions of that file.


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
