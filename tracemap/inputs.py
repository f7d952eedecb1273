"""Reading of input files, such that no input blocks a command or never ends.

Inputs in a bundle or next to a run must be files. Inputs that a user names may also be pipes (`<(zcat model.mlir.gz)`,
or a named pipe that has a writer) or standard input, `-`. Devices are rejected, since they may have no end.
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
"""Seconds to wait for a writer of a named pipe. Once it has opened the pipe, it may take any time."""
_CHUNK = 1 << 20
_POLL_S = 0.05


@contextmanager
def opened(path: Path, kind: type[TracemapError]) -> Iterator[BinaryIO]:
    """Open a file for reading; raise an error of this kind if it is not a file or cannot be read."""
    with _readable(str(path), kind):
        check_is_file(path, kind)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            ready = select.poll()
            ready.register(file, select.POLLIN)
            if not ready.poll(0):  # some files in /proc have data only now and then
                raise kind(f"{path}: has no data to read, like an idle device or pipe; name a file")
            yield file


def stored_bytes(path: Path, kind: type[TracemapError]) -> bytes:
    """Content of a file; an error of this kind if it is not a file, cannot be read, or is too large for the memory."""
    with opened(path, kind) as file:
        return _read_all(file, str(path), kind)


def check_is_file(path: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind unless the path is a regular file: no pipe, device or folder."""
    with _readable(str(path), kind):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise kind(f"{path}: is {_kind_of(mode)}, not a file")


def check_within(path: Path, folder: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind if a link leads out of a folder. The folder itself may be reached by a link."""
    # A name with a NUL, or a folder that a build has just replaced: opening the file fails later.
    with suppress(ValueError, FileNotFoundError):
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise kind(f"{path}: is a link that leads out of {folder}; replace it with a copy of the file")


def given_bytes(name: str, kind: type[TracemapError]) -> bytes:
    """Content of a file or pipe that a user named; `-`: standard input."""
    with _readable(said_of(name), kind), _open_given(name, kind) as file:
        return _read_all(file, said_of(name), kind)


def is_file(name: str) -> bool:
    """Whether a user's input is a file or does not exist; False for pipes and standard input, which read only once."""
    if name == STANDARD_INPUT:
        return False
    return names_file(name) or not os.path.exists(name)  # noqa: PTH110 - as below


def names_file(name: str | Path) -> bool:
    """Whether a file with this name exists; the name may be any text, even one that is too long for a file."""
    return os.path.isfile(name)  # noqa: PTH113 - Path.is_file raises OSError for names that are too long


def copy_given(name: str, target: Path, kind: type[TracemapError]) -> None:
    """Copy the data of a pipe that a user named, or of standard input, to a file."""
    with _readable(said_of(name), kind), _open_given(name, kind) as file, target.open("wb") as copy:
        most = shutil.disk_usage(target.parent).free // 2
        while chunk := file.read(_CHUNK):
            copy.write(chunk)
            if copy.tell() > most:
                raise kind(f"{said_of(name)}: has more data than fits into {target.parent}; write it to a file first")


def said_of(name: str) -> str:
    """Name of a user's input in messages."""
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _readable(name: str, kind: type[TracemapError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        check_limits(error)  # while copying, the disk may be full
        raise kind(f"{name}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a NUL
        raise kind(f"{name}: cannot be read: {error}") from error


@contextmanager
def _open_given(name: str, kind: type[TracemapError]) -> Iterator[IO[bytes]]:
    with nullcontext(sys.stdin.buffer) if name == STANDARD_INPUT else _open_input(name, kind) as file:
        status = os.fstat(file.fileno())
        ends = stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        if not (ends or file.isatty() or status.st_rdev == Path(os.devnull).stat().st_rdev):
            raise kind(f"{said_of(name)}: is {_kind_of(status.st_mode)}; name a file or a pipe")
        yield file


def _open_input(name: str, kind: type[TracemapError]) -> IO[bytes]:
    path = Path(name)
    # Pipes of `<(…)` have no path of their own; their writer has opened them already.
    if not (path.is_fifo() and path.resolve().exists()):
        return path.open("rb")
    return io.BufferedReader(_NamedPipe(path, kind))


class _NamedPipe(io.RawIOBase):
    """A named pipe, opened without blocking: a plain open would wait for a writer without limit."""

    def __init__(self, path: Path, kind: type[TracemapError]) -> None:
        self._path, self._kind = path, kind
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._deadline = time.monotonic() + WRITER_S
        self._has_writer = False
        self._waiting = select.poll()  # `select` supports only file descriptors below 1,024
        self._waiting.register(self._file, select.POLLIN)

    def fileno(self) -> int:
        return self._file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while True:
            try:
                count = os.readv(self._file, [buffer])
            except BlockingIOError:  # only a pipe with a writer raises this
                self._has_writer = True
                self._waiting.poll()
                continue
            self._has_writer |= count > 0
            if self._has_writer:
                return count
            if time.monotonic() > self._deadline:
                raise self._kind(
                    f"{self._path}: is a pipe that no program has opened for writing within {WRITER_S} seconds; "
                    "start its writer first"
                )
            time.sleep(_POLL_S)

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def _read_all(file: IO[bytes], name: str, kind: type[TracemapError]) -> bytes:
    most, size, read = free_memory() // 2, os.fstat(file.fileno()).st_size, 0
    chunks: list[bytes] = []
    while size <= most and (chunk := file.read(max(_CHUNK, size - read + 1))):
        chunks.append(chunk)
        read += len(chunk)
        size = max(size, read)
    if size > most:
        raise kind(f"{name}: is larger than half of the free memory, {most // 1_000_000:,} MB")
    return b"".join(chunks)


def _kind_of(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
