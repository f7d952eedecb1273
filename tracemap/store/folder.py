"""A store in a folder: files get their names by links, which only the first of many writers can make."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap.errors import StoreInvalid, TargetUnwritable, check_limits
from tracemap.measurements.sql import asked_database
from tracemap.owned.home import beside
from tracemap.store.places import fault_of, is_listed

if TYPE_CHECKING:
    import duckdb


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
