"""A bucket's files as DuckDB reads them: by their names as they are, in the ranges that it asks for and no others."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from fsspec import AbstractFileSystem

_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Source(Protocol):
    """Where the bytes come from."""

    def size(self, file: str) -> int:
        """Bytes of a file."""

    def read(self, file: str, start: int, end: int) -> bytes:
        """Some bytes of a file."""


class Ranges(AbstractFileSystem):  # type: ignore[misc] # of a library without types
    """What DuckDB asks of a filesystem. A name with stars in it is a name: here is no pattern of others."""

    cachable = False

    def __init__(self, source: Source, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol
        self._source = source

    def glob(self, path: str, **_: Any) -> list[str]:  # noqa: ANN401 - as fsspec has it
        """The file of this name."""
        return [path]

    def unstrip_protocol(self, name: str) -> str:
        """Names have their protocol always."""
        return name

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ANN401 - as fsspec has it
        """Files are read that were listed."""
        return True

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return self._source.size(path)

    def modified(self, path: str) -> datetime:
        """A store's files never change."""
        return _NEVER_CHANGED

    def open(self, path: str, mode: str = "rb", **_: Any) -> _File:  # noqa: ANN401 - as fsspec has it
        """A file to read."""
        if mode != "rb":
            raise io.UnsupportedOperation(f"{path}: is only read")
        return _File(self._source, path)


class _File(io.RawIOBase):
    """A file of which nothing is read ahead: DuckDB asks for whole parts."""

    def __init__(self, source: Source, path: str) -> None:
        super().__init__()
        self._source, self._path, self._place = source, path, 0

    def read(self, size: int = -1) -> bytes:
        """Bytes from the present place on."""
        whole = self._source.size(self._path)
        end = whole if size < 0 else min(whole, self._place + size)
        found = self._source.read(self._path, self._place, end)
        self._place += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._source.size(self._path)}[whence]
        self._place = begin + offset
        return self._place

    def tell(self) -> int:
        """The present place."""
        return self._place

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True
