"""Files of users: inputs read whole; outputs written whole or not at all."""

from __future__ import annotations

import enum
import errno
import io
import os
import re
import select
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, BinaryIO, Final, TextIO

from tracemap.core.errors import (
    TargetExists,
    TargetUnwritable,
    TracemapError,
    UsageInvalid,
    force_option,
    raising_unreadable,
)
from tracemap.core.process.limits import free_memory
from tracemap.core.process.temporary_files import temporary_folder, temporary_sibling
from tracemap.core.sanitize import lines_for_terminal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# ---- inputs
#
# Reading of input files, such that no input blocks a command or never ends.
#
# Inputs in a bundle or next to a run must be files. Inputs that a user names may also be pipes (`<(zcat
# model.mlir.gz)`, or a named pipe that has a writer) or standard input, `-`. Devices are rejected, since they may have
# no end.


STANDARD_INPUT: Final = "-"
WRITER_S: Final = 5
"""Seconds to wait for a writer of a named pipe. Once it has opened the pipe, it may take any time."""
_CHUNK = 1 << 20
_POLL_S = 0.05


@contextmanager
def open_stored_file(path: Path, kind: type[TracemapError]) -> Iterator[BinaryIO]:
    """Open a file for reading; raise an error of this kind if it is not a file or cannot be read."""
    with raising_unreadable(path, kind):
        check_is_file(path, kind)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            ready = select.poll()
            ready.register(file, select.POLLIN)
            if not ready.poll(0):  # some files in /proc have data only now and then
                raise kind(f"{path}: has no data to read, like an idle device or pipe; name a file")
            yield file


def read_stored_file(path: Path, kind: type[TracemapError]) -> bytes:
    """Content of a file; an error of this kind if it is not a file, cannot be read, or is too large for the memory."""
    with open_stored_file(path, kind) as file:
        return _read_all(file, str(path), kind)


def check_is_file(path: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind unless the path is a regular file: no pipe, device or folder."""
    with raising_unreadable(path, kind):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise kind(f"{path}: is {_kind_of(mode)}, not a file")


def check_link_stays_within(path: Path, folder: Path, kind: type[TracemapError]) -> None:
    """Raise an error of this kind if a link leads out of a folder. The folder itself may be reached by a link."""
    # A name with a NUL, or a folder that a build has just replaced: opening the file fails later.
    with suppress(ValueError, FileNotFoundError):
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise kind(f"{path}: is a link that leads out of {folder}; replace it with a copy of the file")


def read_user_input(name: str, kind: type[TracemapError]) -> bytes:
    """Content of a file or pipe that a user named; `-`: standard input."""
    with raising_unreadable(display_name(name), kind), _open_given(name, kind) as file:
        return _read_all(file, display_name(name), kind)


def is_file(name: str) -> bool:
    """Whether a user's input is a file or does not exist; False for pipes and standard input, which read only once."""
    if name == STANDARD_INPUT:
        return False
    return names_file(name) or not os.path.exists(name)  # noqa: PTH110 - as below


def names_file(name: str | Path) -> bool:
    """Whether a file with this name exists; the name may be any text, even one that is too long for a file."""
    return os.path.isfile(name)  # noqa: PTH113 - Path.is_file raises OSError for names that are too long


def copy_user_input(name: str, target: Path, kind: type[TracemapError]) -> None:
    """Copy the data of a pipe that a user named, or of standard input, to a file."""
    with raising_unreadable(display_name(name), kind), _open_given(name, kind) as file, target.open("wb") as copy:
        most = shutil.disk_usage(target.parent).free // 2
        while chunk := file.read(_CHUNK):
            copy.write(chunk)
            if copy.tell() > most:
                raise kind(
                    f"{display_name(name)}: has more data than fits into {target.parent}; write it to a file first"
                )


def display_name(name: str) -> str:
    """Name of a user's input in messages."""
    return "standard input" if name == STANDARD_INPUT else name


@contextmanager
def _open_given(name: str, kind: type[TracemapError]) -> Iterator[IO[bytes]]:
    path, opened = Path(name), ExitStack()
    if name == STANDARD_INPUT:
        file: IO[bytes] = sys.stdin.buffer
    # Pipes of `<(…)` have no path of their own; their writer has opened them already.
    elif path.is_fifo() and path.resolve().exists():
        file = opened.enter_context(io.BufferedReader(_NamedPipe(path, kind)))
    else:
        file = opened.enter_context(path.open("rb"))
    with opened:
        status = os.fstat(file.fileno())
        ends = stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        if not (ends or file.isatty() or status.st_rdev == Path(os.devnull).stat().st_rdev):
            raise kind(f"{display_name(name)}: is {_kind_of(status.st_mode)}; name a file or a pipe")
        yield file


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


# ---- formats of files
#
# Recognition of a file by its first bytes, so that an error names a file that is not what a command needs.


class FileFormat(enum.StrEnum):
    """The format of a file or folder, as messages name it."""

    BUNDLE = "a bundle"
    FOLDER = "a folder"
    EMPTY = "an empty file"
    RUN = "a run or another table"
    PROFILE = "a profile of IREE"
    MODEL = "a model"
    MODULE = "a compiled module (.vmfb)"
    ARRAY = "a numpy array"
    ARRAYS = "an archive of numpy arrays (.npz)"
    ARCHIVE = "a zip archive"
    COMPRESSED = "compressed"
    PAGE = "a page of tracemap"
    DOCUMENT = "a JSON document of tracemap"
    JSON = "a JSON file"
    HTML = "an HTML page"
    POINTER = "a pointer of Git LFS"
    SCRIPT = "a Python script"
    PROGRAM = "a program or library (ELF)"
    TEXT = "a text file"
    BINARY = "a binary file"


HEAD_BYTES: Final = 1 << 12
"""Bytes at the beginning of a file that decide its kind."""
MAP_NAME: Final = "map.json"
"""The file by which a folder is known as a bundle."""
MLIR_START: Final = re.compile(
    r"""
    (?://[^\n]*\n\s*)*                                      # comments, and then one of:
    (?: module(?:\s*\{|\s+@|\s+attributes\b)
      | \w+(?:\.\w+)+(?:\s+(?:private|public|nested|mutable))*\s+@   # func.func @main
      | "\w+(?:\.\w+)+"\s*(?:<\{[^\n]*)?\(                 # "builtin.module"()
      | [#!][\w.$-]+\s*=\s*[#!"a-z@<(\[{]                  # #loc = loc(unknown)
      | \{-\#
    )
    """,
    re.VERBOSE | re.ASCII,
)
"""The start of an MLIR text."""
_KINDS_BY_START: Final = (
    (b"PAR1", FileFormat.RUN),
    (b"IRPF", FileFormat.PROFILE),
    (b"ML\xefR", FileFormat.MODEL),
    (b"\x93NUMPY", FileFormat.ARRAY),
    (b"\x7fELF", FileFormat.PROGRAM),
    *((start, FileFormat.COMPRESSED) for start in (b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh")),
    (b"version https://git-lfs.github.com/spec/", FileFormat.POINTER),
)
_HTML: Final = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_OWN_PAGE: Final = b'<meta name="generator" content="tracemap"'
_OWN_JSON: Final = re.compile(rb'\{\s*"schema_version": ?\d+,\s*"kind": ?"\w')
_ZIP: Final = b"PK\x03\x04"
_MODULE_IN_ZIP: Final = b"module.fb"
_FLATBUFFER_OF_MODULE: Final = b"IREE"


_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks; those of UTF-32 begin or end with them."""


def format_of_data(head: bytes, name: str) -> FileFormat:
    """The kind of a file, by its first bytes; the name decides only between texts, and between zip archives."""
    suffix = PurePath(name).suffix.lower()
    if not head.strip():
        return FileFormat.EMPTY
    if by_start := next((kind for start, kind in _KINDS_BY_START if head.startswith(start)), None):
        return by_start
    if head.startswith(_ZIP):
        if _MODULE_IN_ZIP in head[: 1 << 8]:
            return FileFormat.MODULE
        return FileFormat.ARRAYS if suffix == ".npz" else FileFormat.ARCHIVE
    if head[4:8] == _FLATBUFFER_OF_MODULE:
        return FileFormat.MODULE
    if b"\0" in head:
        return FileFormat.TEXT if head.startswith(_UTF_16) else FileFormat.BINARY
    return _kind_of_text(head, suffix)


def _kind_of_text(head: bytes, suffix: str) -> FileFormat:
    if _HTML.match(head):
        return FileFormat.PAGE if _OWN_PAGE in head else FileFormat.HTML
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    if MLIR_START.match(text):
        return FileFormat.MODEL
    if text.startswith(("{", "[")):
        return FileFormat.DOCUMENT if _OWN_JSON.match(head) else FileFormat.JSON
    return {".py": FileFormat.SCRIPT, ".csv": FileFormat.RUN}.get(suffix, FileFormat.TEXT)


def format_of_file(path: Path) -> FileFormat | None:
    """The kind of a file or folder; None if it does not exist, cannot be read, or is a pipe or device."""
    try:
        if path.is_dir():
            return FileFormat.BUNDLE if (path / MAP_NAME).exists() else FileFormat.FOLDER
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return format_of_data(file.read(HEAD_BYTES), path.name)
    except (OSError, ValueError):
        return None


def similar_name(path: Path, names: Iterable[str]) -> str:
    """The path of a file with a similar name in the same folder, for a path that does not exist; "" if there is none.

    `names`: names of files that may be meant; suffixes do not count.
    """
    by_stem = {PurePath(name).stem: name for name in sorted(names, reverse=True)}
    similar = get_close_matches(path.stem, by_stem, 1)
    return str(path.parent / by_stem[similar[0]]) if similar else ""


# ---- outputs
#
# Writing of results: formats, checks of targets before the work starts, and atomic files.
#
# `-` is standard output. Devices and pipes are written in place. For a link, the file that it points to is written.


STANDARD_OUTPUT: Final = "-"
READER_S: Final = 5
"""Seconds to wait for a reader of a named pipe."""
_WRITE_POLL_S: Final = 0.01
_OF_OTHER_FILES: Final = frozenset(
    (
        ".json .jsonl .html .htm .txt .md .log .xml .yaml .yml .toml .tsv .xlsx .svg .png "
        ".arrow .feather .orc .avro .db .duckdb .sqlite .npy .npz .pkl .bin .gz .zip .zst .xz .bz2 .tar "
        ".pb .pftrace .tracy .dot .graphml .mlir .mlirbc .vmfb .tracemap .onnx .pt2 .irpa .flags .py"
    ).split()
)
"""Suffixes of other kinds of files. Any other suffix may be part of a name: `llama3.1`, `run.2026-11-26`."""


def is_standard(target: Path | None) -> bool:
    """Whether a target is standard output."""
    return str(target) == STANDARD_OUTPUT


def is_stream(target: Path) -> bool:
    """Whether a target is written in place: standard output, a device or a pipe."""
    return is_standard(target) or _kind(target) not in (0, stat.S_IFREG, stat.S_IFDIR)


def _kind(target: Path) -> int:
    """File type of a path (`stat.S_IFMT`); 0: it does not exist or is not accessible."""
    try:
        return stat.S_IFMT(target.stat().st_mode)
    except (OSError, ValueError):  # a name that is too long or contains a NUL, or a folder without permission
        return 0


def is_csv(target: Path) -> bool:
    """Whether a table is written as CSV instead of Parquet: its name ends in .csv, or it goes to standard output."""
    return target.suffix == ".csv" or is_standard(target)


def check_table_name(target: Path) -> None:
    """Reject a table's name with the suffix of another format; unknown suffixes, and none, mean Parquet.

    Raises:
        UsageInvalid: the suffix belongs to another format.
    """
    ending = target.suffix.lower()
    is_other_case = ending == ".csv" and not is_csv(target)
    if (ending in _OF_OTHER_FILES or is_other_case) and not is_stream(target):
        raise UsageInvalid(
            f"{target}: tables are written as Parquet or CSV, not as {target.suffix}; name a .parquet or .csv file"
        )


def check_file(target: Path, *, force: bool) -> None:
    """Check before the work starts that a file can be written.

    An existing file is replaced if tracemap wrote it; other files are replaced only with `force`.

    Raises:
        TargetExists: it exists, tracemap did not write it, and `force` is not set.
        TargetUnwritable: it is a folder, or its folder does not exist or is not writable.
    """
    if is_standard(target):
        return
    if _kind(target) == stat.S_IFDIR:
        raise TargetUnwritable(f"{target}: is a folder; name a file")
    if not is_stream(target):
        check_folder_writable(link_target(target))
    elif not os.access(target, os.W_OK):
        raise TargetUnwritable(f"{target}: is not writable; choose another path")
    # Writing destroys existing data in files, folders and disks, not in pipes and other devices.
    exists = _kind(target) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFBLK)
    if exists and not (force or has_mark(target)):
        raise _taken(target)
    if not is_stream(target):
        (_found_free.discard if force or exists else _found_free.add)(resolved_path(target))


PPROF_MARK: Final = "tracemap.pprof"
"""The original name in the gzip header of tracemap's pprof files."""
_MARKS: Final = re.compile(
    rb'<meta name="generator" content="tracemap"|(?:^|^// |^<!-- |[\x01-\x1f])creator: tracemap \d'
    rb'|"exporter": ?"tracemap |"executable": ?"tracemap \w|\A\{\s*"schema_version": ?\d+,\s*"kind": ?"\w'
    rb"|\A\x1f\x8b\x08\x08[\x00-\xff]{6}%s\x00" % re.escape(PPROF_MARK.encode()),
    re.MULTILINE,
)
"""Texts near the beginning of tracemap's pages, JSON documents and exports. In protobuf, a length precedes a text."""
_MARKED_BYTES: Final = 1 << 12
_PARQUET: Final = b"PAR1"
_OWN_PARQUET: Final = re.compile(rb"\x18.tracemap")
"""A key in the footer that begins with `tracemap`, in Thrift's compact protocol: length, then text."""


def has_mark(path: Path) -> bool:
    """Whether tracemap wrote a file, by the mark that its pages, documents, runs and most exports carry."""
    try:
        with path.open("rb") as file:
            head = file.read(_MARKED_BYTES)
            if not head.startswith(_PARQUET):
                return _MARKS.search(head) is not None
            file.seek(-8, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-8 - min(length, file.tell() - 4), os.SEEK_END)
            return _OWN_PARQUET.search(file.read(length)) is not None
    except OSError:
        return False


_found_free: Final[set[str]] = set()
"""Resolved paths that `check_file` found free. If another command creates one meanwhile, it is not replaced."""


def _taken(target: Path) -> TargetExists:
    return TargetExists(f"{target}: exists, and has no mark of tracemap; choose another name, or pass {force_option()}")


def check_files(*targets: Path | None, force: bool) -> None:
    """Check several targets with `check_file`; None: this output was not requested.

    Raises:
        UsageInvalid: several targets are the same file, or several are standard output.
    """
    requested = [target for target in targets if target is not None]
    if sum(map(is_standard, requested)) > 1:
        raise UsageInvalid(f"{STANDARD_OUTPUT}: only one result can go to standard output; name a file for the others")
    written: set[str] = set()
    for target in requested:
        place = resolved_path(target)
        if not is_stream(target) and place in written:
            raise UsageInvalid(f"{target}: the same command writes another output to this file; choose another name")
        written.add(place)
    for target in requested:
        check_file(target, force=force)


def check_unread(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Reject targets that would overwrite an input, directly or through a link.

    Raises:
        UsageInvalid: a target is the same file as an input.
    """
    read = {resolved_path(path) for path in inputs if not is_stream(path)}
    for target in targets:
        if not is_stream(target) and resolved_path(target) in read:
            raise UsageInvalid(f"{target}: the same command reads this file; choose another name")


def resolved_path(path: Path) -> str:
    """Resolved path, which need not exist; two paths with the same result are the same file."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a name with a NUL; opening it fails later
        return str(path)


def check_folder_writable(target: Path) -> None:
    """Check that a file can be created in the target's folder.

    Raises:
        TargetUnwritable: the folder does not exist or is not writable.
    """
    check_name(target)
    if not target.parent.is_dir():
        raise TargetUnwritable(f"{target}: the folder {target.parent} does not exist; make it, or choose another path")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TargetUnwritable(f"{target}: the folder {target.parent} is not writable; choose another path")


def check_name(target: Path) -> None:
    """Check that the file system accepts this name: it is not too long and contains no NUL.

    Raises:
        TargetUnwritable: the name is invalid, or its folder is not accessible.
    """
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ELOOP:  # `link_target` reports links in a circle
            raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}; choose another path") from error
    except ValueError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error}; choose another name") from error


def link_target(target: Path) -> Path:
    """The file that a link points to, which need not exist; the target itself if it is not a link.

    Raises:
        TargetUnwritable: links form a circle.
    """
    if not os.path.islink(target):  # noqa: PTH114 - Path.is_symlink raises OSError for names that are too long
        return target
    try:
        return target.resolve()
    except (OSError, RuntimeError) as error:
        raise TargetUnwritable(f"{target}: is a link in a circle of links; choose another path") from error


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `target` on success and is removed on failure.

    The temporary file lies next to the target, or in a temporary folder if the target is a stream.

    Raises:
        TargetUnwritable: the file cannot be written.
        TargetExists: another program created the target after `check_file` found its path free.
    """
    try:
        if is_stream(target):
            with temporary_folder() as folder:
                yield folder / "written"
                _write_to(target, folder / "written")
            return
        resolved = link_target(target)
        with temporary_sibling(resolved) as temporary:
            yield temporary
            _put(temporary, resolved, target)
    except BrokenPipeError:  # the reader has closed the pipe; the caller decides how to end
        raise
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error


def _put(temporary: Path, place: Path, target: Path) -> None:
    """Move a file to its name. If several programs found the name free, only the first succeeds."""
    free = resolved_path(place)
    if free not in _found_free:
        temporary.replace(place)
        return
    try:
        os.link(temporary, place, follow_symlinks=False)
    except OSError as error:  # a folder, or a file system without links; then only a short race remains
        if isinstance(error, FileExistsError) or os.path.lexists(place):
            raise _written_meanwhile(target) from error
        temporary.replace(place)
    _found_free.discard(free)


def _written_meanwhile(target: Path) -> TargetExists:
    return TargetExists(f"{target}: another program wrote it meanwhile; choose another name, or pass {force_option()}")


def _write_to(stream: Path, written: Path) -> None:
    """Copy a file to standard output, a device or a pipe, without creating or truncating the target."""
    with written.open("rb") as file:
        if not is_standard(stream):
            with os.fdopen(_opened_stream(stream), "wb") as out:
                shutil.copyfileobj(file, out)
            return
        sys.stdout.flush()
        if sys.stdout.isatty():
            sys.stdout.writelines(lines_for_terminal(line.decode(errors="replace")) for line in file)
        else:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _opened_stream(stream: Path) -> int:
    """Open a device or pipe without blocking: a plain open of a pipe would wait for a reader without limit.

    Raises:
        TargetUnwritable: no reader opened the pipe within `READER_S` seconds.
    """
    deadline = time.monotonic() + READER_S
    while True:
        try:
            file = os.open(stream, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise TargetUnwritable(
                    f"{stream}: is a pipe that no program has opened for reading within {READER_S} seconds; "
                    "start its reader first, or choose another path"
                ) from error
            time.sleep(_WRITE_POLL_S)
        else:
            os.set_blocking(file, True)
            return file


def write_text(text: str, target: Path) -> None:
    """Write a text as UTF-8, with unchanged line ends; a lone surrogate becomes `?`.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with atomic_file(target) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def use_utf8(out: TextIO) -> None:
    """Switch a stream to UTF-8 for data, whatever the locale is; terminals stay as they are."""
    if isinstance(out, io.TextIOWrapper) and not out.isatty():
        out.reconfigure(encoding="utf-8")


def write_output_of(show: Callable[[TextIO], None], target: Path) -> None:
    """Write the output of `show` to a file, as `write_text` does.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    text = io.StringIO()
    show(text)
    write_text(text.getvalue(), target)
