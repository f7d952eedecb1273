"""Where the files of a store may lie, and what is done with them there: listed, looked at, read by DuckDB, added.

`folder.py` and `bucket.py` are the two kinds of places. Files are called by texts, which DuckDB takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import duckdb

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
