"""A store in a bucket of S3 or alike."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from fsspec import AbstractFileSystem

from tracemap.errors import StoreInvalid, TargetUnwritable, ToolMissing, UsageInvalid
from tracemap.owned.home import temporary_folder
from tracemap.store.folder import fault_of, is_listed

if TYPE_CHECKING:
    import duckdb


# ---- ranges
#
# A bucket's files as DuckDB reads them: by their names as they are, in the ranges that it asks for and no others.


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


# ---- bucket
#
# A store in a bucket: files get their names as they are uploaded whole, which only the first of many writers may do.
#
# What speaks to buckets is imported here, where it is asked for. Its errors have no common base, and texts of servers
# in them: they end in one sentence.


_SCHEME: Final = "s3"
_AT_ONCE: Final = 64
"""Requests that are under way at the same time."""
_TAIL: Final = 1 << 14
"""Bytes at the end of a file that are read to look at it: most footers, and many files."""
_HEAD: Final = 4
_CONNECT_S, _READ_S, _ATTEMPTS = 5, 15, 3
_LONGEST: Final = 300
_OF_THE_FILE: Final = (FileNotFoundError, PermissionError)
"""What is raised of a single file; all else is the network's or the server's."""


class Bucket:
    """What lies below a prefix of a bucket. All as `Place` says."""

    def __init__(self, address: str, files: Any) -> None:  # noqa: ANN401 - of a library without types
        self._address = address
        self._files = files
        self._sizes: dict[str, int] = {}
        self._trouble: StoreInvalid | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._address

    @property
    def local(self) -> bool:
        """As `Place.local`."""
        return False

    def file(self, *parts: str) -> str:
        """As `Place.file`."""
        return "/".join((self._address, *parts))

    def check_there(self, folder: str) -> None:
        """As `Place.check_there`."""
        if not self.holds(folder):
            raise StoreInvalid(
                f"{self}: is no store, or an empty one, or there is no such bucket; add runs with tracemap store add"
            )

    def holds(self, folder: str) -> bool:
        """As `Place.holds`: one request, however much there is."""
        try:
            return bool(self._files.ls(self.file(folder), detail=False, refresh=True))
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._unread(error) from error

    def has(self, file: str) -> bool:
        """As `Place.has`."""
        try:
            return bool(self._files.exists(file))
        except Exception as error:
            raise self._unread(error) from error

    def has_below(self, folder: str, name: str) -> bool:
        """As `Place.has_below`."""
        return any(file.endswith("/" + name) for file, _ in self._found(folder))

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """As `Place.faults`; what is no file to others, such as the mark of a folder, is left out."""
        found, some = self._found(folder), 4 * _AT_ONCE
        for first in range(0, len(found), some):
            yield from self._faults_of(found[first : first + some])

    def size(self, file: str) -> int:
        """Bytes of a file that was listed."""
        return self._sizes[file]

    def read(self, file: str, start: int, end: int) -> bytes:
        """Some bytes of a file that was looked at before: why that fails now is kept in mind for `check_answers`.

        Raises:
            StoreInvalid: the file cannot be read any more, or the server does not answer.
        """
        try:
            return bytes(self._files.cat_file(file, start=start, end=end)) if end > start else b""
        except Exception as error:
            trouble = self._unread(error, file)
            with self._lock:
                self._trouble = trouble
            raise trouble from error

    @contextmanager
    def published(self, file: str) -> Iterator[Path]:
        """As `Place.published`: written on this machine, then uploaded."""
        with temporary_folder() as folder:
            temporary = folder / file.rpartition("/")[2]
            yield temporary
            self._upload(temporary, file)

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        """As `Place.open_to`."""
        connection.register_filesystem(Ranges(self, _SCHEME))

    @contextmanager
    def asked(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """As `Place.asked`: no other place's connection, which would ask this one."""
        import duckdb

        with duckdb.connect() as connection:
            self.open_to(connection)
            yield connection

    def check_answers(self) -> None:
        """As `Place.check_answers`."""
        with self._lock:
            trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _found(self, folder: str) -> list[tuple[str, int]]:
        """The Parquet files below a folder and their sizes, by name."""
        try:
            listed = self._files.find(self.file(folder), detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._unread(error) from error
        found = sorted(
            (f"{_SCHEME}://{name}", int(about["size"]))
            for name, about in listed.items()
            if about["type"] == "file" and is_listed(name.rpartition("/")[2])
        )
        self._sizes.update(found)
        return found

    def _faults_of(self, files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str]]:
        # Two ranges of each file at most, of many files at once.
        ends = [(file, max(0, size - _TAIL), size) for file, size in files if size]
        heads = [(file, 0, _HEAD) for file, start, _ in ends if start]
        wanted = [*ends, *heads]
        held = {key[:2]: part for key, part in zip(wanted, self._ranges(wanted), strict=True)}
        for file, size in files:
            tail = max(0, size - _TAIL)
            parts = {start: held.get((file, start), b"") for start in (0, tail)}
            errors = [part for part in parts.values() if isinstance(part, Exception)]
            yield file, f"cannot be read: {_first_line(errors[0])}" if errors else self._fault(file, size, parts)

    def _fault(self, file: str, size: int, parts: dict[int, Any]) -> str:
        def read(start: int, length: int) -> bytes:
            for begin, part in parts.items():
                if begin <= start and start + length <= begin + len(part):
                    return bytes(part[start - begin :][:length])
            return self.read(file, start, min(start + length, size))

        return fault_of(size, read)

    def _ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Any]:
        """The bytes of ranges, or why a file has none."""
        if not ranges:
            return []
        files, starts, ends = map(list, zip(*ranges, strict=True))
        try:
            found: list[Any] = self._files.cat_ranges(files, starts, ends, batch_size=_AT_ONCE, on_error="return")
        except Exception as error:
            raise self._unread(error) from error
        for each in found:
            if isinstance(each, Exception) and not isinstance(each, _OF_THE_FILE):
                raise self._unread(each) from each
        return found

    def _upload(self, temporary: Path, file: str) -> None:
        try:
            self._files.put_file(str(temporary), file, mode="create")
        except FileExistsError:
            return
        except Exception as error:
            # Of two writers one is first; not every release says of the other what it is.
            if not isinstance(error, OSError) or not self.has(file):
                raise TargetUnwritable(f"{file}: cannot be written: {_first_line(error)}; {_REMEDY}") from error

    def _unread(self, error: Exception, file: str = "") -> StoreInvalid:
        return StoreInvalid(f"{file or self}: cannot be read: {_first_line(error)}; {_REMEDY}")


_REMEDY: Final = "see that the bucket is there, and what AWS's variables and files say of its server and your key"


def _first_line(error: Exception) -> str:
    """What a library or a server says of an error."""
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".")[:_LONGEST]


def bucket_at(address: str) -> Bucket:
    """The place at an address, s3://BUCKET/PREFIX; nothing is asked of it yet.

    Raises:
        UsageInvalid: it is the address of no bucket.
        ToolMissing: what reads buckets is not installed.
    """
    scheme, _, rest = address.partition("://")
    path = rest.rstrip("/")
    if scheme.lower() != _SCHEME:
        raise UsageInvalid(f"{address}: stores lie in folders and at s3://BUCKET/PREFIX, not at {scheme}://")
    if not path or path.startswith("/"):
        raise UsageInvalid(f"{address}: names no bucket; write s3://BUCKET/PREFIX")
    try:
        import fsspec
        import s3fs  # noqa: F401 - what fsspec needs for this scheme
    except ImportError as error:
        raise ToolMissing(f"{address}: what reads buckets is not installed: pip install 'tracemap[bucket]'") from error
    retries = {"total_max_attempts": _ATTEMPTS, "mode": "standard"}
    settings = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "max_pool_connections": _AT_ONCE}
    files = fsspec.filesystem(
        _SCHEME, skip_instance_cache=True, use_listings_cache=False, config_kwargs={**settings, "retries": retries}
    )
    # It tries each request again that was tried again already: seconds would be minutes.
    files.retries = 1
    return Bucket(f"{_SCHEME}://{path}", files)
