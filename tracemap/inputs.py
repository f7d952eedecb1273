"""What is read: files that others made are opened here, so that none of them keeps a command waiting or has no end.

What lies in a bundle or beside a run is a file. What a user names may be a pipe as well (`<(zcat model.mlir.gz)`, or a
named one, once somebody writes to it) or standard input, `-`; devices have no end, or none that anybody knows.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final

from tracemap.errors import TracemapError, check_limits
from tracemap.memory import free_memory

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT: Final = "-"
WRITER_S: Final = 5
"""Within which somebody has to open a named pipe to write to it; whoever has may then take any time."""
_CHUNK = 1 << 20
_LOOK_S = 0.05


@contextmanager
def opened(path: Path, kind: type[TracemapError]) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; errors of this kind where it is none, or cannot be read to where it is wanted."""
    with _told(str(path), kind):
        check_is_file(path, kind)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            ready = select.poll()
            ready.register(file, select.POLLIN)
            if not ready.poll(0):  # some files of /proc give something now and then
                raise kind(f"{path}: gives nothing to read, as a device or a pipe may; name a file")
            yield file


def stored_bytes(path: Path, kind: type[TracemapError]) -> bytes:
    """All that a file holds; an error of this kind where it is none, cannot be read, or is too large for the memory."""
    with opened(path, kind) as file:
        return _all_of(file, str(path), kind)


def check_is_file(path: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind unless there is a file, and not a pipe, a device or a folder."""
    with _told(str(path), kind):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise kind(f"{path}: is {_what(mode)}, not a file")


def check_within(path: Path, folder: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind where a link leads out of a folder, which may be reached by one; all else passes."""
    # Of a name with a NUL, and in a folder that a build has just put another in the place of, nothing can be opened.
    with suppress(ValueError, FileNotFoundError):
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise kind(f"{path}: is a link that leads out of {folder}; put what it leads to in its place")


def given_bytes(name: str, kind: type[TracemapError]) -> bytes:
    """All that is in a file or comes through a pipe that a user named; `-`: standard input."""
    with _told(said_of(name), kind), _given(name, kind) as file:
        return _all_of(file, said_of(name), kind)


def is_file(name: str) -> bool:
    """Whether what a user named is a file, or is not there; not a pipe or standard input, which are read only once."""
    if name == STANDARD_INPUT:
        return False
    return names_file(name) or not os.path.exists(name)  # noqa: PTH110 - as below


def names_file(name: str | Path) -> bool:
    """Whether there is a file of a name that may be any text: one that is too long for a file names none."""
    return os.path.isfile(name)  # noqa: PTH113 - paths raise where a name is too long


def copy_given(name: str, target: Path, kind: type[TracemapError]) -> None:
    """Write what comes through a pipe that a user named, or through standard input, to a file."""
    with _told(said_of(name), kind), _given(name, kind) as file, target.open("wb") as copy:
        most = shutil.disk_usage(target.parent).free // 2
        while chunk := file.read(_CHUNK):
            copy.write(chunk)
            if copy.tell() > most:
                raise kind(f"{said_of(name)}: holds more than fits into {target.parent}; write it to a file first")


def said_of(name: str) -> str:
    """What a user's input is called in messages."""
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _told(name: str, kind: type[TracemapError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        check_limits(error)  # of a copy, it may be a disk that is full
        raise kind(f"{name}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a NUL
        raise kind(f"{name}: cannot be read: {error}") from error


@contextmanager
def _given(name: str, kind: type[TracemapError]) -> Iterator[IO[bytes]]:
    with nullcontext(sys.stdin.buffer) if name == STANDARD_INPUT else _begun(name, kind) as file:
        found = os.fstat(file.fileno())
        ends = stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)
        if not (ends or file.isatty() or found.st_rdev == Path(os.devnull).stat().st_rdev):
            raise kind(f"{said_of(name)}: is {_what(found.st_mode)}; name a file, or a pipe")
        yield file


def _begun(name: str, kind: type[TracemapError]) -> IO[bytes]:
    path = Path(name)
    # The pipes of `<(…)` have no name of their own; their writer is there from the beginning, or was.
    if not (path.is_fifo() and path.resolve().exists()):
        return path.open("rb")
    return io.BufferedReader(_NamedPipe(path, kind))


class _NamedPipe(io.RawIOBase):
    """A pipe that is opened at once; to open it as files are would wait for a writer, however long there is none."""

    def __init__(self, path: Path, kind: type[TracemapError]) -> None:
        self._path, self._kind = path, kind
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._deadline = time.monotonic() + WRITER_S
        self._has_writer = False
        self._waiting = select.poll()  # `select` knows no file behind the first 1,024 of a process
        self._waiting.register(self._file, select.POLLIN)

    def fileno(self) -> int:
        return self._file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while True:
            try:
                count = os.readv(self._file, [buffer])
            except BlockingIOError:  # what says that there is a writer
                self._has_writer = True
                self._waiting.poll()
                continue
            self._has_writer |= count > 0
            if self._has_writer:
                return count
            if time.monotonic() > self._deadline:
                raise self._kind(f"{self._path}: is a pipe that nobody has written to for {WRITER_S} seconds")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def _all_of(file: IO[bytes], name: str, kind: type[TracemapError]) -> bytes:
    most, size, read = free_memory() // 2, os.fstat(file.fileno()).st_size, 0
    chunks: list[bytes] = []
    while size <= most and (chunk := file.read(max(_CHUNK, size - read + 1))):
        chunks.append(chunk)
        read += len(chunk)
        size = max(size, read)
    if size > most:
        raise kind(f"{name}: holds more than half of the free memory, {most // 1_000_000:,} MB")
    return b"".join(chunks)


def _what(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
