"""Bundles of earlier builds, found by the content of everything that a build depends on."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from tracemap._version import __version__
from tracemap.core.errors import BundleInvalid, TracemapError
from tracemap.core.process.temporary_files import rename_into_place, temporary_sibling
from tracemap.map.build.compiler.compilation import OUTPUT_FLAG_PREFIXES, Compiler
from tracemap.map.bundle import FOLDERS, RUNS_FOLDER, Bundle, load, publish
from tracemap.map.bundle_documents import CallToKeep

FOLDER_VARIABLE: Final = "TRACEMAP_CACHE_DIR"
"""The environment variable that names the folder of the cache; empty: nothing is kept."""
_MOST_BYTES: Final = 2 << 30
"""The limit for all entries together. If it is exceeded, the least recently used ones are removed."""
_MOST_BYTES_OF_ONE: Final = _MOST_BYTES // 4
_BUNDLE, _CONTENT = "bundle", "content.json"
_COMPILER_VARIABLES: Final = ("IREE_", "CUDA_", "HIP_", "ROCM_")
_WRITES: Final = re.compile(
    r"-(?:artifacts|dot\w*|dump|export|graph|keep|listing|output|print|remarks|reproducer|splat|stat(?:s|istics)|time|timing"
    r"|track|trace|view|write)(?:-|$)"
)
"""In the names of flags that make the compiler write more than the module."""
_RUNS: Final = ("--iree-hal-preprocess-executables-with", "--iree-llvmcpu-link-embedded")
"""Flags for which programs run that the flag does not name as a file."""
_SEPARATORS: Final = re.compile(r"[=,;:\s]+")
"""Characters between the names of files, or after a scope, in the values of flags."""
_EXTERNAL_CODE: Final = b"executable.object"
"""In models that link files, which the compiler searches in several folders."""


class Sources(msgspec.Struct, frozen=True):
    """The names of Python files in a model's locations, and the SHA-256 of each text that was found."""

    names: tuple[str, ...] = ()
    digests: dict[str, str] = {}

    @classmethod
    def of(cls, names: Collection[str], texts: Mapping[str, str]) -> Sources:
        """The record of the texts that were found for some names."""
        digests = {name: _digest([text.encode(errors="surrogatepass")]) for name, text in sorted(texts.items())}
        return cls(tuple(sorted(names)), digests)


class _Content(msgspec.Struct, frozen=True):
    """An entry's content: the Python files of its build, and the SHA-256 of the bundle's files by their paths."""

    sources: Sources
    files: dict[str, str]


def cache_folder() -> Path | None:
    """The folder of the cache; None if there shall be none."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # there is no home
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tracemap"
    return None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The place of one build's bundle in the cache, whether it is there or not."""

    folder: Path

    def restore(self, target: Path, texts_of: Callable[[Collection[str]], Mapping[str, str]]) -> Bundle | None:
        """Copy the bundle to a target; None if that is impossible, or if its Python files have changed.

        Other programs may remove files of the entry meanwhile, so the copies are checked before they get their name.

        Args:
            target: the new bundle; `check_target` has accepted it.
            texts_of: finds the texts of Python files by their names.
        """
        bundle = self.folder / _BUNDLE

        def copy(folder: Path) -> None:
            for path in _files_in(bundle):
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle / path, place)
            if _digests(folder) != content.files:
                raise BundleInvalid(f"{bundle}: files are missing or have changed")
            for below in FOLDERS:
                (folder / below).mkdir(exist_ok=True)

        try:
            content = msgspec.json.decode((self.folder / _CONTENT).read_bytes(), type=_Content)
            sources = content.sources
            if Sources.of(sources.names, texts_of(sources.names)) != sources:
                return None
            kept = load(bundle)
            os.utime(self.folder)
            publish(target, copy)
        except (OSError, msgspec.MsgspecError, TracemapError):  # a target that cannot be written is reported later
            return None
        return replace(kept, path=target)

    def keep(self, bundle: Bundle, sources: Sources) -> None:
        """Copy a new bundle to the cache. Nothing happens if that is impossible, since the bundle is there anyway."""
        with suppress(OSError, BundleInvalid):
            if _size(bundle.path) > _MOST_BYTES_OF_ONE:
                return
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            with temporary_sibling(self.folder) as folder:
                shutil.copytree(bundle.path, folder / _BUNDLE, ignore=shutil.ignore_patterns(RUNS_FOLDER))
                (folder / _BUNDLE / RUNS_FOLDER).mkdir()
                content = _Content(sources, _digests(folder / _BUNDLE))
                (folder / _CONTENT).write_bytes(msgspec.json.encode(content))
                with suppress(FileExistsError):  # another build has just kept the same
                    rename_into_place(folder, self.folder)
            _remove_oldest(self.folder.parent)


def find_entry(compiler: Compiler, model: bytes, settings: Sequence[object], keeping: CallToKeep) -> CacheEntry | None:
    """The place of a build's bundle; None if the cache is off, or the build depends on unknown files.

    Args:
        compiler: the compiler with all its flags.
        model: the model's content.
        settings: what else decides the bundle's content, as values with a complete `repr`.
        keeping: the inputs and parameters that come with the model.
    """
    folder = cache_folder()
    if folder is None or _EXTERNAL_CODE in model:
        return None
    parts = [__version__.encode(), _own_code(), _host(), model, repr(tuple(settings)).encode(errors="surrogatepass")]
    try:
        parts += [*_compiler(compiler), *_flags(compiler.flags), *_kept(keeping)]
    except OSError:
        return None
    return CacheEntry(folder / "builds" / _digest(parts))


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _stamp(path: Path) -> bytes:
    """A file's path, size and time of change, for files that are too large to read each time."""
    status = path.stat()
    return f"{path}:{status.st_size}:{status.st_mtime_ns}".encode(errors="surrogateescape")


@cache
def _own_code() -> bytes:
    """A digest of tracemap's own files, which decide what a bundle says."""
    package = Path(__file__).parents[2]
    return _digest([_stamp(file) for file in sorted(package.rglob("*.py"))]).encode()


@cache
def _host() -> bytes:
    """The processor, since the compiler generates code for it."""
    kinds = ("model name", "flags", "CPU part", "Features")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
        return "\n".join([platform.machine(), *(line for line in lines if line.startswith(kinds))]).encode()
    return platform.platform().encode()


def _compiler(compiler: Compiler) -> Iterator[bytes]:
    yield _stamp(compiler.program.resolve())
    library = compiler.program.with_name("libIREECompiler.so")
    if library.exists():
        yield _stamp(library.resolve())
    for name, value in sorted(os.environ.items()):
        if name.startswith(_COMPILER_VARIABLES):
            yield f"{name}={value}".encode(errors="surrogateescape")


def _flags(flags: Sequence[str]) -> Iterator[bytes]:
    """The flags, with the content of files that they name.

    Raises:
        OSError: a flag names a folder, or makes the compiler write files.
    """
    for flag in flags:
        yield flag.encode(errors="surrogateescape")
        name, _, value = flag.partition("=")
        if flag.startswith("-") and (name in _RUNS or name.startswith(OUTPUT_FLAG_PREFIXES) or _WRITES.search(name)):
            raise IsADirectoryError
        # The whole value may be a name, too, if that contains separators.
        for path in map(Path, dict.fromkeys((value or flag, *_SEPARATORS.split(value or flag)))):
            if path.is_file():
                yield path.read_bytes()
            elif path.name and path.is_dir():
                raise IsADirectoryError


def _kept(keeping: CallToKeep) -> Iterator[bytes]:
    references = [(scope, str(path.absolute())) for scope, path in keeping.references]
    yield repr((keeping.function, references)).encode(errors="surrogatepass")
    for name, values in keeping.inputs:
        yield repr((name, values.shape, values.dtype.str)).encode(errors="surrogatepass")
        yield values.tobytes()
    for scope, path in keeping.parameters:
        if path.stat().st_size > _MOST_BYTES_OF_ONE:
            raise OSError
        yield scope.encode(errors="surrogatepass")
        yield path.read_bytes()


def _files_in(folder: Path) -> list[Path]:
    """The paths of a folder's files, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in _files_in(folder):
        with (folder / path).open("rb") as file:
            digests[path.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _remove_oldest(folder: Path) -> None:
    entries = sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=_last_used)
    sizes = [_size(entry) for entry in entries]
    excess = sum(sizes) - _MOST_BYTES
    for entry, size in zip(entries, sizes, strict=True):
        if excess <= 0:
            break
        shutil.rmtree(entry, ignore_errors=True)
        excess -= size


def _last_used(entry: Path) -> int:
    return entry.stat().st_mtime_ns
