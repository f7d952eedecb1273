"""Match ops across compilations of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

import duckdb

from tracemap.core.codec import escape_surrogates
from tracemap.core.errors import BundleInvalid, BundleVersion, StoreInvalid, check_limits
from tracemap.core.files import MAP_NAME, read_stored_file
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.map.bundle import SOURCE_FOLDER, Bundle, load, path_in_bundle
from tracemap.map.map_json import LITERALS_FOLDER
from tracemap.map.model import TraceGraph
from tracemap.map.query import scope_text
from tracemap.runs.sql import damage_of, reader_call, reading_errors
from tracemap.store.layout import (
    ALWAYS,
    COLUMNS,
    MAPS,
    OPS,
    Listing,
    Row,
    Store,
    null_if_unknown,
    ops_name,
    unknown_if_null,
    write_rows,
)
from tracemap.store.run_headers import reader

FIRST, SAME, ALIKE, UNMATCHED = "first", "same", "alike", "new"
"""How an op got its key: from the first map of its model; by equal model text; by equal names and locations of all ops,
where the text is not stored; or it is new, since it matches no earlier op. Otherwise, the kind of `diff`'s match."""
_MOST_KEPT: Final = 256 << 20
"""Limit in bytes: a larger model is not stored. Ops of later maps then match only if all ops have equal names."""

Keys = Mapping[str, tuple[str, str]]
"""Key of each op, and the way in which it was assigned."""


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of ops in stored maps, as numbers, and the newest map's description of each.

    `keys`: by model, map and op. Models do not share keys.
    """

    keys: Mapping[tuple[str, str, str], int]
    ops: Sequence[Mapping[str, Any]]

    def describe(self, key: int) -> dict[str, Any]:
        """The description of a key's op."""
        op = self.ops[key]
        return {"op": op["key"], **{name: unknown_if_null(op[name]) for name in ("name", "file", "line", "scope")}}


def read_names(listing: Listing, maps: Sequence[tuple[str, str]]) -> Names:
    """The names of ops in models' maps; `maps` are in recording order.

    Raises:
        StoreInvalid: a map is missing, or cannot be read.
    """
    numbers: dict[tuple[str, str], int] = {}
    keys: dict[tuple[str, str, str], int] = {}
    ops: list[Mapping[str, Any]] = []
    for model, sha in dict.fromkeys(maps):
        for row in read_ops(listing, model, sha):
            number = numbers.setdefault((model, row["key"]), len(ops))
            if number == len(ops):
                ops.append(row)
            ops[number] = row
            keys[model, sha, row["op"]] = number
    return Names(keys, ops)


def read_ops(listing: Listing, model: str, map_sha256: str) -> list[Mapping[str, Any]]:
    """The ops of a stored map, as rows by column.

    Raises:
        StoreInvalid: the map is missing, or cannot be read.
    """
    path = listing.files[OPS].get(ops_name(model, map_sha256))
    if path is None:
        raise StoreInvalid(
            f"map {map_sha256[:12]}… of stored runs is not in the store: its file in {OPS}/ is lost or damaged; "
            "add one of its runs again"
        )
    columns = COLUMNS[OPS]
    query = f"SELECT {', '.join(columns)} FROM {reader_call('read_parquet', path)}"
    try:
        with reader(listing.place) as connection:
            types = [str(type_name) for _, type_name, *_ in connection.execute(f"DESCRIBE {query}").fetchall()]
            cells = connection.execute(query).fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"{path}: cannot be read: {damage_of(error)}") from error
    rows: list[Mapping[str, Any]] = [dict(zip(columns, row, strict=True)) for row in cells]
    if types != list(columns.values()) or any(row[name] is None for row in rows for name in ALWAYS[OPS]):
        raise StoreInvalid(f"{path}: is not a table of ops")
    return rows


def keys_of_first_map(graph: TraceGraph) -> Keys:
    """Keys for the first map of a model."""
    return {str(op.id): (str(op.id), FIRST) for op in graph.ops}


def have_equal_ops(graph: TraceGraph, other_graph: TraceGraph) -> bool:
    """Whether all ops of two maps have equal names, scopes and locations. Different models hardly ever do."""

    def identities(graph: TraceGraph) -> list[object]:
        return [(op.id, op.name, op.function, op.line, op.column, op.scope) for op in graph.ops]

    return identities(graph) == identities(other_graph)


def store_map(store: Store, bundle: Bundle) -> None:
    """Store the parts of a bundle that match its ops with those of later maps.

    Raises:
        TargetUnwritable: the file cannot be written.
        BundleInvalid: the model cannot be read, or lies outside the bundle.
    """
    with duckdb.connect() as connection:
        write_rows(connection, MAPS, [*_kept(bundle)], store.map_file(bundle.map_sha256))


def store_ops(store: Store, bundle: Bundle, model: str, keys: Keys) -> None:
    """Store the ops of a bundle's map with their keys in a model. An op without a key gets a new one.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    sha = bundle.map_sha256
    with duckdb.connect() as connection:
        write_rows(connection, OPS, [*_op_rows(sha, bundle.graph, keys)], store.ops_file(model, sha))


def _op_rows(sha: str, graph: TraceGraph, keys: Keys) -> Iterator[Row]:
    for op in graph.ops:
        name = str(op.id)
        key, how = keys.get(name, (f"{name}@{sha[:8]}", UNMATCHED))
        location = null_if_unknown(op.file), null_if_unknown(op.line), null_if_unknown(op.function)
        yield sha, name, key, how, op.name, *location, scope_text(graph, op)


def _kept(bundle: Bundle) -> Iterator[Row]:
    """The map and the model's text, from the bundle.

    Raises:
        BundleInvalid: a file lies outside the bundle; a link could name any file of this machine.
    """
    sha = bundle.map_sha256
    yield sha, MAP_NAME, read_stored_file(path_in_bundle(bundle.path, MAP_NAME), BundleInvalid)
    if not bundle.graph.sources:
        return
    literals = sorted(path.name for path in (bundle.path / LITERALS_FOLDER).glob("*"))
    paths = [(SOURCE_FOLDER, bundle.graph.sources[0].path), *((LITERALS_FOLDER, name) for name in literals)]
    existing = [(folder, name) for folder, name in paths if (bundle.path / folder / escape_surrogates(name)).is_file()]
    files = {normpath(f"{folder}/{name}"): bundle.kept_file(folder, name) for folder, name in existing}
    if sum(path.stat().st_size for path in files.values()) <= _MOST_KEPT:
        for name, path in files.items():
            yield sha, name, read_stored_file(path, BundleInvalid)


@contextmanager
def restored_bundle(listing: Listing, map_sha256: str) -> Iterator[Bundle]:
    """Restore the stored parts of a bundle: map and model.

    Raises:
        StoreInvalid: the file cannot be read.
    """
    path = listing.files[MAPS][map_sha256]
    try:
        with reader(listing.place) as connection:
            files = connection.execute(f"SELECT name, content FROM {reader_call('read_parquet', path)}").fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"{path}: cannot be read: {damage_of(error)}") from error
    with temporary_folder() as folder:
        try:
            for name, data in files:
                _write_below(folder, name, data)
        except (OSError, ValueError) as error:
            check_limits(error)
            raise StoreInvalid(f"{path}: {error}; delete it, and add one of its runs again") from error
        try:
            loaded = load(folder)
        except (BundleInvalid, BundleVersion) as error:
            raise StoreInvalid(f"{path}: its map cannot be read: {error}; delete it, and add its runs again") from error
        if loaded.map_sha256 != map_sha256:
            raise StoreInvalid(f"{path}: its map has another hash than its name; delete it, and add its runs again")
        yield loaded


def _write_below(folder: Path, name: object, data: object) -> None:
    """Write a stored file below a folder. The name comes from a file, so it must not lead elsewhere."""
    if not (isinstance(name, str) and isinstance(data, bytes)):
        raise ValueError("does not hold the files of a bundle")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"names a file outside the bundle ({name!r})")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
