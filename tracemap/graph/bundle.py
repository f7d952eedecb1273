"""The bundle on disk: `model.tracemap/`, a folder like a debug-symbol bundle.

    map.json       the trace graph
    module.vmfb    the compiled module
    source/        the model, and the Python files that its frames name
    kernels/       the final IR of each kernel, one op a line; and all of them, to be compiled again
    runs/          runs that were recorded without another target

A bundle is written to a temporary name beside its target and renamed: it is there whole, or not at all.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracemap.codec import OtherVersion, decode_document, storable
from tracemap.codec import encode as encode_record
from tracemap.errors import BundleInvalid, BundleVersion, TargetExists, TargetUnwritable
from tracemap.graph.model import MAP_VERSION, SourceFile, TraceGraph
from tracemap.graph.program import Kernel
from tracemap.graph.references import check_references
from tracemap.outputs import check_folder_of
from tracemap.units import UNKNOWN

SUFFIX = ".tracemap"
MAP_NAME = "map.json"
MODULE_NAME = "module.vmfb"
SOURCE_FOLDER = "source"
KERNELS_FOLDER = "kernels"
CONFIGURED_NAME = "configured.mlir"
RUNS_FOLDER = "runs"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: its folder, its graph, and the SHA-256 of its `map.json`, which names it in reports."""

    path: Path
    graph: TraceGraph
    map_sha256: str

    @property
    def module_path(self) -> Path:
        """The compiled module."""
        return self.path / MODULE_NAME

    @property
    def runs_path(self) -> Path:
        """Where runs go that were given no other target."""
        return self.path / RUNS_FOLDER

    @property
    def configured_path(self) -> Path:
        """The module before code generation, as text or bytecode; its debug lines are lines of the kernels' texts."""
        return self.path / KERNELS_FOLDER / CONFIGURED_NAME

    def source_text(self, source: SourceFile) -> str:
        """The text of a source file, "" where the bundle was built without texts.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.
        """
        return self._text(SOURCE_FOLDER, source.path)

    def kernel_text(self, kernel: Kernel) -> str:
        """The final IR of a kernel, "" where it is not kept.

        Raises:
            BundleInvalid: the map names a path outside of the bundle, or the file cannot be read.
        """
        return self._text(KERNELS_FOLDER, str(kernel.text)) if kernel.text is not UNKNOWN else ""

    def _text(self, below: str, name: str) -> str:
        folder = (self.path / below).resolve()
        try:
            path = (folder / storable(name)).resolve()
            if not path.is_relative_to(folder):
                raise BundleInvalid(f"{self.path}: the map names a text outside of the bundle: {name}")
            with path.open(encoding="utf-8", errors="replace", newline="") as file:  # keep line ends as they are
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError, RuntimeError) as error:  # also a zero byte in the name, links in a circle
            said = error.strerror if isinstance(error, OSError) else error
            raise BundleInvalid(f"{self.path}: the text {name[:80]!r} cannot be read: {said}") from error


@dataclass(frozen=True, slots=True)
class Files:
    """What goes into a bundle beside its map; `module` and `configured` are moved into it.

    `sources`: texts by their path below `source/`; `kernels`: texts by their name in `kernels/`; `configured`: the
    kernels as bytecode, where there is one.
    """

    module: Path
    sources: Mapping[str, str]
    kernels: Mapping[str, str] = field(default_factory=dict)
    configured: tuple[Path, ...] = ()


def store(target: Path, graph: TraceGraph, files: Files, *, force: bool) -> Bundle:
    """Write a bundle.

    Raises:
        TargetExists: there is something at the target already, and `force` is not set (or it is not a bundle).
        TargetUnwritable: the target's folder cannot be written.
    """
    check_target(target, force=force)
    encoded = encode(graph)
    prefix = f".{target.name}."
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as made:
            folder = Path(made)
            folder.chmod(0o755)
            (folder / MAP_NAME).write_bytes(encoded)
            shutil.move(files.module, folder / MODULE_NAME)
            _write_texts(folder / SOURCE_FOLDER, files.sources)
            _write_texts(folder / KERNELS_FOLDER, files.kernels)
            for configured in files.configured:
                shutil.move(configured, folder / KERNELS_FOLDER / CONFIGURED_NAME)
            (folder / RUNS_FOLDER).mkdir()
            _replace(folder, target)
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error
    return Bundle(target, graph, hashlib.sha256(encoded).hexdigest())


def encode(graph: TraceGraph) -> bytes:
    """`map.json` of a graph: the same bytes for the same graph."""
    return encode_record(graph) + b"\n"


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target before any work is done.

    Raises:
        TargetExists: there is something already; with `force` only a bundle is replaced, never another folder or file.
        TargetUnwritable: its folder does not exist or may not be written.
    """
    if target.exists() or target.is_symlink():
        if not force:
            raise TargetExists(f"{target} exists already; pass --force to replace it, or another name with -o")
        if not is_bundle(target):
            raise TargetExists(
                f"{target} exists and is not a bundle of tracemap; remove it, or pass another name with -o"
            )
    check_folder_of(target)


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir()
    for name, text in texts.items():
        path = folder / storable(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(errors="surrogatepass"))


def _replace(folder: Path, target: Path) -> None:
    """Rename the finished folder to the target; a bundle that was there keeps existing until then."""
    old = folder.with_name(folder.name + ".old")
    if target.exists():
        target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def is_bundle(path: Path) -> bool:
    """Whether a folder looks like a bundle; a path that no file system takes, as of a damaged header, is none."""
    try:
        return (path / MAP_NAME).is_file()
    except OSError:
        return False


def load(path: Path) -> Bundle:
    """Open a bundle.

    Raises:
        BundleInvalid: it is not a bundle, or its map is damaged.
        BundleVersion: it was written in another format version.
    """
    file = path / MAP_NAME
    try:
        encoded = file.read_bytes()
    except OSError as error:
        raise BundleInvalid(f"{path}: not a bundle of tracemap ({MAP_NAME}: {error.strerror})") from error
    try:
        graph = decode_document(encoded, TraceGraph)
        check_references(graph)
    except OtherVersion as error:
        said = f"is of version {error.version}; this tracemap reads version {MAP_VERSION}"
        raise BundleVersion(f"{file}: {said}; build the bundle again") from error
    except ValueError as error:
        raise BundleInvalid(f"{file}: damaged ({error}); build the bundle again") from error
    return Bundle(path, graph, hashlib.sha256(encoded).hexdigest())
