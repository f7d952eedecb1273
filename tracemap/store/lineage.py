"""Ops that are the same from one compilation to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

import duckdb

from tracemap.codec import storable
from tracemap.errors import BundleInvalid, BundleVersion, StoreInvalid, check_limits
from tracemap.graph.bundle import MAP_NAME, SOURCE_FOLDER, Bundle, inside, load
from tracemap.graph.model import TraceGraph
from tracemap.graph.query import scope_text
from tracemap.graph.texts import LITERALS_FOLDER
from tracemap.inputs import stored_bytes
from tracemap.measurements.sql import damage_of, reading_errors, table_of
from tracemap.owned.home import temporary_folder
from tracemap.store.headers import reader
from tracemap.store.layout import ALWAYS, COLUMNS, MAPS, OPS, Listing, Row, Store, known, ops_name, told, write_rows

FIRST, SAME, ALIKE, UNMATCHED = "first", "same", "alike", "new"
"""How an op got its key: of the first map of its model; of the same model's text; where a text is not kept, of ops that
all have the same names and places; of none before. Else how `diff` matched it."""
_MOST_KEPT: Final = 256 << 20
"""Bytes of a model beyond which it is not kept: ops of later maps are then matched only where all are alike."""

Keys = Mapping[str, tuple[str, str]]
"""By op its key, and how it got it."""


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of ops of stored maps, as numbers, and what the newest map of the model says of each.

    `keys`: by model, map and op. A key is a model's own: the ops of two models have the same.
    """

    keys: Mapping[tuple[str, str, str], int]
    ops: Sequence[Mapping[str, Any]]

    def said(self, key: int) -> dict[str, Any]:
        """What is said of the ops of a key."""
        op = self.ops[key]
        return {"op": op["key"], **{name: told(op[name]) for name in ("name", "file", "line", "scope")}}


def read_names(listing: Listing, maps: Sequence[tuple[str, str]]) -> Names:
    """The names of the ops of models' maps, which come in the order in which they were recorded.

    Raises:
        StoreInvalid: a map is not there, or cannot be read.
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
    """The ops of a stored map of a model, each by column.

    Raises:
        StoreInvalid: it is not there, or cannot be read.
    """
    path = listing.files[OPS].get(ops_name(model, map_sha256))
    if path is None:
        raise StoreInvalid(
            f"the map {map_sha256[:12]}… of stored runs is not in the store: its file in {OPS}/ is lost or damaged; "
            "add one of its runs again"
        )
    columns = COLUMNS[OPS]
    query = f"SELECT {', '.join(columns)} FROM {table_of('read_parquet', path)}"
    try:
        with reader(listing.place) as connection:
            kinds = [str(kind) for _, kind, *_ in connection.execute(f"DESCRIBE {query}").fetchall()]
            found = connection.execute(query).fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"{path}: cannot be read: {damage_of(error)}") from error
    rows: list[Mapping[str, Any]] = [dict(zip(columns, row, strict=True)) for row in found]
    if kinds != list(columns.values()) or any(row[name] is None for row in rows for name in ALWAYS[OPS]):
        raise StoreInvalid(f"{path}: is no table of ops")
    return rows


def first_keys(graph: TraceGraph) -> Keys:
    """The keys of the first map of a model."""
    return {str(op.id): (str(op.id), FIRST) for op in graph.ops}


def are_alike(one: TraceGraph, other: TraceGraph) -> bool:
    """Whether all ops of two maps have the same names, scopes and places: hardly those of different models."""

    def seen(graph: TraceGraph) -> list[object]:
        return [(op.id, op.name, op.function, op.line, op.column, op.scope) for op in graph.ops]

    return seen(one) == seen(other)


def keep_map(store: Store, bundle: Bundle) -> None:
    """Write what the ops of later maps are matched by.

    Raises:
        TargetUnwritable: it cannot be written.
        BundleInvalid: the model cannot be read, or lies outside of the bundle.
    """
    with duckdb.connect() as connection:
        write_rows(connection, MAPS, [*_kept(bundle)], store.map_file(bundle.map_sha256))


def keep_ops(store: Store, bundle: Bundle, model: str, keys: Keys) -> None:
    """Write the ops of a bundle's map with the keys that they have in a model; one without is like none before it.

    Raises:
        TargetUnwritable: they cannot be written.
    """
    sha = bundle.map_sha256
    with duckdb.connect() as connection:
        write_rows(connection, OPS, [*_op_rows(sha, bundle.graph, keys)], store.ops_file(model, sha))


def _op_rows(sha: str, graph: TraceGraph, keys: Keys) -> Iterator[Row]:
    for op in graph.ops:
        name = str(op.id)
        key, how = keys.get(name, (f"{name}@{sha[:8]}", UNMATCHED))
        told = known(op.file), known(op.line), known(op.function)
        yield sha, name, key, how, op.name, *told, scope_text(graph, op)


def _kept(bundle: Bundle) -> Iterator[Row]:
    """The map and the model's text, as they lie in the bundle.

    Raises:
        BundleInvalid: a file of them lies elsewhere, as a link may name one of this machine.
    """
    sha = bundle.map_sha256
    yield sha, MAP_NAME, stored_bytes(inside(bundle.path, MAP_NAME), BundleInvalid)
    if not bundle.graph.sources:
        return
    literals = sorted(path.name for path in (bundle.path / LITERALS_FOLDER).glob("*"))
    named = [(SOURCE_FOLDER, bundle.graph.sources[0].path), *((LITERALS_FOLDER, name) for name in literals)]
    there = [(below, name) for below, name in named if (bundle.path / below / storable(name)).is_file()]
    files = {normpath(f"{below}/{name}"): bundle.kept_file(below, name) for below, name in there}
    if sum(path.stat().st_size for path in files.values()) <= _MOST_KEPT:
        for name, path in files.items():
            yield sha, name, stored_bytes(path, BundleInvalid)


@contextmanager
def kept_bundle(listing: Listing, map_sha256: str) -> Iterator[Bundle]:
    """What is kept of a bundle, as one that has a map and a model.

    Raises:
        StoreInvalid: it cannot be read.
    """
    path = listing.files[MAPS][map_sha256]
    try:
        with reader(listing.place) as connection:
            files = connection.execute(f"SELECT name, content FROM {table_of('read_parquet', path)}").fetchall()
    except reading_errors() as error:
        raise StoreInvalid(f"{path}: cannot be read: {damage_of(error)}") from error
    with temporary_folder() as folder:
        try:
            for name, data in files:
                _write_below(folder, name, data)
        except (OSError, ValueError) as error:
            check_limits(error)
            raise StoreInvalid(f"{path}: {error}; take it away, and add one of its runs again") from error
        try:
            loaded = load(folder)
        except (BundleInvalid, BundleVersion) as error:
            raise StoreInvalid(f"{path}: its map cannot be read: {error}; take it away, add its runs again") from error
        if loaded.map_sha256 != map_sha256:
            raise StoreInvalid(f"{path}: holds another map than its name says; take it away, add its runs again")
        yield loaded


def _write_below(folder: Path, name: object, data: object) -> None:
    """Write a kept file; its name is text of a file: it must lead nowhere but into this folder.

    Raises:
        OSError, ValueError: it is none.
    """
    if not (isinstance(name, str) and isinstance(data, bytes)):
        raise ValueError("does not hold the files of a bundle")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"names a file outside of a bundle ({name!r})")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
