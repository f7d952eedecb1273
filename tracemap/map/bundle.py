"""The bundle on disk: reading, checking and atomic writing."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from tracemap.core.codec import Document, OtherVersion, decode_document, defaults_of, escape_surrogates
from tracemap.core.codec import encode as encode_record
from tracemap.core.errors import (
    BundleInvalid,
    BundleVersion,
    ModelInvalid,
    TargetExists,
    TargetUnwritable,
    UsageInvalid,
    check_limits,
)
from tracemap.core.files import (
    MAP_NAME,
    FileFormat,
    check_folder_writable,
    check_is_file,
    check_link_stays_within,
    check_name,
    format_of_file,
    has_mark,
    is_standard,
    link_target,
    read_stored_file,
    similar_name,
)
from tracemap.core.process.temporary_files import moved_away, rename_into_place, temporary_sibling
from tracemap.core.units import UNKNOWN
from tracemap.machine.images import Image, read_images
from tracemap.machine.native_lines import CodeParts, parts_of_code
from tracemap.map.bundle_documents import (
    CALL_NAME,
    UNKNOWN_TIMES,
    BuildTiming,
    CallToKeep,
    CompileTimes,
    Remarks,
    StoredCall,
    StoredEstimates,
    check_remarks,
    check_timing,
)
from tracemap.map.map_json import (
    LITERALS_FOLDER,
    check_references,
    check_text_size,
    decode,
    encode,
    extract_literals,
    restore_literals,
)
from tracemap.map.memory import MemoryPlan, check_memory
from tracemap.map.model import MAP_VERSION, Kernel, SourceFile, TraceGraph

# ---- bundle
#
# The bundle on disk: `model.tracemap/`, a folder like a debug-symbol bundle.
#
#     map.json       the trace graph
#     module.vmfb    the compiled module; module.so, if MLIR's own tools compiled it
#     source/        the model, and the Python files of its frames
#     kernels/       the final IR of each kernel, one op a line; and the module before code generation, for recompiling
#     compiled.json  compile times
#     timing.json    the compiler's time by kernel and pass, with `build --timing`
#     estimates.json estimated costs of kernels, once a command needed them
#     numerics.json  errors of the dispatches, once `numerics` ran
#     remarks.json   the compiler's remarks, with `build --remarks`
#     literals/      long literals of these texts, such as weights, by the names that replace them there
#     runs/          runs recorded without another target
#     call.json      the inputs and parameters that a frontend passed in; with inputs/ and parameters/
#
# A bundle is written to a temporary name next to its target and then renamed, so it never exists in part.

SUFFIX = ".tracemap"
COMPILED_NAME = "compiled.json"
TIMING_NAME = "timing.json"
ESTIMATES_NAME = "estimates.json"
REMARKS_NAME = "remarks.json"
MEMORY_NAME = "memory.json"
NUMERICS_NAME = "numerics.json"
SOURCE_FOLDER = "source"
PYTHON_FOLDER = "python"
"""Folder below `source/` for Python files, whose names begin with an index."""
KERNELS_FOLDER = "kernels"
CONFIGURED_NAME = "configured.mlir"
RUNS_FOLDER = "runs"
FOLDERS: Final = (SOURCE_FOLDER, KERNELS_FOLDER, LITERALS_FOLDER, RUNS_FOLDER)
"""The folders of every bundle, empty or not."""

_D = TypeVar("_D", bound=Document)


def safe_name(name: str) -> str:
    """A file name for the bundle: the model's own, without characters that could lead elsewhere."""
    letters = (c if c.isalnum() or c in "._-" else "_" for c in Path(name).name)
    return "".join(letters).lstrip(".") or "model.mlir"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: its folder, its graph, and the SHA-256 of its `map.json`, which identifies it in reports."""

    path: Path
    graph: TraceGraph
    map_sha256: str

    @property
    def name(self) -> str:
        """The name of its folder, even if it was opened as `.`.

        Example:
            >>> tracemap.load("model.tracemap").name
            'model.tracemap'
        """
        return self.path.resolve().name

    @property
    def module_path(self) -> Path:
        """The compiled module.

        Raises:
            BundleInvalid: the module is a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").module_path.name
            'module.vmfb'
        """
        return path_in_bundle(self.path, self.graph.module.file)

    @property
    def is_native(self) -> bool:
        """Whether its program is native code, which runs without IREE.

        Example:
            >>> tracemap.load("model.tracemap").is_native
            False
        """
        return self.graph.module.is_native

    def images(self) -> tuple[Image, ...]:
        """The machine code of its module, by kernel; outermost loops of native code are its kernels.

        Raises:
            ModuleInvalid: the machine code cannot be read.

        Example:
            >>> [function.name for function in tracemap.load("model.tracemap").images()[0].functions][0]
            'main_dispatch_0_matmul_24x16x16_f32'
        """
        if not self.is_native:
            return read_images(self.module_path)
        return (self.native_code().image,)

    def native_code(self) -> CodeParts:
        """The machine code of a library, by outermost loop.

        Raises:
            ModuleInvalid: the machine code cannot be read.

        Example:
            >>> tracemap.load("model.tracemap").native_code().names
            Traceback (most recent call last):
                ...
            tracemap.core.errors.ModuleInvalid: model.tracemap/module.vmfb: is not an ELF file
        """
        kernels = [kernel for kernel in self.graph.kernels if isinstance(kernel.text, str)]
        kernel_of_line = {step.line: kernel.name for kernel in kernels for step in kernel.steps}
        return parts_of_code(self.module_path, str(kernels[0].text) if kernels else "", kernel_of_line)

    @property
    def runs_path(self) -> Path:
        """The folder for runs without another target.

        Raises:
            BundleInvalid: the folder is a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").runs_path.name
            'runs'
        """
        return path_in_bundle(self.path, RUNS_FOLDER)

    def configured(self) -> bytes:
        """The module before code generation, as text or bytecode; its debug lines are lines of the kernels' texts.

        Raises:
            BundleInvalid: the bundle does not have it, a literal in it is missing, or the program has no kernels.

        Example:
            >>> len(tracemap.load("model.tracemap").configured()) > 1000
            True
        """
        if not self.graph.kernels:
            raise BundleInvalid(f"{self.path}: the program has no kernels, so there is nothing to compile again")
        data = self._data(KERNELS_FOLDER, CONFIGURED_NAME)
        if not data:
            raise BundleInvalid(
                f"{self.path}: the bundle does not keep its kernels from before code generation "
                f"({KERNELS_FOLDER}/{CONFIGURED_NAME}); build it from the model (not from dumps) with this version"
            )
        return self._with_literals(data)

    def source_text(self, source: SourceFile) -> str:
        """The text of a source file for people, with names for its long literals; "" if texts are not kept.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.

        Example:
            >>> bundle = tracemap.load("model.tracemap")
            >>> bundle.source_text(bundle.graph.sources[0]).splitlines()[12]
            'module @jit_main {'
        """
        return self._data(SOURCE_FOLDER, source.path).decode(errors="replace")

    def model(self) -> bytes:
        """The model as passed in, or as the text of its bytecode; b"" if texts are not kept.

        Raises:
            BundleInvalid: as for `source_text`, or a literal is missing.

        Example:
            >>> tracemap.load("model.tracemap").model().startswith(b"// The model")
            True
        """
        return self._with_literals(self._data(SOURCE_FOLDER, self.graph.sources[0].path)) if self.graph.sources else b""

    def _with_literals(self, data: bytes) -> bytes:
        text = data.decode(errors="surrogateescape")  # bytecode survives the round trip, too
        try:
            return restore_literals(text, self._literal).encode(errors="surrogateescape")
        except (OSError, ValueError) as error:
            check_limits(error)
            raise BundleInvalid(f"{self.path}: a literal of a text cannot be read: {error}; build it again") from error

    def kernel_text(self, kernel: Kernel) -> str:
        """The final IR of a kernel, "" if it is not kept.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.

        Example:
            >>> bundle = tracemap.load("model.tracemap")
            >>> bundle.kernel_text(bundle.graph.kernels[0]).partition("(")[0]
            'func.func @main_dispatch_0_matmul_24x16x16_f32'
        """
        if kernel.text is UNKNOWN:
            return ""
        return self._data(KERNELS_FOLDER, str(kernel.text)).decode(errors="replace")

    @property
    def has_remarks(self) -> bool:
        """Whether it was built with the compiler's remarks.

        Raises:
            BundleInvalid: the file is a link that leads out of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").has_remarks
            True
        """
        return path_in_bundle(self.path, REMARKS_NAME).exists()

    def remarks(self) -> Remarks:
        """The remarks of the compiler.

        Raises:
            BundleInvalid: the bundle has no remarks, or they are damaged.
            BundleVersion: they have another format version.

        Example:
            >>> {remark.kind for remark in tracemap.load("model.tracemap").remarks().remarks} >= {"analysis"}
            True
        """
        if not self.has_remarks:
            raise BundleInvalid(
                f"{self.path}: the bundle has no compiler remarks; build it again with `tracemap build --remarks`"
            )
        return self._document(REMARKS_NAME, Remarks, lambda remarks: check_remarks(remarks, self.graph))

    def memory(self) -> MemoryPlan:
        """The allocations of the program, and the ops and dispatch sites that use them.

        Raises:
            BundleInvalid: the bundle does not have it, or it is damaged.
            BundleVersion: it has another format version.

        Example:
            >>> tracemap.load("model.tracemap").memory().functions[0].function
            'main'
        """
        if not path_in_bundle(self.path, MEMORY_NAME).exists():
            raise BundleInvalid(
                f"{self.path}: the bundle does not have the memory of its program; build it again with "
                "`tracemap build` (bundles of other compilations never have it)"
            )
        return self._document(MEMORY_NAME, MemoryPlan, lambda plan: check_memory(plan, self.graph))

    def compile_times(self) -> CompileTimes:
        """The time that the compiler took; unknown if the bundle has no such file, for example after `from_dumps`.

        Raises:
            BundleInvalid: the file is damaged.
            BundleVersion: the file has another format version.

        Example:
            >>> tracemap.load("model.tracemap").compile_times().elapsed_ns > 0
            True
        """
        return (
            self._document(COMPILED_NAME, CompileTimes)
            if path_in_bundle(self.path, COMPILED_NAME).exists()
            else UNKNOWN_TIMES
        )

    def timing(self) -> BuildTiming | None:
        """The compiler's time by kernel and pass; None if the bundle was built without `--timing`.

        Raises:
            BundleInvalid: the file is damaged.
            BundleVersion: the file has another format version.

        Example:
            >>> tracemap.load("model.tracemap").timing() is None
            True
        """
        if not path_in_bundle(self.path, TIMING_NAME).exists():
            return None
        return self._document(TIMING_NAME, BuildTiming, lambda timing: check_timing(timing, self.graph))

    def estimates(self) -> StoredEstimates:
        """The stored estimates from machine code; empty if they are damaged or of another version.

        Example:
            >>> [estimate.kernel for estimate in tracemap.load("model.tracemap").estimates().kernels][:0]
            []
        """
        try:
            return decode_document(
                read_stored_file(path_in_bundle(self.path, ESTIMATES_NAME), BundleInvalid), StoredEstimates
            )
        except (BundleInvalid, ValueError):
            return StoredEstimates()

    def _document(self, name: str, kind: type[_D], check: Callable[[_D], None] = lambda _: None) -> _D:
        return read_document(path_in_bundle(self.path, name), kind, check)

    def kept_call(self) -> StoredCall | None:
        """The inputs and parameters that the bundle keeps; None if it keeps none.

        Raises:
            BundleInvalid: the file is damaged.
            BundleVersion: the file has another format version.

        Example:
            >>> tracemap.load("model.tracemap").kept_call() is None  # a file of MLIR brings no inputs
            True
        """
        return self._document(CALL_NAME, StoredCall) if path_in_bundle(self.path, CALL_NAME).exists() else None

    def kept_file(self, below: str, name: str) -> Path:
        """A file in one of the folders with inputs and parameters.

        Raises:
            BundleInvalid: it is missing, or lies outside of the bundle.

        Example:
            >>> tracemap.load("model.tracemap").kept_file("inputs", "0.npy")
            Traceback (most recent call last):
                ...
            tracemap.core.errors.BundleInvalid: model.tracemap: inputs/0.npy is missing; build the bundle again
        """
        path = self._inside(below, name)
        if path is None:
            raise BundleInvalid(f"{self.path}: {below}/{name[:80]} is missing; build the bundle again")
        check_is_file(path, BundleInvalid)
        return path

    def _literal(self, name: str) -> bytes:
        path = self._inside(LITERALS_FOLDER, name)
        if path is None:
            raise BundleInvalid(f"{self.path}: a literal of a text cannot be read: there is no {name}; build it again")
        return read_stored_file(path, BundleInvalid)

    def _data(self, below: str, name: str) -> bytes:
        path = self._inside(below, name)
        return b"" if path is None else read_stored_file(path, BundleInvalid)

    def _inside(self, below: str, name: str) -> Path | None:
        """A file in a folder of the bundle, None if there is none; links out of that folder are rejected."""
        root = self.path.resolve()
        try:
            path = (root / below / escape_surrogates(name)).resolve()
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a cycle of links
            reason = error.strerror if isinstance(error, OSError) else error
            raise BundleInvalid(f"{self.path}: the text {name[:80]!r} cannot be read: {reason}") from error
        if not path.is_relative_to(root / below):
            raise BundleInvalid(f"{self.path}: the text {name[:80]!r} lies outside of the bundle; build it again")
        return path


def path_in_bundle(bundle: Path, name: str) -> Path:
    """The path of a file or folder of a bundle, which need not exist; the bundle itself may be a link.

    Raises:
        BundleInvalid: the path is a link that leads out of the bundle.
    """
    check_link_stays_within(bundle / name, bundle, BundleInvalid)
    return bundle / name


def read_document(
    file: Path, kind: type[_D], check: Callable[[_D], None] = lambda _: None, *, remedy: str = "build the bundle again"
) -> _D:
    """Read a document of a bundle.

    Args:
        file: the document.
        kind: its type.
        check: raises ValueError if it does not fit the map.
        remedy: how to get a new one, for error messages.

    Raises:
        BundleInvalid: the file is damaged.
        BundleVersion: it has another format version.
    """
    try:
        document = decode_document(read_stored_file(file, BundleInvalid), kind)
        check(document)
    except OtherVersion as error:
        version = defaults_of(kind)["schema_version"]
        raise BundleVersion(f"{file}: version {error.version}, expected {version}; {remedy}") from error
    except ValueError as error:
        raise BundleInvalid(f"{file}: damaged ({error}); {remedy}") from error
    return document


def is_bundle(path: Path) -> bool:
    """Whether a folder looks like a bundle; False for paths that the file system rejects, as from a damaged header."""
    try:
        return (path / MAP_NAME).is_file()
    except OSError:
        return False


def _no_bundle(path: Path) -> str:
    """Why a path is no bundle, and what to do; "" for a bundle whose map cannot be read."""
    kind, near = format_of_file(path), path.parent
    if kind is FileFormat.BUNDLE or (kind is None and os.path.lexists(path)):
        return ""
    if kind is None:
        similar = similar_name(path, [other.name for other in near.glob(f"*{SUFFIX}") if is_bundle(other)])
        advice = f"did you mean {similar}?" if similar else "`tracemap build MODEL` writes one"
        return f"there is no such bundle; {advice}"
    for folder in (near, near.parent):
        if is_bundle(folder) and kind is not FileFormat.FOLDER:
            return f"is a file in a bundle; pass the bundle: {folder}"
    if kind is FileFormat.FOLDER:
        inside = [other for other in sorted(path.glob(f"*{SUFFIX}")) if is_bundle(other)]
        advice = f"pass the bundle in it: {inside[0]}" if inside else "pass a folder that `tracemap build` wrote"
        return f"is a folder, but not a bundle, since it has no {MAP_NAME}; {advice}"
    if kind in _KINDS_OF_MODELS.get(path.suffix.lower(), ()):
        kind = FileFormat.MODEL
    advice = _BUNDLE_ADVICE.get(kind, "pass a folder that `tracemap build` wrote")
    return f"is {kind}, not a bundle; {advice.format(path, path.stem)}"


_KINDS_OF_MODELS: Final = {
    ".onnx": (FileFormat.BINARY, FileFormat.TEXT),  # a small one may contain no zero byte
    ".pt2": (FileFormat.ARCHIVE, FileFormat.BINARY),
}
"""Kinds of files that are models of frameworks, by the suffix of their names."""
_RUN_ADVICE: Final = "pass the bundle that it was recorded from, or show its costs: tracemap attribute {}"
_BUNDLE_ADVICE: Final = {
    FileFormat.MODEL: "build it first: tracemap build {}, then pass its bundle, {}.tracemap",
    FileFormat.MODULE: "build the model that it was compiled from: tracemap build MODEL",
    FileFormat.RUN: _RUN_ADVICE,
    FileFormat.PROFILE: _RUN_ADVICE,
    FileFormat.SCRIPT: "profile it, which builds its bundle: tracemap profile {}",
    FileFormat.POINTER: "fetch the file with `git lfs pull`",
}
"""Remedies for a file in place of a bundle."""


def check_iree(bundle: Bundle) -> None:
    """Reject a bundle of native code, where only a module of IREE will do.

    Raises:
        UsageInvalid: the bundle has native code.
    """
    if bundle.is_native:
        raise UsageInvalid(f"{bundle.path}: has native code, and this works for modules of IREE only")


def load(path: Path) -> Bundle:
    """Open a bundle.

    Raises:
        BundleInvalid: the folder is not a bundle, its map is damaged, or a link leads out of it.
        BundleVersion: the map has another format version.
    """
    file = path_in_bundle(path, MAP_NAME)
    try:
        encoded = read_stored_file(file, BundleInvalid)
    except BundleInvalid as error:
        raise BundleInvalid(f"{path}: {_no_bundle(path) or f'is not a tracemap bundle ({error})'}") from error
    try:
        graph = decode(encoded)
        check_references(graph)
        check_text_size(graph, len(encoded))
    except OtherVersion as error:
        problem = f"version {error.version}; this tracemap reads version {MAP_VERSION}"
        raise BundleVersion(f"{file}: {problem}; build the bundle again") from error
    except ValueError as error:
        raise BundleInvalid(f"{file}: damaged ({error}); build the bundle again") from error
    module = path_in_bundle(path, graph.module.file)
    if module.exists():
        check_is_file(module, BundleInvalid)
    return Bundle(path, graph, hashlib.sha256(encoded).hexdigest())


# ---- storing


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files of a bundle next to its map; `module` and `configured` are moved into it.

    `sources`: texts by their path below `source/`; `kernels`: texts by their name in `kernels/`; `configured`: the
    module before code generation, if there is one; `documents`: other files next to the map, by name.
    """

    module: Path
    sources: Mapping[str, str]
    kernels: Mapping[str, str] = field(default_factory=dict)
    configured: tuple[Path, ...] = ()
    documents: Mapping[str, Document] = field(default_factory=dict)
    keeping: CallToKeep = field(default_factory=CallToKeep)
    """The inputs and parameters that came with the model."""


def store(target: Path, graph: TraceGraph, files: BundleFiles, *, force: bool) -> Bundle:
    """Write a bundle.

    Raises:
        TargetExists: the target exists and is not a bundle, or another program has just written it.
        TargetUnwritable: the target's folder cannot be written.
        ModelInvalid: its ops share more text than a bundle may hold.
    """
    check_target(target, force=force)
    encoded = encode(graph)
    try:
        check_text_size(graph, len(encoded))
    except ValueError as error:
        raise ModelInvalid(f"{graph.module.name}: {error}; shorten the names and locations in the model") from error

    def write(folder: Path) -> None:
        (folder / MAP_NAME).write_bytes(encoded)
        shutil.move(files.module, folder / graph.module.file)
        _write_texts(folder, graph, files)
        for name, document in files.documents.items():
            (folder / name).write_bytes(encode_record(document))
        files.keeping.store(folder)

    publish(target, write)
    return Bundle(target, graph, hashlib.sha256(encoded).hexdigest())


def publish(target: Path, write: Callable[[Path], object]) -> None:
    """Write the files of a bundle and give it its name at once; the runs of a bundle that it replaces stay.

    Args:
        target: the bundle; `check_target` has accepted it.
        write: writes the files into an empty folder.

    Raises:
        TargetExists: another program has just written the target.
        TargetUnwritable: the target's folder cannot be written.
    """
    place = link_target(target)
    replaces = os.path.lexists(place)
    if place.name in ("", ".."):  # `.`, `..`: a temporary name next to it needs the folder's real name
        place = place.resolve()
    try:
        with temporary_sibling(place) as folder:
            folder.mkdir()
            write(folder)
            if replaces:
                with moved_away(place) as replaced:
                    folder.rename(place)
                    if (replaced / RUNS_FOLDER).is_dir():  # keep the runs of the old bundle
                        (replaced / RUNS_FOLDER).rename(place / RUNS_FOLDER)
            else:
                rename_into_place(folder, place)
    except FileExistsError as error:
        raise TargetExists(f"{target}: another program has just written it; choose another name") from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error


def check_target(target: Path, *, force: bool) -> None:
    """Reject a target early, while no work is done.

    Raises:
        TargetExists: the target exists and is no bundle; `force` also replaces a damaged bundle.
        TargetUnwritable: its folder does not exist or is not writable.
    """
    if is_standard(target):
        raise TargetUnwritable(f"{target}: a bundle is a folder; pass its name with -o")
    check_name(target)
    if os.path.lexists(target) and not (is_bundle(target) and (force or has_mark(target / MAP_NAME))):
        raise TargetExists(f"{target}: exists and is not a tracemap bundle; remove it, or choose another name")
    check_folder_writable(link_target(target))


def _write_texts(folder: Path, graph: TraceGraph, files: BundleFiles) -> None:
    for below in FOLDERS:
        (folder / below).mkdir()
    for source in graph.sources:
        if text := files.sources.get(source.path):
            _write_text(folder, Path(SOURCE_FOLDER, escape_surrogates(source.path)), text, _last_columns(graph, source))
    for name, text in files.kernels.items():
        _write_text(folder, Path(KERNELS_FOLDER, escape_surrogates(name)), text, {})
    target = Path(KERNELS_FOLDER, CONFIGURED_NAME)
    for configured in files.configured:
        try:
            configured_text = configured.read_bytes().decode()
        except UnicodeDecodeError:  # bytecode
            shutil.move(configured, folder / target)
        else:
            _write_text(folder, target, configured_text, {})


def _write_text(folder: Path, name: Path, text: str, last_columns: Mapping[int, int]) -> None:
    """Write a text to the bundle, and its long literals to their folder."""
    shown, literals = extract_literals(text, last_columns)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(shown.encode(errors="surrogatepass"))
    for literal_name, content in literals.items():
        (folder / LITERALS_FOLDER / literal_name).write_bytes(content)


def _last_columns(graph: TraceGraph, source: SourceFile) -> dict[int, int]:
    """For each line of a text with ops, the column of the last one."""
    columns: dict[int, int] = {}
    for op in graph.ops:
        if op.file == source.name and isinstance(op.line, int) and isinstance(op.column, int):
            columns[op.line] = max(columns.get(op.line, 0), op.column)
    return columns
