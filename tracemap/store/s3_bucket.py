"""Store in an S3 bucket."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from tracemap.core.errors import StoreInvalid, TargetUnwritable, ToolMissing, UsageInvalid
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.store.folder import fault_of, is_listed

if TYPE_CHECKING:
    import duckdb


# ---- filesystem for DuckDB
#
# Byte-range reads of a bucket's files. DuckDB gets exactly the ranges that it asks for, by literal file names.


_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)


class _Ranges(AbstractFileSystem):  # type: ignore[misc] # of a library without types
    """fsspec filesystem for DuckDB. Names are literal and have their protocol; only listed files are read."""

    cachable = False

    def __init__(self, bucket: _Bucket, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol
        self.bucket = bucket

    def glob(self, path: str, **_: Any) -> list[str]:  # noqa: ANN401 - as fsspec has it
        return [path]

    def unstrip_protocol(self, name: str) -> str:
        return name

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ANN401 - as fsspec has it
        return True

    def size(self, path: str) -> int:
        return self.bucket.size(path)

    def modified(self, path: str) -> datetime:
        return _NEVER_CHANGED

    def open(self, path: str, mode: str = "rb", **_: Any) -> _File:  # noqa: ANN401 - as fsspec has it
        if mode != "rb":
            raise io.UnsupportedOperation(f"{path}: is read-only")
        return _File(self, path, cache_type="none", size=self.size(path))


class _File(AbstractBufferedFile):  # type: ignore[misc] # of a library without types
    """A file without read-ahead, since DuckDB asks for whole ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        bucket: _Bucket = self.fs.bucket
        return bucket.read(self.path, start, min(end, self.size))


# ---- bucket
#
# A store in a bucket. A conditional upload creates each file whole; only the first of many writers succeeds.
#
# The S3 packages are imported on use. Their errors have no common base class and carry the server's text, so each is
# reported as one sentence.


_SCHEME: Final = "s3"
_AT_ONCE: Final = 64
"""Concurrent requests."""
_TAIL: Final = 1 << 14
"""Bytes read from a file's end to check it: enough for most footers, and for many whole files."""
_HEAD: Final = 4
_CONNECT_S, _READ_S, _ATTEMPTS = 5, 15, 3
_LONGEST: Final = 300
_OF_THE_FILE: Final = (FileNotFoundError, PermissionError)
"""Errors of a single file. All other errors come from the network or the server."""


class _Bucket:
    """Files below a prefix of a bucket. Methods: see `Place`."""

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
        return False

    def file(self, *parts: str) -> str:
        return "/".join((self._address, *parts))

    def check_there(self, folder: str) -> None:
        if not self.holds(folder):
            raise StoreInvalid(
                f"{self}: is not a store, is empty, or the bucket does not exist; add runs with tracemap store add"
            )

    def holds(self, folder: str) -> bool:
        """Takes a single request."""
        try:
            return bool(self._files.ls(self.file(folder), detail=False, refresh=True))
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._unread(error) from error

    def has(self, file: str) -> bool:
        try:
            return bool(self._files.exists(file))
        except Exception as error:
            raise self._unread(error) from error

    def has_below(self, folder: str, name: str) -> bool:
        return any(file.endswith("/" + name) for file, _ in self._found(folder))

    def faults(self, folder: str) -> Iterator[tuple[str, str]]:
        """Entries that are not files, such as folder markers, are left out."""
        files, batch = self._found(folder), 4 * _AT_ONCE
        for first in range(0, len(files), batch):
            yield from self._faults_of(files[first : first + batch])

    def size(self, file: str) -> int:
        """Size of a listed file in bytes."""
        return self._sizes[file]

    def read(self, file: str, start: int, end: int) -> bytes:
        """Read bytes of a checked file. `check_answers` reports a failure later.

        Raises:
            StoreInvalid: the file has become unreadable, or the server does not answer.
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
        """The file is written locally, then uploaded."""
        with temporary_folder() as folder:
            temporary = folder / file.rpartition("/")[2]
            yield temporary
            self._upload(temporary, file)

    def open_to(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.register_filesystem(_Ranges(self, _SCHEME))

    @contextmanager
    def asked(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Opens its own connection, since a shared one would query this bucket."""
        import duckdb

        with duckdb.connect() as connection:
            self.open_to(connection)
            yield connection

    def check_answers(self) -> None:
        with self._lock:
            trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _found(self, folder: str) -> list[tuple[str, int]]:
        """The Parquet files below a folder with their sizes, sorted by name."""
        try:
            entries = self._files.find(self.file(folder), detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._unread(error) from error
        files = sorted(
            (f"{_SCHEME}://{name}", int(entry["size"]))
            for name, entry in entries.items()
            if entry["type"] == "file" and is_listed(name.rpartition("/")[2])
        )
        self._sizes.update(files)
        return files

    def _faults_of(self, files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str]]:
        # At most two ranges per file, for many files at once.
        tails = [(file, max(0, size - _TAIL), size) for file, size in files if size]
        heads = [(file, 0, _HEAD) for file, start, _ in tails if start]
        ranges = [*tails, *heads]
        data = {key[:2]: part for key, part in zip(ranges, self._ranges(ranges), strict=True)}
        for file, size in files:
            tail = max(0, size - _TAIL)
            parts = {start: data.get((file, start), b"") for start in (0, tail)}
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
        """The bytes of each range, or the error of its file."""
        if not ranges:
            return []
        files, starts, ends = map(list, zip(*ranges, strict=True))
        try:
            parts: list[Any] = self._files.cat_ranges(files, starts, ends, batch_size=_AT_ONCE, on_error="return")
        except Exception as error:
            raise self._unread(error) from error
        for part in parts:
            if isinstance(part, Exception) and not isinstance(part, _OF_THE_FILE):
                raise self._unread(part) from part
        return parts

    def _upload(self, temporary: Path, file: str) -> None:
        try:
            self._files.put_file(str(temporary), file, mode="create")
        except FileExistsError:
            return
        except Exception as error:
            # Another writer was first. Some s3fs releases raise another error than FileExistsError for this.
            if not isinstance(error, OSError) or not self.has(file):
                raise TargetUnwritable(f"{file}: cannot be written: {_first_line(error)}; {_REMEDY}") from error

    def _unread(self, error: Exception, file: str = "") -> StoreInvalid:
        return StoreInvalid(f"{file or self}: cannot be read: {_first_line(error)}; {_REMEDY}")


_REMEDY: Final = "check that the bucket exists, and AWS's settings for endpoint and credentials"


def _first_line(error: Exception) -> str:
    """First line of an error's text, shortened."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:_LONGEST]


def bucket_at(address: str) -> _Bucket:
    """The storage at an address s3://BUCKET/PREFIX. Sends no request yet.

    Raises:
        UsageInvalid: the address is not one of a bucket.
        ToolMissing: the packages that read buckets are not installed.
    """
    scheme, _, rest = address.partition("://")
    path = rest.rstrip("/")
    if scheme.lower() != _SCHEME:
        raise UsageInvalid(f"{address}: a store is a folder or s3://BUCKET/PREFIX, not {scheme}://")
    if not path or path.startswith("/"):
        raise UsageInvalid(f"{address}: has no bucket name; write s3://BUCKET/PREFIX")
    try:
        import fsspec
        import s3fs  # noqa: F401 - fsspec needs it for this scheme
    except ImportError as error:
        raise ToolMissing(f"{address}: S3 support is not installed; run pip install 'tracemap[bucket]'") from error
    retries = {"total_max_attempts": _ATTEMPTS, "mode": "standard"}
    settings = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "max_pool_connections": _AT_ONCE}
    files = fsspec.filesystem(
        _SCHEME, skip_instance_cache=True, use_listings_cache=False, config_kwargs={**settings, "retries": retries}
    )
    # s3fs would repeat requests that botocore has already repeated, and turn seconds into minutes.
    files.retries = 1
    return _Bucket(f"{_SCHEME}://{path}", files)
