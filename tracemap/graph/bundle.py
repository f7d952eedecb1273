"""The bundle on disk: opened, checked, and written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import fields

from tracemap.codec import Document, OtherVersion, decode_document, storable
from tracemap.codec import encode as encode_record
from tracemap.errors import BundleInvalid, BundleVersion, ModelInvalid, TargetExists, TargetUnwritable, check_limits
from tracemap.graph.documents import (
    CALL_NAME,
    NOT_KEPT,
    CompileTimes,
    Keeping,
    KeptCall,
    KeptEstimates,
    Remarks,
    check_named,
)
from tracemap.graph.map_json import READ_VERSIONS, decode, encode
from tracemap.graph.model import Kernel, SourceFile, TraceGraph
from tracemap.graph.references import check_references
from tracemap.graph.texts import LITERALS_FOLDER, check_letters, put_back, taken_out
from tracemap.inputs import check_is_file, check_within, stored_bytes
from tracemap.outputs import check_folder_of, check_name, end_of_links, is_standard
from tracemap.owned.home import beside, moved_away, take_place
from tracemap.units import UNKNOWN

# ---- bundle
#
# The bundle on disk: `model.tracemap/`, a folder like a debug-symbol bundle.
#
#     map.json       the trace graph
#     module.vmfb    the compiled module
#     source/        the model, and the Python files that its frames name
#     kernels/       the final IR of each kernel, one op a line; and all of them, to be compiled again
#     compiled.json  how long the compiler took
#     estimates.json what the ops of kernels are estimated to cost, once that was asked
#     remarks.json   what the compiler said of its code, where it was asked to
#     literals/      what long literals of these texts hold, such as weights, by the names that stand for them there
#     runs/          runs that were recorded without another target
#     call.json      what it is called with, where a frontend handed that in; with inputs/ and parameters/
#
# A bundle is written to a temporary name beside its target and renamed: it is there whole, or not at all.


SUFFIX = ".tracemap"
MAP_NAME = "map.json"
MODULE_NAME = "module.vmfb"
COMPILED_NAME = "compiled.json"
ESTIMATES_NAME = "estimates.json"
REMARKS_NAME = "remarks.json"
SOURCE_FOLDER = "source"
KERNELS_FOLDER = "kernels"
CONFIGURED_NAME = "configured.mlir"
RUNS_FOLDER = "runs"

_D = TypeVar("_D", bound=Document)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: its folder, its graph, and the SHA-256 of its `map.json`, which names it in reports."""

    path: Path
    graph: TraceGraph
    map_sha256: str

    @property
    def name(self) -> str:
        """What its folder is called, also where it was named `.`.

        Example:
            >>> tracemap.load("model.tracemap").name
            'model.tracemap'
        """
        return self.path.resolve().name

    @property
    def module_path(self) -> Path:
        """The compiled module.

        Raises:
            BundleInvalid: it is a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").module_path.name
            'module.vmfb'
        """
        return inside(self.path, MODULE_NAME)

    @property
    def runs_path(self) -> Path:
        """Where runs go that were given no other target.

        Raises:
            BundleInvalid: it is a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").runs_path.name
            'runs'
        """
        return inside(self.path, RUNS_FOLDER)

    def configured(self) -> bytes:
        """The module before code generation, as text or bytecode; its debug lines are lines of the kernels' texts.

        Raises:
            BundleInvalid: the bundle does not keep it, or what it names is missing, or its program has no kernels.

        Example:
            >>> len(tracemap.load("model.tracemap").configured()) > 1000
            True
        """
        if not self.graph.kernels:
            raise BundleInvalid(f"{self.path}: the program has no kernels; what it does is done without any")
        data = self._data(KERNELS_FOLDER, CONFIGURED_NAME)
        if not data:
            raise BundleInvalid(
                f"{self.path}: the bundle does not keep its kernels as they were before code generation "
                f"({KERNELS_FOLDER}/{CONFIGURED_NAME}); build it from the model, not from dumps, with this version"
            )
        return self._whole(data)

    def source_text(self, source: SourceFile) -> str:
        """The text of a source file for people, with names of its long literals; "" where texts are not kept.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.

        Example:
            >>> bundle = tracemap.load("model.tracemap")
            >>> bundle.source_text(bundle.graph.sources[0]).splitlines()[12]
            'module @jit_main {'
        """
        return self._text(SOURCE_FOLDER, source.path)

    def model(self) -> bytes:
        """The model as it was given, or as the text of its bytecode; b"" where texts are not kept.

        Raises:
            BundleInvalid: as `source_text`, or a literal is missing.

        Example:
            >>> tracemap.load("model.tracemap").model().startswith(b"// The model")
            True
        """
        return self._whole(self._data(SOURCE_FOLDER, self.graph.sources[0].path)) if self.graph.sources else b""

    def _whole(self, data: bytes) -> bytes:
        text = data.decode(errors="surrogateescape")  # bytecode, too, comes back as it was
        try:
            return put_back(text, self._literal).encode(errors="surrogateescape")
        except (OSError, ValueError) as error:
            check_limits(error)
            raise BundleInvalid(f"{self.path}: a literal of a text cannot be read: {error}; build it again") from error

    def kernel_text(self, kernel: Kernel) -> str:
        """The final IR of a kernel, "" where it is not kept.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.

        Example:
            >>> bundle = tracemap.load("model.tracemap")
            >>> bundle.kernel_text(bundle.graph.kernels[0]).partition("(")[0]
            'func.func @main_dispatch_0_matmul_24x16x16_f32'
        """
        return self._text(KERNELS_FOLDER, str(kernel.text)) if kernel.text is not UNKNOWN else ""

    @property
    def has_remarks(self) -> bool:
        """Whether it was built with the compiler's remarks.

        Raises:
            BundleInvalid: they are a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").has_remarks
            True
        """
        return inside(self.path, REMARKS_NAME).exists()

    def remarks(self) -> Remarks:
        """What the compiler said of its code.

        Raises:
            BundleInvalid: it was not asked for, or what is kept of it is damaged.
            BundleVersion: it was written in another format version.

        Example:
            >>> {remark.kind for remark in tracemap.load("model.tracemap").remarks().remarks} >= {"analysis"}
            True
        """
        if not self.has_remarks:
            raise BundleInvalid(
                f"{self.path}: keeps no remarks of the compiler; build it with `tracemap build --remarks`"
            )
        return self._document(REMARKS_NAME, Remarks, lambda found: check_named(found, self.graph))

    def compile_times(self) -> CompileTimes:
        """How long the compiler took for it; unknown where that is not kept, as of one made from dumps.

        Raises:
            BundleInvalid: what is kept of it is damaged.
            BundleVersion: it was written in another format version.

        Example:
            >>> tracemap.load("model.tracemap").compile_times().elapsed_ns > 0
            True
        """
        return self._document(COMPILED_NAME, CompileTimes) if inside(self.path, COMPILED_NAME).exists() else NOT_KEPT

    def estimates(self) -> KeptEstimates:
        """What it keeps of estimates from machine code; nothing where what it has is damaged, or of another version.

        Example:
            >>> [each.kernel for each in tracemap.load("model.tracemap").estimates().kernels][:0]
            []
        """
        try:
            return decode_document(stored_bytes(inside(self.path, ESTIMATES_NAME), BundleInvalid), KeptEstimates)
        except (BundleInvalid, ValueError):
            return KeptEstimates()

    def _document(self, name: str, kind: type[_D], check: Callable[[_D], None] = lambda _: None) -> _D:
        """What lies beside the map under this name; `check` raises ValueError where it does not fit the map."""
        file = inside(self.path, name)
        try:
            found = decode_document(stored_bytes(file, BundleInvalid), kind)
            check(found)
        except OtherVersion as error:
            read = next(each.default for each in fields(kind) if each.name == "schema_version")
            raise BundleVersion(f"{file}: is of version {error.version}, not {read}; build the bundle again") from error
        except ValueError as error:
            raise BundleInvalid(f"{file}: damaged ({error}); build the bundle again") from error
        return found

    def kept_call(self) -> KeptCall | None:
        """What it keeps to be called with; None: nothing.

        Raises:
            BundleInvalid: what is kept of it is damaged.
            BundleVersion: it was written in another format version.

        Example:
            >>> tracemap.load("model.tracemap").kept_call() is None  # a file of MLIR brings no inputs
            True
        """
        return self._document(CALL_NAME, KeptCall) if inside(self.path, CALL_NAME).exists() else None

    def kept_file(self, below: str, name: str) -> Path:
        """A file in one of the folders of what it keeps to be called with.

        Raises:
            BundleInvalid: it is missing, or lies outside of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").kept_file("inputs", "0.npy")
            Traceback (most recent call last):
                ...
            tracemap.errors.BundleInvalid: model.tracemap: inputs/0.npy is missing; build the bundle again
        """
        path = self._inside(below, name)
        if path is None:
            raise BundleInvalid(f"{self.path}: {below}/{name[:80]} is missing; build the bundle again")
        check_is_file(path, BundleInvalid)
        return path

    def _text(self, below: str, name: str) -> str:
        return self._data(below, name).decode(errors="replace")

    def _literal(self, name: str) -> bytes:
        path = self._inside(LITERALS_FOLDER, name)
        if path is None:
            raise BundleInvalid(f"{self.path}: a literal of a text cannot be read: there is no {name}; build it again")
        return stored_bytes(path, BundleInvalid)

    def _data(self, below: str, name: str) -> bytes:
        path = self._inside(below, name)
        return b"" if path is None else stored_bytes(path, BundleInvalid)

    def _inside(self, below: str, name: str) -> Path | None:
        """A file in a folder of the bundle, None where there is none; a link, of the folder too, leads nowhere else."""
        root = self.path.resolve()
        try:
            path = (root / below / storable(name)).resolve()
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, links in a circle
            said = error.strerror if isinstance(error, OSError) else error
            raise BundleInvalid(f"{self.path}: the text {name[:80]!r} cannot be read: {said}") from error
        if not path.is_relative_to(root / below):
            raise BundleInvalid(f"{self.path}: the text {name[:80]!r} lies outside of the bundle; build it again")
        return path


def inside(bundle: Path, name: str) -> Path:
    """What lies in a bundle under one of the names above, which need not be there; the bundle may be a link itself.

    Raises:
        BundleInvalid: it is a link that leads out of the bundle.
    """
    check_within(bundle / name, bundle, BundleInvalid)
    return bundle / name


def is_bundle(path: Path) -> bool:
    """Whether a folder looks like a bundle; a path that no file system takes, as of a damaged header, is none."""
    try:
        return (path / MAP_NAME).is_file()
    except OSError:
        return False


def load(path: Path) -> Bundle:
    """Open a bundle.

    Raises:
        BundleInvalid: it is not a bundle, or its map is damaged, or a link leads out of it.
        BundleVersion: it was written in another format version.
    """
    file, module = inside(path, MAP_NAME), inside(path, MODULE_NAME)
    try:
        encoded = stored_bytes(file, BundleInvalid)
    except BundleInvalid as error:
        raise BundleInvalid(
            f"{path}: not a bundle of tracemap ({error}); name one that `tracemap build` made"
        ) from error
    if module.exists():
        check_is_file(module, BundleInvalid)
    try:
        graph = decode(encoded)
        check_references(graph)
        check_letters(graph, len(encoded))
    except OtherVersion as error:
        read = " and ".join(map(str, READ_VERSIONS))
        said = f"is of version {error.version}; this tracemap reads versions {read}"
        raise BundleVersion(f"{file}: {said}; build the bundle again") from error
    except ValueError as error:
        raise BundleInvalid(f"{file}: damaged ({error}); build the bundle again") from error
    return Bundle(path, graph, hashlib.sha256(encoded).hexdigest())


# ---- storing
#
# How a bundle is written: whole, or not at all.
#
# It is made under a temporary name beside its target and renamed.


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
