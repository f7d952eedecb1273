"""Storage of a store: the interface for folders and buckets, and the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tracemap.core.errors import StoreInvalid, TargetUnwritable, check_limits
from tracemap.core.files import FileFormat, format_of_file
from tracemap.core.process.temporary_files import temporary_sibling
from tracemap.runs.sql import query_database

if TYPE_CHECKING:
    import duckdb


# ---- storage
#
# Where a store's files lie: list, check, read with DuckDB, add. The folder below and `s3_bucket.py` implement it.
# Files are named by text, in the form that DuckDB takes.


STORE_VERSION: Final = 2
STORE_KEY: Final = "tracemap-store"
"""Key of the version in the key-value metadata of each file."""
SUFFIX: Final = ".parquet"

_MAGIC: Final = b"PAR1"
_LEAST_FILE: Final = 12
_MOST_FOOTER: Final = 1 << 24


class Place(Protocol):
    """A folder or a prefix of a bucket. `str()` is its name for people."""

    @property
    def local(self) -> bool:
        """Whether its files have local paths."""

    def file(self, *parts: str) -> str:
        """The name of a file, from its parts below the root."""

    def check_there(self, folder: str) -> None:
        """Refuse to read a store to which nothing was ever added.

        Raises:
            StoreInvalid: the folder is empty, or cannot be read.
        """

    def holds(self, folder: str) -> bool:
        """Whether anything was ever added below a folder.

        Raises:
            StoreInvalid: the storage cannot be read.
        """

    def has(self, file: str) -> bool:
        """Whether a file exists.

        Raises:
            StoreInvalid: the storage cannot be read.
        """

    def has_below(self, folder: str, name: str) -> bool:
        """Whether a file of this name exists anywhere below a folder.

        Raises:
            StoreInvalid: the storage cannot be read.
        """

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """The Parquet files below a folder, sorted by name, with the result of `fault_of`.

        Unfinished files, whose names begin with a dot, are left out.

        Raises:
            StoreInvalid: the folder cannot be read.
        """

    def published(self, file: str) -> AbstractContextManager[Path]:
        """A temporary path to write to. On success it becomes the file, unless the file already exists.

        Raises:
            TargetUnwritable: the file cannot be written.
        """

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let DuckDB read the files by their names."""

    def asked(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection for a few queries on the files."""

    def check_answers(self) -> None:
        """Report that the storage did not answer, so that no file is blamed for it.

        Raises:
            StoreInvalid: the storage failed to answer since the last check.
        """


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a store. It may not exist yet."""

    place: Place
    called: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.called.rpartition("/")[2]

    def exists(self) -> bool:
        """Whether the file exists."""
        return self.place.has(self.called)

    def published(self) -> AbstractContextManager[Path]:
        """See `Place.published`."""
        return self.place.published(self.called)

    def __str__(self) -> str:
        return self.called


def stem_of(file: str) -> str:
    """A Parquet file's name without folders and suffix."""
    return file.rpartition("/")[2].removesuffix(SUFFIX)


def is_listed(name: str) -> bool:
    """Whether a name is that of a finished Parquet file."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def fault_of(size: int, read: Callable[[int, int], bytes]) -> str:
    """The fault of a file, by its first bytes and its footer, which holds the store's key; "" if there is none.

    `read(start, length)` returns bytes of the file, fewer at its end.
    """
    if read(0, len(_MAGIC)) != _MAGIC:
        return "is not a Parquet file"
    last = read(max(0, size - 2 * len(_MAGIC)), 2 * len(_MAGIC))
    length = int.from_bytes(last[: len(_MAGIC)], "little")
    if size < _LEAST_FILE or not last.endswith(_MAGIC) or length + _LEAST_FILE > size:
        return "is truncated: its end is missing"
    footer = read(size - 2 * len(_MAGIC) - length, min(length, _MOST_FOOTER))
    key, value = STORE_KEY.encode(), str(STORE_VERSION).encode()
    if key not in footer:
        return "is not a file of a store"
    if key + b"\x18" + bytes([len(value)]) + value not in footer:  # Thrift's compact protocol: the next field, a text
        return (
            f"has another format than version {STORE_VERSION}, which this tracemap reads; add its runs to a new store"
        )
    return ""


# ---- folder
#
# A store in a folder. A hard link gives a file its final name; only the first of many writers succeeds.


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder, which may not exist yet. Methods: see `Place`."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def local(self) -> bool:
        return True

    def file(self, *parts: str) -> str:
        return str(self.root.joinpath(*parts))

    def check_there(self, folder: str) -> None:
        if not self.root.is_dir():
            kind = format_of_file(self.root)
            problem = "no such folder" if kind is None else f"is {kind}, not a store, which is a folder"
            raise StoreInvalid(f"{self.root}: {problem}; tracemap store add creates it with the first run")
        if format_of_file(self.root) is FileFormat.BUNDLE:
            raise StoreInvalid(f"{self.root}: is a bundle, not a store; name the folder of the store")
        if not self.holds(folder):
            raise StoreInvalid(f"{self.root}: is not a store, or is empty; add runs with tracemap store add")

    def holds(self, folder: str) -> bool:
        return (self.root / folder).is_dir()

    def has(self, file: str) -> bool:
        return Path(file).exists()

    def has_below(self, folder: str, name: str) -> bool:
        return any(True for _ in (self.root / folder).glob(f"*/*/*/{name}"))

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """Links to folders are not followed."""
        for name in sorted(_parquet_files(self.root / folder)):
            yield name, _fault_of(name)

    @contextmanager
    def published(self, file: str) -> Iterator[Path]:
        target = Path(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary_sibling(target) as temporary:
                yield temporary
                _keep(temporary, target)
        except OSError as error:
            raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """DuckDB reads local paths anyway."""

    def asked(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return query_database()

    def check_answers(self) -> None:
        """A folder always answers; unreadable files report their own fault."""


def folder_at(root: Path) -> _Folder:
    """The storage in a folder, which may not exist yet.

    Raises:
        StoreInvalid: the folder can neither be read nor created.
    """
    try:
        str(root).encode()
        root.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError as error:
        raise StoreInvalid(f"{root}: the name is not UTF-8, so DuckDB cannot open it; choose another name") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreInvalid(f"{root}: cannot be read: {reason}; choose another name") from error
    return _Folder(root)


def _parquet_files(folder: Path) -> Iterator[str]:
    def reraise(error: OSError) -> None:
        raise error

    try:
        for parent, folders, names in os.walk(folder, onerror=reraise):
            folders.sort()
            for name in names:
                if is_listed(name):
                    yield os.path.join(parent, name)  # noqa: PTH118 - for ten thousand files, Path objects take longer
    except FileNotFoundError:
        return
    except OSError as error:
        check_limits(error)
        raise StoreInvalid(f"{error.filename}: cannot be read: {error.strerror}; grant read permission") from error


def _fault_of(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return "is not a regular file"
            return fault_of(status.st_size, lambda start, length: os.pread(file, length, start))
        finally:
            os.close(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _keep(temporary: Path, target: Path) -> None:
    # link() fails if the name exists. Of two writers the first wins; both have written the same content.
    with suppress(FileExistsError):
        try:
            os.link(temporary, target)
        except OSError as error:
            if isinstance(error, FileExistsError) or target.exists():
                return
            temporary.rename(target)  # a file system without links: the last writer wins, with the same content
