"""What tracemap writes: a result in its format; files, refused before the work is done, there whole or not at all.

`-` is standard output. What is no regular file keeps its place: devices and pipes are written to, and of a link what it
leads to is written.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from tracemap.codec import pretty
from tracemap.errors import TargetExists, TargetUnwritable, UsageInvalid
from tracemap.owned.home import beside, temporary_folder
from tracemap.sanitize import lines_for_terminal

STANDARD_OUTPUT: Final = "-"
READER_S: Final = 5
"""How long a pipe is waited for that nobody reads."""
_LOOK_S: Final = 0.01
_OF_OTHER_FILES: Final = frozenset(
    (
        ".json .jsonl .html .htm .txt .md .log .xml .yaml .yml .toml .tsv .xlsx .svg .png "
        ".arrow .feather .orc .avro .db .duckdb .sqlite .npy .npz .pkl .bin .gz .zip .zst .xz .bz2 .tar "
        ".pb .pftrace .tracy .dot .graphml .mlir .mlirbc .vmfb .tracemap .onnx .pt2 .irpa .flags .py"
    ).split()
)
"""What names of files of other kinds end with. Any other ending may be part of a name: `llama3.1`, `run.2026-11-26`."""


def is_standard(target: Path | None) -> bool:
    """Whether a target is standard output."""
    return str(target) == STANDARD_OUTPUT


def is_stream(target: Path) -> bool:
    """Whether a target is written to in its place: standard output, a device, a pipe."""
    return is_standard(target) or _kind(target) not in (0, stat.S_IFREG, stat.S_IFDIR)


def _kind(target: Path) -> int:
    """What lies under a name, as `stat` calls it; 0: nothing, or nothing that can be looked at."""
    try:
        return stat.S_IFMT(target.stat().st_mode)
    except (OSError, ValueError):  # too long, with a NUL, below what may not be looked into
        return 0


def is_csv(target: Path) -> bool:
    """Whether a table is written as CSV, not as Parquet: its name ends so, or it goes to standard output."""
    return target.suffix == ".csv" or is_standard(target)


def check_table_name(target: Path) -> None:
    """Refuse a name for a table that says that it is something else; other endings, and none, are Parquet.

    Raises:
        UsageInvalid: it ends as files of another kind do.
    """
    ending = target.suffix.lower()
    is_other_case = ending == ".csv" and not is_csv(target)
    if (ending in _OF_OTHER_FILES or is_other_case) and not is_stream(target):
        raise UsageInvalid(
            f"{target}: a table is written as Parquet or CSV, not as {target.suffix}; name a .parquet or .csv"
        )


def check_file(target: Path, *, force: bool) -> None:
    """Find out before the work whether a file can be written.

    Raises:
        TargetExists: it exists and `force` is not set.
        TargetUnwritable: it is a folder, or its folder does not exist or may not be written.
    """
    if is_standard(target):
        return
    if _kind(target) == stat.S_IFDIR:
        raise TargetUnwritable(f"{target}: is a folder; name a file")
    if not is_stream(target):
        check_folder_of(end_of_links(target))
    elif not os.access(target, os.W_OK):
        raise TargetUnwritable(f"{target}: may not be written; choose another place")
    if _holds_something(target) and not force:
        raise _taken(target)
    if not is_stream(target):
        (_found_free.discard if force else _found_free.add)(place_of(target))


_found_free: Final[set[str]] = set()
"""Places that `check_file` found free, and where nothing may be replaced: another command may write there meanwhile."""


def _taken(target: Path) -> TargetExists:
    return TargetExists(f"{target}: exists already; pass --force to replace it, or choose another name")


def _holds_something(target: Path) -> bool:
    """Whether writing takes away what was there: not of a pipe, nor of a device but a disk."""
    return _kind(target) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFBLK)


def check_files(*targets: Path | None, force: bool) -> None:
    """`check_file` of each; None: this one is not wanted.

    Raises:
        UsageInvalid: several are to go to one place.
    """
    wanted = [target for target in targets if target is not None]
    if sum(map(is_standard, wanted)) > 1:
        raise UsageInvalid(f"{STANDARD_OUTPUT}: standard output takes one result only; name a file for the others")
    written: set[str] = set()
    for target in wanted:
        place = place_of(target)
        if not is_stream(target) and place in written:
            raise UsageInvalid(f"{target}: is written by the same command; choose another name")
        written.add(place)
    for target in wanted:
        check_file(target, force=force)


def check_unread(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over an input, also where one of both is a link to the other.

    Raises:
        UsageInvalid: a target is to take the place of an input.
    """
    read = {place_of(path) for path in inputs if not is_stream(path)}
    for target in targets:
        if not is_stream(target) and place_of(target) in read:
            raise UsageInvalid(f"{target}: is read by the same command; choose another name")


def place_of(path: Path) -> str:
    """Where a path leads to, which need not be there; two that lead to the same place are the same file."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a name with a NUL, which whoever opens it refuses
        return str(path)


def check_folder_of(target: Path) -> None:
    """Find out whether something can be made in the folder that a target lies in.

    Raises:
        TargetUnwritable: it does not exist, or may not be written.
    """
    check_name(target)
    if not target.parent.is_dir():
        raise TargetUnwritable(f"{target}: the folder {target.parent} does not exist; make it, or choose another place")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TargetUnwritable(f"{target}: the folder {target.parent} may not be written; choose another place")


def check_name(target: Path) -> None:
    """Find out whether there can be a file of this name: none is longer than the file system takes, or has a NUL.

    Raises:
        TargetUnwritable: there cannot, or its folder may not be looked into.
    """
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ELOOP:  # said of the links
            raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}; choose another place") from error
    except ValueError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error}; choose another name") from error


def end_of_links(target: Path) -> Path:
    """What a link leads to, which need not be there; the target itself where it is none.

    Raises:
        TargetUnwritable: links lead in a circle.
    """
    if not os.path.islink(target):  # noqa: PTH114 - Path.is_symlink raises OSError for names that are too long
        return target
    try:
        return target.resolve()
    except (OSError, RuntimeError) as error:
        raise TargetUnwritable(f"{target}: a link that leads nowhere; choose another place") from error


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary name that takes the place of `target` when all went well, and is removed when not.

    It lies beside the target, or elsewhere where what it holds is to be written to a stream.

    Raises:
        TargetUnwritable: the file cannot be written.
        TargetExists: another program has made it since `check_file` found its place free.
    """
    try:
        if is_stream(target):
            with temporary_folder() as folder:
                yield folder / "written"
                _write_to(target, folder / "written")
            return
        place = end_of_links(target)
        with beside(place) as temporary:
            yield temporary
            _put(temporary, place, target)
    except BrokenPipeError:  # a reader has enough: what that means, whoever started us decides
        raise
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error


def _put(temporary: Path, place: Path, target: Path) -> None:
    """Give a file its name; of several programs that found the place free, the first one gets it."""
    free = place_of(place)
    if free in _found_free:
        try:
            os.link(temporary, place, follow_symlinks=False)
        except FileExistsError as error:
            raise _taken(target) from error
        except OSError as error:  # a folder, or a file system without links, where only a moment is left
            if os.path.lexists(place):
                raise _taken(target) from error
            temporary.replace(place)
        _found_free.discard(free)
    else:
        temporary.replace(place)


def _write_to(stream: Path, written: Path) -> None:
    """Copy a file to standard output, or to the device or pipe of a name, which is neither made nor cut."""
    with written.open("rb") as file:
        if is_standard(stream):
            sys.stdout.flush()
            if sys.stdout.isatty():
                sys.stdout.writelines(lines_for_terminal(line.decode(errors="replace")) for line in file)
                return
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with os.fdopen(_opened_stream(stream), "wb") as out:
            shutil.copyfileobj(file, out)


def _opened_stream(stream: Path) -> int:
    """A descriptor of a device or pipe; to open a pipe as files are waits for a reader, however long there is none.

    Raises:
        TargetUnwritable: there is none.
    """
    deadline = time.monotonic() + READER_S
    while True:
        try:
            opened = os.open(stream, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise TargetUnwritable(
                    f"{stream}: is a pipe that nobody has begun to read for {READER_S} seconds; choose another place"
                ) from error
            time.sleep(_LOOK_S)
            continue
        os.set_blocking(opened, True)
        return opened


def write_text(text: str, target: Path) -> None:
    """Write a text, as UTF-8 and with its line ends as they are; half a surrogate pair becomes `?`.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    with replaced(target) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def as_programs_read(out: TextIO) -> None:
    """Have a stream take UTF-8, as files of data are, whatever people read where it comes from; not a terminal."""
    if isinstance(out, io.TextIOWrapper) and not out.isatty():
        out.reconfigure(encoding="utf-8")


def show_as(form: str, out: TextIO, text: Callable[[TextIO], object], value: Callable[[], object]) -> None:
    """Write a result to a stream in a format: `json`, for which `value` makes it, or else what `text` writes.

    The stream is flushed: a reader that has gone away is noticed while somebody can still handle it.
    """
    if form != "text":
        as_programs_read(out)
    if form == "json":
        out.write(pretty(value()))
    else:
        text(out)
    out.flush()


def write_shown(show: Callable[[TextIO], None], target: Path) -> None:
    """Write what `show` puts into a stream, as `write_text` does.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    text = io.StringIO()
    show(text)
    write_text(text.getvalue(), target)
