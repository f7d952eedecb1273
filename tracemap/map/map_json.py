"""`map.json`: records by field, texts stored once, checked references, and the file's versions."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice, repeat
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tracemap.core.codec import Count, Document, Record, decode_document, defaults_of, record_from
from tracemap.core.codec import encode as encode_record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.functions import Function
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.model import (
    LIBRARY,
    MAP_VERSION,
    PHASES,
    SOURCE,
    Command,
    CommandBuffer,
    Kernel,
    Membership,
    ModuleInfo,
    Op,
    OpId,
    Schedule,
    Site,
    SourceFile,
    TraceGraph,
    Transfer,
)

# ---- references
#
# Referential integrity of a map, checked once when a bundle is opened, so that later code may rely on it.


def check_references(graph: TraceGraph) -> None:
    """Check that ids are unique, that all names resolve, and that ordinals are indices.

    Raises:
        ValueError: the map is inconsistent; the message names the place.
    """
    fault = next(_faults(graph), None)
    if fault is not None:
        raise ValueError(fault)


def _faults(graph: TraceGraph) -> Iterator[str]:
    """A sentence for each inconsistency."""
    for kind, ids in (
        ("op", [op.id for op in graph.ops]),
        ("site", [site.id for site in graph.sites]),
        ("kernel", [kernel.name for kernel in graph.kernels]),
        ("transfer", [transfer.id for transfer in graph.transfers]),
        ("schedule", [schedule.function for schedule in graph.schedules]),
        ("the source text", [source.path for source in graph.sources]),
        _kernel_texts(graph),
    ):
        yield from _repeated(kind, ids)
    yield from _faults_of_ops(graph.ops)
    for site in graph.sites:
        yield from _faults_of_site(site, graph)
    yield from _faults_of_kernels(graph)
    for index, buffer in enumerate(graph.command_buffers):
        yield from _different(f"the ordinal of command buffer {index}", buffer.ordinal, index)
        for command in buffer.commands:
            yield from _faults_of_command(command, graph)
    for transfer in graph.transfers:
        yield from _missing(transfer.id, "op", transfer.ops, graph.op_by_id)
    for schedule in graph.schedules:
        yield from _faults_of_schedule(schedule, graph)


def _kernel_texts(graph: TraceGraph) -> tuple[str, Sequence[Hashable]]:
    """The texts, or lines of code, that may occur only once: parts of native code share a text and divide its lines."""
    with_text = [kernel for kernel in graph.kernels if isinstance(kernel.text, str)]
    if graph.module.is_native:
        return "the line of code", [f"{kernel.text}:{step.line}" for kernel in with_text for step in kernel.steps]
    return "the kernel text", [kernel.text for kernel in with_text]


def _repeated(kind: str, ids: Sequence[Hashable]) -> Iterator[str]:
    if len(set(ids)) < len(ids):
        name, _ = Counter(ids).most_common(1)[0]
        yield f"{kind} {name} occurs twice"


def _missing(where: str, kind: str, names: Iterable[Hashable], known: Collection[Hashable]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"{where} names {kind} {name}, which is not in the map"


def _different(description: str, value: object, expected: object) -> Iterator[str]:
    if value != expected:
        yield f"{description} is {value}, not {expected}"


_PHASES: Final = frozenset({SOURCE, *PHASES})


def _faults_of_ops(ops: Iterable[Op]) -> Iterator[str]:
    for op in ops:
        if op.last_phase is not UNKNOWN and op.last_phase not in _PHASES:
            yield f"{op.id} names the phase {op.last_phase}, which the compiler does not have"
        if op.line == 0 or op.column == 0 or (op.parts and any(0 in (part.line, part.column) for part in op.parts)):
            yield f"{op.id} is at {op.line}:{op.column}; lines and columns begin at 1"


def _faults_of_site(site: Site, graph: TraceGraph) -> Iterator[str]:
    yield from _repeated(f"{site.id}: op", [member.op for member in site.members])
    yield from _missing(site.id, "kernel", [site.kernel], graph.kernel_by_name)
    yield from _missing(site.id, "op", site.path, graph.op_by_id)
    yield from _missing(site.id, "op", [member.op for member in site.members], graph.op_by_id)
    for member in site.members:
        if member.path or member.other_paths:  # rare
            yield from _missing(site.id, "op", [call for path in member.paths for call in path], graph.op_by_id)
            yield from _repeated(f"{site.id}: path to {member.op}", member.paths)


def _faults_of_kernels(graph: TraceGraph) -> Iterator[str]:
    sites_of: dict[str, list[str]] = {}
    for site in graph.sites:
        sites_of.setdefault(site.kernel, []).append(site.id)
    for kernel in graph.kernels:
        yield from _different(f"the dispatch sites of {kernel.name}", list(kernel.sites), sites_of.get(kernel.name, []))
        yield from _faults_of_steps(kernel, graph)


def _faults_of_steps(kernel: Kernel, graph: TraceGraph) -> Iterator[str]:
    lines = [step.line for step in kernel.steps]
    yield from _repeated(f"{kernel.name}: step at line", lines)
    known = {*lines, UNKNOWN}
    for step in kernel.steps:
        yield from _missing(kernel.name, "op", step.ops, graph.op_by_id)
        yield from _missing(f"{kernel.name}: step {step.line}", "line", [step.parent, *step.takes], known)


def _faults_of_command(command: Command, graph: TraceGraph) -> Iterator[str]:
    where = f"a command ({command.kind})"
    yield from _missing(where, "op", command.ops, graph.op_by_id)
    yield from _missing(where, "site", command.merged, graph.site_by_id)
    if isinstance(command.site, str):
        yield from _missing(where, "site", [command.site], graph.site_by_id)


def _faults_of_schedule(schedule: Schedule, graph: TraceGraph) -> Iterator[str]:
    where, indices = f"the schedule of {schedule.function}", range(len(schedule.submissions))
    yield from _missing(where, "submission", schedule.first, indices)
    for submission in schedule.submissions:
        yield from _missing(where, "submission", submission.next, indices)
        yield from _missing(where, "op", submission.control, graph.op_by_id)
        yield from _missing(where, "command buffer", submission.buffers, range(len(graph.command_buffers)))
        if isinstance(submission.transfer, str):
            yield from _missing(where, "transfer", [submission.transfer], {transfer.id for transfer in graph.transfers})


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
        defaults = defaults_of(kind)
        return tuple(
            map(kind, *[columns[name] if name in columns else _missing_column(defaults, name, where) for name in types])
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


def _missing_column(defaults: Mapping[str, Any], name: str, where: str) -> Iterable[Any]:
    """The column for a missing field that has a default."""
    if name not in defaults:
        raise _fault(f"Object missing required field `{name}`", where)
    return repeat(defaults[name])


def _pair_member(column: Mapping[str, object], name: str, where: str) -> tuple[object, str]:
    """The value of a field in an object with two fields, and its JSON path."""
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

    schema_version: Literal[10] = MAP_VERSION
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


def encode(graph: TraceGraph) -> bytes:
    """Encode a graph as `map.json`; the same graph always gives the same bytes."""
    tables = {name: kind.holding(getattr(graph, name)) for name, kind in _TABLES.items()}
    return encode_record(record_from(StoredMap, graph, **tables)) + b"\n"


def decode(encoded: bytes) -> TraceGraph:
    """Decode a `map.json`.

    Raises:
        OtherVersion: tracemap does not read its version.
        ValueError: it is damaged, or something else.
    """
    stored = decode_document(encoded, StoredMap)
    reader = Reader.of(encoded)
    rows = {name: reader.rows(kind.of, getattr(stored, name), f"$.{name}") for name, kind in _TABLES.items()}
    return record_from(TraceGraph, stored, **rows)


_TABLES: Final[dict[str, type[Table]]] = {
    "ops": OpTable,
    "sites": SiteTable,
    "kernels": KernelTable,
    "command_buffers": CommandBufferTable,
    "transfers": TransferTable,
}


# ---- size of texts
#
# A limit for the number of characters once each text is written for every record that uses it.
#
# A map stores each text once, while tables, pages and exports repeat it for every record that uses it. A small file
# could therefore ask for gigabytes of output. This check rejects such a map when a bundle is opened.


CHARACTERS_PER_BYTE: Final = 64
"""The most characters for each byte of `map.json`; maps of real models have up to 30."""
MIN_CHARACTERS: Final = 16_000_000
"""A map may always have this many characters, however small its file is."""

_ID: Final = attrgetter("id")
_TEXT_TABLES: Final = ("ops", "sites", "kernels", "command_buffers", "transfers")


def check_text_size(graph: TraceGraph, size: int) -> None:
    """Reject a map whose records share more text than any command could print.

    Args:
        graph: the map; names that are missing in it count as empty.
        size: bytes of its `map.json`.

    Raises:
        ValueError: there are more characters than the limit; the message names the field with the most.
    """
    limit = max(MIN_CHARACTERS, CHARACTERS_PER_BYTE * size)
    letters_by_op: Counter[OpId] = Counter()
    letters: Counter[str] = Counter()
    for name, count in chain(_in_fields(graph, letters_by_op), _in_mentions(graph, letters_by_op)):
        letters[name] += count
    if sum(letters.values()) > limit:
        name, _ = letters.most_common(1)[0]
        raise ValueError(
            f"the texts of `{name}`, repeated for every record that uses them, have {letters[name]} characters; "
            f"a map of {size} bytes may have {limit} in total"
        )


def _in_fields(graph: TraceGraph, letters_by_op: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """Count the characters of each field that holds texts; also adds up those of each op."""
    for table in _TEXT_TABLES:
        rows: tuple[Record, ...] = getattr(graph, table)
        for name, kind in field_types(type(rows[0])).items() if rows else ():
            if _holds_text(kind):
                letters = _letters(list(map(attrgetter(name), rows)))
                yield f"$.{table}.{name}", sum(letters)
                if table == "ops":
                    letters_by_op.update(dict(zip(map(_ID, rows), letters, strict=True)))


def _in_mentions(graph: TraceGraph, letters_by_op: Counter[OpId]) -> Iterator[tuple[str, int]]:
    """Count the characters of ops and sites in records that name them by id."""
    names = Counter({op.id: len(op.name) for op in graph.ops})
    members = [member for site in graph.sites for member in site.members]
    commands = [command for buffer in graph.command_buffers for command in buffer.commands]
    yield "$.sites.members.op", _total(letters_by_op, (member.op for member in members))
    yield "$.sites.members.path", _total(letters_by_op, _calls(graph.sites, members))
    yield "$.sites.id", sum(len(site.id) * len(site.members) for site in graph.sites)
    yield (
        "$.kernels.steps.ops",
        _total(names, chain.from_iterable(step.ops for kernel in graph.kernels for step in kernel.steps)),
    )
    yield "$.command_buffers.commands.ops", _total(names, chain.from_iterable(command.ops for command in commands))
    yield "$.transfers.ops", _total(names, chain.from_iterable(transfer.ops for transfer in graph.transfers))


def _calls(sites: Iterable[Site], members: Iterable[Membership]) -> Iterator[OpId]:
    for site in sites:
        yield from site.path
    for member in members:
        for path in member.paths:
            yield from path


def _total(letters: Counter[OpId], ops: Iterable[OpId]) -> int:
    return sum(map(letters.__getitem__, ops))


@cache
def _holds_text(kind: Any) -> bool:  # noqa: ANN401 - any type of a record's field
    """Whether values of a type contain texts of any length; ids of ops and names of outcomes do not."""
    if isinstance(kind, type) and issubclass(kind, Record):
        return any(map(_holds_text, field_types(kind).values()))
    return kind in (str, Text) or any(map(_holds_text, get_args(kind)))


def _letters(values: Iterable[object]) -> list[int]:
    """The number of characters in each value; records and lists that are shared are counted only once."""
    letters_by_id: dict[int, int] = {}  # by id(): `values` keeps the objects alive

    def count_letters(value: Any) -> int:  # noqa: ANN401 - as above
        if isinstance(value, str):
            return len(value)
        key = id(value)
        if key not in letters_by_id:
            letters_by_id[key] = (
                sum(map(count_letters, value))
                if isinstance(value, tuple)
                else sum(map(count_letters, _texts_of(value)))
            )
        return letters_by_id[key]

    return list(map(count_letters, values))


def _texts_of(value: object) -> Iterator[object]:
    """The fields of a record that hold texts; nothing for other values."""
    if isinstance(value, Record):
        for name, kind in field_types(type(value)).items():
            if _holds_text(kind):
                yield getattr(value, name)


# ---- literals
#
# Long literals in a bundle's texts: stored once, with their name in the text.
#
# A model may hold its weights as text, in lines of megabytes that nobody reads and that a bundle would store several
# times. Each literal is a file in `literals/`, named by the SHA-256 of its content and stored as bytes if it is
# hexadecimal. The text keeps its beginning and that name. Restoring gives the same text, character for character.


LITERALS_FOLDER: Final = "literals"
MAX_LITERAL: Final = 1024
"""The most characters of a literal that stays in the text."""

# A string (also with hexadecimal numbers in it), or the list in `dense<[…]>`.
_LITERAL = re.compile(r'"((?:[^"\\\n]++|\\.)*+)"|(?<=dense<)(\[[^>"]*+)')
_MARK = " in literals/"
_NAMED = re.compile(rf"(.{{2}}).{{14}}…[0-9,]+ (?:bytes|letters){_MARK}([0-9a-f]{{64}}\.(?:bin|txt))\n*", re.DOTALL)


def extract_literals(text: str, last_columns: Mapping[int, int]) -> tuple[str, dict[str, bytes]]:
    """Replace the long literals of a text by names; returns the text and the literals' content by name.

    A literal stays if an op begins after it on its line, so that all ops keep their positions. `last_columns`: for each
    line with ops, the column of the last one, both from 1.
    """
    contents: dict[str, bytes] = {}
    if max(map(len, text.split("\n"))) <= MAX_LITERAL or _MARK in text:
        return text, contents
    pieces, position = [], 0
    for start, end in _long_literals(text, last_columns):
        name, content = _content(literal := text[start:end])
        contents[name] = content
        beginning = literal[:16].replace("\n", " ")
        size = f"{len(content):,} {'bytes' if name.endswith('.bin') else 'letters'}"
        # Keep the number of line ends, so that the lines below keep their line numbers.
        pieces += [text[position:start], f"{beginning}…{size}{_MARK}{name}", "\n" * literal.count("\n")]
        position = end
    return "".join([*pieces, text[position:]]), contents


def _long_literals(text: str, last_columns: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """The start and end of each long literal without an op after it on its line.

    A resource (`name: "0x04000000…"`) begins with its alignment, which stays, since the rest may occur elsewhere, too.
    """
    line, counted_to = 1, 0
    for match in _LITERAL.finditer(text):
        start, end = match.span(match.lastindex or 0)
        if text.startswith(': "0x', start - 3):
            start += len("0x04000000")
        if end - start <= MAX_LITERAL:
            continue
        line += text.count("\n", counted_to, end)
        counted_to = end
        first_line, column = line - text.count("\n", start, end), start - text.rfind("\n", 0, start)
        if last_columns.get(line, 0) <= (column if first_line == line else 0):
            yield start, end


def _content(literal: str) -> tuple[str, bytes]:
    """The name and the content of a literal."""
    content, suffix = _hexadecimal(literal), "bin"
    if not content:
        content, suffix = literal.encode(errors="surrogatepass"), "txt"
    return f"{hashlib.sha256(content).hexdigest()}.{suffix}", content


def _hexadecimal(literal: str) -> bytes:
    """The bytes of a hexadecimal literal; none if they would not give the same text again."""
    digits = literal.removeprefix("0x")
    try:
        content = bytes.fromhex(digits)
    except ValueError:
        return b""
    return content if content.hex().upper() == digits else b""


def restore_literals(text: str, content_of: Callable[[str], bytes]) -> str:
    """The text with its literals again; `content_of` reads a literal by its name."""

    def restore(match: re.Match[str]) -> str:
        prefix, name = match.groups()
        content = content_of(name)
        if name.endswith(".txt"):
            return content.decode(errors="surrogatepass")
        return ("0x" if prefix == "0x" else "") + content.hex().upper()

    return _NAMED.sub(restore, text) if _MARK in text else text
