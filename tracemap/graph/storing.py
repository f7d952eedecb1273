"""How a bundle is written: whole, or not at all.

It is made under a temporary name beside its target and renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.codec import Document, storable
from tracemap.codec import encode as encode_record
from tracemap.errors import ModelInvalid, TargetExists, TargetUnwritable
from tracemap.graph.bundle import (
    CONFIGURED_NAME,
    KERNELS_FOLDER,
    MAP_NAME,
    MODULE_NAME,
    RUNS_FOLDER,
    SOURCE_FOLDER,
    Bundle,
    is_bundle,
)
from tracemap.graph.kept import Keeping
from tracemap.graph.letters import check_letters
from tracemap.graph.literals import LITERALS_FOLDER, taken_out
from tracemap.graph.model import SourceFile, TraceGraph
from tracemap.graph.stored import encode
from tracemap.outputs import check_folder_of, check_name, end_of_links, is_standard
from tracemap.owned.home import beside, moved_away, take_place


@dataclass(frozen=True, slots=True)
class Files:
    """What goes into a bundle beside its map; `module` and `configured` are moved into it.

    `sources`: texts by their path below `source/`; `kernels`: texts by their name in `kernels/`; `configured`: the
    kernels as bytecode, where there is one; `documents`: what else lies beside the map, by name.
    """

    module: Path
    sources: Mapping[str, str]
    kernels: Mapping[str, str] = field(default_factory=dict)
    configured: tuple[Path, ...] = ()
    documents: Mapping[str, Document] = field(default_factory=dict)
    keeping: Keeping = field(default_factory=Keeping)
    """What the module is called with, where that was handed in."""


def store(target: Path, graph: TraceGraph, files: Files, *, force: bool) -> Bundle:
    """Write a bundle.

    Raises:
        TargetExists: there is something at the target already, and `force` is not set (or it is not a bundle).
        TargetUnwritable: the target's folder cannot be written.
        ModelInvalid: its ops share more text than a bundle may hold.
    """
    check_target(target, force=force)
    encoded, place = encode(graph), end_of_links(target)
    try:
        check_letters(graph, len(encoded))
    except ValueError as error:
        raise ModelInvalid(f"{graph.module.name}: {error}; shorten the names and locations in the model") from error
    if place.name in ("", ".."):  # `.`, `..`: what takes its place lies beside it, under a name like its own
        place = place.resolve()
    try:
        with beside(place) as folder:
            folder.mkdir()
            (folder / MAP_NAME).write_bytes(encoded)
            shutil.move(files.module, folder / MODULE_NAME)
            _write_texts(folder, graph, files)
            for name, document in files.documents.items():
                (folder / name).write_bytes(encode_record(document))
            files.keeping.store(folder)
            if not force:
                take_place(folder, place)
                return Bundle(target, graph, hashlib.sha256(encoded).hexdigest())
            with moved_away(place) as old:
                folder.rename(place)
                if (old / RUNS_FOLDER).is_dir():  # of a bundle that was here: measurements outlive it
                    (old / RUNS_FOLDER).rename(place / RUNS_FOLDER)
    except FileExistsError as error:
        raise _taken(target) from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error
    return Bundle(target, graph, hashlib.sha256(encoded).hexdigest())


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target before any work is done.

    Raises:
        TargetExists: there is something already; with `force` only a bundle is replaced, never another folder or file.
        TargetUnwritable: its folder does not exist or may not be written.
    """
    if is_standard(target):
        raise TargetUnwritable(f"{target}: a bundle is a folder; name it with -o")
    check_name(target)
    if os.path.lexists(target):
        if not force:
            raise _taken(target)
        if not is_bundle(target):
            raise TargetExists(
                f"{target} exists and is not a bundle of tracemap; remove it, or pass another name with -o"
            )
    check_folder_of(end_of_links(target))


def _taken(target: Path) -> TargetExists:
    return TargetExists(f"{target} exists already; pass --force to replace it, or another name with -o")


def _write_texts(folder: Path, graph: TraceGraph, files: Files) -> None:
    for below in (SOURCE_FOLDER, KERNELS_FOLDER, LITERALS_FOLDER, RUNS_FOLDER):
        (folder / below).mkdir()
    for source in graph.sources:
        if text := files.sources.get(source.path):
            _write_text(folder, Path(SOURCE_FOLDER, storable(source.path)), text, _last_columns(graph, source))
    for name, text in files.kernels.items():
        _write_text(folder, Path(KERNELS_FOLDER, storable(name)), text, {})
    for configured in files.configured:
        _move_configured(configured, folder)


def _write_text(folder: Path, name: Path, text: str, last_columns: Mapping[int, int]) -> None:
    """Write a text to its place in the bundle, and its long literals to theirs."""
    shown, literals = taken_out(text, last_columns)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(shown.encode(errors="surrogatepass"))
    for each, content in literals.items():
        (folder / LITERALS_FOLDER / each).write_bytes(content)


def _move_configured(configured: Path, folder: Path) -> None:
    target = Path(KERNELS_FOLDER, CONFIGURED_NAME)
    try:
        text = configured.read_bytes().decode()
    except UnicodeDecodeError:  # bytecode
        shutil.move(configured, folder / target)
    else:
        _write_text(folder, target, text, {})


def _last_columns(graph: TraceGraph, source: SourceFile) -> dict[int, int]:
    """Of each line of a text with an op where the last one begins."""
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.file == source.name and isinstance(op.line, int) and isinstance(op.column, int):
            found[op.line] = max(found.get(op.line, 0), op.column)
    return found
