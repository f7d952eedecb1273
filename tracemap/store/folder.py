"""A store in a folder, and what stores can do with files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tracemap.errors import StoreInvalid, TargetUnwritable, check_limits
from tracemap.measurements.sql import asked_database
from tracemap.owned.home import beside

if TYPE_CHECKING:
    import duckdb


# ---- places
#
# Where the files of a store may lie, and what is done with them there: listed, looked at, read by DuckDB, added.
#
# `folder.py` and `bucket.py` are the two kinds of places. Files are called by texts, which DuckDB takes as they are.


STORE_VERSION: Final = 1
STORE_KEY: Final = "tracemap-store"
"""The key of the version in the key-value metadata of every file."""
SUFFIX: Final = ".parquet"

_MAGIC: Final = b"PAR1"
_LEAST_FILE: Final = 12
_MOST_FOOTER: Final = 1 << 24


class Place(Protocol):
    """A folder or a bucket's prefix; `str()` of it is what people call it."""

    @property
    def local(self) -> bool:
        """Whether its files have paths on this machine."""

    def file(self, *parts: str) -> str:
        """What a file is called whose name below the place has these parts."""

    def check_there(self, folder: str) -> None:
        """Refuse to read where nothing was ever added below a folder.

        Raises:
            StoreInvalid: nothing was, or it cannot be read.
        """

    def holds(self, folder: str) -> bool:
        """Whether anything was ever added below a folder.

        Raises:
            StoreInvalid: that cannot be told.
        """

    def has(self, file: str) -> bool:
        """Whether a file is there.

        Raises:
            StoreInvalid: that cannot be told.
        """

    def has_below(self, folder: str, name: str) -> bool:
        """Whether a file of this name is there, somewhere below a folder.

        Raises:
            StoreInvalid: that cannot be told.
        """

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """The Parquet files below a folder, by name, each with what `fault_of` says of it.

        Names with a dot in front are of what is not there yet, and left out.

        Raises:
            StoreInvalid: the folder cannot be read.
        """

    def published(self, file: str) -> AbstractContextManager[Path]:
        """A path to write to, which becomes the file when all went well and nobody else was first: what is there stays.

        Raises:
            TargetUnwritable: the file cannot be written.
        """

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let DuckDB read the files by what they are called."""

    def asked(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection for a few questions about the files."""

    def check_answers(self) -> None:
        """Refuse to go on where a file could not be read because the place did not answer: no file is to blame.

        Raises:
            StoreInvalid: that happened since it was asked last.
        """


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a store, which may not be there yet."""

    place: Place
    called: str

    @property
    def name(self) -> str:
        """The last part of what it is called."""
        return self.called.rpartition("/")[2]

    def exists(self) -> bool:
        """Whether it is there."""
        return self.place.has(self.called)

    def published(self) -> AbstractContextManager[Path]:
        """As `Place.published`."""
        return self.place.published(self.called)

    def __str__(self) -> str:
        return self.called


def stem_of(file: str) -> str:
    """What a Parquet file is called, without the folders and the suffix."""
    return file.rpartition("/")[2].removesuffix(SUFFIX)


def is_listed(name: str) -> bool:
    """Whether a file of this name is looked at: others are none of a store's, or not there yet."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def fault_of(size: int, read: Callable[[int, int], bytes]) -> str:
    """What is wrong with a file, by its first bytes and its footer, which says whose it is; "" if nothing is.

    `read(start, length)`: bytes of the file, fewer where it ends.
    """
    if read(0, len(_MAGIC)) != _MAGIC:
        return "is no Parquet file"
    last = read(max(0, size - 2 * len(_MAGIC)), 2 * len(_MAGIC))
    length = int.from_bytes(last[: len(_MAGIC)], "little")
    if size < _LEAST_FILE or not last.endswith(_MAGIC) or length + _LEAST_FILE > size:
        return "is cut off: its end is missing"
    footer = read(size - 2 * len(_MAGIC) - length, min(length, _MOST_FOOTER))
    return "" if STORE_KEY.encode() in footer else "is no file of a store"


# ---- folder
#
# A store in a folder: files get their names by links, which only the first of many writers can make.


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder; it need not be there yet. All as `Place` says."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def local(self) -> bool:
        """As `Place.local`."""
        return True

    def file(self, *parts: str) -> str:
        """As `Place.file`."""
        return str(self.root.joinpath(*parts))

    def check_there(self, folder: str) -> None:
        """As `Place.check_there`."""
        if not self.root.is_dir():
            raise StoreInvalid(f"{self.root}: there is no such folder; tracemap store add makes it with the first run")
        if not self.holds(folder):
            raise StoreInvalid(f"{self.root}: is no store, or an empty one; add runs with tracemap store add")

    def holds(self, folder: str) -> bool:
        """As `Place.holds`."""
        return (self.root / folder).is_dir()

    def has(self, file: str) -> bool:
        """As `Place.has`."""
        return Path(file).exists()

    def has_below(self, folder: str, name: str) -> bool:
        """As `Place.has_below`."""
        return any(True for _ in (self.root / folder).glob(f"*/*/*/{name}"))

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """As `Place.faults`; links to folders are not followed."""
        for name in sorted(_parquet_files(self.root / folder)):
            yield name, _fault_of(name)

    @contextmanager
    def published(self, file: str) -> Iterator[Path]:
        """As `Place.published`."""
        target = Path(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with beside(target) as temporary:
                yield temporary
                _keep(temporary, target)
        except OSError as error:
            raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """As `Place.open_to`: paths are what DuckDB reads anyway."""

    def asked(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """As `Place.asked`."""
        return asked_database()

    def check_answers(self) -> None:
        """As `Place.check_answers`: a folder's files are read, or each says why not."""


def folder_at(root: Path) -> Folder:
    """The place of a folder, whether it is there yet or not.

    Raises:
        StoreInvalid: no folder of this name can be read or made.
    """
    try:
        str(root).encode()
        root.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError as error:
        raise StoreInvalid(f"{root}: the name is not UTF-8, which the database cannot take; choose another") from error
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise StoreInvalid(f"{root}: cannot be read: {said}; choose another name") from error
    return Folder(root)


def _parquet_files(folder: Path) -> Iterator[str]:
    def raised(error: OSError) -> None:
        raise error

    try:
        for place, folders, names in os.walk(folder, onerror=raised):
            folders.sort()
            for name in names:
                if is_listed(name):
                    yield os.path.join(place, name)  # noqa: PTH118 - of ten thousand files paths take longer than reading
    except FileNotFoundError:
        return
    except OSError as error:
        check_limits(error)
        raise StoreInvalid(f"{error.filename}: cannot be read: {error.strerror}; let it be read") from error


def _fault_of(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                return "is no regular file"
            return fault_of(about.st_size, lambda start, length: os.pread(file, length, start))
        finally:
            os.close(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _keep(temporary: Path, target: Path) -> None:
    # A link is made only where nothing has the name: of two writers one is first, and both have written the same.
    with suppress(FileExistsError):
        try:
            os.link(temporary, target)
        except OSError as error:
            if isinstance(error, FileExistsError) or target.exists():
                return
            temporary.rename(target)  # a file system without links: whoever is last wins, with the same content
